"""Flavor assigner: the search for a flavor for each resource of a resource group.

The flavors of a resource group are tried in order. A flavor is as good as its worst resource in the group. The search
stops at a flavor that is good enough for the queue's fungibility rules; otherwise the best one counts. A later search
resumes where this one stopped. Source: Kueue's pkg/scheduler/flavorassigner/flavorassigner.go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from batchyard.api.views.node import Requests, ordered
from batchyard.api.views.workload import PodSet, Shape, WorkloadView
from batchyard.scheduling.cluster_queue import (
    NO_FLAVOR_ASSIGNMENT,
    SCAN_DONE,
    ClusterQueue,
    FlavorAssignment,
    FlavorAttempt,
    FlavorChoice,
    FlavorScan,
    PodSetRequest,
    ResourceGroupRequest,
    make_flavor_assignment,
)
from batchyard.scheduling.messages import NO_MATCHING_FLAVOR, Fact, PodSetReasons, least_severe, most_severe
from batchyard.scheduling.quota import (
    FIT,
    HOPELESS,
    NO_FIT,
    FlavorAssignmentMode,
    GranularMode,
    PreemptionPossibility,
    Usage,
    available,
    is_better,
    known_available,
    lowest_fitting_height,
    should_try_next_flavor,
    worst,
)
from batchyard.scheduling.snapshot import Snapshot

# --- assignment ---
#
# Flavor assignment: a flavor for each resource of each pod set, and how well it fits.


@dataclass(slots=True)
class PodSetAssignment:
    """The flavors of one pod set, and why flavors were rejected."""

    name: str
    count: int
    requests: Requests
    pick: FlavorAssignment
    #: The scanned resource groups; one without a pick ended the search.
    scans: tuple[FlavorScan, ...]
    #: A resource that the ClusterQueue does not cover.
    unavailable: str

    @property
    def choices(self) -> Mapping[str, FlavorChoice]:
        """The flavors by resource."""
        return self.pick.choices

    @property
    def mode(self) -> FlavorAssignmentMode:
        """The mode of its worst resource."""
        return self.pick.mode

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The reasons against it."""
        if self.scans and self.scans[-1].pick is NO_FLAVOR_ASSIGNMENT:
            return tuple(self.scans[-1].facts)
        if self.unavailable:
            return (f"resource {self.unavailable} unavailable in ClusterQueue",)
        return tuple([fact for scan in self.scans for fact in scan.facts])

    @property
    def attempts(self) -> tuple[FlavorAttempt, ...]:
        """The results of all scanned flavors except those with free quota."""
        return tuple([attempt for scan in self.scans for attempt in scan.attempts])

    @property
    def no_fit_reason(self) -> str:
        """The reason why it does not fit: per resource group that of the nearest flavor, of all groups the worst."""
        by_group: dict[int, str] = {}
        for attempt in self.attempts:
            if attempt.possibility is PreemptionPossibility.NO_FIT:
                known = by_group.get(attempt.group, attempt.no_fit_reason)
                by_group[attempt.group] = least_severe(known, attempt.no_fit_reason)
        worst = ""
        for reason in by_group.values():
            worst = most_severe(worst, reason)
        return worst or NO_MATCHING_FLAVOR


class LastAssignment(NamedTuple):
    """How far an interrupted flavor search got, and what its validity depends on."""

    #: By pod set and resource, the last flavor considered, or SCAN_DONE.
    tried: tuple[Mapping[str, int], ...]
    generation: int
    cycle: int
    shape: Shape

    def next_flavor(self, pod_set: int, resource: str) -> int:
        """Return the flavor index at which to resume for a resource of a pod set."""
        return self.tried[pod_set].get(resource, SCAN_DONE) + 1 if pod_set < len(self.tried) else 0


@dataclass(slots=True)
class Assignment:
    """Flavors for a whole Workload. `mode` may be lowered to DEFERRED_FIT."""

    pod_sets: list[PodSetAssignment]
    mode: FlavorAssignmentMode
    borrow: int
    usage: Usage

    @property
    def pod_set_facts(self) -> tuple[PodSetReasons, ...]:
        """The reasons against it, by pod set."""
        return tuple([PodSetReasons(p.name, facts) for p in self.pod_sets if (facts := p.facts)])

    @property
    def no_fit_reason(self) -> str:
        """The reason for QuotaReserved=False if it does not fit."""
        worst = ""
        for pod_set in self.pod_sets:
            if pod_set.mode is FlavorAssignmentMode.NO_FIT:
                worst = most_severe(worst, pod_set.no_fit_reason)
        return worst

    @property
    def preempting(self) -> tuple[int, ...]:
        """The flavor-resources that need preemption."""
        return tuple(dict.fromkeys([fr for pod_set in self.pod_sets for fr in pod_set.pick.preempting]))


#: Returns how preemption could free an amount of a flavor-resource, given the height that it would be borrowed from.
Oracle: TypeAlias = Callable[[int, int, int], GranularMode]
#: The flavors of an earlier nomination, which the repeated one may not change: by pod set, by resource.
Nominated: TypeAlias = Sequence[Mapping[str, str]]

# Enum members are bound once, because attribute access on an enum is expensive in this loop.
_M_NO_FIT: Final = FlavorAssignmentMode.NO_FIT
_M_FIT: Final = FlavorAssignmentMode.FIT

_NOTHING: Final[Mapping[int, int]] = {}
_RULED_OUT: Final = (NO_FIT,)


@dataclass(slots=True)
class FlavorAssigner:
    """The flavor search for one Workload. `assign()` may be called for several pod counts."""

    workload: WorkloadView
    queue: ClusterQueue
    snapshot: Snapshot
    #: None if the queue does not preempt.
    oracle: Oracle | None
    last: LastAssignment | None
    fair_sharing: bool = False
    nominated: Nominated = ()

    def assign(self, counts: Sequence[int]) -> Assignment:
        """Return the assignment of all pod sets; it ends after the first pod set without a flavor."""
        if len(self.workload.pod_sets) == 1:  # the common case; there is nothing to sum up
            only = self._find(0, counts, ())
            return Assignment([only], only.pick.mode, only.pick.borrow, only.pick.usage)
        pod_sets: list[PodSetAssignment] = []
        usage: Usage = ()
        borrow, mode = 0, _M_FIT
        for members in self.workload.pod_set_groups:
            if len(members) == 1:
                found = [self._find(members[0], counts, usage)]
            else:
                found = self._find_together(members, counts, usage)
            for pod_set in found:
                pod_sets.append(pod_set)
                pick = pod_set.pick
                usage = _add(usage, pick.usage) if usage else pick.usage
                if pick.borrow > borrow:
                    borrow = pick.borrow
                if pick.mode < mode:
                    mode = pick.mode
            if mode is _M_NO_FIT and any(p.mode is _M_NO_FIT and p.requests for p in found):
                break
        return Assignment(pod_sets, mode if pod_sets else _M_NO_FIT, borrow, usage)

    def weighed(self, plan: ResourceGroupRequest, usage: Usage) -> list[Sequence[GranularMode]]:
        """Return for every flavor its quality for each resource, including flavors that the search would not reach.

        `usage` is that of the other pod sets of the Workload.
        """
        totals = [_on_top(dict(usage), wanted) for wanted in plan.usages] if usage else plan.usages
        return list(self._weighed(totals, plan.obstacles, 0, known_available(self.queue.node)))

    def _find(self, index: int, counts: Sequence[int], usage: Usage) -> PodSetAssignment:
        """Return the assignment of a single pod set."""
        pod_set, count = self.workload.pod_sets[index], counts[index]
        plan = self.queue.coverage.plan(pod_set.template, count, self.snapshot.obstacles)
        scans = self._search(plan, (index,), usage)
        return PodSetAssignment(pod_set.name, count, plan.requests, _joint(plan, scans), scans, plan.unavailable)

    def _find_together(self, members: Sequence[int], counts: Sequence[int], usage: Usage) -> list[PodSetAssignment]:
        """Return the assignments of pod sets that must get the same flavors."""
        coverage, obstacles = self.queue.coverage, self.snapshot.obstacles
        pod_sets = [self.workload.pod_sets[i] for i in members]
        plans = [coverage.plan(p.template, counts[i], obstacles) for i, p in zip(members, pod_sets, strict=True)]
        total, templates = _sum([plan.requests for plan in plans]), [p.template for p in pod_sets]
        common = coverage.plan_requests(total, templates, obstacles)
        scans = self._search(common, members, usage)
        pick = _joint(common, scans)
        return [
            PodSetAssignment(p.name, counts[i], plan.requests, _part(pick, plan.requests), scans, common.unavailable)
            for i, p, plan in zip(members, pod_sets, plans, strict=True)
        ]

    def _search(self, plan: PodSetRequest, members: Sequence[int], usage: Usage) -> tuple[FlavorScan, ...]:
        """Scan the groups, up to the first one without a suitable flavor."""
        scans = []
        for group in plan.groups:
            scan = self._scan(group, members, usage)
            scans.append(scan)
            if scan.pick is NO_FLAVOR_ASSIGNMENT:
                break
        return tuple(scans)

    def _scan(self, plan: ResourceGroupRequest, members: Sequence[int], usage: Usage) -> FlavorScan:
        """Scan the flavors of a resource group, and pick the best."""
        fungibility, node = self.queue.view.fungibility, self.queue.node
        assumed = dict(usage) if usage else _NOTHING
        totals = [_on_top(assumed, wanted) for wanted in plan.usages] if assumed else plan.usages
        free = known_available(node)
        obstacles = self._obstacles(plan, members) if self.nominated else plan.obstacles
        start = 0 if self.last is None else _start(self.last, plan, members)
        looks: list[Sequence[GranularMode]] = []
        best: Sequence[GranularMode] = ()
        last: Sequence[GranularMode] = ()
        best_quality, best_index = NO_FIT, -1
        for index, qualities in enumerate(self._weighed(totals, obstacles, start, free), start):
            if qualities == last:  # no better than the previous flavor; stored once
                looks.append(last)
                continue
            looks.append(qualities)
            last = qualities
            quality = worst(qualities, fungibility)
            continues = should_try_next_flavor(quality, fungibility)
            if not continues or is_better(quality, best_quality, fungibility):
                best, best_quality, best_index = qualities, quality, index
            if not continues:
                break
        pick = plan.pick(best_index, index, best) if best else NO_FLAVOR_ASSIGNMENT
        return FlavorScan(plan, obstacles, start, looks, pick, assumed, free, node.potential, fungibility)

    def _weighed(
        self, totals: Sequence[Usage], obstacles: Sequence[str], start: int, free: dict[int, int]
    ) -> Iterator[Sequence[GranularMode]]:
        """Yield for each flavor the quality for each resource; NO_FIT alone if the flavor is excluded.

        It is a generator so that its lookups are made once for all flavors.
        """
        node, oracle, while_borrowing = self.queue.node, self.oracle, self._may_preempt_while_borrowing()
        used, quota, potential, beyond = node.usage, node.subtree, node.potential, node.beyond
        may_reclaim = False  # exceeds its own quota, and fits below the root
        for index in range(start, len(obstacles)):
            if obstacles[index]:
                yield _RULED_OUT
                continue
            qualities = []
            for fr, total in totals[index]:
                height = 0 if used[fr] + total <= quota[fr] else beyond
                if height is None:
                    height, may_reclaim = lowest_fitting_height(node, fr, total)
                try:
                    left = free[fr]
                except KeyError:
                    left = free[fr] = available(node, fr)
                if total <= left or not total:
                    qualities.append(FIT - height)
                elif total <= quota[fr] or (total <= potential[fr] and (may_reclaim or while_borrowing)):
                    qualities.append(HOPELESS - height if oracle is None else oracle(fr, total, height))
                else:
                    qualities.append(NO_FIT - height if total <= potential[fr] else NO_FIT)
            yield qualities

    def _obstacles(self, plan: ResourceGroupRequest, members: Sequence[int]) -> list[str]:
        """Return why flavors are excluded regardless of quota if only nominated ones are allowed; '' if not."""
        nominated = [self.nominated[i].get(plan.resource) for i in members if i < len(self.nominated)]
        skipping = "skipping flavor {} as it is not found in the nomination mapping for resource {}"
        return [
            obstacle if flavor in nominated else skipping.format(flavor, plan.resource)
            for flavor, obstacle in zip(plan.group.flavors, plan.obstacles, strict=True)
        ]

    def _may_preempt_while_borrowing(self) -> bool:
        preemption = self.queue.view.preemption
        return preemption.borrow_within_cohort or (self.fair_sharing and preemption.reclaim_within_cohort != "Never")


def _start(last: LastAssignment, plan: ResourceGroupRequest, members: Sequence[int]) -> int:
    """Return the index of the flavor to resume at; the first, if the queue has lost flavors since."""
    start = last.next_flavor(members[0], plan.resource)
    return start if start < len(plan.group.flavors) else 0


def _joint(plan: PodSetRequest, scans: Sequence[FlavorScan]) -> FlavorAssignment:
    """Merge the picks of all groups into one; NO_PICK if one group has none."""
    if plan.unavailable:
        return NO_FLAVOR_ASSIGNMENT
    if len(scans) == 1 or (scans and scans[-1].pick is NO_FLAVOR_ASSIGNMENT):
        return scans[-1].pick
    picks = [scan.pick for scan in scans]
    choices = {resource: choice for pick in picks for resource, choice in pick.choices.items()}
    tried = {resource: index for pick in picks for resource, index in pick.tried.items()}
    return make_flavor_assignment(choices, tuple([used for pick in picks for used in pick.usage]), tried, _M_FIT)


def _part(pick: FlavorAssignment, requests: Requests) -> FlavorAssignment:
    """Return a pod set's part of a pick for several pod sets."""
    choices = {r: pick.choices[r] for r, _ in requests if r in pick.choices}
    usage = tuple([(choices[r].fr, amount) for r, amount in requests if r in choices])
    tried = {r: pick.tried[r] for r in choices}
    return make_flavor_assignment(choices, usage, tried, _M_FIT if pick.mode is _M_FIT else _M_NO_FIT)


def _on_top(assumed: Mapping[int, int], usage: Usage) -> Usage:
    """Add the assumed usage of the same flavor-resources to a usage."""
    return tuple([(fr, assumed.get(fr, 0) + amount) for fr, amount in usage])


def _add(usage: Usage, more: Usage) -> Usage:
    """Return the sum of both usages."""
    total = dict(usage)
    for fr, amount in more:
        total[fr] = total.get(fr, 0) + amount
    return tuple(total.items())


def _sum(requests: Sequence[Requests]) -> Requests:
    total: dict[str, int] = {}
    for one in requests:
        for resource, amount in one:
            total[resource] = total.get(resource, 0) + amount
    return ordered(total)


def is_outdated(last: LastAssignment, queue: ClusterQueue, cycle: int, workload: WorkloadView) -> bool:
    """Report whether an earlier search is outdated, so that the next one starts over."""
    if last.shape != workload.shape:
        return True
    return cycle - last.cycle > 1 and queue.generation > last.generation


# --- partial admission ---
#
# Finds the largest pod counts, between the minimum and the requested count, that fit.
#
# All pod sets shrink in proportion. A binary search finds the smallest reduction that fits.
# Source: Kueue's pkg/scheduler/flavorassigner/podset_reducer.go.


T = TypeVar("T")


def search_counts(
    pod_sets: Sequence[PodSet], attempt: Callable[[Sequence[int]], T], is_good: Callable[[T], bool]
) -> T | None:
    """Return the result of `attempt` for the smallest reduction for which it is good; None if there is none."""
    deltas = [p.count - (p.count if p.min_count is None else p.min_count) for p in pod_sets]
    total = sum(deltas)
    if total == 0:
        return None
    low, high = 0, total + 1
    good: tuple[int, T] | None = None
    while low < high:
        middle = (low + high) // 2
        found = attempt([p.count - delta * middle // total for p, delta in zip(pod_sets, deltas, strict=True)])
        if is_good(found):
            good, high = (middle, found), middle
        else:
            low = middle + 1
    return good[1] if good is not None and good[0] == low else None
