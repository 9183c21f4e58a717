"""What the event log tells of nodes, pods, machines and requested capacity, from watch events alone.

Of pods it is told why they fit no node, and what becomes of them on one: without nodes they say nothing that their
Workload does not.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Obj, label
from batchyard.core.lifecycle.pod import DISRUPTION_TARGET, SCHEDULED, is_terminal, node_of, phase
from batchyard.core.machines.instances import CRASHED, FAILED, phase_of
from batchyard.core.scaling.request_states import STAGES
from batchyard.ports.client import EventType, WatchEvent

#: The kind of a record, and its fields.
Told: TypeAlias = tuple[str, Mapping[str, Any]]

_UNSCHEDULABLE: Final = "Unschedulable"
_PREEMPTED: Final = "PreemptionByScheduler"
_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


def cluster_records(event: WatchEvent) -> Iterator[Told]:
    """What there is to tell of a change."""
    tell = _TELLERS.get(event.key.kind)
    return iter(()) if tell is None else tell(event)


def _of_node(event: WatchEvent) -> Iterator[Told]:
    """It became ready, stopped being so, or went."""
    fields = {"node": event.key.name, "pool": label(event.obj, well_known.NODE_POOL) or ""}
    if event.type is _DELETED:
        yield "NodeRemoved", fields
        return
    was_ready = event.old is not None and is_true(event.old, "Ready")
    if is_true(event.obj, "Ready") != was_ready:
        yield "NodeNotReady" if was_ready else "NodeReady", fields


def _of_pod(event: WatchEvent) -> Iterator[Told]:
    """It fits no node, was bound to one, must leave it for another pod, ended, or was deleted before it did."""
    node, old = node_of(event.obj), event.old
    if not node:
        why = _why_unplaced(event.obj)
        if event.type is not _DELETED and why and (old is None or _why_unplaced(old) != why):
            yield "PodUnschedulable", {"pod": str(event.key), "message": why}
        return
    fields = {"pod": str(event.key), "node": node}
    if event.type is _DELETED:
        if not is_terminal(event.obj):
            yield "PodDeleted", fields
        return
    if old is None or not node_of(old):
        yield "PodBound", fields
    if _must_leave(event.obj) and not (old is not None and _must_leave(old)):
        yield "PodPreempted", fields
    if is_terminal(event.obj) and not (old is not None and is_terminal(old)):
        reason = (event.obj.get("status") or {}).get("reason")
        yield f"Pod{phase(event.obj)}", {**fields, **({"reason": reason} if reason else {})}


def _why_unplaced(pod: Obj) -> str:
    """Why it fits no node; empty if that was not told."""
    found = find_condition(pod, SCHEDULED)
    return str(found["message"]) if found is not None and found.get("reason") == _UNSCHEDULABLE else ""


def _must_leave(pod: Obj) -> bool:
    """Whether it was asked to make room for a pod of higher priority."""
    found = find_condition(pod, DISRUPTION_TARGET)
    return found is not None and found["status"] == "True" and found.get("reason") == _PREEMPTED


def _of_instance(event: WatchEvent) -> Iterator[Told]:
    """The cloud could not give it, or it was lost."""
    if event.type is _DELETED or (event.old is not None and phase_of(event.old) == phase_of(event.obj)):
        return
    spec = event.obj["spec"]
    fields = {"instance": event.key.name, "pool": spec["pool"], "zone": spec["zone"]}
    if phase_of(event.obj) == FAILED:
        error = event.obj["status"].get("error") or {}
        yield "InstanceFailed", {**fields, "code": error.get("code", "")}
    elif phase_of(event.obj) == CRASHED:
        yield "InstanceCrashed", fields


def _of_pool(event: WatchEvent) -> Iterator[Told]:
    """It was made, or removed."""
    if event.type is _DELETED:
        yield "NodePoolRemoved", {"pool": event.key.name}
    elif event.old is None:
        yield "NodePoolCreated", {"pool": event.key.name}


def _of_request(event: WatchEvent) -> Iterator[Told]:
    """It came to its next stage."""
    for stage in STAGES:
        if is_true(event.obj, stage) and not (event.old is not None and is_true(event.old, stage)):
            yield f"ProvisioningRequest{stage}", {"request": str(event.key)}


_TELLERS: Final[Mapping[str, Callable[[WatchEvent], Iterator[Told]]]] = {
    scheme.NODE: _of_node,
    scheme.POD: _of_pod,
    scheme.INSTANCE: _of_instance,
    scheme.NODE_POOL: _of_pool,
    scheme.PROVISIONING_REQUEST: _of_request,
}
