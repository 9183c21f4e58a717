"""Nodes in racks and blocks, and requests for their topology domains."""

from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.api.meta import Obj
from batchyard.api.views.node import FlavorView, NodeView, PodTemplate, Taint, parse_pod_template
from batchyard.api.views.topology import TopologyAssignment, TopologyDomain, parse_topology_request
from batchyard.api.well_known import HOSTNAME
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.decisions import Admit
from batchyard.topology.assigner import PodSetTopologyRequest, TopologyFailure, assign_domains
from batchyard.topology.state import TopologyState, usage_of
from yard import SchedulerBench, group, queue

LEVELS = ("block", "rack", HOSTNAME)


def node(path: str, cpu: int = 4, pods: int = 110, taints: Sequence[Taint] = (), **labels: str) -> NodeView:
    """A ready node `block/rack/host` with this many cpus."""
    values = dict(zip(LEVELS, path.split("/"), strict=True))
    amounts = {"cpu": cpu * 1000, "pods": pods}
    return NodeView(values[HOSTNAME], {**values, **labels}, tuple(taints), False, amounts, True)


def state(*nodes: NodeView, levels: Sequence[str] = LEVELS, **gates: bool) -> TopologyState:
    """A state with these nodes, and the flavor `tas` of all of them."""
    result = TopologyState()
    result.enable(gates)
    result.put_topology("racks", levels)
    result.nodes = {each.name: each for each in nodes}
    result.put_flavor(flavor())
    return result


def flavor(name: str = "tas", **labels: str) -> FlavorView:
    """A flavor with the Topology of `state()`."""
    return FlavorView(name, labels, (), (), "racks")


def template(cpu: int = 1, **spec: Any) -> PodTemplate:
    """A pod template that requests this many cpus."""
    container = {"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}
    return parse_pod_template({"containers": [container], **spec})


def request(
    count: int, name: str = "main", cpu: int = 1, group: str | None = None, **fields: Any
) -> PodSetTopologyRequest:
    """A pod set that requests domains with these fields of `topologyRequest`; without fields, topology is implied."""
    parsed = parse_topology_request(fields) if fields else None
    return PodSetTopologyRequest(name, "tas", count, template(cpu), parsed, not fields, group)


def place(topology: TopologyState, *requests: PodSetTopologyRequest, **options: Any) -> str | dict[str, str]:
    """The hosts of each pod set, such as `h1:2 h2:1`, or the reason of a failure."""
    found = assign_domains(topology, requests, **options)
    if isinstance(found, TopologyFailure):
        return found.reason
    hosts = {name: " ".join(f"{d.values[-1]}:{d.pods}" for d in each.domains) for name, each in found.items()}
    return hosts["main"] if hosts.keys() == {"main"} else hosts


def racks(**hosts: int) -> list[NodeView]:
    """Nodes with cpus by name; the name `b1r2h3` is host 3 in rack 2 of block 1."""
    return [node(f"{name[:2]}/{name[:4]}/{name}", cpu) for name, cpu in hosts.items()]


# Scheduling cycles with racks.


def bench_of(*objects: Obj, hosts: dict[str, int], fair_sharing: bool = False) -> SchedulerBench:
    """A bench with nodes of these cpus, and the flavor `tas` of all of them."""
    bench = SchedulerBench(fair_sharing=fair_sharing)
    topology = bench.snapshot.topology
    topology.enable({})
    topology.put_topology("racks", LEVELS)
    topology.nodes = {node.name: node for node in racks(**hosts)}
    bench.put(make.flavor("tas", topologyName="racks"), *objects)
    return bench


def tas_queue(name: str = "cq", cpu: int = 99, **fields: Any) -> Obj:
    """A ClusterQueue with only the flavor `tas`."""
    return queue(name, groups=[group(tas={"cpu": cpu})], **fields)


def pods(count: int, cpu: int = 1, **fields: Any) -> Obj:
    """A pod set with a topology request."""
    request = {"topologyRequest": fields} if fields else {}
    return make.pod_set("main", count, requests={"cpu": str(cpu)}, **request)


def hosts_of(decision: object) -> str:
    """The hosts of an admission."""
    assert isinstance(decision, Admit)
    topologies = [pod_set.topology for pod_set in decision.assignment.pod_sets]
    return " ".join(f"{d.values[-1]}:{d.pods}" for each in topologies if each is not None for d in each.domains)


def hold(bench: SchedulerBench, name: str, host: str, count: int, **fields: Any) -> AdmittedWorkload:
    """Admit a Workload of one-cpu pods on a host."""
    held = bench.hold(name, count, usage={("tas", "cpu"): count * 1000}, **fields)
    assignment = TopologyAssignment((HOSTNAME,), (TopologyDomain((host,), count),))
    bench.snapshot.remove_holder(held.key)
    held.topology_usage = usage_of(["tas"], assignment, template())
    bench.snapshot.add_holder(held)
    return held


Values = Mapping[str, str]


# Manifests of simulated worlds with racks.

_QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: Topology
metadata: {name: racks}
spec: {levels: [{nodeLabel: block}, {nodeLabel: rack}, {nodeLabel: kubernetes.io/hostname}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: tas}
spec: {topologyName: racks, nodeLabels: {pool: tas}}
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
"""
_QUEUE = """
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: NAME}
spec:
  namespaceSelector: {}
  resourceGroups: [{coveredResources: [cpu], flavors: [{name: tas, resources: [{name: cpu, nominalQuota: 100}]}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: NAME, namespace: team}
spec: {clusterQueue: NAME}
"""


def rack_queues(*names: str) -> str:
    """Manifests of the Topology `racks`, the flavor `tas`, and ClusterQueues with a LocalQueue each."""
    return _QUEUES + "".join(_QUEUE.replace("NAME", name) for name in names or ("cq",))


def rack_nodes(*names: str, cpu: int = 4) -> str:
    """Manifests of ready nodes by name, such as `b1r2h3` for host 3 in rack 2 of block 1."""
    manifests = []
    for name in names:
        labels = f"{{pool: tas, block: {name[:2]}, rack: {name[2:4]}, kubernetes.io/hostname: {name}}}"
        status = f'{{allocatable: {{cpu: "{cpu}", pods: "110"}}, conditions: [{{type: Ready, status: "True"}}]}}'
        manifests.append(
            f"---\napiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {labels}}}\nstatus: {status}\n"
        )
    return "".join(manifests)


def rack_workload(
    name: str, count: int, topology: str = "{required: rack}", *, queue: str = "cq", at: int = 1, priority: int = 0
) -> str:
    """The manifest of a Workload of pods with one cpu each, submitted after `at` seconds; it runs for ten hours."""
    annotations = f"{{batchyard.dev/submit-at: {at}s, batchyard.dev/runtime: 10h}}"
    return f"""
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {{name: {name}, namespace: team, annotations: {annotations}}}
spec:
  queueName: {queue}
  priority: {priority}
  podSets:
  - name: main
    count: {count}
    topologyRequest: {topology}
    template:
      spec: {{restartPolicy: Never, containers: [{{name: c, image: i, resources: {{requests: {{cpu: "1"}}}}}}]}}
"""
