"""Scheduling cycle: takes heads, and returns a decision for each.

    nominate   choose flavors and preemption targets for every head, each as if it were alone
    order      sort the entries (ordering.py)
    decide     in that order: admit what still fits, preempt where allowed, give a reason for the rest

Decisions of one cycle see each other through the snapshot. After the cycle the snapshot is restored, and the caller
applies the decisions. Pure: the same input gives the same output.
Source: Kueue's pkg/scheduler/scheduler.go.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.decisions import Admit, Decision, Head, InadmissibleReason, Preempt, StayPending
from batchyard.scheduling.flavor_assigner import (
    Assignment,
    FlavorAssigner,
    LastAssignment,
    Nominated,
    is_outdated,
    search_counts,
)
from batchyard.scheduling.messages import (
    MISCONFIGURED,
    NAMESPACE_MISMATCH,
    PENDING_EVALUATION,
    SUSPENDED,
    WAITING_FOR_PREEMPTED_WORKLOADS,
    WAITING_FOR_QUOTA,
    RequeueReason,
)
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.preemption.fair import BOTH, FairSharingStrategy
from batchyard.scheduling.preemption.preemptor import Preemptor
from batchyard.scheduling.quota import FlavorAssignmentMode, QuotaNode, Share, Usage, compare, has_room, share_of
from batchyard.scheduling.snapshot import Snapshot

# --- ordering ---
#
# Order of the entries of a cycle: earlier entries take quota before later ones.
#
# Classical order: less borrowing first, then higher priority, then longer waiting time. With fair sharing: a
# tournament in each tree, level by level, won by the branch with the smallest share after admission. Ties are broken
# by uid, so the order is total. Sources: Kueue's pkg/scheduler (classicalIterator, fair_sharing_iterator).


class OrderableEntry(Protocol):
    """The part of an entry that ordering needs."""

    workload: WorkloadView
    queue: ClusterQueue

    @property
    def borrow(self) -> int:
        """The height in the cohort tree that its quota comes from."""

    @property
    def usage(self) -> Usage:
        """The quota that it uses."""


EntryT = TypeVar("EntryT", bound=OrderableEntry)


def classical_order(entries: Sequence[EntryT]) -> Iterator[EntryT]:
    """Yield the entries in classical order."""
    return iter(sorted(entries, key=_classical_key))


def _classical_key(entry: OrderableEntry) -> tuple[int, int, int, str]:
    workload = entry.workload
    return entry.borrow, -workload.priority, workload.queued, workload.uid


def fair_order(entries: Sequence[EntryT], snapshot: Snapshot) -> Iterator[EntryT]:
    """Yield the entries in fair sharing order, computed lazily from the snapshot with the previous winners' usage.

    Trees are independent; they are processed in order of their root's name.
    """
    trees: dict[str, list[EntryT]] = {}
    for entry in sorted(entries, key=lambda e: e.queue.name):
        trees.setdefault(entry.queue.node.path[0].name, []).append(entry)
    for name in sorted(trees):
        yield from _Tournament(trees[name], snapshot).winners()


class _Tournament(Generic[EntryT]):
    """One tree's entries, each with the share of every node on its path as if it were admitted."""

    def __init__(self, entries: Sequence[EntryT], snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._entries = {entry.queue.node: entry for entry in entries}
        self._shares: dict[QuotaNode, tuple[Share, ...]] = {}

    def winners(self) -> Iterator[EntryT]:
        """Yield the winner of each round until no entry is left."""
        while self._entries:
            for node, entry in self._entries.items():
                if node not in self._shares:
                    self._shares[node] = self._shares_with(entry)
            winner = self._play()
            node = winner.queue.node
            del self._entries[node]
            yield winner
            self._forget_around(node)

    def _shares_with(self, entry: EntryT) -> tuple[Share, ...]:
        """Return the shares of the nodes on an entry's path, root to queue, including its usage."""
        snapshot = self._snapshot
        with snapshot.what_if():
            snapshot.add_usage(entry.queue, entry.usage)
            return tuple(share_of(node, snapshot.names) for node in entry.queue.node.path)

    def _forget_around(self, node: QuotaNode) -> None:
        """Drop the shares of entries that have a node below the root in common with the winner."""
        branch = node.path[min(1, len(node.path) - 1)]
        self._shares = {other: s for other, s in self._shares.items() if branch not in other.path}

    def _play(self) -> EntryT:
        """Play each Cohort's round, deepest first, between its queues' entries and the winners of its child Cohorts."""
        by_depth: dict[int, dict[QuotaNode, list[EntryT]]] = {}
        for node, entry in self._entries.items():
            if node.parent is None:
                return entry
            by_depth.setdefault(len(node.path) - 1, {}).setdefault(node.parent, []).append(entry)
        for depth in range(max(by_depth), 1, -1):
            for cohort, contenders in by_depth.get(depth, {}).items():
                assert cohort.parent is not None
                best = self._best(contenders, depth)
                by_depth.setdefault(depth - 1, {}).setdefault(cohort.parent, []).append(best)
        (contenders,) = by_depth[1].values()
        return self._best(contenders, 1)

    def _best(self, contenders: Sequence[EntryT], level: int) -> EntryT:
        best = contenders[0]
        for contender in contenders[1:]:
            if self._beats(contender, best, level):
                best = contender
        return best

    def _beats(self, a: EntryT, b: EntryT, level: int) -> bool:
        """Report whether a precedes b in a Cohort: no borrowing of its request, smaller share, priority, age."""
        a_share, b_share = self._shares[a.queue.node][level], self._shares[b.queue.node][level]
        a_borrows, b_borrows = a_share.is_borrowing_on(a.usage), b_share.is_borrowing_on(b.usage)
        if a_borrows != b_borrows:
            return b_borrows
        relation = compare(a_share, b_share)
        return relation < 0 if relation else _turn(a) < _turn(b)


def _turn(entry: OrderableEntry) -> tuple[int, int, str]:
    workload = entry.workload
    return -workload.priority, workload.queued, workload.uid


_WILL_FIT: Final = (
    "Workload has overlapping preemption targets with another workload, but will fit after these preemptions complete"
)
_OVERLAP: Final = "Workload has overlapping preemption targets with another workload"
_NO_VICTIMS: Final[Mapping[str, AdmittedWorkload]] = {}
_NO_LONGER_FITS: Final = "Workload no longer fits after processing another workload"

# Enum members are bound once, because attribute access on an enum is expensive in this loop.
_M_NO_FIT: Final = FlavorAssignmentMode.NO_FIT
_M_PREEMPT: Final = FlavorAssignmentMode.PREEMPT
_M_DEFERRED_FIT: Final = FlavorAssignmentMode.DEFERRED_FIT
_M_FIT: Final = FlavorAssignmentMode.FIT
_R_NO_FIT: Final = RequeueReason.NO_FIT
_R_NO_CANDIDATES: Final = RequeueReason.PREEMPTION_NO_CANDIDATES


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """Scheduling settings of the platform that apply to all queues."""

    fair_sharing: bool = False
    #: The preemption strategies of fair sharing.
    strategies: tuple[FairSharingStrategy, ...] = BOTH

    @property
    def fair_strategies(self) -> tuple[FairSharingStrategy, ...]:
        """The preemption strategies; empty without fair sharing."""
        return self.strategies if self.fair_sharing else ()


@dataclass(slots=True)
class NominatedEntry:
    """A nominated head with its assignment and targets."""

    head: Head
    workload: WorkloadView
    queue: ClusterQueue
    assignment: Assignment
    targets: list[PreemptionTarget]

    @property
    def borrow(self) -> int:
        """The height in the cohort tree that its quota comes from."""
        return self.assignment.borrow

    @property
    def usage(self) -> Usage:
        """The quota that it uses."""
        return self.assignment.usage


@dataclass(slots=True)
class Cycle:
    """One cycle over one snapshot."""

    snapshot: Snapshot
    policy: SchedulingPolicy
    #: Labels by namespace; an absent namespace does not exist.
    namespaces: Mapping[str, Mapping[str, str]]
    number: int
    #: Keys of entries that were nominated again because other entries had claimed their targets.
    looked_again: dict[str, None] = field(default_factory=dict)
    #: By ClusterQueue, the number of entries whose preemption was skipped in favor of others in this cycle.
    skipped_preemptions: dict[str, int] = field(default_factory=dict)

    def run(self, heads: Sequence[Head]) -> list[Decision]:
        """Return a decision for each head, in the order of processing."""
        self.snapshot.settle()
        decisions: list[Decision] = []
        entries: list[NominatedEntry] = []
        for head in heads:
            obstacle = self._obstacle(head)
            if obstacle is None:
                entries.append(self._nominate(head))
            else:
                decisions.append(obstacle)
        with self.snapshot.what_if():
            victims = _Victims(self.snapshot)
            decisions += [self._decide(entry, victims) for entry in self._ordered(entries)]
        return decisions

    def _ordered(self, entries: Sequence[NominatedEntry]) -> Iterator[NominatedEntry]:
        return fair_order(entries, self.snapshot) if self.policy.fair_sharing else classical_order(entries)

    # Nomination.

    def _obstacle(self, head: Head) -> Decision | None:
        """Return the decision for a head that cannot be nominated."""
        queue, namespace = self.snapshot.queues.get(head.queue), head.workload.namespace
        labels = self.namespaces.get(namespace)
        requeue = RequeueReason.GENERIC
        if head.workload.has_failed_check:
            why = InadmissibleReason(PENDING_EVALUATION, text="The workload has failed admission checks")
        elif queue is None:
            why = InadmissibleReason(MISCONFIGURED, text=f"ClusterQueue {head.queue} not found")
        elif not queue.active or queue.in_cycle:
            why = InadmissibleReason(SUSPENDED, text=f"ClusterQueue {head.queue} is inactive")
        elif labels is None:
            text = f'workload namespace "{namespace}" does not exist: Namespace "{namespace}" not found'
            why = InadmissibleReason(MISCONFIGURED, text=text)
        elif queue.view.namespaces is None or not queue.view.namespaces.matches(labels):
            why, requeue = InadmissibleReason(MISCONFIGURED, text=NAMESPACE_MISMATCH), RequeueReason.NAMESPACE_MISMATCH
        elif head.workload.over_limit:
            why = InadmissibleReason(MISCONFIGURED, text=_over_limit(head.workload))
        elif head.workload.out_of_bounds:
            why = InadmissibleReason(MISCONFIGURED, text=head.workload.out_of_bounds)
        else:
            return None
        return StayPending(head, why, requeue, head.last)

    def _nominate(self, head: Head) -> NominatedEntry:
        queue = self.snapshot.queues[head.queue]
        assignment, targets = self._assign(head.workload, queue, head.last, ())
        return NominatedEntry(head, head.workload, queue, assignment, targets)

    def _assign(
        self, workload: WorkloadView, queue: ClusterQueue, last: LastAssignment | None, nominated: Nominated
    ) -> tuple[Assignment, list[PreemptionTarget]]:
        """Return flavors and targets. If not all pods fit, try partial admission where the Workload allows it."""
        if last is not None and is_outdated(last, queue, self.number, workload):
            last = None
        fair = self.policy.fair_sharing
        may_preempt = queue.view.preemption.is_allowed
        victims = Preemptor(workload, queue, self.snapshot, self.policy.fair_strategies) if may_preempt else None
        oracle = victims.oracle if victims is not None else None
        search = FlavorAssigner(workload, queue, self.snapshot, oracle, last, fair, nominated)

        found = _attempt(search, victims, workload.counts)
        if _is_good(found) or not workload.can_be_partially_admitted:
            return found
        return search_counts(workload.pod_sets, partial(_attempt, search, victims), _is_good) or found

    # Decision.

    def _decide(self, entry: NominatedEntry, victims: "_Victims") -> Decision:
        """Admit if it fits now, preempt if targets free enough quota, else wait with the exact reason."""
        if entry.targets and victims.overlap(entry):
            self._look_again(entry, victims)
        assignment, head = entry.assignment, entry.head
        if assignment.mode is _M_NO_FIT:
            why = InadmissibleReason("", assignment)
            return StayPending(head, why, _R_NO_FIT, self._tried(entry))
        if assignment.mode is _M_PREEMPT and not entry.targets:
            self._reserve(entry)
            why = InadmissibleReason(WAITING_FOR_QUOTA, assignment)
            return StayPending(head, why, _R_NO_CANDIDATES, self._tried(entry))
        if assignment.mode is _M_DEFERRED_FIT:
            self.snapshot.add_usage(entry.queue, entry.usage)
            why = InadmissibleReason(WAITING_FOR_PREEMPTED_WORKLOADS, text=_WILL_FIT)
            return StayPending(head, why, RequeueReason.PENDING_PREEMPTION)
        if entry.targets and victims.overlap(entry):
            return self._skip(entry, _OVERLAP)
        if not victims.leave_room_for(entry):
            return self._skip(entry, _NO_LONGER_FITS)
        victims.claim(entry)
        self.snapshot.add_usage(entry.queue, entry.usage)
        if assignment.mode is _M_PREEMPT:
            after = f". Pending the preemption of {len(entry.targets)} workload(s)"
            why = InadmissibleReason(WAITING_FOR_PREEMPTED_WORKLOADS, assignment, after=after)
            return Preempt(head, entry.queue, tuple(entry.targets), why)
        return Admit(head, entry.queue, assignment)

    def _skip(self, entry: NominatedEntry, text: str) -> Decision:
        if entry.assignment.mode is _M_PREEMPT:
            self.skipped_preemptions[entry.queue.name] = self.skipped_preemptions.get(entry.queue.name, 0) + 1
        why = InadmissibleReason(WAITING_FOR_QUOTA, text=text)
        return StayPending(entry.head, why, RequeueReason.FAILED_AFTER_NOMINATION, self._tried(entry))

    def _tried(self, entry: NominatedEntry) -> LastAssignment | None:
        """Return how far the flavor search got, so that the next one resumes there; None if it starts over."""
        pod_sets = entry.assignment.pod_sets
        for pod_set in pod_sets:
            if pod_set.pick.has_flavors_left:
                tried = tuple([p.pick.tried for p in pod_sets])
                return LastAssignment(tried, entry.queue.generation, self.number, entry.workload.shape)
        return None

    def _look_again(self, entry: NominatedEntry, victims: "_Victims") -> None:
        """Nominate an entry again as if the victims claimed by others were gone, because it needs one of them.

        It may not change flavors. If it then fits, it has to wait until they are gone.
        """
        self.looked_again[entry.workload.key] = None
        nominated = [{r: c.flavor for r, c in p.choices.items()} for p in entry.assignment.pod_sets]
        with self.snapshot.what_if():
            for victim in victims.claimed_near(entry).values():
                self.snapshot.remove_workload(victim)
            entry.assignment, entry.targets = self._assign(entry.workload, entry.queue, None, nominated)
        if entry.assignment.mode is _M_FIT:
            entry.assignment.mode = _M_DEFERRED_FIT

    def _reserve(self, entry: NominatedEntry) -> None:
        """Reserve quota for a head that cannot reclaim it later by preemption, so that other entries do not take it."""
        queue = entry.queue
        if queue.view.preemption.reclaim_within_cohort == "Any":
            return
        node = queue.node
        reserved = []
        for fr, amount in entry.usage:
            limit = node.borrowing_limit.get(fr)
            if entry.assignment.borrow == 0:
                reserved.append((fr, max(0, min(amount, node.subtree[fr] - node.usage[fr]))))
            elif limit is None:
                reserved.append((fr, amount))
            else:
                reserved.append((fr, max(0, min(amount, node.subtree[fr] + limit - node.usage[fr]))))
        self.snapshot.add_usage(queue, tuple(reserved))


def _attempt(
    search: FlavorAssigner, victims: Preemptor | None, counts: Sequence[int]
) -> tuple[Assignment, list[PreemptionTarget]]:
    """Return flavors and targets for these pod counts."""
    assignment = search.assign(counts)
    if victims is None or assignment.mode is not _M_PREEMPT:
        return assignment, []
    return assignment, victims.targets_for(assignment)


def _is_good(found: tuple[Assignment, list[PreemptionTarget]]) -> bool:
    """Report whether it fits, now or once the victims are gone."""
    assignment, targets = found
    return assignment.mode is _M_FIT or bool(targets)


class _Victims:
    """The victims claimed by the entries decided so far. Trees are independent of each other."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        #: By the root of the tree.
        self._claimed: dict[QuotaNode, dict[str, AdmittedWorkload]] = {}

    def claimed_near(self, entry: NominatedEntry) -> Mapping[str, AdmittedWorkload]:
        """Return the victims claimed in the entry's tree."""
        return self._claimed.get(entry.queue.node.path[0], _NO_VICTIMS)

    def overlap(self, entry: NominatedEntry) -> bool:
        """Report whether one of its targets is already claimed."""
        claimed = self.claimed_near(entry)
        return bool(claimed) and any(target.workload.key in claimed for target in entry.targets)

    def claim(self, entry: NominatedEntry) -> None:
        """Claim its targets."""
        if entry.targets:
            claimed = self._claimed.setdefault(entry.queue.node.path[0], {})
            claimed.update({target.workload.key: target.workload for target in entry.targets})

    def leave_room_for(self, entry: NominatedEntry) -> bool:
        """Report whether the entry fits once all claimed victims and its own targets are gone."""
        node, claimed = entry.queue.node, self.claimed_near(entry)
        if not claimed and not entry.targets:
            return has_room(node, entry.usage)
        own = {target.workload.key: target.workload for target in entry.targets}
        with self._snapshot.what_if():
            for victim in {**claimed, **own}.values():
                self._snapshot.remove_usage(victim.queue, victim.usage)
            return has_room(node, entry.usage)


def _over_limit(workload: WorkloadView) -> str:
    """Describe requests above their limits, in Kueue's words."""
    faults = [
        f"spec.podSets[{index}].template.spec.{place}: Invalid value: [{names}]: requests must not exceed its limits"
        for index, pod_set in enumerate(workload.pod_sets)
        for place, resources in pod_set.template.over_limit
        for names in (",".join(f'"{name}"' for name in resources),)
    ]
    return f"resources validation failed: {faults[0] if len(faults) == 1 else '[' + ', '.join(faults) + ']'}"


# --- preemption loops ---
#
# Detects Workloads that preempt each other endlessly within one instant.
#
# Some rules contradict each other: A may preempt B, B may preempt A, and nothing else changes. Upstream then spins
# endlessly. A tree is watched after many consecutive cycles with preemption in it at the same time. If its Workloads
# hold the same quota as some cycles before, all preemptions since then will repeat.


#: Cycles with preemption in a tree within an instant before it is watched; ordinary chains are shorter.
CYCLES_UNWATCHED: Final = 16

Holdings: TypeAlias = tuple[tuple[str, Usage], ...]


class PreemptionStep(NamedTuple):
    """One preemption of a loop: preemptor, victim and reason."""

    preemptor: str
    victim: str
    reason: str


@dataclass(frozen=True, slots=True)
class PreemptionLoop:
    """Workloads that preempt each other endlessly."""

    at: Instant
    #: The tree, and the name of its root.
    tree: str
    root: str
    steps: tuple[PreemptionStep, ...]

    @property
    def message(self) -> str:
        """Describe the preemptions of the loop."""
        who = dict.fromkeys(f"{s.preemptor} preempts {s.victim} ({s.reason})" for s in self.steps)
        return f"in the cohort of {self.root}, without end: {'; '.join(who)}"


class PreemptionLoopDetector:
    """The preemptions by tree within the current instant."""

    def __init__(self) -> None:
        self._at: Instant = -1
        self._cycles: dict[str, int] = {}
        self._seen: dict[str, dict[Holdings, int]] = {}
        self._steps: dict[str, list[PreemptionStep]] = {}

    def look(self, preemptions: Iterable[Preempt], snapshot: Snapshot, now: Instant) -> list[PreemptionLoop]:
        """Return the loops that these preemptions close; the snapshot is that before them."""
        if now != self._at:
            self._at = now
            self._cycles, self._seen, self._steps = {}, {}, {}
        by_root: dict[str, tuple[QuotaNode, list[PreemptionStep]]] = {}
        for preemption in preemptions:
            root = preemption.queue.node.path[0]
            steps = by_root.setdefault(preemption.queue.node.tree, (root, []))[1]
            who = preemption.head.workload.key
            steps += [PreemptionStep(who, target.workload.key, target.reason) for target in preemption.targets]
        return [
            loop
            for tree, (root, steps) in by_root.items()
            if (loop := self._look_at(tree, root, steps, snapshot)) is not None
        ]

    def _look_at(
        self, tree: str, root: QuotaNode, steps: list[PreemptionStep], snapshot: Snapshot
    ) -> PreemptionLoop | None:
        self._cycles[tree] = self._cycles.get(tree, 0) + 1
        if self._cycles[tree] <= CYCLES_UNWATCHED:
            return None
        done = self._steps.setdefault(tree, [])
        seen = self._seen.setdefault(tree, {})
        holdings = _holdings(root, snapshot)
        since = seen.get(holdings)
        if since is not None:
            return PreemptionLoop(self._at, tree, root.name, tuple(done[since:]))
        seen[holdings] = len(done)
        done += steps
        return None


def _holdings(root: QuotaNode, snapshot: Snapshot) -> Holdings:
    """Return the quota holders of a tree."""
    return tuple(
        (workload.key, workload.usage)
        for queue in snapshot.queues_below(root)
        for workload in sorted(queue.workloads.values(), key=lambda w: w.key)
    )
