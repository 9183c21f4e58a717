"""Jobs of kinds with the CustomResourceDefinitions of their projects, on a running platform with real kubectl.

The variable BATCHYARD_KIND_DEFINITIONS names a folder with one folder of CustomResourceDefinitions for each project, such
as `kuberay`. Without the folder, the tests are skipped.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.platform_process import UpProcess
from e2e_platform.test_described_jobs import QUEUES

DEFINITIONS = Path(os.environ.get("BATCHYARD_KIND_DEFINITIONS", "/nonexistent"))
pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
    pytest.mark.skipif(not DEFINITIONS.is_dir(), reason="BATCHYARD_KIND_DEFINITIONS names no folder"),
]
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "python", "resources": {"requests": {"cpu": "1"}}}]}}


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
    spec = {"entrypoint": "true", "submissionMode": "HTTPMode", "rayClusterSpec": {"headGroupSpec": head}}
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
