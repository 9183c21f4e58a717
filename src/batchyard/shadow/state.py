"""Shadow state: the model, the changes that it has not processed yet, Workload names by uid, and the time limits."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.block_admission import PodsReadyGate
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.queue_manager import KUEUE_REQUEUE_BATCH_PERIOD
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy
from batchyard.shadow.findings import ComparisonCounts, Divergence, DivergenceType
from batchyard.shadow.model import SchedulerModel
from batchyard.shadow.observed import (
    ChangeBacklog,
    ObservedAdmission,
    ObservedChange,
    ObservedPreemption,
    PendingChange,
    Signature,
)

# --- held back ---
#
# Periods in which Kueue decided nothing because it waited for the pods of admitted Workloads (blockAdmission).
#
# Kueue's single scheduling thread blocks meanwhile. So our decisions are not overdue, and Kueue has seen nothing new.
# Source: waitForPodsReadyIfNeeded in pkg/scheduler/scheduler.go of Kueue.


_POLICY: Final = PodsReadyPolicy(without_job=True)
#: The number of periods that are kept: only recent changes are replayed in other orders.
_SPANS_MAX: Final = 100


class BlockedPeriods:
    """The recent periods in which the blockAdmission gate was closed, computed from the Workloads of all trees."""

    def __init__(self) -> None:
        self._gate = PodsReadyGate(_POLICY)
        #: Begin and end of each period, in order; the last may have no end yet.
        self._spans: deque[tuple[Instant, Instant | None]] = deque(maxlen=_SPANS_MAX)

    def recall(self, events: Iterable[WatchEvent], now: Instant) -> None:
        """Restart from all existing Workloads, at the start or after a gap in a watch."""
        self._gate = PodsReadyGate(_POLICY)
        self.observe(events, now)

    def observe(self, events: Iterable[WatchEvent], now: Instant) -> None:
        """Update the periods from changes of Workloads."""
        for event in events:
            self._gate.observe(event)
        was_closed = bool(self._spans) and self._spans[-1][1] is None
        if self._gate.is_closed and not was_closed:
            self._spans.append((now, None))
        elif was_closed and not self._gate.is_closed:
            self._spans[-1] = (self._spans[-1][0], now)

    def since(self, first: Instant, now: Instant) -> Instant:
        """Return the time from which `first` counts: the end of a period without decisions; `now` while it lasts."""
        for begin, end in reversed(self._spans):
            if begin <= now:
                return max(first, now if end is None or end > now else end)
        return first


#: The tree name for changes that affect all trees.
ALL: Final = "*"
#: The number of deleted Workloads whose names are kept: later decisions may refer to them.
_GONE_MAX: Final = 1000


class ShadowSettings(NamedTuple):
    """Time limits and settings of the comparison."""

    #: The maximum difference between the delays of two watches.
    settle: Duration = 2 * SECOND
    #: The time that Kueue has to do what the model decided.
    patience: Duration = 15 * SECOND
    #: The time that Kueue batches changes before it activates parked Workloads.
    gathers: Duration = KUEUE_REQUEUE_BATCH_PERIOD
    #: Whether Kueue orders Workloads evicted for PodsReady by creation time instead of eviction time.
    is_by_creation: bool = False
    #: The periods in which Kueue waited for pods to be ready; None if it never does.
    held_back: BlockedPeriods | None = None

    def since(self, first: Instant, now: Instant) -> Instant:
        """Return the time from which a missing action of Kueue counts; `now` while Kueue decides nothing."""
        return first if self.held_back is None else self.held_back.since(first, now)


class ShadowState:
    """The model, the pending changes and the findings of one follower."""

    def __init__(self, policy: SchedulingPolicy, terms: ShadowSettings) -> None:
        self.model = SchedulerModel(policy, terms.gathers, is_by_creation=terms.is_by_creation)
        self.counts = ComparisonCounts()
        #: Findings that are not reported yet.
        self.findings: list[Divergence] = []
        self._terms = terms
        #: Changes that the model has not processed yet.
        self.backlog = ChangeBacklog()
        #: Decisions of the model reported as missing: their Workloads stay parked until Kueue acts.
        self.missed: dict[str, Signature] = {}
        self._names: dict[str, str] = {}
        self._gone: deque[str] = deque()
        self._now: Instant = 0

    def recall(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Load the initial objects; they contain no decision to compare."""
        self._now = now
        for event in events:
            self._name(event)
            self.model.show(event, now)

    def recall_settled(self) -> None:
        """Assume that Kueue has already tried all pending Workloads without success."""
        self.model.rest(self._now)

    @property
    def gathers(self) -> Duration:
        """The time that Kueue is assumed to batch changes before it activates parked Workloads."""
        return self.model.index.queue_manager.gathers

    @gathers.setter
    def gathers(self, gathers: Duration) -> None:
        self.model.index.queue_manager.gathers = gathers

    @property
    def size(self) -> int:
        """The number of Workloads, including recently deleted ones."""
        return len(self._names)

    def _take_up(self, change: ObservedChange) -> None:
        """Requeue a Workload that was left aside if Kueue acted on it after all, or if its spec changed."""
        if isinstance(change.decision, ObservedPreemption):
            self._requeue_missed(self._names.get(change.decision.by, ""))
        view, old = workload_view(change.event.obj), change.event.old
        is_other = (
            old is None or change.event.type is EventType.DELETED or old.get("spec") != change.event.obj.get("spec")
        )
        if view.key in self.missed and (change.decision is not None or is_other):
            self._requeue_missed(view.key)
            if isinstance(change.decision, ObservedAdmission):
                self.counts.late += 1
                self.findings.append(Divergence(DivergenceType.LATE, self._now, view.key, "admitted after all"))

    def _requeue_missed(self, workload: str) -> None:
        if workload in self.missed:
            del self.missed[workload]
            self.model.take_up(workload)

    def _name(self, event: WatchEvent) -> None:
        if event.key.kind == scheme.WORKLOAD:
            view = workload_view(event.obj)
            self._names[view.uid] = view.key
            if event.type is EventType.DELETED:
                self._gone.append(view.uid)
        if len(self._gone) > _GONE_MAX:
            self._names.pop(self._gone.popleft(), None)

    def _tree(self, queue: str) -> str:
        return self.model.tree_of_queue(queue) or queue

    def _tree_of(self, item: PendingChange) -> str:
        """Return the tree that a change affects."""
        event = item.change.event
        if event.key.kind == scheme.WORKLOAD:
            return self.model.tree_of(str(event.key), event.obj) or str(event.key)
        if event.key.kind == scheme.LOCAL_QUEUE:
            return self._tree(event.obj["spec"]["clusterQueue"])
        return ALL
