"""Pods as workflow engines, Airflow, Dask and notebooks create them, on a platform, and `batchyard why` about them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e_platform.platform_process import UpProcess
from e2e_platform.snapshot_commands import batchyard

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")

EXAMPLES = Path(__file__).parents[2] / "examples" / "pods"
GATE = "kueue.x-k8s.io/admission"
HELD = '  schedulingGates: [{"name": "example.com/hold"}]'


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    with UpProcess(tmp_path_factory.mktemp("platform"), "--speed", "60x") as started:
        yield started


@pytest.fixture(autouse=True)
def without_pods(platform: UpProcess) -> Iterator[None]:
    """Delete all Workloads and pods after each test; deleted pods of an admitted group wait for its Workload."""
    yield
    platform.kubectl("delete", "workload", "--all", "--wait=false")
    platform.kubectl("delete", "pod", "--all", "--grace-period=0", "--force")
    platform.kubectl("wait", "--for=delete", "workload", "--all", "--timeout=60s")


def parts(name: str) -> tuple[str, list[str]]:
    """The queues of an example, and its pods."""
    *queues, first = (EXAMPLES / name).read_text().split("\n---\n")[:4]
    rest = (EXAMPLES / name).read_text().split("\n---\n")[4:]
    return "\n---\n".join(queues), [first, *rest]


def apply(platform: UpProcess, *documents: str) -> None:
    platform.kubectl("apply", "-f", "-", sent="\n---\n".join(documents))


def read(platform: UpProcess, *arguments: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(platform.kubectl("get", *arguments, "-o", "json"))
    return result


def wait(platform: UpProcess, phase: str, *pods: str) -> None:
    for pod in pods:
        platform.kubectl("wait", f"--for=jsonpath={{.status.phase}}={phase}", f"pod/{pod}", "--timeout=60s")


def why(platform: UpProcess, name: str) -> str:
    return " ".join(batchyard("why", name, "--data-dir", str(platform.kubeconfig.parent)).stdout.split())


def assert_ended(platform: UpProcess, *pods: str) -> None:
    """All Workloads are finished, and no finalizer keeps the pods."""
    platform.kubectl("wait", "--for=condition=Finished", "workload", "--all", "--timeout=60s")
    platform.kubectl("delete", "pod", *pods, "--timeout=50s")


def test_steps_of_workflow_wait_in_queue_one_by_one(platform: UpProcess) -> None:
    queues, (prepare, train) = parts("argo.yaml")
    names = ("nightly-prepare-1850463", "nightly-train-2291037")
    apply(platform, queues, prepare)
    wait(platform, "Succeeded", names[0])
    assert_ended(platform, names[0])
    apply(platform, train)
    wait(platform, "Succeeded", names[1])
    assert_ended(platform, names[1])


def test_task_of_airflow_ends_with_its_workload(platform: UpProcess) -> None:
    queues, (task,) = parts("airflow.yaml")
    apply(platform, queues, task)
    wait(platform, "Succeeded", "report-daily-kf3x1")
    assert_ended(platform, "report-daily-kf3x1")


def test_dask_cluster_starts_and_ends_as_a_group(platform: UpProcess) -> None:
    queues, (scheduler, worker, last) = parts("dask.yaml")
    apply(platform, queues, scheduler, worker)
    text = why(platform, "pod/sum-scheduler")
    assert "group dask-sum has 2 of 3 pods (sum-scheduler, sum-worker-0): 1 is missing" in text
    assert f"it waits with the gate {GATE}" in text
    apply(platform, last)
    names = ("sum-scheduler", "sum-worker-0", "sum-worker-1")
    wait(platform, "Succeeded", *names)
    platform.kubectl("wait", "--for=condition=Finished", "workload/dask-sum", "--timeout=60s")
    finished = next(
        c for c in read(platform, "workload", "dask-sum")["status"]["conditions"] if c["type"] == "Finished"
    )
    assert (finished["reason"], finished["message"]) == ("Succeeded", "Pods succeeded: 3/3.")
    assert_ended(platform, *names)


def test_notebook_keeps_quota_until_it_is_evicted(platform: UpProcess) -> None:
    queues, (notebook,) = parts("notebook.yaml")
    apply(platform, queues, notebook)
    wait(platform, "Running", "jupyter")
    (workload,) = read(platform, "workloads")["items"]
    platform.kubectl(
        "patch", "workload", workload["metadata"]["name"], "--type=merge", "-p", '{"spec":{"active":false}}'
    )
    platform.kubectl("wait", "--for=delete", "pod/jupyter", "--timeout=60s")
    used = read(platform, "clusterqueue", "research")["status"]["flavorsUsage"][0]["resources"][0]["total"]
    assert used == "0"


def test_why_names_the_gate_that_holds_an_admitted_group(platform: UpProcess) -> None:
    queues, pods = parts("dask.yaml")
    held = pods[0].replace("spec:\n", f"spec:\n{HELD}\n", 1)
    apply(platform, queues, held, *pods[1:])
    platform.kubectl("wait", "--for=condition=Admitted", "workload/dask-sum", "--timeout=60s")
    assert "has the scheduling gate example.com/hold" in why(platform, "workload/dask-sum")
    (gate,) = read(platform, "pod", "sum-scheduler")["spec"]["schedulingGates"]
    assert gate["name"] == "example.com/hold"
