"""The labels, annotations and finalizers that say something to a platform.

Sources: Kueue's pkg/controller/constants and apis/kueue/v1beta2, JobSet's api/jobset/v1alpha2, Kubernetes' well-known
labels; those of `batchyard.dev` are our own, for simulated work.
"""

from typing import Final

# On jobs, and some of them on the Workloads made for them.
QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
MAX_EXEC_TIME: Final = "kueue.x-k8s.io/max-exec-time-seconds"
PREBUILT_WORKLOAD: Final = "kueue.x-k8s.io/prebuilt-workload-name"
ELASTIC_JOB: Final = "kueue.x-k8s.io/elastic-job"
ADMISSION_GATED_BY: Final = "kueue.x-k8s.io/admission-gated-by"
MIN_PARALLELISM: Final = "kueue.x-k8s.io/job-min-parallelism"
EQUAL_COMPLETIONS: Final = "kueue.x-k8s.io/job-completions-equal-parallelism"
STOPPING: Final = "kueue.x-k8s.io/stopping"

# On Workloads.
JOB_UID: Final = "kueue.x-k8s.io/job-uid"
REPLACEMENT_FOR: Final = "kueue.x-k8s.io/workload-slice-replacement-for"
RESOURCE_IN_USE: Final = "kueue.x-k8s.io/resource-in-use"

# On pods.
WORKLOAD: Final = "kueue.x-k8s.io/workload"
POD_SET: Final = "kueue.x-k8s.io/podset"
LOCAL_QUEUE: Final = "kueue.x-k8s.io/local-queue-name"
CLUSTER_QUEUE: Final = "kueue.x-k8s.io/cluster-queue-name"
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"

# On pod templates: where the pods of a pod set may lie to each other.
REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
UNCONSTRAINED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-unconstrained-topology"
SLICE_TOPOLOGY: Final = "kueue.x-k8s.io/podset-slice-required-topology"
SLICE_SIZE: Final = "kueue.x-k8s.io/podset-slice-size"
SLICE_LAYERS: Final = "kueue.x-k8s.io/podset-slice-required-topology-constraints"
POD_SET_GROUP: Final = "kueue.x-k8s.io/podset-group-name"

# On nodes.
HOSTNAME: Final = "kubernetes.io/hostname"

# On whatever is simulated: when it comes and goes, and how long it runs.
SUBMIT_AT: Final = "batchyard.dev/submit-at"
DELETE_AT: Final = "batchyard.dev/delete-at"
RUNTIME: Final = "batchyard.dev/runtime"
