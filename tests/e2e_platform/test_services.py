"""Deployments, StatefulSets and CronJobs on a running platform, with kubectl."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

SETS = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: "i:1"}]}
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """One platform without nodes for the tests of this module."""
    with UpProcess(tmp_path_factory.mktemp("platform"), "--speed", "20x") as started:
        yield started


def objects(platform: UpProcess, kind: str, labels: str = "") -> list[dict[str, Any]]:
    selector = ("-l", labels) if labels else ()
    return json.loads(platform.kubectl("get", kind, "-o", "json", *selector))["items"]  # type: ignore[no-any-return]


def images(platform: UpProcess, labels: str) -> list[str]:
    pods = [pod for pod in objects(platform, "pods", labels) if "deletionTimestamp" not in pod["metadata"]]
    return sorted(pod["spec"]["containers"][0]["image"] for pod in pods)


def test_deployment_rolls_out_undoes_scales_and_is_deleted(platform: UpProcess) -> None:
    platform.kubectl("create", "deployment", "web", "--image=i:1", "--replicas=3")
    assert "successfully rolled out" in platform.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    platform.kubectl("set", "image", "deployment/web", "i=i:2")
    platform.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert images(platform, "app=web") == ["i:2"] * 3
    platform.kubectl("rollout", "undo", "deployment/web")
    platform.kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert images(platform, "app=web") == ["i:1"] * 3
    history = platform.kubectl("rollout", "history", "deployment/web").split()
    assert [word for word in history if word.isdigit()] == ["2", "3"]
    platform.kubectl("scale", "deployment/web", "--replicas=1")
    platform.kubectl("wait", "--for=jsonpath={.status.replicas}=1", "deployment/web", "--timeout=60s")
    platform.kubectl("delete", "deployment/web", "--cascade=foreground", "--timeout=60s")
    assert objects(platform, "replicasets,pods", "app=web") == []


def test_stateful_set_updates_and_undoes(platform: UpProcess) -> None:
    platform.kubectl("apply", "-f", "-", sent=SETS)
    platform.kubectl("rollout", "status", "statefulset/db", "--timeout=60s")
    platform.kubectl("set", "image", "statefulset/db", "c=i:2")
    platform.kubectl("rollout", "status", "statefulset/db", "--timeout=60s")
    assert images(platform, "app=db") == ["i:2"] * 2
    platform.kubectl("rollout", "undo", "statefulset/db")
    platform.kubectl("rollout", "status", "statefulset/db", "--timeout=60s")
    assert images(platform, "app=db") == ["i:1"] * 2
    assert [pod["metadata"]["name"] for pod in objects(platform, "pods", "app=db")] == ["db-0", "db-1"]


def test_cron_job_starts_jobs(platform: UpProcess) -> None:
    platform.kubectl("create", "cronjob", "tick", "--image=i", "--schedule=* * * * *")
    platform.kubectl("wait", "--for=jsonpath={.status.lastSuccessfulTime}", "cronjob/tick", "--timeout=60s")
    assert "tick-" in platform.kubectl("get", "jobs", "-o", "name")
    assert "SuccessfulCreate" in platform.kubectl("describe", "cronjob/tick")
