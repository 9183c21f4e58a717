"""Waiting for pods to be ready: whether they are, until when they must be, and what happens when they are not.

An admitted Workload has a time within which all its pods are to be ready, and another within which they are to be so
again after one was lost. Past that it is evicted, to queue again after a while that doubles each time. A Workload that
was made from no Job or JobSet has no pods where the platform itself runs all there is, and nobody waits for them;
elsewhere whoever runs it has to tell, as with Kueue.
Sources: Kueue's jobframework (generatePodsReadyCondition) and workload_controller (reconcileNotReadyTimeout), and the
defaults of its configuration.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj, controller_of, key_of
from batchyard.api.status_draft import StatusDraft
from batchyard.api.times import parse_time
from batchyard.base.backoff import backoff
from batchyard.base.instant import HOUR, MINUTE, Duration, Instant
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload import lifecycle as r

_READY: Final = (r.STARTED, r.RECOVERED)
_JOBS: Final = ("Job", "JobSet")
_NOT_READY: Final = "Not all pods are ready or succeeded"
_RECOVERING: Final = "At least one pod has failed, waiting for recovery"
_ALL_READY: Final = "All pods reached readiness and the workload is running"


class RequeuingTimestamp(StrEnum):
    """From when the place in the queue counts of one that was evicted because its pods were not ready."""

    EVICTION = "Eviction"
    CREATION = "Creation"


@dataclass(frozen=True, slots=True)
class PodsReadyPolicy:
    """Kueue's setting waitForPodsReady."""

    #: How long after its admission a Workload's pods may take to be ready.
    timeout: Duration = 30 * MINUTE
    #: How long they may take to be ready again after one was lost: 0 for ever, None as long as `timeout`.
    recovery_timeout: Duration | None = None
    #: Whether nobody is admitted while the pods of somebody admitted are not ready.
    block_admission: bool = False
    requeuing_timestamp: RequeuingTimestamp = RequeuingTimestamp.EVICTION
    #: How often one may queue again before it is deactivated; None for ever.
    backoff_limit_count: int | None = None
    backoff_base: Duration = MINUTE
    backoff_max: Duration = HOUR
    #: Whether Workloads that were made from no Job or JobSet are waited for too.
    without_job: bool = False

    def awaits(self, workload: Obj) -> bool:
        """Whether there are pods to wait for."""
        return self.without_job or has_pods(workload)


class Deadline(NamedTuple):
    """Until when pods are to be ready, and what for: `WaitForStart` or `WaitForRecovery`."""

    cause: str
    at: Instant


def has_pods(workload: Obj) -> bool:
    """Whether there are pods to wait for: it was made from a job of a kind that is run here."""
    owner = controller_of(workload)
    return owner is not None and owner["kind"] in _JOBS


# --- the condition ---


def tell_pods_ready(workload: Obj, ready: bool, now: Instant) -> Obj:
    """Say in its PodsReady condition whether all pods of its job are ready; the same object if it says so."""
    reason, message = _what_to_tell(workload, ready)
    holds = reason in _READY
    old = find_condition(workload, r.PODS_READY)
    if old is not None and (old["status"] == "True", old["reason"]) == (holds, reason):
        return workload
    draft = StatusDraft(workload, now)
    draft.set_condition(r.PODS_READY, holds, reason, message)
    return draft.result()


def _what_to_tell(workload: Obj, ready: bool) -> tuple[str, str]:
    if not lifecycle.is_admitted(workload):
        return r.WAIT_FOR_START, _NOT_READY
    old = find_condition(workload, r.PODS_READY)
    was = "" if old is None else old["reason"]
    if ready:
        return (r.RECOVERED if was in {r.WAIT_FOR_RECOVERY, r.RECOVERED} else r.STARTED), _ALL_READY
    if was in _READY or was == r.WAIT_FOR_RECOVERY:
        return r.WAIT_FOR_RECOVERY, _RECOVERING
    return r.WAIT_FOR_START, _NOT_READY


# --- the time ---


def deadline(workload: Obj, policy: PodsReadyPolicy) -> Deadline | None:
    """Until when the pods of an admitted Workload are to be ready; None if they are, or need not be."""
    admitted, ready = find_condition(workload, r.ADMITTED), find_condition(workload, r.PODS_READY)
    if (
        admitted is None
        or admitted["status"] != "True"
        or lifecycle.is_evicted(workload)
        or not policy.awaits(workload)
    ):
        return None
    if ready is None or ready["reason"] == r.WAIT_FOR_START:
        return Deadline(r.WAIT_FOR_START, parse_time(admitted["lastTransitionTime"]) + policy.timeout)
    recovery = policy.timeout if policy.recovery_timeout is None else policy.recovery_timeout
    if ready["reason"] != r.WAIT_FOR_RECOVERY or recovery == 0:
        return None
    return Deadline(r.WAIT_FOR_RECOVERY, parse_time(ready["lastTransitionTime"]) + recovery)


def timed_out(workload: Obj, policy: PodsReadyPolicy, cause: str, now: Instant) -> Obj:
    """What becomes of one whose pods were not ready in time: evicted, to wait a while; the last time deactivated."""
    tries = ((workload.get("status") or {}).get("requeueState") or {}).get("count", 0) + 1
    if policy.backoff_limit_count is not None and tries > policy.backoff_limit_count:
        message = "exceeding the maximum number of re-queuing retries"
        return lifecycle.target_deactivation(workload, r.REQUEUING_LIMIT_EXCEEDED, message, now)
    until = now + backoff(policy.backoff_base, policy.backoff_max, tries)
    held = lifecycle.hold_back(workload, until, counts=True)
    reason, message = r.EVICTED_BY_PODS_READY_TIMEOUT, timeout_message(workload)
    return lifecycle.evict(held, reason=reason, message=message, now=now, cause=cause)


def timeout_message(workload: Obj) -> str:
    """What one that is evicted for it is told."""
    return f"Exceeded the PodsReady timeout {key_of(workload)}"
