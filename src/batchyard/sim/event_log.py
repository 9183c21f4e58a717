"""Event log: changes of Workloads, nodes and pods as JSON lines, derived from watch events only.

Times are seconds from the start. Events of one instant are in the order in which they happened.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, find_condition, is_true, key_of, label
from batchyard.api.views.pods import DISRUPTION_TARGET, SCHEDULED, is_terminal, node_of, phase
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.autoscaler.provisioning_request_pods import STAGES
from batchyard.base.instant import Instant, seconds
from batchyard.cloud.catalog.instances import CRASHED, FAILED, phase_of
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.scheduling.messages import preemptor_uid_of
from batchyard.scheduling.workload.lifecycle import has_quota_reservation, is_finished

# --- cluster log ---
#
# The records of nodes, pods, machines and provisioned capacity, derived from watch events only.
#
# The records of a pod say why it fits no node, and what happens to it on a node. In a run without nodes pods have no
# records, because they would only repeat those of their Workload.


#: The event of a record, and its fields.
EventFields: TypeAlias = tuple[str, Mapping[str, Any]]

_UNSCHEDULABLE: Final = "Unschedulable"
_PREEMPTED: Final = "PreemptionByScheduler"
_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


def cluster_records(event: WatchEvent) -> Iterator[EventFields]:
    """Return the records of a watch event."""
    convert = _CONVERTERS.get(event.key.kind)
    return iter(()) if convert is None else convert(event)


def _of_node(event: WatchEvent) -> Iterator[EventFields]:
    """Yield that a node became ready or not ready, or was removed."""
    fields = {"node": event.key.name, "pool": label(event.obj, well_known.NODE_POOL) or ""}
    if event.type is _DELETED:
        yield "NodeRemoved", fields
        return
    was_ready = event.old is not None and is_true(event.old, "Ready")
    if is_true(event.obj, "Ready") != was_ready:
        yield "NodeNotReady" if was_ready else "NodeReady", fields


def _of_pod(event: WatchEvent) -> Iterator[EventFields]:
    """Yield that a pod is unschedulable, bound, preempted, ended, or was deleted before its end."""
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
    """Return the message of an unschedulable pod; empty for others."""
    found = find_condition(pod, SCHEDULED)
    return str(found["message"]) if found is not None and found.get("reason") == _UNSCHEDULABLE else ""


def _must_leave(pod: Obj) -> bool:
    """Whether the scheduler preempts it for a pod of higher priority."""
    found = find_condition(pod, DISRUPTION_TARGET)
    return found is not None and found["status"] == "True" and found.get("reason") == _PREEMPTED


def _of_instance(event: WatchEvent) -> Iterator[EventFields]:
    """Yield that a machine could not be provided, or crashed."""
    if event.type is _DELETED or (event.old is not None and phase_of(event.old) == phase_of(event.obj)):
        return
    spec = event.obj["spec"]
    fields = {"instance": event.key.name, "pool": spec["pool"], "zone": spec["zone"]}
    if phase_of(event.obj) == FAILED:
        error = event.obj["status"].get("error") or {}
        yield "InstanceFailed", {**fields, "code": error.get("code", "")}
    elif phase_of(event.obj) == CRASHED:
        yield "InstanceCrashed", fields


def _of_pool(event: WatchEvent) -> Iterator[EventFields]:
    """Yield that a node pool was created or removed."""
    if event.type is _DELETED:
        yield "NodePoolRemoved", {"pool": event.key.name}
    elif event.old is None:
        yield "NodePoolCreated", {"pool": event.key.name}


def _of_request(event: WatchEvent) -> Iterator[EventFields]:
    """Yield the stages that a ProvisioningRequest reached."""
    for stage in STAGES:
        if is_true(event.obj, stage) and not (event.old is not None and is_true(event.old, stage)):
            yield f"ProvisioningRequest{stage}", {"request": str(event.key)}


_CONVERTERS: Final[Mapping[str, Callable[[WatchEvent], Iterator[EventFields]]]] = {
    scheme.NODE: _of_node,
    scheme.POD: _of_pod,
    scheme.INSTANCE: _of_instance,
    scheme.NODE_POOL: _of_pool,
    scheme.PROVISIONING_REQUEST: _of_request,
}


Record: TypeAlias = Mapping[str, Any]


class EventLog:
    """Converts watch events to records and passes them to a sink."""

    def __init__(self, start: Instant, now: Callable[[], Instant], sink: Callable[[Record], None]) -> None:
        self._start = start
        self._now = now
        self._sink = sink
        self._keys: dict[str, str] = {}
        #: The time of the last record.
        self.last = start

    def recall(self, workloads: Iterable[Obj]) -> None:
        """Register Workloads that existed before the start, without records."""
        for obj in workloads:
            view = workload_view(obj)
            self._keys[view.uid] = view.key

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Emit the records of watch events."""
        for event in events:
            if event.key.kind == scheme.WORKLOAD:
                self._observe(event)
            else:
                for name, fields in cluster_records(event):
                    self._emit(name, fields)

    def loop(self, loop: PreemptionLoop) -> None:
        """Emit the record of a preemption loop."""
        steps = [s._asdict() for s in loop.steps]
        self._emit("PreemptionLoop", {"cohort": loop.root, "message": loop.message, "steps": steps})

    def fault(self, fields: Mapping[str, Any]) -> None:
        """Emit the record of an injected fault."""
        self._emit("Fault", fields)

    def final(self, reader: Reader, at: Instant | None = None) -> None:
        """Emit the pending and admitted Workloads of the end, `at` or now."""
        left = [obj for obj in reader.list(scheme.WORKLOAD) if not is_finished(obj)]
        pending = [str(key_of(obj)) for obj in left if not has_quota_reservation(obj)]
        admitted = [str(key_of(obj)) for obj in left if has_quota_reservation(obj)]
        self._emit("Final", {"pending": pending, "admitted": admitted}, at)

    def _observe(self, event: WatchEvent) -> None:
        view = workload_view(event.obj)
        if event.type is EventType.DELETED:
            self._keys.pop(view.uid, None)
            self._emit("Deleted", {"workload": view.key})
            return
        if event.old is None:
            self._keys[view.uid] = view.key
            self._emit("Created", {"workload": view.key})
        before = workload_view(event.old) if event.old is not None else None
        if view.quota_reserved and not (before and before.quota_reserved):
            self._emit("QuotaReserved", _reservation(view))
        if view.admitted and not (before and before.admitted):
            self._emit("Admitted", {"workload": view.key, "clusterQueue": view.cluster_queue})
        if view.evicted and view.quota_reserved and not (before and before.evicted):
            self._evicted(event.obj, view)
        if view.finished and not (before and before.finished):
            self._emit("Finished", {"workload": view.key})

    def _evicted(self, obj: Obj, view: WorkloadView) -> None:
        status = obj["status"]
        evicted = find_condition(status, "Evicted")
        assert evicted is not None
        preempted = find_condition(status, "Preempted")
        if evicted["reason"] != "Preempted" or preempted is None:
            self._emit("Evicted", {"workload": view.key, "reason": evicted["reason"]})
            return
        uid = preemptor_uid_of(preempted["message"])
        by = self._keys.get(uid, uid)
        self._emit("Preempted", {"workload": view.key, "reason": preempted["reason"], "by": by})

    def _emit(self, event: str, fields: Mapping[str, Any], at: Instant | None = None) -> None:
        self.last = self._now() if at is None else at
        self._sink({"time": seconds(self.last - self._start), "event": event, **fields})


def _reservation(view: WorkloadView) -> dict[str, Any]:
    return {
        "workload": view.key,
        "clusterQueue": view.cluster_queue,
        "podSets": [{"name": h.name, "count": h.pods, "flavors": dict(h.flavors)} for h in view.holdings],
    }


# --- events ---
#
# The events of a run, one class for each kind of event in the log. Times are seconds from the start.


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the run."""

    time: float


@dataclass(frozen=True, slots=True)
class WorkloadEvent(Event):
    """An event of a Workload, `namespace/name`."""

    workload: str


@dataclass(frozen=True, slots=True)
class Created(WorkloadEvent):
    """The Workload was created, and queues."""


@dataclass(frozen=True, slots=True)
class Deleted(WorkloadEvent):
    """The Workload was deleted."""


@dataclass(frozen=True, slots=True)
class PodSetFlavors:
    """The quota of a pod set: the number of pods, and the flavor of each resource."""

    name: str
    count: int
    flavors: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QuotaReserved(WorkloadEvent):
    """The Workload got quota."""

    cluster_queue: str
    pod_sets: tuple[PodSetFlavors, ...]


@dataclass(frozen=True, slots=True)
class Admitted(WorkloadEvent):
    """The Workload may run."""

    cluster_queue: str


@dataclass(frozen=True, slots=True)
class Preempted(WorkloadEvent):
    """The Workload lost its quota to another one, `by`, for Kueue's reason."""

    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Evicted(WorkloadEvent):
    """The Workload lost its quota for another of Kueue's reasons."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finished(WorkloadEvent):
    """The Workload finished."""


@dataclass(frozen=True, slots=True)
class LoopFound(Event):
    """Workloads of a cohort preempt each other endlessly."""

    cohort: str
    message: str


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """The last event, `Final` in the log: the pending Workloads and those with quota at the end."""

    pending: tuple[str, ...]
    admitted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OtherEvent(Event):
    """An event of a kind without its own class."""

    record: Record = field(default_factory=dict)


def event_of(record: Record) -> Event:
    """Convert a record of the event log to a typed event."""
    make = _MAKERS.get(record["event"])
    return OtherEvent(record["time"], record) if make is None else make(record)


def _of_workload(make: Callable[..., Event], *fields: str) -> Callable[[Record], Event]:
    return lambda record: make(record["time"], record["workload"], *(record[field] for field in fields))


def _reserved(record: Record) -> Event:
    pod_sets = tuple(PodSetFlavors(**pod_set) for pod_set in record["podSets"])
    return QuotaReserved(record["time"], record["workload"], record["clusterQueue"], pod_sets)


_MAKERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Event]]] = {
    "Created": _of_workload(Created),
    "Deleted": _of_workload(Deleted),
    "QuotaReserved": _reserved,
    "Admitted": _of_workload(Admitted, "clusterQueue"),
    "Preempted": _of_workload(Preempted, "reason", "by"),
    "Evicted": _of_workload(Evicted, "reason"),
    "Finished": _of_workload(Finished),
    "PreemptionLoop": lambda record: LoopFound(record["time"], record["cohort"], record["message"]),
    "Final": lambda record: Ended(record["time"], tuple(record["pending"]), tuple(record["admitted"])),
}
