"""The lifecycle of a Pod: its status, and changes of the status by components other than its kubelet.

Source: k8s.io/kubernetes pkg/api/v1/pod (conditions) and k8s.io/api core/v1 (phases, DisruptionTarget and its reasons).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Obj, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.api.views import pod as views
from batchyard.api.views.pod import taint, toleration
from batchyard.base.instant import SECOND, Instant

PENDING: Final = "Pending"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"

READY: Final = "Ready"
SCHEDULED: Final = "PodScheduled"
DISRUPTION_TARGET: Final = "DisruptionTarget"

#: The minimum priority of system-critical pods.
SYSTEM_CRITICAL: Final = 2_000_000_000

#: The time in seconds until eviction if no toleration covers the taint.
_NOT_TOLERATED: Final = 0


class Disruption(NamedTuple):
    """The cause of a disruption: reason and message of the condition DisruptionTarget."""

    reason: str
    message: str


BY_TAINT: Final = Disruption("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
BY_POD_GC: Final = Disruption("DeletionByPodGC", "PodGC: node no longer exists")
BY_EVICTION: Final = Disruption("EvictionByEvictionAPI", "Eviction API: evicting")
BY_KUBELET: Final = Disruption("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.")


def phase(pod: Obj) -> str:
    """Return the phase of a pod; Pending if it has none yet."""
    return (pod.get("status") or {}).get("phase") or PENDING


def is_terminal(pod: Obj) -> bool:
    """Report whether a pod has Succeeded or Failed."""
    return phase(pod) in {SUCCEEDED, FAILED}


def is_terminating(pod: Obj) -> bool:
    """Report whether a pod was deleted and still exists."""
    return "deletionTimestamp" in pod["metadata"]


def is_gone_but_for_finalizers(pod: Obj) -> bool:
    """Report whether only finalizers keep a pod: it has ended, was deleted and has no grace period left."""
    return is_terminal(pod) and is_terminating(pod) and not pod["metadata"].get("deletionGracePeriodSeconds")


def is_ready(pod: Obj) -> bool:
    """Report whether the condition Ready is true."""
    return is_true(pod, READY)


def node_of(pod: Obj) -> str:
    """Return the node that a pod is bound to, or ''."""
    return pod["spec"].get("nodeName") or ""


def priority(pod: Obj) -> int:
    """Return the priority of a pod; zero if it has none."""
    return pod["spec"].get("priority") or 0


def grace_period(pod: Obj) -> int:
    """Return the grace period of a pod in seconds."""
    return views.grace_period(pod["spec"])


def deleted_at(pod: Obj) -> Instant | None:
    """Return the time of the deletion request, one grace period before its deletionTimestamp; None if not deleted."""
    metadata = pod["metadata"]
    until = metadata.get("deletionTimestamp")
    if until is None:
        return None
    grace: int = metadata.get("deletionGracePeriodSeconds") or 0
    return parse_time(until) - grace * SECOND


def scheduled_at(pod: Obj) -> Instant:
    """Return the time when a pod was bound to its node, as far as its status shows."""
    scheduled = find_condition(pod, SCHEDULED)
    if scheduled is not None and scheduled["status"] == "True":
        return parse_time(scheduled["lastTransitionTime"])
    return parse_time((pod.get("status") or {}).get("startTime") or pod["metadata"]["creationTimestamp"])


def driven_out_at(pod: Obj, taints: Sequence[Mapping[str, Any]]) -> Instant | None:
    """Return the time when NoExecute taints of its node evict a pod; None if it tolerates all of them forever.

    The shortest toleration counts, from the first taint or from the time of binding. A time in the past means now.
    Source: pkg/controller/tainteviction.
    """
    seconds: list[int] = []
    tolerations = [(toleration(obj), obj.get("tolerationSeconds")) for obj in pod["spec"].get("tolerations") or ()]
    for obj in taints:
        view = taint(obj)
        used = next((limit for tolerates, limit in tolerations if tolerates.tolerates(view)), _NOT_TOLERATED)
        if used is not None:
            seconds.append(max(0, used))
    if not seconds:
        return None
    added = [parse_time(obj["timeAdded"]) for obj in taints if "timeAdded" in obj]
    return max(min(added, default=0), scheduled_at(pod)) + min(seconds) * SECOND


def with_condition(pod: Obj, kind: str, holds: bool, why: tuple[str, str], now: Instant) -> Obj:
    """Return the pod with this condition, reason and message; the pod itself if nothing changes."""
    status = pod.get("status") or {}
    conditions: list[Mapping[str, Any]] = status.get("conditions") or []
    old = next((c for c in conditions if c["type"] == kind), None)
    new = condition(kind, holds, why, old, now)
    if new == old:
        return pod
    changed = [*conditions, new] if old is None else [new if c is old else c for c in conditions]
    return with_status(pod, {**status, "conditions": changed})


def condition(
    kind: str, holds: bool, why: tuple[str, str], old: Mapping[str, Any] | None, now: Instant
) -> dict[str, Any]:
    """Return a condition of a pod: empty texts are omitted, and the time is that of the last change of its status."""
    status = "True" if holds else "False"
    since = old["lastTransitionTime"] if old is not None and old["status"] == status else format_time(now)
    new: dict[str, Any] = {"type": kind, "status": status, "lastTransitionTime": since}
    reason, message = why
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    return new


def disrupted(pod: Obj, by: Disruption, now: Instant) -> Obj:
    """Return the pod with the condition DisruptionTarget, which the podFailurePolicy of its Job may ignore."""
    return with_condition(pod, DISRUPTION_TARGET, True, by, now)


def not_ready(pod: Obj, now: Instant) -> Obj:
    """Return the pod with Ready set to False, as for an unreachable node; reason and message stay unchanged."""
    ready = find_condition(pod, READY)
    if ready is None:
        return pod
    return with_condition(pod, READY, False, (ready.get("reason", ""), ready.get("message", "")), now)


def failed(pod: Obj, by: Disruption | None, now: Instant) -> Obj:
    """Return the pod marked as failed by another component than its kubelet; an ended pod stays unchanged."""
    if is_terminal(pod):
        return pod
    marked = pod if by is None else disrupted(pod, by, now)
    return with_status(marked, {**(marked.get("status") or {}), "phase": FAILED})
