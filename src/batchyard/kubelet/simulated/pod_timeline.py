"""Pod timeline: the next event of a simulated pod, and the status after it.

    accepted -> containers created -> running -> exited -> pod ended, or containers restarted after the crash backoff

A pod also ends when it is deleted, when its machine shuts down, or at its deadline. The earliest event happens first.
All events follow from the pod's status and metadata and from its machine, so a restart changes nothing. Sources:
pkg/kubelet (syncPod, getPhase, active_deadline.go), pkg/kubelet/nodeshutdown, client-go flowcontrol.Backoff.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.api.views import pod_lifecycle as lifecycle
from batchyard.api.views.checkpoints import resumed_work
from batchyard.api.views.pod_lifecycle import FAILED, PENDING, RUNNING, SUCCEEDED
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant
from batchyard.kubelet.simulated.durations import FOR_EVER, RunPlan
from batchyard.kubelet.simulated.node_machine import NodeMachine
from batchyard.kubelet.simulated.pod_status import (
    SimulatedRunState,
    creating,
    exited,
    missing,
    pod_status,
    qos_class,
    run_of,
    running,
)

#: Of the 30 s between notice and shutdown: seconds for ordinary pods, then for critical pods, which stop last.
SHUTDOWN_GRACE: Final = 25
SHUTDOWN_GRACE_CRITICAL: Final = 5

BACKOFF_MIN: Final = 10 * SECOND
BACKOFF_MAX: Final = 5 * MINUTE
#: Containers that ran longer than this restart without backoff.
_BACKOFF_FORGOTTEN: Final = 2 * BACKOFF_MAX

REJECTED: Final = "Pod was rejected as the node is shutting down."
EXPIRED: Final = "Pod was active on the node longer than the specified deadline"

_KILLED: Final = 137
_STOPPED: Final = 143
_LOST: Final = "The container could not be located when the pod was terminated"
_LOST_AND_RESTARTED: Final = (
    "The container could not be located when the pod was deleted.  The container used to be Running"
)


class PodEventKind(StrEnum):
    """The kinds of events of a pod."""

    TAKE_UP = "TakeUp"
    START = "Start"
    EXIT = "Exit"
    LOSE = "Lose"
    DELETE = "Delete"
    SHUT_DOWN = "ShutDown"
    REJECT = "Reject"
    EXPIRE = "Expire"


class PodEvent(NamedTuple):
    """An event of a pod, and when it is due."""

    at: Instant
    what: PodEventKind


def no_delay(pod: Obj) -> Duration:  # noqa: ARG001 - the signature of a delay per pod
    """Start containers immediately."""
    return 0


@dataclass(frozen=True, slots=True)
class ContainerDelays:
    """The start and stop delays of containers."""

    #: From accepting a pod to its containers running; constant per pod.
    start_delay: Callable[[Obj], Duration] = no_delay
    #: From the stop signal to the exit, if the grace period allows it.
    stop_time: Duration = SECOND


class SimulatedPod(NamedTuple):
    """A pod, its machine, and its planned run."""

    pod: Obj
    machine: NodeMachine
    plan: RunPlan
    pace: ContainerDelays


def next_pod_event(life: SimulatedPod, now: Instant) -> PodEvent | None:
    """Return the next event of a pod that has not ended, on a machine that is on; None if none can be predicted."""
    run = run_of(life.pod)
    turns = _arrivals(life, now) if run is None else [*_own_turns(life, run), *_ends(life, run)]
    return min(turns, key=lambda turn: turn.at, default=None)  # the first of several due at the same time


def status_after(life: SimulatedPod, turn: PodEvent, now: Instant) -> Mapping[str, Any]:
    """Return the status of the pod after an event."""
    run = run_of(life.pod) or SimulatedRunState(creating(life.pod))
    match turn.what:
        case PodEventKind.TAKE_UP:
            runs_at_once = life.pace.start_delay(life.pod) == 0
            return _running(life, run, now) if runs_at_once else _status(life, PENDING, run, now)
        case PodEventKind.START:
            return _running(life, run._replace(restarts=run.restarts + bool(run.last)), now)
        case PodEventKind.EXIT:
            return _after_exit(life, run, turn.at, now)
        case PodEventKind.LOSE:
            return _after_loss(life, run, now)
        case PodEventKind.REJECT:
            return _rejected(life, now)
        case PodEventKind.DELETE:
            return _made_to_end(life, run, turn, now)
        case PodEventKind.EXPIRE:
            return {**_made_to_end(life, run, turn, now), "reason": "DeadlineExceeded", "message": EXPIRED}
        case PodEventKind.SHUT_DOWN:
            return _shut_down(life, run, turn, now)


# --- due events ---


def _arrivals(life: SimulatedPod, now: Instant) -> Iterable[PodEvent]:
    """Return the events of a pod that its kubelet has not accepted yet."""
    pod, machine = life.pod, life.machine
    deleted_at = lifecycle.deleted_at(pod)
    if deleted_at is not None:
        return [PodEvent(deleted_at, PodEventKind.DELETE)]
    if machine.notice_at is not None:
        return [PodEvent(machine.notice_at, PodEventKind.REJECT)]
    return [PodEvent(now, PodEventKind.TAKE_UP)] if machine.is_ready() else []


def _own_turns(life: SimulatedPod, run: SimulatedRunState) -> Iterable[PodEvent]:
    """Return the events that containers cause themselves."""
    if "running" in run.state:
        started_at = parse_time(run.state["running"]["startedAt"])
        if started_at < life.machine.booted_at:
            return [PodEvent(started_at, PodEventKind.LOSE)]
        left = max(0, life.plan.runtime - resumed_work(life.pod))
        return [PodEvent(started_at + left, PodEventKind.EXIT)] if life.plan.runtime < FOR_EVER else []
    if run.last:
        return [PodEvent(parse_time(run.last["terminated"]["finishedAt"]) + _backoff(run), PodEventKind.START)]
    begun_at = max(parse_time(life.pod["status"]["startTime"]), life.machine.booted_at)
    return [PodEvent(begun_at + life.pace.start_delay(life.pod), PodEventKind.START)]


def _ends(life: SimulatedPod, run: SimulatedRunState) -> Iterable[PodEvent]:
    """Return the events that end a pod; running containers need the stop delay."""
    moment = life.pace.stop_time if "running" in run.state else 0
    return [PodEvent(asked_at + min(moment, grace), what) for asked_at, grace, what in _demands(life)]


def _demands(life: SimulatedPod) -> Iterable[tuple[Instant, Duration, PodEventKind]]:
    """Yield the requests to end a pod: from when, with which grace period, and why."""
    pod, deleted_at = life.pod, lifecycle.deleted_at(life.pod)
    if deleted_at is not None:
        yield deleted_at, (pod["metadata"].get("deletionGracePeriodSeconds") or 0) * SECOND, PodEventKind.DELETE
    grace = lifecycle.grace_period(pod)
    if life.machine.notice_at is not None:
        is_critical = lifecycle.priority(pod) >= lifecycle.SYSTEM_CRITICAL
        limit = SHUTDOWN_GRACE_CRITICAL if is_critical else SHUTDOWN_GRACE
        begins_at = life.machine.notice_at + (SHUTDOWN_GRACE * SECOND if is_critical else 0)
        yield begins_at, min(grace, limit) * SECOND, PodEventKind.SHUT_DOWN
    deadline = pod["spec"].get("activeDeadlineSeconds")
    if deadline is not None:
        yield parse_time(pod["status"]["startTime"]) + deadline * SECOND, grace * SECOND, PodEventKind.EXPIRE


def _backoff(run: SimulatedRunState) -> Duration:
    """Return the restart delay: 0 the first time and after a long run."""
    ended = run.last["terminated"]
    ran = parse_time(ended["finishedAt"]) - parse_time(ended["startedAt"])
    if not run.restarts or ran > _BACKOFF_FORGOTTEN:
        return 0
    return min(BACKOFF_MIN << min(run.restarts - 1, 8), BACKOFF_MAX)


# --- statuses ---


def _status(life: SimulatedPod, phase: str, run: SimulatedRunState, now: Instant) -> dict[str, Any]:
    return pod_status(life.pod, phase, run, life.machine, now)


def _running(life: SimulatedPod, run: SimulatedRunState, now: Instant) -> Mapping[str, Any]:
    return _status(life, RUNNING, run._replace(state=running(now)), now)


def _after_exit(life: SimulatedPod, run: SimulatedRunState, at: Instant, now: Instant) -> Mapping[str, Any]:
    """Return the status after an exit; containers restart if the policy allows it and nothing ends the pod."""
    code = life.plan.exit_code
    ended = exited(code, run.state["running"]["startedAt"], at)
    policy = life.pod["spec"].get("restartPolicy", "Always")
    is_done = policy == "Never" or (policy == "OnFailure" and code == 0)
    if is_done or any(asked_at <= at for asked_at, _, _ in _demands(life)):
        return _status(life, FAILED if code else SUCCEEDED, run._replace(state=ended), now)
    again = run._replace(last=ended)
    backoff = _backoff(again)
    if backoff == 0:
        return _running(life, again._replace(restarts=again.restarts + 1), now)
    return _status(life, RUNNING, again._replace(state=_backing_off(life.pod, backoff)), now)


def _backing_off(pod: Obj, backoff: Duration) -> Mapping[str, Mapping[str, Any]]:
    metadata, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
    name = f"{metadata['name']}_{metadata.get('namespace') or ''}({metadata['uid']})"
    message = f"back-off {_go_text(backoff)} restarting failed container={container} pod={name}"
    return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}


def _go_text(duration: Duration) -> str:
    """Format whole seconds as Go does: 40s, 1m20s, 5m0s."""
    minutes, seconds = divmod(duration // SECOND, 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _after_loss(life: SimulatedPod, run: SimulatedRunState, now: Instant) -> Mapping[str, Any]:
    """Return the status after the machine was lost and returned: its containers are gone."""
    if life.pod["spec"].get("restartPolicy", "Always") == "Never" or lifecycle.is_terminating(life.pod):
        return _status(life, FAILED, run._replace(state=missing(_LOST)), now)
    return _running(life, SimulatedRunState({}, missing(_LOST_AND_RESTARTED), run.restarts + 1), now)


def _rejected(life: SimulatedPod, now: Instant) -> Mapping[str, Any]:
    """Return the status of a pod that is rejected because its machine is shutting down."""
    return {
        **(life.pod.get("status") or {}),
        "phase": FAILED,
        "reason": "NodeShutdown",
        "message": f"Pod was rejected: {REJECTED}",
        "startTime": format_time(now),
        "qosClass": qos_class(life.pod["spec"]),
    }


def _shut_down(life: SimulatedPod, run: SimulatedRunState, turn: PodEvent, now: Instant) -> Mapping[str, Any]:
    """Return the status of a pod ended by a shutdown, which counts as a disruption."""
    ended = with_status(life.pod, _made_to_end(life, run, turn, now))
    status: Mapping[str, Any] = lifecycle.disrupted(ended, lifecycle.BY_KUBELET, now)["status"]
    return {**status, "reason": "Terminated", "message": lifecycle.BY_KUBELET.message}


def _made_to_end(life: SimulatedPod, run: SimulatedRunState, turn: PodEvent, now: Instant) -> Mapping[str, Any]:
    """Return the status of a failed pod whose containers were stopped, or killed at the end of the grace period."""
    return _status(life, FAILED, run._replace(state=_state_at_end(life, run, turn)), now)


def _state_at_end(life: SimulatedPod, run: SimulatedRunState, turn: PodEvent) -> Mapping[str, Mapping[str, Any]]:
    if "running" not in run.state:
        return run.last or missing(_LOST)
    grace = next(grace for _, grace, what in _demands(life) if what is turn.what)
    code = _STOPPED if life.pace.stop_time <= grace else _KILLED
    return exited(code, run.state["running"]["startedAt"], turn.at)
