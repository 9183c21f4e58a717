"""Slices of elastic jobs: how the scheduler replaces the Workload of a running job by a Workload of another size.

A job that grows while it runs gets a second Workload, which names the first as the one that it replaces. While the
first holds quota in the same ClusterQueue, the second requests only the difference, in the same flavors. The first
counts as a preemption target without a reason. It keeps its quota until the second is admitted, and then finishes.
With partial scale-up, the second may get a part of the additional pods. Sources: Kueue's pkg/workloadslicing,
pkg/scheduler/scheduler.go (getInitialAssignments), pkg/scheduler/flavorassigner; KEP-12100.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from batchyard.api.meta import annotation
from batchyard.api.views.node import Requests
from batchyard.api.views.topology import TopologyAssignment
from batchyard.api.views.workload import AdmittedPodSet, WorkloadView, workload_view
from batchyard.api.well_known import PARTIAL_SCALE_UP, PARTIAL_START, SCALE_UP_STRATEGY
from batchyard.scheduling.cluster_queue import (
    AdmittedWorkload,
    ClusterQueue,
    FlavorChoice,
    PodSetRequest,
    ResourceGroupRequest,
)
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.quota import NO_FIT, FlavorAssignmentMode, GranularMode, Usage, borrowing_height_of

SLICE_REPLACED: Final = "WorkloadSliceReplaced"
#: The reason of the preemption target that stands for the replaced slice.
_NO_REASON: Final = ""


class AssignedPodSet(Protocol):
    """The interface of a pod set's flavor assignment that these functions read."""

    name: str
    count: int
    requests: Requests
    topology: TopologyAssignment | None

    @property
    def choices(self) -> Mapping[str, FlavorChoice]:
        """The flavor choice by resource."""


class SliceAssignment(Protocol):
    """The interface of a Workload's flavor assignment that these functions read."""

    @property
    def mode(self) -> FlavorAssignmentMode:
        """How well the assignment fits."""

    @property
    def pod_sets(self) -> Sequence[AssignedPodSet]:
        """The assignments of the pod sets."""


AssignmentT = TypeVar("AssignmentT", bound=SliceAssignment)


def replacement_message(uid: str, job_uid: str) -> str:
    """Return the message of a slice's Finished condition; the arguments are the uids of the new slice and its job."""
    return f"Replaced to accommodate a workload (UID: {uid}, JobUID: {job_uid}) due to workload slice aggregation"


def find_replaced_slice(workload: WorkloadView, queue: ClusterQueue) -> AdmittedWorkload | None:
    """Return the slice that a Workload replaces, if it holds quota in the Workload's ClusterQueue; otherwise None.

    A slice of another namespace, or with other pod sets, is never replaced. As in Kueue, the slice needs no annotation
    of an elastic job.
    """
    holder = queue.workloads.get(workload.replaced_slice)
    if holder is None or not holder.key.startswith(f"{workload.namespace}/"):
        return None
    if not holder.pod_sets and holder.obj is not None:
        holder.pod_sets = workload_view(holder.obj).admitted_pod_sets
    has_same_pod_sets = [p.name for p in holder.pod_sets] == [p.name for p in workload.pod_sets]
    return holder if has_same_pod_sets else None


def request_difference(
    pod_set_request: PodSetRequest,
    old_pod_sets: Sequence[AdmittedPodSet],
    pod_set_indexes: Sequence[int],
    *,
    keeps_unused_flavors: bool = True,
) -> PodSetRequest:
    """Return the request of pod sets, in quota, minus the usage of the same pod sets of the replaced slice.

    The amounts may be zero or negative. A flavor that differs from the flavor of the replaced slice gets a mismatch.
    Without `keeps_unused_flavors`, it does not if the pod set had no pods.
    """
    replaced = [old_pod_sets[index] for index in pod_set_indexes]
    if not keeps_unused_flavors:
        replaced = [each for each in replaced if each.pods]
    return pod_set_request._replace(groups=tuple([_subtract(group, replaced) for group in pod_set_request.groups]))


def _subtract(group_request: ResourceGroupRequest, old_pod_sets: Sequence[AdmittedPodSet]) -> ResourceGroupRequest:
    group = group_request.group
    difference = ResourceGroupRequest(group, group_request.resource, (), group_request.obstacles)
    difference.resources = group_request.resources
    usages, mismatches = [], []
    for flavor, usage in zip(group.flavors, group_request.usages, strict=True):
        pairs = [
            _difference_of_resource(resource, flavor, amount, old_pod_sets)
            for resource, (_, amount) in zip(group_request.resources, usage, strict=True)
        ]
        usages.append(tuple([(fr, amount) for (fr, _), (amount, _) in zip(usage, pairs, strict=True)]))
        mismatches.append(tuple([mismatch for _, mismatch in pairs]))
    difference.usages, difference.mismatches = tuple(usages), tuple(mismatches)
    return difference


def _difference_of_resource(
    resource: str, flavor: str, amount: int, old_pod_sets: Sequence[AdmittedPodSet]
) -> tuple[int, str]:
    for pod_set in old_pod_sets:
        old_flavor = pod_set.flavors.get(resource, "")
        if old_flavor != flavor:
            return amount, f"could not assign {flavor} flavor since the original workload is assigned: {old_flavor}"
        amount -= dict(pod_set.usage).get(resource, 0)
    return amount, ""


def with_mismatches_as_obstacles(pod_set_request: PodSetRequest) -> PodSetRequest:
    """Return the request with flavors that differ from those of the replaced slice as obstacles, for explanations."""
    groups = []
    for group_request in pod_set_request.groups:
        obstacles = [
            obstacle or next(filter(None, mismatches), "")
            for obstacle, mismatches in zip(group_request.obstacles, group_request.mismatches, strict=True)
        ]
        group = ResourceGroupRequest(group_request.group, group_request.resource, (), tuple(obstacles))
        group.resources, group.usages = group_request.resources, group_request.usages
        groups.append(group)
    return pod_set_request._replace(groups=tuple(groups))


def reject_mismatches(
    qualities_by_flavor: Iterator[Sequence[GranularMode]],
    obstacles: Sequence[str],
    mismatches: Sequence[Sequence[str]],
    start: int,
) -> Iterator[Sequence[GranularMode]]:
    """Yield the qualities of the flavors from index `start` on; resources of other flavors than before do not fit."""
    for index, qualities in enumerate(qualities_by_flavor, start):
        if obstacles[index] or not any(mismatches[index]):
            yield qualities
        else:
            pairs = zip(qualities, mismatches[index], strict=True)
            yield [NO_FIT - borrowing_height_of(quality) if mismatch else quality for quality, mismatch in pairs]


def requested_difference(
    workload: WorkloadView, assigned_pod_sets: Sequence[AssignedPodSet], old_pod_sets: Sequence[AdmittedPodSet]
) -> Usage:
    """Return the quota to free by preemption: the requests of the pods that the replaced slice does not have.

    A pod set that shrinks has negative amounts. As in Kueue, the resource `pods` is left out.
    """
    usage: dict[int, int] = {}
    for pod_set, old, assigned in zip(workload.pod_sets, old_pod_sets, assigned_pod_sets, strict=False):
        if not assigned.count:
            continue
        for resource, amount in pod_set.template.requests:
            difference = amount * (assigned.count - old.pods)
            if difference and resource in assigned.choices:
                fr = assigned.choices[resource].fr
                usage[fr] = usage.get(fr, 0) + difference
    return tuple(usage.items())


def nominate_slice(
    workload: WorkloadView,
    replaced: AdmittedWorkload,
    nomination: tuple[AssignmentT, list[PreemptionTarget]],
    assign: Callable[[Sequence[int]], tuple[AssignmentT, list[PreemptionTarget]]],
    *,
    is_partial: bool,
) -> tuple[AssignmentT, list[PreemptionTarget]]:
    """Return the nomination of a slice that replaces another, with the replaced slice as its first target.

    `nomination` is that for all pods. If it neither fits nor has targets, a slice that may grow in part (`is_partial`:
    the feature gate is on) gets the largest pod counts for which `assign` finds a nomination. They exceed those of the
    replaced slice in at least one pod set.
    """
    if is_partial and not fits_or_has_targets(nomination) and grows_in_part(workload):
        baselines = _baselines(workload, replaced)
        found = search_ordered_counts(
            [pod_set.count for pod_set in workload.pod_sets], baselines, assign, fits_or_has_targets
        )
        if found is not None and any(a.count > n for a, n in zip(found[0].pod_sets, baselines, strict=True)):
            nomination = found
    return nomination[0], with_replaced_slice(nomination[0].mode, nomination[1], replaced)


def grows_in_part(workload: WorkloadView) -> bool:
    """Return whether a slice may get a part of its additional pods, because its job has the strategy `partial`."""
    return workload.elastic and annotation(workload.obj, SCALE_UP_STRATEGY) == PARTIAL_SCALE_UP


def starts_in_part(workload: WorkloadView) -> bool:
    """Return whether a slice may be admitted with a part of its pods although it replaces no other slice."""
    return annotation(workload.obj, PARTIAL_START) == "true"


def _baselines(workload: WorkloadView, replaced: AdmittedWorkload) -> list[int]:
    """Return the smallest allowed number of pods of each pod set: its `minCount`, and the pods that it has now."""
    return [
        each.count if each.min_count is None else min(each.count, max(each.min_count, old.pods))
        for each, old in zip(workload.pod_sets, replaced.pod_sets, strict=True)
    ]


def fits_or_has_targets(nomination: tuple[AssignmentT, list[PreemptionTarget]]) -> bool:
    """Return whether an assignment fits, or victims were found that make room for it."""
    return nomination[0].mode is FlavorAssignmentMode.FIT or bool(nomination[1])


T = TypeVar("T")


def search_ordered_counts(
    targets: Sequence[int],
    baselines: Sequence[int],
    assign: Callable[[Sequence[int]], T],
    is_acceptable: Callable[[T], bool],
) -> T | None:
    """Return the `assign` result of the largest acceptable pod counts from `baselines` to `targets`; None without any.

    The pod sets shrink one after the other, the last one first. Then each, the first one first, grows again as far as
    possible: pod sets with other flavors may have been shrunk without need. Source: NewOrderedPodSetReducer in Kueue's
    pkg/scheduler/flavorassigner/podset_reducer.go.
    """
    total = sum(target - baseline for target, baseline in zip(targets, baselines, strict=True))
    if total == 0:
        return None
    lower, upper = 0, total + 1
    best_counts: list[int] = []
    best_result: T | None = None
    while lower < upper:
        middle = (lower + upper) // 2
        counts = _shrunk_counts(targets, baselines, middle)
        result = assign(counts)
        if is_acceptable(result):
            best_counts, best_result, upper = counts, result, middle
        else:
            lower = middle + 1
    if best_result is None:
        return None
    reduced = [i for i, count in enumerate(best_counts) if count < targets[i]]
    for index in reduced if len(reduced) > 1 else ():
        grown = _largest_growth(index, targets[index], best_counts, assign, is_acceptable)
        if grown is not None:
            best_counts, best_result = grown
    return best_result


def _shrunk_counts(targets: Sequence[int], baselines: Sequence[int], reduction: int) -> list[int]:
    counts = list(targets)
    for index in range(len(counts) - 1, -1, -1):
        cut = min(reduction, targets[index] - baselines[index])
        counts[index] -= cut
        reduction -= cut
    return counts


def _largest_growth(
    index: int,
    target: int,
    counts: Sequence[int],
    assign: Callable[[Sequence[int]], T],
    is_acceptable: Callable[[T], bool],
) -> tuple[list[int], T] | None:
    """Return the counts in which one pod set is as large as possible, and their result; None if it cannot grow."""
    grown: tuple[list[int], T] | None = None
    lower, upper = counts[index] + 1, target
    candidate = target  # most often, all pods fit
    while lower <= upper:
        trial = [candidate if i == index else count for i, count in enumerate(counts)]
        result = assign(trial)
        if is_acceptable(result):
            grown, lower = (trial, result), candidate + 1
        else:
            upper = candidate - 1
        candidate = (lower + upper) // 2
    return grown


def with_replaced_slice(
    mode: FlavorAssignmentMode, targets: list[PreemptionTarget], replaced: AdmittedWorkload
) -> list[PreemptionTarget]:
    """Return the preemption targets of a slice, with the slice that it replaces first; [] if it has to wait."""
    if mode is not FlavorAssignmentMode.FIT and not targets:
        return []
    return [PreemptionTarget(replaced, _NO_REASON), *targets]


def replaced_key(targets: Sequence[PreemptionTarget]) -> dict[str, None]:
    """Return the key of the replaced slice among preemption targets; {} if there is none."""
    return {targets[0].workload.key: None} if targets and targets[0].reason == _NO_REASON else {}


def split_targets(targets: Sequence[PreemptionTarget]) -> tuple[Sequence[PreemptionTarget], AdmittedWorkload | None]:
    """Return the Workloads to preempt, and the replaced slice, which finishes instead; None if there is none."""
    if targets[0].reason != _NO_REASON:
        return targets, None
    return targets[1:], targets[0].workload


def admitted_pod_sets(assigned_pod_sets: Sequence[AssignedPodSet]) -> tuple[AdmittedPodSet, ...]:
    """Return the pod sets of a slice as they are once its flavor assignment is written."""
    return tuple(
        [
            AdmittedPodSet(a.name, a.count, {r: c.flavor for r, c in a.choices.items()}, a.requests, a.topology)
            for a in assigned_pod_sets
        ]
    )


def full_usage(assigned_pod_sets: Sequence[AssignedPodSet]) -> Usage:
    """Return the usage of an admitted slice; its assignment has only the difference to the replaced slice."""
    usage: dict[int, int] = {}
    for assigned in assigned_pod_sets:
        requests = dict(assigned.requests)
        for resource, choice in assigned.choices.items():
            usage[choice.fr] = usage.get(choice.fr, 0) + requests.get(resource, 0)
    return tuple(usage.items())
