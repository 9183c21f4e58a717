"""Decision replay: feeds watch events to batchyard's scheduler (the model), and compares its decisions with Kueue's.

No API guarantees an order between objects, and Kueue decides while changes are in flight. So Kueue may receive the
changes in another order than the shadow. The model (`SchedulerModel`) therefore gets the changes one by one and decides
after each. A decision counts as agreed once the shadow observes that Kueue made it; only then is it applied. Both agree
if some order of the changes exists in which the model makes exactly Kueue's decisions. The changes of one object stay
in their order. In each cohort tree:

1. The model decides. It gets the results that Kueue has already written, and decides again.
2. If Kueue has not acted yet, or the model decides nothing, the model gets the next change. That happens at once if
   Kueue made a decision that is not predicted, because Kueue then had more changes. Otherwise it happens after
   `watch_skew_max`, because Kueue may only be slow to write.
3. A decision of Kueue depends on nothing that came more than `watch_skew_max` after it. If the model has not made it by
   then, the two diverge. They also diverge if Kueue has not done for `patience` what the model decided. A finding
   reports the divergence, and the model continues from what Kueue did.
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
    is_effective,
    matching_changes,
    signature_of,
    split_event,
)
from batchyard.shadow.state import ALL_TREES, ShadowSettings, ShadowState


@dataclass(slots=True)
class UnmatchedDecisions:
    """The decisions of batchyard's scheduler in one cohort tree that Kueue has not made yet."""

    #: The time of the first cycle since both schedulers last agreed.
    since: Instant
    #: The decisions of the last cycle.
    decisions: list[Decision] = field(default_factory=list)
    #: By decision with an effect: the time when the model first made it.
    first_made_at: dict[Signature, Instant] = field(default_factory=dict)
    #: Whether the model must run another cycle.
    is_stale: bool = False


class DecisionReplay(ShadowState):
    """The replay of one cohort tree: feeds changes to batchyard's scheduler and matches its decisions with Kueue's."""

    def __init__(self, policy: SchedulingPolicy, settings: ShadowSettings) -> None:
        super().__init__(policy, settings)
        #: Whether the model processes all available changes before it decides.
        self.changes_first = False
        #: Whether the model decides only if Kueue made a decision that is not predicted yet.
        self.is_lazy = False
        self._open_decisions: dict[str, UnmatchedDecisions] = {}
        #: By number of an observed decision: the count of applied changes at its last retry.
        self._applied_count_at_retry: dict[int, int] = {}
        self._applied_count = 0

    def add_events(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Append watch events to the backlog of unprocessed changes, in the order of arrival.

        If a divergence was reported because Kueue made no decision about a Workload, the Workload is requeued once an
        event shows such a decision, or a new spec.
        """
        for event in events:
            self._record_workload_name(event)
            for change in split_event(event):
                self.backlog.add(change, now)
                if event.key.kind == scheme.WORKLOAD:
                    self._requeue_if_missed(change)

    def advance(self, now: Instant) -> None:
        """Process backlog changes and run scheduling cycles until neither is possible at the time `now`."""
        self._now = now
        first_action, second_action = (
            (self._apply_next_change, self._decide) if self.changes_first else (self._decide, self._apply_next_change)
        )
        while self._complete_earlier_decisions() or first_action() or self._retry_inadmissible() or second_action():
            pass

    @property
    def agrees_with_kueue(self) -> bool:
        """Whether the backlog is empty, and Kueue made all decisions of batchyard's scheduler."""
        return not self.backlog.items and not self._open_decisions

    def next_check_at(self) -> Instant | None:
        """Return when the replay must advance even without a new watch event; None for never."""
        check_times = [self._change_deadline(change_number) for change_number in self.backlog.decision_numbers]
        for open_decisions in self._open_decisions.values():
            check_times += [
                self._wait_start(first_made_at) + self._settings.patience
                for first_made_at in open_decisions.first_made_at.values()
            ]
            check_times.append(self._wait_start(open_decisions.since) + self._settings.watch_skew_max)
        for time in (self.model.index.queue_manager.next_release(), self.model.next_sample_at()):
            check_times += [] if time is None else [time]
        return min((time for time in check_times if time > self._now), default=None)

    # 1. The model decides.

    def _decide(self) -> bool:
        if self.is_lazy and not self.backlog.decision_numbers:
            return False
        heads, has_changed = [], False
        for head in self.model.heads(self._now):
            open_decisions = self._open_decisions.get(self._tree_of_queue(head.queue))
            if open_decisions is not None and not open_decisions.is_stale:
                continue
            if head.workload.key in self.reported_decisions:
                has_changed |= self.model.park(head)  # the next Workload of its queue becomes the head
            else:
                heads.append(head)
        if not heads:
            return has_changed
        decisions_by_tree: dict[str, list[Decision]] = {}
        for decision in self.model.decide(heads):
            decisions_by_tree.setdefault(self._tree_of_queue(decision.head.queue), []).append(decision)
        has_completed_decision = False
        for tree, decisions in decisions_by_tree.items():
            has_completed_decision |= self._compare_with_kueue(tree, decisions)
        return has_completed_decision or has_changed

    def _compare_with_kueue(self, tree: str, decisions: Sequence[Decision]) -> bool:
        effective_decisions = [each for each in decisions if is_effective(each)]
        if all(self._changes_for(each) is not None for each in effective_decisions):
            self._complete_decisions(tree, decisions)
            return True
        old_decisions = self._open_decisions.get(tree, UnmatchedDecisions(self._now))
        open_decisions = UnmatchedDecisions(old_decisions.since, list(decisions))
        for decision in effective_decisions:
            signature = signature_of(decision)
            open_decisions.first_made_at[signature] = old_decisions.first_made_at.get(signature, self._now)
        self._open_decisions[tree] = open_decisions
        return False

    def _complete_decisions(self, tree: str, decisions: Sequence[Decision]) -> None:
        self._open_decisions.pop(tree, None)
        matched_changes = [(each, self._changes_for(each) or ()) for each in decisions if is_effective(each)]
        self.model.requeue_heads(decisions)
        for decision, change_numbers in matched_changes:
            self._record_agreement(decision, change_numbers)

    def _complete_earlier_decisions(self) -> bool:
        for tree, open_decisions in self._open_decisions.items():
            if open_decisions.is_stale:
                continue
            effective_decisions = [each for each in open_decisions.decisions if is_effective(each)]
            matched_decisions = [each for each in effective_decisions if self._changes_for(each) is not None]
            if len(matched_decisions) == len(effective_decisions):
                self._complete_decisions(tree, open_decisions.decisions)
                return True
            if matched_decisions and self._may_apply_next(tree):
                self._complete_decisions(tree, matched_decisions)
                first_made_at = open_decisions.first_made_at
                self._open_decisions[tree] = UnmatchedDecisions(self._now, first_made_at=first_made_at, is_stale=True)
                return True
        return False

    def _changes_for(self, decision: Decision) -> Sequence[int] | None:
        return matching_changes(decision, self.backlog, self.model.index.snapshot)

    def _record_agreement(self, decision: Decision, change_numbers: Sequence[int]) -> None:
        for change_number in change_numbers:
            kueue_decision = self.backlog.items[change_number].change.decision
            assert kueue_decision is not None, "matching_changes returns only changes with a decision"
            decision_type = "admission" if isinstance(kueue_decision, ObservedAdmission) else "preemption"
            self.counts.agreements[decision_type] = self.counts.agreements.get(decision_type, 0) + 1
            if isinstance(kueue_decision, ObservedPreemption) and all(
                kueue_decision.workload != each.workload.key for each in getattr(decision, "targets", ())
            ):
                self.counts.alike_count += 1
            self._apply_change(change_number)

    def _retry_inadmissible(self) -> bool:
        """Retry inadmissible Workloads about which Kueue has made a decision, until something changes.

        Kueue processes its queues one by one while objects change. So it may have tried a Workload after a change that
        batchyard's scheduler processed later. Return whether anything changed.
        """
        for change_number in self.backlog.first_decisions():
            if self._applied_count_at_retry.get(change_number) == self._applied_count:
                continue
            self._applied_count_at_retry[change_number] = self._applied_count
            kueue_decision = self.backlog.items[change_number].change.decision
            workload_name = kueue_decision.workload if isinstance(kueue_decision, ObservedAdmission) else ""
            if isinstance(kueue_decision, ObservedPreemption):
                workload_name = self._names_by_uid.get(kueue_decision.preemptor_uid, "")
            head = self.model.head_if_parked_since(
                workload_name, self._now - self._settings.watch_skew_max - self.requeue_batch_period
            )
            decisions = [] if head is None else self.model.decide([head])
            if head and all(is_effective(each) and self._changes_for(each) is not None for each in decisions):
                self.model.requeue_inadmissible(head)
                self._complete_decisions(self._tree_of_queue(head.queue), decisions)
                return True
            if head is None and self._decide_without_late_heads(workload_name):
                return True
            if tree := self.model.activate_tree_of(workload_name, self._now):
                self._mark_stale(tree)
                return True
        return False

    def _decide_without_late_heads(self, workload: str) -> bool:
        """Run a scheduling cycle without Workloads that Kueue may not have tried; return whether it decides like Kueue.

        In a long queue, Kueue needs time until it tries a new Workload; the scheduler model tries it at once.
        """
        late_after = self._now - self._settings.watch_skew_max - self.requeue_batch_period
        heads = self.model.heads(self._now)
        tree = next((self._tree_of_queue(head.queue) for head in heads if head.workload.key == workload), "")
        heads = [head for head in heads if self._tree_of_queue(head.queue) == tree]
        due_heads = [
            head for head in heads if head.workload.key == workload or not self.model.may_be_untried(head, late_after)
        ]
        if len(due_heads) in (0, len(heads)):
            return False
        decisions = self.model.decide(due_heads)
        effective_decisions = [each for each in decisions if is_effective(each)]
        if not effective_decisions or any(self._changes_for(each) is None for each in effective_decisions):
            return False
        self._complete_decisions(tree, decisions)
        return True

    # 2. The model processes changes.

    def _apply_next_change(self) -> bool:
        blocked_keys: dict[Key, None] = {}
        for change_number, pending in self.backlog.items.items():
            if pending.key in blocked_keys:
                continue
            cohort_tree = self._tree_of(pending)
            if pending.change.decision is not None or not self._may_apply_next(cohort_tree):
                blocked_keys[pending.key] = None
                if cohort_tree == ALL_TREES:
                    return False  # later changes may depend on this change
                continue
            if not self._activate_parked_workloads(pending.arrived_at, cohort_tree):
                self._apply_change(change_number)
                self._mark_stale(cohort_tree)
            return True
        return self._activate_parked_workloads(self._now, ALL_TREES)

    def _activate_parked_workloads(self, now: Instant, tree: str) -> bool:
        trees = self.model.activate_trees(now, lambda each: tree in (ALL_TREES, each) and self._may_apply_next(each))
        for each in trees:
            self._mark_stale(each)
        return bool(trees)

    def _mark_stale(self, tree: str) -> None:
        for open_decisions in [each for name, each in self._open_decisions.items() if tree in (ALL_TREES, name)]:
            open_decisions.is_stale = True

    def _may_apply_next(self, tree: str) -> bool:
        trees = self._open_decisions if tree == ALL_TREES else [tree] if tree in self._open_decisions else []
        return all(
            self._now - self._wait_start(self._open_decisions[each].since) >= self._settings.watch_skew_max
            or self._has_unpredicted_decision(each)
            for each in trees
        )

    def _wait_start(self, first_made_at: Instant) -> Instant:
        return self._settings.wait_start(first_made_at, self._now)

    def _has_unpredicted_decision(self, tree: str) -> bool:
        predicted_numbers = self._matched_change_numbers(self._open_decisions[tree])
        return any(
            change_number not in predicted_numbers
            and self.backlog.is_first_of_object(change_number)
            and self._tree_of(self.backlog.items[change_number]) == tree
            for change_number in self.backlog.decision_numbers
        )

    def _matched_change_numbers(self, open_decisions: UnmatchedDecisions) -> set[int]:
        effective_decisions = [each for each in open_decisions.decisions if is_effective(each)]
        return {change_number for each in effective_decisions for change_number in self._changes_for(each) or ()}

    def _apply_change(self, change_number: int) -> None:
        for earlier_number in self.backlog.earlier_changes(change_number):
            self._apply_change(earlier_number)
        self._applied_count += 1
        self._applied_count_at_retry.pop(change_number, None)
        pending_change = self.backlog.take(change_number)
        self.counts.unseen_count += pending_change.change.is_unseen
        self.model.apply_event(pending_change.change.event, pending_change.arrived_at)

    # 3. Divergence (`divergence.py`).

    def _change_deadline(self, change_number: int) -> Instant:
        """Return the time until which a decision of Kueue waits for later watch events that may explain it.

        `change_number` is the backlog number of the decision. An event that arrives more than `watch_skew_max` after
        the decision cannot explain it, because Kueue had not received that event. If batchyard's scheduler made the
        same decision, it waits up to `patience` for the other decisions of that scheduling cycle.
        """
        open_decisions = self._open_decisions.get(self._tree_of(self.backlog.items[change_number]))
        is_predicted = open_decisions is not None and change_number in self._matched_change_numbers(open_decisions)
        waiting_limit = self._settings.patience if is_predicted else self._settings.watch_skew_max
        return self.backlog.items[change_number].arrived_at + waiting_limit


class EventBatch(NamedTuple):
    """Watch events that arrived together, and the time of their arrival."""

    events: Sequence[WatchEvent]
    now: Instant


class ReplayOrder(NamedTuple):
    """How a replay orders and groups watch events; batchyard's scheduler decides after each group."""

    #: Changes that arrived within this time are processed together.
    period: Duration
    #: Whether all changes are processed before decisions.
    changes_first: bool
    #: Whether changes of queues precede changes of Workloads, which arrive on another watch.
    queues_first: bool
    #: Whether changes are ordered by revision, with all changes up to the next decision together.
    by_revision: bool = False


def replay_orders(period_max: Duration) -> Sequence[ReplayOrder]:
    """Return the orders in which to replay watch events; the period of each is at most `period_max`.

    Changes that arrived within the period of an order are processed together.
    """
    short_periods = (period_max // 10, period_max // 100, 0)
    return (
        ReplayOrder(0, True, False, by_revision=True),
        *(ReplayOrder(period, True, False) for period in (*short_periods, period_max)),
        *(ReplayOrder(period, False, True) for period in (period_max, period_max // 10)),
        ReplayOrder(period_max, True, True),
        ReplayOrder(period_max // 10, False, False),
    )


def arrange_batches(batches: Sequence[EventBatch], order: ReplayOrder) -> Iterator[Sequence[EventBatch]]:
    """Yield the batches in replay order, in groups; the replay makes scheduling decisions after each group."""
    if order.by_revision:
        yield from split_after_decisions(batches)
        return
    for group in _group_by_arrival(batches, order.period):
        yield _order_queues_first(group) if order.queues_first else group


def _group_by_arrival(batches: Sequence[EventBatch], period: Duration) -> Iterator[Sequence[EventBatch]]:
    batch_group: list[EventBatch] = []
    for batch in batches:
        if batch_group and batch.now - batch_group[0].now > period:
            yield batch_group
            batch_group = []
        batch_group.append(batch)
    if batch_group:
        yield batch_group


def _order_queues_first(batches: Sequence[EventBatch]) -> Sequence[EventBatch]:
    ordered_batches = sorted(_split_batches(batches), key=lambda batch: batch.events[0].key.kind == scheme.WORKLOAD)
    return [*ordered_batches, EventBatch((), batches[-1].now)]


def split_after_decisions(batches: Sequence[EventBatch]) -> Iterator[Sequence[EventBatch]]:
    """Yield groups of batches of one watch event each, ordered by resource version.

    Each group except the last ends with a decision of Kueue, or with the last of several decisions in a row. No API
    guarantees that resource versions of several kinds are comparable. They are if one store keeps all kinds.
    """
    group: list[EventBatch] = []
    now: Instant = 0
    follows_decision = False
    for (event,), arrived_at in sorted(_split_batches(batches), key=lambda batch: batch.events[0].revision):
        now = max(now, arrived_at)
        has_decision = any(change.decision is not None for change in split_event(event))
        if follows_decision and not has_decision:
            yield group
            group = []
        follows_decision = has_decision
        group.append(EventBatch([event], now))
    if group:
        yield group


def group_by_revision(batches: Sequence[EventBatch], period: Duration) -> Iterator[Sequence[EventBatch]]:
    """Yield the watch events of `batches` in the order of their resource versions, in groups.

    In a group, each event is a batch of its own. The arrival times in a group differ by at most `period`.
    """
    ordered_batches: list[EventBatch] = []
    for batch in sorted(_split_batches(batches), key=lambda batch: batch.events[0].revision):
        earliest_time = ordered_batches[-1].now if ordered_batches else batch.now
        ordered_batches.append(batch._replace(now=max(batch.now, earliest_time)))
    return _group_by_arrival(ordered_batches, period)


def _split_batches(batches: Sequence[EventBatch]) -> Sequence[EventBatch]:
    return [EventBatch([event], batch.now) for batch in batches for event in batch.events]
