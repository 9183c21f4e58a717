"""The history of Workloads and pods, recorded from watch events, for life lines and time lines.

Recording runs all the time, so each change costs a few comparisons and the number of records is bounded. Earlier
history comes from the objects' conditions.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, amount, annotation, find_condition
from batchyard.api.times import parse_time
from batchyard.api.views.pods import pod_view
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.messages import preemptor_uid_of
from batchyard.scheduling.workload.lifecycle import admission_of, cluster_queue_of

# --- comparison ---
#
# The results of shadow mode: agreements and divergences between two schedulers. Live platforms have none.


#: Maximum number of divergences kept.
DIVERGENCES_MAX: Final = 500


class SchedulerDivergence(NamedTuple):
    """One divergence between the two schedulers."""

    at: Instant
    #: When the other scheduler decided, or from when this one would have.
    since: Instant
    kind: str
    #: The Workload's key.
    workload: str
    message: str
    #: The reason against it as this scheduler computed it, if the message does not contain it.
    why: str
    look: Sequence[str]


class ShadowComparison:
    """The counters and the recent divergences of shadow mode."""

    def __init__(self, agreed: Callable[[], int], parted: Callable[[], int]) -> None:
        """The arguments return the number of agreements and divergences so far."""
        self.agreed = agreed
        self.parted = parted
        #: The latest first.
        self.partings: deque[SchedulerDivergence] = deque(maxlen=DIVERGENCES_MAX)


class HistoryLimits(NamedTuple):
    """The number of finished Workloads and pod stays that a History keeps; a Workload takes about 1.5 KB."""

    workloads: int
    stays: int


#: The limits for a long-running process, and for a simulation.
LIVE_LIMITS: Final = HistoryLimits(2_000, 5_000)
RUN_LIMITS: Final = HistoryLimits(20_000, 50_000)

CREATED, RESERVED, ADMITTED, READY = "created", "quotaReserved", "admitted", "podsReady"
EVICTED, PREEMPTED, FINISHED, DELETED = "evicted", "preempted", "finished", "deleted"
_ENDS: Final = (FINISHED, DELETED)
#: By condition type: the mark when it becomes true.
_MEANS: Final = (("QuotaReserved", RESERVED), ("Admitted", ADMITTED), ("PodsReady", READY), ("Finished", FINISHED))


class WorkloadMark(NamedTuple):
    """An event in the life of a Workload."""

    at: Instant
    what: str
    reason: str = ""
    message: str = ""
    #: The uid of the preempting Workload.
    by: str = ""


@dataclass(slots=True)
class QuotaInterval:
    """An interval in which a Workload has quota reserved."""

    cluster_queue: str
    start: Instant
    flavors: tuple[str, ...]
    #: (flavor, resource, amount).
    usage: tuple[tuple[str, str, int], ...]
    end: Instant | None = None
    #: The event that ended it.
    outcome: str = ""


@dataclass(slots=True)
class WorkloadHistory:
    """The recorded history of one Workload: its marks and quota intervals."""

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
        """Report whether the Workload is finished or deleted."""
        return bool(self.marks) and self.marks[-1].what in _ENDS


@dataclass(slots=True)
class NodeInterval:
    """The interval of a pod on a node."""

    pod: str
    namespace: str
    #: The key of the pod's Workload; '' without one.
    workload: str
    node: str
    start: Instant
    end: Instant | None = None


class PlatformHistory:
    """The history of a platform: Workload lives and pod stays."""

    def __init__(
        self,
        now: Callable[[], Instant],
        queue_of: Callable[[str, str], str | None],
        limits: HistoryLimits = LIVE_LIMITS,
    ) -> None:
        """`queue_of` returns the ClusterQueue of a LocalQueue."""
        self._limits = limits
        self._now = now
        self._queue_of = queue_of
        self.began = now()
        #: The results of shadow mode, if this process runs in it.
        self.comparison: ShadowComparison | None = None
        #: By uid, in order of creation.
        self.lives: dict[str, WorkloadHistory] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        #: The current stays by pod uid, and the ended ones.
        self._staying: dict[str, NodeInterval] = {}
        self._stayed: deque[NodeInterval] = deque(maxlen=limits.stays)

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Record changes."""
        for event in events:
            if event.key.kind == scheme.WORKLOAD:
                self._on_workload(event)
            elif event.key.kind == scheme.POD:
                self._on_pod(event)

    def stays(self) -> Iterable[NodeInterval]:
        """Return the stays of pods on nodes, ended ones first."""
        yield from self._stayed
        yield from self._staying.values()

    def _on_workload(self, event: WatchEvent) -> None:
        view, old = workload_view(event.obj), event.old
        life = self.lives.get(view.uid)
        if event.type is EventType.DELETED:
            if life is not None and not life.is_over:
                self._end_stint(life, self._now(), DELETED)
                self._mark(life, WorkloadMark(self._now(), DELETED))
            return
        if life is None:
            life = self._begin(view, event.obj)
            if old is None:
                return
        before = None if old is None else workload_view(old)
        if before is not None and _stands(before) == _stands(view):
            return
        self._compare(life, before, view, event.obj)

    def _begin(self, view: WorkloadView, obj: Obj) -> WorkloadHistory:
        """Start the record of a Workload from its conditions."""
        queue = view.cluster_queue or self._queue_of(*view.queue.split("/", 1)) or ""
        life = self.lives[view.uid] = WorkloadHistory(view.uid, view.key, view.namespace, queue, view.priority)
        life.marks.append(WorkloadMark(view.created, CREATED))
        known = [(find_condition(obj, kind), what) for kind, what in _MEANS]
        for condition, what in known:
            if condition is None or condition["status"] != "True":
                continue
            at = parse_time(condition["lastTransitionTime"])
            if what == RESERVED:
                self._reserve(life, obj, at)
            elif what == FINISHED:
                self._end_stint(life, at, FINISHED)
            self._mark(life, WorkloadMark(at, what, condition.get("reason", ""), condition.get("message", "")))
        life.marks.sort(key=lambda mark: mark.at)
        return life

    def _compare(self, life: WorkloadHistory, before: WorkloadView | None, view: WorkloadView, obj: Obj) -> None:
        """Record what changed between two revisions of a Workload."""
        now = self._now()
        life.priority = view.priority
        if view.quota_reserved and not (before and before.quota_reserved):
            self._reserve(life, obj, now)
            self._mark(life, WorkloadMark(now, RESERVED))
        if view.admitted and not (before and before.admitted):
            self._mark(life, WorkloadMark(now, ADMITTED))
        if view.pods_ready and not (before and before.pods_ready):
            self._mark(life, WorkloadMark(now, READY))
        if view.evicted and not (before and before.evicted):
            self._evict(life, obj, now)
        if before and before.quota_reserved and not view.quota_reserved:
            self._end_stint(life, now, EVICTED)
        if view.finished and not (before and before.finished):
            condition = find_condition(obj, "Finished") or {}
            self._end_stint(life, now, FINISHED)
            self._mark(life, WorkloadMark(now, FINISHED, condition.get("reason", ""), condition.get("message", "")))

    def _evict(self, life: WorkloadHistory, obj: Obj, now: Instant) -> None:
        evicted, preempted = find_condition(obj, "Evicted") or {}, find_condition(obj, "Preempted")
        reason, message = evicted.get("reason", ""), evicted.get("message", "")
        if reason != "Preempted" or preempted is None:
            self._mark(life, WorkloadMark(now, EVICTED, reason, message))
            return
        by = preemptor_uid_of(preempted["message"])
        self._mark(life, WorkloadMark(now, PREEMPTED, preempted["reason"], preempted["message"], by))

    @staticmethod
    def _reserve(life: WorkloadHistory, obj: Obj, at: Instant) -> None:
        """Start a stint with the assigned usage; later decreases as pods finish are not recorded."""
        admission = admission_of(obj)
        usage = tuple(
            (assigned["flavors"][resource], resource, amount(resource, used))
            for assigned in admission.get("podSetAssignments") or ()
            for resource, used in (assigned.get("resourceUsage") or {}).items()
            if resource in (assigned.get("flavors") or {})
        )
        flavors = tuple(dict.fromkeys(flavor for flavor, _, _ in usage))
        life.queue = cluster_queue_of(obj)
        life.quota_intervals.append(QuotaInterval(life.queue, at, flavors, usage))

    @staticmethod
    def _end_stint(life: WorkloadHistory, now: Instant, outcome: str) -> None:
        if life.quota_intervals and life.quota_intervals[-1].end is None:
            life.quota_intervals[-1].end, life.quota_intervals[-1].outcome = now, outcome

    def _mark(self, life: WorkloadHistory, mark: WorkloadMark) -> None:
        life.marks.append(mark)
        if mark.what in _ENDS:
            self._ended[life.uid] = None
            if len(self._ended) > self._limits.workloads:
                del self.lives[self._ended.popitem(last=False)[0]]

    def _on_pod(self, event: WatchEvent) -> None:
        obj, uid = event.obj, event.obj["metadata"].get("uid", "")
        stay = self._staying.get(uid)
        if stay is None:
            node = obj["spec"].get("nodeName")
            if node and event.type is not EventType.DELETED and not pod_view(obj).is_terminal:
                name = annotation(obj, well_known.WORKLOAD)
                workload = f"{event.key.namespace}/{name}" if name else ""
                start = pod_view(obj).started if event.old is None else None  # None for a pod older than this record
                start = self._now() if start is None else start
                self._staying[uid] = NodeInterval(event.key.name, event.key.namespace, workload, node, start)
        elif event.type is EventType.DELETED or pod_view(obj).is_terminal:
            stay.end = self._now()
            self._stayed.append(self._staying.pop(uid))


def _stands(view: WorkloadView) -> tuple[bool, bool, bool, bool, bool, int]:
    return view.quota_reserved, view.admitted, view.pods_ready, view.evicted, view.finished, view.priority
