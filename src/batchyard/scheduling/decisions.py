"""Decisions of a scheduling cycle about a head (first Workload of a ClusterQueue): admit, preempt or stay pending."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.admission_plugins.built_in import PriorityClassDefaulting
from batchyard.api.views.workload import WorkloadView
from batchyard.api.well_known import (
    ANCHOR_AT_QUOTA_RESERVATION,
    CONFIGURABLE_PREEMPTIONS,
    ELASTIC_JOBS_GATE,
    FLAVOR_CHANGE_GATE,
    PARTIAL_PREEMPTION_GATE,
    PARTIAL_SCALE_UP_GATE,
    PREEMPTION_GATES_GATE,
    TAS_MULTIPLE_LAYERS,
    TAS_SLICE_SIZE_VALIDATION,
    TOPOLOGY_AWARE_SCHEDULING,
    VALIDATION_GATES,
)
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.flavor_assigner import Assignment, LastAssignment
from batchyard.scheduling.messages import RequeueReason, format_pod_set_reasons
from batchyard.scheduling.preemption.context import PreemptionTarget

# The rules of decisions that differ between versions and feature gates of Kueue.


class KueueVersion(StrEnum):
    """The versions of Kueue whose decision rules batchyard can follow."""

    V0_19 = "0.19"
    V0_20 = "0.20"


#: The version whose rules apply by default: the recorded decisions of Kueue are those of this version.
DEFAULT_VERSION: Final = KueueVersion.V0_19


@dataclass(frozen=True, slots=True)
class DecisionRules:
    """The decision rules that a version or a feature gate of Kueue selects; the defaults are those of Kueue 0.19."""

    version: KueueVersion = DEFAULT_VERSION
    #: Whether the rules that Kueue 0.20 introduced apply.
    is_current: bool = False
    #: Gate SchedulingEquivalenceHashingIgnorePodSetName: names of pod sets do not make Workloads different.
    ignores_pod_set_names: bool = False
    #: Gate PrioritizePreemptorWorkloads: Workloads that wait for their victims come first in a cycle.
    prioritizes_preemptors: bool = False
    #: Gate FairSharingReevaluatePreemptionCandidates: the first strategy runs again after it lowered the own share.
    reevaluates_candidates: bool = False
    #: Gate ConfigurablePreemptions: the rules of PreemptionConfigs select further victims.
    preempts_by_rules: bool = False
    #: Gate FairSharingRefill: a ClusterQueue that admits brings its next Workload into the same cycle.
    refills_heads: bool = False
    #: Gate RejectUpdatesToCQWithInvalidOnFlavors: ClusterQueue updates with unknown flavors in onFlavors are rejected.
    rejects_unknown_on_flavors: bool = False
    #: Gate AdmissionFairSharingAnchorAtQuotaReservation: usage counts from the quota reservation, not the admission.
    anchors_usage_at_reservation: bool = False
    #: Gate WorkloadPriorityClassDefaulting: jobs without a priority class get the class `default`, if it exists.
    defaults_priority_class: bool = True
    #: Gate ElasticJobsViaWorkloadSlices: a slice of an elastic job replaces an earlier one.
    elastic_jobs: bool = True
    #: Gate ElasticJobsViaWorkloadSlicesWithPartialReplicaScaleUp: slices may get a part of the pods that they request.
    partial_scale_up: bool = False
    #: Gate PartialPreemption: elastic jobs that allow it are preempted down to their minimum number of pods.
    partial_preemption: bool = False
    #: Gate ElasticJobsViaWorkloadSlicesFlavorChangeFromZero: a pod set without pods may get another flavor.
    changes_unused_flavors: bool = False
    #: Gate MultiKueueOrchestratedPreemption: Workloads with a closed preemption gate do not preempt others.
    preemption_gates: bool = False
    #: Gate TopologyAwareScheduling: pods with a topology assignment wait with a scheduling gate for their domain.
    gates_topology_pods: bool = True
    #: Gate FinishOrphanedWorkloads: Workloads whose owner no longer exists are finished, not only released.
    finishes_orphans: bool = True
    #: Gate FastQuotaReleaseInPodIntegration: the terminating pods of an evicted group hold no quota.
    releases_pods_fast: bool = False
    #: Gate SkipReassignmentForPodOwnedWorkloads: the Workload of a single pod is not queued again after an eviction.
    keeps_pod_assignments: bool = True
    #: Gate TASMultiLayerTopology: jobs may have layers of slices.
    allows_layers: bool = True
    #: Gate TASValidateWorkloadSliceSize: Workloads with invalid slice sizes are rejected.
    checks_slice_sizes: bool = True
    #: The feature gates of these rules that the Configuration sets, sorted by name.
    set_gates: tuple[tuple[str, bool], ...] = ()

    @property
    def class_defaulting(self) -> PriorityClassDefaulting:
        """The Namespaces in which the WorkloadPriorityClass `default` applies."""
        if not self.defaults_priority_class:
            return PriorityClassDefaulting.NONE
        return PriorityClassDefaulting.MANAGED if self.is_current else PriorityClassDefaulting.ALL

    @property
    def disabled_validation_gates(self) -> frozenset[str]:
        """The disabled feature gates that the validation of objects obeys."""
        return frozenset([name for name in VALIDATION_GATES if not getattr(self, RULE_BY_GATE[name])])

    @property
    def has_cycle_gates(self) -> bool:
        """Whether a gate that changes scheduling cycles is enabled."""
        return self.prioritizes_preemptors or self.refills_heads


#: The rules of Kueue 0.19 with its default feature gates.
DEFAULT_RULES: Final = DecisionRules()

#: The field of DecisionRules for each feature gate.
RULE_BY_GATE: Final[Mapping[str, str]] = {
    "SchedulingEquivalenceHashingIgnorePodSetName": "ignores_pod_set_names",
    "PrioritizePreemptorWorkloads": "prioritizes_preemptors",
    "FairSharingReevaluatePreemptionCandidates": "reevaluates_candidates",
    "FairSharingRefill": "refills_heads",
    CONFIGURABLE_PREEMPTIONS: "preempts_by_rules",
    "RejectUpdatesToCQWithInvalidOnFlavors": "rejects_unknown_on_flavors",
    ANCHOR_AT_QUOTA_RESERVATION: "anchors_usage_at_reservation",
    "WorkloadPriorityClassDefaulting": "defaults_priority_class",
    "FinishOrphanedWorkloads": "finishes_orphans",
    "FastQuotaReleaseInPodIntegration": "releases_pods_fast",
    "SkipReassignmentForPodOwnedWorkloads": "keeps_pod_assignments",
    PREEMPTION_GATES_GATE: "preemption_gates",
    TOPOLOGY_AWARE_SCHEDULING: "gates_topology_pods",
    ELASTIC_JOBS_GATE: "elastic_jobs",
    PARTIAL_SCALE_UP_GATE: "partial_scale_up",
    FLAVOR_CHANGE_GATE: "changes_unused_flavors",
    PARTIAL_PREEMPTION_GATE: "partial_preemption",
    TAS_MULTIPLE_LAYERS: "allows_layers",
    TAS_SLICE_SIZE_VALIDATION: "checks_slice_sizes",
}
#: The gates that are enabled by default since Kueue 0.20.
_ENABLED_IN_0_20: Final = (
    "SchedulingEquivalenceHashingIgnorePodSetName",
    "RejectUpdatesToCQWithInvalidOnFlavors",
    ANCHOR_AT_QUOTA_RESERVATION,
    FLAVOR_CHANGE_GATE,
    PREEMPTION_GATES_GATE,
)


def decision_rules(version: KueueVersion, gates: Mapping[str, bool]) -> DecisionRules:
    """Return the decision rules of a version of Kueue; `gates` are the feature gates that a Configuration sets."""
    defaults = {} if version is KueueVersion.V0_19 else dict.fromkeys(_ENABLED_IN_0_20, True)
    effective_gates = {name: is_on for name, is_on in {**defaults, **gates}.items() if name in RULE_BY_GATE}
    fields: dict[str, Any] = {RULE_BY_GATE[name]: is_on for name, is_on in effective_gates.items()}
    set_gates = tuple(sorted((name, is_on) for name, is_on in gates.items() if name in RULE_BY_GATE))
    is_current = version is not KueueVersion.V0_19
    return replace(DecisionRules(version, is_current, set_gates=set_gates), **fields)


# Decisions.


class Head(NamedTuple):
    """The first pending Workload of a ClusterQueue, with the position at which its last flavor search stopped."""

    workload: WorkloadView
    queue: str
    last_assignment: LastAssignment | None = None


class InadmissibleReason(NamedTuple):
    """Why a Workload is not admitted; the message is formatted only when it is read."""

    #: The reason of the Workload's QuotaReserved condition; '' takes the reason from `assignment`.
    condition_reason: str
    #: The result of the flavor search; None if no search was made.
    assignment: Assignment | None = None
    text: str = ""
    suffix: str = ""

    @property
    def reason(self) -> str:
        """The reason of the Workload's QuotaReserved condition."""
        return self.condition_reason or ("" if self.assignment is None else self.assignment.no_fit_reason)

    @property
    def message(self) -> str:
        """The message of the Workload's QuotaReserved condition, in Kueue's wording."""
        rejections = () if self.assignment is None else self.assignment.pod_set_rejections
        return (self.text or format_pod_set_reasons(rejections)) + self.suffix


class Admit(NamedTuple):
    """Decision to reserve quota for a head, which is admitted once its admission checks are Ready."""

    head: Head
    queue: ClusterQueue
    assignment: Assignment
    #: The slice of the same elastic job that the head replaces, and that finishes once the admission is written.
    replaced: AdmittedWorkload | None = None


class Preempt(NamedTuple):
    """Decision to preempt Workloads for a head, which stays pending until these Workloads have stopped."""

    head: Head
    queue: ClusterQueue
    targets: tuple[PreemptionTarget, ...]
    why: InadmissibleReason
    requeue_reason: RequeueReason = RequeueReason.PENDING_PREEMPTION
    last_assignment: LastAssignment | None = None


class StayPending(NamedTuple):
    """Decision to keep a head pending; `requeue_reason` and `last_assignment` affect when it is tried again."""

    head: Head
    why: InadmissibleReason
    requeue_reason: RequeueReason
    last_assignment: LastAssignment | None = None


Decision: TypeAlias = Admit | Preempt | StayPending


class SecondPassOutcome(NamedTuple):
    """The decision about a Workload in the second pass."""

    decision: Decision
    #: Whether the Workload is evicted because there is no replacement for its failed node.
    evicts: bool = False
