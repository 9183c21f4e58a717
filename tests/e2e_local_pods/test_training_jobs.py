"""PyTorchJobs in a queue that `--job-controllers kubeflow` runs in pods of this machine, without and with PyTorch."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from e2e_local_pods.node import PATIENCE, local_platform
from e2e_platform.platform_process import UpProcess

ROOT = Path(__file__).parent.parent.parent
#: An environment with PyTorch: that of `make torch`, or that of the tests.
TORCH = next((path for path in (ROOT / ".torch", Path(sys.prefix)) if [*path.glob("lib/*/site-packages/torch")]), None)
pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

QUEUES = """
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
    flavors: [{name: plain, resources: [{name: cpu, nominalQuota: 400m}]}]
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
#: The master counts the connections of the workers, which connect to it by its name.
RENDEZVOUS = """
import os, socket, sys, threading
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("", address[1])) as server:
        print("peers", sorted(int(server.accept()[0].recv(9)) for _ in range(size - 1)))
    sys.exit()
for _ in range(300):
    try:
        with socket.create_connection(address, 5) as connection:
            connection.sendall(str(rank).encode())
        print("joined", address[0])
        sys.exit()
    except OSError:
        threading.Event().wait(0.2)
sys.exit("the master did not answer")
"""
#: Trains a line on each rank's half of the points. The gradients are averaged, so all ranks have the same weight.
TRAINING = """
import torch
from torch import distributed, nn
distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
points = torch.arange(rank, 8, size, dtype=torch.float32).reshape(-1, 1) / 8
model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(300):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(points), 3 * points + 1)
    loss.backward()
    optimizer.step()
print("world", size, "weight", round(model.module.weight.item(), 2))
distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform with a queue for two pods, and without controllers of other projects."""
    images = () if TORCH is None else ("--image", f"pytorch/*={TORCH}")
    with local_platform(tmp_path_factory.mktemp("platform"), "--job-controllers", "kubeflow", *images) as started:
        if started.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}") == "None":
            pytest.skip("pods have no network of their own here")
        started.kubectl("apply", "-f", "-", sent=QUEUES)
        yield started


def pytorch_job(name: str, command: Sequence[str], image: str = "machine", **spec: object) -> str:
    """A PyTorchJob of two pods in the queue."""
    resources = {"requests": {"cpu": "200m"}}
    container = {"name": "pytorch", "image": image, "command": list(command), "resources": resources}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    replica = {"replicas": 1, "restartPolicy": "Never", "template": template}
    metadata = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "training"}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata}
    return json.dumps({**job, "spec": {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}, **spec}})


def urgent_job(name: str) -> str:
    """A Job of higher priority that takes the whole quota for a moment."""
    container = {"name": "main", "image": "machine", "command": ["sleep", "1"]}
    spec = {"restartPolicy": "Never", "containers": [{**container, "resources": {"requests": {"cpu": "400m"}}}]}
    labels = {"kueue.x-k8s.io/queue-name": "training", "kueue.x-k8s.io/priority-class": "high"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}}
    return json.dumps({**job, "spec": {"template": {"spec": spec}}})


def submit(platform: UpProcess, manifest: str) -> None:
    platform.kubectl("create", "-f", "-", sent=manifest)


def wait_for(platform: UpProcess, condition: str, name: str, timeout: str = PATIENCE) -> None:
    platform.kubectl("wait", f"--for=condition={condition}", name, timeout)


def pod_uids(platform: UpProcess, job: str) -> set[str]:
    selector = f"training.kubeflow.org/job-name={job}"
    return set(platform.kubectl("get", "pods", "-l", selector, "-o", "jsonpath={.items[*].metadata.uid}").split())


def test_worker_joins_its_master_by_name(platform: UpProcess) -> None:
    submit(platform, pytorch_job("pair", ["python3", "-c", RENDEZVOUS]))
    wait_for(platform, "Succeeded", "pytorchjob/pair")
    assert platform.kubectl("logs", "pair-master-0") == "peers [1]\n"
    platform.kubectl("wait", "pod/pair-worker-0", "--for=jsonpath={.status.phase}=Succeeded", PATIENCE)
    assert platform.kubectl("logs", "pair-worker-0") == "joined pair-master-0\n"
    assert "Succeeded" in platform.kubectl("get", "pytorchjob", "pair", "--no-headers")
    platform.kubectl("wait", "--for=condition=Finished", "workloads", "--all", PATIENCE)


def test_preempted_job_starts_again_after_the_urgent_one(platform: UpProcess) -> None:
    submit(platform, pytorch_job("long", ["sleep", "600"]))
    wait_for(platform, "Running", "pytorchjob/long")
    first_pods = pod_uids(platform, "long")
    submit(platform, urgent_job("urgent"))
    wait_for(platform, "Suspended", "pytorchjob/long")
    wait_for(platform, "Complete", "job/urgent")
    for role in ("Master", "Worker"):
        active = f"--for=jsonpath={{.status.replicaStatuses.{role}.active}}=1"
        platform.kubectl("wait", active, "pytorchjob/long", PATIENCE)
    wait_for(platform, "Running", "pytorchjob/long")
    assert len(pod_uids(platform, "long") - first_pods) == 2
    events = platform.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}").split()
    assert {"PyTorchJobSuspended", "PyTorchJobResumed", "SuccessfulDeletePod"} <= set(events)
    platform.kubectl("delete", "pytorchjob", "long")


def test_failing_job_is_reported(platform: UpProcess) -> None:
    submit(platform, pytorch_job("failing", ["sh", "-c", 'test "$RANK" = 0 && sleep 60 || exit 3']))
    wait_for(platform, "Failed", "pytorchjob/failing")
    message = platform.kubectl("get", "pytorchjob", "failing", "-o", "jsonpath={.status.conditions[-1:].message}")
    assert message == "PyTorchJob failing is failed because 1 Worker replica(s) failed."
    platform.kubectl("delete", "pytorchjob", "failing")


def test_fields_of_wrong_types_are_rejected(platform: UpProcess) -> None:
    manifest = pytorch_job("bad", ["true"], runPolicy={"cleanPodPolicy": "Sometimes", "backoffLimit": -1})
    refusal = platform.kubectl("create", "-f", "-", sent=manifest, fails=True)
    assert "spec.runPolicy.cleanPodPolicy" in refusal
    assert "spec.runPolicy.backoffLimit" in refusal


@pytest.mark.skipif(TORCH is None, reason="there is no PyTorch: say make torch")
def test_pytorch_trains_in_two_pods(platform: UpProcess) -> None:
    command = ["torchrun", "--no-python", "python", "-c", TRAINING]
    submit(platform, pytorch_job("train", command, "pytorch/pytorch", nprocPerNode="1"))
    wait_for(platform, "Succeeded", "pytorchjob/train", "--timeout=240s")
    platform.kubectl("wait", "pod/train-worker-0", "--for=jsonpath={.status.phase}=Succeeded", PATIENCE)
    for pod in ("train-master-0", "train-worker-0"):
        assert "world 2 weight 3.0" in platform.kubectl("logs", pod)
