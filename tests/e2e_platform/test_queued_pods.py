"""Pods and groups of pods in queues, with kubectl: on the platform, and with an operator of a platform."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.operator_process import platform_with_queues
from e2e_platform.platform_process import UpProcess

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

EXAMPLES = Path(__file__).parents[2] / "examples" / "pods"
READY = ("--for=condition=Ready", "--timeout=60s")


@pytest.fixture(params=["platform", "operator"])
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UpProcess]:
    with platform_with_queues(tmp_path, has_operator=request.param == "operator") as started:
        yield started


def parts(name: str) -> list[str]:
    return (EXAMPLES / name).read_text().split("\n---\n")


def read(platform: UpProcess, *arguments: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(platform.kubectl("get", *arguments, "-o", "json"))
    return result


def test_single_pods_run_one_after_another(platform: UpProcess) -> None:
    *first, second = parts("single.yaml")
    platform.kubectl("apply", "-f", "-", sent="\n---\n".join(first))
    platform.kubectl("wait", *READY, "pod/notebook")
    platform.kubectl("apply", "-f", "-", sent=second)
    waiting = read(platform, "pod", "report")
    assert "kueue.x-k8s.io/admission" in [each["name"] for each in waiting["spec"]["schedulingGates"]]
    platform.kubectl("delete", "pod", "notebook", "--grace-period=0", "--force")
    platform.kubectl("wait", *READY, "pod/report")
    refused = platform.kubectl("label", "pod", "report", "kueue.x-k8s.io/managed=no", "--overwrite", fails=True)
    assert "managed label value can only be 'true'" in refused


def test_group_starts_when_it_is_whole(platform: UpProcess) -> None:
    *some, last = parts("group.yaml")
    platform.kubectl("apply", "-f", "-", sent="\n---\n".join(some))
    assert read(platform, "pod", "driver")["spec"]["schedulingGates"]
    assert read(platform, "workloads")["items"] == []
    platform.kubectl("apply", "-f", "-", sent=last)
    platform.kubectl("wait", *READY, "pod", "--all")
    (workload,) = read(platform, "workloads")["items"]
    assert workload["metadata"]["name"] == "simulation"
    assert sorted(each["count"] for each in workload["spec"]["podSets"]) == [1, 3]


def test_deleted_workload_deletes_group(platform: UpProcess) -> None:
    platform.kubectl("apply", "-f", str(EXAMPLES / "group.yaml"))
    platform.kubectl("wait", *READY, "pod", "--all")
    platform.kubectl("delete", "workload", "simulation")
    platform.kubectl("wait", "--for=delete", "pod", "--all", "--timeout=60s")
