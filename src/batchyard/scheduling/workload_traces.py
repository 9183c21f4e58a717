"""Traces of Workloads: one trace per Workload, with a span for each of its phases.

    queued             until quota is reserved, once for each time it is pending
    admission checks   from the quota reservation until it is admitted
    starting           until its pods are ready, if PodsReady is reported
    running            until it finishes or is evicted
    stopping           from the eviction until its quota is released

A preemption is an event of the phase that it ends, with a link to the preemptor's trace. Ids are derived from uids, so
a trace continues after a restart. The start of the current phase is then taken from the object's timestamps.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj, find_condition
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.interfaces.controller import SpanEvent, TraceSpan
from batchyard.scheduling.messages import parse_preemptor_uid
from batchyard.scheduling.workload.evictions import EVICTED_BY_PREEMPTION

_TRACE_ID_DIGITS: Final = 32
_SPAN_ID_DIGITS: Final = 16
_ROOT_SPAN_NAME: Final = "workload"
#: The maximum number of Workloads traced at a time; further ones are not traced.
_TRACED_WORKLOADS_MAX: Final = 200_000


@dataclass(slots=True)
class _Phase:
    name: str
    started_at: Instant
    view: WorkloadView
    events: list[SpanEvent] = field(default_factory=list)
    span_links: list[tuple[str, str]] = field(default_factory=list)


class WorkloadTracer:
    """Emits a trace span at the end of each phase of a traced Workload, and one for the whole Workload at its end."""

    def __init__(self, now: Callable[[], Instant], emit_span: Callable[[TraceSpan], None]) -> None:
        self._now = now
        self._emit = emit_span
        self._phases: dict[str, _Phase] = {}

    def observe(self, batch: Iterable[WatchEvent]) -> None:
        """Update the traces of Workloads from a batch of watch events."""
        for event in batch:
            if event.key.kind == scheme.WORKLOAD:
                self._on_workload(event)

    def _on_workload(self, event: WatchEvent) -> None:
        now, view = self._now(), workload_view(event.obj)
        current_phase = self._phases.get(view.uid)
        if current_phase is None:
            if view.finished or event.type is EventType.DELETED or len(self._phases) >= _TRACED_WORKLOADS_MAX:
                return
            current_phase = self._phases[view.uid] = _Phase(_phase_of(event.obj), _phase_start(view, event, now), view)
        if view.evicted and not current_phase.view.evicted:
            _add_eviction_event(current_phase, event.obj, now)
        current_phase.view = view
        is_workload_over = view.finished or event.type is EventType.DELETED
        phase = _phase_of(event.obj)
        if not is_workload_over and phase == current_phase.name:
            return
        self._emit(_phase_span(current_phase, now))
        if is_workload_over:
            del self._phases[view.uid]
            self._emit(_root_span(view, event, now))
        else:
            self._phases[view.uid] = _Phase(phase, now, view)


def workload_trace_id(uid: str) -> str:
    """Return the trace id of a Workload, 32 hexadecimal digits that are derived from the Workload's uid."""
    uid_digits = uid.replace("-", "").lower()
    is_hex = len(uid_digits) == _TRACE_ID_DIGITS and not uid_digits.strip("0123456789abcdef") and uid_digits.strip("0")
    return uid_digits if is_hex else _hex_digest(uid)[:_TRACE_ID_DIGITS]


def root_span_id(uid: str) -> str:
    """Return the id of a Workload's root span, 16 hexadecimal digits that are derived from the Workload's uid."""
    return _hex_digest(f"{uid} {_ROOT_SPAN_NAME}")[:_SPAN_ID_DIGITS]


def _hex_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _phase_of(obj: Obj) -> str:
    view = workload_view(obj)
    if view.quota_reserved and view.evicted:
        return "stopping"
    if not view.quota_reserved:
        return "queued"
    if not view.admitted:
        return "admission checks"
    return "running" if view.pods_ready or find_condition(obj, "PodsReady") is None else "starting"


def _phase_start(view: WorkloadView, event: WatchEvent, now: Instant) -> Instant:
    if event.old is None:
        return min(view.created, now)
    return min(view.reserved_at if view.quota_reserved and view.reserved_at else view.waiting_since, now)


def _add_eviction_event(phase: _Phase, obj: Obj, now: Instant) -> None:
    condition = find_condition(obj, "Evicted") or {}
    reason, message = str(condition.get("reason", "")), str(condition.get("message", ""))
    phase.events.append(SpanEvent(now, "evicted", {"reason": reason, "message": message}))
    preemptor_uid = parse_preemptor_uid(message) if reason == EVICTED_BY_PREEMPTION else ""
    if preemptor_uid:
        phase.span_links.append((workload_trace_id(preemptor_uid), root_span_id(preemptor_uid)))


def _phase_span(phase: _Phase, end_time: Instant) -> TraceSpan:
    view = phase.view
    span_id = _hex_digest(f"{view.uid} {phase.name} {phase.started_at}")[:_SPAN_ID_DIGITS]
    return TraceSpan(
        workload_trace_id(view.uid),
        span_id,
        root_span_id(view.uid),
        phase.name,
        phase.started_at,
        end_time,
        _workload_attributes(view),
        tuple(phase.events),
        tuple(phase.span_links),
    )


def _root_span(view: WorkloadView, event: WatchEvent, end_time: Instant) -> TraceSpan:
    finished_condition = find_condition(event.obj, "Finished") or {}
    failure_message = str(finished_condition.get("message", "")) if finished_condition.get("reason") == "Failed" else ""
    return TraceSpan(
        workload_trace_id(view.uid),
        root_span_id(view.uid),
        "",
        _ROOT_SPAN_NAME,
        min(view.created, end_time),
        end_time,
        _workload_attributes(view),
        error=failure_message,
    )


def _workload_attributes(view: WorkloadView) -> Mapping[str, str | int]:
    attributes: dict[str, str | int] = {
        "k8s.namespace.name": view.namespace,
        "kueue.workload.name": view.name,
        "kueue.workload.uid": view.uid,
        "kueue.local_queue.name": view.queue.partition("/")[2],
        "kueue.workload.priority": view.priority,
    }
    if view.cluster_queue:
        attributes["kueue.cluster_queue.name"] = view.cluster_queue
    for holding in view.admitted_pod_sets:
        flavors = sorted(set(holding.flavors.values()))
        attributes[f"kueue.pod_set.{holding.name}.flavors"] = ",".join(flavors)
    return attributes
