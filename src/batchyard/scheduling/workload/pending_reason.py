"""Pending reasons that do not depend on the scheduler: from the Workload's queues, its namespace and its own gates.

Reasons from the scheduler are kept until its next cycle. The reasons here are reevaluated on every change, so they
disappear with their cause. Source: resolveGranularUnadmittedQuotaReservedCondition and getQueueBlocker in
pkg/controller/core/workload_controller.go of Kueue.
"""

import re
from typing import Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation, find_condition, selector
from batchyard.api.views.node import namespace_labels
from batchyard.scheduling import messages
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.lifecycle import has_admission_gate, is_active, is_on_hold

#: Reasons that the scheduler sets; only it resets them.
VERDICTS: Final = frozenset(
    {
        messages.NO_MATCHING_FLAVOR,
        messages.WAITING_FOR_QUOTA,
        messages.EXCEEDS_MAX_QUOTA,
        lifecycle.TOPOLOGY_PLACEMENT_FAILED,
        messages.WAITING_FOR_PREEMPTED_WORKLOADS,
        lifecycle.WAITING_FOR_PODS_READY,
        messages.PENDING_EVALUATION,
    }
)
_AWAITED: Final = "Workload is pending evaluation in the scheduling queue"
_OURS: Final = re.compile(
    r"(Local|Cluster)Queue \S* (doesn't exist|is inactive|is stopped|is terminating or missing)$|"
    + messages.NAMESPACE_MISMATCH
)


class PendingReason(NamedTuple):
    """A reason and a message of QuotaReserved=False."""

    reason: str
    message: str


class WorkloadQueues(NamedTuple):
    """The current queues of a Workload; None for missing ones."""

    local_queue: Obj | None
    cluster_queue: Obj | None
    namespace: Obj | None = None

    @property
    def cluster_queue_name(self) -> str:
        """The ClusterQueue that the LocalQueue references, whether it exists or not."""
        if self.local_queue is None:
            return ""
        return self.local_queue["spec"].get("clusterQueue") or ""


def stop_policy(queue: Obj | None) -> str:
    """Return the stop policy of a LocalQueue or ClusterQueue: None, Hold or HoldAndDrain."""
    return "None" if queue is None else queue["spec"].get("stopPolicy") or "None"


def held_by(queue: Obj | None) -> str:
    """Return the Budget that holds a LocalQueue, as a suffix; empty if there is none."""
    names = None if queue is None else annotation(queue, well_known.HELD_BY)
    return "" if names is None else f": held by Budget {names}"


def is_inactive(cluster_queue: Obj) -> bool:
    """Report whether its status is inactive. A ClusterQueue without an Active condition counts as active."""
    active = find_condition(cluster_queue, "Active")
    return active is not None and active["status"] != "True"


def reason_for_pending(workload: Obj, queues: WorkloadQueues) -> PendingReason | None:
    """Return the reason for QuotaReserved=False of a Workload without quota; None to leave it unchanged."""
    if not is_active(workload):
        return PendingReason(lifecycle.DEACTIVATED, "The workload is deactivated")
    if is_on_hold(workload):
        return None
    blocker = queue_blocker(workload, queues) or _mismatch(queues)
    if blocker is not None:
        return blocker
    if has_admission_gate(workload):
        return gated(workload)
    return _again(workload)


def queue_blocker(workload: Obj, queues: WorkloadQueues) -> PendingReason | None:
    """Return why its queues do not accept it, if they do not."""
    name = workload["spec"].get("queueName", "")
    if queues.local_queue is None:
        return PendingReason(messages.MISCONFIGURED, f"LocalQueue {name} doesn't exist")
    if stop_policy(queues.local_queue) != "None":
        return PendingReason(messages.SUSPENDED, f"LocalQueue {name} is inactive{held_by(queues.local_queue)}")
    if queues.cluster_queue is None:
        return PendingReason(messages.MISCONFIGURED, f"ClusterQueue {queues.cluster_queue_name} doesn't exist")
    if is_inactive(queues.cluster_queue):
        return PendingReason(messages.SUSPENDED, f"ClusterQueue {queues.cluster_queue_name} is inactive")
    return None


def gated(workload: Obj) -> PendingReason:
    """Return the reason of a Workload with an admission gate."""
    return PendingReason(
        lifecycle.ADMISSION_GATED, f"Admission is gated by: {annotation(workload, well_known.ADMISSION_GATED_BY)}"
    )


def reservation_blocker(workload: Obj, queues: WorkloadQueues) -> PendingReason | None:
    """Return why quota must be released before admission: a queue was stopped or deleted."""
    name = workload["spec"].get("queueName", "")
    return _closed("LocalQueue", name, queues.local_queue) or _closed(
        "ClusterQueue", queues.cluster_queue_name, queues.cluster_queue
    )


def _closed(kind: str, name: str, queue: Obj | None) -> PendingReason | None:
    if queue is None or "deletionTimestamp" in queue["metadata"]:
        return PendingReason(messages.MISCONFIGURED, f"{kind} {name} is terminating or missing")
    return (
        None
        if stop_policy(queue) == "None"
        else PendingReason(messages.SUSPENDED, f"{kind} {name} is stopped{held_by(queue)}")
    )


def _mismatch(queues: WorkloadQueues) -> PendingReason | None:
    """Return the reason if the ClusterQueue does not select its namespace. The scheduler reports missing ones."""
    if queues.namespace is None or queues.cluster_queue is None:
        return None
    namespaces = selector(queues.cluster_queue["spec"].get("namespaceSelector"))
    if namespaces is not None and namespaces.matches(namespace_labels(queues.namespace)):
        return None
    return PendingReason(messages.MISCONFIGURED, messages.NAMESPACE_MISMATCH)


def _again(workload: Obj) -> PendingReason | None:
    """Return PendingEvaluation if nothing blocks it any more, but only to replace a reason set by this module."""
    condition = find_condition(workload, lifecycle.QUOTA_RESERVED)
    if condition is None or condition["reason"] in VERDICTS:
        return None
    if condition["reason"] in {messages.MISCONFIGURED, messages.SUSPENDED} and not _OURS.match(condition["message"]):
        return None
    return PendingReason(messages.PENDING_EVALUATION, _AWAITED)


def is_evaluation_awaited(workload: Obj) -> bool:
    """Report whether its condition is PendingEvaluation with the message set here."""
    condition = find_condition(workload, lifecycle.QUOTA_RESERVED)
    return condition is not None and condition["status"] == "False" and condition["message"] == _AWAITED
