"""What is known while another scheduler is followed: what the model was shown, what came and was not, who is who."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.block_admission import PodsReadyGate
from batchyard.scheduling.cycle import Policy
from batchyard.scheduling.queue_manager import GATHERED_BY_KUEUE
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy
from batchyard.shadow.findings import Counts, Finding, Parting
from batchyard.shadow.model import Model
from batchyard.shadow.observed import Backlog, Change, Item, ObservedAdmitted, Preempted, Signature

# --- held back ---
#
# When another scheduler decided nothing, since it waited for pods of somebody admitted to be ready (blockAdmission).
#
# Its one thread stands still meanwhile, so what ours has decided is not late, and the other has seen nothing new.
# Source: waitForPodsReadyIfNeeded in pkg/scheduler/scheduler.go of Kueue.


_POLICY: Final = PodsReadyPolicy(without_job=True)
#: So many times are remembered: orders are tried of what happened a moment ago.
_SPANS_MAX: Final = 100


class HeldBack:
    """See the module. Told of all Workloads, of whichever tree."""

    def __init__(self) -> None:
        self._gate = PodsReadyGate(_POLICY)
        #: From when until when nobody was admitted, in order; the last may have no end yet.
        self._spans: deque[tuple[Instant, Instant | None]] = deque(maxlen=_SPANS_MAX)

    def recall(self, events: Iterable[WatchEvent], now: Instant) -> None:
        """All Workloads that there are, as where it begins or a watch had a gap."""
        self._gate = PodsReadyGate(_POLICY)
        self.observe(events, now)

    def observe(self, events: Iterable[WatchEvent], now: Instant) -> None:
        """Take note of changes of Workloads."""
        for event in events:
            self._gate.observe(event)
        was_closed = bool(self._spans) and self._spans[-1][1] is None
        if self._gate.is_closed and not was_closed:
            self._spans.append((now, None))
        elif was_closed and not self._gate.is_closed:
            self._spans[-1] = (self._spans[-1][0], now)

    def since(self, first: Instant, now: Instant) -> Instant:
        """From when on what was so first counts: not before the other could decide again; `now` until then."""
        for begin, end in reversed(self._spans):
            if begin <= now:
                return max(first, now if end is None or end > now else end)
        return first


#: The trees of what bears on all of them.
ALL: Final = "*"
#: So many who are gone are still known by name: decisions may name them that come later.
_GONE_MAX: Final = 1000


class Terms(NamedTuple):
    """How long the other may take."""

    #: By how much what is told of one object may be later than what is told of another.
    settle: Duration = 2 * SECOND
    #: How long the other may take to do what the model has decided.
    patience: Duration = 15 * SECOND
    #: How long the other gathers what may help those who are parked, before it tries them again.
    gathers: Duration = GATHERED_BY_KUEUE
    #: Whether it goes by when Workloads were made, and not evicted, whose pods were not ready.
    is_by_creation: bool = False
    #: When it waited for pods to be ready; None where it never does.
    held_back: HeldBack | None = None

    def since(self, first: Instant, now: Instant) -> Instant:
        """From when on what was so first counts against the other; `now` while it may do nothing."""
        return first if self.held_back is None else self.held_back.since(first, now)


class Known:
    """See the module."""

    def __init__(self, policy: Policy, terms: Terms) -> None:
        self.model = Model(policy, terms.gathers, is_by_creation=terms.is_by_creation)
        self.counts = Counts()
        #: What is to be told.
        self.findings: list[Finding] = []
        self._terms = terms
        #: What the model was not shown yet.
        self.backlog = Backlog()
        #: What the other has not done and was told so: it is left aside until it is done.
        self.missed: dict[str, Signature] = {}
        self._names: dict[str, str] = {}
        self._gone: deque[str] = deque()
        self._now: Instant = 0

    def recall(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """What was there before: nothing of it is a decision to compare."""
        self._now = now
        for event in events:
            self._name(event)
            self.model.show(event, now)

    def recall_settled(self) -> None:
        """Nothing comes of those who wait: the other has looked at all of them."""
        self.model.rest(self._now)

    @property
    def gathers(self) -> Duration:
        """How long the other is taken to gather what may help those who are parked."""
        return self.model.index.line_up.gathers

    @gathers.setter
    def gathers(self, gathers: Duration) -> None:
        self.model.index.line_up.gathers = gathers

    @property
    def size(self) -> int:
        """How many Workloads there are, or were of late."""
        return len(self._names)

    def _take_up(self, change: Change) -> None:
        """One that was left aside is to be decided about again: it was done after all, or is another now."""
        if isinstance(change.decision, Preempted):
            self._leave_aside_no_more(self._names.get(change.decision.by, ""))
        view, old = workload_view(change.event.obj), change.event.old
        is_other = (
            old is None or change.event.type is EventType.DELETED or old.get("spec") != change.event.obj.get("spec")
        )
        if view.key in self.missed and (change.decision is not None or is_other):
            self._leave_aside_no_more(view.key)
            if isinstance(change.decision, ObservedAdmitted):
                self.counts.late += 1
                self.findings.append(Finding(Parting.LATE, self._now, view.key, "admitted after all"))

    def _leave_aside_no_more(self, workload: str) -> None:
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

    def _tree_of(self, item: Item) -> str:
        """The tree that a change is about."""
        event = item.change.event
        if event.key.kind == scheme.WORKLOAD:
            return self.model.tree_of(str(event.key), event.obj) or str(event.key)
        if event.key.kind == scheme.LOCAL_QUEUE:
            return self._tree(event.obj["spec"]["clusterQueue"])
        return ALL
