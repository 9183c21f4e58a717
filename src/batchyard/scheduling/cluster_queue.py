"""ClusterQueues in the snapshot: which flavors pods can use, and the Workloads with quota."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.views.node import FlavorView, PodTemplate, Requests, sort_requests
from batchyard.api.views.workload import AdmittedPodSet, ClusterQueueView, FlavorFungibility
from batchyard.base.instant import Instant
from batchyard.scheduling import messages
from batchyard.scheduling.quota import (
    FIT,
    FlavorAssignmentMode,
    GranularMode,
    PreemptionPossibility,
    QuotaNode,
    Usage,
    assignment_mode_of,
    borrowing_height_of,
    preemption_possibility_of,
    worst_quality,
)
from batchyard.topology.state import TopologyUsage

# Which flavors a pod template may use: taints must be tolerated, selectors and affinity must match.
#
# Only selector and affinity expressions count whose key is a label of the flavor.
# Source: Kueue's pkg/scheduler/flavorassigner (checkFlavorForPodSets, flavorSelector).


TAINT_MISMATCH: Final = "taint"
AFFINITY_MISMATCH: Final = "affinity"
FLAVOR_NOT_FOUND: Final = "notFound"
TOPOLOGY_MISMATCH: Final = "topology"
_MISMATCH_CACHE_MAX: Final = 4096
_UNTOLERATED_PREFIX: Final = "untolerated taint "
_UNSELECTED_SUFFIX: Final = " doesn't match node affinity"
#: The first characters of the messages about flavors whose topology does not suit a Workload.
_TOPOLOGY_MISMATCH_PREFIX: Final = 'Flavor "'


class FlavorMismatches:
    """Cache of the reasons why pods cannot use ResourceFlavors, shared by pod templates with equal node constraints."""

    def __init__(self, flavors: Mapping[str, FlavorView]) -> None:
        self._flavors = flavors
        self._cache: dict[tuple[object, ...], tuple[str, ...]] = {}

    def mismatches_for(self, template: PodTemplate, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return, for each named ResourceFlavor, why pods of the template cannot use it; '' if they can."""
        cache_key = (names, template.node_selector, template.affinity, template.tolerations)
        mismatches = self._cache.get(cache_key)
        if mismatches is None:
            if len(self._cache) >= _MISMATCH_CACHE_MAX:
                self._cache.clear()
            mismatches = tuple([flavor_mismatch(template, name, self._flavors.get(name)) for name in names])
            self._cache[cache_key] = mismatches
        return mismatches

    def clear(self) -> None:
        """Clear the cached mismatches, for use after a ResourceFlavor changed."""
        self._cache.clear()


def flavor_mismatch(template: PodTemplate, name: str, flavor: FlavorView | None) -> str:
    """Return Kueue's reason why pods of the template cannot use the ResourceFlavor; '' if they can."""
    if flavor is None:
        return f"flavor {name} not found"
    tolerations = (*template.tolerations, *flavor.tolerations)
    for taint in flavor.taints:
        if not any(toleration.tolerates(taint) for toleration in tolerations):
            return f"{_UNTOLERATED_PREFIX}{taint} in flavor {name}"
    return "" if _matches_flavor_labels(template, flavor.labels) else f"flavor {name}{_UNSELECTED_SUFFIX}"


def mismatch_rule(mismatch: str) -> str:
    """Return the kind of a mismatch: TAINT_MISMATCH, AFFINITY_MISMATCH, TOPOLOGY_MISMATCH or FLAVOR_NOT_FOUND."""
    if mismatch.startswith(_TOPOLOGY_MISMATCH_PREFIX):
        return TOPOLOGY_MISMATCH
    if mismatch.startswith(_UNTOLERATED_PREFIX):
        return TAINT_MISMATCH
    return AFFINITY_MISMATCH if mismatch.endswith(_UNSELECTED_SUFFIX) else FLAVOR_NOT_FOUND


def _matches_flavor_labels(template: PodTemplate, labels: Mapping[str, str]) -> bool:
    if any(labels[key] != value for key, value in template.node_selector if key in labels):
        return False
    if not template.affinity:
        return True
    # Terms are alternatives. A term without relevant expressions matches any flavor.
    return any(all(r.matches(labels) for r in term if r.key in labels) for term in template.affinity)


# The resource requests of pods, split by the resource groups of a ClusterQueue.
#
# The result depends on the pod template, the pod count, and the flavors and resources of the groups, but not on quota.
# It is therefore computed once for all equal Workloads in all ClusterQueues with equal groups.


PODS: Final = "pods"
SCAN_DONE: Final = -1
_REQUEST_CACHE_MAX: Final = 4096
_ASSIGNMENT_CACHE_MAX: Final = 256


class FlavorGroup(NamedTuple):
    """A resource group of a ClusterQueue: its index, its flavors, and an id for each flavor-resource pair."""

    number: int
    flavors: tuple[str, ...]
    #: The flavor-resource ids of each resource, in the order of `flavors`.
    ids: Mapping[str, tuple[int, ...]]


class FlavorChoice(NamedTuple):
    """The flavor assigned to one resource of a pod set, its assignment mode, and where its quota comes from."""

    flavor: str
    #: The id of the flavor-resource pair.
    fr: int
    mode: FlavorAssignmentMode
    #: Height in the cohort tree of the node that provides the quota; 0 is the ClusterQueue itself.
    borrowing_height: int


class FlavorAssignment(NamedTuple):
    """The flavors assigned to the resources of a pod set, with the resulting quota usage and assignment mode."""

    choices: Mapping[str, FlavorChoice]
    usage: Usage
    #: The worst assignment mode of all resources.
    mode: FlavorAssignmentMode
    #: The maximum borrowing height of all resources.
    borrowing_height: int
    #: The index of the last considered flavor by resource; SCAN_DONE if the next search starts at the first flavor.
    tried: Mapping[str, int]
    #: Whether the search stopped before the last flavor of some resource.
    has_flavors_left: bool
    #: The flavor-resources that need preemption.
    preempting_frs: tuple[int, ...]


def make_flavor_assignment(
    choices: Mapping[str, FlavorChoice],
    usage: Usage,
    tried_indexes: Mapping[str, int],
    mode: FlavorAssignmentMode = FlavorAssignmentMode.NO_FIT,
) -> FlavorAssignment:
    """Return the FlavorAssignment that combines flavor choices per resource; `mode` applies if there are no choices."""
    worst_mode = min([choice.mode for choice in choices.values()], default=mode)
    max_height = max([choice.borrowing_height for choice in choices.values()], default=0)
    preempting_frs = tuple([choice.fr for choice in choices.values() if choice.mode is FlavorAssignmentMode.PREEMPT])
    has_flavors_left = any(index != SCAN_DONE for index in tried_indexes.values())
    return FlavorAssignment(choices, usage, worst_mode, max_height, tried_indexes, has_flavors_left, preempting_frs)


#: The assignment if no flavor is suitable.
NO_FLAVOR_ASSIGNMENT: Final = make_flavor_assignment({}, (), {})


class ResourceGroupRequest:
    """The resources that a pod set requests from one resource group, with the quota usage for each flavor."""

    __slots__ = ("_assignment_cache", "group", "mismatches", "obstacles", "resource", "resources", "usages")

    def __init__(self, group: FlavorGroup, resource: str, requests: Requests, obstacles: tuple[str, ...]) -> None:
        group_requests = [(r, amount, group.ids[r]) for r, amount in requests if r in group.ids]
        self.group = group
        #: The resource under which the position of the flavor search is stored.
        self.resource = resource
        self.resources = tuple([r for r, _, _ in group_requests])
        #: The requested usage in each flavor, in the order of `resources`, including amounts of zero.
        self.usages: tuple[Usage, ...] = tuple(
            [tuple([(ids[index], amount) for _, amount, ids in group_requests]) for index in range(len(group.flavors))]
        )
        #: For each flavor of the group, why the pods cannot use it; '' if they can use it.
        self.obstacles = obstacles
        #: For a slice, by flavor and resource: the rejection if the replaced slice has another flavor, else ''.
        self.mismatches: tuple[tuple[str, ...], ...] = ()
        self._assignment_cache: dict[tuple[int, ...], FlavorAssignment] = {}

    def assignment_for(self, flavor_index: int, last_tried: int, qualities: Sequence[GranularMode]) -> FlavorAssignment:
        """Return the cached assignment of the flavor at `flavor_index`; `qualities` are its modes for each resource.

        `last_tried` is the index of the last flavor that the search considered.
        """
        cache_key = (flavor_index, last_tried, *qualities)
        assignment = self._assignment_cache.get(cache_key)
        if assignment is None:
            if len(self._assignment_cache) >= _ASSIGNMENT_CACHE_MAX:
                self._assignment_cache.clear()
            assignment = self._assignment_cache[cache_key] = self._make_assignment(flavor_index, last_tried, qualities)
        return assignment

    def _make_assignment(self, index: int, last_tried: int, qualities: Sequence[GranularMode]) -> FlavorAssignment:
        flavors, usage = self.group.flavors, self.usages[index]
        scan_position = SCAN_DONE if last_tried == len(flavors) - 1 else last_tried
        choices = {
            resource: FlavorChoice(flavors[index], fr, assignment_mode_of(quality), borrowing_height_of(quality))
            for resource, (fr, _), quality in zip(self.resources, usage, qualities, strict=True)
        }
        return make_flavor_assignment(choices, usage, dict.fromkeys(choices, scan_position))


class PodSetRequest(NamedTuple):
    """The resource requests of a pod set, split by resource group."""

    requests: Requests
    groups: tuple[ResourceGroupRequest, ...]
    #: A requested resource that no group covers; '' if there is none.
    unavailable_resource: str


class ResourceGroupIndex:
    """The resource groups of ClusterQueues with equal groups, and a cache of pod set requests split by group."""

    __slots__ = ("_request_cache", "group_of", "groups", "ignores_undeclared")

    def __init__(self, groups: Sequence[FlavorGroup], *, ignores_undeclared: bool = False) -> None:
        self.groups = groups
        #: Whether requested resources that no group covers are ignored (quotaCheckStrategy: IgnoreUndeclared).
        self.ignores_undeclared = ignores_undeclared
        self.group_of = {resource: group for group in groups for resource in group.ids}
        self._request_cache: dict[tuple[int, int], tuple[PodTemplate, PodSetRequest]] = {}

    def clear_request_cache(self) -> None:
        """Clear the cached pod set requests, for use after a ResourceFlavor changed."""
        self._request_cache.clear()

    def split_pod_requests(self, template: PodTemplate, pod_count: int, obstacles: FlavorMismatches) -> PodSetRequest:
        """Return the resource requests of `pod_count` pods of a template by resource group; results are cached."""
        cache_key = (id(template), pod_count)
        cache_entry = self._request_cache.get(cache_key)
        if cache_entry is None or cache_entry[0] is not template:
            if len(self._request_cache) >= _REQUEST_CACHE_MAX:
                self._request_cache.clear()
            requests = self._total_requests(template, pod_count)
            cache_entry = self._request_cache[cache_key] = (
                template,
                self.split_requests(requests, (template,), obstacles),
            )
        return cache_entry[1]

    def split_requests(
        self, requests: Requests, templates: Sequence[PodTemplate], obstacles: FlavorMismatches
    ) -> PodSetRequest:
        """Return the requests of a pod set by resource group, and the first requested resource that no group covers.
        Requests after such a resource are not assigned to groups. A flavor is usable only if pods of every template can
        use it.
        """
        groups: list[ResourceGroupRequest] = []
        handled_resources: list[str] = []
        for resource, amount in requests:
            group = self.group_of.get(resource)
            if resource in handled_resources or (group is None and (amount == 0 or self.ignores_undeclared)):
                continue
            if group is None:
                return PodSetRequest(requests, tuple(groups), resource)
            mismatches = [obstacles.mismatches_for(template, group.flavors) for template in templates]
            mismatch = mismatches[0] if len(mismatches) == 1 else _merge_obstacles(mismatches)
            group_request = ResourceGroupRequest(group, resource, requests, mismatch)
            handled_resources += group_request.resources
            groups.append(group_request)
        return PodSetRequest(requests, tuple(groups), "")

    def _total_requests(self, template: PodTemplate, pod_count: int) -> Requests:
        requests = tuple([(r, n * pod_count) for r, n in template.requests])
        return sort_requests({**dict(requests), PODS: pod_count}) if PODS in self.group_of else requests


def _merge_obstacles(obstacles: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple([next(filter(None, flavor_obstacles), "") for flavor_obstacles in zip(*obstacles, strict=True)])


# Results of scanning the flavors of a resource group.
#
# The reasons for rejecting a flavor are rarely read, so they are computed from the stored inputs when they are read.
# Source: Kueue's pkg/scheduler/flavorassigner/flavorassigner.go (its reasons and messages).


_FIT: Final = PreemptionPossibility.FIT


class FlavorAttempt(NamedTuple):
    """The result of trying one flavor for a pod set: how its quota could be obtained, and the reasons against it."""

    flavor: str
    group_number: int
    possibility: PreemptionPossibility
    borrowing_height: int
    rejections: tuple[messages.RejectionReason, ...]
    no_fit_reason: str


class FlavorScan(NamedTuple):
    """The result of trying a resource group's flavors in order for a pod set, with the quota amounts that it used."""

    group_request: ResourceGroupRequest
    #: For each flavor, why it is excluded regardless of quota; '' if it is not excluded.
    obstacles: Sequence[str]
    #: The index of the first scanned flavor.
    start_index: int
    #: For each scanned flavor, its quality for each resource.
    qualities_by_flavor: Sequence[Sequence[GranularMode]]
    selected_assignment: FlavorAssignment
    #: By flavor-resource id: the usage of earlier pod sets, the available quota, and the potential capacity.
    assumed_usage: Mapping[int, int]
    available_amounts: Mapping[int, int]
    potential_quota: Sequence[int]
    fungibility: FlavorFungibility

    @property
    def rejections(self) -> list[messages.RejectionReason]:
        """The reasons why the tried flavors were rejected; empty if the selected flavor fits."""
        if self.selected_assignment.mode is FlavorAssignmentMode.FIT:
            return []
        return [
            reason
            for index, qualities in enumerate(self.qualities_by_flavor, self.start_index)
            for reason in self._rejection_reasons(index, qualities)
        ]

    @property
    def attempts(self) -> list[FlavorAttempt]:
        """The results of the tried flavors, except flavors that fit without borrowing."""
        return [
            self._flavor_attempt(index, qualities)
            for index, qualities in enumerate(self.qualities_by_flavor, self.start_index)
            if min(qualities) != FIT
        ]

    def _flavor_attempt(self, index: int, qualities: Sequence[GranularMode]) -> FlavorAttempt:
        group, reasons = self.group_request.group, self._rejection_reasons(index, qualities)
        possibility, borrow = (
            preemption_possibility_of(worst_quality(qualities, self.fungibility)),
            max(map(borrowing_height_of, qualities)),
        )
        is_excluded = self.obstacles[index] or (
            self.group_request.mismatches and any(self.group_request.mismatches[index])
        )
        main_reason = messages.NO_MATCHING_FLAVOR if is_excluded else _no_fit_reason(qualities, reasons)
        return FlavorAttempt(group.flavors[index], group.number, possibility, borrow, tuple(reasons), main_reason)

    def _rejection_reasons(self, index: int, qualities: Sequence[GranularMode]) -> list[messages.RejectionReason]:
        if self.obstacles[index]:
            return [self.obstacles[index]]
        group_request = self.group_request
        if group_request.mismatches:
            return self._slice_rejection_reasons(index)
        resource_requests = zip(group_request.resources, group_request.usages[index], qualities, strict=True)
        flavor = group_request.group.flavors[index]
        return [
            self._rejection_reason(resource, flavor, request)
            for resource, request, quality in resource_requests
            if preemption_possibility_of(quality) is not _FIT
        ]

    def _slice_rejection_reasons(self, index: int) -> list[messages.RejectionReason]:
        """Return the reasons against a flavor for a slice: another flavor of the replaced slice, and missing quota."""
        group_request = self.group_request
        flavor = group_request.group.flavors[index]
        reasons: list[messages.RejectionReason] = []
        for resource, request, mismatch in zip(
            group_request.resources, group_request.usages[index], group_request.mismatches[index], strict=True
        ):
            if mismatch:
                reasons.append(mismatch)
            fr, amount = request
            if self.assumed_usage.get(fr, 0) + amount > max(0, self.available_amounts[fr]):
                reasons.append(self._rejection_reason(resource, flavor, request))
        return reasons

    def _rejection_reason(
        self, resource: str, flavor: str, request: tuple[int, int]
    ) -> messages.InsufficientQuota | messages.ExceedsMaxCapacity:
        fr, amount = request
        assumed_usage = self.assumed_usage.get(fr, 0)
        if assumed_usage + amount > self.potential_quota[fr]:
            return messages.ExceedsMaxCapacity(resource, flavor, assumed_usage, amount, self.potential_quota[fr])
        return messages.InsufficientQuota(resource, flavor, assumed_usage + amount - max(0, self.available_amounts[fr]))


def _no_fit_reason(qualities: Sequence[GranularMode], reasons: Sequence[messages.RejectionReason]) -> str:
    most_severe_reason = ""
    rejecting_qualities = [quality for quality in qualities if preemption_possibility_of(quality) is not _FIT]
    for quality, rejection in zip(rejecting_qualities, reasons, strict=True):
        if preemption_possibility_of(quality) is PreemptionPossibility.NO_FIT:
            most_severe_reason = messages.more_severe_reason(
                most_severe_reason,
                messages.EXCEEDS_MAX_QUOTA
                if isinstance(rejection, messages.ExceedsMaxCapacity)
                else messages.WAITING_FOR_QUOTA,
            )
    return most_severe_reason


# A ClusterQueue in the snapshot, and the Workloads that hold quota in it.


@dataclass(slots=True, eq=False)
class AdmittedWorkload:
    """A Workload that holds quota in a ClusterQueue, with its usage and its sort key for preemption."""

    key: str
    uid: str
    queue: "ClusterQueue"
    usage: Usage
    #: Every assigned flavor-resource, including those with an amount of zero.
    flavor_resources: frozenset[int] = frozenset()
    priority: int = 0
    queued: Instant = 0
    reserved_at: Instant = 0
    evicted: bool = False
    is_admitted: bool = True
    local_queue: str = ""
    #: The part of the priority that a Budget added.
    boost: int = 0
    #: The admitted pod sets of a slice of an elastic job or a replaced Workload; () for other Workloads.
    pod_sets: tuple[AdmittedPodSet, ...] = ()
    #: The usage of topology domains; empty without topology-aware scheduling.
    topology_usage: TopologyUsage = ()
    #: The newest observed revision of the Workload, for settings that few Workloads have; None if it is unknown.
    obj: Obj | None = None
    #: For the part of a Workload with quota that a partial preemption releases: the Workload; None otherwise.
    whole: "AdmittedWorkload | None" = None
    #: The sort key for preemption: lowest priority first, then latest reservation, then uid.
    preemption_rank: tuple[int, int, str] = field(init=False)

    def is_equivalent(self, other_workload: "AdmittedWorkload") -> bool:
        """Return whether `other_workload` is equal in every field that affects scheduling decisions."""
        return (
            self.queue is other_workload.queue
            and self.preemption_rank == other_workload.preemption_rank
            and self.usage == other_workload.usage
            and self.evicted == other_workload.evicted
            and self.is_admitted == other_workload.is_admitted
            and self.queued == other_workload.queued
            and self.flavor_resources == other_workload.flavor_resources
            and self.local_queue == other_workload.local_queue
            and self.topology_usage == other_workload.topology_usage
        )

    def __post_init__(self) -> None:
        self.preemption_rank = (self.priority, -self.reserved_at, self.uid)
        if not self.flavor_resources:
            self.flavor_resources = frozenset(fr for fr, _ in self.usage)


#: Returns the sort key of a preemption candidate.
PREEMPTION_RANK: Final = attrgetter("preemption_rank")


class ClusterQueue:
    """A ClusterQueue in the snapshot: its node in the cohort tree, and the Workloads that hold quota in it."""

    __slots__ = (
        "_ranked_cache",
        "active",
        "coverage",
        "generation",
        "is_in_cohort_cycle",
        "is_topology_only",
        "name",
        "node",
        "provisioned_flavors",
        "topology_flavors",
        "view",
        "workloads",
    )

    def __init__(self, view: ClusterQueueView, node: QuotaNode, coverage: ResourceGroupIndex) -> None:
        self.name = view.name
        self.view = view
        self.node = node
        self.coverage = coverage
        self.workloads: dict[str, AdmittedWorkload] = {}
        #: Incremented when quota may have become free; flavor searches that stopped before then may start over.
        self.generation = 1
        self.active = True
        #: Whether the parents of its Cohort form a cycle.
        self.is_in_cohort_cycle = False
        #: Its flavors that have a Topology, and whether these are all its flavors.
        self.topology_flavors: frozenset[str] = frozenset()
        self.is_topology_only = False
        #: Its flavors for which an AdmissionCheck requests machines after the quota reservation.
        self.provisioned_flavors: frozenset[str] = frozenset()
        self._ranked_cache: list[AdmittedWorkload] | None = None

    def set_topology_flavors(self, topology_flavors: Container[str]) -> None:
        """Set which of its flavors have a Topology."""
        flavors = self.view.flavors
        self.topology_flavors = frozenset([flavor for flavor in flavors if flavor in topology_flavors])
        self.is_topology_only = len(self.topology_flavors) == len(frozenset(flavors)) > 0

    def put(self, workload: AdmittedWorkload) -> None:
        """Add or replace a Workload that holds quota in this ClusterQueue."""
        self.workloads[workload.key] = workload
        self._ranked_cache = None

    def remove(self, key: str) -> None:
        """Remove the Workload with this key, because it no longer holds quota."""
        del self.workloads[key]
        self._ranked_cache = None

    def forget_ranks(self) -> None:
        """Clear the cached list of `ranked_workloads()`."""
        self._ranked_cache = None

    def ranked_workloads(self) -> list[AdmittedWorkload]:
        """Return the Workloads with quota in this ClusterQueue in preemption order; the list is cached."""
        if self._ranked_cache is None:
            self._ranked_cache = sorted(self.workloads.values(), key=PREEMPTION_RANK)
        return self._ranked_cache
