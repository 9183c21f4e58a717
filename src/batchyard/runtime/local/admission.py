"""Which pods a kubelet takes: those whose devices are free, that fit what is left of the node, and that may be there.

A scheduler saw to that already; here are those refused that were bound past it, or whose node changed meanwhile. Who is
refused fails at once. A pod that ran here before a restart is not asked about again. Sources: pkg/kubelet/lifecycle
(predicate.go), pkg/scheduler (AdmissionCheck), pkg/kubelet/cm/topologymanager (the words where devices are short).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.validation.resources import is_extended
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PODS, PodView, pod_view
from batchyard.core.placement.node import Node
from batchyard.core.placement.rules import selects, tolerates
from batchyard.runtime.local.devices import Allocation, allocation_of
from batchyard.runtime.local.errors import InputError

#: The order in which what is short is looked at; all others come after, by name.
_ORDER: Final = (PODS, "cpu", "memory", "ephemeral-storage")
_OS: Final = "kubernetes.io/os"


class Refusal(NamedTuple):
    """Why a pod is not taken."""

    #: The reason of its status, and of an event of type Warning.
    reason: str
    #: The message of the event.
    message: str

    @property
    def status(self) -> dict[str, str]:
        """What its status says."""
        return {"phase": "Failed", "reason": self.reason, "message": f"Pod was rejected: {self.message}"}


def allocate(pod: Obj, resource: str, numbers: Sequence[int], held: Mapping[str, Allocation]) -> Allocation | Refusal:
    """The devices of a pod's containers, or why it cannot have them: what a kubelet looks at first.

    See batchyard.runtime.local.devices.allocation_of for the parameters.
    """
    try:
        return allocation_of(pod, resource, numbers, held)
    except InputError as error:
        return Refusal("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")


def find_refusal(pod: Obj, node: Obj, others: Sequence[Obj]) -> Refusal | None:
    """Why a node does not take a pod; None if it does. `others` are the pods that it took and that have not ended."""
    for refusal in _refusals(pod, node, others):
        return refusal
    return None


def _refusals(pod: Obj, node: Obj, others: Sequence[Obj]) -> Iterator[Refusal]:
    """All that speaks against a pod, in the order in which a kubelet looks."""
    yield from _of_system(pod, node)
    view, asking = node_view(node), pod_view(pod)
    here = Node(view)
    for other in others:
        here.take(pod_view(other))
    yield from _of_room(asking, here)
    yield from _of_rules(asking, here)


def _of_system(pod: Obj, node: Obj) -> Iterator[Refusal]:
    spec: Mapping[str, Any] = pod["spec"]
    system = (pod["metadata"].get("labels") or {}).get(_OS, "linux")
    if system != "linux":
        told = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
        yield Refusal("PodOSSelectorNodeLabelDoesNotMatch", told)
    if (spec.get("os") or {}).get("name", "linux") != "linux":
        yield Refusal("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")
    policy = (spec.get("securityContext") or {}).get("supplementalGroupsPolicy")
    if policy == "Strict" and not ((node.get("status") or {}).get("features") or {}).get("supplementalGroupsPolicy"):
        told = "SupplementalGroupsPolicy=Strict is not supported in this node"
        yield Refusal("SupplementalGroupsPolicyNotSupported", told)


def _of_room(pod: PodView, node: Node) -> Iterator[Refusal]:
    """What is short. Resources of others' making that the node does not know are not its business."""
    total = node.view.allocatable
    wanted = {name: amount for name, amount in pod.requests if name in total or not is_extended(name)}
    for name in sorted(wanted, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)):
        capacity, left = total.get(name, 0), node.left.get(name, 0)
        if wanted[name] > left:
            amounts = f"requested: {wanted[name]}, used: {capacity - left}, capacity: {capacity}"
            yield Refusal(f"OutOf{name}", f"Node didn't have enough resource: {name}, {amounts}")


def _of_rules(pod: PodView, node: Node) -> Iterator[Refusal]:
    view: NodeView = node.view
    if not selects(pod.shape.rules, view):
        yield _failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
    if pod.node_name and pod.node_name != view.name:
        yield _failed("NodeName", "node(s) didn't match the requested node name")
    if not all(map(node.has_port, pod.shape.host_ports)):
        yield _failed("NodePorts", "node(s) didn't have free ports for the requested pod ports")
    if any(taint.effect == "NoExecute" and not tolerates(pod.tolerations, taint) for taint in view.taints):
        yield _failed("TaintToleration", "node(s) had taints that the pod didn't tolerate")


def _failed(rule: str, why: str) -> Refusal:
    return Refusal(rule, f"Predicate {rule} failed: {why}")
