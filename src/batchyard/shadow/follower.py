"""Follows another scheduler in one cohort tree, and before it says that both part looks whether they need not.

A `Pursuit` takes what comes in the order in which it comes. That may be another than that in which the other scheduler
saw it, and mostly it does not matter. Where both seem to part, all that came since both were level is tried again in
other orders: as it was stored, what came within a time together, all changes before all decisions, with cycles of ours
only where there is a decision to explain. If in one of them both agree, they do. That is looked at only once all is
known that happened until then, for each watch may be late by a time of its own.

Where it begins, and where a watch had a gap, nobody knows whom the other has looked at. So it is tried as well that it
has looked at all who wait, and nothing came of it.
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
from batchyard.scheduling.cycle import Policy
from batchyard.scheduling.flavor_requests import NO_PICK, SCAN_DONE
from batchyard.shadow.divergence import Judgement
from batchyard.shadow.findings import Counts, Finding
from batchyard.shadow.observed import Signature
from batchyard.shadow.replay import Call, Order, by_revision, ordered, orders_of, within_reach
from batchyard.shadow.state import HeldBack, Terms

# --- trees ---
#
# Which objects are of which cohort tree.
#
# What an object is of, and what it names, are nodes: a Cohort and its parent, a ClusterQueue and its cohort, a
# LocalQueue
# and its ClusterQueue, a Workload's LocalQueue and the ClusterQueue that it holds quota in. Nodes that an object names
# together are of one tree, whether or not there are objects of these names yet: watches may be late. What is of no node
# bears on all trees: ResourceFlavors, Namespaces, AdmissionChecks, LimitRanges.


class Trees:
    """Trees have numbers. They join, and fall apart only where somebody begins anew."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._nodes: dict[int, list[str]] = {}
        self._made = 0

    def join(self, nodes: Sequence[str]) -> tuple[int, Sequence[int]]:
        """The tree of these nodes, at least one, and those that have become part of it."""
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
        """A tree is no more."""
        for node in self._nodes.pop(tree):
            del self._of[node]

    def _take(self, tree: int, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._of[node] = tree
            self._nodes[tree].append(node)


def sorted_out(events: Iterable[WatchEvent], trees: Trees) -> dict[int, list[WatchEvent]]:
    """Objects by their tree, but for those that bear on all trees."""
    of_nodes = [(event, nodes) for event in events if (nodes := nodes_of(event.key, event.obj))]
    for _, nodes in of_nodes:
        trees.join(nodes)
    found: dict[int, list[WatchEvent]] = {}
    for event, nodes in of_nodes:
        found.setdefault(trees.join(nodes)[0], []).append(event)
    return found


def nodes_of(key: Key, obj: Obj) -> Sequence[str]:
    """The nodes that an object is of, or names; none for what bears on all trees."""
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


def may_part(event: WatchEvent) -> bool:
    """Whether nodes may be of several trees now that were of one."""
    if event.key.kind == scheme.WORKLOAD:
        return event.old is not None and event.old["spec"].get("queueName") != event.obj["spec"].get("queueName")
    if event.type is EventType.DELETED:
        return True
    return event.old is not None and not {*nodes_of(event.key, event.old)} <= {*nodes_of(event.key, event.obj)}


# --- copies ---
#
# Copies of a pursuit, from which it goes on in another way.


class Copy:
    """A pursuit as it was at some time. What never changes is shared."""

    def __init__(self, pursuit: Judgement) -> None:
        self._shared: list[Any] = [NO_PICK, SCAN_DONE]
        self._places = {id(each): place for place, each in enumerate(self._shared)}
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = self._place  # type: ignore[method-assign]
        pickler.dump(pursuit)
        self._bytes = buffer.getvalue()

    def again(self) -> Judgement:
        """The pursuit."""
        unpickler = pickle.Unpickler(io.BytesIO(self._bytes))  # noqa: S301 - what was written above
        unpickler.persistent_load = self._shared.__getitem__  # type: ignore[method-assign]
        found: Judgement = unpickler.load()
        return found

    def _place(self, value: Any) -> int | None:
        """The place of what is shared; None for what is copied."""
        place = self._places.get(id(value))
        if place is None and isinstance(value, WorkloadView | WatchEvent | HeldBack):
            place = self._places[id(value)] = len(self._shared)
            self._shared.append(value)
        return place


#: A copy of the pursuit is made after so many calls, or as many as there are Workloads.
KEPT_MIN: Final = 200
#: After so many in any case.
KEPT_MAX: Final = 20_000
#: So often in a row orders are tried in vain before fewer are.
IN_VAIN_MAX: Final = 10
#: How many copies are kept.
BASES: Final = 3
#: So many calls are tried step by step at most, and so many steps in other ways before both are level again.
STEPS_MAX: Final = 1000
APART_MAX: Final = 12


class Base(NamedTuple):
    """The pursuit as it was before the call of that number."""

    copy: Copy
    number: int
    #: Whether it is where all was read, so that nobody knows whom the other has looked at.
    is_beginning: bool = False


class Start(NamedTuple):
    """From where an order is tried: what came before the call of that number goes as it came."""

    base: Base
    number: int
    #: Whether it is taken that the other has looked at all who wait.
    is_settled: bool = False


class Follower:
    """See the module."""

    def __init__(
        self, policy: Policy, terms: Terms, tell: Callable[[Finding], None], knows: Callable[[Instant], bool]
    ) -> None:
        """`knows` says whether all was told that happened before an instant; if not, it is asked again later."""
        self._terms = terms
        self._pursuit = Judgement(policy, terms)
        self._tell = tell
        self._knows = knows
        self._orders = orders_of(terms.settle)
        self._calls: list[Call] = []
        #: How many calls went before those that are kept.
        self._gone = 0
        #: From where calls can be tried again, the last first.
        self._bases: deque[Base] = deque(maxlen=BASES)
        #: Numbers of calls since the last of them before which both were level.
        self._levels: list[int] = []
        #: Whether what was done since is in another order than it came.
        self._is_reordered = False
        #: How often in a row no order helped.
        self._in_vain = 0
        #: How often another order was what it took.
        self.reordered = 0
        #: When to look again, if nothing comes before.
        self.look_at: Instant | None = None
        #: Whether a parting is due, and told of once all is known that happened until then.
        self._is_overdue = False
        self._begin_anew()

    @property
    def counts(self) -> Counts:
        """What came of it so far."""
        return self._pursuit.counts

    @property
    def waiting(self) -> int:
        """How many changes are not yet compared."""
        return len(self._pursuit.backlog.items)

    @property
    def undecided(self) -> int:
        """How many decisions are among these."""
        return self._pursuit.backlog.undecided

    @property
    def missed(self) -> dict[str, Signature]:
        """Whom it was told of that the other has not done what ours decided, and what that was."""
        return self._pursuit.missed

    @property
    def gathers(self) -> Duration:
        """How long the other is taken to gather what may help those who are parked."""
        return self._pursuit.gathers

    @gathers.setter
    def gathers(self, gathers: Duration) -> None:
        self._pursuit.gathers = gathers

    @property
    def is_level(self) -> bool:
        """Whether both have done the same."""
        return self._pursuit.is_level

    def recall(self, events: Sequence[WatchEvent], missed: Mapping[str, Signature], now: Instant) -> None:
        """What is there, as where it begins or a watch had a gap: nothing of it is a decision to compare."""
        self._pursuit.recall(events, now)
        self._pursuit.missed = {str(event.key): missed[str(event.key)] for event in events if str(event.key) in missed}
        self._begin_anew(is_beginning=True)
        self.look_at = now

    def shown(self) -> list[WatchEvent]:
        """The tree's own objects, as they were shown last."""
        return _own(self._pursuit.model.shown())

    def take_over(self, other: "Follower", now: Instant) -> None:
        """Another tree is part of this one: go on from what its follower was shown, and what it was to be shown."""
        self._pursuit.missed |= other.missed
        to_show = [item.change.event for item in other._pursuit.backlog.items.values()]
        self.observe([*other.shown(), *_own(to_show)], now)
        if other.missed:
            self._begin_anew()  # it is not to be told of them once more

    def is_due(self, now: Instant) -> bool:
        """Whether there is something to look at."""
        return self._is_overdue or (self.look_at is not None and self.look_at <= now)

    def observe(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Changes, in the order in which they came; none where time has passed, or more is known."""
        self._calls.append(Call(events, now))
        self._pursuit.take_in(events, now)
        self._pursuit.go_on(now)
        while (
            self._pursuit.is_overdue
            and self._knows(self._pursuit.overdue_since())
            and not self._is_agreed_in_another_order(now)
        ):
            self._pursuit.part()
            self._pursuit.go_on(now)
            self._begin_anew()
        findings, self._pursuit.findings = self._pursuit.findings, []
        for finding in findings:
            self._tell(finding)
        self._keep()
        self.look_at, self._is_overdue = self._pursuit.next_look(), self._pursuit.is_overdue

    def _keep(self) -> None:
        """Note where both are level, and now and then how all is."""
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
        """What comes can be tried again from here."""
        self._bases.appendleft(Base(Copy(self._pursuit), self._gone + len(self._calls), is_beginning))
        self._levels, self._is_reordered = [], False
        first = self._bases[-1].number
        self._calls, self._gone = self._calls[first - self._gone :], first

    def _begin_anew(self, *, is_beginning: bool = False) -> None:
        self._bases.clear()
        self._add_base(is_beginning=is_beginning)

    def _is_agreed_in_another_order(self, now: Instant) -> bool:
        """Whether both agree if what came since they were level is taken in another order; then it is."""
        ours = self._pursuit.overdue()
        # Where no order helps again and again, as where settings differ, few are tried.
        starts = 1 if self._in_vain >= IN_VAIN_MAX else None
        for start in islice(self._starts(), starts):
            for trial in self._trials(start):
                trial.go_on(now)
                if not trial.is_overdue and (ours is None or not trial.awaits(ours)):
                    trial.shows_first = False
                    trial.findings = self._pursuit.findings  # what was told before is not told again
                    self._pursuit = trial
                    self.reordered += 1
                    self._is_reordered = True
                    self._in_vain = 0
                    return True
        self._in_vain += 1
        return False

    def _trials(self, start: Start) -> Iterator[Judgement]:
        """How all would be now in other orders."""
        calls = self._calls[start.number - self._gone :]
        for gathers in dict.fromkeys((self._pursuit.gathers, self._terms.gathers, 0)):
            for order in self._orders:
                trial = self._begun(start, gathers)
                for together in ordered(calls, order):
                    _take(trial, together, order)
                yield trial
            yield self._lazily(self._begun(start, gathers), calls)
            if len(calls) <= STEPS_MAX:
                yield self._in_steps(self._begun(start, gathers), calls)

    def _begun(self, start: Start, gathers: Duration) -> Judgement:
        """How all was before what is tried in another order."""
        base, number, is_settled = start
        trial = base.copy.again()
        trial.gathers = gathers
        if is_settled:
            trial.recall_settled()
        for call in self._calls[base.number - self._gone : number - self._gone]:
            trial.take_in(call.events, call.now)
            trial.go_on(call.now)
        return trial

    def _lazily(self, trial: Judgement, calls: Sequence[Call]) -> Judgement:
        """How all would be by revision, if ours had no cycle but where there is a decision of the other to explain.

        It is not known how many cycles the other had, nor when; those in which nothing is decided matter too, for who
        waits for victims to go stays first. What came further apart than `settle` has a cycle between in any case.
        """
        for together in within_reach(calls, self._terms.settle):
            trial.is_lazy = True
            for call in together:
                _take(trial, [call], self._orders[0])
            trial.is_lazy = False
            trial.go_on(together[-1].now)
        return trial

    def _in_steps(self, trial: Judgement, calls: Sequence[Call]) -> Judgement:
        """How all would be by revision, from one time when both are level to the next in whichever way they are."""
        level, since = Copy(trial), 0
        steps = list(by_revision(calls))
        for place, step in enumerate(steps):
            _take(trial, step, self._orders[0])
            ways = self._orders if place - since < APART_MAX else ()
            others = (_taken(level, steps[since : place + 1], order) for order in ways if not trial.is_level)
            trial = next((each for each in others if each.is_level), trial)
            if trial.is_level:
                level, since = Copy(trial), place + 1
        return trial

    def _starts(self) -> Iterator[Start]:
        """From where to try: where both were level last, a second before that, and where all is known."""
        last = self._bases[0]
        levels = [] if self._is_reordered else self._levels
        if levels:
            yield Start(last, levels[-1])
            before = self._calls[levels[-1] - self._gone - 1].now - SECOND
            earlier = [number for number in levels if self._calls[number - self._gone - 1].now < before]
            if earlier:
                yield Start(last, earlier[-1])
        for base in self._bases:
            if base.number < self._gone + len(self._calls):
                yield Start(base, base.number)
                if base.is_beginning:
                    yield Start(base, base.number, is_settled=True)


def _own(events: Iterable[WatchEvent]) -> list[WatchEvent]:
    """Those of a tree's own objects, not of what bears on all trees."""
    return [event for event in events if nodes_of(event.key, event.obj)]


def _take(trial: Judgement, calls: Sequence[Call], order: Order) -> None:
    """Let it go on with changes that are taken together."""
    trial.shows_first = order.shows_first
    for events, at in calls:
        trial.take_in(events, at)
    trial.go_on(calls[-1].now)


def _taken(level: Copy, steps: Sequence[Sequence[Call]], order: Order) -> Judgement:
    """How all would be after some steps, each change for itself or as an order has it."""
    trial = level.again()
    for step in steps:
        for together in [step] if order.by_revision else [[call] for call in step]:
            _take(trial, together, order)
    return trial
