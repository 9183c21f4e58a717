"""The views of ClusterQueues, Cohorts, LocalQueues and ResourceFlavors.

Quantities are whole numbers; weights are parsed as in Kueue.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batchyard.api import quantity
from batchyard.api.meta import Obj
from batchyard.api.selectors import Selector, selector
from batchyard.api.views.pod import Taint, Toleration, taint, toleration


class FlavorResourceQuota(NamedTuple):
    """The quota of one resource in one flavor; None means no limit."""

    flavor: str
    resource: str
    nominal: int
    borrowing_limit: int | None
    lending_limit: int | None


@dataclass(frozen=True, slots=True)
class ResourceGroup:
    """Resources that always use the same flavor, and the flavors in the order in which they are tried."""

    resources: tuple[str, ...]
    flavors: tuple[str, ...]
    quotas: tuple[FlavorResourceQuota, ...]


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """The preemption policy of a ClusterQueue."""

    within_cluster_queue: str = "Never"
    reclaim_within_cohort: str = "Never"
    #: Whether it may preempt in the cohort while borrowing, and up to which priority (None: any lower one).
    borrow_within_cohort: bool = False
    priority_threshold_max: int | None = None

    @property
    def is_allowed(self) -> bool:
        """Whether any preemption is allowed."""
        return self.within_cluster_queue != "Never" or self.reclaim_within_cohort != "Never"


@dataclass(frozen=True, slots=True)
class Fungibility:
    """When the search through the flavors stops."""

    try_next_when_borrowing: bool = False
    try_next_when_preempting: bool = True
    prefer_preemption: bool = False


class CheckRule(NamedTuple):
    """An AdmissionCheck of a ClusterQueue, and the flavors that it applies to."""

    name: str
    flavors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterQueueView:
    """The spec of a ClusterQueue."""

    name: str
    cohort: str
    groups: tuple[ResourceGroup, ...]
    strict_fifo: bool
    #: None selects no namespace.
    namespaces: Selector | None
    preemption: PreemptionRules
    fungibility: Fungibility
    stop_policy: str
    weight: float
    check_rules: tuple[CheckRule, ...]

    @property
    def admission_checks(self) -> tuple[str, ...]:
        """The names of its AdmissionChecks."""
        return tuple([rule.name for rule in self.check_rules])

    @property
    def flavors(self) -> tuple[str, ...]:
        """All its flavors, group by group."""
        return tuple([flavor for group in self.groups for flavor in group.flavors])


@dataclass(frozen=True, slots=True)
class CohortView:
    """The spec of a Cohort."""

    name: str
    parent: str
    groups: tuple[ResourceGroup, ...]
    weight: float


@dataclass(frozen=True, slots=True)
class LocalQueueView:
    """The spec of a LocalQueue."""

    key: str
    cluster_queue: str
    stop_policy: str


def cluster_queue_view(obj: Obj) -> ClusterQueueView:
    """Return the view of a ClusterQueue."""
    spec = obj.get("spec") or {}
    groups = _groups(spec)
    return ClusterQueueView(
        name=obj["metadata"]["name"],
        cohort=spec.get("cohortName") or "",
        groups=groups,
        strict_fifo=spec.get("queueingStrategy") == "StrictFIFO",
        namespaces=selector(spec.get("namespaceSelector")),
        preemption=_preemption(spec.get("preemption") or {}),
        fungibility=_fungibility(spec.get("flavorFungibility") or {}),
        stop_policy=spec.get("stopPolicy") or "None",
        weight=_weight(spec),
        check_rules=tuple(_check_rules(spec, groups)),
    )


def cohort_view(obj: Obj) -> CohortView:
    """Return the view of a Cohort."""
    spec = obj.get("spec") or {}
    return CohortView(obj["metadata"]["name"], spec.get("parentName") or "", _groups(spec), _weight(spec))


def local_queue_view(obj: Obj) -> LocalQueueView:
    """Return the view of a LocalQueue."""
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    key = f"{metadata.get('namespace', '')}/{metadata['name']}"
    return LocalQueueView(key, spec.get("clusterQueue") or "", spec.get("stopPolicy") or "None")


def _groups(spec: Mapping[str, Any]) -> tuple[ResourceGroup, ...]:
    return tuple(
        ResourceGroup(
            resources=tuple(group.get("coveredResources") or ()),
            flavors=tuple(flavor["name"] for flavor in group.get("flavors") or ()),
            quotas=tuple(_quotas(group.get("flavors") or ())),
        )
        for group in spec.get("resourceGroups") or ()
    )


def _quotas(flavors: Sequence[Mapping[str, Any]]) -> list[FlavorResourceQuota]:
    return [
        FlavorResourceQuota(
            flavor["name"],
            resource["name"],
            quantity.quota_amount(resource["name"], resource.get("nominalQuota", 0)),
            _limit(resource, "borrowingLimit"),
            _limit(resource, "lendingLimit"),
        )
        for flavor in flavors
        for resource in flavor.get("resources") or ()
    ]


def _limit(resource: Mapping[str, Any], field: str) -> int | None:
    value = resource.get(field)
    return None if value is None else quantity.quota_amount(resource["name"], value)


def _check_rules(spec: Mapping[str, Any], groups: Sequence[ResourceGroup]) -> list[CheckRule]:
    """Return the checks; one without flavors applies to all of them."""
    checks = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    every = tuple(flavor for group in groups for flavor in group.flavors)
    return [CheckRule(check["name"], tuple(check.get("onFlavors") or every)) for check in checks]


def _preemption(spec: Mapping[str, Any]) -> PreemptionRules:
    borrow = spec.get("borrowWithinCohort") or {}
    return PreemptionRules(
        within_cluster_queue=spec.get("withinClusterQueue") or "Never",
        reclaim_within_cohort=spec.get("reclaimWithinCohort") or "Never",
        borrow_within_cohort=(borrow.get("policy") or "Never") != "Never",
        priority_threshold_max=borrow.get("maxPriorityThreshold"),
    )


def _fungibility(spec: Mapping[str, Any]) -> Fungibility:
    return Fungibility(
        try_next_when_borrowing=spec.get("whenCanBorrow") == "TryNextFlavor",
        try_next_when_preempting=(spec.get("whenCanPreempt") or "TryNextFlavor") == "TryNextFlavor",
        prefer_preemption=spec.get("preference") == "PreemptionOverBorrowing",
    )


def _weight(spec: Mapping[str, Any]) -> float:
    weight = (spec.get("fairSharing") or {}).get("weight")
    return 1.0 if weight is None else quantity.parse(weight) / quantity.NANO


# --- flavor ---
#
# The view of a ResourceFlavor.


_SCHEDULING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class FlavorView:
    """A ResourceFlavor: the labels and taints of its nodes, and the tolerations that it adds."""

    name: str
    labels: Mapping[str, str]
    #: Only those that keep pods away.
    taints: tuple[Taint, ...]
    tolerations: tuple[Toleration, ...]


def flavor_view(obj: Obj) -> FlavorView:
    """Return the view of a ResourceFlavor."""
    spec = obj.get("spec") or {}
    taints = map(taint, spec.get("nodeTaints") or ())
    return FlavorView(
        name=obj["metadata"]["name"],
        labels=spec.get("nodeLabels") or {},
        taints=tuple(t for t in taints if t.effect in _SCHEDULING_EFFECTS),
        tolerations=tuple(map(toleration, spec.get("tolerations") or ())),
    )
