"""Nodes in racks and blocks, and requests for their topology domains."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.api.views.node import FlavorView, NodeView, PodTemplate, Taint, parse_pod_template
from batchyard.api.views.topology import parse_topology_request
from batchyard.api.well_known import HOSTNAME
from batchyard.topology.assigner import PodSetTopologyRequest, TopologyFailure, assign_domains
from batchyard.topology.state import TopologyState

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


Values = Mapping[str, str]
