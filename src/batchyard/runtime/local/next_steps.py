"""What is to be done next for a pod on this machine: which of its containers start, which stop, and when to look again.

    its sandbox -> init containers one after the other, sidecars among them -> main containers -> all have ended

Whatever of it has ended starts again as the restart policy says, later and later. A pod that is made to end ends its
main containers first, then its sidecars, the last one first. Sources: pkg/kubelet/kuberuntime (computePodActions,
kuberuntime_container.go, kuberuntime_termination_order.go, doBackOff), pkg/kubelet (active_deadline.go).
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant
from batchyard.core.lifecycle import pod as lifecycle
from batchyard.runtime.local.runs import EXITED, READY, Run, Stop
from batchyard.runtime.local.situation import Container, Part, Situation, is_done

BACKOFF_MIN: Final = 10 * SECOND
BACKOFF_MAX: Final = 5 * MINUTE
#: Containers that ran longer than this start again at once.
_BACKOFF_FORGOTTEN: Final = 2 * BACKOFF_MAX
#: When a sandbox is tried again that could not be made.
SANDBOX_AGAIN_AFTER: Final = 5 * SECOND
EXPIRED: Final = "DeadlineExceeded"


class Start(NamedTuple):
    """A container that is to be started."""

    container: Container
    attempt: int
    restarts_in_row: int = 0


class Halt(NamedTuple):
    """A run that is to be stopped, and what is told of it."""

    run: Run
    stop: Stop
    reason: str = "Killing"
    message: str = ""


class Steps(NamedTuple):
    """What is to be done at present, and what there is to wait for."""

    starts: Sequence[Start] = ()
    halts: Sequence[Halt] = ()
    #: Whether a sandbox is to be made, in place of one that was lost.
    makes_sandbox: bool = False
    #: Containers that wait before they start again, and for how long they do.
    backoffs: Mapping[str, Duration] = MappingProxyType({})
    #: Whether nothing runs any more and nothing will.
    has_ended: bool = False
    look_again: Instant | None = None


class Ending(NamedTuple):
    """Why and by when a pod is to have ended."""

    until: Instant
    why: str


def next_steps(situation: Situation, now: Instant) -> Steps:
    """What is to be done for a pod that was admitted and has not ended."""
    ending = ending_of(situation.pod, now)
    if ending is not None:
        return _ended(situation, ending.until, now)
    sandbox = situation.sandbox
    if sandbox is not None and sandbox.phase == EXITED and any(each.runs for each in situation.containers):
        return _without_sandbox(situation, now)
    if sandbox is not None and sandbox.phase == EXITED and sandbox.ended_at + SANDBOX_AGAIN_AFTER > now:
        return Steps(look_again=sandbox.ended_at + SANDBOX_AGAIN_AFTER)
    if sandbox is None or sandbox.phase == EXITED:
        return Steps(makes_sandbox=True, look_again=_deadline(situation.pod))
    if sandbox.phase != READY:
        return Steps(look_again=_deadline(situation.pod))
    return _going_on(situation, now)


def ending_of(pod: Obj, now: Instant) -> Ending | None:
    """Why a pod is to end; None if it is not."""
    deleted_at = lifecycle.deleted_at(pod)
    if deleted_at is not None:
        grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0
        return Ending(deleted_at + grace * SECOND, "")
    expires_at = _deadline(pod)
    if expires_at is not None and expires_at <= now:
        return Ending(expires_at + lifecycle.grace_period(pod) * SECOND, EXPIRED)
    return None


def _deadline(pod: Obj) -> Instant | None:
    seconds, started = pod["spec"].get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    return None if seconds is None or started is None else parse_time(started) + seconds * SECOND


# --- towards the end ---


def _ended(situation: Situation, until: Instant, now: Instant) -> Steps:
    """All is stopped, sidecars after those they serve."""
    alive = situation.alive()
    if not alive:
        return Steps(has_ended=True)
    mains = [each for each in alive if each.part is not Part.SIDECAR]
    return Steps(halts=list(_halts(mains or alive[-1:], until, now)))


def _halts(containers: Iterable[Container], until: Instant, now: Instant) -> Iterable[Halt]:
    """Wishes to stop for those that have none that comes as soon."""
    stop = Stop(now, max(0, -(-(until - now) // SECOND)))
    for each in containers:
        assert each.last is not None, "what is alive has a run"
        if each.last.stop is None or each.last.stop.until() > stop.until():
            yield Halt(each.last, stop, message=f"Stopping container {each.name}")


def _without_sandbox(situation: Situation, now: Instant) -> Steps:
    """The sandbox was lost: what ran in it ends, and begins anew in another where the policy lets it."""
    if situation.alive():
        return _ended(situation, now + lifecycle.grace_period(situation.pod) * SECOND, now)
    if situation.is_initialized and not any(_begins_again(each, situation.pod) for each in situation.of(Part.MAIN)):
        return Steps(has_ended=True)
    return Steps(makes_sandbox=True)


# --- onwards ---


def _going_on(situation: Situation, now: Instant) -> Steps:
    pod, containers = situation.pod, situation.containers
    if any(_has_failed_for_good(each, pod) for each in situation.of(Part.INIT)):
        return _ended(situation, now + lifecycle.grace_period(pod) * SECOND, now)
    may_run = containers if situation.is_initialized else _up_to_the_first_undone(containers)
    mains = [each for each in containers if each.part is Part.MAIN]
    if all(each.last and not each.is_alive and not _begins_again(each, pod) for each in mains):
        return _ended(situation, now + lifecycle.grace_period(pod) * SECOND, now)
    return _started(pod, may_run, now)


def _up_to_the_first_undone(containers: Sequence[Container]) -> Sequence[Container]:
    """The init containers that may run as long as not all are done."""
    found: list[Container] = []
    for each in containers:
        found.append(each)
        if not (is_done(each) if each.part is Part.INIT else each.last is not None and each.last.is_started):
            break
    return found


def _started(pod: Obj, containers: Sequence[Container], now: Instant) -> Steps:
    """What may run is started, or again; what its probes gave up is stopped."""
    starts: list[Start] = []
    halts: list[Halt] = []
    backoffs: dict[str, Duration] = {}
    waits = [_deadline(pod)]
    for each in containers:
        last = each.last
        if last is None:
            starts.append(Start(each, 0))
        elif last.is_alive:
            halts += _halted_for_failure(each, last, pod, now)
        elif _begins_again(each, pod):
            in_row = 0 if last.ended_at - last.started_at > _BACKOFF_FORGOTTEN else last.restarts_in_row
            wait = min(BACKOFF_MIN << min(in_row - 1, 8), BACKOFF_MAX) if in_row else 0
            if last.ended_at + wait > now:
                backoffs[each.name] = wait
                waits.append(last.ended_at + wait)
            else:
                starts.append(Start(each, last.attempt + 1, in_row + 1))
    return Steps(starts, halts, backoffs=backoffs, look_again=min((at for at in waits if at is not None), default=None))


def _halted_for_failure(container: Container, run: Run, pod: Obj, now: Instant) -> Iterable[Halt]:
    """The end of a container whose probe or hook failed."""
    failed = run.status.get("failed")
    if not failed or run.stop is not None:
        return
    probe = (container.spec.get(f"{failed['probe']}Probe") or {}) if "probe" in failed else {}
    grace = probe.get("terminationGracePeriodSeconds", lifecycle.grace_period(pod))
    yield Halt(run, Stop(now, grace, failed.get("message", "")), message=_why(container.name, failed))


def _why(name: str, failed: dict[str, Any]) -> str:
    if "hook" in failed:
        return "FailedPostStartHook"
    return f"Container {name} failed {failed['probe']} probe, will be restarted"


def _begins_again(container: Container, pod: Obj) -> bool:
    """Whether a container that has ended starts again."""
    assert container.last is not None, "only what has run can begin again"
    policy = pod["spec"].get("restartPolicy", "Always")
    if container.part is Part.SIDECAR:
        return True
    if container.part is Part.INIT:
        return container.last.exit_code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and container.last.exit_code != 0)


def _has_failed_for_good(container: Container, pod: Obj) -> bool:
    """Whether an init container has ended badly, and does not start again."""
    last = container.last
    return last is not None and not last.is_alive and last.exit_code != 0 and not _begins_again(container, pod)
