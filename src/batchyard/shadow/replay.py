"""Follows another scheduler: predicts what it decides, and compares.

Theory of operation. Changes come in some order; the other has seen them in another, for no API promises one between
objects, and it decides while changes are on their way. So a prediction is no moment's: the model (`model.py`) is shown
changes one by one, and decides after each. What it decides counts as agreed once the other was seen to do it; only then
the model is shown it. Both agree if there is some order of what was seen, each object's own changes in their order, in
which our scheduler makes each decision of the other, and none besides. In each cohort tree it is found so:

1. The model decides. What of it the other was seen to do is shown to it, and it decides again.
2. Where the other has not done it yet, or the model decides nothing, the next change is shown to it: at once if the
   other has done something that is not predicted, for then it knew more; else after the time `settle`, for then it may
   only be slow to write.
3. What the other has done rests on nothing that came more than `settle` after it. If by then the model has not decided
   it, or the other has not done for the time `patience` what the model decided, they have parted. That is told, and the
   model goes on from what the other did.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import WatchEvent
from batchyard.scheduling.cycle import Policy
from batchyard.scheduling.decisions import Decision
from batchyard.shadow.observed import (
    ObservedAdmitted,
    Preempted,
    Signature,
    changes_of,
    done,
    is_effective,
    signature_of,
)
from batchyard.shadow.state import ALL, Known, Terms


@dataclass(slots=True)
class Stuck:
    """A tree in which the model has decided what the other has not done."""

    since: Instant
    #: What it has decided, together.
    decisions: list[Decision] = field(default_factory=list)
    #: Of each of it that is to be seen, when it was decided first.
    first: dict[Signature, Instant] = field(default_factory=dict)
    #: Whether it is to decide anew.
    is_stale: bool = False


class Pursuit(Known):
    """See the module."""

    def __init__(self, policy: Policy, terms: Terms) -> None:
        super().__init__(policy, terms)
        #: Whether the model is shown all that it may be before it decides.
        self.shows_first = False
        #: Whether it decides only where the other has decided what is not foreseen yet.
        self.is_lazy = False
        self._stuck: dict[str, Stuck] = {}
        #: Decisions of the other, by number, for which one who was parked was tried again, upon what was shown.
        self._tried: dict[int, int] = {}
        self._shown = 0

    def take_in(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Changes, in the order in which they came."""
        for event in events:
            self._name(event)
            for change in changes_of(event):
                self.backlog.add(change, now)
                if event.key.kind == scheme.WORKLOAD:
                    self._take_up(change)

    def go_on(self, now: Instant) -> None:
        """Go on as far as that goes."""
        self._now = now
        first, second = (self._show_next, self._decide) if self.shows_first else (self._decide, self._show_next)
        while self._look_again() or first() or self._try_again() or second():
            pass

    @property
    def is_level(self) -> bool:
        """Whether both have done the same."""
        return not self.backlog.items and not self._stuck

    def next_look(self) -> Instant | None:
        """When to look again, if nothing comes before."""
        times = [self._due(number) for number in self.backlog.decided]
        for stuck in self._stuck.values():
            times += [self._since(first) + self._terms.patience for first in stuck.first.values()]
            times.append(self._since(stuck.since) + self._terms.settle)
        release = self.model.index.line_up.next_release()
        times += [] if release is None else [release]
        return min((time for time in times if time > self._now), default=None)

    # 1. The model decides.

    def _decide(self) -> bool:
        """Let the model decide where it may have something to; whether anything came of it."""
        if self.is_lazy and not self.backlog.decided:
            return False
        heads, parked = [], False
        for head in self.model.heads(self._now):
            stuck = self._stuck.get(self._tree(head.queue))
            if stuck is not None and not stuck.is_stale:
                continue
            if head.workload.key in self.missed:
                parked |= self.model.park(head)  # the next of its queue has its turn
            else:
                heads.append(head)
        if not heads:
            return parked
        by_tree: dict[str, list[Decision]] = {}
        for decision in self.model.decide(heads):
            by_tree.setdefault(self._tree(decision.head.queue), []).append(decision)
        came = False
        for tree, found in by_tree.items():
            came |= self._compare(tree, found)
        return came or parked

    def _compare(self, tree: str, decisions: Sequence[Decision]) -> bool:
        """Take what the model decided as done, if the other has done all of it; whether it has."""
        effective = [each for each in decisions if is_effective(each)]
        if all(self._done(each) is not None for each in effective):
            self._complete(tree, decisions)
            return True
        before = self._stuck.get(tree, Stuck(self._now))
        found = Stuck(before.since, list(decisions))
        for decision in effective:
            signature = signature_of(decision)
            found.first[signature] = before.first.get(signature, self._now)
        self._stuck[tree] = found
        return False

    def _complete(self, tree: str, decisions: Sequence[Decision]) -> None:
        """Both have decided the same: the model is shown what came of it."""
        self._stuck.pop(tree, None)
        done = [(each, self._done(each) or ()) for each in decisions if is_effective(each)]
        self.model.put_back(decisions)
        for decision, numbers in done:
            self._agree(decision, numbers)

    def _look_again(self) -> bool:
        """Whether the other has done by now what the model decided earlier, or as much of it as it ever will."""
        for tree, stuck in self._stuck.items():
            if stuck.is_stale:
                continue
            effective = [each for each in stuck.decisions if is_effective(each)]
            done = [each for each in effective if self._done(each) is not None]
            if len(done) == len(effective):
                self._complete(tree, stuck.decisions)
                return True
            if done and self._may_show(tree):
                self._complete(tree, done)
                self._stuck[tree] = Stuck(self._now, first=stuck.first, is_stale=True)
                return True
        return False

    def _done(self, decision: Decision) -> Sequence[int] | None:
        return done(decision, self.backlog, self.model.index.snapshot)

    def _agree(self, decision: Decision, numbers: Sequence[int]) -> None:
        """Show the model what both have decided."""
        for number in numbers:
            observed = self.backlog.items[number].change.decision
            assert observed is not None, "it was compared just now"
            what = "admission" if isinstance(observed, ObservedAdmitted) else "preemption"
            self.counts.agreed[what] = self.counts.agreed.get(what, 0) + 1
            if isinstance(observed, Preempted) and all(
                observed.workload != each.workload.key for each in getattr(decision, "targets", ())
            ):
                self.counts.alike += 1
            self._show(number)

    def _try_again(self) -> bool:
        """Let the model try one that is parked, and was decided about by the other; whether anything came of it.

        The other goes through its lines one by one, and meanwhile things change: who was parked lately may have had
        his turn after a change that was shown to the model later, alone. Else all of his tree are tried again, if
        something may help them.
        """
        for number in self.backlog.fronts():
            if self._tried.get(number) == self._shown:
                continue
            self._tried[number] = self._shown
            observed = self.backlog.items[number].change.decision
            about = observed.workload if isinstance(observed, ObservedAdmitted) else ""
            if isinstance(observed, Preempted):
                about = self._names.get(observed.by, "")
            head = self.model.parked(about, self._now - self._terms.settle - self.gathers)
            decisions = [] if head is None else self.model.decide([head])
            if head is not None and all(is_effective(each) and self._done(each) is not None for each in decisions):
                self.model.bring_back(head)
                self._complete(self._tree(head.queue), decisions)
                return True
            if head is None and self._try_without_the_late(about):
                return True
            if tree := self.model.wake_for(about, self._now):
                self._outdate(tree)
                return True
        return False

    def _try_without_the_late(self, about: str) -> bool:
        """Let the model decide about one whose turn it is as if other queues were not through yet; whether it did.

        One who has come while the other goes through a long line has his turn later than with the model, which goes
        through it at once.
        """
        since = self._now - self._terms.settle - self.gathers
        heads = self.model.heads(self._now)
        tree = next((self._tree(head.queue) for head in heads if head.workload.key == about), "")
        heads = [head for head in heads if self._tree(head.queue) == tree]
        left = [head for head in heads if head.workload.key == about or not self.model.may_be_late(head, since)]
        if len(left) in (0, len(heads)):
            return False
        decisions = self.model.decide(left)
        effective = [each for each in decisions if is_effective(each)]
        if not effective or any(self._done(each) is None for each in effective):
            return False
        self._complete(tree, decisions)
        return True

    # 2. Changes are shown to it.

    def _show_next(self) -> bool:
        """Show the model the first change that it may be shown; whether there was one."""
        held: dict[Key, None] = {}
        for number, item in self.backlog.items.items():
            if item.key in held:
                continue
            tree = self._tree_of(item)
            if item.change.decision is not None or not self._may_show(tree):
                held[item.key] = None
                if tree == ALL:
                    return False  # what comes after it may rest upon it
                continue
            if not self._wake(item.came, tree):
                self._show(number)
                self._outdate(tree)
            return True
        return self._wake(self._now, ALL)

    def _wake(self, now: Instant, tree: str) -> bool:
        """Wake those of a tree for whom the other has gathered for long enough by then; whether there were any."""
        woken = self.model.wake(now, lambda each: tree in (ALL, each) and self._may_show(each))
        for each in woken:
            self._outdate(each)
        return bool(woken)

    def _outdate(self, tree: str) -> None:
        """The model knows more of a tree than when it decided."""
        for stuck in self._stuck.values() if tree == ALL else filter(None, [self._stuck.get(tree)]):
            stuck.is_stale = True

    def _may_show(self, tree: str) -> bool:
        """Whether the other may be taken to have seen more than the model."""
        trees = self._stuck if tree == ALL else [tree] if tree in self._stuck else []
        return all(
            self._now - self._since(self._stuck[each].since) >= self._terms.settle or self._is_unforeseen(each)
            for each in trees
        )

    def _since(self, first: Instant) -> Instant:
        return self._terms.since(first, self._now)

    def _is_unforeseen(self, tree: str) -> bool:
        """Whether the other has done something in a tree that the model has not decided."""
        foreseen = self._foreseen(self._stuck[tree])
        return any(
            number not in foreseen
            and self.backlog.is_front(number)
            and self._tree_of(self.backlog.items[number]) == tree
            for number in self.backlog.decided
        )

    def _foreseen(self, stuck: Stuck) -> set[int]:
        """Of what the model has decided in a tree, the decisions of the other that are the same."""
        effective = [each for each in stuck.decisions if is_effective(each)]
        return {number for each in effective for number in self._done(each) or ()}

    def _show(self, number: int) -> None:
        for before in self.backlog.before(number):
            self._show(before)
        self._shown += 1
        self._tried.pop(number, None)
        item = self.backlog.take(number)
        self.counts.unseen += item.change.is_unseen
        self.model.show(item.change.event, item.came)

    # 3. They part (`judgement.py`).

    def _due(self, number: int) -> Instant:
        """Until when the model may be shown more that explains a decision of the other.

        What came later than `settle` after it cannot: the other did not know it. One that is part of what the model has
        decided together waits for the rest of that.
        """
        stuck = self._stuck.get(self._tree_of(self.backlog.items[number]))
        is_foreseen = stuck is not None and number in self._foreseen(stuck)
        return self.backlog.items[number].came + (self._terms.patience if is_foreseen else self._terms.settle)


# --- orders ---
#
# In which orders changes are taken: as they came, as they were stored, all changes before decisions.


class Call(NamedTuple):
    """What came, and when."""

    events: Sequence[WatchEvent]
    now: Instant


class Order(NamedTuple):
    """An order other than that in which changes came."""

    #: Within which time they are taken together.
    within: Duration
    #: Whether all changes go before decisions.
    shows_first: bool
    #: Whether those of queues go before those of Workloads, whose watch is another.
    queues_first: bool
    #: Whether they are taken in the order of their revisions instead, all before the next decision together.
    by_revision: bool = False


def orders_of(settle: Duration) -> Sequence[Order]:
    """The orders that are tried: what came further apart than the time `settle` is not taken together."""
    shorter = (settle // 10, settle // 100, 0)
    return (
        Order(0, True, False, by_revision=True),
        *(Order(within, True, False) for within in (*shorter, settle)),
        *(Order(within, False, True) for within in (settle, settle // 10)),
        Order(settle, True, True),
        Order(settle // 10, False, False),
    )


def ordered(calls: Sequence[Call], order: Order) -> Iterator[Sequence[Call]]:
    """Changes in an order; those that are taken together are together."""
    if order.by_revision:
        yield from by_revision(calls)
        return
    for together in _together(calls, order.within):
        yield _queues_first(together) if order.queues_first else together


def _together(calls: Sequence[Call], within: Duration) -> Iterator[Sequence[Call]]:
    """Calls that follow each other within a time."""
    found: list[Call] = []
    for call in calls:
        if found and call.now - found[0].now > within:
            yield found
            found = []
        found.append(call)
    if found:
        yield found


def _queues_first(calls: Sequence[Call]) -> Sequence[Call]:
    in_order = sorted(_single(calls), key=lambda call: call.events[0].key.kind == scheme.WORKLOAD)
    return [*in_order, Call((), calls[-1].now)]


def by_revision(calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
    """Changes in the order in which they were stored; those that follow a decision begin anew.

    No API promises that revisions of several kinds tell their order, but where one store keeps all of them, they do.
    """
    found: list[Call] = []
    now: Instant = 0
    is_decided = False
    for (event,), came in sorted(_single(calls), key=lambda call: call.events[0].revision):
        now = max(now, came)
        decides = any(change.decision is not None for change in changes_of(event))
        if is_decided and not decides:
            yield found
            found = []
        is_decided = decides
        found.append(Call([event], now))
    if found:
        yield found


def within_reach(calls: Sequence[Call], within: Duration) -> Iterator[Sequence[Call]]:
    """Changes in the order in which they were stored, those together that came within a time."""
    in_order: list[Call] = []
    for call in sorted(_single(calls), key=lambda call: call.events[0].revision):
        in_order.append(call._replace(now=max(call.now, in_order[-1].now) if in_order else call.now))
    return _together(in_order, within)


def _single(calls: Sequence[Call]) -> Sequence[Call]:
    return [Call([event], call.now) for call in calls for event in call.events]
