"""The view of a Node: what a scheduler reads of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from batchyard.api import quantity
from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.views.pod import Taint, taint


@dataclass(frozen=True, slots=True)
class NodeView:
    """A Node."""

    name: str
    labels: Mapping[str, str]
    #: Of all effects, in the order of the object.
    taints: tuple[Taint, ...]
    unschedulable: bool
    #: What pods may have of it, as whole numbers by resource; `pods` is how many there may be.
    allocatable: Mapping[str, int]
    #: Whether its condition Ready is true. What keeps pods off a node that is not ready are its taints.
    ready: bool


def node_view(obj: Obj) -> NodeView:
    """The view of a Node."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    allocatable = status.get("allocatable") or status.get("capacity") or {}
    return NodeView(
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        taints=tuple(map(taint, spec.get("taints") or ())),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable={resource: quantity.amount(resource, value) for resource, value in allocatable.items()},
        ready=is_true(status, "Ready"),
    )
