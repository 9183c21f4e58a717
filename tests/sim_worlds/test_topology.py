"""Laws of topology-aware scheduling in random worlds: nodes fail, return, are cordoned and shrink."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pytest

from batchyard.base.primitives import draw_integer
from batchyard.sim.event_log import Record
from batchyard.sim.simulate import Simulation, SimulationOptions, read_scenario

LEVELS: Final = ("block", "rack", "kubernetes.io/hostname")
WORKLOADS, RACKS, HOSTS = 24, 5, 20
QUEUES: Final = """
{kind: Topology, apiVersion: kueue.x-k8s.io/v1beta2, metadata: {name: t},
 spec: {levels: [{nodeLabel: block}, {nodeLabel: rack}, {nodeLabel: kubernetes.io/hostname}]}}
---
{kind: ResourceFlavor, apiVersion: kueue.x-k8s.io/v1beta2, metadata: {name: tas},
 spec: {topologyName: t, nodeLabels: {pool: tas}}}
---
kind: ClusterQueue
apiVersion: kueue.x-k8s.io/v1beta2
metadata: {name: cq}
spec:
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups: [{coveredResources: [cpu], flavors: [{name: tas, resources: [{name: cpu, nominalQuota: 90}]}]}]
---
kind: LocalQueue
apiVersion: kueue.x-k8s.io/v1beta2
metadata: {name: lq, namespace: default}
spec: {clusterQueue: cq}
---
{kind: Scenario, apiVersion: sim.batchyard.dev/v1alpha1, metadata: {name: world}, spec: {horizon: 20m}}
"""


class RandomWorld:
    """A world of hosts in racks and blocks; `capacity` lists the CPUs of each host by the time of a change."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.capacity: dict[str, list[tuple[int, int]]] = {}
        self.requests: dict[str, tuple[int, int, str]] = {}
        self.documents: list[Mapping[str, Any]] = []
        for host in range(HOSTS):
            cpus = 2 + self.draw(5, "cpus", host)
            self.add_node(host, cpus, 0, is_ready=True)
            if self.draw(3, "fails", host) == 0:
                failed_at = 20 + self.draw(60, "failed at", host)
                self.add_node(host, cpus, failed_at, is_ready=False)
                if self.draw(2, "returns", host):
                    self.add_node(host, cpus, failed_at + 5 + self.draw(40, "returned at", host), is_ready=True)
        for number in range(WORKLOADS):
            self.add_workload(number)

    def draw(self, stop: int, *names: object) -> int:
        """Return a random number below `stop` for these names."""
        return draw_integer(self.seed, *map(str, names)) % stop

    def add_node(self, host: int, cpus: int, at: int, *, is_ready: bool) -> None:
        """Add a document of a Node at a time in seconds."""
        rack = host % RACKS
        labels = dict(zip(LEVELS, (f"b{rack % 2}", f"r{rack}", f"h{host:02}"), strict=True))
        name = f"h{host:02}"
        metadata: dict[str, Any] = {"name": name, "labels": {"pool": "tas", **labels}}
        if at:
            metadata["annotations"] = {"batchyard.dev/submit-at": f"{at}s"}
        conditions = [{"type": "Ready", "status": str(is_ready)}]
        status = {"allocatable": {"cpu": str(cpus), "pods": "110"}, "conditions": conditions}
        self.documents.append({"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": {}, "status": status})
        self.capacity.setdefault(name, []).append((at, cpus))

    def add_workload(self, number: int) -> None:
        """Add a document of a Workload with a random request."""
        kind = ("required", "preferred", "unconstrained")[self.draw(3, "kind", number)]
        level = LEVELS[self.draw(3, "level", number)]
        count, cpus = 1 + self.draw(9, "count", number), 1 + self.draw(2, "size", number)
        annotations = {
            "batchyard.dev/runtime": f"{10 + self.draw(60, 'runtime', number)}s",
            "batchyard.dev/submit-at": f"{number * 3}s",
        }
        container = {"name": "c", "resources": {"requests": {"cpu": str(cpus)}}}
        pod_set = {
            "name": "main",
            "count": count,
            "topologyRequest": {kind: True if kind == "unconstrained" else level},
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        }
        name = f"w{number:02}"
        self.requests[f"default/{name}"] = count, cpus, level if kind == "required" else ""
        spec = {"queueName": "lq", "priority": self.draw(3, "priority", number), "podSets": [pod_set]}
        metadata = {"name": name, "namespace": "default", "annotations": annotations}
        self.documents.append(
            {"kind": "Workload", "apiVersion": "kueue.x-k8s.io/v1beta2", "metadata": metadata, "spec": spec}
        )

    def events(self) -> list[Record]:
        """Simulate the world, and return its event log."""
        texts = [QUEUES, *(json.dumps(each) for each in self.documents)]
        log: list[Record] = []
        scenario, _ = read_scenario(["\n---\n".join(texts)])
        Simulation(scenario, SimulationOptions(sink=log.append)).advance()
        return log


def domains_of(record: Record) -> dict[str, int]:
    """Return the pods of each host in an assignment."""
    (pod_set,) = record["podSets"]
    return {each["values"][-1]: each["count"] for each in pod_set["topologyAssignment"]["domains"]}


@pytest.fixture(scope="module", params=range(12))
def world(request: pytest.FixtureRequest) -> tuple[RandomWorld, list[Record]]:
    """A random world, and its event log."""
    result = RandomWorld(request.param)
    return result, result.events()


def assignments(log: list[Record]) -> Iterable[tuple[Record, dict[str, dict[str, int]]]]:
    """Yield each record with the hosts of each running Workload after it."""
    held: dict[str, dict[str, int]] = {}
    for record in log:
        if record["event"] in {"QuotaReserved", "Reassigned"}:
            held[record["workload"]] = domains_of(record)
        elif record["event"] in {"Preempted", "Evicted", "Finished", "Deleted"}:
            held.pop(record["workload"], None)
        yield record, held


def test_no_host_is_overfilled_at_any_revision(world: tuple[RandomWorld, list[Record]]) -> None:
    own, log = world
    overfilled = [
        (record, host)
        for record, held in assignments(log)
        for host, (*_, (_, capacity)) in own.capacity.items()
        if sum(hosts.get(host, 0) * own.requests[name][1] for name, hosts in held.items()) > capacity
    ]
    assert overfilled == []
    assert any(held for _, held in assignments(log))


def test_required_domains_stay_whole(world: tuple[RandomWorld, list[Record]]) -> None:
    own, log = world
    for record, held in assignments(log):
        for name, hosts in held.items():
            count, _, level = own.requests[name]
            assert sum(hosts.values()) == count, record
            racks = {int(host[1:]) % RACKS for host in hosts}
            domains: dict[str, set[Any]] = {"block": {rack % 2 for rack in racks}, "rack": racks, LEVELS[2]: set(hosts)}
            assert not level or len(domains[level]) == 1, record


def test_replacement_moves_only_the_pods_of_the_failed_node(world: tuple[RandomWorld, list[Record]]) -> None:
    own, log = world
    before: dict[str, dict[str, int]] = {}
    for record, held in assignments(log):
        if record["event"] == "Reassigned":
            old, new = before[record["workload"]], domains_of(record)
            (failed,) = [host for host, pods in old.items() if new.get(host, 0) < pods]
            assert failed not in new
            assert len(own.capacity[failed]) > 1
            assert sum(new.values()) == sum(old.values())
        before = {name: dict(hosts) for name, hosts in held.items()}


def test_worlds_contain_replacements() -> None:
    logs = [RandomWorld(seed).events() for seed in range(6)]
    assert sum(record["event"] == "Reassigned" for log in logs for record in log) > 2


LATE_POOL: Final = """
kind: Cluster
apiVersion: cloud.batchyard.dev/v1alpha1
metadata: {name: lab}
spec:
  region: us-central1
  zones: [us-central1-a]
  nodePools: [{name: base, machineType: e2-standard-2, zones: [us-central1-a], nodeCount: 1}]
---
kind: NodePool
apiVersion: cloud.batchyard.dev/v1alpha1
metadata: {name: near, annotations: {batchyard.dev/submit-at: 1m}}
spec: {machineType: a3-highgpu-8g, zones: [us-central1-a], nodeCount: 18, placementGroup: near, labels: {pool: tas}}
---
kind: Job
apiVersion: batch/v1
metadata:
  name: train
  namespace: default
  labels: {kueue.x-k8s.io/queue-name: lq}
  annotations: {batchyard.dev/runtime: 1m}
spec:
  parallelism: 16
  completions: 16
  template:
    metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: cloud.google.com/gce-topology-subblock}}
    spec:
      restartPolicy: Never
      tolerations: [{operator: Exists}]
      containers: [{name: main, image: example/train, resources: {requests: {cpu: 150}}}]
"""


def test_nodes_that_boot_later_form_sub_blocks_of_their_placement_group() -> None:
    levels = "[{nodeLabel: cloud.google.com/gce-topology-subblock}, {nodeLabel: cloud.google.com/gce-topology-host}]"
    queues = QUEUES.replace("[{nodeLabel: block}, {nodeLabel: rack}, {nodeLabel: kubernetes.io/hostname}]", levels)
    queues = queues.replace("nominalQuota: 90", "nominalQuota: 9000")
    log: list[Record] = []
    scenario, _ = read_scenario([f"{queues}\n---\n{LATE_POOL}"])
    Simulation(scenario, SimulationOptions(sink=log.append)).advance()
    ready_at = [record["time"] for record in log if record["event"] == "NodeReady" and record["pool"] == "near"]
    (reserved,) = [record for record in log if record["event"] == "QuotaReserved"]
    assert sorted(ready_at)[15] <= reserved["time"]
    domains = reserved["podSets"][0]["topologyAssignment"]["domains"]
    assert {each["values"][0] for each in domains} == {"near-us-central1-a-s0"}
