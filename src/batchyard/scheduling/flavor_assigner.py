"""Flavor assigner: selects a flavor for each requested resource; partial admission reduces the pod counts if needed.

The flavors of a resource group are tried in order. The quality of a flavor is that of its worst resource. The search
stops at a flavor that satisfies the queue's flavor fungibility; otherwise it returns the best flavor. A later search
resumes where this one stopped. Source: Kueue's pkg/scheduler/flavorassigner/flavorassigner.go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from batchyard.api.views.node import Requests, sort_requests
from batchyard.api.views.topology import TopologyAssignment
from batchyard.api.views.workload import PodSet, Shape, WorkloadView
from batchyard.scheduling import cluster_queue, slices
from batchyard.scheduling.messages import (
    NO_MATCHING_FLAVOR,
    TOPOLOGY_PLACEMENT_FAILED,
    PodSetReasons,
    RejectionReason,
    less_severe_reason,
    more_severe_reason,
)
from batchyard.scheduling.quota import (
    FIT,
    HOPELESS,
    NO_FIT,
    FlavorAssignmentMode,
    GranularMode,
    PreemptionPossibility,
    Usage,
    available,
    cached_available_amounts,
    is_better,
    lowest_fitting_height,
    should_try_next_flavor,
    worst_quality,
)
from batchyard.scheduling.snapshot import Snapshot
from batchyard.topology.state import TopologyUsage

# Flavor assignment: a flavor for each resource of each pod set, and how well it fits.


@dataclass(slots=True)
class PodSetAssignment:
    """The flavors assigned to one pod set, and the search results with the reasons for rejected flavors."""

    name: str
    count: int
    requests: Requests
    assigned_flavors: cluster_queue.FlavorAssignment
    #: The scanned resource groups; the search ends at a group without a suitable flavor.
    scans: tuple[cluster_queue.FlavorScan, ...]
    #: A requested resource that the ClusterQueue does not cover; '' if there is none.
    unavailable_resource: str
    #: The topology domains of the pods; None without topology-aware scheduling.
    topology: TopologyAssignment | None = None
    #: Why the pods do not fit in topology domains now; '' if they do.
    topology_reason: str = ""
    #: The flavor in whose topology the pods would not fit even without other Workloads; '' if they would.
    topology_failed_flavor: str = ""
    #: Why topology domains could not be searched; '' if they could.
    topology_error: str = ""
    #: Whether the topology domains are searched only when the AdmissionChecks are ready.
    is_topology_delayed: bool = False

    @property
    def choices(self) -> Mapping[str, cluster_queue.FlavorChoice]:
        """The flavor choice by resource; empty if some requested resource has no suitable flavor."""
        return self.assigned_flavors.choices

    @property
    def mode(self) -> FlavorAssignmentMode:
        """The worst assignment mode among the resources of the pod set."""
        return self.assigned_flavors.mode

    @property
    def rejections(self) -> tuple[RejectionReason, ...]:
        """Why flavors were rejected for the pod set.

        If a resource group has no suitable flavor, only the reasons of this group are returned. Otherwise, if the
        ClusterQueue does not cover a requested resource, only this reason is returned.
        """
        if self.scans and self.scans[-1].selected_assignment is cluster_queue.NO_FLAVOR_ASSIGNMENT:
            return tuple(self.scans[-1].rejections)
        if self.unavailable_resource:
            return (f"resource {self.unavailable_resource} unavailable in ClusterQueue",)
        rejections: list[RejectionReason] = [rejection for scan in self.scans for rejection in scan.rejections]
        return (*rejections, *filter(None, (self.topology_error, self.topology_reason)))

    @property
    def has_uncovered_resource(self) -> bool:
        """Whether the pod set does not fit because the ClusterQueue does not cover a requested resource."""
        is_group_unfit = self.scans and self.scans[-1].selected_assignment is cluster_queue.NO_FLAVOR_ASSIGNMENT
        return bool(self.unavailable_resource) and not is_group_unfit

    @property
    def attempts(self) -> tuple[cluster_queue.FlavorAttempt, ...]:
        """The results of the flavors tried for the pod set, except flavors that fit without borrowing."""
        return tuple([attempt for scan in self.scans for attempt in scan.attempts])

    @property
    def no_fit_reason(self) -> str:
        """Why the pod set does not fit: the most severe of the resource groups' reasons.

        The reason of a group is the mildest reason of its NO_FIT flavors. Without any reason, return NoMatchingFlavor.
        """
        reasons_by_group: dict[int, str] = {}
        for attempt in self.attempts:
            if attempt.possibility is PreemptionPossibility.NO_FIT:
                mildest_reason = reasons_by_group.get(attempt.group_number, attempt.no_fit_reason)
                reasons_by_group[attempt.group_number] = less_severe_reason(mildest_reason, attempt.no_fit_reason)
        if self.topology_failed_flavor:
            for scan in self.scans:
                if self.topology_failed_flavor in scan.group_request.group.flavors:
                    reasons_by_group[scan.group_request.group.number] = TOPOLOGY_PLACEMENT_FAILED
        most_severe_reason = ""
        for reason in reasons_by_group.values():
            most_severe_reason = more_severe_reason(most_severe_reason, reason)
        return most_severe_reason or NO_MATCHING_FLAVOR


class LastAssignment(NamedTuple):
    """The position at which a Workload's flavor search stopped, and the state for which the position is valid."""

    #: The index of the last considered flavor by pod set and resource, or SCAN_DONE.
    tried: tuple[Mapping[str, int], ...]
    queue_generation: int
    cycle_number: int
    shape: Shape

    def next_flavor_index(self, pod_set: int, resource: str) -> int:
        """Return the index of the flavor at which the search for a pod set's resource resumes; 0 if none is stored."""
        return self.tried[pod_set].get(resource, cluster_queue.SCAN_DONE) + 1 if pod_set < len(self.tried) else 0


@dataclass(slots=True)
class Assignment:
    """The flavors assigned to the pod sets of a Workload; the cycle may lower `mode` to DEFERRED_FIT."""

    pod_sets: list[PodSetAssignment]
    mode: FlavorAssignmentMode
    borrowing_height: int
    usage: Usage
    #: The usage of topology domains; empty without topology-aware scheduling.
    topology_usage: TopologyUsage = ()

    @property
    def pod_set_rejections(self) -> tuple[PodSetReasons, ...]:
        """The reasons why flavors were rejected, for each pod set that has any."""
        reasons = [PodSetReasons(each.name, each.rejections, each.topology_error) for each in self.pod_sets]
        return tuple([each for each in reasons if each.rejections])

    @property
    def no_fit_reason(self) -> str:
        """The most severe `no_fit_reason` of the pod sets in mode NO_FIT; '' if there is no such pod set."""
        most_severe_reason = ""
        for pod_set in self.pod_sets:
            if pod_set.mode is FlavorAssignmentMode.NO_FIT:
                most_severe_reason = more_severe_reason(most_severe_reason, pod_set.no_fit_reason)
        return most_severe_reason

    @property
    def has_uncovered_resource(self) -> bool:
        """Whether a pod set does not fit because the ClusterQueue does not cover a requested resource."""
        return any(pod_set.has_uncovered_resource for pod_set in self.pod_sets)

    @property
    def preempting_frs(self) -> tuple[int, ...]:
        """The ids of the flavor-resources whose quota must be freed by preemption."""
        return tuple(dict.fromkeys([fr for pod_set in self.pod_sets for fr in pod_set.assigned_flavors.preempting_frs]))


#: (flavor-resource id, amount, borrowing height) -> how preemption could free that amount.
PreemptionOracle: TypeAlias = Callable[[int, int, int], GranularMode]
#: The flavors of an earlier nomination that a repeated nomination must keep: by pod set, then by resource.
NominatedFlavors: TypeAlias = Sequence[Mapping[str, str]]

# Enum members are bound once, because attribute access on an enum is expensive in this loop.
_MODE_NO_FIT: Final = FlavorAssignmentMode.NO_FIT
_MODE_FIT: Final = FlavorAssignmentMode.FIT

_NO_USAGE: Final[Mapping[int, int]] = {}
_EXCLUDED_QUALITIES: Final = (NO_FIT,)


class FlavorMismatchFinder(Protocol):
    """Interface of a check of flavors in addition to those that depend only on the pod template."""

    def add_to(
        self, obstacles: Sequence[str], group: cluster_queue.FlavorGroup, pod_set_indexes: Sequence[int]
    ) -> Sequence[str]:
        """Return for each flavor of a resource group why the pod sets cannot use it; '' if they can."""


@dataclass(slots=True)
class FlavorAssigner:
    """The flavor search for one Workload; `assign()` may be called with different pod counts."""

    workload: WorkloadView
    queue: cluster_queue.ClusterQueue
    snapshot: Snapshot
    #: Returns how preemption could free quota; None if the queue does not preempt.
    oracle: PreemptionOracle | None
    last_assignment: LastAssignment | None
    fair_sharing: bool = False
    nominated_flavors: NominatedFlavors = ()
    #: The slice that the Workload replaces: only the difference to its usage is requested, in the same flavors.
    replaced: cluster_queue.AdmittedWorkload | None = None
    #: Whether a pod set also keeps the flavors of the replaced slice if it had no pods there.
    keeps_unused_flavors: bool = True
    #: Finds flavors whose topology does not suit the Workload; None without topology-aware scheduling.
    topology: FlavorMismatchFinder | None = None

    def assign(self, pod_counts: Sequence[int]) -> Assignment:
        """Return the flavor assignment for the given pod counts, one per pod set.

        The assignment ends after the first group of pod sets in which a pod set with resource requests does not fit.
        """
        if len(self.workload.pod_sets) == 1:  # the common case; no sums are needed
            assignment = self._assign_pod_set(0, pod_counts, ())
            return Assignment(
                [assignment],
                assignment.assigned_flavors.mode,
                assignment.assigned_flavors.borrowing_height,
                assignment.assigned_flavors.usage,
            )
        pod_sets: list[PodSetAssignment] = []
        usage: Usage = ()
        borrowing_height, mode = 0, _MODE_FIT
        for indexes in self.workload.pod_set_groups:
            if len(indexes) == 1:
                assigned_pod_sets = [self._assign_pod_set(indexes[0], pod_counts, usage)]
            else:
                assigned_pod_sets = self._assign_pod_set_group(indexes, pod_counts, usage)
            for pod_set in assigned_pod_sets:
                pod_sets.append(pod_set)
                flavors = pod_set.assigned_flavors
                usage = _add_usage(usage, flavors.usage) if usage else flavors.usage
                if flavors.borrowing_height > borrowing_height:
                    borrowing_height = flavors.borrowing_height
                if flavors.mode < mode:
                    mode = flavors.mode
            if mode is _MODE_NO_FIT and any(p.mode is _MODE_NO_FIT and p.requests for p in assigned_pod_sets):
                break
        return Assignment(pod_sets, mode if pod_sets else _MODE_NO_FIT, borrowing_height, usage)

    def all_qualities(
        self, group_request: cluster_queue.ResourceGroupRequest, usage: Usage
    ) -> list[Sequence[GranularMode]]:
        """Return for each flavor of a resource group how well each requested resource fits, in flavor order.
        The flavor search can stop before the last flavor; here all flavors are assessed. For a flavor that the pods
        cannot use, the result is one NO_FIT instead of one per resource. `usage` is the usage of the Workload's other
        pod sets.
        """
        total_usages = (
            [_add_assumed(dict(usage), requested) for requested in group_request.usages]
            if usage
            else group_request.usages
        )
        return list(
            self._iterate_qualities(total_usages, group_request.obstacles, 0, cached_available_amounts(self.queue.node))
        )

    def request_difference(
        self,
        pod_set_request: cluster_queue.PodSetRequest,
        replaced: cluster_queue.AdmittedWorkload,
        indexes: Sequence[int],
    ) -> cluster_queue.PodSetRequest:
        """Return the request of pod sets in addition to the usage of the replaced slice."""
        return slices.request_difference(
            pod_set_request, replaced.pod_sets, indexes, keeps_unused_flavors=self.keeps_unused_flavors
        )

    def _assign_pod_set(self, pod_set_index: int, pod_counts: Sequence[int], usage: Usage) -> PodSetAssignment:
        pod_set, pod_count = self.workload.pod_sets[pod_set_index], pod_counts[pod_set_index]
        pod_set_request = self.queue.coverage.split_pod_requests(pod_set.template, pod_count, self.snapshot.obstacles)
        if self.replaced is not None:
            pod_set_request = self.request_difference(pod_set_request, self.replaced, (pod_set_index,))
        flavor_scans = self._scan_groups(pod_set_request, (pod_set_index,), usage)
        assignment = _merge_assignments(pod_set_request, flavor_scans)
        return PodSetAssignment(
            pod_set.name,
            pod_count,
            pod_set_request.requests,
            assignment,
            flavor_scans,
            pod_set_request.unavailable_resource,
        )

    def _assign_pod_set_group(
        self, indexes: Sequence[int], pod_counts: Sequence[int], usage: Usage
    ) -> list[PodSetAssignment]:
        """Assign the same flavors to all pod sets of a group, as if they were one pod set."""
        coverage, obstacles = self.queue.coverage, self.snapshot.obstacles
        pod_sets = [self.workload.pod_sets[i] for i in indexes]
        requests = [
            coverage.split_pod_requests(p.template, pod_counts[i], obstacles)
            for i, p in zip(indexes, pod_sets, strict=True)
        ]
        total_requests, templates = (
            _sum_requests([pod_set_request.requests for pod_set_request in requests]),
            [p.template for p in pod_sets],
        )
        pod_set_group_request = coverage.split_requests(total_requests, templates, obstacles)
        if self.replaced is not None:
            pod_set_group_request = self.request_difference(pod_set_group_request, self.replaced, indexes)
        flavor_scans = self._scan_groups(pod_set_group_request, indexes, usage)
        assignment = _merge_assignments(pod_set_group_request, flavor_scans)
        return [
            PodSetAssignment(
                p.name,
                pod_counts[i],
                pod_set_request.requests,
                self._restrict_assignment(assignment, pod_set_request.requests, i),
                flavor_scans,
                pod_set_group_request.unavailable_resource,
            )
            for i, p, pod_set_request in zip(indexes, pod_sets, requests, strict=True)
        ]

    def _restrict_assignment(
        self, merged: cluster_queue.FlavorAssignment, requests: Requests, pod_set_index: int
    ) -> cluster_queue.FlavorAssignment:
        """Return the part of a pod set group's flavor assignment that concerns one of its pod sets.

        A pod set without requests gets the group's flavors that have a topology, as its pods need domains too.
        """
        topology_flavors = self.queue.topology_flavors
        if topology_flavors and not requests:
            topology_choices = {r: choice for r, choice in merged.choices.items() if choice.flavor in topology_flavors}
            if topology_choices:
                tried_indexes = {r: merged.tried[r] for r in topology_choices}
                return cluster_queue.make_flavor_assignment(topology_choices, (), tried_indexes, _MODE_FIT)
        choices = {r: merged.choices[r] for r, _ in requests if r in merged.choices}
        replaced_usage = {} if self.replaced is None else dict(self.replaced.pod_sets[pod_set_index].usage)
        usage = tuple([(choices[r].fr, amount - replaced_usage.get(r, 0)) for r, amount in requests if r in choices])
        tried_indexes = {r: merged.tried[r] for r in choices}
        mode = _MODE_FIT if merged.mode is _MODE_FIT else _MODE_NO_FIT
        return cluster_queue.make_flavor_assignment(choices, usage, tried_indexes, mode)

    def _scan_groups(
        self, pod_set_request: cluster_queue.PodSetRequest, pod_set_indexes: Sequence[int], usage: Usage
    ) -> tuple[cluster_queue.FlavorScan, ...]:
        flavor_scans = []
        for group in pod_set_request.groups:
            flavor_scan = self._scan_group(group, pod_set_indexes, usage)
            flavor_scans.append(flavor_scan)
            if flavor_scan.selected_assignment is cluster_queue.NO_FLAVOR_ASSIGNMENT:
                break
        return tuple(flavor_scans)

    def _scan_group(
        self, group_request: cluster_queue.ResourceGroupRequest, pod_set_indexes: Sequence[int], usage: Usage
    ) -> cluster_queue.FlavorScan:
        fungibility, node = self.queue.view.fungibility, self.queue.node
        base_usage = dict(usage) if usage else _NO_USAGE
        total_usages = (
            [_add_assumed(base_usage, requested) for requested in group_request.usages]
            if base_usage
            else group_request.usages
        )
        available = cached_available_amounts(node)
        obstacles: Sequence[str] = (
            self._flavor_obstacles(group_request, pod_set_indexes)
            if self.nominated_flavors
            else group_request.obstacles
        )
        if self.topology is not None:
            obstacles = self.topology.add_to(obstacles, group_request.group, pod_set_indexes)
        start = (
            0 if self.last_assignment is None else _start_index(self.last_assignment, group_request, pod_set_indexes)
        )
        qualities_by_flavor: list[Sequence[GranularMode]] = []
        best: Sequence[GranularMode] = ()
        previous_qualities: Sequence[GranularMode] = ()
        best_quality, best_index = NO_FIT, -1
        flavor_qualities = self._iterate_qualities(total_usages, obstacles, start, available)
        if group_request.mismatches:
            flavor_qualities = slices.reject_mismatches(flavor_qualities, obstacles, group_request.mismatches, start)
        for index, qualities in enumerate(flavor_qualities, start):
            if qualities == previous_qualities:  # no better than the previous flavor; stored once
                qualities_by_flavor.append(previous_qualities)
                continue
            qualities_by_flavor.append(qualities)
            previous_qualities = qualities
            quality = worst_quality(qualities, fungibility)
            should_try_next = should_try_next_flavor(quality, fungibility)
            if not should_try_next or is_better(quality, best_quality, fungibility):
                best, best_quality, best_index = qualities, quality, index
            if not should_try_next:
                break
        selection = (
            group_request.assignment_for(best_index, index, best) if best else cluster_queue.NO_FLAVOR_ASSIGNMENT
        )
        return cluster_queue.FlavorScan(
            group_request,
            obstacles,
            start,
            qualities_by_flavor,
            selection,
            base_usage,
            available,
            node.potential_quota,
            fungibility,
        )

    def _iterate_qualities(
        self, total_usages: Sequence[Usage], obstacles: Sequence[str], start: int, available_amounts: dict[int, int]
    ) -> Iterator[Sequence[GranularMode]]:
        """Yield, for each flavor from number `start` on, how well each requested resource fits (its GranularMode).

        A flavor with an obstacle, which the pods cannot use, yields a single NO_FIT. This is a generator so that
        attributes are looked up only once for all flavors.
        """
        node, oracle, may_preempt_borrowing = self.queue.node, self.oracle, self._may_preempt_while_borrowing()
        used, quota, potential_quota, borrowing_height = (
            node.usage,
            node.subtree_quota,
            node.potential_quota,
            node.borrowing_height,
        )
        may_reclaim = False  # the amount exceeds the own quota, and fits below the root
        for index in range(start, len(obstacles)):
            if obstacles[index]:
                yield _EXCLUDED_QUALITIES
                continue
            qualities = []
            for fr, total in total_usages[index]:
                height = 0 if used[fr] + total <= quota[fr] else borrowing_height
                if height is None:
                    height, may_reclaim = lowest_fitting_height(node, fr, total)
                try:
                    available_amount = available_amounts[fr]
                except KeyError:
                    available_amount = available_amounts[fr] = available(node, fr)
                if total <= available_amount or total <= 0:
                    qualities.append(FIT - height)
                elif total <= quota[fr] or (total <= potential_quota[fr] and (may_reclaim or may_preempt_borrowing)):
                    qualities.append(HOPELESS - height if oracle is None else oracle(fr, total, height))
                else:
                    qualities.append(NO_FIT - height if total <= potential_quota[fr] else NO_FIT)
            yield qualities

    def _flavor_obstacles(self, group_request: cluster_queue.ResourceGroupRequest, indexes: Sequence[int]) -> list[str]:
        nominated_flavors = [
            self.nominated_flavors[i].get(group_request.resource) for i in indexes if i < len(self.nominated_flavors)
        ]
        message_format = "skipping flavor {} as it is not found in the nomination mapping for resource {}"
        return [
            obstacle if flavor in nominated_flavors else message_format.format(flavor, group_request.resource)
            for flavor, obstacle in zip(group_request.group.flavors, group_request.obstacles, strict=True)
        ]

    def _may_preempt_while_borrowing(self) -> bool:
        preemption = self.queue.view.preemption
        return preemption.borrow_within_cohort or (self.fair_sharing and preemption.reclaim_within_cohort != "Never")


def _start_index(
    last_assignment: LastAssignment, group_request: cluster_queue.ResourceGroupRequest, indexes: Sequence[int]
) -> int:
    start_index = last_assignment.next_flavor_index(indexes[0], group_request.resource)
    return start_index if start_index < len(group_request.group.flavors) else 0


def _merge_assignments(
    pod_set_request: cluster_queue.PodSetRequest, scans: Sequence[cluster_queue.FlavorScan]
) -> cluster_queue.FlavorAssignment:
    if pod_set_request.unavailable_resource:
        return cluster_queue.NO_FLAVOR_ASSIGNMENT
    if len(scans) == 1 or (scans and scans[-1].selected_assignment is cluster_queue.NO_FLAVOR_ASSIGNMENT):
        return scans[-1].selected_assignment
    assignments = [scan.selected_assignment for scan in scans]
    choices = {resource: choice for assignment in assignments for resource, choice in assignment.choices.items()}
    tried_indexes = {resource: index for assignment in assignments for resource, index in assignment.tried.items()}
    return cluster_queue.make_flavor_assignment(
        choices, tuple([used for assignment in assignments for used in assignment.usage]), tried_indexes, _MODE_FIT
    )


def _add_assumed(assumed_usage: Mapping[int, int], usage: Usage) -> Usage:
    return tuple([(fr, assumed_usage.get(fr, 0) + amount) for fr, amount in usage])


def _add_usage(usage: Usage, added_usage: Usage) -> Usage:
    total_usage = dict(usage)
    for fr, amount in added_usage:
        total_usage[fr] = total_usage.get(fr, 0) + amount
    return tuple(total_usage.items())


def _sum_requests(requests: Sequence[Requests]) -> Requests:
    total_requests: dict[str, int] = {}
    for pod_set_requests in requests:
        for resource, amount in pod_set_requests:
            total_requests[resource] = total_requests.get(resource, 0) + amount
    return sort_requests(total_requests)


def is_outdated(
    last_assignment: LastAssignment, queue: cluster_queue.ClusterQueue, cycle_number: int, workload: WorkloadView
) -> bool:
    """Return whether the stored position of an earlier flavor search no longer applies, so the search starts over."""
    if last_assignment.shape != workload.shape:
        return True
    return cycle_number - last_assignment.cycle_number > 1 and queue.generation > last_assignment.queue_generation


# Finds the largest pod counts, between the minimum and the requested count, that fit.
#
# All pod sets shrink in proportion. A binary search finds the smallest reduction that fits.
# Source: Kueue's pkg/scheduler/flavorassigner/podset_reducer.go.


T = TypeVar("T")


def search_pod_counts(
    pod_sets: Sequence[PodSet], assign: Callable[[Sequence[int]], T], is_acceptable: Callable[[T], bool]
) -> T | None:
    """Return the `assign` result of the largest pod counts that fit, for partial admission.

    `assign` computes a result for pod counts, and `is_acceptable` reports whether the result fits. The return value is
    None if no counts fit, or if no pod set has a minimum count below its count.
    """
    max_reductions = [p.count - (p.count if p.min_count is None else p.min_count) for p in pod_sets]
    total = sum(max_reductions)
    if total == 0:
        return None
    lower, upper = 0, total + 1
    best_result: tuple[int, T] | None = None
    while lower < upper:
        middle = (lower + upper) // 2
        result = assign([p.count - delta * middle // total for p, delta in zip(pod_sets, max_reductions, strict=True)])
        if is_acceptable(result):
            best_result, upper = (middle, result), middle
        else:
            lower = middle + 1
    return best_result[1] if best_result is not None and best_result[0] == lower else None
