"""The JobSet of the reference architecture as pods of this machine, with the trainer of examples/training."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e_local_pods.node import follow_output, local_platform
from e2e_platform.platform_process import UpProcess

ROOT = Path(__file__).parent.parent.parent
JOB_SET = ROOT.parent / "shared/refarch/jobset/workloads/team-a/team-a-jobset-0.yaml"
TRAINING = ROOT / "examples" / "training"
TORCH = ROOT / ".torch"
NAME = "team-a-jobset-0"
#: The pod of rank 0, the only rank that logs its steps.
FIRST = ("-n", "team-a", "--selector", "batch.kubernetes.io/job-completion-index=0")

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
    pytest.mark.skipif(not JOB_SET.exists(), reason="the reference architecture is not beside the repository"),
    pytest.mark.skipif(not (TORCH / ".made").exists(), reason="there is no .torch: say make torch"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap: pods cannot have volumes"),
]

#: The stand-in for the program of the image: the trainer under the expected name, with its options.
PROGRAM = """
import os, runpy, sys
here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, here)
sys.argv = ["train.py", "--steps", "40", "--seconds-per-step", "0.2", "--checkpoint-every", "5"]
runpy.run_path(os.path.join(here, "train.py"), run_name="__main__")
"""
PLATFORM = """
apiVersion: v1
kind: Namespace
metadata: {name: team-a}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: team-a-ksa, namespace: team-a}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: here}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: cq-team-a}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors: [{name: here, resources: [{name: cpu, nominalQuota: 4}, {name: memory, nominalQuota: 8Gi}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lq-team-a-lp, namespace: team-a}
spec: {clusterQueue: cq-team-a}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of checkpoints."""
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[UpProcess]:
    """A platform with an environment in place of the image, and with the node label of L4 GPUs."""
    image = tmp_path_factory.mktemp("image")
    for script in ("train.py", "checkpoints.py"):
        shutil.copy(TRAINING / script, image)
    (image / "mnist.py").write_text(PROGRAM, "utf-8")
    row = {"match": "*/pytorch-mnist:v1", "environment": str(TORCH.resolve()), "workingDir": str(image)}
    labels = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    local = {"images": [row], "hostPaths": [str(folder)], "labels": labels}
    spec = {"zones": ["here"], "local": local}
    cluster = {"apiVersion": "cloud.batchyard.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "here"}}
    described = image / "cluster.yaml"
    described.write_text(json.dumps({**cluster, "spec": spec}), "utf-8")
    with local_platform(tmp_path_factory.mktemp("platform"), cluster=described) as started:
        started.kubectl("apply", "-f", "-", sent=PLATFORM)
        yield started


def job_set(folder: Path) -> str:
    """The JobSet without GPUs, with smaller requests, and with a volume for checkpoints."""
    text = JOB_SET.read_text("utf-8").replace("$REGION", "us").replace("$PROJECT_ID", "example")
    manifest = yaml.safe_load(text)
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["resources"] = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    container["env"].append({"name": "CHECKPOINT_DIR", "value": "/checkpoints"})
    container["volumeMounts"] = [{"name": "checkpoints", "mountPath": "/checkpoints"}]
    pod["volumes"] = [{"name": "checkpoints", "hostPath": {"path": str(folder), "type": "Directory"}}]
    return json.dumps(manifest)


def test_job_set_restarts_and_resumes_from_checkpoint_after_worker_is_killed(platform: UpProcess, folder: Path) -> None:
    platform.kubectl("apply", "-f", "-", sent=job_set(folder))
    wait_for_first(platform)
    with follow_output(platform, "logs", "-f", *FIRST) as lines:
        assert any(re.search(r"step 1\d ", line) for line in lines)
    kill_a_worker(platform)
    wait_until_complete(platform)
    status = json.loads(platform.kubectl("get", "jobset", NAME, "-n", "team-a", "-o", "jsonpath={.status}"))
    assert status["restarts"] == 1
    last = platform.kubectl("logs", "-n", "team-a", "--selector", f"jobset.sigs.k8s.io/jobset-name={NAME}", "--tail=-1")
    assert re.search(r"resumed from step (5|10|15)\b", last)
    assert re.search(r"done: step 40 loss", last)


def wait_for_first(platform: UpProcess) -> None:
    """Wait until the pod of rank 0 runs."""
    for state in ("create", "condition=Ready"):
        platform.kubectl("wait", "pod", *FIRST, f"--for={state}", "--timeout=60s")


def kill_a_worker(platform: UpProcess) -> None:
    """Kill the main process of one of the pods."""
    pods = json.loads(platform.kubectl("get", "pods", "-n", "team-a", "-o", "json"))["items"]
    uid = pods[-1]["metadata"]["uid"]
    run = platform.kubeconfig.parent / "node" / "pods" / uid / "runs" / "pytorch" / "0"
    os.kill(json.loads((run / "state.json").read_text("utf-8"))["pid"], signal.SIGKILL)


def wait_until_complete(platform: UpProcess) -> None:
    """Wait until the JobSet is complete."""
    seen = ("get", "jobset", NAME, "-n", "team-a", "-o", "jsonpath={.status.terminalState}")
    for _ in range(6):
        if platform.kubectl(*seen) == "Completed":
            return
        watching = ["get", "jobset", NAME, "-n", "team-a", "-w", "--request-timeout=40s", "-o", seen[-1] + "{'\\n'}"]
        with follow_output(platform, *watching) as lines:
            any("Completed" in line for line in lines)
    raise AssertionError("the JobSet did not complete")
