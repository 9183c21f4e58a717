"""The feature gates of Kueue: which of them batchyard obeys, which values it refuses, and which have no effect here.

Source: pkg/features/kube_features.go of Kueue at ff69552e (0.20-devel), and for newer gates the changelog of Kueue
0.20.0. The default of a newer gate is the value that batchyard follows with the rules of Kueue 0.19.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.validation.feature_gates import GATE_DEPENDENCIES

QUOTA_CHECK_STRATEGY: Final = "QuotaCheckStrategy"
PARTIAL_ADMISSION: Final = "PartialAdmission"
FAILURE_RECOVERY_POLICY: Final = "FailureRecoveryPolicy"
MULTI_KUEUE: Final = "MultiKueue"
SPARK_INTEGRATION: Final = "SparkApplicationIntegration"


class GateEffect(StrEnum):
    """What batchyard does if a Configuration sets a feature gate to the value that is not its default."""

    OBEYED = "obeyed"
    REFUSED = "refused"
    NONE = "without effect"


class GateRule(NamedTuple):
    """The effect of a feature gate's other value, and the reason: what the gate switches, or what batchyard lacks."""

    effect: GateEffect
    reason: str


def _obeyed(reason: str, *names: str) -> dict[str, GateRule]:
    return {name: GateRule(GateEffect.OBEYED, reason) for name in names}


def _refused(reason: str, *names: str) -> dict[str, GateRule]:
    return {name: GateRule(GateEffect.REFUSED, reason) for name in names}


def _without_effect(reason: str, *names: str) -> dict[str, GateRule]:
    return {name: GateRule(GateEffect.NONE, reason) for name in names}


#: The rule of each feature gate, by name.
GATE_RULES: Final[Mapping[str, GateRule]] = {
    **_obeyed("enabled, it disables `waitForPodsReady`", well_known.DISABLE_WAIT_FOR_PODS_READY),
    **_obeyed("disabled, `resources.quotaCheckStrategy` has no effect", QUOTA_CHECK_STRATEGY),
    **_obeyed("disabled, Workloads are admitted with their full pod counts only", PARTIAL_ADMISSION),
    **_obeyed("disabled, `admissionFairSharing` has no effect", well_known.ADMISSION_FAIR_SHARING),
    **_obeyed(
        "enabled, admission fair sharing counts usage from the quota reservation, not from the admission",
        well_known.ANCHOR_AT_QUOTA_RESERVATION,
    ),
    **_obeyed("disabled, `multiKueue` has no effect; otherwise, `multiKueue` is rejected", MULTI_KUEUE),
    **_obeyed("disabled, SparkApplications are not queued; required to name their integration", SPARK_INTEGRATION),
    **_obeyed("disabled, LocalQueues have no metrics", "LocalQueueMetrics"),
    **_obeyed("disabled, `kueue_cohort_info` and `kueue_cluster_queue_info` are not served", "MetricsForCohorts"),
    **_obeyed(
        "disabled, the metric `kueue_workload_creation_latency_seconds` is not served",
        "MetricForWorkloadCreationLatency",
    ),
    **_obeyed("enabled, `metrics.customLabels` adds labels to metrics", "CustomMetricLabels"),
    **_obeyed("enabled, `waitForPodsReady.unscheduledTimeout` has an effect", well_known.UNSCHEDULED_TIMEOUT),
    **_obeyed("enabled, jobs may set their own timeouts in an annotation", well_known.WORKLOAD_LEVEL_TIMEOUTS),
    **_obeyed("enabled, Workloads that wait for their victims come first", "PrioritizePreemptorWorkloads"),
    **_obeyed(
        "enabled, the first strategy of fair sharing runs again after it lowered the share of the preempting queue",
        "FairSharingReevaluatePreemptionCandidates",
    ),
    **_obeyed("enabled, the rules of PreemptionConfigs select further victims", well_known.CONFIGURABLE_PREEMPTIONS),
    **_obeyed("enabled, a queue that admits brings its next Workload into the same cycle", "FairSharingRefill"),
    **_obeyed(
        "enabled, Workloads that differ only in the names of pod sets are equivalent",
        "SchedulingEquivalenceHashingIgnorePodSetName",
    ),
    **_obeyed(
        "enabled, updates of ClusterQueues with unknown flavors in `onFlavors` are rejected",
        "RejectUpdatesToCQWithInvalidOnFlavors",
    ),
    **_obeyed(
        "disabled, jobs without a priority class do not get the class `default`", "WorkloadPriorityClassDefaulting"
    ),
    **_obeyed("disabled, a Job that is scaled while it runs is stopped and queued again", well_known.ELASTIC_JOBS_GATE),
    **_obeyed(
        "enabled, a Job that grows may get a part of the additional pods (annotation"
        " `kueue.x-k8s.io/elastic-job-scale-up-strategy: partial`)",
        well_known.PARTIAL_SCALE_UP_GATE,
    ),
    **_obeyed(
        "enabled, a pod set that had no pods may get another flavor when its Job grows; Kueue 0.20 enables it",
        well_known.FLAVOR_CHANGE_GATE,
    ),
    **_obeyed(
        "enabled, elastic Jobs with the annotation `kueue.x-k8s.io/partial-preemption` are preempted down to their"
        " minimum; Kueue 0.20 only plans this gate",
        well_known.PARTIAL_PREEMPTION_GATE,
    ),
    **_obeyed(
        "enabled, Workloads with a closed gate in `spec.preemptionGates` do not preempt others; Kueue 0.20 enables it",
        well_known.PREEMPTION_GATES_GATE,
    ),
    **_obeyed("disabled, topology requests are ignored", well_known.TOPOLOGY_AWARE_SCHEDULING),
    **_obeyed(
        "disabled, pods without required or preferred level do not use the smallest domains first",
        well_known.TAS_PROFILE_MIXED,
    ),
    **_obeyed("enabled, pods with a preferred level are spread evenly over domains", well_known.TAS_BALANCED_PLACEMENT),
    **_obeyed(
        "enabled, preferred node affinity orders the domains of pods on hosts", well_known.TAS_PREFERRED_AFFINITY
    ),
    **_obeyed(
        "disabled, Workloads in another flavor with the same hosts do not reduce the free capacity",
        well_known.TAS_OVERLAPPING_FLAVORS,
    ),
    **_obeyed(
        "disabled, a Workload whose domains an earlier one took waits for the next cycle", well_known.TAS_RECOMPUTATION
    ),
    **_obeyed("disabled, taints of nodes are no failures of nodes", well_known.TAS_TAINTED_NODES),
    **_obeyed(
        "disabled, changes of nodes lead to no replacement; as in Kueue, the end of a pod on a failed node still does",
        well_known.TAS_FAILED_NODE_REPLACEMENT,
    ),
    **_obeyed(
        "disabled, a Workload without a replacement for a failed node keeps its quota, and the search is repeated",
        well_known.TAS_FAIL_FAST,
    ),
    **_obeyed(
        "enabled, a node also fails if it has not been ready for 30 seconds when a pod on it ends",
        well_known.TAS_FIXED_DELAY,
    ),
    **_obeyed(
        "disabled, nodes that are not ready for 30 seconds or have untolerated taints fail while pods run on them",
        well_known.TAS_POD_TERMINATION,
    ),
    **_obeyed("enabled, a Job that is scaled keeps the topology domains of its pods", well_known.ELASTIC_TOPOLOGY_GATE),
    **_obeyed(
        "disabled, jobs with layers of slices are rejected; Workloads may still have them",
        well_known.TAS_MULTIPLE_LAYERS,
    ),
    **_obeyed(
        "disabled, slice sizes and slice levels in Workloads are not validated", well_known.TAS_SLICE_SIZE_VALIDATION
    ),
    **_obeyed("disabled, Workloads without an owner are released, but not finished", "FinishOrphanedWorkloads"),
    **_obeyed(
        "enabled, terminating pods on unreachable nodes are deleted by force if they have the annotation"
        " `kueue.x-k8s.io/safe-to-forcefully-delete`",
        FAILURE_RECOVERY_POLICY,
    ),
    # Gates of the scheduler.
    **_refused("the scheduler always sorts Workloads of a cohort by priority", "PrioritySortingWithinCohort"),
    **_refused(
        "the scheduler always applies the fair sharing rules of Kueue 0.19",
        *("FairSharingPreemptWithinNominal", "FairSharingPrioritizeNonBorrowing"),
    ),
    **_refused("the scheduler always applies `flavorFungibility` of ClusterQueues", "FlavorFungibility"),
    **_refused(
        "the scheduler always continues an interrupted search for flavors", "FlavorFungibilityPreserveScanProgress"
    ),
    **_refused("the scheduler always skips Workloads that equal one that did not fit", "SchedulingEquivalenceHashing"),
    **_refused(
        "the scheduler always searches for other targets if preemptions overlap",
        "RecomputeAssignmentUponPreemptionTargetsOverlap",
    ),
    **_refused("the scheduler ignores the annotation kueue.x-k8s.io/priority-boost", "PriorityBoost"),
    **_refused("a Workload is admitted with one set of flavors at a time", "ConcurrentAdmission"),
    **_refused("reclaimable pods always release their quota", "ReclaimablePods"),
    **_refused("quotas do not follow capacity: CapacityProviders are not served", "DynamicQuotaOrchestration"),
    # Gates of Workloads, jobs and queues.
    **_refused(
        "a slice that grows requests the capacity of all its pods again",
        "ElasticJobsViaWorkloadSlicesForProvisioningRequests",
    ),
    **_refused(
        "PodTemplates of ProvisioningRequests always have the pod template of the Workload",
        "EnforceProvisioningPodTemplateContents",
    ),
    **_refused(
        "transformations of `pods` are always rejected, because Kueue counts pods under that name",
        "ReservedResourceNameValidation",
    ),
    **_refused("the annotation kueue.x-k8s.io/admission-gated-by always gates admission", "AdmissionGatedBy"),
    **_refused("pods always get the labels with the names of their queues", "AssignQueueLabelsForPods"),
    **_refused("ProvisioningRequests of evicted Workloads are always deleted", "CleanupProvisioningRequestsOnEviction"),
    **_refused("the conditions of Workloads always have the detailed reasons", "UnadmittedWorkloadsObservability"),
    **_refused("new Workloads have no condition before their first evaluation", "UnadmittedWorkloadsExplicitStatus"),
    **_refused("names of Workloads have up to 253 characters", "ShortWorkloadNames"),
    **_refused("Workloads are always validated in full", "WorkloadValidateResourcesAreNonNegative"),
    **_refused("Workloads are always validated in full", "WorkloadValidationForPodSetMetadata"),
    **_refused("names of prebuilt Workloads are always read from annotations too", "WorkloadIdentifierAnnotations"),
    **_refused("Workloads with ResourceClaims are not rejected", "KueueDRAIntegration"),
    **_refused(
        "Kueue 0.19 and later reject this value: the feature gate is locked to true",
        "ManagedJobsNamespaceSelectorAlwaysRespected",
    ),
    **_refused("Kueue 0.20 rejects this value: the feature gate is locked to true", "TLSOptions"),
    # Gates without effect here.
    **_without_effect("it decides nothing; the visibility API is always served", "VisibilityOnDemand"),
    **_without_effect(
        "it decides nothing; it concerns how Kueue writes objects",
        *("HighMaxParallelismWithinReconcile", "RemoveFinalizersWithStrictPatch", "WorkloadRequestUseMergePatch"),
    ),
    **_without_effect("it decides nothing; it concerns the memory layout of Kueue", "VectorizedResourceRequests"),
    **_without_effect(
        "owners that no longer exist never prevent the deletion of jobs", "SkipAncestorCheckForDeletedWorkloads"
    ),
    **_without_effect(
        "ResourceClaims are not charged (`resources.deviceClassMappings` is refused)",
        *("KueueDRAIntegrationExtendedResource", "KueueDRAIntegrationPartitionableDevices"),
        *("KueueDRAIntegrationConsumableCapacity", "KueueDRARejectWorkloadsWhenDRADisabled"),
        *("KueueDRADeviceFeasibility", "KueueDRAIntegrationDeviceTaints", "KueueDRAIntegrationPrioritizedList"),
    ),
    **_without_effect(
        "it decides nothing; it concerns how Kueue computes or stores topology assignments",
        *("SchedulerLibraryIntegration", "TASAssignmentsEncodingByHostnamePrefix", "TASCacheNodeMatchResults"),
        *("TASCacheTopologyTree", "TASCachingRemainingResources"),
    ),
    **_obeyed(
        "disabled, the Workload of a single pod is queued again after a preemption",
        "SkipReassignmentForPodOwnedWorkloads",
    ),
    **_obeyed("enabled, the terminating pods of a group hold no quota", "FastQuotaReleaseInPodIntegration"),
    **_refused("groups of pods never adopt the Workload of another job", "PodIntegrationValidateGroupOwner"),
    **_obeyed(
        "enabled, the roles of a group of pods are ordered by what their pods request", well_known.SHAPE_ORDERING_GATE
    ),
    **_refused("groups of pods follow the version of Kueue, not this gate", "PodIntegrationCountSucceededPodsAsReady"),
    **_refused(
        "topology-aware scheduling follows the rules of Kueue 0.19, without this gate",
        *("TASGroupedPodSetSlicing", "TASLeaderPodSetFeasibility", "TASNodeFeasibilityForAllLevels"),
        *("TASPartialSlices", "TASRejectFalseUnconstrainedTopology", "TASReplaceMultipleFailedNodes"),
        "TASTopologySpreading",
    ),
    **_without_effect(
        "MultiKueue is not supported",
        *("MultiKueueAdaptersForCustomJobs", "MultiKueueBatchJobClearingTTLSecondsAfterFinishedOnWorkerCluster"),
        *("MultiKueueClusterProfile", "MultiKueueRayInTreeAutoscaling"),
        "MultiKueueReuseClientConnectionConfigForWorkers",
        *("MultiKueueIncrementalDispatcherConfig", "MultiKueueIncrementalDispatcherRespectConfigOrder"),
        *("MultiKueueKubeConfigPathValidation", "MultiKueueManagerQuotaAutomation"),
        "MultiKueueRemoteSpecSync",
    ),
    **_without_effect("the size of the groups is always immutable", "LWSImmutableGroupSize"),
    **_without_effect("Workloads of Deployments get no label with the uid of the Deployment", "DeploymentJobUIDLabel"),
    **_without_effect(
        "the kind of job is not supported", *("RayServiceValidateUpgradeStrategy", "WaitForPodsReadyMaxNotReady")
    ),
    **_without_effect(
        "a deleted RayService with fault tolerance always keeps its Workload until it is gone",
        "DeferRayServiceFinalizationForRedisCleanup",
    ),
    **_without_effect("removing the queue name of a Ray object is always validated", "ValidateRayAndSparkJobUpdates"),
}


def is_gate_enabled(configuration: Mapping[str, Any], name: str) -> bool:
    """Return whether a feature gate of Kueue is enabled by a Configuration, or else by default."""
    is_enabled: bool = (configuration.get("featureGates") or {}).get(name, well_known.GATES[name])
    return is_enabled


def changed_gates(configuration: Mapping[str, Any], effect: GateEffect) -> list[str]:
    """Return the names of the feature gates with this effect that a Configuration sets to another value than Kueue's.

    Unknown names, which validation reports, are omitted. So are gates that depend on disabled ones, which decide
    nothing.
    """
    gates: Mapping[str, bool] = configuration.get("featureGates") or {}
    effective = {**well_known.GATES, **gates}
    return [
        name
        for name, is_on in gates.items()
        if name in GATE_RULES
        and GATE_RULES[name].effect is effect
        and well_known.GATES[name] is not is_on
        and all(effective[each] for each in GATE_DEPENDENCIES.get(name, ()))
    ]
