"""Scheduling cycle: takes the first pending Workload of each ClusterQueue (its head), and returns a decision for each.

    nominate   choose flavors and preemption targets for every head independently
    order      sort the entries (classically or by fair sharing)
    decide     in that order: admit what still fits, preempt where allowed, else give the reason for waiting

The snapshot includes the earlier decisions of the cycle. After the cycle, the snapshot is restored and the
caller applies the decisions. A cycle is deterministic and writes no objects. Source: Kueue's
pkg/scheduler/scheduler.go.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.scheduling import flavor_assigner, messages, quota, slices, topology_nomination
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.decisions import (
    DEFAULT_RULES,
    Admit,
    Decision,
    DecisionRules,
    Head,
    InadmissibleReason,
    Preempt,
    SecondPassOutcome,
    StayPending,
)
from batchyard.scheduling.fair_sharing.fair_order import EntryT, OrderableEntry, fair_order
from batchyard.scheduling.preemption.context import PreemptionTarget, config_of
from batchyard.scheduling.preemption.fair import BOTH_STRATEGIES, FairSharingStrategy
from batchyard.scheduling.preemption.preemptor import Preemptor
from batchyard.scheduling.snapshot import Snapshot, make_holder
from batchyard.topology.state import TopologyUsage

# The order in which a cycle decides about Workloads: earlier ones take quota before later ones.
#
# Classical order: less borrowing first, then higher priority, then longer waiting time, then uid. Source: Kueue's
# pkg/scheduler (classicalIterator).


def classical_order(entries: Sequence[EntryT], preemptors: Collection[str] = ()) -> Iterator[EntryT]:
    """Yield a cycle's Workloads in Kueue's order without fair sharing: less borrowing, higher priority, older first.

    The Workloads in `preemptors` (keys) come before all others.
    """
    ordered_entries = sorted(entries, key=_classical_sort_key)
    if preemptors:
        ordered_entries.sort(key=lambda entry: entry.workload.key not in preemptors)
    return iter(ordered_entries)


def _classical_sort_key(entry: OrderableEntry) -> tuple[int, int, int, str]:
    workload = entry.workload
    return entry.borrowing_height, -workload.priority, workload.queued, workload.uid


_WILL_FIT_MESSAGE: Final = (
    "Workload has overlapping preemption targets with another workload, but will fit after these preemptions complete"
)
_NO_VICTIMS: Final[Mapping[str, AdmittedWorkload]] = {}
_OVERLAPPING_TARGETS: Final = "Workload has overlapping preemption targets with another workload"
_NO_LONGER_FITS: Final = "Workload no longer fits after processing another workload"

# Enum members are bound once, because attribute access on an enum is expensive in this loop.
_MODE_NO_FIT: Final = quota.FlavorAssignmentMode.NO_FIT
_MODE_PREEMPT: Final = quota.FlavorAssignmentMode.PREEMPT
_MODE_DEFERRED_FIT: Final = quota.FlavorAssignmentMode.DEFERRED_FIT
_MODE_FIT: Final = quota.FlavorAssignmentMode.FIT
_REQUEUE_NO_FIT: Final = messages.RequeueReason.NO_FIT
_REQUEUE_NO_CANDIDATES: Final = messages.RequeueReason.PREEMPTION_NO_CANDIDATES


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """Scheduling settings that apply to all ClusterQueues: fair sharing, its strategies, and partial admission."""

    fair_sharing: bool = False
    #: The preemption strategies of fair sharing.
    preemption_strategies: tuple[FairSharingStrategy, ...] = BOTH_STRATEGIES
    #: The rules that depend on the version and the feature gates of Kueue.
    rules: DecisionRules = DEFAULT_RULES
    #: Whether Workloads may be admitted with fewer pods than their pod sets specify.
    partial_admission: bool = True

    @property
    def fair_strategies(self) -> tuple[FairSharingStrategy, ...]:
        """The fair sharing preemption strategies; empty if fair sharing is disabled."""
        return self.preemption_strategies if self.fair_sharing else ()

    def may_shrink(self, workload: WorkloadView) -> bool:
        """Return whether a Workload with `minCount` may be admitted with fewer pods than it requests.

        Of an elastic job, only a slice that replaces another may, also if the other was evicted, or a slice of a job
        that starts in part.
        """
        if workload.elastic:
            may_be_partial = bool(workload.replaced_slice) or slices.starts_in_part(workload)
            return self.rules.partial_scale_up and may_be_partial and slices.grows_in_part(workload)
        return self.partial_admission


@dataclass(slots=True)
class NominatedEntry:
    """A head (first pending Workload) of a ClusterQueue, with its flavor assignment and preemption targets."""

    head: Head
    workload: WorkloadView
    queue: ClusterQueue
    assignment: flavor_assigner.Assignment
    targets: list[PreemptionTarget]

    @property
    def borrowing_height(self) -> int:
        """The height of the highest cohort tree node that provides quota; 0 if only the ClusterQueue provides quota."""
        return self.assignment.borrowing_height

    @property
    def usage(self) -> quota.Usage:
        """The quota that the Workload would use if admitted."""
        return self.assignment.usage

    @property
    def is_given_up(self) -> bool:
        """Whether the Workload loses its quota because its pods have no place; only in the second pass."""
        return False

    def nominate_again(self, cycle: "Cycle") -> None:
        """Repeat the flavor assignment; the flavors may not change, but the topology domains may."""
        nominated_flavors = [{r: c.flavor for r, c in p.choices.items()} for p in self.assignment.pod_sets]
        self.assignment, self.targets = cycle.assign_flavors(self.workload, self.queue, None, nominated_flavors)


class WorkloadsWithQuota(Protocol):
    """Interface of the Workloads with quota that take part in a cycle: topology domains are searched for them."""

    @property
    def outcomes(self) -> Sequence[SecondPassOutcome]:
        """The decisions about these Workloads, after the cycle."""

    def nominate(self, pending_entries: Sequence[NominatedEntry]) -> Sequence[NominatedEntry]:
        """Return the entries of the Workloads with quota, given those of the pending Workloads."""

    def classical_order(self, entries: Sequence[NominatedEntry]) -> Iterator[NominatedEntry]:
        """Yield all entries of the cycle in the order without fair sharing."""

    def take_decisions(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        """Take the decisions about the Workloads with quota; return the others."""


@dataclass(slots=True)
class Cycle:
    """One scheduling cycle: decides, on a snapshot, about the first pending Workload of each ClusterQueue."""

    snapshot: Snapshot
    policy: SchedulingPolicy
    #: The labels of each Namespace that exists.
    namespaces: Mapping[str, Mapping[str, str]]
    number: int
    #: Keys of Workloads whose flavors were assigned again because earlier decisions preempt some of their targets.
    renominated_workloads: dict[str, None] = field(default_factory=dict)
    #: By ClusterQueue, the number of preemptions skipped in favor of other Workloads in this cycle.
    skipped_preemptions: dict[str, int] = field(default_factory=dict)
    #: With the rule `prioritizes_preemptors`, the keys of the heads that wait for their victims to stop.
    preemptors: frozenset[str] = frozenset()
    #: The Workloads with quota that take part to get topology domains; None without such Workloads.
    second_pass: WorkloadsWithQuota | None = None

    def run(self, heads: Sequence[Head]) -> list[Decision]:
        """Return a decision for each head (first pending Workload of a ClusterQueue).

        Heads that cannot be nominated come first, then the others in scheduling order.
        """
        self.snapshot.rebuild_if_changed()
        self.snapshot.preemption.protection_ends = {}
        if self.snapshot.topology.flavors:
            self.snapshot.topology.build()
        decisions: list[Decision] = []
        entries: list[NominatedEntry] = []
        for head in heads:
            pending_decision = self.nomination_obstacle(head)
            if pending_decision is None:
                entries.append(self.nominate_head(head))
            else:
                decisions.append(pending_decision)
        if self.second_pass is not None:
            entries = [*self.second_pass.nominate(entries), *entries]
        with self.snapshot.what_if():
            claimed_victims = ClaimedVictims(self.snapshot, is_strict=self.policy.rules.partial_preemption)
            decided = self.decide_entries(entries, claimed_victims)
        return [*decisions, *(decided if self.second_pass is None else self.second_pass.take_decisions(decided))]

    def decide_entries(
        self, entries: Sequence[NominatedEntry], claimed_victims: "ClaimedVictims"
    ) -> Sequence[Decision]:
        """Return the decisions for the entries, in the order of the cycle."""
        return [self.decide_entry(entry, claimed_victims) for entry in self._order_entries(entries)]

    def _order_entries(self, entries: Sequence[NominatedEntry]) -> Iterator[NominatedEntry]:
        if self.policy.fair_sharing:
            return fair_order(entries, self.snapshot, self.preemptors)
        if self.second_pass is not None:
            return self.second_pass.classical_order(entries)
        return classical_order(entries, self.preemptors)

    # Nomination.

    def nomination_obstacle(self, head: Head) -> Decision | None:
        """Return the decision for a head that cannot be nominated, such as one in an inactive queue; otherwise None."""
        queue, namespace = self.snapshot.queues.get(head.queue), head.workload.namespace
        labels = self.namespaces.get(namespace)
        requeue_reason = messages.RequeueReason.GENERIC
        if head.workload.has_failed_check:
            why = InadmissibleReason(messages.PENDING_EVALUATION, text="The workload has failed admission checks")
        elif queue is None:
            why = InadmissibleReason(messages.MISCONFIGURED, text=f"ClusterQueue {head.queue} not found")
        elif not queue.active or queue.is_in_cohort_cycle:
            why = InadmissibleReason(messages.SUSPENDED, text=f"ClusterQueue {head.queue} is inactive")
        elif labels is None:
            text = f'workload namespace "{namespace}" does not exist: Namespace "{namespace}" not found'
            why = InadmissibleReason(messages.MISCONFIGURED, text=text)
        elif queue.view.namespaces is None or not queue.view.namespaces.matches(labels):
            why, requeue_reason = (
                InadmissibleReason(messages.MISCONFIGURED, text=messages.NAMESPACE_MISMATCH),
                messages.RequeueReason.NAMESPACE_MISMATCH,
            )
        elif head.workload.over_limit:
            why = InadmissibleReason(messages.MISCONFIGURED, text=messages.over_limit_message(head.workload))
        elif head.workload.limit_range_violation:
            why = InadmissibleReason(messages.MISCONFIGURED, text=head.workload.limit_range_violation)
        else:
            return None
        return StayPending(head, why, requeue_reason, head.last_assignment)

    def nominate_head(self, head: Head) -> NominatedEntry:
        """Choose flavors and preemption targets for a head in the current snapshot."""
        queue = self.snapshot.queues[head.queue]
        assignment, targets = self.assign_flavors(head.workload, queue, head.last_assignment, ())
        return NominatedEntry(head, head.workload, queue, assignment, targets)

    def assign_flavors(
        self,
        workload: WorkloadView,
        queue: ClusterQueue,
        last_assignment: flavor_assigner.LastAssignment | None,
        nominated_flavors: flavor_assigner.NominatedFlavors,
    ) -> tuple[flavor_assigner.Assignment, list[PreemptionTarget]]:
        """Return the flavors of a Workload and its preemption targets; `nominated_flavors` may not change."""
        if last_assignment is not None and flavor_assigner.is_outdated(last_assignment, queue, self.number, workload):
            last_assignment = None
        is_fair_sharing = self.policy.fair_sharing
        preemptor = self.preemptor_for(workload, queue)
        preemption_oracle = preemptor.simulate_preemption if preemptor is not None else None
        assigner = flavor_assigner.FlavorAssigner(
            workload, queue, self.snapshot, preemption_oracle, last_assignment, is_fair_sharing, nominated_flavors
        )
        if workload.replaced_slice and self.policy.rules.elastic_jobs:
            assigner.replaced = slices.find_replaced_slice(workload, queue)
            assigner.keeps_unused_flavors = not self.policy.rules.changes_unused_flavors
        grows_in_part = self.policy.rules.partial_scale_up
        if queue.topology_flavors or (workload.requests_topology and self.snapshot.topology.is_enabled):
            return topology_nomination.TopologyNominator(
                workload, queue, self.snapshot, assigner, preemptor, self.policy.may_shrink(workload), grows_in_part
            ).nominate()
        assign = partial(_assign_with_counts, assigner, preemptor)
        full_result = assign(workload.counts)
        if assigner.replaced is not None:
            return slices.nominate_slice(workload, assigner.replaced, full_result, assign, is_partial=grows_in_part)
        may_shrink = workload.can_be_partially_admitted and self.policy.may_shrink(workload)
        if not may_shrink or slices.fits_or_has_targets(full_result):
            return full_result
        partial_result = flavor_assigner.search_pod_counts(workload.pod_sets, assign, slices.fits_or_has_targets)
        return partial_result or full_result

    def preemptor_for(self, workload: WorkloadView, queue: ClusterQueue) -> Preemptor | None:
        """Return what finds the victims of a Workload; None if its ClusterQueue does not preempt."""
        is_preemptor = queue.view.preemption.is_allowed
        if self.snapshot.preemption.configs:
            is_preemptor = is_preemptor or config_of(self.snapshot, queue) is not None
        if not is_preemptor:
            return None
        return Preemptor(workload, queue, self.snapshot, self.policy.fair_strategies, self.policy.rules)

    # Decision.

    def _no_fit_reason(self, assignment: flavor_assigner.Assignment) -> str:
        """Return the condition's reason if it does not follow from the tried flavors; otherwise ''.

        Since Kueue 0.20, a resource that no group covers counts even if flavors were tried for other resources.
        """
        has_uncovered_resource = self.policy.rules.is_current and assignment.has_uncovered_resource
        return messages.NO_MATCHING_FLAVOR if has_uncovered_resource else ""

    def decide_entry(self, entry: NominatedEntry, claimed_victims: "ClaimedVictims") -> Decision:
        """Return the decision for an entry after the earlier ones of the cycle; add its usage to the snapshot."""
        if entry.targets and claimed_victims.has_claimed_target(entry):
            self._nominate_again(entry, claimed_victims)
        elif (
            entry.assignment.topology_usage
            and self.snapshot.topology.rules.recomputes
            and claimed_victims.leaves_too_few_domains(entry)
        ):
            entry.nominate_again(self)
        assignment, head = entry.assignment, entry.head
        if assignment.mode is _MODE_NO_FIT or entry.is_given_up:
            why = InadmissibleReason(self._no_fit_reason(assignment), assignment)
            return StayPending(head, why, _REQUEUE_NO_FIT, self._last_assignment(entry))
        if assignment.mode is _MODE_PREEMPT and not entry.targets:
            self._reserve_quota(entry)
            why = InadmissibleReason(messages.WAITING_FOR_QUOTA, assignment)
            return StayPending(head, why, _REQUEUE_NO_CANDIDATES, self._last_assignment(entry))
        if assignment.mode is _MODE_PREEMPT and head.workload.preemption_gated and self.policy.rules.preemption_gates:
            why = InadmissibleReason(messages.ADMISSION_GATED, text=messages.PREEMPTION_GATED)
            return StayPending(head, why, messages.RequeueReason.PREEMPTION_GATED, self._last_assignment(entry))
        if assignment.mode is _MODE_DEFERRED_FIT:
            self._use(entry, entry.usage)
            why = InadmissibleReason(messages.WAITING_FOR_PREEMPTED_WORKLOADS, text=_WILL_FIT_MESSAGE)
            return StayPending(head, why, messages.RequeueReason.PENDING_PREEMPTION)
        if assignment.topology_usage and claimed_victims.has_claimed_target(entry):
            return self._skip_entry(entry, _OVERLAPPING_TARGETS)
        if not claimed_victims.leaves_room_for(entry):
            return self._skip_entry(entry)
        claimed_victims.claim_targets(entry)
        self._use(entry, entry.usage)
        targets, replaced = (entry.targets, None) if not entry.targets else slices.split_targets(entry.targets)
        if assignment.mode is _MODE_PREEMPT:
            message_suffix = f". Pending the preemption of {len(targets)} workload(s)"
            why = InadmissibleReason(messages.WAITING_FOR_PREEMPTED_WORKLOADS, assignment, suffix=message_suffix)
            return Preempt(head, entry.queue, tuple(targets), why)
        return Admit(head, entry.queue, assignment, replaced)

    def _use(self, entry: NominatedEntry, usage: quota.Usage) -> None:
        self.snapshot.add_usage_of(entry.workload, entry.queue, usage)
        if entry.assignment.topology_usage:
            self.snapshot.use_topology(entry.assignment.topology_usage)

    def _skip_entry(self, entry: NominatedEntry, message: str = _NO_LONGER_FITS) -> Decision:
        if entry.assignment.mode is _MODE_PREEMPT:
            self.skipped_preemptions[entry.queue.name] = self.skipped_preemptions.get(entry.queue.name, 0) + 1
        why = InadmissibleReason(messages.WAITING_FOR_QUOTA, text=message)
        last_assignment = self._last_assignment(entry)
        return StayPending(entry.head, why, messages.RequeueReason.FAILED_AFTER_NOMINATION, last_assignment)

    def _last_assignment(self, entry: NominatedEntry) -> flavor_assigner.LastAssignment | None:
        pod_sets = entry.assignment.pod_sets
        for pod_set in pod_sets:
            if pod_set.assigned_flavors.has_flavors_left:
                tried_indexes = tuple([p.assigned_flavors.tried for p in pod_sets])
                return flavor_assigner.LastAssignment(
                    tried_indexes, entry.queue.generation, self.number, entry.workload.shape
                )
        return None

    def _nominate_again(self, entry: NominatedEntry, claimed_victims: "ClaimedVictims") -> None:
        """Repeat a Workload's flavor assignment as if the victims of earlier decisions of this cycle were already gone.

        The flavors may not change. If the Workload then fits, it must wait until these victims have stopped.
        """
        self.renominated_workloads[entry.workload.key] = None
        with self.snapshot.what_if():
            for victim in claimed_victims.claimed_in_tree(entry).values():
                self.snapshot.remove_workload(victim)
            entry.nominate_again(self)
        if entry.assignment.mode is _MODE_FIT:
            entry.assignment.mode = _MODE_DEFERRED_FIT

    def _reserve_quota(self, entry: NominatedEntry) -> None:
        """Add a pending Workload's usage to the snapshot, so that later Workloads of the cycle cannot take this quota.

        This is called for a Workload that needs preemption to fit but has no preemption candidates.
        With `reclaimWithinCohort: Any` this is not necessary, because the queue can reclaim the quota by preemption;
        a prioritized preemptor, and one that minimal run times hinder, keep the quota nevertheless.
        """
        queue = entry.queue
        can_always_reclaim = (
            queue.view.preemption.reclaim_within_cohort == "Any"
            and queue.name not in self.snapshot.preemption.protection_ends
        )
        if can_always_reclaim and entry.workload.key not in self.preemptors:
            return
        node = queue.node
        reserved_usage = []
        for fr, amount in entry.usage:
            borrowing_limit = node.borrowing_limit.get(fr)
            if amount < 0 and entry.assignment.borrowing_height:
                reserved_usage.append((fr, amount))  # of a slice that releases quota
            elif entry.assignment.borrowing_height == 0:
                reserved_usage.append((fr, max(0, min(amount, node.subtree_quota[fr] - node.usage[fr]))))
            elif borrowing_limit is None:
                reserved_usage.append((fr, amount))
            else:
                reserved_usage.append(
                    (fr, max(0, min(amount, node.subtree_quota[fr] + borrowing_limit - node.usage[fr])))
                )
        self._use(entry, tuple(reserved_usage))


def _assign_with_counts(
    assigner: flavor_assigner.FlavorAssigner, preemptor: Preemptor | None, pod_counts: Sequence[int]
) -> tuple[flavor_assigner.Assignment, list[PreemptionTarget]]:
    assignment = assigner.assign(pod_counts)
    if preemptor is None or assignment.mode is not _MODE_PREEMPT:
        return assignment, []
    if assigner.replaced is not None:
        usage = slices.requested_difference(assigner.workload, assignment.pod_sets, assigner.replaced.pod_sets)
        return assignment, preemptor.targets_for_usage(usage, assignment.preempting_frs)
    return assignment, preemptor.targets_for(assignment)


class ClaimedVictims:
    """The Workloads that the earlier decisions of a cycle preempt, by cohort tree."""

    def __init__(self, snapshot: Snapshot, *, is_strict: bool = False) -> None:
        self._snapshot = snapshot
        #: In Kueue, a replaced slice releases its quota although its replacement uses only the difference. That lets a
        #: cycle exceed the quota; with `is_strict`, it does not.
        self._is_strict = is_strict
        self._replaced_keys: dict[str, None] = {}
        #: By the root of the cohort tree, then by Workload key.
        self._victims_by_root: dict[quota.QuotaNode, dict[str, AdmittedWorkload]] = {}
        self._all_victims: dict[str, AdmittedWorkload] = {}

    def claimed_in_tree(self, entry: NominatedEntry) -> Mapping[str, AdmittedWorkload]:
        """Return the victims in the cohort tree of an entry, by Workload key; with topologies, those of all trees."""
        if entry.queue.topology_flavors:
            return self._all_victims  # nodes are shared by all cohort trees
        return self._victims_by_root.get(entry.queue.node.path[0], _NO_VICTIMS)

    def has_claimed_target(self, entry: NominatedEntry) -> bool:
        """Return whether an earlier decision preempts a target of an entry."""
        claimed_victims = self.claimed_in_tree(entry)
        return bool(claimed_victims) and any(target.workload.key in claimed_victims for target in entry.targets)

    def claim_targets(self, entry: NominatedEntry) -> None:
        """Record the targets of an entry as victims."""
        if entry.targets:
            claimed_victims = self._victims_by_root.setdefault(entry.queue.node.path[0], {})
            claimed_victims.update({target.workload.key: target.workload for target in entry.targets})
            self._all_victims.update(claimed_victims)
            if self._is_strict:
                self._replaced_keys.update(slices.replaced_key(entry.targets))

    def leaves_room_for(self, entry: NominatedEntry) -> bool:
        """Return whether an entry fits once all victims and its own targets are gone."""
        node, claimed_victims = entry.queue.node, self.claimed_in_tree(entry)
        topology_usage = entry.assignment.topology_usage
        if not claimed_victims and not entry.targets and not topology_usage:
            return quota.has_room(node, entry.usage)
        with self._snapshot.what_if():
            self._release_victims(entry, claimed_victims)
            return quota.has_room(node, entry.usage) and (
                not topology_usage or self._snapshot.topology.fits(topology_usage)
            )

    def leaves_too_few_domains(self, entry: NominatedEntry) -> bool:
        """Return whether an entry fits in the quota, but no longer in its topology domains."""
        topology_usage = entry.assignment.topology_usage
        if not entry.targets and not self._all_victims:
            return quota.has_room(entry.queue.node, entry.usage) and not self._snapshot.topology.fits(topology_usage)
        with self._snapshot.what_if():
            self._release_victims(entry, self.claimed_in_tree(entry))
            return quota.has_room(entry.queue.node, entry.usage) and not self._snapshot.topology.fits(topology_usage)

    def _release_victims(self, entry: NominatedEntry, claimed_victims: Mapping[str, AdmittedWorkload]) -> None:
        own_victims = {target.workload.key: target.workload for target in entry.targets}
        kept_keys: Mapping[str, None] = (
            {**self._replaced_keys, **slices.replaced_key(entry.targets)} if self._is_strict else {}
        )
        for victim in {**claimed_victims, **own_victims}.values():
            if victim.key not in kept_keys:
                self._snapshot.release(victim)


# Detects Workloads that preempt each other endlessly within one instant.
#
# Some rules contradict each other: A may preempt B, B may preempt A, and nothing else changes. Kueue then loops
# endlessly. A cohort tree is checked after many consecutive cycles with preemption at one instant. If its Workloads
# hold the same quota as in an earlier cycle, all preemptions since then will repeat. With admission fair sharing, each
# repeated admission increases the usage of a LocalQueue, which may end the loop. Such a loop is followed for longer.


#: Cycles with preemption in a tree at one instant before loops are checked; ordinary chains are shorter.
CYCLES_UNCHECKED: Final = 16

#: Cycles with preemption in a tree at one instant before a loop in which usage increases counts as endless.
_CYCLES_WITH_USAGE_MAX: Final = 1_000

#: The Workloads with quota, each with its quota, the usage of its LocalQueue if that affects the order of victims, and
#: the usage of topology domains.
TreeHoldings: TypeAlias = tuple[tuple[str, quota.Usage, float, TopologyUsage], ...]


class PreemptionStep(NamedTuple):
    """One preemption in a loop: the keys of preemptor and victim, and the reason of the Preempted condition."""

    preemptor: str
    victim: str
    reason: str


@dataclass(frozen=True, slots=True)
class PreemptionLoop:
    """A detected loop: Workloads in one cohort tree that preempt each other endlessly."""

    #: When the loop was detected.
    at: Instant
    #: The id of the cohort tree, and the name of its root.
    tree: str
    root: str
    steps: tuple[PreemptionStep, ...]

    @property
    def message(self) -> str:
        """The log message that lists the preemptions of the loop."""
        preemptions = dict.fromkeys(f"{s.preemptor} preempts {s.victim} ({s.reason})" for s in self.steps)
        return (
            f"Workloads in the cohort of {self.root} preempt each other endlessly: {'; '.join(preemptions)};"
            " change their priorities, or the preemption policies of their ClusterQueues"
        )


class PreemptionLoopDetector:
    """Detects Workloads that preempt each other endlessly, from the preemptions of successive cycles at one instant."""

    def __init__(self) -> None:
        self._instant: Instant = -1
        self._cycle_counts: dict[str, int] = {}
        #: By tree: the hashes of the earlier holdings, which are large, and the index of the first step after each.
        self._step_index_by_holdings: dict[str, dict[int, int]] = {}
        self._steps_by_tree: dict[str, list[PreemptionStep]] = {}

    def find_loops(self, preemptions: Iterable[Preempt], snapshot: Snapshot, now: Instant) -> list[PreemptionLoop]:
        """Record a cycle's preemptions, and return the loops that they complete; `snapshot` is the state before them.

        In each cohort tree, the first CYCLES_UNCHECKED cycles with preemption at one instant are ignored.
        """
        if now != self._instant:
            self._instant = now
            self._cycle_counts, self._step_index_by_holdings, self._steps_by_tree = {}, {}, {}
        steps_by_tree: dict[str, tuple[quota.QuotaNode, list[PreemptionStep]]] = {}
        for preemption in preemptions:
            root = preemption.queue.node.path[0]
            steps = steps_by_tree.setdefault(preemption.queue.node.tree, (root, []))[1]
            preemptor = preemption.head.workload.key
            steps += [PreemptionStep(preemptor, target.workload.key, target.reason) for target in preemption.targets]
        return [
            loop
            for tree, (root, steps) in steps_by_tree.items()
            if (loop := self._check_tree(tree, root, steps, snapshot)) is not None
        ]

    def _check_tree(
        self, tree: str, root: quota.QuotaNode, new_steps: list[PreemptionStep], snapshot: Snapshot
    ) -> PreemptionLoop | None:
        self._cycle_counts[tree] = self._cycle_counts.get(tree, 0) + 1
        if self._cycle_counts[tree] <= CYCLES_UNCHECKED:
            return None
        past_steps = self._steps_by_tree.setdefault(tree, [])
        step_index_by_holdings = self._step_index_by_holdings.setdefault(tree, {})
        usage_of = snapshot.usage_of if self._cycle_counts[tree] <= _CYCLES_WITH_USAGE_MAX else None
        holdings = hash(_tree_holdings(root, snapshot, usage_of))
        first_step_index = step_index_by_holdings.get(holdings)
        if first_step_index is not None:
            return PreemptionLoop(self._instant, tree, root.name, tuple(past_steps[first_step_index:]))
        step_index_by_holdings[holdings] = len(past_steps)
        past_steps += new_steps
        return None


def _tree_holdings(root: quota.QuotaNode, snapshot: Snapshot, usage_of: Callable[[str], float] | None) -> TreeHoldings:
    return tuple(
        (
            workload.key,
            workload.usage,
            0.0 if usage_of is None else usage_of(workload.local_queue),
            workload.topology_usage,
        )
        for queue in snapshot.queues_below(root)
        for workload in sorted(queue.workloads.values(), key=lambda w: w.key)
    )


def holder_from_admission(decision: Admit, now: Instant, *, admitted: bool) -> AdmittedWorkload:
    """Return the AdmittedWorkload for an admission at `now`; `admitted` is False if checks are outstanding."""
    assigned_frs = frozenset([c.fr for p in decision.assignment.pod_sets for c in p.choices.values()])
    view, usage, pod_sets = decision.head.workload, decision.assignment.usage, decision.assignment.pod_sets
    if decision.replaced is not None:
        usage = slices.full_usage(pod_sets)
    holder = make_holder(view, decision.queue, usage, assigned_frs, reserved_at=now, is_admitted=admitted)
    holder.topology_usage = decision.assignment.topology_usage
    if view.elastic:
        holder.pod_sets = slices.admitted_pod_sets(pod_sets)
    return holder
