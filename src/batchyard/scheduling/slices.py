"""Slices of elastic jobs: how the scheduler replaces the Workload of a running job by a Workload of another size.

A job that grows while it runs gets a second Workload, which names the first as the one that it replaces. While the
first holds quota in the same ClusterQueue, the second requests only the difference, in the same flavors. The first
counts as a preemption target without a reason. It keeps its quota until the second is admitted, and then finishes.
Sources: Kueue's pkg/workloadslicing, pkg/scheduler/scheduler.go (getInitialAssignments), pkg/scheduler/flavorassigner.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from batchyard.api.views.node import Requests
from batchyard.api.views.topology import TopologyAssignment
from batchyard.api.views.workload import AdmittedPodSet, WorkloadView
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


def replacement_message(uid: str, job_uid: str) -> str:
    """Return the message of a slice's Finished condition; the arguments are the uids of the new slice and its job."""
    return f"Replaced to accommodate a workload (UID: {uid}, JobUID: {job_uid}) due to workload slice aggregation"


def find_replaced_slice(workload: WorkloadView, queue: ClusterQueue) -> AdmittedWorkload | None:
    """Return the slice that a Workload replaces, if it holds quota in the Workload's ClusterQueue; otherwise None.

    A slice of another namespace, or with other pod sets, is never replaced.
    """
    holder = queue.workloads.get(workload.replaced_slice)
    if holder is None or not holder.key.startswith(f"{workload.namespace}/"):
        return None
    has_same_pod_sets = [p.name for p in holder.pod_sets] == [p.name for p in workload.pod_sets]
    return holder if has_same_pod_sets else None


def request_difference(
    pod_set_request: PodSetRequest, old_pod_sets: Sequence[AdmittedPodSet], pod_set_indexes: Sequence[int]
) -> PodSetRequest:
    """Return the request of pod sets, in quota, minus the usage of the same pod sets of the replaced slice.

    The amounts may be zero or negative. A flavor that differs from the flavor of the replaced slice gets a mismatch.
    """
    replaced = [old_pod_sets[index] for index in pod_set_indexes]
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
    for pod_set, count, old, assigned in zip(
        workload.pod_sets, workload.counts, old_pod_sets, assigned_pod_sets, strict=False
    ):
        if not count:
            continue
        for resource, amount in pod_set.template.requests:
            difference = amount * (count - old.pods)
            if difference and resource in assigned.choices:
                fr = assigned.choices[resource].fr
                usage[fr] = usage.get(fr, 0) + difference
    return tuple(usage.items())


def with_replaced_slice(
    mode: FlavorAssignmentMode, targets: list[PreemptionTarget], replaced: AdmittedWorkload
) -> list[PreemptionTarget]:
    """Return the preemption targets of a slice, with the slice that it replaces first; [] if it has to wait."""
    if mode is not FlavorAssignmentMode.FIT and not targets:
        return []
    return [PreemptionTarget(replaced, _NO_REASON), *targets]


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
