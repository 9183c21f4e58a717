"""Kueue's own manager and JobSet's own controller, installed with their charts, on a platform.

The variables KUEUE_CHART and JOBSET_CHART name the folders of the charts. KUEUE_ROOT and JOBSET_ROOT name folders that
replace the images: each contains the static program `manager`. Without them, the tests are skipped.
"""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e_local_pods.node import local_platform
from e2e_platform.platform_process import UpProcess

_PROJECTS = ("kueue", "jobset")
_VARIABLES = tuple(f"{project.upper()}_{part}" for project in _PROJECTS for part in ("CHART", "ROOT"))
_MISSING = [name for name in _VARIABLES if not Path(os.environ.get(name, "-")).is_dir()]
pytestmark = [
    pytest.mark.skipif(bool(_MISSING), reason=f"these variables name no folders: {', '.join(_MISSING)}"),
    pytest.mark.skipif(shutil.which("helm") is None, reason="there is no helm on this machine"),
]
_WAIT = "--timeout=50s"
_QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: plain}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team}
spec:
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: plain, resources: [{name: cpu, nominalQuota: 200m}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: training, namespace: default}
spec: {clusterQueue: team}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: high}
value: 100
"""


def pod_spec(cpu: str, command: str) -> dict[str, Any]:
    container = {"name": "main", "image": "machine", "command": ["sh", "-c", command]}
    return {"restartPolicy": "Never", "containers": [{**container, "resources": {"requests": {"cpu": cpu}}}]}


def labelled(name: str, **labels: str) -> dict[str, Any]:
    return {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "training", **labels}}


def job(name: str, cpu: str = "200m", command: str = "sleep 1", **labels: str) -> str:
    head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": labelled(name, **labels)}
    return json.dumps({**head, "spec": {"template": {"spec": pod_spec(cpu, command)}}})


def job_set(name: str) -> str:
    template = {"spec": {"template": {"spec": pod_spec("50m", "true")}}}
    replicated = {"name": "workers", "replicas": 2, "template": template}
    head = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": labelled(name)}
    return json.dumps({**head, "spec": {"replicatedJobs": [replicated]}})


def install(platform: UpProcess, project: str) -> None:
    chart, namespace = os.environ[f"{project.upper()}_CHART"], f"{project}-system"
    command = ["helm", "install", project, chart, "-n", namespace, "--create-namespace", "--wait"]
    subprocess.run(command, env={**os.environ, "KUBECONFIG": str(platform.kubeconfig)}, check=True, timeout=300)


def images() -> list[str]:
    return [f"*/{project}/{project}*={os.environ[f'{project.upper()}_ROOT']}" for project in _PROJECTS]


@pytest.fixture(scope="module")
def options() -> list[str]:
    return ["--upstream", ",".join(_PROJECTS), *(word for image in images() for word in ("--image", image))]


@pytest.fixture(scope="module")
def platform(folder: Path, options: list[str]) -> Iterator[UpProcess]:
    with local_platform(folder, *options) as up:
        for project in _PROJECTS:
            install(up, project)
        up.kubectl("apply", "-f", "-", sent=_QUEUES)
        yield up


def create(platform: UpProcess, manifest: str, *, fails: bool = False) -> str:
    return platform.kubectl("create", "-f", "-", sent=manifest, fails=fails)


def wait_for(platform: UpProcess, condition: str, name: str) -> None:
    platform.kubectl("wait", f"--for=condition={condition}", name, _WAIT)


def test_jobs_beyond_quota_run_one_after_the_other(platform: UpProcess) -> None:
    for name in ("one", "two"):
        create(platform, job(name))
    for name in ("one", "two"):
        wait_for(platform, "Complete", f"job/{name}")
    platform.kubectl("wait", "--for=condition=Finished", "workloads", "--all", _WAIT)


def test_urgent_job_preempts_running_job(platform: UpProcess) -> None:
    create(platform, job("low", command="sleep 600"))
    platform.kubectl("wait", "--for=jsonpath={.status.active}=1", "job/low", _WAIT)
    create(platform, job("urgent", **{"kueue.x-k8s.io/priority-class": "high"}))
    wait_for(platform, "Complete", "job/urgent")
    assert "Preempted to accommodate a workload" in platform.kubectl("get", "events", "-o", "jsonpath={..message}")
    platform.kubectl("delete", "job", "low")


def test_invalid_objects_are_rejected_by_webhooks(platform: UpProcess) -> None:
    too_many = json.loads(job("bad"))
    too_many["metadata"]["annotations"] = {"kueue.x-k8s.io/job-min-parallelism": "5"}
    refusal = create(platform, json.dumps(too_many), fails=True)
    assert 'admission webhook "vjob.kb.io" denied the request' in refusal
    patch = [{"op": "replace", "path": "/spec/resourceGroups/0/flavors/0/resources/0/name", "value": "gpu"}]
    refusal = platform.kubectl("patch", "cq", "team", "--type=json", "-p", json.dumps(patch), fails=True)
    assert 'admission webhook "vclusterqueue.kb.io" denied the request' in refusal
    assert "must match the name in coveredResources" in refusal


def test_job_set_is_queued_and_completed_by_its_controller(platform: UpProcess) -> None:
    create(platform, job_set("pair"))
    wait_for(platform, "Completed", "jobset/pair")
    assert platform.kubectl("get", "jobs", "-l", "jobset.sigs.k8s.io/jobset-name=pair", "-o", "name").count("job") == 2


def test_older_version_is_converted_by_the_manager(platform: UpProcess) -> None:
    older = json.loads(platform.kubectl("get", "clusterqueues.v1beta1.kueue.x-k8s.io", "team", "-o", "json"))
    assert older["apiVersion"] == "kueue.x-k8s.io/v1beta1"
    assert older["spec"]["preemption"]["withinClusterQueue"] == "LowerPriority"


def test_visibility_server_lists_pending_workloads(platform: UpProcess) -> None:
    platform.kubectl("wait", "--for=condition=Available", "apiservice/v1beta2.visibility.kueue.x-k8s.io", _WAIT)
    path = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/team/pendingworkloads"
    assert json.loads(platform.kubectl("get", "--raw", path))["kind"] == "PendingWorkloadsSummary"


def revision_of(platform: UpProcess) -> int:
    return int(json.loads(platform.kubectl("get", "--raw", "/api/v1/namespaces"))["metadata"]["resourceVersion"])


def test_nothing_is_written_at_rest(platform: UpProcess) -> None:
    threading.Event().wait(5)
    before = revision_of(platform)
    threading.Event().wait(10)
    assert revision_of(platform) - before < 40  # Leases are renewed every two seconds
