"""Feature gates of Kueue with their defaults, and the strategies of fair sharing.

Source: pkg/features/kube_features.go and apis/config/v1beta2 of Kueue 0.19.
"""

from collections.abc import Mapping
from typing import Final

#: Disables waitForPodsReady, which has no `enable` field in v1beta2.
DISABLE_WAIT_FOR_PODS_READY: Final = "DisableWaitForPodsReady"

#: The preemption strategies of fair sharing.
FINAL_SHARE: Final = "LessThanOrEqualToFinalShare"
INITIAL_SHARE: Final = "LessThanInitialShare"

_ON: Final = """
    AdmissionFairSharing AdmissionGatedBy AssignQueueLabelsForPods CleanupProvisioningRequestsOnEviction
    DeferRayServiceFinalizationForRedisCleanup ElasticJobsViaWorkloadSlices FairSharingPreemptWithinNominal
    FairSharingPrioritizeNonBorrowing FinishOrphanedWorkloads FlavorFungibility
    FlavorFungibilityPreserveScanProgress KueueDRAIntegration KueueDRAIntegrationExtendedResource
    KueueDRAIntegrationPartitionableDevices KueueDRARejectWorkloadsWhenDRADisabled LWSImmutableGroupSize
    LocalQueueMetrics ManagedJobsNamespaceSelectorAlwaysRespected MetricForWorkloadCreationLatency MetricsForCohorts
    MultiKueue MultiKueueAdaptersForCustomJobs MultiKueueIncrementalDispatcherConfig
    MultiKueueIncrementalDispatcherRespectConfigOrder MultiKueueKubeConfigPathValidation MultiKueueRemoteSpecSync
    PartialAdmission PodIntegrationValidateGroupOwner PrioritySortingWithinCohort QuotaCheckStrategy ReclaimablePods
    RecomputeAssignmentUponPreemptionTargetsOverlap RemoveFinalizersWithStrictPatch SchedulingEquivalenceHashing
    SkipAncestorCheckForDeletedWorkloads SkipReassignmentForPodOwnedWorkloads TASAssignmentsEncodingByHostnamePrefix
    TASCacheNodeMatchResults TASCacheTopologyTree TASCachingRemainingResources TASFailedNodeReplacement
    TASFailedNodeReplacementFailFast TASHandleOverlappingFlavors TASMultiLayerTopology TASProfileMixed
    TASRecomputeAssignmentWithinSchedulingCycle TASReplaceNodeOnNodeTaints TASReplaceNodeOnPodTermination
    TASValidateWorkloadSliceSize TLSOptions TopologyAwareScheduling UnadmittedWorkloadsObservability
    ValidateRayAndSparkJobUpdates VectorizedResourceRequests VisibilityOnDemand WorkloadIdentifierAnnotations
    WorkloadPriorityClassDefaulting WorkloadValidateResourcesAreNonNegative WorkloadValidationForPodSetMetadata
"""
_OFF: Final = """
    ConcurrentAdmission CustomMetricLabels DisableWaitForPodsReady ElasticJobsViaWorkloadSlicesWithTAS
    FailureRecoveryPolicy FastQuotaReleaseInPodIntegration KueueDRAIntegrationConsumableCapacity
    MultiKueueClusterProfile MultiKueueManagerQuotaAutomation MultiKueueOrchestratedPreemption
    PrioritizePreemptorWorkloads PriorityBoost RejectUpdatesToCQWithInvalidOnFlavors SchedulerLibraryIntegration
    ShortWorkloadNames SparkApplicationIntegration TASBalancedPlacement TASReplaceNodeDueToNotReadyOverFixedTime
    TASRespectNodeAffinityPreferred UnadmittedWorkloadsExplicitStatus WorkloadRequestUseMergePatch
"""
#: The default of each gate by name.
GATES: Final[Mapping[str, bool]] = {
    **dict.fromkeys(_ON.split(), True),
    **dict.fromkeys(_OFF.split(), False),
}
