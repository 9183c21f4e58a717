"""The history of Workloads and pods, recorded from watch events, for the timeline and the Workload pages.

Recording runs all the time, so each change costs a few comparisons, and the number of records about ended Workloads and
pods is bounded. Earlier history comes from the objects' conditions.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, amount, annotation, find_condition
from batchyard.api.times import parse_time
from batchyard.api.views.node import Requests, node_view
from batchyard.api.views.pods import pod_view
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Instant
from batchyard.dashboard import usage_history
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.messages import parse_preemptor_uid
from batchyard.scheduling.workload.lifecycle import admission_of, cluster_queue_of

# The results of shadow mode: agreements and divergences between Kueue's decisions and ours.


#: The maximum number of divergences that are kept.
DIVERGENCES_MAX: Final = 500


class SchedulerDivergence(NamedTuple):
    """A difference between a decision of Kueue and that of this scheduler, which runs beside Kueue in shadow mode."""

    at: Instant
    #: When Kueue decided, or since when this scheduler would have decided.
    since: Instant
    kind: str
    #: The Workload's key.
    workload: str
    message: str
    #: This scheduler's reason against Kueue's decision, if the message does not contain it.
    why: str
    hints: Sequence[str]


class ShadowComparison:
    """The results of shadow mode: how often Kueue and this scheduler agreed and differed, and recent differences."""

    def __init__(self, count_agreements: Callable[[], int], count_divergences: Callable[[], int]) -> None:
        """Store two functions that count the decisions in which Kueue and batchyard's scheduler agreed and diverged."""
        self.count_agreements = count_agreements
        self.count_divergences = count_divergences
        #: The recent divergences, the latest first.
        self.recent_divergences: deque[SchedulerDivergence] = deque(maxlen=DIVERGENCES_MAX)


class HistoryLimits(NamedTuple):
    """The maximum numbers of ended (finished or deleted) Workloads and of ended node intervals in a history.

    The history of a Workload takes about 1.5 KB.
    """

    workloads: int
    pod_binding_intervals: int


#: The limits for a long-running process; RUN_LIMITS are for a simulation.
LIVE_LIMITS: Final = HistoryLimits(2_000, 5_000)
RUN_LIMITS: Final = HistoryLimits(20_000, 50_000)

CREATED, RESERVED, ADMITTED, READY = "created", "quotaReserved", "admitted", "podsReady"
EVICTED, PREEMPTED, FINISHED, DELETED = "evicted", "preempted", "finished", "deleted"
_FINAL_EVENTS: Final = (FINISHED, DELETED)
#: The condition types and the event that each records when it becomes true.
_CONDITION_EVENTS: Final = (
    ("QuotaReserved", RESERVED),
    ("Admitted", ADMITTED),
    ("PodsReady", READY),
    ("Finished", FINISHED),
)


class WorkloadMark(NamedTuple):
    """An event in the recorded history of a Workload, such as its admission, with its time, reason and message."""

    at: Instant
    event: str
    reason: str = ""
    message: str = ""
    #: The uid of the preempting Workload; '' for other events.
    preemptor_uid: str = ""


@dataclass(slots=True)
class QuotaInterval:
    """An interval during which a Workload had quota reserved; `end` is None while the quota is reserved."""

    cluster_queue: str
    start: Instant
    flavors: tuple[str, ...]
    #: The reserved quota as (flavor, resource, amount).
    usage: tuple[tuple[str, str, int], ...]
    end: Instant | None = None
    #: The event that ended the interval.
    outcome: str = ""


@dataclass(slots=True)
class WorkloadHistory:
    """The recorded history of one Workload: its events and quota intervals."""

    uid: str
    key: str
    namespace: str
    #: The current or last ClusterQueue; '' if unknown.
    queue: str
    priority: int
    marks: list[WorkloadMark] = field(default_factory=list)
    quota_intervals: list[QuotaInterval] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether the Workload is finished or deleted."""
        return bool(self.marks) and self.marks[-1].event in _FINAL_EVENTS


@dataclass(slots=True)
class PodBindingInterval:
    """The interval during which a pod was bound to a node; `end` is None while the pod is bound."""

    pod: str
    namespace: str
    #: The key of the pod's Workload; '' without one.
    workload: str
    node: str
    start: Instant
    end: Instant | None = None
    requests: Requests = ()


class PlatformHistory:
    """The recorded history of a platform: the events of its Workloads, and the intervals of its pods on nodes."""

    def __init__(
        self,
        now: Callable[[], Instant],
        queue_of: Callable[[str, str], str | None],
        limits: HistoryLimits = LIVE_LIMITS,
    ) -> None:
        """Start an empty history; `queue_of` returns the ClusterQueue's name for a LocalQueue's namespace and name."""
        self._limits = limits
        self._now = now
        self._queue_of = queue_of
        self.began = now()
        #: The results of shadow mode; None outside of shadow mode.
        self.comparison: ShadowComparison | None = None
        #: The Workload histories by uid, in the order in which the Workloads were first observed.
        self.workload_histories: dict[str, WorkloadHistory] = {}
        self._ended_workloads: OrderedDict[str, None] = OrderedDict()
        #: The current node intervals by pod uid; `_ended_intervals` has the ended ones.
        self._current_intervals: dict[str, PodBindingInterval] = {}
        self._ended_intervals: deque[PodBindingInterval] = deque(maxlen=limits.pod_binding_intervals)
        #: The totals for the charts of the overview, and what they are counted from.
        self.usage = usage_history.UsageHistory(self.began)
        self._pending_uids: set[str] = set()
        self._running_count = 0
        self._node_capacities: dict[str, tuple[tuple[str, int], ...]] = {}

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Record watch events of Workloads, pods and nodes."""
        for event in events:
            if event.key.kind == scheme.WORKLOAD:
                self._record_workload_event(event)
            elif event.key.kind == scheme.POD:
                self._record_pod_event(event)
            elif event.key.kind == scheme.NODE:
                self._record_node_event(event)

    def pod_binding_intervals(self) -> Iterable[PodBindingInterval]:
        """Yield the recorded intervals of pods on nodes: first the ended, then the current ones."""
        yield from self._ended_intervals
        yield from self._current_intervals.values()

    def _record_node_event(self, event: WatchEvent) -> None:
        name, now = event.key.name, self._now()
        capacity: tuple[tuple[str, int], ...] = ()
        if event.type is not EventType.DELETED:
            capacity = tuple(node_view(event.obj).allocatable.items())
        old_capacity = self._node_capacities.pop(name, ())
        if capacity:
            self._node_capacities[name] = capacity
        if capacity != old_capacity:
            self.usage.add(now, usage_history.CAPACITY, old_capacity, -1)
            self.usage.add(now, usage_history.CAPACITY, capacity)

    def _count_pending(self, view: WorkloadView, *, is_deleted: bool) -> None:
        is_pending = view.active and not (view.quota_reserved or view.finished or is_deleted)
        if is_pending == (view.uid in self._pending_uids):
            return
        if is_pending:
            self._pending_uids.add(view.uid)
        else:
            self._pending_uids.remove(view.uid)
        self.usage.set_count(self._now(), usage_history.PENDING_COUNT, len(self._pending_uids))

    def _record_workload_event(self, event: WatchEvent) -> None:
        view, old_object = workload_view(event.obj), event.old
        self._count_pending(view, is_deleted=event.type is EventType.DELETED)
        workload_history = self.workload_histories.get(view.uid)
        if event.type is EventType.DELETED:
            if workload_history is not None and not workload_history.is_over:
                self._end_quota_interval(workload_history, self._now(), DELETED)
                self._add_mark(workload_history, WorkloadMark(self._now(), DELETED))
            return
        if workload_history is None:
            workload_history = self._start_history(view, event.obj)
            if old_object is None:
                return
        old_view = None if old_object is None else workload_view(old_object)
        if old_view is not None and _recorded_state(old_view) == _recorded_state(view):
            return
        self._record_changes(workload_history, old_view, view, event.obj)

    def _start_history(self, view: WorkloadView, obj: Obj) -> WorkloadHistory:
        queue = view.cluster_queue or self._queue_of(*view.queue.split("/", 1)) or ""
        workload_history = WorkloadHistory(view.uid, view.key, view.namespace, queue, view.priority)
        self.workload_histories[view.uid] = workload_history
        workload_history.marks.append(WorkloadMark(view.created, CREATED))
        conditions_and_events = [(find_condition(obj, kind), event) for kind, event in _CONDITION_EVENTS]
        for condition, event in conditions_and_events:
            if condition is None or condition["status"] != "True":
                continue
            changed_at = parse_time(condition["lastTransitionTime"])
            if event == RESERVED:
                self._start_quota_interval(workload_history, obj, changed_at)
            elif event == FINISHED:
                self._end_quota_interval(workload_history, changed_at, FINISHED)
            reason, message = condition.get("reason", ""), condition.get("message", "")
            self._add_mark(workload_history, WorkloadMark(changed_at, event, reason, message))
        workload_history.marks.sort(key=lambda mark: mark.at)
        return workload_history

    def _record_changes(
        self, history: WorkloadHistory, old_view: WorkloadView | None, view: WorkloadView, obj: Obj
    ) -> None:
        now = self._now()
        history.priority = view.priority
        if view.quota_reserved and not (old_view and old_view.quota_reserved):
            self._start_quota_interval(history, obj, now)
            self._add_mark(history, WorkloadMark(now, RESERVED))
        if view.admitted and not (old_view and old_view.admitted):
            self._add_mark(history, WorkloadMark(now, ADMITTED))
        if view.pods_ready and not (old_view and old_view.pods_ready):
            self._add_mark(history, WorkloadMark(now, READY))
        if view.evicted and not (old_view and old_view.evicted):
            self._record_eviction(history, obj, now)
        if old_view and old_view.quota_reserved and not view.quota_reserved:
            self._end_quota_interval(history, now, EVICTED)
        if view.finished and not (old_view and old_view.finished):
            condition = find_condition(obj, "Finished") or {}
            self._end_quota_interval(history, now, FINISHED)
            self._add_mark(
                history, WorkloadMark(now, FINISHED, condition.get("reason", ""), condition.get("message", ""))
            )

    def _record_eviction(self, history: WorkloadHistory, obj: Obj, now: Instant) -> None:
        evicted_condition, preemption = find_condition(obj, "Evicted") or {}, find_condition(obj, "Preempted")
        reason, message = evicted_condition.get("reason", ""), evicted_condition.get("message", "")
        if reason != "Preempted" or preemption is None:
            self._add_mark(history, WorkloadMark(now, EVICTED, reason, message))
            return
        preemptor_uid = parse_preemptor_uid(preemption["message"])
        self._add_mark(
            history, WorkloadMark(now, PREEMPTED, preemption["reason"], preemption["message"], preemptor_uid)
        )

    def _start_quota_interval(self, history: WorkloadHistory, obj: Obj, reserved_at: Instant) -> None:
        """Start a quota interval of a Workload, with the usage in its admission; later decreases are not recorded."""
        admission = admission_of(obj)
        flavor_usage = tuple(
            (assignment["flavors"][resource], resource, amount(resource, quantity))
            for assignment in admission.get("podSetAssignments") or ()
            for resource, quantity in (assignment.get("resourceUsage") or {}).items()
            if resource in (assignment.get("flavors") or {})
        )
        flavor_names = tuple(dict.fromkeys(flavor for flavor, _, _ in flavor_usage))
        history.queue = cluster_queue_of(obj)
        history.quota_intervals.append(QuotaInterval(history.queue, reserved_at, flavor_names, flavor_usage))
        self._count_usage(history.quota_intervals[-1], 1)

    def _end_quota_interval(self, history: WorkloadHistory, now: Instant, outcome: str) -> None:
        if history.quota_intervals and history.quota_intervals[-1].end is None:
            history.quota_intervals[-1].end, history.quota_intervals[-1].outcome = now, outcome
            self._count_usage(history.quota_intervals[-1], -1)

    def _count_usage(self, interval: QuotaInterval, sign: int) -> None:
        """Record that the usage of an interval begins (`sign` is 1) or ends (-1)."""
        now = self._now()
        self._running_count += sign
        self.usage.set_count(now, usage_history.RUNNING_COUNT, self._running_count)
        amounts = [(resource, amount) for _, resource, amount in interval.usage]
        self.usage.add(now, usage_history.QUOTA, amounts, sign)

    def _add_mark(self, history: WorkloadHistory, mark: WorkloadMark) -> None:
        history.marks.append(mark)
        if mark.event in _FINAL_EVENTS:
            self._ended_workloads[history.uid] = None
            if len(self._ended_workloads) > self._limits.workloads:
                del self.workload_histories[self._ended_workloads.popitem(last=False)[0]]

    def _record_pod_event(self, event: WatchEvent) -> None:
        obj, uid = event.obj, event.obj["metadata"].get("uid", "")
        node_interval = self._current_intervals.get(uid)
        if node_interval is None:
            node = obj["spec"].get("nodeName")
            if node and event.type is not EventType.DELETED and not pod_view(obj).is_terminal:
                name = annotation(obj, well_known.WORKLOAD)
                workload = f"{event.key.namespace}/{name}" if name else ""
                start = pod_view(obj).started if event.old is None else None  # None for a pod older than this record
                start = self._now() if start is None else start
                requests = pod_view(obj).requests
                self.usage.add(self._now(), usage_history.REQUESTED, requests)
                self._current_intervals[uid] = PodBindingInterval(
                    event.key.name, event.key.namespace, workload, node, start, requests=requests
                )
        elif event.type is EventType.DELETED or pod_view(obj).is_terminal:
            node_interval.end = self._now()
            self.usage.add(node_interval.end, usage_history.REQUESTED, node_interval.requests, -1)
            self._ended_intervals.append(self._current_intervals.pop(uid))


def _recorded_state(view: WorkloadView) -> tuple[bool, bool, bool, bool, bool, int]:
    return view.quota_reserved, view.admitted, view.pods_ready, view.evicted, view.finished, view.priority
