"""Acknowledged writes survive a kill of the platform, and running work continues."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from e2e_platform import convergence
from e2e_platform.kill_rounds import PlainHttpClient, RoundResponses, ask, check_final_state, kill_round
from e2e_platform.platform_process import UpProcess

QUEUE = "/apis/kueue.x-k8s.io/v1beta1"
WORKLOADS = f"{QUEUE}/namespaces/default/workloads"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
COUNT = 12
OPTIONS = ("--insecure-loopback", "--speed", "60x")


def test_acknowledged_writes_survive_kills_and_are_watched_once(tmp_path: Path) -> None:
    answers = RoundResponses()
    for number in range(3):
        kill_round(tmp_path, number, answers)
    check_final_state(tmp_path, answers)
    assert answers.faults == []
    assert len(answers.acknowledged) > 300


def test_jobs_reach_same_result_with_and_without_kills(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    assert end_of(tmp_path / "killed", [1, 5, 9]) == end_of(tmp_path / "calm", [])


def test_preempting_teams_reach_same_result_within_quota_across_kills(tmp_path: Path) -> None:
    (tmp_path / "calm").mkdir()
    (tmp_path / "killed").mkdir()
    calm = convergence.end_of(tmp_path / "calm", 0)
    assert sorted(set(calm.values())) == ["Complete", "Finished"]
    assert list(convergence.end_of(tmp_path / "killed", 2).values()) == list(calm.values())
    assert convergence.faults_of(tmp_path / "killed") == []


RACKS = Path(__file__).parents[1] / "contract" / "racks.yaml"
PLACED = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: racks}
spec: {levels: [{nodeLabel: rack}, {nodeLabel: kubernetes.io/hostname}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: tas}
spec: {nodeLabels: {cloud.google.com/machine-family: e2}, topologyName: racks}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: cq}
spec:
  namespaceSelector: {}
  resourceGroups: [{coveredResources: [cpu], flavors: [{name: tas, resources: [{name: cpu, nominalQuota: 99}]}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lq, namespace: default}
spec: {clusterQueue: cq}
"""
PLACED_JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: NAME
  namespace: default
  labels: {kueue.x-k8s.io/queue-name: lq}
  annotations: {batchyard.dev/runtime: 1000h}
spec:
  parallelism: 2
  completions: 2
  completionMode: Indexed
  template:
    metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: rack}}
    spec:
      restartPolicy: Never
      containers: [{name: main, image: python, resources: {requests: {cpu: 3}}}]
"""


def test_topology_domains_survive_a_kill_and_pods_follow_them(tmp_path: Path) -> None:
    with UpProcess(tmp_path, "--speed", "60x", "--cluster", str(RACKS)) as platform:
        platform.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=30s")
        platform.kubectl("apply", "-f", "-", sent=PLACED)
        assert platform.kubectl("get", "topologies", "--no-headers").split()[0] == "racks"
        first = nodes_of(platform, "first")
        platform.kill()
    with UpProcess(tmp_path, "--speed", "60x") as platform:
        # The first Job keeps its nodes. The next one gets the other rack, although one node is free in the first.
        second = nodes_of(platform, "second")
        assert [rack_of(platform, nodes) for nodes in (first, second)] == [["r1"], ["r2"]]
        platform.kubectl("drain", first[0], "--force", "--delete-emptydir-data", "--timeout=30s")
        replaced = "{.items[?(@.spec.nodeName)].spec.nodeSelector.kubernetes\\.io/hostname}"
        pods = ("pods", "-l", "batch.kubernetes.io/job-name=first", "-o", f"jsonpath={replaced}")
        wait_until(lambda: len({*platform.kubectl("get", *pods).split()} - {first[0]}) == 2)
        assert rack_of(platform, platform.kubectl("get", *pods).split()) == ["r1"]


def nodes_of(platform: UpProcess, job: str) -> list[str]:
    """Create a Job of two pods; return the nodes of its pods, by their index, which are those that they select."""
    platform.kubectl("apply", "-f", "-", sent=PLACED_JOB.replace("NAME", job))
    selected = ("-l", f"batch.kubernetes.io/job-name={job}", "--sort-by=.metadata.name", "-o")
    platform.kubectl("wait", "--for=jsonpath={.status.ready}=2", f"job/{job}", "--timeout=30s")
    nodes = platform.kubectl("get", "pods", *selected, "jsonpath={.items[*].spec.nodeName}").split()
    path = "jsonpath={.items[*].spec.nodeSelector.kubernetes\\.io/hostname}"
    assert platform.kubectl("get", "pods", *selected, path).split() == nodes
    return nodes


def rack_of(platform: UpProcess, nodes: Sequence[str]) -> list[str]:
    """The racks of nodes, each once."""
    return sorted(
        {*platform.kubectl("get", "nodes", *nodes, "-o", "jsonpath={.items[*].metadata.labels.rack}").split()}
    )


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for a condition."""
    for _ in range(100):
        if holds():
            return
        threading.Event().wait(0.1)
    raise AssertionError("the condition did not hold before the timeout")


def end_of(folder: Path, kills: Sequence[int]) -> dict[str, Any]:
    """The final state of Jobs in a queue for two, with a kill of the platform after each count in `kills`."""
    with ExitStack() as started:
        running = started.enter_context(UpProcess(folder, *OPTIONS))
        for path, obj in submitted():
            code, answer = ask(running.url, "POST", path, obj)
            assert code == 201, answer
        for complete in kills:
            wait_for(running.url, complete)
            running.kill()
            running = started.enter_context(UpProcess(folder, *OPTIONS))
        wait_for(running.url, COUNT)
        wait_for_quota(running.url)
        jobs = ask(running.url, "GET", JOBS)[1]["items"]
        pods = ask(running.url, "GET", "/api/v1/namespaces/default/pods")[1]["items"]
        workloads = ask(running.url, "GET", WORKLOADS)[1]["items"]
    finished = [
        any(c["type"] == "Finished" and c["status"] == "True" for c in wl["status"]["conditions"]) for wl in workloads
    ]
    succeeded = {job["metadata"]["name"]: job["status"].get("succeeded") for job in jobs}
    return {"jobs": succeeded, "finished": finished, "pods": sorted(pod["status"]["phase"] for pod in pods)}


def submitted() -> Iterator[tuple[str, dict[str, Any]]]:
    """A queue of two CPUs, and Jobs of one."""
    resources = [{"name": "cpu", "nominalQuota": 2}]
    group = {"coveredResources": ["cpu"], "flavors": [{"name": "any", "resources": resources}]}
    yield f"{QUEUE}/resourceflavors", {"metadata": {"name": "any"}}
    yield (
        f"{QUEUE}/clusterqueues",
        {"metadata": {"name": "all"}, "spec": {"namespaceSelector": {}, "resourceGroups": [group]}},
    )
    yield f"{QUEUE}/namespaces/default/localqueues", {"metadata": {"name": "jobs"}, "spec": {"clusterQueue": "all"}}
    container = {"name": "main", "image": "python:3.12", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    for number in range(COUNT):
        metadata = {
            "name": f"job-{number}",
            "labels": {"kueue.x-k8s.io/queue-name": "jobs"},
            "annotations": {"batchyard.dev/runtime": f"{10 + number}s"},
        }
        yield JOBS, {"metadata": metadata, "spec": {"suspend": True, "template": template}}


def wait_for(url: str, complete: int) -> None:
    """Watch until a number of Jobs is complete."""
    done = set()
    with PlainHttpClient(url) as client:
        for event in client.lines(f"{JOBS}?watch=1"):
            if event["object"].get("status", {}).get("completionTime"):
                done.add(event["object"]["metadata"]["name"])
            if len(done) >= complete:
                return


def wait_for_quota(url: str) -> None:
    """Watch until all quota is released."""
    with PlainHttpClient(url) as client:
        for event in client.lines(f"{QUEUE}/clusterqueues?watch=1"):
            status = event["object"].get("status", {})
            if "pendingWorkloads" in status and not status["pendingWorkloads"] + status.get("admittedWorkloads", 0):
                return
