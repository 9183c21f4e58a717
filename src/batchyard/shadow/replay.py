"""Decision replay: feeds watch events to the model one by one and matches its decisions with those of Kueue.

Theory of operation. No API guarantees an order between objects, and Kueue decides while changes are in flight. So Kueue
saw the changes in another order than the shadow. The model (`model.py`) therefore gets the changes one by one and
decides after each. A decision counts as agreed once Kueue is seen to do the same; only then the model gets its result.
Both agree if some order of the changes exists in which our scheduler makes exactly the decisions of Kueue. The changes
of one object stay in their order. In each cohort tree:

1. The model decides. It gets the results that Kueue has already written, and decides again.
2. If Kueue has not acted yet, or the model decides nothing, the model gets the next change. That happens at once if
   Kueue made a decision that is not predicted, because Kueue then knew more. Otherwise it happens after `settle`,
   because Kueue may only be slow to write.
3. A decision of Kueue depends on nothing that came more than `settle` after it. If the model has not made it by then,
   the two diverge. They also diverge if Kueue has not done for `patience` what the model decided. A finding reports the
   divergence, and the model continues from what Kueue did.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import WatchEvent
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.decisions import Decision
from batchyard.shadow.observed import (
    ObservedAdmission,
    ObservedPreemption,
    Signature,
    changes_of,
    done,
    is_effective,
    signature_of,
)
from batchyard.shadow.state import ALL, ShadowSettings, ShadowState


@dataclass(slots=True)
class UnmatchedDecisions:
    """A cohort tree in which the model has decided what Kueue has not done yet."""

    since: Instant
    #: The decisions of the last cycle.
    decisions: list[Decision] = field(default_factory=list)
    #: For each visible decision, the time when it was made first.
    first: dict[Signature, Instant] = field(default_factory=dict)
    #: Whether the model must decide again.
    is_stale: bool = False


class DecisionReplay(ShadowState):
    """The replay of one cohort tree: the model, the pending changes, and the unmatched decisions of the model."""

    def __init__(self, policy: SchedulingPolicy, terms: ShadowSettings) -> None:
        super().__init__(policy, terms)
        #: Whether the model processes all available changes before it decides.
        self.shows_first = False
        #: Whether the model decides only if Kueue made a decision that is not predicted yet.
        self.is_lazy = False
        self._stuck: dict[str, UnmatchedDecisions] = {}
        #: By number of an observed decision: the count of processed changes when a parked Workload was last retried for
        #: it.
        self._tried: dict[int, int] = {}
        self._shown = 0

    def take_in(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Add changes in the order of arrival."""
        for event in events:
            self._name(event)
            for change in changes_of(event):
                self.backlog.add(change, now)
                if event.key.kind == scheme.WORKLOAD:
                    self._take_up(change)

    def go_on(self, now: Instant) -> None:
        """Process changes and decisions as far as possible."""
        self._now = now
        first, second = (self._show_next, self._decide) if self.shows_first else (self._decide, self._show_next)
        while self._look_again() or first() or self._try_again() or second():
            pass

    @property
    def is_level(self) -> bool:
        """Whether no change and no decision is pending."""
        return not self.backlog.items and not self._stuck

    def next_look(self) -> Instant | None:
        """Return the time of the next check if no change comes before."""
        times = [self._due(number) for number in self.backlog.decided]
        for stuck in self._stuck.values():
            times += [self._since(first) + self._terms.patience for first in stuck.first.values()]
            times.append(self._since(stuck.since) + self._terms.settle)
        release = self.model.index.queue_manager.next_release()
        times += [] if release is None else [release]
        return min((time for time in times if time > self._now), default=None)

    # 1. The model decides.

    def _decide(self) -> bool:
        """Run a cycle of the model if needed; report whether the state changed."""
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
        """Complete the decisions of a tree if Kueue has done all of them; report whether it has."""
        effective = [each for each in decisions if is_effective(each)]
        if all(self._done(each) is not None for each in effective):
            self._complete(tree, decisions)
            return True
        before = self._stuck.get(tree, UnmatchedDecisions(self._now))
        found = UnmatchedDecisions(before.since, list(decisions))
        for decision in effective:
            signature = signature_of(decision)
            found.first[signature] = before.first.get(signature, self._now)
        self._stuck[tree] = found
        return False

    def _complete(self, tree: str, decisions: Sequence[Decision]) -> None:
        """Feed the results of agreed decisions to the model."""
        self._stuck.pop(tree, None)
        done = [(each, self._done(each) or ()) for each in decisions if is_effective(each)]
        self.model.put_back(decisions)
        for decision, numbers in done:
            self._agree(decision, numbers)

    def _look_again(self) -> bool:
        """Report whether Kueue has now done earlier decisions of the model, completely or as far as it ever will."""
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
                self._stuck[tree] = UnmatchedDecisions(self._now, first=stuck.first, is_stale=True)
                return True
        return False

    def _done(self, decision: Decision) -> Sequence[int] | None:
        return done(decision, self.backlog, self.model.index.snapshot)

    def _agree(self, decision: Decision, numbers: Sequence[int]) -> None:
        """Count the agreed decisions and feed their changes to the model."""
        for number in numbers:
            observed = self.backlog.items[number].change.decision
            assert observed is not None, "it was compared just now"
            what = "admission" if isinstance(observed, ObservedAdmission) else "preemption"
            self.counts.agreed[what] = self.counts.agreed.get(what, 0) + 1
            if isinstance(observed, ObservedPreemption) and all(
                observed.workload != each.workload.key for each in getattr(decision, "targets", ())
            ):
                self.counts.alike += 1
            self._show(number)

    def _try_again(self) -> bool:
        """Retry a parked Workload about which Kueue decided; report whether the state changed.

        Kueue processes its queues one by one while objects change. So a recently parked Workload may have had its
        attempt after a change that the model processed later; it is retried alone. Otherwise all Workloads of its tree
        are activated, if a change may help them.
        """
        for number in self.backlog.fronts():
            if self._tried.get(number) == self._shown:
                continue
            self._tried[number] = self._shown
            observed = self.backlog.items[number].change.decision
            about = observed.workload if isinstance(observed, ObservedAdmission) else ""
            if isinstance(observed, ObservedPreemption):
                about = self._names.get(observed.by, "")
            head = self.model.parked(about, self._now - self._terms.settle - self.requeue_batch_period)
            decisions = [] if head is None else self.model.decide([head])
            if head is not None and all(is_effective(each) and self._done(each) is not None for each in decisions):
                self.model.unpark(head)
                self._complete(self._tree(head.queue), decisions)
                return True
            if head is None and self._try_without_the_late(about):
                return True
            if tree := self.model.wake_for(about, self._now):
                self._outdate(tree)
                return True
        return False

    def _try_without_the_late(self, about: str) -> bool:
        """Run a cycle without the heads that Kueue may not have reached yet; report whether it matched Kueue.

        While Kueue works through a long queue, a new Workload waits. The model works through the same queue at once.
        """
        since = self._now - self._terms.settle - self.requeue_batch_period
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

    # 2. The model processes changes.

    def _show_next(self) -> bool:
        """Feed the next allowed change to the model; report whether there was one."""
        held: dict[Key, None] = {}
        for number, item in self.backlog.items.items():
            if item.key in held:
                continue
            tree = self._tree_of(item)
            if item.change.decision is not None or not self._may_show(tree):
                held[item.key] = None
                if tree == ALL:
                    return False  # later changes may depend on it
                continue
            if not self._wake(item.came, tree):
                self._show(number)
                self._outdate(tree)
            return True
        return self._wake(self._now, ALL)

    def _wake(self, now: Instant, tree: str) -> bool:
        """Activate the parked Workloads of a tree after its batching time; report whether any tree was activated."""
        woken = self.model.wake(now, lambda each: tree in (ALL, each) and self._may_show(each))
        for each in woken:
            self._outdate(each)
        return bool(woken)

    def _outdate(self, tree: str) -> None:
        """Mark the last decisions in a tree as stale: the model has processed more changes since."""
        for stuck in self._stuck.values() if tree == ALL else filter(None, [self._stuck.get(tree)]):
            stuck.is_stale = True

    def _may_show(self, tree: str) -> bool:
        """Report whether Kueue can be assumed to have seen more changes than the model."""
        trees = self._stuck if tree == ALL else [tree] if tree in self._stuck else []
        return all(
            self._now - self._since(self._stuck[each].since) >= self._terms.settle or self._is_unforeseen(each)
            for each in trees
        )

    def _since(self, first: Instant) -> Instant:
        return self._terms.since(first, self._now)

    def _is_unforeseen(self, tree: str) -> bool:
        """Report whether Kueue made a decision in a tree that the model has not made."""
        foreseen = self._foreseen(self._stuck[tree])
        return any(
            number not in foreseen
            and self.backlog.is_front(number)
            and self._tree_of(self.backlog.items[number]) == tree
            for number in self.backlog.decided
        )

    def _foreseen(self, stuck: UnmatchedDecisions) -> set[int]:
        """Return the numbers of Kueue's decisions that match those of the model in a tree."""
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

    # 3. Divergence (`divergence.py`).

    def _due(self, number: int) -> Instant:
        """Return the deadline until which further changes may explain a decision of Kueue.

        A change that came more than `settle` after the decision cannot explain it: Kueue did not know it. A decision
        that matches a part of the model's decisions waits for the rest of them.
        """
        stuck = self._stuck.get(self._tree_of(self.backlog.items[number]))
        is_foreseen = stuck is not None and number in self._foreseen(stuck)
        return self.backlog.items[number].came + (self._terms.patience if is_foreseen else self._terms.settle)


# --- orders ---
#
# The orders in which changes are replayed: by arrival, by revision, or all changes before decisions.


class EventBatch(NamedTuple):
    """Watch events and the time of their arrival."""

    events: Sequence[WatchEvent]
    now: Instant


class ReplayOrder(NamedTuple):
    """A replay order other than the order of arrival."""

    #: Changes that arrived within this time are processed together.
    within: Duration
    #: Whether all changes are processed before decisions.
    shows_first: bool
    #: Whether changes of queues come before changes of Workloads, which arrive on another watch.
    queues_first: bool
    #: Whether changes are ordered by revision, with all changes up to the next decision together.
    by_revision: bool = False


def orders_of(settle: Duration) -> Sequence[ReplayOrder]:
    """Return the replay orders; changes further apart than `settle` are not processed together."""
    shorter = (settle // 10, settle // 100, 0)
    return (
        ReplayOrder(0, True, False, by_revision=True),
        *(ReplayOrder(within, True, False) for within in (*shorter, settle)),
        *(ReplayOrder(within, False, True) for within in (settle, settle // 10)),
        ReplayOrder(settle, True, True),
        ReplayOrder(settle // 10, False, False),
    )


def ordered(calls: Sequence[EventBatch], order: ReplayOrder) -> Iterator[Sequence[EventBatch]]:
    """Yield the changes in the given order, in groups to process together."""
    if order.by_revision:
        yield from by_revision(calls)
        return
    for together in _together(calls, order.within):
        yield _queues_first(together) if order.queues_first else together


def _together(calls: Sequence[EventBatch], within: Duration) -> Iterator[Sequence[EventBatch]]:
    """Group consecutive calls whose distance from the first is at most `within`."""
    found: list[EventBatch] = []
    for call in calls:
        if found and call.now - found[0].now > within:
            yield found
            found = []
        found.append(call)
    if found:
        yield found


def _queues_first(calls: Sequence[EventBatch]) -> Sequence[EventBatch]:
    in_order = sorted(_single(calls), key=lambda call: call.events[0].key.kind == scheme.WORKLOAD)
    return [*in_order, EventBatch((), calls[-1].now)]


def by_revision(calls: Sequence[EventBatch]) -> Iterator[Sequence[EventBatch]]:
    """Yield changes by revision; a change after a decision starts a new group.

    No API guarantees that revisions of several kinds are comparable. They are if one store keeps all kinds.
    """
    found: list[EventBatch] = []
    now: Instant = 0
    is_decided = False
    for (event,), came in sorted(_single(calls), key=lambda call: call.events[0].revision):
        now = max(now, came)
        decides = any(change.decision is not None for change in changes_of(event))
        if is_decided and not decides:
            yield found
            found = []
        is_decided = decides
        found.append(EventBatch([event], now))
    if found:
        yield found


def by_revision_within(calls: Sequence[EventBatch], within: Duration) -> Iterator[Sequence[EventBatch]]:
    """Yield changes by revision, grouped by arrival time."""
    in_order: list[EventBatch] = []
    for call in sorted(_single(calls), key=lambda call: call.events[0].revision):
        in_order.append(call._replace(now=max(call.now, in_order[-1].now) if in_order else call.now))
    return _together(in_order, within)


def _single(calls: Sequence[EventBatch]) -> Sequence[EventBatch]:
    return [EventBatch([event], call.now) for call in calls for event in call.events]
