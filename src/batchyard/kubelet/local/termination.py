"""How a pod ends on this machine: its main containers first, then its sidecars, the last one first.

Whoever's turn has not come when the time is over is stopped with all others. Sources: pkg/kubelet/kuberuntime
(killContainer, kuberuntime_termination_order.go), pkg/kubelet (active_deadline.go, pod_workers.go),
pkg/kubelet/eviction (emptyDirLimitEviction).
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.api.views import pod_lifecycle as lifecycle
from batchyard.base.instant import SECOND, Instant
from batchyard.kubelet.local.errors import quoted
from batchyard.kubelet.local.pod_state import Container, Part, Situation
from batchyard.kubelet.local.runs import Run, Stop

#: What every container gets to end, whatever is said. Source: minimumGracePeriodInSeconds in pkg/kubelet/kuberuntime.
GRACE_MIN: Final = 2
#: Source: immediateEvictionGracePeriodSeconds in pkg/kubelet/eviction.
_EVICTION_GRACE: Final = 1
EXPIRED: Final = "DeadlineExceeded"
TOO_LATE: Final = "Pod was active on the node longer than the specified deadline"
EVICTED: Final = "Evicted"


class Ending(NamedTuple):
    """Why a pod ends."""

    #: When that was known; what was stopped before was for another reason.
    since: Instant
    #: Seconds, from when its first container is stopped for it.
    grace: int
    #: The reason and the message of a pod that fails, whatever its containers do; empty where they say how it ends.
    why: str = ""
    message: str = ""


class Halt(NamedTuple):
    """A run that is to be stopped, and the message of the event Killing."""

    run: Run
    stop: Stop
    message: str


class Halts(NamedTuple):
    """What is to be stopped now, and when those come that wait for their turn; nobody is alive if there is neither."""

    halts: list[Halt]
    look_again: Instant | None
    is_over: bool


def ending_of(situation: Situation, now: Instant) -> Ending | None:
    """Why others want a pod to end, or its node does; None if nobody does."""
    pod = situation.pod
    deleted_at = lifecycle.deleted_at(pod)
    if deleted_at is not None:
        return Ending(deleted_at, pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    expires_at = deadline_of(pod)
    if expires_at is not None and expires_at <= now:
        return ending_by_itself(pod, expires_at)._replace(why=EXPIRED, message=TOO_LATE)
    exceeded = {} if situation.sandbox is None else situation.sandbox.status.get("exceeded") or {}
    if exceeded:
        return Ending(exceeded["at"], _EVICTION_GRACE, EVICTED, _too_full(pod, exceeded["volume"]))
    return None


def _too_full(pod: Obj, name: str) -> str:
    """What is said of a volume that holds more than it may; the blank at the end is Kubernetes's own."""
    limits = {
        volume["name"]: volume["emptyDir"].get("sizeLimit") for volume in pod["spec"]["volumes"] if "emptyDir" in volume
    }
    return f"Usage of EmptyDir volume {quoted(name)} exceeds the limit {quoted(str(limits.get(name)))}. "


def ending_by_itself(pod: Obj, since: Instant) -> Ending:
    """The end of a pod that gets all the time that it asks for."""
    return Ending(since, lifecycle.grace_period(pod))


def deadline_of(pod: Obj) -> Instant | None:
    """When a pod is to end whatever it does; None if it has no such time, or has not begun."""
    seconds, started = pod["spec"].get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    return None if seconds is None or started is None else parse_time(started) + seconds * SECOND


def halts_of(situation: Situation, ending: Ending, now: Instant) -> Halts:
    """Whom to stop now."""
    alive = situation.alive()
    until = _begun_at(situation, ending, now) + ending.grace * SECOND
    firsts = [each for each in alive if each.part is not Part.SIDECAR]
    turn = (firsts or alive[-1:]) if now < until else alive
    seconds = max(GRACE_MIN, -(-(until - now) // SECOND))
    halts = list(_halts(turn, Stop(now, seconds), max(GRACE_MIN, ending.grace)))
    return Halts(halts, until if len(turn) < len(alive) else None, not alive)


def _begun_at(situation: Situation, ending: Ending, now: Instant) -> Instant:
    """When the first of its containers was stopped for that reason; now if none was yet."""
    lasts = (each.last for each in situation.containers)
    return min((run.stop.at for run in lasts if run and run.stop and run.stop.at >= ending.since), default=now)


def _halts(containers: Sequence[Container], stop: Stop, grace: int) -> Iterator[Halt]:
    """Wishes to stop: for those that have none, and for those that got more time than there is now."""
    for each in containers:
        run = each.last
        assert run is not None, "what is alive has a run"
        message = f"Stopping container {each.name}"
        if run.stop is None:
            yield Halt(run, stop, message)
        elif run.stop.grace > grace and run.stop.until() > stop.at + grace * SECOND:
            yield Halt(run, Stop(stop.at, grace), message)
