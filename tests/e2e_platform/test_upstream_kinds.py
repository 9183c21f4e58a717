"""Jobs of kinds with the CustomResourceDefinitions of their projects, on a running platform with real kubectl.

The folder `shared/crds/other` beside this repository has one folder of CustomResourceDefinitions for each project, such
as `kuberay`. Without it, the tests are skipped.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.platform_process import UpProcess
from e2e_platform.test_described_jobs import QUEUES

DEFINITIONS = Path(__file__).parents[3] / "shared" / "crds" / "other"
pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
    pytest.mark.skipif(not DEFINITIONS.is_dir(), reason=f"there is no folder {DEFINITIONS}"),
]
QUEUES_WITH_MEMORY = QUEUES.replace("[cpu]", "[memory, cpu]").replace(
    "resources: [", "resources: [{name: memory, nominalQuota: 16Gi}, "
)
CPU = {"requests": {"cpu": "1"}}
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "python", "resources": CPU}]}}


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[UpProcess]:
    with UpProcess(tmp_path / "data", "--port", "0") as up:
        up.kubectl("apply", "-f", "-", sent=QUEUES)
        yield up


def define(platform: UpProcess, *files: str) -> None:
    for file in files:
        name = f"crd/{file.partition('_')[2]}.{file.partition('/')[2].partition('_')[0]}"
        platform.kubectl("create", "-f", str(DEFINITIONS / f"{file}.yaml"))
        platform.kubectl("wait", "--for=condition=Established", name)


def manifest(api_version: str, kind: str, **spec: Any) -> str:
    metadata = {"name": "first", "labels": {"kueue.x-k8s.io/queue-name": "training"}}
    return json.dumps({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})


def wait_for(platform: UpProcess, job: str, path: str, value: str) -> Any:
    platform.kubectl("wait", f"--for=jsonpath={{{path}}}={value}", job, "--timeout=30s")
    return json.loads(platform.kubectl("get", job, "-o", "json"))


def test_ray_job_is_validated_started_and_finished(platform: UpProcess) -> None:
    define(platform, "kuberay/ray.io_rayjobs")
    head = {"rayStartParams": {}, "template": TEMPLATE}
    spec: dict[str, Any] = {
        "entrypoint": "true",
        "submissionMode": "HTTPMode",
        "rayClusterSpec": {"headGroupSpec": head},
    }
    refusal = platform.kubectl("create", "-f", "-", sent=manifest("ray.io/v1", "RayJob", **spec), fails=True)
    assert "a kueue managed job should delete the cluster after finishing" in refusal
    spec["shutdownAfterJobFinishes"] = True
    platform.kubectl("create", "-f", "-", sent=manifest("ray.io/v1", "RayJob", **spec))
    job = wait_for(platform, "rayjob/first", ".spec.suspend", "false")
    template = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
    assert template["spec"]["nodeSelector"] == {"pool": "spot"}
    status = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED", "message": "done"}
    patch = json.dumps({"status": status})
    platform.kubectl("patch", "rayjob", "first", "--subresource=status", "--type=merge", "-p", patch)
    platform.kubectl("wait", "--for=condition=Finished", "workloads", "--all", "--timeout=30s")


def test_train_job_starts_stops_and_starts_again(platform: UpProcess) -> None:
    kinds = ("trainjobs", "clustertrainingruntimes")
    define(platform, *(f"trainer/trainer.kubeflow.org_{kind}" for kind in kinds))
    spec = {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 2, "resourcesPerNode": CPU}}
    job = manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", **spec)
    assert "runtime 'torch-distributed' not found" in platform.kubectl("create", "-f", "-", sent=job, fails=True)
    platform.kubectl("create", "-f", str(DEFINITIONS / "trainer/runtimes/torch_distributed.yaml"))
    platform.kubectl("create", "-f", "-", sent=job)
    started = wait_for(platform, "trainjob/first", ".spec.suspend", "false")
    (patch,) = started["spec"]["runtimePatches"]
    (replicated_job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    template = replicated_job["template"]["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"pool": "spot"}
    assert template["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "node"
    count = "jsonpath={.items[0].spec.podSets[0].count}"
    assert platform.kubectl("get", "workloads", "-o", count) == "2"
    stop(platform, "HoldAndDrain")
    wait_for(platform, "trainjob/first", ".spec.suspend", "true")
    wait_until_without_quota(platform)
    stopped = json.loads(platform.kubectl("get", "trainjob/first", "-o", "json"))
    (patch,) = stopped["spec"]["runtimePatches"]
    assert not patch["trainingRuntimeSpec"]["template"]["spec"].get("replicatedJobs")
    stop(platform, "None")
    wait_for(platform, "trainjob/first", ".spec.suspend", "false")


def test_app_wrapper_starts_and_finishes(platform: UpProcess) -> None:
    define(platform, "appwrapper/workload.codeflare.dev_appwrappers")
    wrapped = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "w"}}
    components = [{"template": {**wrapped, "spec": {"parallelism": 2, "template": TEMPLATE}}}]
    job = manifest("workload.codeflare.dev/v1beta2", "AppWrapper", components=components)
    platform.kubectl("create", "-f", "-", sent=job)
    started = wait_for(platform, "appwrapper/first", ".spec.suspend", "false")
    (info,) = started["spec"]["components"][0]["podSetInfos"]
    assert info["nodeSelector"] == {"pool": "spot"}
    assert info["labels"]["kueue.x-k8s.io/podset"] == "first-0"
    patch = json.dumps({"status": {"phase": "Succeeded"}})
    platform.kubectl("patch", "appwrapper", "first", "--subresource=status", "--type=merge", "-p", patch)
    platform.kubectl("wait", "--for=condition=Finished", "workloads", "--all", "--timeout=30s")
    path = "jsonpath={.items[*].status.conditions[?(@.type=='Finished')].message}"
    assert platform.kubectl("get", "workloads", "-o", path) == "AppWrapper finished successfully"


def test_spark_application_starts_and_finishes(platform: UpProcess) -> None:
    define(platform, "spark-operator/sparkoperator.k8s.io_sparkapplications")
    platform.kubectl("apply", "-f", "-", sent=QUEUES_WITH_MEMORY)
    spec: dict[str, Any] = {"type": "Scala", "mainApplicationFile": "local:///pi.jar", "sparkVersion": "4.0.0"}
    spec |= {"driver": {"cores": 1}, "executor": {"instances": 2, "memory": "2g"}}
    header = "sparkoperator.k8s.io/v1beta2", "SparkApplication"
    refusal = platform.kubectl("create", "-f", "-", sent=manifest(*header, mode="client", **spec), fails=True)
    assert "only Cluster mode is supported for a kueue managed job" in refusal
    platform.kubectl("create", "-f", "-", sent=manifest(*header, mode="cluster", **spec))
    started = wait_for(platform, "sparkapp/first", ".spec.suspend", "false")
    assert started["spec"]["executor"]["nodeSelector"] == {"pool": "spot"}
    path = "jsonpath={.items[*].status.admission.podSetAssignments[*].resourceUsage.memory}"
    assert platform.kubectl("get", "workloads", "-o", path) == "1408Mi 4864Mi"
    state = {"state": "FAILED", "errorMessage": "no driver"}
    patch = json.dumps({"status": {"applicationState": state, "driverInfo": {}}})
    platform.kubectl("patch", "sparkapp", "first", "--subresource=status", "--type=merge", "-p", patch)
    platform.kubectl("wait", "--for=condition=Finished", "workloads", "--all", "--timeout=30s")
    path = "jsonpath={.items[*].status.conditions[?(@.type=='Finished')].message}"
    assert platform.kubectl("get", "workloads", "-o", path) == "no driver"


def stop(platform: UpProcess, policy: str) -> None:
    patch = json.dumps({"spec": {"stopPolicy": policy}})
    platform.kubectl("patch", "clusterqueue", "research", "--type=merge", "-p", patch)


def wait_until_without_quota(platform: UpProcess) -> None:
    platform.kubectl("wait", "--for=condition=QuotaReserved=false", "workloads", "--all", "--timeout=30s")
