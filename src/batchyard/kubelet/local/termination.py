"""Pod termination: main containers first, then sidecars in reverse order.

Containers that are still waiting when the grace period ends are stopped with all others. Sources:
pkg/kubelet/kuberuntime (killContainer, kuberuntime_termination_order.go), pkg/kubelet (active_deadline.go,
pod_workers.go), pkg/kubelet/eviction (emptyDirLimitEviction).
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.api.views import pod_lifecycle as lifecycle
from batchyard.base.instant import SECOND, Instant
from batchyard.kubelet.local.errors import quoted
from batchyard.kubelet.local.pod_state import ContainerRole, PodContainer, PodState
from batchyard.kubelet.local.runs import ObservedRun, StopRequest

#: The minimum grace period in seconds. Source: minimumGracePeriodInSeconds in pkg/kubelet/kuberuntime.
GRACE_MIN: Final = 2
#: Source: immediateEvictionGracePeriodSeconds in pkg/kubelet/eviction.
_EVICTION_GRACE: Final = 1
EXPIRED: Final = "DeadlineExceeded"
TOO_LATE: Final = "Pod was active on the node longer than the specified deadline"
EVICTED: Final = "Evicted"


class PodTermination(NamedTuple):
    """Why and how a pod terminates."""

    #: When the termination was requested; earlier stops have other reasons.
    since: Instant
    #: Grace period in seconds, from the stop of its first container.
    grace: int
    #: Reason and message of a pod that fails regardless of its containers; empty if their exit codes decide.
    why: str = ""
    message: str = ""


class ContainerStop(NamedTuple):
    """A run to stop, and the message of its Killing Event."""

    run: ObservedRun
    stop: StopRequest
    message: str


class PodStopPlan(NamedTuple):
    """The runs to stop now, and when the remaining containers follow; `is_over` if none is alive."""

    halts: list[ContainerStop]
    look_again: Instant | None
    is_over: bool


def termination_of(situation: PodState, now: Instant) -> PodTermination | None:
    """Return why a pod must terminate: deletion, deadline, or a full volume; None if it need not."""
    pod = situation.pod
    deleted_at = lifecycle.deleted_at(pod)
    if deleted_at is not None:
        return PodTermination(deleted_at, pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    expires_at = deadline_of(pod)
    if expires_at is not None and expires_at <= now:
        return graceful_termination(pod, expires_at)._replace(why=EXPIRED, message=TOO_LATE)
    exceeded = {} if situation.sandbox is None else situation.sandbox.status.get("exceeded") or {}
    if exceeded:
        return PodTermination(exceeded["at"], _EVICTION_GRACE, EVICTED, _too_full(pod, exceeded["volume"]))
    return None


def _too_full(pod: Obj, name: str) -> str:
    """Return the eviction message for a full volume; the trailing space is Kubernetes's."""
    limits = {
        volume["name"]: volume["emptyDir"].get("sizeLimit") for volume in pod["spec"]["volumes"] if "emptyDir" in volume
    }
    return f"Usage of EmptyDir volume {quoted(name)} exceeds the limit {quoted(str(limits.get(name)))}. "


def graceful_termination(pod: Obj, since: Instant) -> PodTermination:
    """Return the termination of a pod with its full grace period."""
    return PodTermination(since, lifecycle.grace_period(pod))


def deadline_of(pod: Obj) -> Instant | None:
    """Return the active deadline of a pod; None if it has none or has not started."""
    seconds, started = pod["spec"].get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    return None if seconds is None or started is None else parse_time(started) + seconds * SECOND


def containers_to_stop(situation: PodState, ending: PodTermination, now: Instant) -> PodStopPlan:
    """Return which containers to stop now."""
    alive = situation.alive()
    until = _begun_at(situation, ending, now) + ending.grace * SECOND
    firsts = [each for each in alive if each.part is not ContainerRole.SIDECAR]
    turn = (firsts or alive[-1:]) if now < until else alive
    seconds = max(GRACE_MIN, -(-(until - now) // SECOND))
    halts = list(_halts(turn, StopRequest(now, seconds), max(GRACE_MIN, ending.grace)))
    return PodStopPlan(halts, until if len(turn) < len(alive) else None, not alive)


def _begun_at(situation: PodState, ending: PodTermination, now: Instant) -> Instant:
    """Return when the first container was stopped for this termination; `now` if none was."""
    lasts = (each.last for each in situation.containers)
    return min((run.stop.at for run in lasts if run and run.stop and run.stop.at >= ending.since), default=now)


def _halts(containers: Sequence[PodContainer], stop: StopRequest, grace: int) -> Iterator[ContainerStop]:
    """Yield stop requests for containers without one, or with a longer grace period than now remains."""
    for each in containers:
        run = each.last
        assert run is not None, "a live container has a run"
        message = f"Stopping container {each.name}"
        if run.stop is None:
            yield ContainerStop(run, stop, message)
        elif run.stop.grace > grace and run.stop.until() > stop.at + grace * SECOND:
            yield ContainerStop(run, StopRequest(stop.at, grace), message)
