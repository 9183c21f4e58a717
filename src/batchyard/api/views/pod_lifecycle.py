"""The states of a Pod: what its status says, and what others than its kubelet make of it.

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

#: From this priority on, pods are critical to the system.
SYSTEM_CRITICAL: Final = 2_000_000_000

#: The time a pod tolerates a taint that none of its tolerations covers.
_NOT_TOLERATED: Final = 0


class Disruption(NamedTuple):
    """Why a pod is ended that did no wrong: reason and message of its condition DisruptionTarget."""

    reason: str
    message: str


BY_TAINT: Final = Disruption("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
BY_POD_GC: Final = Disruption("DeletionByPodGC", "PodGC: node no longer exists")
BY_EVICTION: Final = Disruption("EvictionByEvictionAPI", "Eviction API: evicting")
BY_KUBELET: Final = Disruption("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.")


def phase(pod: Obj) -> str:
    """Its phase; Pending where nobody said anything yet."""
    return (pod.get("status") or {}).get("phase") or PENDING


def is_terminal(pod: Obj) -> bool:
    """Whether it has ended and will never run again."""
    return phase(pod) in {SUCCEEDED, FAILED}


def is_terminating(pod: Obj) -> bool:
    """Whether it was deleted and is on its way out."""
    return "deletionTimestamp" in pod["metadata"]


def is_gone_but_for_finalizers(pod: Obj) -> bool:
    """Whether it has ended, was deleted and has no time left: only its finalizers keep the object."""
    return is_terminal(pod) and is_terminating(pod) and not pod["metadata"].get("deletionGracePeriodSeconds")


def is_ready(pod: Obj) -> bool:
    """Whether its condition Ready is true."""
    return is_true(pod, READY)


def node_of(pod: Obj) -> str:
    """The node it is bound to; empty if none."""
    return pod["spec"].get("nodeName") or ""


def priority(pod: Obj) -> int:
    """Its priority; zero where none was worked out."""
    return pod["spec"].get("priority") or 0


def grace_period(pod: Obj) -> int:
    """Seconds its containers get to stop."""
    return views.grace_period(pod["spec"])


def deleted_at(pod: Obj) -> Instant | None:
    """When its deletion was asked for; its deletionTimestamp lies one grace period later. None: it was not deleted."""
    metadata = pod["metadata"]
    until = metadata.get("deletionTimestamp")
    if until is None:
        return None
    grace: int = metadata.get("deletionGracePeriodSeconds") or 0
    return parse_time(until) - grace * SECOND


def scheduled_at(pod: Obj) -> Instant:
    """When it came to its node, as far as it tells."""
    scheduled = find_condition(pod, SCHEDULED)
    if scheduled is not None and scheduled["status"] == "True":
        return parse_time(scheduled["lastTransitionTime"])
    return parse_time((pod.get("status") or {}).get("startTime") or pod["metadata"]["creationTimestamp"])


def driven_out_at(pod: Obj, taints: Sequence[Mapping[str, Any]]) -> Instant | None:
    """When NoExecute taints of its node drive it out; None: never, since it tolerates them all without end.

    The least of the times it tolerates them counts, from when the first came, or from its own coming. An instant in
    the past means at once. Source: pkg/controller/tainteviction.
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
    """The pod with this condition, for a reason and with a message; the pod itself if nothing changes."""
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
    """A condition as pods have them: empty texts are left out, and time tells of the last change of its status."""
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
    """The pod marked as ended for no fault of its own: podFailurePolicy of its Job may ignore that."""
    return with_condition(pod, DISRUPTION_TARGET, True, by, now)


def not_ready(pod: Obj, now: Instant) -> Obj:
    """The pod told to be not ready, as for one whose node is not heard of; its other words are left alone."""
    ready = find_condition(pod, READY)
    if ready is None:
        return pod
    return with_condition(pod, READY, False, (ready.get("reason", ""), ready.get("message", "")), now)


def failed(pod: Obj, by: Disruption | None, now: Instant) -> Obj:
    """The pod declared failed by somebody else than its kubelet; one that has ended stays as it is."""
    if is_terminal(pod):
        return pod
    marked = pod if by is None else disrupted(pod, by, now)
    return with_status(marked, {**(marked.get("status") or {}), "phase": FAILED})
