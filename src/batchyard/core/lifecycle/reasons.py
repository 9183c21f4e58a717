"""The words of a Workload's conditions: their types, and the reasons other layers branch on.

Source: apis/kueue/v1beta2/workload_types.go of Kueue. Clients read these texts, so they are never changed.
"""

from typing import Final

# Condition types.
QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
FINISHED: Final = "Finished"
EVICTED: Final = "Evicted"
PREEMPTED: Final = "Preempted"
REQUEUED: Final = "Requeued"
PODS_READY: Final = "PodsReady"
DEACTIVATION_TARGET: Final = "DeactivationTarget"
BLOCKED_ON_PREEMPTION_GATES: Final = "BlockedOnPreemptionGates"

# Reasons of Evicted=True.
EVICTED_BY_PREEMPTION: Final = "Preempted"
EVICTED_BY_PODS_READY_TIMEOUT: Final = "PodsReadyTimeout"
EVICTED_BY_ADMISSION_CHECK: Final = "AdmissionCheck"
EVICTED_BY_CLUSTER_QUEUE_STOPPED: Final = "ClusterQueueStopped"
EVICTED_BY_LOCAL_QUEUE_STOPPED: Final = "LocalQueueStopped"
EVICTED_DUE_TO_NODE_FAILURES: Final = "NodeFailures"
DEACTIVATED: Final = "Deactivated"

# Reasons of QuotaReserved=False, beside those of batchyard.core.reasons.
TOPOLOGY_PLACEMENT_FAILED: Final = "TopologyPlacementFailed"
WAITING_FOR_PODS_READY: Final = "WaitingForPodsReady"
ON_HOLD: Final = "OnHold"
ADMISSION_GATED: Final = "AdmissionGated"

# Reasons of Requeued=True.
REACTIVATED: Final = "Reactivated"
BACKOFF_FINISHED: Final = "BackoffFinished"
CLUSTER_QUEUE_RESTARTED: Final = "ClusterQueueRestarted"
LOCAL_QUEUE_RESTARTED: Final = "LocalQueueRestarted"

# Reasons of DeactivationTarget=True, beside EVICTED_BY_ADMISSION_CHECK.
MAXIMUM_EXECUTION_TIME_EXCEEDED: Final = "MaximumExecutionTimeExceeded"
REQUEUING_LIMIT_EXCEEDED: Final = "RequeuingLimitExceeded"

# Reasons of PodsReady, first those of False.
WAIT_FOR_START: Final = "WaitForStart"
WAIT_FOR_RECOVERY: Final = "WaitForRecovery"
STARTED: Final = "Started"
RECOVERED: Final = "Recovered"

# Reasons of Finished=True.
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
FAILED_TO_START: Final = "FailedToStart"
OUT_OF_SYNC: Final = "OutOfSync"
OWNER_NOT_FOUND: Final = "OwnerNotFound"
