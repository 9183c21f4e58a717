"""Comparison of one cohort tree: before a difference is reported, the watch events are replayed in other orders.

The replay (`replay.py`) processes changes in the order of arrival. Kueue may have received another order, which usually
makes no difference. At an apparent divergence, all changes since the last agreement are replayed in other orders:

- by resource version;
- all changes within a period, then a decision;
- all changes before all decisions;
- with cycles of batchyard's scheduler only where a decision of Kueue needs an explanation.

If batchyard's scheduler agrees with Kueue in one order, no divergence is reported. These replays wait until all changes
up to the divergence have arrived, because each watch has its own delay.

At the start and after a gap in a watch, it is unknown which Workloads Kueue has already tried to admit. So one more
replay assumes that Kueue has tried all of them without success.
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
from batchyard.shadow.findings import ComparisonCounts, Divergence
from batchyard.shadow.observed import Signature
from batchyard.shadow.replay import (
    EventBatch,
    ReplayOrder,
    arrange_batches,
    group_by_revision,
    replay_orders,
    split_after_decisions,
)
from batchyard.shadow.state import BlockedPeriods, ShadowSettings

# Map objects to cohort trees.
#
# A node is an object or a name in it: a Cohort and its parent, a ClusterQueue and its cohort, a LocalQueue and its
# ClusterQueue, a Workload's LocalQueue and the ClusterQueue that it holds quota in. Nodes named by one object belong to
# one tree, even if the named objects do not exist yet, because watches may be late. Objects without nodes affect all
# trees: ResourceFlavors, Namespaces, AdmissionChecks, LimitRanges.


class CohortTrees:
    """The cohort trees by number, as sets of nodes (Cohorts, ClusterQueues, LocalQueues); trees can be merged."""

    def __init__(self) -> None:
        self._tree_by_node: dict[str, int] = {}
        self._nodes: dict[int, list[str]] = {}
        self._created_count = 0

    def join_nodes(self, nodes: Sequence[str]) -> tuple[int, Sequence[int]]:
        """Put nodes into one cohort tree; return the number of the tree and the numbers of trees merged into it."""
        trees = list(dict.fromkeys(self._tree_by_node[node] for node in nodes if node in self._tree_by_node))
        if not trees:
            self._created_count += 1
            trees = [self._created_count]
            self._nodes[self._created_count] = []
        resulting_tree, *merged_trees = sorted(trees, key=lambda tree: len(self._nodes[tree]), reverse=True)
        for merged_tree in merged_trees:
            self._assign_nodes(resulting_tree, self._nodes.pop(merged_tree))
        self._assign_nodes(resulting_tree, [node for node in nodes if node not in self._tree_by_node])
        return resulting_tree, merged_trees

    def remove_tree(self, tree: int) -> None:
        """Remove a cohort tree and all its nodes (Cohorts and queues)."""
        for node in self._nodes.pop(tree):
            del self._tree_by_node[node]

    def _assign_nodes(self, tree: int, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._tree_by_node[node] = tree
            self._nodes[tree].append(node)


def group_by_tree(events: Iterable[WatchEvent], trees: CohortTrees) -> dict[int, list[WatchEvent]]:
    """Group watch events by the number of their cohort tree; first merge in `trees` the trees that they connect.

    Events of objects that affect all trees, such as ResourceFlavors, are omitted.
    """
    events_with_nodes = [(event, nodes) for event in events if (nodes := tree_nodes_of(event.key, event.obj))]
    for _, nodes in events_with_nodes:
        trees.join_nodes(nodes)
    events_by_tree: dict[int, list[WatchEvent]] = {}
    for event, nodes in events_with_nodes:
        events_by_tree.setdefault(trees.join_nodes(nodes)[0], []).append(event)
    return events_by_tree


def tree_nodes_of(key: Key, obj: Obj) -> Sequence[str]:
    """Return the cohort tree nodes that an object defines or references, such as `queue/research`.

    Nodes are Cohorts, ClusterQueues and LocalQueues. The result is empty for an object that affects all trees, such as
    a ResourceFlavor.
    """
    spec = obj.get("spec") or {}
    match key.kind:
        case scheme.COHORT:
            return [f"cohort/{name}" for name in (key.name, spec.get("parentName")) if name]
        case scheme.CLUSTER_QUEUE:
            cohort_name = spec.get("cohortName")
            return [f"queue/{key.name}", *([f"cohort/{cohort_name}"] if cohort_name else [])]
        case scheme.LOCAL_QUEUE:
            return [f"local/{key.namespace}/{key.name}", f"queue/{spec['clusterQueue']}"]
        case scheme.WORKLOAD:
            queue = ((obj.get("status") or {}).get("admission") or {}).get("clusterQueue")
            return [f"local/{key.namespace}/{spec.get('queueName', '')}", *([f"queue/{queue}"] if queue else [])]
    return ()


def may_split_tree(event: WatchEvent) -> bool:
    """Return whether a watch event may have split a cohort tree in two."""
    if event.key.kind == scheme.WORKLOAD:
        return event.old is not None and event.old["spec"].get("queueName") != event.obj["spec"].get("queueName")
    if event.type is EventType.DELETED:
        return True
    return event.old is not None and not {*tree_nodes_of(event.key, event.old)} <= {
        *tree_nodes_of(event.key, event.obj)
    }


class ReplayCopy:
    """A pickled copy of a replay's state. Original and copies share watch events, Workload views and BlockedPeriods."""

    def __init__(self, original: DivergenceDetector) -> None:
        self._shared_objects: list[Any] = [NO_FLAVOR_ASSIGNMENT, SCAN_DONE]
        self._indexes = {id(each): index for index, each in enumerate(self._shared_objects)}
        pickle_buffer = io.BytesIO()
        pickler = pickle.Pickler(pickle_buffer, pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = self._index_of_shared_object  # type: ignore[method-assign]
        pickler.dump(original)
        self._bytes = pickle_buffer.getvalue()

    def restore(self) -> DivergenceDetector:
        """Return a new replay with the copied state."""
        unpickler = pickle.Unpickler(io.BytesIO(self._bytes))  # noqa: S301 - the pickle was written above
        unpickler.persistent_load = self._shared_objects.__getitem__  # type: ignore[method-assign]
        restored_replay: DivergenceDetector = unpickler.load()
        return restored_replay

    def _index_of_shared_object(self, value: Any) -> int | None:
        """Return the index of an object that the copy shares with the original; None if pickle must copy the object."""
        shared_index = self._indexes.get(id(value))
        if shared_index is None and isinstance(value, WorkloadView | WatchEvent | BlockedPeriods):
            shared_index = self._indexes[id(value)] = len(self._shared_objects)
            self._shared_objects.append(value)
        return shared_index


#: The minimum number of `observe` calls between two copies; the number of Workloads if that is greater.
COPY_INTERVAL_MIN: Final = 200
#: The maximum number of `observe` calls between two copies.
COPY_INTERVAL_MAX: Final = 20_000
#: After this number of failed attempts in a row, the follower tries fewer orders.
FAILED_ATTEMPTS_MAX: Final = 10
#: The number of copies that are kept.
BASES_MAX: Final = 3
#: The maximum number of batches replayed step by step, and of steps in other orders before both agree again.
STEPS_MAX: Final = 1000
REORDERED_STEPS_MAX: Final = 12


class ReplayBase(NamedTuple):
    """A copy of the replay's state before the event batch `batch_number`, from which other event orders are tried."""

    copy: ReplayCopy
    batch_number: int
    #: Whether it is the state after the initial list, when it is unknown which Workloads Kueue has tried.
    is_beginning: bool = False


class TrialStart(NamedTuple):
    """The start of a trial replay: a copied state, and the first batch of events that is replayed in another order."""

    base: ReplayBase
    batch_number: int
    #: Whether to assume that Kueue has tried all pending Workloads.
    has_tried_all: bool = False


class TreeFollower:
    """Compares Kueue's decisions in one cohort tree; keeps recent watch events and earlier states for replays."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        settings: ShadowSettings,
        report_divergence: Callable[[Divergence], None],
        has_arrived: Callable[[Instant], bool],
    ) -> None:
        """Create a follower without objects, which passes its findings to `report_divergence`.

        `has_arrived` returns whether the shadow has received all watch events up to a time.
        """
        self._settings = settings
        self._replay = DivergenceDetector(policy, settings)
        self._report = report_divergence
        self._has_arrived = has_arrived
        self._orders = replay_orders(settings.watch_skew_max)
        self._batches: list[EventBatch] = []
        #: The number of batches that are no longer in `_batches`.
        self._dropped_batches = 0
        #: States from which batches can be replayed, latest first.
        self._bases: deque[ReplayBase] = deque(maxlen=BASES_MAX)
        #: The numbers of the batches, since the latest base, before which both schedulers agreed.
        self._agreements: list[int] = []
        #: Whether the batches since the latest base were processed in another order than that of arrival.
        self._is_reordered = False
        #: The number of failed attempts in a row to find an order.
        self._failed_attempts = 0
        #: How often another order removed a divergence.
        self.vanished_divergence_count = 0
        #: The time of the next check if no watch event arrives earlier.
        self.check_at: Instant | None = None
        #: Whether a divergence is due and waits until all changes up to its time have arrived.
        self._is_overdue = False
        self._restart_replay_bases()

    @property
    def counts(self) -> ComparisonCounts:
        """The numbers of Kueue's decisions in this cohort tree that agreed, diverged or could not be compared."""
        return self._replay.counts

    @property
    def waiting_count(self) -> int:
        """The number of this cohort tree's watch events that batchyard's scheduler has not processed yet."""
        return len(self._replay.backlog.items)

    @property
    def uncompared_decision_count(self) -> int:
        """The number of Kueue's decisions in this cohort tree that are not compared yet."""
        return self._replay.backlog.uncompared_decision_count

    @property
    def reported_decisions(self) -> dict[str, Signature]:
        """The identities of batchyard's decisions that were reported because Kueue did not make them, by Workload."""
        return self._replay.reported_decisions

    @property
    def requeue_batch_period(self) -> Duration:
        """How long Kueue is assumed to collect changes before it requeues inadmissible Workloads."""
        return self._replay.requeue_batch_period

    @requeue_batch_period.setter
    def requeue_batch_period(self, requeue_batch_period: Duration) -> None:
        self._replay.requeue_batch_period = requeue_batch_period

    @property
    def agrees_with_kueue(self) -> bool:
        """Whether all watch events of this cohort tree are processed, and Kueue has made each decision of batchyard."""
        return self._replay.agrees_with_kueue

    def reset(self, events: Sequence[WatchEvent], missed_decisions: Mapping[str, Signature], now: Instant) -> None:
        """Restart the comparison from the current objects (`events`); existing quota reservations are not compared.

        `missed_decisions` are decisions of batchyard, by Workload, that were already reported as missing.
        """
        self._replay.reset(events, now)
        keys = [str(event.key) for event in events]
        self._replay.reported_decisions = {key: missed_decisions[key] for key in keys if key in missed_decisions}
        self._restart_replay_bases(is_beginning=True)
        self.check_at = now

    def current_object_events(self) -> list[WatchEvent]:
        """Return a watch event for each object of the tree, in the state that batchyard's scheduler processed last."""
        return _events_in_tree(self._replay.model.current_object_events())

    def take_over(self, other_follower: "TreeFollower", now: Instant) -> None:
        """Take over another cohort tree into this comparison: its current objects, then its pending watch events."""
        self._replay.reported_decisions |= other_follower.reported_decisions
        pending_events = [item.change.event for item in other_follower._replay.backlog.items.values()]
        self.observe([*other_follower.current_object_events(), *_events_in_tree(pending_events)], now)
        if other_follower.reported_decisions:
            self._restart_replay_bases()  # a replay from an older copy would report the missed decisions again

    def is_due(self, now: Instant) -> bool:
        """Return whether this cohort tree must be checked at `now` even without a new watch event."""
        return self._is_overdue or (self.check_at is not None and self.check_at <= now)

    def observe(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Process watch events (possibly none) in the order of arrival, and report overdue divergences."""
        self._batches.append(EventBatch(events, now))
        self._replay.add_events(events, now)
        self._replay.advance(now)
        while (
            self._replay.is_overdue
            and self._has_arrived(self._replay.overdue_since())
            and not self._try_other_orders(now)
        ):
            self._replay.report_divergence()
            self._replay.advance(now)
            self._restart_replay_bases()
        findings, self._replay.findings = self._replay.findings, []
        for finding in findings:
            self._report(finding)
        self._record_agreement()
        self.check_at, self._is_overdue = self._replay.next_check_at(), self._replay.is_overdue

    def _record_agreement(self) -> None:
        batch_number = self._dropped_batches + len(self._batches)
        batch_count = batch_number - self._bases[0].batch_number
        if self._replay.agrees_with_kueue:
            if self._is_reordered or batch_count >= max(COPY_INTERVAL_MIN, self._replay.workload_count):
                self._add_replay_base()
            else:
                self._agreements.append(batch_number)
        elif batch_count >= COPY_INTERVAL_MAX:
            self._add_replay_base()

    def _add_replay_base(self, *, is_beginning: bool = False) -> None:
        replay_base = ReplayBase(ReplayCopy(self._replay), self._dropped_batches + len(self._batches), is_beginning)
        self._bases.appendleft(replay_base)
        self._agreements, self._is_reordered = [], False
        first_number = self._bases[-1].batch_number
        self._batches, self._dropped_batches = self._batches[first_number - self._dropped_batches :], first_number

    def _restart_replay_bases(self, *, is_beginning: bool = False) -> None:
        self._bases.clear()
        self._add_replay_base(is_beginning=is_beginning)

    def _try_other_orders(self, now: Instant) -> bool:
        missing_signature = self._replay.overdue_signature()
        # If no order helps repeatedly, for example because settings differ, only one start is tried.
        start_count_max = 1 if self._failed_attempts >= FAILED_ATTEMPTS_MAX else None
        for start in islice(self._trial_starts(), start_count_max):
            for trial in self._run_trials(start):
                trial.advance(now)
                if not trial.is_overdue and (missing_signature is None or not trial.awaits_decision(missing_signature)):
                    trial.changes_first = False
                    trial.findings = self._replay.findings  # findings reported before are not reported again
                    self._replay = trial
                    self.vanished_divergence_count += 1
                    self._is_reordered = True
                    self._failed_attempts = 0
                    return True
        self._failed_attempts += 1
        return False

    def _run_trials(self, start: TrialStart) -> Iterator[DivergenceDetector]:
        batches = self._batches[start.batch_number - self._dropped_batches :]
        for period in dict.fromkeys((self._replay.requeue_batch_period, self._settings.requeue_batch_period, 0)):
            for order in self._orders:
                trial = self._create_trial(start, period)
                for group in arrange_batches(batches, order):
                    _apply_batches(trial, group, order)
                yield trial
            yield self._replay_lazily(self._create_trial(start, period), batches)
            if len(batches) <= STEPS_MAX:
                yield self._replay_in_steps(self._create_trial(start, period), batches)

    def _create_trial(self, start: TrialStart, requeue_batch_period: Duration) -> DivergenceDetector:
        base, batch_number, has_tried_all = start
        trial = base.copy.restore()
        trial.requeue_batch_period = requeue_batch_period
        if has_tried_all:
            trial.park_all_pending_workloads()
        for batch in self._batches[base.batch_number - self._dropped_batches : batch_number - self._dropped_batches]:
            trial.add_events(batch.events, batch.now)
            trial.advance(batch.now)
        return trial

    def _replay_lazily(self, trial: DivergenceDetector, batches: Sequence[EventBatch]) -> DivergenceDetector:
        """Replay watch events by resource version, with a scheduling cycle only where a decision of Kueue needs one.

        The number and times of Kueue's cycles are unknown. Cycles without a decision matter too, because a Workload
        that waits for its victims keeps its place as head. Changes further apart than `watch_skew_max` always have a
        cycle between them.
        """
        for group in group_by_revision(batches, self._settings.watch_skew_max):
            trial.is_lazy = True
            for batch in group:
                _apply_batches(trial, [batch], self._orders[0])
            trial.is_lazy = False
            trial.advance(group[-1].now)
        return trial

    def _replay_in_steps(self, trial: DivergenceDetector, batches: Sequence[EventBatch]) -> DivergenceDetector:
        """Replay watch events by resource version on `trial`, a copy of the detector; return the copy after the last.

        While the schedulers do not agree, the events since their last agreement are replayed again in other orders,
        until one order makes them agree.
        """
        agreed_copy, section_start = ReplayCopy(trial), 0
        replay_steps = list(split_after_decisions(batches))
        for position, step in enumerate(replay_steps):
            _apply_batches(trial, step, self._orders[0])
            orders = self._orders if position - section_start < REORDERED_STEPS_MAX else ()
            candidate_replays = (
                _replay_steps(agreed_copy, replay_steps[section_start : position + 1], order)
                for order in orders
                if not trial.agrees_with_kueue
            )
            trial = next((each for each in candidate_replays if each.agrees_with_kueue), trial)
            if trial.agrees_with_kueue:
                agreed_copy, section_start = ReplayCopy(trial), position + 1
        return trial

    def _trial_starts(self) -> Iterator[TrialStart]:
        """Yield the points from which to replay recent events in another order, in the order in which to try them.

        They are the last agreement of both schedulers, the last agreement more than a second before it, then each
        copied state, the latest first. A state after the initial list is tried twice (see `has_tried_all`).
        """
        latest_base = self._bases[0]
        agreements = [] if self._is_reordered else self._agreements
        if agreements:
            yield TrialStart(latest_base, agreements[-1])
            latest_time = self._batches[agreements[-1] - self._dropped_batches - 1].now - SECOND
            numbers = [each for each in agreements if self._batches[each - self._dropped_batches - 1].now < latest_time]
            if numbers:
                yield TrialStart(latest_base, numbers[-1])
        for base in self._bases:
            if base.batch_number < self._dropped_batches + len(self._batches):
                yield TrialStart(base, base.batch_number)
                if base.is_beginning:
                    yield TrialStart(base, base.batch_number, has_tried_all=True)


def _events_in_tree(events: Iterable[WatchEvent]) -> list[WatchEvent]:
    return [event for event in events if tree_nodes_of(event.key, event.obj)]


def _apply_batches(trial: DivergenceDetector, batches: Sequence[EventBatch], order: ReplayOrder) -> None:
    trial.changes_first = order.changes_first
    for events, at in batches:
        trial.add_events(events, at)
    trial.advance(batches[-1].now)


def _replay_steps(copy: ReplayCopy, steps: Sequence[Sequence[EventBatch]], order: ReplayOrder) -> DivergenceDetector:
    trial = copy.restore()
    for step in steps:
        for group in [step] if order.by_revision else [[batch] for batch in step]:
            _apply_batches(trial, group, order)
    return trial
