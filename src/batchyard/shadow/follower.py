"""Follower of one cohort tree: before it reports a divergence, it replays recent changes in other orders.

The replay (`replay.py`) processes changes in the order of arrival. Kueue may have seen another order, and mostly that
does not matter. At an apparent divergence, the follower replays all changes since the last agreement in other orders:

- by revision;
- changes within a period together;
- all changes before all decisions;
- with cycles of the model only where a decision needs an explanation.

If one order makes both agree, no divergence is reported. The check runs only once all changes up to that time have
arrived, because each watch has its own delay.

At the start and after a gap in a watch, it is unknown which Workloads Kueue has already tried. So the follower also
tries the assumption that Kueue has tried all of them without success.
"""

import io
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cluster_queue import NO_FLAVOR_ASSIGNMENT, SCAN_DONE
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.shadow.divergence import DivergenceDetector
from batchyard.shadow.findings import (
    ComparisonCounts,
    Divergence,
)
from batchyard.shadow.observed import (
    Signature,
)
from batchyard.shadow.replay import (
    EventBatch,
    ReplayOrder,
    by_revision,
    by_revision_within,
    ordered,
    orders_of,
)
from batchyard.shadow.state import BlockedPeriods, ShadowSettings

# --- trees ---
#
# Map objects to cohort trees.
#
# A node is an object or a name in it: a Cohort and its parent, a ClusterQueue and its cohort, a LocalQueue and its
# ClusterQueue, a Workload's LocalQueue and the ClusterQueue that it holds quota in. Nodes named by one object belong to
# one tree, even if the named objects do not exist yet, because watches may be late. Objects without nodes affect all
# trees: ResourceFlavors, Namespaces, AdmissionChecks, LimitRanges.


class CohortTrees:
    """Numbered cohort trees (union-find over nodes). Trees merge; they split only through `forget`."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._nodes: dict[int, list[str]] = {}
        self._made = 0

    def join(self, nodes: Sequence[str]) -> tuple[int, Sequence[int]]:
        """Merge the trees of these nodes, at least one; return the tree and the trees merged into it."""
        found = list(dict.fromkeys(self._of[node] for node in nodes if node in self._of))
        if not found:
            self._made += 1
            found = [self._made]
            self._nodes[self._made] = []
        into, *others = sorted(found, key=lambda tree: len(self._nodes[tree]), reverse=True)
        for other in others:
            self._take(into, self._nodes.pop(other))
        self._take(into, [node for node in nodes if node not in self._of])
        return into, others

    def forget(self, tree: int) -> None:
        """Remove a tree and its nodes."""
        for node in self._nodes.pop(tree):
            del self._of[node]

    def _take(self, tree: int, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._of[node] = tree
            self._nodes[tree].append(node)


def group_by_tree(events: Iterable[WatchEvent], trees: CohortTrees) -> dict[int, list[WatchEvent]]:
    """Group objects by tree; omit those that affect all trees."""
    of_nodes = [(event, nodes) for event in events if (nodes := nodes_of(event.key, event.obj))]
    for _, nodes in of_nodes:
        trees.join(nodes)
    found: dict[int, list[WatchEvent]] = {}
    for event, nodes in of_nodes:
        found.setdefault(trees.join(nodes)[0], []).append(event)
    return found


def nodes_of(key: Key, obj: Obj) -> Sequence[str]:
    """Return the nodes of an object: itself and the objects that it names. Empty for objects that affect all trees."""
    spec = obj.get("spec") or {}
    match key.kind:
        case scheme.COHORT:
            return [f"cohort/{name}" for name in (key.name, spec.get("parentName")) if name]
        case scheme.CLUSTER_QUEUE:
            cohort = spec.get("cohortName")
            return [f"queue/{key.name}", *([f"cohort/{cohort}"] if cohort else [])]
        case scheme.LOCAL_QUEUE:
            return [f"local/{key.namespace}/{key.name}", f"queue/{spec['clusterQueue']}"]
        case scheme.WORKLOAD:
            held = ((obj.get("status") or {}).get("admission") or {}).get("clusterQueue")
            return [f"local/{key.namespace}/{spec.get('queueName', '')}", *([f"queue/{held}"] if held else [])]
    return ()


def may_split(event: WatchEvent) -> bool:
    """Report whether a change may have split a tree."""
    if event.key.kind == scheme.WORKLOAD:
        return event.old is not None and event.old["spec"].get("queueName") != event.obj["spec"].get("queueName")
    if event.type is EventType.DELETED:
        return True
    return event.old is not None and not {*nodes_of(event.key, event.old)} <= {*nodes_of(event.key, event.obj)}


# --- copies ---
#
# Copies of a replay, to continue it in another order.


class ReplayCopy:
    """A pickled copy of a replay. Immutable objects are shared."""

    def __init__(self, pursuit: DivergenceDetector) -> None:
        self._shared: list[Any] = [NO_FLAVOR_ASSIGNMENT, SCAN_DONE]
        self._places = {id(each): place for place, each in enumerate(self._shared)}
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = self._place  # type: ignore[method-assign]
        pickler.dump(pursuit)
        self._bytes = buffer.getvalue()

    def again(self) -> DivergenceDetector:
        """Return a new replay in the copied state."""
        unpickler = pickle.Unpickler(io.BytesIO(self._bytes))  # noqa: S301 - the pickle was written above
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        found: DivergenceDetector = unpickler.load()
        return found

    def _place(self, value: Any) -> int | None:
        """Return the index of a shared object, or None for an object that is copied."""
        place = self._places.get(id(value))
        if place is None and isinstance(value, WorkloadView | WatchEvent | BlockedPeriods):
            place = self._places[id(value)] = len(self._shared)
            self._shared.append(value)
        return place


#: The minimum number of calls between two copies; the number of Workloads if that is greater.
KEPT_MIN: Final = 200
#: The maximum number of calls between two copies.
KEPT_MAX: Final = 20_000
#: After so many failed attempts in a row, fewer orders are tried.
IN_VAIN_MAX: Final = 10
#: The number of copies that are kept.
BASES: Final = 3
#: The maximum number of calls that are replayed step by step, and of steps in other orders before both agree again.
STEPS_MAX: Final = 1000
APART_MAX: Final = 12


class ReplayBase(NamedTuple):
    """A copy of the replay before the call with this number."""

    copy: ReplayCopy
    number: int
    #: Whether it is the state after the initial list, when it is unknown which Workloads Kueue has tried.
    is_beginning: bool = False


class TrialStart(NamedTuple):
    """The start of a trial: calls before this number are replayed in the order of arrival."""

    base: ReplayBase
    number: int
    #: Whether to assume that Kueue has tried all pending Workloads.
    is_settled: bool = False


class TreeFollower:
    """Follows Kueue in one cohort tree: the replay, recent calls, and copies of the replay to retry them from."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        terms: ShadowSettings,
        report: Callable[[Divergence], None],
        knows: Callable[[Instant], bool],
    ) -> None:
        """`knows` reports whether all changes before an instant have arrived; if not, it is asked again later."""
        self._terms = terms
        self._pursuit = DivergenceDetector(policy, terms)
        self._report = report
        self._knows = knows
        self._orders = orders_of(terms.settle)
        self._calls: list[EventBatch] = []
        #: The number of calls before the first of `_calls`.
        self._gone = 0
        #: States from which calls can be replayed, latest first.
        self._bases: deque[ReplayBase] = deque(maxlen=BASES)
        #: Numbers of calls since the latest base before which both agreed.
        self._levels: list[int] = []
        #: Whether the changes since then were processed in another order than that of arrival.
        self._is_reordered = False
        #: The number of failed attempts in a row to find an order.
        self._in_vain = 0
        #: How often another order made both agree.
        self.reordered = 0
        #: The time of the next check if no change comes before.
        self.look_at: Instant | None = None
        #: Whether a divergence is due and waits until all changes up to its time have arrived.
        self._is_overdue = False
        self._restart_bases()

    @property
    def counts(self) -> ComparisonCounts:
        """The counts of the comparison so far."""
        return self._pursuit.counts

    @property
    def waiting(self) -> int:
        """The number of changes that are not yet compared."""
        return len(self._pursuit.backlog.items)

    @property
    def undecided(self) -> int:
        """The number of decisions among the changes that are not yet compared."""
        return self._pursuit.backlog.undecided

    @property
    def missed(self) -> dict[str, Signature]:
        """Workloads reported because Kueue has not done what the model decided, each with that decision."""
        return self._pursuit.missed

    @property
    def requeue_batch_period(self) -> Duration:
        """The time that Kueue is assumed to batch changes before it activates parked Workloads."""
        return self._pursuit.requeue_batch_period

    @requeue_batch_period.setter
    def requeue_batch_period(self, requeue_batch_period: Duration) -> None:
        self._pursuit.requeue_batch_period = requeue_batch_period

    @property
    def is_level(self) -> bool:
        """Whether no change and no decision is pending."""
        return self._pursuit.is_level

    def recall(self, events: Sequence[WatchEvent], missed: Mapping[str, Signature], now: Instant) -> None:
        """Load the objects at the start or after a gap in a watch; they contain no decision to compare."""
        self._pursuit.recall(events, now)
        self._pursuit.missed = {str(event.key): missed[str(event.key)] for event in events if str(event.key) in missed}
        self._restart_bases(is_beginning=True)
        self.look_at = now

    def shown(self) -> list[WatchEvent]:
        """Return the tree's own objects as the model last processed them."""
        return _own(self._pursuit.model.shown())

    def take_over(self, other: "TreeFollower", now: Instant) -> None:
        """Merge another tree: process the objects that its follower has processed, then its pending changes."""
        self._pursuit.missed |= other.missed
        to_show = [item.change.event for item in other._pursuit.backlog.items.values()]
        self.observe([*other.shown(), *_own(to_show)], now)
        if other.missed:
            self._restart_bases()  # so that they are not reported again

    def is_due(self, now: Instant) -> bool:
        """Report whether a check is due."""
        return self._is_overdue or (self.look_at is not None and self.look_at <= now)

    def observe(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Process changes in the order of arrival; none if only time has passed or a watch has caught up."""
        self._calls.append(EventBatch(events, now))
        self._pursuit.take_in(events, now)
        self._pursuit.go_on(now)
        while (
            self._pursuit.is_overdue
            and self._knows(self._pursuit.overdue_since())
            and not self._is_agreed_in_another_order(now)
        ):
            self._pursuit.part()
            self._pursuit.go_on(now)
            self._restart_bases()
        findings, self._pursuit.findings = self._pursuit.findings, []
        for finding in findings:
            self._report(finding)
        self._keep()
        self.look_at, self._is_overdue = self._pursuit.next_look(), self._pursuit.is_overdue

    def _keep(self) -> None:
        """Record where both agree, and make a copy of the replay from time to time."""
        number = self._gone + len(self._calls)
        since = number - self._bases[0].number
        if self._pursuit.is_level:
            if self._is_reordered or since >= max(KEPT_MIN, self._pursuit.size):
                self._add_base()
            else:
                self._levels.append(number)
        elif since >= KEPT_MAX:
            self._add_base()

    def _add_base(self, *, is_beginning: bool = False) -> None:
        """Make the current state a start for later trials."""
        self._bases.appendleft(ReplayBase(ReplayCopy(self._pursuit), self._gone + len(self._calls), is_beginning))
        self._levels, self._is_reordered = [], False
        first = self._bases[-1].number
        self._calls, self._gone = self._calls[first - self._gone :], first

    def _restart_bases(self, *, is_beginning: bool = False) -> None:
        self._bases.clear()
        self._add_base(is_beginning=is_beginning)

    def _is_agreed_in_another_order(self, now: Instant) -> bool:
        """Find another order of the changes since the last agreement in which both agree, and adopt it."""
        ours = self._pursuit.overdue()
        # If no order helps repeatedly, for example because settings differ, only one start is tried.
        starts = 1 if self._in_vain >= IN_VAIN_MAX else None
        for start in islice(self._starts(), starts):
            for trial in self._trials(start):
                trial.go_on(now)
                if not trial.is_overdue and (ours is None or not trial.awaits(ours)):
                    trial.shows_first = False
                    trial.findings = self._pursuit.findings  # findings reported before are not reported again
                    self._pursuit = trial
                    self.reordered += 1
                    self._is_reordered = True
                    self._in_vain = 0
                    return True
        self._in_vain += 1
        return False

    def _trials(self, start: TrialStart) -> Iterator[DivergenceDetector]:
        """Yield the present state under each other order."""
        calls = self._calls[start.number - self._gone :]
        for requeue_batch_period in dict.fromkeys(
            (self._pursuit.requeue_batch_period, self._terms.requeue_batch_period, 0)
        ):
            for order in self._orders:
                trial = self._begun(start, requeue_batch_period)
                for together in ordered(calls, order):
                    _take(trial, together, order)
                yield trial
            yield self._lazily(self._begun(start, requeue_batch_period), calls)
            if len(calls) <= STEPS_MAX:
                yield self._in_steps(self._begun(start, requeue_batch_period), calls)

    def _begun(self, start: TrialStart, requeue_batch_period: Duration) -> DivergenceDetector:
        """Return the state at the start of a trial."""
        base, number, is_settled = start
        trial = base.copy.again()
        trial.requeue_batch_period = requeue_batch_period
        if is_settled:
            trial.recall_settled()
        for call in self._calls[base.number - self._gone : number - self._gone]:
            trial.take_in(call.events, call.now)
            trial.go_on(call.now)
        return trial

    def _lazily(self, trial: DivergenceDetector, calls: Sequence[EventBatch]) -> DivergenceDetector:
        """Return the state by revision, with a cycle of the model only where a decision of Kueue needs an explanation.

        The number and times of Kueue's cycles are unknown. Cycles without a decision matter too, because a Workload
        that waits for its victims keeps its place as head. Changes further apart than `settle` always have a cycle
        between them.
        """
        for together in by_revision_within(calls, self._terms.settle):
            trial.is_lazy = True
            for call in together:
                _take(trial, [call], self._orders[0])
            trial.is_lazy = False
            trial.go_on(together[-1].now)
        return trial

    def _in_steps(self, trial: DivergenceDetector, calls: Sequence[EventBatch]) -> DivergenceDetector:
        """Return the state by revision, choosing an order for each section between two agreements."""
        level, since = ReplayCopy(trial), 0
        steps = list(by_revision(calls))
        for place, step in enumerate(steps):
            _take(trial, step, self._orders[0])
            ways = self._orders if place - since < APART_MAX else ()
            others = (_taken(level, steps[since : place + 1], order) for order in ways if not trial.is_level)
            trial = next((each for each in others if each.is_level), trial)
            if trial.is_level:
                level, since = ReplayCopy(trial), place + 1
        return trial

    def _starts(self) -> Iterator[TrialStart]:
        """Yield starts of trials: the last agreement, an agreement a second earlier, and each base."""
        last = self._bases[0]
        levels = [] if self._is_reordered else self._levels
        if levels:
            yield TrialStart(last, levels[-1])
            before = self._calls[levels[-1] - self._gone - 1].now - SECOND
            earlier = [number for number in levels if self._calls[number - self._gone - 1].now < before]
            if earlier:
                yield TrialStart(last, earlier[-1])
        for base in self._bases:
            if base.number < self._gone + len(self._calls):
                yield TrialStart(base, base.number)
                if base.is_beginning:
                    yield TrialStart(base, base.number, is_settled=True)


def _own(events: Iterable[WatchEvent]) -> list[WatchEvent]:
    """Filter the tree's own objects; objects that affect all trees are omitted."""
    return [event for event in events if nodes_of(event.key, event.obj)]


def _take(trial: DivergenceDetector, calls: Sequence[EventBatch], order: ReplayOrder) -> None:
    """Process calls together in a trial."""
    trial.shows_first = order.shows_first
    for events, at in calls:
        trial.take_in(events, at)
    trial.go_on(calls[-1].now)


def _taken(level: ReplayCopy, steps: Sequence[Sequence[EventBatch]], order: ReplayOrder) -> DivergenceDetector:
    """Return the state after some steps, with the changes of a step grouped by the order."""
    trial = level.again()
    for step in steps:
        for together in [step] if order.by_revision else [[call] for call in step]:
            _take(trial, together, order)
    return trial
