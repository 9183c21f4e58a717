"""Event log of a simulation: changes of Workloads, nodes and pods as JSON records and as typed events.

Times are seconds from the start. Events of one instant are in the order in which they happened.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, find_condition, is_true, key_of, label
from batchyard.api.views.pods import DISRUPTION_TARGET, SCHEDULED, bound_node, is_terminal, phase
from batchyard.api.views.workload import AdmittedPodSet, WorkloadView, workload_view
from batchyard.autoscaler.provisioning_request_pods import STAGE_CONDITIONS
from batchyard.base.instant import Instant, duration_seconds
from batchyard.cloud.catalog.instances import CRASHED, FAILED, phase_of
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.scheduling.messages import parse_preemptor_uid
from batchyard.scheduling.preemption.shrinking import PARTIALLY_PREEMPTED
from batchyard.scheduling.slices import SLICE_REPLACED
from batchyard.scheduling.workload.lifecycle import has_quota_reservation, is_finished

# The records of nodes, pods, machines and provisioned capacity.
#
# The records of a pod say why the pod fits no node, and what happens to it on a node. In a run without nodes, pods have
# no records, because these would only repeat the records of their Workload.


#: The event name of a record, and its fields.
EventFields: TypeAlias = tuple[str, Mapping[str, Any]]

_UNSCHEDULABLE: Final = "Unschedulable"
_PREEMPTED_REASON: Final = "PreemptionByScheduler"
_DELETED: Final = EventType.DELETED  # a local name, because an enum member is slow to look up


def log_records_of(event: WatchEvent) -> Iterator[EventFields]:
    """Return an iterator over the log records for a watch event.

    Only events of Nodes, Pods, Instances (machines), NodePools and ProvisioningRequests have records.
    """
    record_converter = _RECORD_CONVERTERS.get(event.key.kind)
    return iter(()) if record_converter is None else record_converter(event)


def _node_records(event: WatchEvent) -> Iterator[EventFields]:
    record_fields = {"node": event.key.name, "pool": label(event.obj, well_known.NODE_POOL) or ""}
    if event.type is _DELETED:
        yield "NodeRemoved", record_fields
        return
    was_ready = event.old is not None and is_true(event.old, "Ready")
    if is_true(event.obj, "Ready") != was_ready:
        yield "NodeNotReady" if was_ready else "NodeReady", record_fields


def _pod_records(event: WatchEvent) -> Iterator[EventFields]:
    node, old_pod = bound_node(event.obj), event.old
    if not node:
        message = _unschedulable_message(event.obj)
        if event.type is not _DELETED and message and (old_pod is None or _unschedulable_message(old_pod) != message):
            yield "PodUnschedulable", {"pod": str(event.key), "message": message}
        return
    record_fields = {"pod": str(event.key), "node": node}
    if event.type is _DELETED:
        if not is_terminal(event.obj):
            yield "PodDeleted", record_fields
        return
    if old_pod is None or not bound_node(old_pod):
        yield "PodBound", record_fields
    if _is_being_preempted(event.obj) and not (old_pod is not None and _is_being_preempted(old_pod)):
        yield "PodPreempted", record_fields
    if is_terminal(event.obj) and not (old_pod is not None and is_terminal(old_pod)):
        status_reason = (event.obj.get("status") or {}).get("reason")
        yield f"Pod{phase(event.obj)}", {**record_fields, **({"reason": status_reason} if status_reason else {})}


def _unschedulable_message(pod: Obj) -> str:
    condition = find_condition(pod, SCHEDULED)
    return str(condition["message"]) if condition is not None and condition.get("reason") == _UNSCHEDULABLE else ""


def _is_being_preempted(pod: Obj) -> bool:
    condition = find_condition(pod, DISRUPTION_TARGET)
    return condition is not None and condition["status"] == "True" and condition.get("reason") == _PREEMPTED_REASON


def _instance_records(event: WatchEvent) -> Iterator[EventFields]:
    if event.type is _DELETED or (event.old is not None and phase_of(event.old) == phase_of(event.obj)):
        return
    spec = event.obj["spec"]
    record_fields = {"instance": event.key.name, "pool": spec["pool"], "zone": spec["zone"]}
    if phase_of(event.obj) == FAILED:
        error = event.obj["status"].get("error") or {}
        yield "InstanceFailed", {**record_fields, "code": error.get("code", "")}
    elif phase_of(event.obj) == CRASHED:
        yield "InstanceCrashed", record_fields


def _pool_records(event: WatchEvent) -> Iterator[EventFields]:
    if event.type is _DELETED:
        yield "NodePoolRemoved", {"pool": event.key.name}
    elif event.old is None:
        yield "NodePoolCreated", {"pool": event.key.name}


def _request_records(event: WatchEvent) -> Iterator[EventFields]:
    for stage in STAGE_CONDITIONS:
        if is_true(event.obj, stage) and not (event.old is not None and is_true(event.old, stage)):
            yield f"ProvisioningRequest{stage}", {"request": str(event.key)}


_RECORD_CONVERTERS: Final[Mapping[str, Callable[[WatchEvent], Iterator[EventFields]]]] = {
    scheme.NODE: _node_records,
    scheme.POD: _pod_records,
    scheme.INSTANCE: _instance_records,
    scheme.NODE_POOL: _pool_records,
    scheme.PROVISIONING_REQUEST: _request_records,
}


Record: TypeAlias = Mapping[str, Any]


class EventLog:
    """Converts watch events to log records, and passes each record to the function `sink`."""

    def __init__(self, start: Instant, now: Callable[[], Instant], sink: Callable[[Record], None]) -> None:
        self._start = start
        self._now = now
        self._sink = sink
        self._key_by_uid: dict[str, str] = {}
        #: The instant of the last record; before the first record, the start.
        self.last_record_at = start

    def register_existing_workloads(self, workloads: Iterable[Obj]) -> None:
        """Register Workloads that existed before the simulation began, without log records for them."""
        for obj in workloads:
            view = workload_view(obj)
            self._key_by_uid[view.uid] = view.key

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Emit the log records for a batch of watch events."""
        for event in events:
            if event.key.kind == scheme.WORKLOAD:
                self._observe_workload(event)
            else:
                for name, fields in log_records_of(event):
                    self._emit_record(name, fields)

    def record_loop(self, loop: PreemptionLoop) -> None:
        """Emit the log record of a preemption loop: Workloads that preempt each other endlessly."""
        loop_steps = [s._asdict() for s in loop.steps]
        self._emit_record("PreemptionLoop", {"cohort": loop.root, "message": loop.message, "steps": loop_steps})

    def record_fault(self, fault_fields: Mapping[str, Any]) -> None:
        """Emit the log record of a fault that the scenario injects."""
        self._emit_record("Fault", fault_fields)

    def record_end(self, reader: Reader, at: Instant | None = None) -> None:
        """Emit the last log record, `Final`: the unfinished Workloads without quota and with quota.

        `at` is the time of the record; None: now.
        """
        unfinished_workloads = [obj for obj in reader.list(scheme.WORKLOAD) if not is_finished(obj)]
        pending_names = [str(key_of(obj)) for obj in unfinished_workloads if not has_quota_reservation(obj)]
        admitted_names = [str(key_of(obj)) for obj in unfinished_workloads if has_quota_reservation(obj)]
        self._emit_record("Final", {"pending": pending_names, "admitted": admitted_names}, at)

    def _observe_workload(self, event: WatchEvent) -> None:
        view = workload_view(event.obj)
        if event.type is EventType.DELETED:
            self._key_by_uid.pop(view.uid, None)
            self._emit_record("Deleted", {"workload": view.key})
            return
        if event.old is None:
            self._key_by_uid[view.uid] = view.key
            self._emit_record("Created", {"workload": view.key})
        old_view = workload_view(event.old) if event.old is not None else None
        if view.quota_reserved and not (old_view and old_view.quota_reserved):
            self._emit_record("QuotaReserved", _reservation_fields(view))
        elif old_view and view.quota_reserved and _is_reassigned(view, old_view):
            self._emit_record("Reassigned", _reservation_fields(view))
        if view.admitted and not (old_view and old_view.admitted):
            self._emit_record("Admitted", {"workload": view.key, "clusterQueue": view.cluster_queue})
        if view.evicted and view.quota_reserved and not (old_view and old_view.evicted):
            self._emit_eviction(event.obj, view)
        if view.elastic and _begins_to_shrink(event):
            self._emit_shrinking(event.obj, view)
        if view.finished and not (old_view and old_view.finished):
            self._emit_record("Finished", _finish_fields(event.obj, view))

    def _emit_eviction(self, obj: Obj, view: WorkloadView) -> None:
        status = obj["status"]
        eviction_condition = find_condition(status, "Evicted")
        assert eviction_condition is not None
        preemption = find_condition(status, "Preempted")
        if eviction_condition["reason"] != "Preempted" or preemption is None:
            self._emit_record("Evicted", {"workload": view.key, "reason": eviction_condition["reason"]})
            return
        uid = parse_preemptor_uid(preemption["message"])
        preemptor = self._key_by_uid.get(uid, uid)
        self._emit_record("Preempted", {"workload": view.key, "reason": preemption["reason"], "by": preemptor})

    def _emit_shrinking(self, obj: Obj, view: WorkloadView) -> None:
        condition = find_condition(obj, PARTIALLY_PREEMPTED)
        assert condition is not None
        uid = parse_preemptor_uid(condition["message"])
        fields = {"workload": view.key, "reason": condition["reason"], "by": self._key_by_uid.get(uid, uid)}
        self._emit_record(PARTIALLY_PREEMPTED, fields)

    def _emit_record(self, event: str, record_fields: Mapping[str, Any], at: Instant | None = None) -> None:
        self.last_record_at = self._now() if at is None else at
        self._sink({"time": duration_seconds(self.last_record_at - self._start), "event": event, **record_fields})


def _begins_to_shrink(event: WatchEvent) -> bool:
    was_shrinking = event.old is not None and is_true(event.old, PARTIALLY_PREEMPTED)
    return is_true(event.obj, PARTIALLY_PREEMPTED) and not was_shrinking


def _finish_fields(obj: Obj, view: WorkloadView) -> dict[str, Any]:
    """Return the fields of the record that a Workload finished; `reason` is given only for a replaced slice."""
    condition = find_condition(obj, "Finished") if view.elastic else None
    is_replaced = condition is not None and condition["reason"] == SLICE_REPLACED
    return {"workload": view.key, **({"reason": SLICE_REPLACED} if is_replaced else {})}


def _reservation_fields(view: WorkloadView) -> dict[str, Any]:
    return {
        "workload": view.key,
        "clusterQueue": view.cluster_queue,
        "podSets": [
            {"name": h.name, "count": h.pods, "flavors": dict(h.flavors), **_topology_fields(h)}
            for h in view.admitted_pod_sets
        ],
    }


def _is_reassigned(view: WorkloadView, old_view: WorkloadView) -> bool:
    new, old = view.admitted_pod_sets, old_view.admitted_pod_sets
    return new is not old and [held.topology for held in new] != [held.topology for held in old]


def _topology_fields(held: AdmittedPodSet) -> dict[str, Any]:
    if held.topology is None:
        return {}
    domains = [{"values": list(domain.values), "count": domain.pods} for domain in held.topology.domains]
    return {"topologyAssignment": {"levels": list(held.topology.levels), "domains": domains}}


# One class for each event name in the log. Times are seconds from the start.


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of the typed events of a simulation, with the event's time in seconds from the start."""

    time: float


@dataclass(frozen=True, slots=True)
class WorkloadEvent(Event):
    """Base class of the events of one Workload, which is identified by `namespace/name`."""

    workload: str


@dataclass(frozen=True, slots=True)
class Created(WorkloadEvent):
    """A Workload was created."""


@dataclass(frozen=True, slots=True)
class Deleted(WorkloadEvent):
    """A Workload was deleted."""


@dataclass(frozen=True, slots=True)
class PodSetFlavors:
    """The quota reserved for a pod set of a Workload: the number of pods, and the flavor of each resource."""

    name: str
    count: int
    flavors: Mapping[str, str]
    #: The topology domains of the pods, as in the log; None without topology-aware scheduling.
    topology: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class QuotaReserved(WorkloadEvent):
    """A Workload got a quota reservation."""

    cluster_queue: str
    pod_sets: tuple[PodSetFlavors, ...]


@dataclass(frozen=True, slots=True)
class Reassigned(WorkloadEvent):
    """The pods of a Workload with quota got other topology domains, because a node failed."""

    cluster_queue: str
    pod_sets: tuple[PodSetFlavors, ...]


@dataclass(frozen=True, slots=True)
class Admitted(WorkloadEvent):
    """A Workload was admitted, so that its job may run."""

    cluster_queue: str


@dataclass(frozen=True, slots=True)
class Preempted(WorkloadEvent):
    """A Workload was preempted by another one. `by` is the `namespace/name` of the other, or its uid if unknown."""

    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class PartiallyPreempted(WorkloadEvent):
    """An elastic job was preempted down to its minimum number of pods. `by` is as in Preempted."""

    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Evicted(WorkloadEvent):
    """A Workload was evicted, but not preempted by another Workload."""

    reason: str


@dataclass(frozen=True, slots=True)
class Finished(WorkloadEvent):
    """A Workload finished. `reason` is WorkloadSliceReplaced if another slice of its job replaced it, otherwise ''."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class PreemptionLoopFound(Event):
    """A preemption loop: Workloads of a cohort preempt each other endlessly."""

    cohort: str
    message: str


@dataclass(frozen=True, slots=True)
class RunEnded(Event):
    """The end of a simulation (`Final` in the log): the unfinished Workloads without quota and with quota."""

    pending: tuple[str, ...]
    admitted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OtherEvent(Event):
    """An event of the log that has no class of its own, such as an event of a pod or a machine."""

    record: Record = field(default_factory=dict)


def event_of(record: Record) -> Event:
    """Return the typed event of a log record; an OtherEvent if the event has no class of its own."""
    make_event = _EVENT_MAKERS.get(record["event"])
    return OtherEvent(record["time"], record) if make_event is None else make_event(record)


def _workload_event_maker(event_class: Callable[..., Event], *field_names: str) -> Callable[[Record], Event]:
    return lambda record: event_class(record["time"], record["workload"], *(record[field] for field in field_names))


def _reservation_event(record: Record) -> Event:
    pod_sets = tuple(
        PodSetFlavors(each["name"], each["count"], each["flavors"], each.get("topologyAssignment"))
        for each in record["podSets"]
    )
    event_class = QuotaReserved if record["event"] == "QuotaReserved" else Reassigned
    return event_class(record["time"], record["workload"], record["clusterQueue"], pod_sets)


_EVENT_MAKERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Event]]] = {
    "Created": _workload_event_maker(Created),
    "Deleted": _workload_event_maker(Deleted),
    "QuotaReserved": _reservation_event,
    "Reassigned": _reservation_event,
    "Admitted": _workload_event_maker(Admitted, "clusterQueue"),
    "Preempted": _workload_event_maker(Preempted, "reason", "by"),
    PARTIALLY_PREEMPTED: _workload_event_maker(PartiallyPreempted, "reason", "by"),
    "Evicted": _workload_event_maker(Evicted, "reason"),
    "Finished": lambda record: Finished(record["time"], record["workload"], record.get("reason", "")),
    "PreemptionLoop": lambda record: PreemptionLoopFound(record["time"], record["cohort"], record["message"]),
    "Final": lambda record: RunEnded(record["time"], tuple(record["pending"]), tuple(record["admitted"])),
}
