"""Shadow controller: compares Kueue's decisions, evictions and requeues with batchyard's, one cohort tree at a time.

If a watch must restart with a list, the changes in between and their order are unknown. The same holds if the
list of one kind completes after the lists of other kinds. After such a gap, the comparison restarts from the current
objects.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, is_true
from batchyard.base.instant import Instant
from batchyard.client.informer import Informer
from batchyard.client.rest import RestClient, StalenessCheck
from batchyard.client.transport import Transport
from batchyard.interfaces.client import EventType, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import Kernel, ReconcileResult, Ticket
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.messages import PreemptionReason
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.shadow.findings import ComparisonCounts, Divergence, DivergenceType, diagnostic_commands
from batchyard.shadow.follower import CohortTrees, TreeFollower, group_by_tree, may_split_tree, tree_nodes_of
from batchyard.shadow.observed import Signature, split_event
from batchyard.shadow.state import ShadowSettings

# Compare evictions and requeues, which follow from specs, queues and checks without any scheduling, and the messages
# of decisions.
#
# Our Workload controller computes what it would do for a Workload, given the current objects. If Kueue has not done so
# within `patience`, a finding reports that. If Kueue evicts for a reason that the objects show, our controller must
# evict too, given the state after `watch_skew_max`. The same holds for a requeue within `patience`. Actions that depend
# on Kueue's own settings, such as the PodsReady timeout, are not checked. Sources: Kueue's pkg/scheduler/preemption
# (HumanReadablePreemptionReasons), pkg/workload (SetQuotaReservation, UpdateRequeueState).


_RESERVATION_MESSAGE_PREFIX: Final = "Quota reserved in ClusterQueue "
_REASON_SEPARATOR: Final = " due to "


class Contradiction(NamedTuple):
    """What Kueue wrote to a Workload's status, and what the Workload's other fields require instead, as clauses."""

    divergence_type: DivergenceType
    actual_text: str
    expected_text: str


def find_contradictions(event: WatchEvent) -> Iterator[Contradiction]:
    """Yield the messages and counts that Kueue wrote to a Workload's status and that contradict its other fields."""
    if event.old is None or event.type is EventType.DELETED:
        return
    for condition_type, check in (
        (lifecycle.PREEMPTED, _check_preemption),
        (lifecycle.QUOTA_RESERVED, _check_reservation_message),
    ):
        condition = find_condition(event.obj, condition_type)
        if condition is not None and condition["status"] == "True" and not is_true(event.old, condition_type):
            yield from check(event.obj, condition)
    yield from _check_requeue_count(event.obj, event.old)


def _check_preemption(_obj: Obj, condition: Obj) -> Iterator[Contradiction]:
    expected_text = PreemptionReason.WORDINGS.get(condition["reason"], "")
    actual_text = str(condition.get("message") or "").partition(_REASON_SEPARATOR)[2].partition(";")[0].strip()
    if expected_text and actual_text and actual_text != expected_text:
        correction = f"for {condition['reason']}, that is {expected_text}"
        yield Contradiction(DivergenceType.MESSAGE, f"preempted due to {actual_text}", correction)


def _check_reservation_message(obj: Obj, condition: Obj) -> Iterator[Contradiction]:
    queue_name = ((obj.get("status") or {}).get("admission") or {}).get("clusterQueue")
    message = str(condition.get("message") or "")
    if (
        queue_name
        and message.startswith(_RESERVATION_MESSAGE_PREFIX)
        and message.removeprefix(_RESERVATION_MESSAGE_PREFIX).split(",")[0] != queue_name
    ):
        yield Contradiction(DivergenceType.MESSAGE, message, f"its admission is in {queue_name}")


def _check_requeue_count(obj: Obj, old: Obj) -> Iterator[Contradiction]:
    old_count, new_count = _requeue_count(old), _requeue_count(obj)
    if new_count and new_count not in (old_count, old_count + 1):
        change_text = f"requeueState.count goes from {old_count} to {new_count}"
        requeue_rule = "each counted eviction must increase it by 1, or Kueue resets it"
        yield Contradiction(DivergenceType.REQUEUED, change_text, requeue_rule)


def _requeue_count(obj: Obj) -> int:
    return int(((obj.get("status") or {}).get("requeueState") or {}).get("count") or 0)


#: Eviction reasons that follow from objects alone.
_OBJECT_EVICTION_REASONS: Final = (
    lifecycle.EVICTED_BY_CLUSTER_QUEUE_STOPPED,
    lifecycle.EVICTED_BY_LOCAL_QUEUE_STOPPED,
    lifecycle.DEACTIVATED,
)
#: By checked condition: the verb for a message, and the divergence type.
_CHECKED_CONDITIONS: Final = {
    lifecycle.EVICTED: ("evicted", DivergenceType.EVICTED),
    evictions.REQUEUED: ("queued again", DivergenceType.REQUEUED),
}
#: By condition: the action that sets it to True.
_ACTION_TEXTS: Final = {
    lifecycle.EVICTED: "evict it",
    evictions.REQUEUED: "queue it again",
    lifecycle.ADMITTED: "admit it because its checks are Ready",
}


class _Transition(NamedTuple):
    old_workload: Obj
    reason: str
    arrived_at: Instant
    due_at: Instant


@dataclass(slots=True)
class CurrentObjects:
    """The current API objects, as a read-only store for batchyard's Workload controller."""

    objects: dict[Key, Obj] = field(default_factory=dict)
    #: At most one object in its previous state; it takes precedence over `objects`.
    previous_objects: dict[Key, Obj] = field(default_factory=dict)

    def get(self, key: Key) -> Obj | None:
        """Return the object with this key, if possible from `previous_objects`; None if it does not exist."""
        return self.previous_objects.get(key) or self.objects.get(key)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return an empty sequence: objects are only found by key."""
        del uid, namespace
        return ()

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return an empty sequence: objects are only found by key."""
        del kind, namespace
        return ()


class LifecycleCheck:
    """Compares Kueue's evictions, requeues and admissions with what batchyard's Workload controller would do."""

    def __init__(self, settings: ShadowSettings, has_arrived: Callable[[Instant], bool]) -> None:
        """`has_arrived` reports whether the shadow has received all watch events up to a time."""
        self.counts = ComparisonCounts()
        self._settings = settings
        self._has_arrived = has_arrived
        self._now: Instant = 0
        self._current = CurrentObjects()
        self._workload_controller = WorkloadLifecycle()
        #: By Workload: the time of its next check.
        self._check_times: dict[Key, Instant] = {}
        #: By Workload on which our controller would act: the actions as text, and since when.
        self._expected_actions: dict[Key, tuple[str, Instant]] = {}
        #: Evictions and requeues that Kueue wrote, by Workload and condition.
        self._transitions: dict[tuple[Key, str], _Transition] = {}
        self._contradictions: list[Divergence] = []
        #: By Workload: the actions already reported as missing.
        self._reported_actions: dict[Key, str] = {}

    def reset(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Replace the current objects by those in `events`, and forget pending checks."""
        for table in (self._current.objects, self._check_times, self._expected_actions, self._transitions):
            table.clear()
        for event in events:
            self._record(event, now)

    def observe(self, events: Sequence[WatchEvent], now: Instant) -> Iterator[Divergence]:
        """Process watch events; yield a divergence for each contradiction in the status of a Workload.

        Also yield one for each overdue difference from what batchyard's Workload controller would do.
        """
        self._now = now
        for event in events:
            self._record(event, now)
        divergences, self._contradictions = self._contradictions, []
        yield from divergences
        yield from self._find_unexpected_actions(now)
        yield from self._find_missing_actions(now)

    def next_check_at(self) -> Instant | None:
        """Return when a Workload must be checked again even without a new watch event; None for never."""
        due_times = [*self._check_times.values(), *(each.due_at for each in self._transitions.values())]
        return min((time for time in due_times if time > self._now), default=None)

    def _record(self, event: WatchEvent, now: Instant) -> None:
        if event.type is EventType.DELETED:
            for table in (self._current.objects, self._check_times, self._expected_actions, self._reported_actions):
                table.pop(event.key, None)
            for condition_type in _CHECKED_CONDITIONS:
                self._transitions.pop((event.key, condition_type), None)
        else:
            self._current.objects[event.key] = event.obj
        if event.key.kind == scheme.WORKLOAD and event.old is not None and event.type is not EventType.DELETED:
            self._record_transitions(event, event.old, now)
            self._contradictions += [self._divergence_of(event.key, each, now) for each in find_contradictions(event)]
        if event.key.kind in self._workload_controller.kinds:
            for key in self._workload_controller.keys_for(event, now):
                self._check_times[key] = now
            if event.key in self._expected_actions:
                self._check_times[event.key] = now

    def _record_transitions(self, event: WatchEvent, old: Obj, now: Instant) -> None:
        eviction, requeue = (find_condition(event.obj, condition_type) for condition_type in _CHECKED_CONDITIONS)
        is_new_eviction = eviction is not None and eviction["status"] == "True" and not is_true(old, lifecycle.EVICTED)
        if eviction is not None and is_new_eviction and eviction["reason"] in _OBJECT_EVICTION_REASONS:
            due_at = now + self._settings.watch_skew_max
            self._transitions[event.key, lifecycle.EVICTED] = _Transition(old, str(eviction["reason"]), now, due_at)
        if requeue is not None and requeue["status"] == "True" and _has_visible_effect(old, evictions.REQUEUED):
            # Kueue's clock may differ from the local one.
            due_at = now + self._settings.patience
            self._transitions[event.key, evictions.REQUEUED] = _Transition(old, str(requeue["reason"]), now, due_at)

    def _find_unexpected_actions(self, now: Instant) -> Iterator[Divergence]:
        for (key, condition_type), transition in list(self._transitions.items()):
            expected_reason = self._expected_conditions(key, now, transition.old_workload).get(condition_type)
            if expected_reason == transition.reason or (
                expected_reason is not None and condition_type == evictions.REQUEUED
            ):
                del self._transitions[key, condition_type]
                if condition_type == lifecycle.EVICTED:
                    self.counts.agreements["eviction"] = self.counts.agreements.get("eviction", 0) + 1
            elif now >= transition.due_at and self._has_arrived(transition.due_at):
                del self._transitions[key, condition_type]
                action_name, divergence_type = _CHECKED_CONDITIONS[condition_type]
                model_action = "we take no action" if expected_reason is None else f"we evict it for {expected_reason}"
                model_action += self._describe_state(key)
                kueue_document = {"decision": action_name, "reason": transition.reason}
                message = f"{action_name} for {transition.reason}; {model_action}"
                yield self._create_divergence(
                    divergence_type, transition.arrived_at, key, message, kueue_document, {"decision": model_action}
                )

    def _describe_state(self, key: Key) -> str:
        workload = self._current.objects.get(key)
        local_queue = workload and self._current.get(
            Key(scheme.LOCAL_QUEUE, key.namespace, str(workload["spec"].get("queueName")))
        )
        name = str(local_queue["spec"]["clusterQueue"]) if local_queue else ""
        cluster_queue = self._current.get(Key(scheme.CLUSTER_QUEUE, "", name))
        if not workload or not local_queue or not cluster_queue:
            return ": its queue does not exist"
        stop_policies = (
            f"{obj['kind']} {obj['metadata']['name']}: {obj['spec'].get('stopPolicy') or 'None'}"
            for obj in (local_queue, cluster_queue)
        )
        requeue_text = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt")
        requeue_at_text = f", requeueAt is {requeue_text}" if requeue_text else ""
        active_text = "active" if workload["spec"].get("active", True) else "not active"
        return f": it is {active_text}, {', '.join(stop_policies)}{requeue_at_text}"

    def _find_missing_actions(self, now: Instant) -> Iterator[Divergence]:
        for key in [key for key, check_at in self._check_times.items() if check_at <= now]:
            del self._check_times[key]
            expected_conditions = self._expected_conditions(key, now)
            action_text = ", ".join(f"{_ACTION_TEXTS[each]} ({reason})" for each, reason in expected_conditions.items())
            old_action_text, expected_since = self._expected_actions.pop(key, ("", now))
            if not action_text or self._reported_actions.get(key) == action_text:
                continue
            expected_since = expected_since if old_action_text == action_text else now
            due_at = expected_since + self._settings.patience
            if now < due_at or not self._has_arrived(due_at):
                self._expected_actions[key] = action_text, expected_since
                self._check_times[key] = due_at
                continue
            self._reported_actions[key] = action_text
            document = {
                "decision": "; ".join(_ACTION_TEXTS[condition_type] for condition_type in expected_conditions),
                "reasons": list(expected_conditions.values()),
            }
            message = f"Kueue took no action; we {action_text}{self._describe_state(key)}"
            yield self._create_divergence(
                DivergenceType.NOT_DONE, expected_since, key, message, {"decision": "none"}, document
            )

    def _expected_conditions(self, key: Key, now: Instant, old_workload: Obj | None = None) -> dict[str, str]:
        """Return the conditions that batchyard's controller would change to True now: the reason by condition type.

        With `old_workload`, the controller gets that earlier state with the current spec, and only Evicted and Requeued
        are returned. Otherwise it gets the current Workload, conditions that `_has_visible_effect` rejects are left
        out, and the time at which the controller wants to reconcile again is recorded.
        """
        workload = self._current.objects.get(key) if old_workload is None else old_workload
        if workload is None:
            return {}
        if old_workload is not None:
            workload_now = self._current.objects.get(key) or old_workload
            self._current.previous_objects[key] = {**old_workload, "spec": workload_now["spec"]}
        controller_result: ReconcileResult = self._workload_controller.reconcile(key, self._current, now)
        self._current.previous_objects.clear()
        if controller_result.requeue_at is not None and old_workload is None:
            self._check_times[key] = max(controller_result.requeue_at, now + 1)
        updates = [write.obj for write in controller_result.writes if isinstance(write, UpdateStatus)]
        reasons_by_condition: dict[str, str] = {}
        for condition_type in (
            _ACTION_TEXTS if updates and old_workload is None else _CHECKED_CONDITIONS if updates else ()
        ):
            if old_workload is None and not _has_visible_effect(workload, condition_type):
                continue
            condition = find_condition(updates[-1], condition_type)
            if condition is not None and condition["status"] == "True" and not is_true(workload, condition_type):
                reasons_by_condition[condition_type] = str(condition["reason"])
        return reasons_by_condition

    def _divergence_of(self, key: Key, contradiction: Contradiction, now: Instant) -> Divergence:
        message = f"Kueue wrote: {contradiction.actual_text}; {contradiction.expected_text}"
        return self._create_divergence(
            contradiction.divergence_type,
            now,
            key,
            message,
            {"message": contradiction.actual_text},
            {"message": contradiction.expected_text},
        )

    def _create_divergence(
        self, divergence_type: DivergenceType, at: Instant, key: Key, message: str, *documents: Mapping[str, object]
    ) -> Divergence:
        self.counts.divergences[divergence_type.value] = self.counts.divergences.get(divergence_type.value, 0) + 1
        actual, expected = documents
        hints = diagnostic_commands(divergence_type, str(key), "", at)
        return Divergence(divergence_type, self._now, str(key), message, actual, expected, since=at, hints=hints)


def _has_visible_effect(workload: Obj, condition_type: str) -> bool:
    if condition_type == lifecycle.EVICTED:
        return is_true(workload, lifecycle.QUOTA_RESERVED)  # without a reservation no quota is released
    if condition_type != evictions.REQUEUED:
        return True
    condition = find_condition(workload, condition_type)
    return condition is not None and condition["status"] == "False" and not _stays_requeued_false(condition["reason"])


def _stays_requeued_false(reason: str) -> bool:
    """Return whether Kueue leaves Requeued=False, with this reason, on a Workload that is active again.

    Kueue compares the reason with `Deactivated` exactly, so a reason with a suffix, as after a rejected admission
    check, never matches. Source: Reconcile in pkg/controller/core/workload_controller.go of Kueue.
    """
    return reason.startswith(lifecycle.DEACTIVATED) and reason != lifecycle.DEACTIVATED


# One follower for each cohort tree: trees do not affect each other, so each has its own replay order.
#
# Kueue takes a head of every ClusterQueue into one cycle, across all trees. But a decision depends on its own tree
# alone (`nominate` and `processEntry` in pkg/scheduler/scheduler.go). If two trees join, for example because a Cohort
# gets a parent, the follower of the larger tree takes over. It processes the objects of the other follower, then its
# pending changes. If a tree splits, its follower keeps all parts until both schedulers agree. Then each part starts
# with a new follower and the current objects.


class TreeFollowers:
    """The comparisons with Kueue: one TreeFollower per cohort tree, and the check of evictions and requeues."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        settings: ShadowSettings,
        report_divergence: Callable[[Divergence], None],
        has_arrived: Callable[[Instant], bool],
    ) -> None:
        """`has_arrived` reports whether the shadow has received all watch events up to a time."""
        self._follower_factory = partial(TreeFollower, policy, settings, report_divergence, has_arrived)
        self._lifecycle_check = LifecycleCheck(settings, has_arrived)
        self._blocked_periods = settings.blocked_periods
        self._patience = settings.patience
        self._report = report_divergence
        self._trees = CohortTrees()
        self._followers: dict[int, TreeFollower] = {}
        #: Objects that affect all trees.
        self._shared_objects: dict[Key, WatchEvent] = {}
        #: By tree that may have split: the time of the change.
        self._possible_splits: dict[int, Instant] = {}
        #: The requeue batching time found by earlier followers; new followers start with it.
        self._requeue_batch_period = settings.requeue_batch_period
        #: The counts of removed followers.
        self._removed_counts = ComparisonCounts()
        self._removed_vanished_count = 0

    @property
    def counts(self) -> ComparisonCounts:
        """The numbers of Kueue's decisions that agreed, diverged or could not be compared, since the shadow started."""
        total_counts = self._removed_counts.plus(self._lifecycle_check.counts)
        for follower in self._followers.values():
            total_counts = total_counts.plus(follower.counts)
        return total_counts

    @property
    def waiting_count(self) -> int:
        """The number of watch events that batchyard's scheduler has not processed yet."""
        return sum(follower.waiting_count for follower in self._followers.values())

    @property
    def vanished_divergence_count(self) -> int:
        """How many apparent divergences vanished when watch events were replayed in another order."""
        return self._removed_vanished_count + sum(
            follower.vanished_divergence_count for follower in self._followers.values()
        )

    @property
    def tree_count(self) -> int:
        """The number of cohort trees that are compared."""
        return len(self._followers)

    def reset(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Restart all comparisons from the current objects (`events`); existing quota reservations are not compared."""
        if self._blocked_periods is not None:
            self._blocked_periods.reset(_workload_events(events), now)
        missed_decisions: dict[str, Signature] = {}
        for tree in list(self._followers):
            follower = self._remove_follower(tree)
            missed_decisions |= follower.reported_decisions
            self._removed_counts.unseen_count += follower.uncompared_decision_count
        self._trees = CohortTrees()
        self._lifecycle_check.reset(events, now)
        self._shared_objects = {event.key: event for event in events if not tree_nodes_of(event.key, event.obj)}
        self._create_followers(events, missed_decisions, now)

    def count_uncompared(self, count: int) -> None:
        """Add `count` to the number of Kueue's decisions that the shadow could not compare."""
        self._removed_counts.unseen_count += count

    def observe(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Process watch events of one kind, given in order of arrival, and run the checks due at `now`.

        Each event is passed to the followers of the cohort trees that it affects.
        """
        if self._blocked_periods is not None:
            self._blocked_periods.observe(_workload_events(events), now)
        events_by_tree = self._group_events(events, now)
        for tree, follower in list(self._followers.items()):
            if tree in events_by_tree or follower.is_due(now):
                follower.observe(events_by_tree.get(tree, ()), now)
                self._split_tree(tree, now)
        for finding in self._lifecycle_check.observe(events, now):
            self._report(finding)

    def next_check_at(self) -> Instant | None:
        """Return the earliest time at which a cohort tree or a Workload must be checked without a new watch event.

        None means that no such check is due.
        """
        times = (self._lifecycle_check.next_check_at(), *(follower.check_at for follower in self._followers.values()))
        return min((time for time in times if time is not None), default=None)

    def _group_events(self, events: Sequence[WatchEvent], now: Instant) -> dict[int, Sequence[WatchEvent]]:
        """Group watch events by cohort tree; merge trees that an event connects, and start comparisons of new trees."""
        if events and not tree_nodes_of(events[0].key, events[0].obj):
            self._record_shared_objects(events)
            return dict.fromkeys(self._followers, events)
        events_by_tree: dict[int, list[WatchEvent]] = {}
        for event in events:
            tree, merged_trees = self._trees.join_nodes(tree_nodes_of(event.key, event.obj))
            for merged_tree in merged_trees:
                events_by_tree.setdefault(tree, []).extend(events_by_tree.pop(merged_tree, ()))
                self._merge_trees(merged_tree, tree, now)
            if tree not in self._followers:
                self._followers[tree] = self._create_follower((), {}, now)
            if may_split_tree(event):
                self._possible_splits[tree] = now
            events_by_tree.setdefault(tree, []).append(event)
        return {**events_by_tree}

    def _record_shared_objects(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            self._shared_objects.pop(event.key, None)
            if event.type is not EventType.DELETED:
                self._shared_objects[event.key] = event._replace(type=EventType.ADDED, old=None)

    def _create_followers(
        self, events: Sequence[WatchEvent], missed_decisions: dict[str, Signature], now: Instant
    ) -> None:
        for tree, tree_events in group_by_tree(events, self._trees).items():
            self._followers[tree] = self._create_follower(tree_events, missed_decisions, now)

    def _create_follower(
        self, events: Sequence[WatchEvent], missed_decisions: dict[str, Signature], now: Instant
    ) -> TreeFollower:
        follower = self._follower_factory()
        follower.requeue_batch_period = self._requeue_batch_period
        follower.reset([*self._shared_objects.values(), *events], missed_decisions, now)
        return follower

    def _merge_trees(self, old_tree: int, new_tree: int, now: Instant) -> None:
        if old_tree in self._possible_splits:
            self._possible_splits[new_tree] = now
        self._followers[new_tree].take_over(self._remove_follower(old_tree), now)

    def _split_tree(self, tree: int, now: Instant) -> None:
        changed_at, follower = self._possible_splits.get(tree), self._followers[tree]
        if changed_at is None or now - changed_at < self._patience or not follower.agrees_with_kueue:
            return
        del self._possible_splits[tree]
        current_events = follower.current_object_events()
        if len(group_by_tree(current_events, CohortTrees())) != 1:
            self._remove_follower(tree)
            self._trees.remove_tree(tree)
            self._create_followers(current_events, follower.reported_decisions, now)

    def _remove_follower(self, tree: int) -> TreeFollower:
        follower = self._followers.pop(tree)
        self._possible_splits.pop(tree, None)
        self._removed_counts = self._removed_counts.plus(follower.counts)
        self._removed_vanished_count += follower.vanished_divergence_count
        self._requeue_batch_period = follower.requeue_batch_period
        return follower


def _workload_events(events: Sequence[WatchEvent]) -> list[WatchEvent]:
    return [event for event in events if event.key.kind == scheme.WORKLOAD]


class ShadowController:
    """Feeds a client's watch events to the comparisons with Kueue, and runs due checks."""

    def __init__(
        self,
        client: RestClient,
        transport: Transport,
        timers: Kernel,
        policy_and_settings: tuple[SchedulingPolicy, ShadowSettings],
        *,
        report: Callable[[Divergence], None],
    ) -> None:
        self._client = client
        self._timers = timers
        self._staleness_check = StalenessCheck(client, transport, timers, self._check_divergences)
        self.followers = TreeFollowers(*policy_and_settings, report, self._has_arrived)
        self.has_begun = False
        #: Whether the controller is stopped.
        self.is_over = False
        #: The highest revision of the initial lists.
        self._initial_revision = 0
        #: By kind: the number of complete lists.
        self._list_counts: dict[str, int] = {}
        self._check_at: Instant | None = None
        self._ticket: Ticket | None = None
        client.subscribe(self._observe_events)

    def on_informer_update(self, informer: Informer) -> None:
        """Record that an informer received a list or an event; start the comparisons after the last initial list."""
        if self.is_over:
            return
        if not self.has_begun and self._client.is_synced:
            self.has_begun = True
            self._load_current_objects()
        self._list_counts[informer.info.constant] = informer.listings
        self._staleness_check.on_informer_update(informer)

    def _load_current_objects(self) -> None:
        self._initial_revision = max(informer.revision or 0 for informer in self._client.informers.values())
        self.followers.reset(self._client.added_events(), self._timers.now())
        self._check_divergences()

    def _observe_events(self, events: Sequence[WatchEvent]) -> None:
        if not self.has_begun or self.is_over:
            return
        if self._has_watch_gap(events):
            observed_changes = [change for event in events for change in split_event(event)]
            self.followers.count_uncompared(sum(change.decision is not None for change in observed_changes))
            self._load_current_objects()
        else:
            self.followers.observe(events, self._timers.now())
            self._schedule_next_check()

    def _has_watch_gap(self, events: Sequence[WatchEvent]) -> bool:
        """Return whether watch events before `events` may have been missed; all `events` must be of one kind."""
        kind = events[0].key.kind
        is_newly_listed = self._client.informers[kind].listings != self._list_counts.get(kind)
        return is_newly_listed or any(event.revision <= self._initial_revision for event in events)

    def _has_arrived(self, instant: Instant) -> bool:
        if self._staleness_check.caught_up_to >= instant:
            return True
        self._staleness_check.request_check()
        return False

    def _check_divergences(self) -> None:
        if self.is_over:
            return
        self._ticket = None
        self.followers.observe((), self._timers.now())
        self._schedule_next_check()

    def _schedule_next_check(self) -> None:
        next_check = self.followers.next_check_at()
        if self._ticket is not None and self._check_at == next_check:
            return
        if self._ticket is not None:
            self._timers.cancel(self._ticket)
            self._ticket = None
        if next_check is not None:
            self._check_at = next_check
            self._ticket = self._timers.call_at(next_check, self._check_divergences)
