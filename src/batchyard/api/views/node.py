"""The view of a Node for schedulers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from batchyard.api import quantity
from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.views.pod import Taint, taint


@dataclass(frozen=True, slots=True)
class NodeView:
    """A parsed Node."""

    name: str
    labels: Mapping[str, str]
    #: All effects, in the order of the object.
    taints: tuple[Taint, ...]
    unschedulable: bool
    #: The allocatable resources as whole numbers; `pods` is the maximum number of pods.
    allocatable: Mapping[str, int]
    #: Whether its condition Ready is true. Pods are kept off a node that is not ready by its taints.
    ready: bool


_VIEWS_MAX: Final = 65536
_views: dict[str, tuple[Obj, NodeView]] = {}


def node_view(obj: Obj) -> NodeView:
    """Return the view of a Node, parsed once per object; the last revision of each is cached."""
    uid = obj["metadata"].get("uid", "")
    known = _views.get(uid)
    if known is not None and known[0] is obj:
        return known[1]
    if known is None and len(_views) >= _VIEWS_MAX:
        _views.clear()
    view = _read(obj)
    _views[uid] = obj, view
    return view


def forget_node_view(uid: str) -> None:
    """Drop the view of a deleted Node."""
    _views.pop(uid, None)


def _read(obj: Obj) -> NodeView:
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
