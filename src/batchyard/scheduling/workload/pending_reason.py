"""The reasons why a Workload is pending that do not come from the scheduler, but from its queues, namespace and gates.

Reasons set by the scheduler are kept until its next cycle. The reasons of this module are reevaluated on every change,
so they disappear with their cause. Source: resolveGranularUnadmittedQuotaReservedCondition and getQueueBlocker in
pkg/controller/core/workload_controller.go of Kueue.
"""

import re
from typing import Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation, find_condition, parse_selector
from batchyard.api.views.node import namespace_labels
from batchyard.scheduling import messages
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.lifecycle import has_admission_gate, is_active, is_on_hold

#: Reasons that stay until the scheduler changes them, unless a reason of this module applies.
SCHEDULER_REASONS: Final = frozenset(
    {
        messages.NO_MATCHING_FLAVOR,
        messages.WAITING_FOR_QUOTA,
        messages.EXCEEDS_MAX_QUOTA,
        messages.TOPOLOGY_PLACEMENT_FAILED,
        messages.WAITING_FOR_PREEMPTED_WORKLOADS,
        lifecycle.WAITING_FOR_PODS_READY,
        messages.PENDING_EVALUATION,
    }
)
_EVALUATION_AWAITED: Final = "Workload is pending evaluation in the scheduling queue"
_OWN_MESSAGES_PATTERN: Final = re.compile(
    r"(Local|Cluster)Queue \S* (doesn't exist|is inactive|is stopped|is terminating or missing)$|"
    + messages.NAMESPACE_MISMATCH
)


class PendingReason(NamedTuple):
    """The reason and message of a pending Workload's QuotaReserved condition."""

    reason: str
    message: str


class WorkloadQueues(NamedTuple):
    """The current LocalQueue, ClusterQueue and Namespace of a Workload; each None if it was not found."""

    local_queue: Obj | None
    cluster_queue: Obj | None
    namespace: Obj | None = None

    @property
    def cluster_queue_name(self) -> str:
        """The name of the ClusterQueue that the LocalQueue references, even if that ClusterQueue does not exist."""
        if self.local_queue is None:
            return ""
        return (self.local_queue.get("spec") or {}).get("clusterQueue") or ""


def stop_policy(queue: Obj | None) -> str:
    """Return the stopPolicy of a queue: 'None' (the default, also without a queue), 'Hold' or 'HoldAndDrain'."""
    return "None" if queue is None else (queue.get("spec") or {}).get("stopPolicy") or "None"


def holding_budgets_suffix(queue: Obj | None) -> str:
    """Return a message suffix that names the Budgets (batchyard objects) that stop a LocalQueue; '' if none."""
    names = None if queue is None else annotation(queue, well_known.HELD_BY)
    return "" if names is None else f": held by Budget {names}"


def is_inactive(cluster_queue: Obj) -> bool:
    """Return whether a ClusterQueue is inactive; without an Active condition it counts as active."""
    active_condition = find_condition(cluster_queue, "Active")
    return active_condition is not None and active_condition["status"] != "True"


def reason_for_pending(workload: Obj, queues: WorkloadQueues) -> PendingReason | None:
    """Return the pending reason of a Workload without quota; None to leave its condition unchanged."""
    if not is_active(workload):
        return PendingReason(lifecycle.DEACTIVATED, "The workload is deactivated")
    if is_on_hold(workload):
        return None
    blocker = queue_pending_reason(workload, queues) or _namespace_mismatch_reason(queues)
    if blocker is not None:
        return blocker
    if has_admission_gate(workload):
        return gate_reason(workload)
    return _evaluation_awaited_reason(workload)


def queue_pending_reason(workload: Obj, queues: WorkloadQueues) -> PendingReason | None:
    """Return the pending reason if a Workload's queue is missing, stopped or inactive; otherwise None."""
    name = workload["spec"].get("queueName", "")
    if queues.local_queue is None:
        return PendingReason(messages.MISCONFIGURED, f"LocalQueue {name} doesn't exist")
    if stop_policy(queues.local_queue) != "None":
        suffix = holding_budgets_suffix(queues.local_queue)
        return PendingReason(messages.SUSPENDED, f"LocalQueue {name} is inactive{suffix}")
    if queues.cluster_queue is None:
        return PendingReason(messages.MISCONFIGURED, f"ClusterQueue {queues.cluster_queue_name} doesn't exist")
    if is_inactive(queues.cluster_queue):
        return PendingReason(messages.SUSPENDED, f"ClusterQueue {queues.cluster_queue_name} is inactive")
    return None


def gate_reason(workload: Obj) -> PendingReason:
    """Return the pending reason of a Workload with an admission gate."""
    gate_names = annotation(workload, well_known.ADMISSION_GATED_BY)
    return PendingReason(messages.ADMISSION_GATED, f"Admission is gated by: {gate_names}")


def reservation_blocker(workload: Obj, queues: WorkloadQueues) -> PendingReason | None:
    """Return the pending reason if a stopped or deleted queue ends a Workload's quota reservation; otherwise None."""
    name = workload["spec"].get("queueName", "")
    return _closed_queue_reason("LocalQueue", name, queues.local_queue) or _closed_queue_reason(
        "ClusterQueue", queues.cluster_queue_name, queues.cluster_queue
    )


def _closed_queue_reason(kind: str, name: str, queue: Obj | None) -> PendingReason | None:
    if queue is None or "deletionTimestamp" in queue["metadata"]:
        return PendingReason(messages.MISCONFIGURED, f"{kind} {name} is terminating or missing")
    return (
        None
        if stop_policy(queue) == "None"
        else PendingReason(messages.SUSPENDED, f"{kind} {name} is stopped{holding_budgets_suffix(queue)}")
    )


def _namespace_mismatch_reason(queues: WorkloadQueues) -> PendingReason | None:
    if queues.namespace is None or queues.cluster_queue is None:
        return None
    namespace_selector = parse_selector((queues.cluster_queue.get("spec") or {}).get("namespaceSelector"))
    if namespace_selector is not None and namespace_selector.matches(namespace_labels(queues.namespace)):
        return None
    return PendingReason(messages.MISCONFIGURED, messages.NAMESPACE_MISMATCH)


def _evaluation_awaited_reason(workload: Obj) -> PendingReason | None:
    """Return PendingEvaluation, which means that the scheduler must evaluate the Workload, if its reason is outdated.

    The caller has found no reason that applies. A reason in the condition QuotaReserved is outdated if this module set
    it. Return None if the scheduler or Kueue set it, or if there is no condition.
    """
    condition = find_condition(workload, lifecycle.QUOTA_RESERVED)
    if condition is None or condition["reason"] in SCHEDULER_REASONS:
        return None
    is_blocked = condition["reason"] in {messages.MISCONFIGURED, messages.SUSPENDED}
    if is_blocked and not _OWN_MESSAGES_PATTERN.match(condition["message"]):
        return None
    return PendingReason(messages.PENDING_EVALUATION, _EVALUATION_AWAITED)


def is_evaluation_awaited(workload: Obj) -> bool:
    """Return whether a Workload's condition message says that it waits for evaluation by the scheduler."""
    condition = find_condition(workload, lifecycle.QUOTA_RESERVED)
    return condition is not None and condition["status"] == "False" and condition["message"] == _EVALUATION_AWAITED
