"""Parsed views of Kueue's objects: Workloads, ClusterQueues, Cohorts, LocalQueues and ResourceFlavors.

Sources: Kueue's pkg/workload (Info, totalRequestsFromPodSets, totalRequestsFromAdmission, computeSchedulingHash).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api import meta, times, well_known
from batchyard.api.meta import Obj, Selector, parse_selector
from batchyard.api.views import node
from batchyard.api.views.preemption import PreemptionSettings, has_closed_gate, preemption_settings_of
from batchyard.api.views.topology import (
    TopologyAssignment,
    TopologyRequest,
    parse_topology_assignment,
    parse_topology_request,
)
from batchyard.base.instant import Instant

#: Identifies the scheduling equivalence class of a Workload: those with equal shapes get equal decisions.
Shape: TypeAlias = tuple[bytes, int, tuple[int, ...]]
PodSetIndexGroups: TypeAlias = tuple[tuple[int, ...], ...]

_NO_STATUS: Final[Obj] = {}
_PRIORITY_BOOST_LENGTH_MAX: Final = 11
_FAILED_CHECK_STATES: Final = ("Retry", "Rejected")
#: The maximum sizes of the caches: admissions of equal pod sets, and pod sets by content and by value.
_CACHED_ADMISSIONS_MAX: Final = 16384
_POD_SET_CONTENTS_MAX: Final = 1024
_POD_SET_VALUES_MAX: Final = 4096
_WORKLOAD_VIEWS_MAX: Final = 1048576
#: The maximum number of finished Workloads with cached views; a batch of events reads each view several times.
FINISHED_VIEWS_MAX: Final = 32768
_encode_json = msgspec.json.Encoder(order="sorted").encode
_pod_sets_by_content: "dict[bytes, _SharedPodSets]" = {}
_pod_sets_by_value: "dict[tuple[bytes, tuple[PodSet, ...]], _SharedPodSets]" = {}
_views_by_uid: "dict[str, tuple[Obj, WorkloadView, Obj, WorkloadView]]" = {}
_finished_uids: dict[str, None] = {}


@dataclass(frozen=True, slots=True)
class PodSet:
    """A parsed pod set of a Workload's spec."""

    name: str
    count: int
    min_count: int | None
    template: node.PodTemplate
    #: The name of the pod set group, whose pod sets get the same flavors; None without a group.
    group: str | None
    topology_request: TopologyRequest | None = None


class AdmittedPodSet(NamedTuple):
    """An admitted pod set: its number of pods, the flavor of each resource, and the quota that it uses."""

    name: str
    pods: int
    flavors: Mapping[str, str]
    usage: node.Requests
    #: The topology domains of the pods; None without topology-aware scheduling.
    topology: TopologyAssignment | None = None


@dataclass(slots=True, init=False, eq=False)
class WorkloadView:
    """The parsed fields of a Workload that the scheduler and the controllers need."""

    #: The Workload itself, for settings that few Workloads have.
    obj: Obj
    key: str
    namespace: str
    name: str
    uid: str
    job_uid: str
    queue: str
    #: The priority, including the boost.
    priority: int
    #: The priority boost of a Budget.
    boost: int
    created: Instant
    #: The timestamp that orders the queue: creation, or the eviction because of an admission check or PodsReady.
    queued: Instant
    #: When the Workload started to wait for quota: the last transition of its condition Requeued, or its creation.
    waiting_since: Instant
    generation: int
    active: bool
    pod_sets: tuple[PodSet, ...]
    #: Groups of indices of pod sets that must get the same flavors, ordered by their first index.
    pod_set_groups: tuple[tuple[int, ...], ...]
    #: The number of pods of each pod set that need quota: count minus reclaimable pods.
    counts: tuple[int, ...]
    shape: Shape
    finished: bool
    quota_reserved: bool
    admitted: bool
    evicted: bool
    pods_ready: bool
    #: Whether an admission check has the state Rejected or Retry.
    has_failed_check: bool
    #: Whether the Workload may be queued: it is active, unfinished, without quota, and neither on hold nor gated.
    admissible: bool
    #: Whether the condition Requeued is False; and the time before which the Workload must not be requeued.
    requeue_blocked: bool
    requeue_at: Instant | None
    #: The reason of the condition QuotaReserved=False, which says why the Workload is pending; or None.
    pending_reason: str | None
    #: Whether Kueue is going to deactivate the Workload: the condition DeactivationTarget is True.
    deactivation_target: bool
    cluster_queue: str
    reserved_at: Instant | None
    admitted_pod_sets: tuple[AdmittedPodSet, ...]
    #: Whether a pod set has requests above its limits.
    over_limit: bool
    #: Why LimitRanges would reject the Workload's pods; '' if they would not, or if that was not checked.
    limit_range_violation: str
    #: Whether a pod set may run with fewer pods than its count.
    can_be_partially_admitted: bool
    #: Whether the Workload is a slice of an elastic job; and the key of the slice that it replaces, '' if none.
    elastic: bool
    replaced_slice: str
    #: Whether a pod set requests topology-aware scheduling.
    requests_topology: bool
    #: The names of failed nodes in the topology assignment, which must be replaced.
    unhealthy_nodes: tuple[str, ...]
    #: Whether a gate in `spec.preemptionGates` is closed.
    preemption_gated: bool

    _shared: "_SharedPodSets"

    def __init__(self, obj: Obj, old_view: "WorkloadView | None" = None) -> None:
        """Parse a Workload. `old_view` is the view of an earlier revision with equal spec, if any, which saves work."""
        metadata, spec, status = obj["metadata"], obj["spec"], obj.get("status") or _NO_STATUS
        self.obj = obj
        self.job_uid = (metadata.get("labels") or {}).get(well_known.JOB_UID, "")
        self.generation = metadata.get("generation", 0)
        annotations = metadata.get("annotations")
        self.elastic = bool(annotations) and annotations.get(well_known.ELASTIC_JOB) == "true"
        self.replaced_slice = annotations.get(well_known.REPLACEMENT_FOR, "") if annotations else ""
        self.boost = _priority_boost(annotations)
        self.priority = (spec.get("priority") or 0) + self.boost
        self.active = spec.get("active", True) is not False
        if old_view is None:
            self._read_identity(metadata, spec)
        else:
            self.namespace, self.name, self.key = old_view.namespace, old_view.name, old_view.key
            self.uid, self.created, self.queue = old_view.uid, old_view.created, old_view.queue
            self._shared = old_view._shared
        shared_pod_sets = self._shared
        self.pod_sets, self.pod_set_groups = shared_pod_sets.pod_sets, shared_pod_sets.groups
        self.over_limit, self.can_be_partially_admitted = shared_pod_sets.over_limit, shared_pod_sets.can_shrink
        self.requests_topology = shared_pod_sets.topology
        self.limit_range_violation = ""
        self.counts = _unreclaimed_counts(shared_pod_sets, status)
        self.shape = shared_pod_sets.shape, self.priority, self.counts
        admission = status.get("admission")
        self.cluster_queue = admission.get("clusterQueue", "") if admission else ""
        self.admitted_pod_sets = shared_pod_sets.admitted_pod_sets_of(admission, self.counts) if admission else ()
        self.preemption_gated = "preemptionGates" in spec and has_closed_gate(spec, status)
        self._read_conditions(metadata, status)

    def ignore_pod_set_names(self) -> None:
        """Exclude the names of the pod sets from `shape`: Workloads that differ only in them become equivalent."""
        self.shape = self._shared.nameless_shape(), self.priority, self.counts

    def _read_identity(self, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        self.namespace, self.name = metadata.get("namespace", ""), metadata["name"]
        self.key = f"{self.namespace}/{self.name}"
        self.uid = metadata.get("uid", "")
        self.created = times.parse_time(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else 0
        self.queue = f"{self.namespace}/{spec.get('queueName', '')}"
        self._shared = _shared_pod_sets_of(spec.get("podSets") or ())

    def _read_conditions(self, metadata: Mapping[str, Any], status: Mapping[str, Any]) -> None:
        conditions = {c["type"]: c for c in status.get("conditions") or ()}
        true_conditions = {kind for kind, condition in conditions.items() if condition["status"] == "True"}
        self.finished, self.admitted = "Finished" in true_conditions, "Admitted" in true_conditions
        self.evicted = "Evicted" in true_conditions
        self.deactivation_target = "DeactivationTarget" in true_conditions
        self.pods_ready = "PodsReady" in true_conditions
        checks = status.get("admissionChecks") or ()
        self.has_failed_check = any(check["state"] in _FAILED_CHECK_STATES for check in checks) if checks else False
        self.quota_reserved = "QuotaReserved" in true_conditions
        self.reserved_at = self.pending_reason = None
        reserved_condition = conditions.get("QuotaReserved")
        if reserved_condition is not None:
            if self.quota_reserved:
                self.reserved_at = times.parse_time(reserved_condition["lastTransitionTime"])
            elif reserved_condition["status"] == "False":
                self.pending_reason = reserved_condition["reason"]
        is_on_hold = (
            self.pending_reason == "OnHold" or "WaitingForReplacementPods" in true_conditions or _has_gate(metadata)
        )
        self.admissible = self.active and not self.finished and not self.quota_reserved and not is_on_hold
        self.queued = _queue_timestamp(conditions, self.created)
        requeued_condition = conditions.get("Requeued")
        self.waiting_since, self.requeue_blocked = self.created, False
        if requeued_condition is not None:
            self.waiting_since = times.parse_time(requeued_condition["lastTransitionTime"])
            self.requeue_blocked = requeued_condition["status"] == "False"
        requeue_at = status["requeueState"].get("requeueAt") if "requeueState" in status else None
        self.requeue_at = times.parse_time(requeue_at) if requeue_at else None
        self.unhealthy_nodes = tuple([each["name"] for each in status.get("unhealthyNodes") or ()])


def workload_view(obj: Obj) -> WorkloadView:
    """Return the parsed view of a Workload; the views of its last two revisions are cached."""
    uid = obj["metadata"].get("uid", "")
    cache_entry = _views_by_uid.get(uid)
    if cache_entry is None:
        if len(_views_by_uid) >= _WORKLOAD_VIEWS_MAX:
            _views_by_uid.clear()
        view = WorkloadView(obj)
        _cache_views(uid, (obj, view, obj, view))
        return view
    newer_obj, view, older_obj, older_view = cache_entry
    if newer_obj is obj:
        return view
    if older_obj is obj:
        return older_view
    new_view = WorkloadView(obj, view if uid and obj["spec"] is newer_obj["spec"] else None)
    _cache_views(uid, (obj, new_view, newer_obj, view))
    return new_view


def _cache_views(uid: str, cache_entry: tuple[Obj, WorkloadView, Obj, WorkloadView]) -> None:
    """Cache the views of a Workload. If too many finished Workloads are in the cache, drop the earlier ones."""
    if cache_entry[1].finished:
        if len(_finished_uids) >= FINISHED_VIEWS_MAX:
            while _finished_uids:
                _views_by_uid.pop(_finished_uids.popitem()[0], None)
        _finished_uids[uid] = None
    _views_by_uid[uid] = cache_entry


def forget_workload_view(uid: str) -> None:
    """Remove the parsed views of a deleted Workload from the cache."""
    _views_by_uid.pop(uid, None)
    _finished_uids.pop(uid, None)


def _priority_boost(annotations: Mapping[str, str] | None) -> int:
    text = annotations.get(well_known.PRIORITY_BOOST) if annotations else None
    if not text or len(text) > _PRIORITY_BOOST_LENGTH_MAX or not text.removeprefix("-").isdecimal():
        return 0
    return int(text)


def _has_gate(metadata: Mapping[str, Any]) -> bool:
    return bool((metadata.get("annotations") or {}).get(well_known.ADMISSION_GATED_BY))


def _queue_timestamp(conditions: Mapping[str, Mapping[str, Any]], creation_time: Instant) -> Instant:
    eviction_condition = conditions.get("Evicted")
    if (
        not eviction_condition
        or eviction_condition["status"] != "True"
        or eviction_condition["reason"] not in {"PodsReadyTimeout", "AdmissionCheck"}
    ):
        return creation_time
    return times.parse_time(eviction_condition["lastTransitionTime"])


class _SharedPodSets:
    """Parsed pod sets that Workloads with equal pod sets share, and a cache of these Workloads' parsed admissions."""

    __slots__ = (
        *("_admitted_pod_sets", "_nameless_shape", "can_shrink", "counts", "groups", "over_limit", "pod_sets", "shape"),
        "topology",
    )

    def __init__(self, pod_set_objs: Sequence[Mapping[str, Any]]) -> None:
        self.pod_sets = tuple(map(_pod_set, pod_set_objs))
        self.counts = tuple([p.count for p in self.pod_sets])
        self.groups = _pod_set_groups(self.pod_sets)
        self.can_shrink = any(p.min_count is not None and p.count > p.min_count for p in self.pod_sets)
        self.over_limit = any(p.template.over_limit for p in self.pod_sets)
        self.topology = any(p.topology_request and p.topology_request.is_explicit for p in self.pod_sets)
        self.shape = _encode_json([_scheduling_fields(o) for o in pod_set_objs])
        self._admitted_pod_sets: dict[tuple[bytes, tuple[int, ...]], tuple[AdmittedPodSet, ...]] = {}
        self._nameless_shape = b""

    def nameless_shape(self) -> bytes:
        """Return `shape` without the names of the pod sets, which come first in `_scheduling_fields()`."""
        if not self._nameless_shape:
            self._nameless_shape = _encode_json([fields[1:] for fields in msgspec.json.decode(self.shape)])
        return self._nameless_shape

    def admitted_pod_sets_of(
        self, admission: Mapping[str, Any], counts_per_pod_set: tuple[int, ...]
    ) -> tuple[AdmittedPodSet, ...]:
        """Parse a Workload's admission: the number of pods, flavors and quota usage of each pod set.

        Reclaimable pods reduce the usage: `counts_per_pod_set` are the numbers of pods that still need quota. If fewer
        pods were admitted (partial admission), the admitted number counts.
        """
        assignments = admission.get("podSetAssignments") or ()
        cache_key = _encode_json(assignments), counts_per_pod_set
        cached_pod_sets = self._admitted_pod_sets.get(cache_key)
        if cached_pod_sets is None:
            if len(self._admitted_pod_sets) >= _CACHED_ADMISSIONS_MAX:
                self._admitted_pod_sets.clear()
            totals = {p.name: p.count for p in self.pod_sets}
            remaining_counts = {p.name: count for p, count in zip(self.pod_sets, counts_per_pod_set, strict=True)}
            cached_pod_sets = tuple(
                _read_assignment(a, totals.get(a["name"], 0), remaining_counts) for a in assignments
            )
            self._admitted_pod_sets[cache_key] = cached_pod_sets
        return cached_pod_sets


def _shared_pod_sets_of(objs: Sequence[Mapping[str, Any]]) -> _SharedPodSets:
    encoded_content = _encode_json(objs)
    shared_pod_sets = _pod_sets_by_content.get(encoded_content)
    if shared_pod_sets is None:
        if len(_pod_sets_by_content) >= _POD_SET_CONTENTS_MAX:
            _pod_sets_by_content.clear()
        shared_pod_sets = _pod_sets_by_content[encoded_content] = _deduplicate_pod_sets(_SharedPodSets(objs))
    return shared_pod_sets


def _deduplicate_pod_sets(parsed_pod_sets: _SharedPodSets) -> _SharedPodSets:
    if len(_pod_sets_by_value) >= _POD_SET_VALUES_MAX:
        _pod_sets_by_value.clear()
    return _pod_sets_by_value.setdefault((parsed_pod_sets.shape, parsed_pod_sets.pod_sets), parsed_pod_sets)


def _pod_set_groups(pod_sets: Sequence[PodSet]) -> PodSetIndexGroups:
    indexes_by_group: dict[str | int, list[int]] = {}
    for index, pod_set in enumerate(pod_sets):
        indexes_by_group.setdefault(index if pod_set.group is None else pod_set.group, []).append(index)
    return tuple(map(tuple, indexes_by_group.values()))


def _pod_set(obj: Mapping[str, Any]) -> PodSet:
    topology_request = obj.get("topologyRequest")
    return PodSet(
        name=obj["name"],
        count=obj["count"],
        min_count=obj.get("minCount"),
        template=node.parse_pod_template((obj.get("template") or {}).get("spec") or {}),
        group=topology_request.get("podSetGroupName") if topology_request else None,
        topology_request=parse_topology_request(topology_request) if topology_request else None,
    )


def _scheduling_fields(obj: Mapping[str, Any]) -> list[Any]:
    """Return the fields of a pod set that affect scheduling: requests and constraints, but not images or commands."""
    spec = (obj.get("template") or {}).get("spec") or {}
    fields = ("nodeSelector", "affinity", "tolerations", "runtimeClassName", "priority", "topologySpreadConstraints")
    return [
        obj["name"],
        obj.get("minCount"),
        obj.get("topologyRequest"),
        [spec.get(field) for field in fields],
        [_canonical_quantity_texts(spec.get("overhead")), spec.get("resourceClaims")],
        _canonical_quantity_texts((spec.get("resources") or {}).get("requests")),
        [[_container_shape(c) for c in spec.get(kind) or ()] for kind in ("initContainers", "containers")],
    ]


def _container_shape(container: Mapping[str, Any]) -> list[Any]:
    resources = container.get("resources") or {}
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return [_canonical_quantity_texts(requests), container.get("ports")]


def _canonical_quantity_texts(resources: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: meta.canonical_quantity(value) for name, value in (resources or {}).items()}


def _unreclaimed_counts(shared_pod_sets: _SharedPodSets, status: Mapping[str, Any]) -> tuple[int, ...]:
    reclaimable_counts = {r["name"]: r["count"] for r in status.get("reclaimablePods") or ()}
    if not reclaimable_counts:
        return shared_pod_sets.counts
    return tuple(p.count - min(p.count, reclaimable_counts.get(p.name, 0)) for p in shared_pod_sets.pod_sets)


def _read_assignment(
    assignment: Mapping[str, Any], pod_count: int, remaining_counts: Mapping[str, int]
) -> AdmittedPodSet:
    name, assigned_count = assignment["name"], assignment.get("count", pod_count)
    resource_usage = {r: meta.amount(r, q) for r, q in (assignment.get("resourceUsage") or {}).items()}
    if remaining_counts.get(name, assigned_count) < assigned_count:
        resource_usage = {r: amount // assigned_count * remaining_counts[name] for r, amount in resource_usage.items()}
        assigned_count = remaining_counts[name]
    domains = assignment.get("topologyAssignment")
    topology = parse_topology_assignment(domains) if domains else None
    flavors, usage = assignment.get("flavors") or {}, node.sort_requests(resource_usage)
    return AdmittedPodSet(name, assigned_count, flavors, usage, topology)


# The views of ClusterQueues, Cohorts, LocalQueues and ResourceFlavors.
#
# Quantities are integers; fair sharing weights are parsed as in Kueue.


class FlavorResourceQuota(NamedTuple):
    """A ClusterQueue's quota for one resource in one flavor; a limit of None means no limit."""

    flavor: str
    resource: str
    nominal: int
    borrowing_limit: int | None
    lending_limit: int | None


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """A resource group of a ClusterQueue: resources that share a flavor, and its flavors in Kueue's search order."""

    resources: tuple[str, ...]
    flavors: tuple[str, ...]
    quotas: tuple[FlavorResourceQuota, ...]


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """The preemption policy of a ClusterQueue."""

    within_cluster_queue: str = "Never"
    reclaim_within_cohort: str = "Never"
    #: Whether the queue may preempt in the cohort while borrowing, and the victims' maximum priority (None: any lower).
    borrow_within_cohort: bool = False
    priority_threshold_max: int | None = None

    @property
    def is_allowed(self) -> bool:
        """Whether the ClusterQueue may preempt Workloads at all."""
        return self.within_cluster_queue != "Never" or self.reclaim_within_cohort != "Never"


@dataclass(frozen=True, slots=True)
class FlavorFungibility:
    """A ClusterQueue's flavor fungibility: when Kueue tries the next flavor, and which kind of fit it prefers."""

    try_next_when_borrowing: bool = False
    try_next_when_preempting: bool = True
    prefer_preemption: bool = False


class AdmissionCheckRule(NamedTuple):
    """An AdmissionCheck that a ClusterQueue requires, and the flavors to which it applies."""

    name: str
    flavors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterQueueView:
    """The parsed spec of a ClusterQueue."""

    name: str
    cohort: str
    groups: tuple[ResourceGroup, ...]
    strict_fifo: bool
    #: Selects the namespaces whose Workloads the ClusterQueue admits; None selects none.
    namespaces: Selector | None
    preemption: PreemptionRules
    fungibility: FlavorFungibility
    stop_policy: str
    weight: float
    check_rules: tuple[AdmissionCheckRule, ...]
    #: Whether `admissionScope` selects admission fair sharing.
    is_usage_based: bool = False
    #: The preemption settings in annotations; None if there are none.
    preemption_settings: PreemptionSettings | None = None

    @property
    def admission_checks(self) -> tuple[str, ...]:
        """The names of the ClusterQueue's AdmissionChecks."""
        return tuple([rule.name for rule in self.check_rules])

    @property
    def flavors(self) -> tuple[str, ...]:
        """The names of all flavors of the ClusterQueue, in the order of its resource groups."""
        return tuple([flavor for group in self.groups for flavor in group.flavors])


@dataclass(frozen=True, slots=True)
class CohortView:
    """The parsed spec of a Cohort."""

    name: str
    parent: str
    groups: tuple[ResourceGroup, ...]
    weight: float
    preemption_settings: PreemptionSettings | None = None


@dataclass(frozen=True, slots=True)
class LocalQueueView:
    """The parsed spec of a LocalQueue."""

    key: str
    cluster_queue: str
    stop_policy: str
    #: The weight for admission fair sharing.
    weight: float = 1.0


def cluster_queue_view(obj: Obj) -> ClusterQueueView:
    """Parse the spec of a ClusterQueue."""
    spec = obj.get("spec") or {}
    groups = _resource_groups(spec)
    return ClusterQueueView(
        name=obj["metadata"]["name"],
        cohort=spec.get("cohortName") or "",
        groups=groups,
        strict_fifo=spec.get("queueingStrategy") == "StrictFIFO",
        namespaces=parse_selector(spec.get("namespaceSelector")),
        preemption=_preemption_rules(spec.get("preemption") or {}),
        fungibility=_flavor_fungibility(spec.get("flavorFungibility") or {}),
        stop_policy=spec.get("stopPolicy") or "None",
        weight=_fair_sharing_weight(spec),
        check_rules=tuple(_admission_check_rules(spec, groups)),
        is_usage_based=(spec.get("admissionScope") or {}).get("admissionMode") == "UsageBasedAdmissionFairSharing",
        preemption_settings=preemption_settings_of(obj),
    )


def cohort_view(obj: Obj) -> CohortView:
    """Parse the spec of a Cohort."""
    spec = obj.get("spec") or {}
    name, parent, weight = obj["metadata"]["name"], spec.get("parentName") or "", _fair_sharing_weight(spec)
    return CohortView(name, parent, _resource_groups(spec), weight, preemption_settings_of(obj))


def local_queue_view(obj: Obj) -> LocalQueueView:
    """Parse the spec of a LocalQueue."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    key = f"{metadata.get('namespace', '')}/{metadata['name']}"
    stop_policy = spec.get("stopPolicy") or "None"
    return LocalQueueView(key, spec.get("clusterQueue") or "", stop_policy, _fair_sharing_weight(spec))


def _resource_groups(spec: Mapping[str, Any]) -> tuple[ResourceGroup, ...]:
    return tuple(
        ResourceGroup(
            resources=tuple(group.get("coveredResources") or ()),
            flavors=tuple(flavor["name"] for flavor in group.get("flavors") or ()),
            quotas=tuple(_flavor_quotas(group.get("flavors") or ())),
        )
        for group in spec.get("resourceGroups") or ()
    )


def _flavor_quotas(flavors: Sequence[Mapping[str, Any]]) -> list[FlavorResourceQuota]:
    return [
        FlavorResourceQuota(
            flavor["name"],
            resource["name"],
            meta.quota_amount(resource["name"], resource.get("nominalQuota", 0)),
            _quota_limit(resource, "borrowingLimit"),
            _quota_limit(resource, "lendingLimit"),
        )
        for flavor in flavors
        for resource in flavor.get("resources") or ()
    ]


def _quota_limit(resource: Mapping[str, Any], field: str) -> int | None:
    value = resource.get(field)
    return None if value is None else meta.quota_amount(resource["name"], value)


def _admission_check_rules(spec: Mapping[str, Any], groups: Sequence[ResourceGroup]) -> list[AdmissionCheckRule]:
    checks = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    all_flavors = tuple(flavor for group in groups for flavor in group.flavors)
    return [AdmissionCheckRule(check["name"], tuple(check.get("onFlavors") or all_flavors)) for check in checks]


def _preemption_rules(spec: Mapping[str, Any]) -> PreemptionRules:
    borrow_settings = spec.get("borrowWithinCohort") or {}
    return PreemptionRules(
        within_cluster_queue=spec.get("withinClusterQueue") or "Never",
        reclaim_within_cohort=spec.get("reclaimWithinCohort") or "Never",
        borrow_within_cohort=(borrow_settings.get("policy") or "Never") != "Never",
        priority_threshold_max=borrow_settings.get("maxPriorityThreshold"),
    )


def _flavor_fungibility(spec: Mapping[str, Any]) -> FlavorFungibility:
    return FlavorFungibility(
        try_next_when_borrowing=spec.get("whenCanBorrow") == "TryNextFlavor",
        try_next_when_preempting=(spec.get("whenCanPreempt") or "TryNextFlavor") == "TryNextFlavor",
        prefer_preemption=spec.get("preference") == "PreemptionOverBorrowing",
    )


def _fair_sharing_weight(spec: Mapping[str, Any]) -> float:
    weight = (spec.get("fairSharing") or {}).get("weight")
    return 1.0 if weight is None else meta.parse_quantity(weight) / meta.NANO
