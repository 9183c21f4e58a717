"""Messages and reasons of pending and preempted Workloads, formatted as in Kueue.

Sources: Kueue's pkg/scheduler/flavorassigner (messages), apis/kueue/v1beta2 (reasons of QuotaReserved=False).
"""

import re
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.meta import format_amount
from batchyard.api.views.workload import WorkloadView

NO_MATCHING_FLAVOR: Final = "NoMatchingFlavor"
EXCEEDS_MAX_QUOTA: Final = "ExceedsMaxQuota"
WAITING_FOR_QUOTA: Final = "WaitingForQuota"
WAITING_FOR_PREEMPTED_WORKLOADS: Final = "WaitingForPreemptedWorkloads"
MISCONFIGURED: Final = "Misconfigured"
SUSPENDED: Final = "Suspended"
TOPOLOGY_PLACEMENT_FAILED: Final = "TopologyPlacementFailed"
PENDING_EVALUATION: Final = "PendingEvaluation"
ADMISSION_GATED: Final = "AdmissionGated"
#: The message of a Workload with a closed gate in `spec.preemptionGates`.
PREEMPTION_GATED: Final = "Workload requires preemption, but it's gated"
#: The message of a bypassed Workload.
BYPASSED: Final = "Bypassed scheduling evaluation because an equivalent workload recently failed"
#: The reason of the Event about a write of a controller that the API server rejects repeatedly.
WRITE_REFUSED: Final = "WriteRefused"
#: The reason of the Event about an object that a controller writes so often that it must pause.
WRITE_LOOP: Final = "WriteLoop"

NAMESPACE_MISMATCH: Final = "workload namespace doesn't match ClusterQueue selector"

_SEVERITY_BY_REASON: Final = {
    reason: severity
    for severity, reason in enumerate(
        ("", TOPOLOGY_PLACEMENT_FAILED, WAITING_FOR_QUOTA, EXCEEDS_MAX_QUOTA, NO_MATCHING_FLAVOR)
    )
}


class PreemptionReason:
    """The reasons of a Workload's Preempted condition, and the wording of each in the condition's message."""

    IN_CLUSTER_QUEUE: Final = "InClusterQueue"
    IN_COHORT_RECLAMATION: Final = "InCohortReclamation"
    IN_COHORT_FAIR_SHARING: Final = "InCohortFairSharing"
    IN_COHORT_RECLAIM_WHILE_BORROWING: Final = "InCohortReclaimWhileBorrowing"
    CONFIGURABLE: Final = "ConfigurablePreemption"
    WORDINGS: Final = {
        IN_CLUSTER_QUEUE: "prioritization in the ClusterQueue",
        IN_COHORT_RECLAMATION: "reclamation within the cohort",
        IN_COHORT_FAIR_SHARING: "Fair Sharing within the cohort",
        IN_COHORT_RECLAIM_WHILE_BORROWING: "reclamation within the cohort while borrowing",
        CONFIGURABLE: "the configured preemption rules",
    }


class RequeueReason(IntEnum):
    """Why a head stays pending after a cycle; affects whether it is tried again at once or only after a change."""

    GENERIC = 0
    FAILED_AFTER_NOMINATION = 1
    NAMESPACE_MISMATCH = 2
    PENDING_PREEMPTION = 3
    NO_FIT = 4
    PREEMPTION_NO_CANDIDATES = 5
    PREEMPTION_GATED = 6


#: Matches what `InsufficientQuota` formats: the resource, the flavor and the missing quantity.
INSUFFICIENT_QUOTA_PATTERN: Final = re.compile(
    r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed"
)


class InsufficientQuota(NamedTuple):
    """Why a flavor was rejected for a resource: the quota would suffice, but too much of it is in use."""

    resource: str
    flavor: str
    missing_amount: int

    def __str__(self) -> str:
        """Format Kueue's message, with the missing amount."""
        missing_quota = format_amount(self.resource, self.missing_amount)
        return f"insufficient unused quota for {self.resource} in flavor {self.flavor}, {missing_quota} more needed"


class ExceedsMaxCapacity(NamedTuple):
    """Why a flavor was rejected for a resource: the Workload requests more quota than the queue could ever use."""

    resource: str
    flavor: str
    assumed_usage: int
    request: int
    capacity: int

    def __str__(self) -> str:
        """Format Kueue's message, with the request and the maximum capacity."""
        assumed_usage, request, capacity = (
            format_amount(self.resource, amount) for amount in (self.assumed_usage, self.request, self.capacity)
        )
        return (
            f"insufficient quota for {self.resource} in flavor {self.flavor}, previously considered podsets requests"
            f" ({assumed_usage}) + current podset request ({request}) > maximum capacity ({capacity})"
        )


RejectionReason: TypeAlias = InsufficientQuota | ExceedsMaxCapacity | str


class PodSetReasons(NamedTuple):
    """The reasons why flavors were rejected for one pod set of a Workload."""

    pod_set: str
    rejections: tuple[RejectionReason, ...]
    #: Why no flavor could be searched; '' if flavors were rejected.
    error: str = ""

    def __str__(self) -> str:
        """Return Kueue's message that flavors could not be assigned to the pod set, with the error or the reasons."""
        if self.error:
            return f"failed to assign flavors to pod set {self.pod_set}: {self.error}"
        return f"couldn't assign flavors to pod set {self.pod_set}: {', '.join(sorted(map(str, self.rejections)))}"


def format_pod_set_reasons(pod_sets: tuple[PodSetReasons, ...]) -> str:
    """Return Kueue's message that pod sets could not be assigned flavors, with the reasons; '' if none has a reason.

    The first error replaces the reasons of all pod sets, as in Assignment.Message of Kueue.
    """
    error_text = next((str(each) for each in pod_sets if each.error), "")
    return error_text or "; ".join(str(each) for each in pod_sets if each.rejections)


def more_severe_reason(reason: str, other_reason: str) -> str:
    """Return the more severe of two no-fit reasons; '' is the least severe, NoMatchingFlavor the most severe."""
    return reason if _SEVERITY_BY_REASON[reason] >= _SEVERITY_BY_REASON[other_reason] else other_reason


def less_severe_reason(reason: str, other_reason: str) -> str:
    """Return the less severe of two no-fit reasons; '' is the least severe, NoMatchingFlavor the most severe."""
    return reason if _SEVERITY_BY_REASON[reason] <= _SEVERITY_BY_REASON[other_reason] else other_reason


def preemption_message(workload_uid: str, job_uid: str, reason: str, preemptor_path: str, preemptee_path: str) -> str:
    """Format Kueue's condition message for a preempted Workload; `workload_uid` and `job_uid` are the preemptor's."""
    return (
        f"Preempted to accommodate a workload (UID: {workload_uid or 'UNKNOWN'}, JobUID: {job_uid or 'UNKNOWN'}) due to"
        f" {PreemptionReason.WORDINGS[reason]}; preemptor path: {preemptor_path}; preemptee path: {preemptee_path}"
    )


def parse_preemptor_uid(message: str) -> str:
    """Extract the preemptor's uid (or UNKNOWN) from a message of `preemption_message()`; '' if the message has none."""
    return message.partition("(UID: ")[2].partition(",")[0]


def over_limit_message(workload: WorkloadView) -> str:
    """Return Kueue's message about pod sets whose requests exceed their limits."""
    faults = [
        f"spec.podSets[{index}].template.spec.{path}: Invalid value: [{names}]: requests must not exceed its limits"
        for index, pod_set in enumerate(workload.pod_sets)
        for path, resources in pod_set.template.over_limit
        for names in (",".join(f'"{name}"' for name in resources),)
    ]
    return f"resources validation failed: {faults[0] if len(faults) == 1 else '[' + ', '.join(faults) + ']'}"
