"""Names of well-known labels, annotations, finalizers and taints, and the feature gates of Kueue.

Sources: Kueue's pkg/controller/constants and apis/kueue/v1beta2, JobSet's api/jobset/v1alpha2 and pkg/constants,
Kubernetes' batch/v1 and well-known labels and taints, the cluster autoscaler's apis/provisioningrequest and FAQ, GKE's
pkg/cloudprovider/gke/labels. batchyard defines the names under `batchyard.dev` itself.
"""

from collections.abc import Mapping
from typing import Final

# On jobs, and some of them on their Workloads.
QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
MAX_EXEC_TIME: Final = "kueue.x-k8s.io/max-exec-time-seconds"
PREBUILT_WORKLOAD: Final = "kueue.x-k8s.io/prebuilt-workload-name"
ELASTIC_JOB: Final = "kueue.x-k8s.io/elastic-job"
#: How an elastic job grows: `atomic` (the default), or `partial`.
SCALE_UP_STRATEGY: Final = "kueue.x-k8s.io/elastic-job-scale-up-strategy"
#: The strategy with which a job that grows may get a part of the additional pods.
PARTIAL_SCALE_UP: Final = "partial"
#: Whether an elastic job that grows in part may also start with a part of its pods.
PARTIAL_START: Final = "batchyard.dev/partial-start"
#: Whether an elastic job may be preempted down to its minimum number of pods.
PARTIAL_PREEMPTION: Final = "kueue.x-k8s.io/partial-preemption"
ADMISSION_GATED_BY: Final = "kueue.x-k8s.io/admission-gated-by"
#: The jobs that must finish before a job starts; also the name of its admission gate while it waits for them.
AFTER: Final = "batchyard.dev/after"
#: The states of these dependencies.
AFTER_STATUS: Final = "batchyard.dev/after-status"
WAIT_FOR_PODS_READY: Final = "kueue.x-k8s.io/wait-for-pods-ready"
MIN_PARALLELISM: Final = "kueue.x-k8s.io/job-min-parallelism"
EQUAL_COMPLETIONS: Final = "kueue.x-k8s.io/job-completions-equal-parallelism"
STOPPING: Final = "kueue.x-k8s.io/stopping"
#: On an elastic job that was preempted in part: the parallelism that it requests again after a backoff, when it was
#: preempted, and how often.
FULL_PARALLELISM: Final = "batchyard.dev/full-parallelism"
PARTIALLY_PREEMPTED_AT: Final = "batchyard.dev/partially-preempted-at"
PARTIAL_PREEMPTIONS: Final = "batchyard.dev/partial-preemptions"

# On Workloads.
JOB_UID: Final = "kueue.x-k8s.io/job-uid"
#: The kind and the name of the job.
JOB_OWNER_KIND: Final = "kueue.x-k8s.io/job-owner-gvk"
JOB_OWNER_NAME: Final = "kueue.x-k8s.io/job-owner-name"
#: On the Workload of a group of a LeaderWorkerSet: the index of the group.
COMPONENT_WORKLOAD_INDEX: Final = "kueue.x-k8s.io/component-workload-index"
REPLACEMENT_FOR: Final = "kueue.x-k8s.io/workload-slice-replacement-for"
#: The name of the first slice; on pods too.
SLICE_NAME: Final = "kueue.x-k8s.io/workload-slice-name"
RESOURCE_IN_USE: Final = "kueue.x-k8s.io/resource-in-use"

# On pods in queues as label and finalizer; on ProvisioningRequests that Kueue created and their PodTemplates as label.
MANAGED: Final = "kueue.x-k8s.io/managed"

# On pods in queues, and on groups of them.
#: The scheduling gate of a pod that waits for its admission.
ADMISSION_GATE: Final = "kueue.x-k8s.io/admission"
#: On pods that another controller queues, with its name as value: such a pod has the gate, but not the finalizer.
SUSPENDING_PARENT: Final = "kueue.x-k8s.io/pod-suspending-parent"
#: The name of a group, as annotation or label.
POD_GROUP_NAME: Final = "kueue.x-k8s.io/pod-group-name"
POD_GROUP_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
POD_GROUP_FAST_ADMISSION: Final = "kueue.x-k8s.io/pod-group-fast-admission"
POD_GROUP_SERVING: Final = "kueue.x-k8s.io/pod-group-serving"
#: The index of a pod in its group, and the name of another label with this index.
POD_GROUP_INDEX: Final = "kueue.x-k8s.io/pod-group-pod-index"
POD_GROUP_INDEX_LABEL: Final = "kueue.x-k8s.io/pod-group-pod-index-label"
RETRIABLE_IN_GROUP: Final = "kueue.x-k8s.io/retriable-in-group"
ROLE_HASH: Final = "kueue.x-k8s.io/role-hash"
#: On the Workload of a group of pods.
IS_GROUP_WORKLOAD: Final = "kueue.x-k8s.io/is-group-workload"

# On pods.
WORKLOAD: Final = "kueue.x-k8s.io/workload"
POD_SET: Final = "kueue.x-k8s.io/podset"
LOCAL_QUEUE: Final = "kueue.x-k8s.io/local-queue-name"
CLUSTER_QUEUE: Final = "kueue.x-k8s.io/cluster-queue-name"

# On the pods of StatefulSets: their ordinal. On those of StatefulSets and DaemonSets: their revision.
POD_INDEX: Final = "apps.kubernetes.io/pod-index"
REVISION_HASH: Final = "controller-revision-hash"

# On the pods of Jobs. The two without a prefix are older and are set in addition.
JOB_NAME: Final = "batch.kubernetes.io/job-name"
CONTROLLER_UID: Final = "batch.kubernetes.io/controller-uid"
OLD_JOB_NAME: Final = "job-name"
OLD_CONTROLLER_UID: Final = "controller-uid"
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"
INDEX_IGNORED_FAILURES: Final = "batch.kubernetes.io/job-index-ignored-failure-count"
#: The labels of a Job's selector; the Job controller adds them to its template.
POD_OWNER_LABELS: Final = (JOB_NAME, CONTROLLER_UID, OLD_JOB_NAME, OLD_CONTROLLER_UID)
JOB_TRACKING: Final = "batch.kubernetes.io/job-tracking"

# On the Jobs and pods of JobSets, most of them both as label and as annotation.
JOB_SET_NAME: Final = "jobset.sigs.k8s.io/jobset-name"
JOB_SET_UID: Final = "jobset.sigs.k8s.io/jobset-uid"
REPLICATED_JOB_NAME: Final = "jobset.sigs.k8s.io/replicatedjob-name"
REPLICATED_JOB_REPLICAS: Final = "jobset.sigs.k8s.io/replicatedjob-replicas"
GLOBAL_REPLICAS: Final = "jobset.sigs.k8s.io/global-replicas"
JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
JOB_GLOBAL_INDEX: Final = "jobset.sigs.k8s.io/job-global-index"
JOB_KEY: Final = "jobset.sigs.k8s.io/job-key"
JOB_GROUP_NAME: Final = "jobset.sigs.k8s.io/group-name"
JOB_GROUP_REPLICAS: Final = "jobset.sigs.k8s.io/group-replicas"
JOB_GROUP_INDEX: Final = "jobset.sigs.k8s.io/job-group-index"
RESTART_ATTEMPT: Final = "jobset.sigs.k8s.io/restart-attempt"
COORDINATOR: Final = "jobset.sigs.k8s.io/coordinator"
JOB_SET_PRIORITY: Final = "jobset.sigs.k8s.io/priority"
EXCLUSIVE_TOPOLOGY: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NODE_SELECTOR_STRATEGY: Final = "alpha.jobset.sigs.k8s.io/node-selector"
NAMESPACED_JOB: Final = "alpha.jobset.sigs.k8s.io/namespaced-job"
NO_SCHEDULE: Final = "alpha.jobset.sigs.k8s.io/no-schedule"

# On pod templates: the topology request of a pod set.
REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
UNCONSTRAINED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-unconstrained-topology"
SLICE_TOPOLOGY: Final = "kueue.x-k8s.io/podset-slice-required-topology"
SLICE_SIZE: Final = "kueue.x-k8s.io/podset-slice-size"
SLICE_LAYERS: Final = "kueue.x-k8s.io/podset-slice-required-topology-constraints"
POD_SET_GROUP: Final = "kueue.x-k8s.io/podset-group-name"
#: The scheduling gate of pods that wait for a topology domain.
TOPOLOGY_GATE: Final = "kueue.x-k8s.io/topology"
#: On pods: the index of the first pod of a pod set, which is subtracted from the indexes of its pods.
POD_INDEX_OFFSET: Final = "kueue.x-k8s.io/pod-index-offset"

# The two parts of affinities.
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"

# On nodes.
HOSTNAME: Final = "kubernetes.io/hostname"
OPERATING_SYSTEM: Final = "kubernetes.io/os"
ARCHITECTURE: Final = "kubernetes.io/arch"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
ZONE: Final = "topology.kubernetes.io/zone"
REGION: Final = "topology.kubernetes.io/region"
GKE_ZONE: Final = "topology.gke.io/zone"
NODE_ROLE_PREFIX: Final = "node-role.kubernetes.io/"
OLD_NODE_ROLE: Final = "kubernetes.io/role"

# On the nodes of GKE; pods select them in their node selectors.
NODE_POOL: Final = "cloud.google.com/gke-nodepool"
MACHINE_FAMILY: Final = "cloud.google.com/machine-family"
ACCELERATOR: Final = "cloud.google.com/gke-accelerator"
ACCELERATOR_COUNT: Final = "cloud.google.com/gke-accelerator-count"
GPU_DRIVER_VERSION: Final = "cloud.google.com/gke-gpu-driver-version"
TPU_ACCELERATOR: Final = "cloud.google.com/gke-tpu-accelerator"
TPU_TOPOLOGY: Final = "cloud.google.com/gke-tpu-topology"
PROVISIONING: Final = "cloud.google.com/gke-provisioning"
SPOT: Final = "cloud.google.com/gke-spot"
FLEX_START: Final = "cloud.google.com/gke-flex-start"
PLACEMENT_GROUP: Final = "cloud.google.com/gke-placement-group"
# The physical location of a machine, and its NVLink domain.
TOPOLOGY_BLOCK: Final = "cloud.google.com/gce-topology-block"
TOPOLOGY_SUB_BLOCK: Final = "cloud.google.com/gce-topology-subblock"
TOPOLOGY_HOST: Final = "cloud.google.com/gce-topology-host"
NVLINK_DOMAIN: Final = "nvidia.com/gpu.clique"
RESERVATION_NAME: Final = "cloud.google.com/reservation-name"
RESERVATION_AFFINITY: Final = "cloud.google.com/reservation-affinity"
MAX_RUN_DURATION: Final = "cloud.google.com/gke-max-run-duration-seconds"
MAX_PODS: Final = "cloud.google.com/gke-max-pods-per-node"
BOOT_DISK: Final = "cloud.google.com/gke-boot-disk"
OS_DISTRIBUTION: Final = "cloud.google.com/gke-os-distribution"
CONTAINER_RUNTIME: Final = "cloud.google.com/gke-container-runtime"
NODE_PROVISIONING_REQUEST: Final = "autoscaling.gke.io/provisioning-request"

# Taints of nodes. Extended resources are tainted with their own names.
NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
#: With the value `true`, a terminating pod on an unreachable node may be deleted by force.
SAFE_TO_FORCEFULLY_DELETE: Final = "kueue.x-k8s.io/safe-to-forcefully-delete"
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
UNINITIALIZED: Final = "node.cloudprovider.kubernetes.io/uninitialized"
QUEUED: Final = "cloud.google.com/gke-queued"
TO_BE_DELETED: Final = "ToBeDeletedByClusterAutoscaler"
DELETION_CANDIDATE: Final = "DeletionCandidateOfClusterAutoscaler"

# Accelerator resources, and the taints of nodes that have them.
GPU: Final = "nvidia.com/gpu"
TPU: Final = "google.com/tpu"

# Thousandths of GPUs, requested by pods that share one; and on such pods, the indices of their GPUs.
GPU_MILLI: Final = "batchyard.dev/gpu-milli"
GPU_INDEX: Final = "batchyard.dev/gpu-index"

# For the autoscaler: the ProvisioningRequest of a pod; pods and nodes that must not be removed.
CONSUME_PROVISIONING_REQUEST: Final = "autoscaling.x-k8s.io/consume-provisioning-request"
PROVISIONING_CLASS: Final = "autoscaling.x-k8s.io/provisioning-class-name"
OLD_CONSUME_PROVISIONING_REQUEST: Final = "cluster-autoscaler.kubernetes.io/consume-provisioning-request"
OLD_PROVISIONING_CLASS: Final = "cluster-autoscaler.kubernetes.io/provisioning-class-name"
PROVISIONING_PREFIX: Final = "provreq.kueue.x-k8s.io/"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SCALE_DOWN_DISABLED: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"

# Finalizers of Kubernetes's garbage collector: foreground deletion and orphaning of dependents.
FOREGROUND_FINALIZER: Final = "foregroundDeletion"
ORPHAN_FINALIZER: Final = "orphan"

# On the instances of the simulated cloud: the finalizer until the machine is off and its node is deleted; the mark of
# initial instances; the uid of the ResizeRequest.
INSTANCE_FINALIZER: Final = "cloud.batchyard.dev/instance"
INITIAL_INSTANCE: Final = "cloud.batchyard.dev/initial"
RESIZE_REQUEST_UID: Final = "cloud.batchyard.dev/resize-request-uid"
# On node pools of the simulated cloud: the finalizer until they have no machines.
NODE_POOL_FINALIZER: Final = "cloud.batchyard.dev/node-pool"
# On its Clusters: the hash of each row of spec.nodePools that was last applied to a NodePool, as JSON.
APPLIED_NODE_POOLS: Final = "cloud.batchyard.dev/applied-node-pools"

#: On objects that the platform creates by default: a client that creates an object of that name replaces it.
PROVIDED: Final = "batchyard.dev/provided"
# On simulated objects: creation and deletion times, run time, exit code, checkpoint interval.
SUBMIT_AT: Final = "batchyard.dev/submit-at"
DELETE_AT: Final = "batchyard.dev/delete-at"
RUNTIME: Final = "batchyard.dev/runtime"
EXIT_CODE: Final = "batchyard.dev/exit-code"
CHECKPOINT_EVERY: Final = "batchyard.dev/checkpoint-every"
# On Workloads without owner: the planned states of admission checks, and when the pods are ready.
CHECKS: Final = "batchyard.dev/checks"
PODS_READY: Final = "batchyard.dev/pods-ready"
# On Jobs and JobSets: the saved work of their pods. On such pods: the finalizer until their work is saved.
WORK_DONE: Final = "batchyard.dev/work-done"
WORK_FINALIZER: Final = "batchyard.dev/work"

# On ClusterQueues and Cohorts: how long admitted Workloads run before Workloads of the same ClusterQueue, or of another
# one, may preempt them.
PREEMPT_MIN_RUNTIME: Final = "batchyard.dev/preempt-min-runtime"
RECLAIM_MIN_RUNTIME: Final = "batchyard.dev/reclaim-min-runtime"
# On ClusterQueues: whether the victims whose restart costs least come first.
VICTIMS: Final = "batchyard.dev/victims"
CHEAPEST: Final = "cheapest"
# On ClusterQueues: the name of the PreemptionConfig whose rules apply to their Workloads.
PREEMPTION_CONFIG_NAME: Final = "kueue.x-k8s.io/preemption-config-name"
#: The annotations of ClusterQueues and Cohorts that change preemption.
PREEMPTION_ANNOTATIONS: Final = (PREEMPT_MIN_RUNTIME, RECLAIM_MIN_RUNTIME, VICTIMS, PREEMPTION_CONFIG_NAME)
# On jobs and their Workloads: how long a restarted job takes until it continues its work.
RESTART_TIME: Final = "batchyard.dev/restart-time"

# Costs. On Nodes: dollars an hour; on ResourceFlavors: the relative price of their quota. On LocalQueues: the Budget
# that holds them, and their stopPolicy before that.
PRICE: Final = "cost.batchyard.dev/price"
HELD_BY: Final = "cost.batchyard.dev/held-by"
STOP_POLICY_BEFORE: Final = "cost.batchyard.dev/stop-policy-before"
# On Workloads: the priority boost of a Budget.
PRIORITY_BOOST: Final = "cost.batchyard.dev/priority-boost"


# Feature gates of Kueue with their defaults, and the strategies of fair sharing.
#
# Source: pkg/features/kube_features.go and apis/config/v1beta2 of Kueue 0.19.


#: The feature gate that disables waitForPodsReady, which has no `enable` field in v1beta2.
DISABLE_WAIT_FOR_PODS_READY: Final = "DisableWaitForPodsReady"
#: The feature gates of waitForPodsReady.unscheduledTimeout, and of timeouts in the annotation of a job.
UNSCHEDULED_TIMEOUT: Final = "WaitForPodsReadyUnscheduledTimeout"
WORKLOAD_LEVEL_TIMEOUTS: Final = "WorkloadLevelWaitForPodsReady"

#: The feature gate of admission fair sharing, which is on by default.
ADMISSION_FAIR_SHARING: Final = "AdmissionFairSharing"
#: The feature gate of Kueue 0.20 with which usage counts from the quota reservation, not from the admission.
ANCHOR_AT_QUOTA_RESERVATION: Final = "AdmissionFairSharingAnchorAtQuotaReservation"
#: The feature gate of Jobs that are scaled while they run, which is on by default.
ELASTIC_JOBS_GATE: Final = "ElasticJobsViaWorkloadSlices"
#: The feature gate of Kueue 0.20 with which elastic Jobs may grow by a part of the pods that they request.
FLAVOR_CHANGE_GATE: Final = "ElasticJobsViaWorkloadSlicesFlavorChangeFromZero"
PARTIAL_SCALE_UP_GATE: Final = "ElasticJobsViaWorkloadSlicesWithPartialReplicaScaleUp"
#: The feature gate with which elastic Jobs may be preempted down to their minimum number of pods.
PARTIAL_PREEMPTION_GATE: Final = "PartialPreemption"
PREEMPTION_GATES_GATE: Final = "MultiKueueOrchestratedPreemption"
SHAPE_ORDERING_GATE: Final = "PodGroupSchedulingShapeOrdering"
#: The feature gate of Kueue 0.20 with which the rules of PreemptionConfigs select further victims.
CONFIGURABLE_PREEMPTIONS: Final = "ConfigurablePreemptions"
#: The feature gates of topology-aware scheduling that batchyard obeys.
TAS_BALANCED_PLACEMENT: Final = "TASBalancedPlacement"
TAS_PREFERRED_AFFINITY: Final = "TASRespectNodeAffinityPreferred"
TAS_OVERLAPPING_FLAVORS: Final = "TASHandleOverlappingFlavors"
TAS_POD_TERMINATION: Final = "TASReplaceNodeOnPodTermination"
TAS_FAILED_NODE_REPLACEMENT: Final = "TASFailedNodeReplacement"
TAS_FAIL_FAST: Final = "TASFailedNodeReplacementFailFast"
TAS_FIXED_DELAY: Final = "TASReplaceNodeDueToNotReadyOverFixedTime"
TAS_RECOMPUTATION: Final = "TASRecomputeAssignmentWithinSchedulingCycle"
TAS_TAINTED_NODES: Final = "TASReplaceNodeOnNodeTaints"
TAS_PROFILE_MIXED: Final = "TASProfileMixed"
TAS_MULTIPLE_LAYERS: Final = "TASMultiLayerTopology"
TAS_SLICE_SIZE_VALIDATION: Final = "TASValidateWorkloadSliceSize"
#: The feature gates that decide which errors the validation of objects reports.
VALIDATION_GATES: Final = (TAS_MULTIPLE_LAYERS, TAS_SLICE_SIZE_VALIDATION)
TOPOLOGY_AWARE_SCHEDULING: Final = "TopologyAwareScheduling"
ELASTIC_TOPOLOGY_GATE: Final = "ElasticJobsViaWorkloadSlicesWithTAS"
TOPOLOGY_GATES: Final = (
    *(ELASTIC_TOPOLOGY_GATE, TAS_BALANCED_PLACEMENT, TAS_PREFERRED_AFFINITY, TAS_PROFILE_MIXED),
    *(TAS_FAILED_NODE_REPLACEMENT, TAS_FAIL_FAST, TAS_FIXED_DELAY),
    *(TAS_OVERLAPPING_FLAVORS, TAS_POD_TERMINATION, TAS_RECOMPUTATION, TAS_TAINTED_NODES),
    TOPOLOGY_AWARE_SCHEDULING,
)

#: The preemption strategies of fair sharing.
FINAL_SHARE: Final = "LessThanOrEqualToFinalShare"
INITIAL_SHARE: Final = "LessThanInitialShare"

_GATES_ON_BY_DEFAULT: Final = """
    AdmissionFairSharing AdmissionGatedBy AssignQueueLabelsForPods CleanupProvisioningRequestsOnEviction
    DeferRayServiceFinalizationForRedisCleanup EnforceProvisioningPodTemplateContents
    ElasticJobsViaWorkloadSlices FairSharingPreemptWithinNominal
    FairSharingPrioritizeNonBorrowing FinishOrphanedWorkloads FlavorFungibility
    FlavorFungibilityPreserveScanProgress KueueDRAIntegration KueueDRAIntegrationExtendedResource
    KueueDRAIntegrationPartitionableDevices KueueDRARejectWorkloadsWhenDRADisabled LWSImmutableGroupSize
    LocalQueueMetrics ManagedJobsNamespaceSelectorAlwaysRespected MetricForWorkloadCreationLatency MetricsForCohorts
    MultiKueue MultiKueueAdaptersForCustomJobs MultiKueueIncrementalDispatcherConfig
    MultiKueueIncrementalDispatcherRespectConfigOrder MultiKueueKubeConfigPathValidation MultiKueueRemoteSpecSync
    PartialAdmission PodIntegrationValidateGroupOwner PrioritySortingWithinCohort QuotaCheckStrategy ReclaimablePods
    RecomputeAssignmentUponPreemptionTargetsOverlap RemoveFinalizersWithStrictPatch ReservedResourceNameValidation
    SchedulingEquivalenceHashing
    SkipAncestorCheckForDeletedWorkloads SkipReassignmentForPodOwnedWorkloads TASAssignmentsEncodingByHostnamePrefix
    TASCacheNodeMatchResults TASCacheTopologyTree TASCachingRemainingResources TASFailedNodeReplacement
    TASFailedNodeReplacementFailFast TASHandleOverlappingFlavors TASMultiLayerTopology TASProfileMixed
    TASRecomputeAssignmentWithinSchedulingCycle TASReplaceNodeOnNodeTaints TASReplaceNodeOnPodTermination
    TASValidateWorkloadSliceSize TLSOptions TopologyAwareScheduling UnadmittedWorkloadsObservability
    ValidateRayAndSparkJobUpdates VectorizedResourceRequests VisibilityOnDemand WorkloadIdentifierAnnotations
    WorkloadPriorityClassDefaulting WorkloadValidateResourcesAreNonNegative WorkloadValidationForPodSetMetadata
"""
_GATES_OFF_BY_DEFAULT: Final = """
    AdmissionFairSharingAnchorAtQuotaReservation
    ConcurrentAdmission ConfigurablePreemptions CustomMetricLabels DeploymentJobUIDLabel DisableWaitForPodsReady
    DynamicQuotaOrchestration ElasticJobsViaWorkloadSlicesFlavorChangeFromZero
    ElasticJobsViaWorkloadSlicesForProvisioningRequests
    ElasticJobsViaWorkloadSlicesWithPartialReplicaScaleUp ElasticJobsViaWorkloadSlicesWithTAS
    FailureRecoveryPolicy FairSharingReevaluatePreemptionCandidates FairSharingRefill
    FastQuotaReleaseInPodIntegration HighMaxParallelismWithinReconcile KueueDRADeviceFeasibility
    KueueDRAIntegrationConsumableCapacity KueueDRAIntegrationDeviceTaints KueueDRAIntegrationPrioritizedList
    MultiKueueBatchJobClearingTTLSecondsAfterFinishedOnWorkerCluster
    MultiKueueClusterProfile MultiKueueManagerQuotaAutomation MultiKueueOrchestratedPreemption
    MultiKueueRayInTreeAutoscaling MultiKueueReuseClientConnectionConfigForWorkers
    PartialPreemption PodGroupSchedulingShapeOrdering PodIntegrationCountSucceededPodsAsReady
    PrioritizePreemptorWorkloads PriorityBoost RayServiceValidateUpgradeStrategy
    RejectUpdatesToCQWithInvalidOnFlavors SchedulerLibraryIntegration
    SchedulingEquivalenceHashingIgnorePodSetName
    ShortWorkloadNames SparkApplicationIntegration TASBalancedPlacement TASGroupedPodSetSlicing
    TASLeaderPodSetFeasibility TASNodeFeasibilityForAllLevels TASPartialSlices
    TASRejectFalseUnconstrainedTopology TASReplaceMultipleFailedNodes TASReplaceNodeDueToNotReadyOverFixedTime
    TASRespectNodeAffinityPreferred TASTopologySpreading UnadmittedWorkloadsExplicitStatus WaitForPodsReadyMaxNotReady
    WaitForPodsReadyUnscheduledTimeout WorkloadLevelWaitForPodsReady WorkloadRequestUseMergePatch
"""
#: The feature gates of Kueue by name: whether each is enabled by default.
GATES: Final[Mapping[str, bool]] = {
    **dict.fromkeys(_GATES_ON_BY_DEFAULT.split(), True),
    **dict.fromkeys(_GATES_OFF_BY_DEFAULT.split(), False),
}

#: The default range of the cluster IPs of Services.
DEFAULT_SERVICE_CIDR: Final = "10.96.0.0/16"
#: The network of a machine's pods, and its gateway, at which the API is served if cluster IPs are not reachable.
POD_CIDR: Final = "10.77.0.0/16"
POD_GATEWAY: Final = "10.77.0.1"
