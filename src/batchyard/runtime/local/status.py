"""The status of a pod as the kubelet of this machine writes it, from what ran of it.

Sources: pkg/kubelet/kubelet_pods.go (generateAPIPodStatus, getPhase, convertToAPIContainerStatuses), pkg/kubelet/status
(generate.go: conditions).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.core.lifecycle import pod as lifecycle
from batchyard.core.lifecycle.pod import FAILED, PENDING, RUNNING, SUCCEEDED, condition
from batchyard.ports.machine import SANDBOX
from batchyard.runtime.local.next_steps import EXPIRED, Steps, ending_of
from batchyard.runtime.local.runs import READY, STARTING, Run
from batchyard.runtime.local.situation import Container, Part, Situation
from batchyard.runtime.pod_status import missing, qos_class

_OWN_CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
_NO_WORDS: Final = ("", "")
_TOO_LATE: Final = "Pod was active on the node longer than the specified deadline"
_LOST: Final = "The container could not be located when the pod was terminated"


class Trouble(NamedTuple):
    """Why a container cannot be started at present: reason and message of its waiting."""

    reason: str
    message: str


class Seen(NamedTuple):
    """All that a status is made of."""

    situation: Situation
    steps: Steps
    #: Why containers are not started that should be, by name.
    troubles: Mapping[str, Trouble]
    host_ip: str


def status_of(seen: Seen, now: Instant) -> dict[str, Any]:
    """The status of a pod; what others say in it stays."""
    pod, situation = seen.situation.pod, seen.situation
    old = pod.get("status") or {}
    firsts = [_container_status(each, seen) for each in situation.containers if each.part is not Part.MAIN]
    mains = [_container_status(each, seen) for each in situation.of(Part.MAIN)]
    phase = _phase(seen, firsts, mains)
    status = {**old, "phase": phase, "conditions": _conditions(seen, phase, [*firsts, *mains], now)}
    status["hostIP"], status["hostIPs"] = seen.host_ip, [{"ip": seen.host_ip}]
    address = _address(seen)
    if address:
        status["podIP"], status["podIPs"] = address, [{"ip": address}]
    status.setdefault("startTime", format_time(now))
    status.setdefault("qosClass", qos_class(pod["spec"]))
    if firsts:
        status["initContainerStatuses"] = firsts
    status["containerStatuses"] = mains
    ending = ending_of(pod, now)
    if ending is not None and ending.why == EXPIRED:
        status["reason"], status["message"] = EXPIRED, _TOO_LATE
    return status


def rejected(pod: Obj, said: Mapping[str, Any], now: Instant) -> dict[str, Any]:
    """The status of a pod that this machine does not take."""
    old = pod.get("status") or {}
    return {**old, **said, "startTime": format_time(now), "qosClass": qos_class(pod["spec"])}


def backing_off(pod: Obj, container: str, wait: Duration) -> Trouble:
    """Why a container waits that ended too soon."""
    metadata = pod["metadata"]
    name = f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"
    minutes, seconds = divmod(wait // SECOND, 60)
    text = f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
    return Trouble("CrashLoopBackOff", f"back-off {text} restarting failed container={container} pod={name}")


def _address(seen: Seen) -> str:
    sandbox = seen.situation.sandbox
    if sandbox is None or sandbox.phase != READY:
        return ""
    return sandbox.address or seen.host_ip


# --- phase ---


def _phase(seen: Seen, firsts: Sequence[Mapping[str, Any]], mains: Sequence[Mapping[str, Any]]) -> str:
    policy = seen.situation.pod["spec"].get("restartPolicy", "Always")
    states = [status["state"] for status in mains]
    if seen.steps.has_ended:
        is_good = all("terminated" in state and state["terminated"]["exitCode"] == 0 for state in states)
        return SUCCEEDED if is_good and _initialized(seen) else FAILED
    if not _initialized(seen):
        return PENDING
    if any("waiting" in status["state"] and not status["lastState"] for status in mains):
        return PENDING
    if policy == "Always" or any("terminated" not in state for state in states):
        return RUNNING
    if any("running" in status["state"] for status in firsts):
        return RUNNING
    codes = [state["terminated"]["exitCode"] for state in states]
    if not any(codes):
        return SUCCEEDED
    return RUNNING if policy == "OnFailure" else FAILED


def _initialized(seen: Seen) -> bool:
    return seen.situation.is_initialized


# --- conditions ---


def _conditions(seen: Seen, phase: str, statuses: Sequence[Mapping[str, Any]], now: Instant) -> list[Mapping[str, Any]]:
    """The conditions of others, then the kubelet's own."""
    pod, sandbox = seen.situation.pod, seen.situation.sandbox
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    has_ended = phase in {SUCCEEDED, FAILED}
    has_sandbox = sandbox is not None and sandbox.phase == READY and not has_ended
    containers_ready, why = _ready(seen, phase, statuses)
    is_ready, why_not_ready = _gated(pod, containers_ready, why)
    own = {
        "PodReadyToStartContainers": (has_sandbox, _NO_WORDS),
        "Initialized": _is_initialized(seen, phase),
        "Ready": (is_ready, why_not_ready),
        "ContainersReady": (containers_ready, why),
        "PodScheduled": (True, _NO_WORDS),
    }
    others = [c for kind, c in old.items() if kind not in _OWN_CONDITIONS]
    return [*others, *[condition(kind, holds, words, old.get(kind), now) for kind, (holds, words) in own.items()]]


def _ready(seen: Seen, phase: str, statuses: Sequence[Mapping[str, Any]]) -> tuple[bool, tuple[str, str]]:
    if phase in {SUCCEEDED, FAILED}:
        return False, ("PodCompleted" if phase == SUCCEEDED else "PodFailed", "")
    counting = {each.name for each in seen.situation.containers if each.part is not Part.INIT}
    unready = [status["name"] for status in statuses if status["name"] in counting and not status["ready"]]
    if not unready:
        return True, _NO_WORDS
    return False, ("ContainersNotReady", f"containers with unready status: {_names(unready)}")


def _gated(pod: Obj, holds: bool, why: tuple[str, str]) -> tuple[bool, tuple[str, str]]:
    """Whether a pod is ready whose containers are, or not: others may have to agree."""
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    missed = [gate for gate in gates if not is_true(pod, gate)]
    if not holds or not missed:
        return holds, why
    told = "; ".join(f'corresponding condition of pod readiness gate "{gate}" does not exist.' for gate in missed)
    return False, ("ReadinessGatesNotReady", told)


def _is_initialized(seen: Seen, phase: str) -> tuple[bool, tuple[str, str]]:
    if phase == SUCCEEDED:
        return True, ("PodCompleted", "")
    if _initialized(seen):
        return True, _NO_WORDS
    left = [
        each.name
        for each in seen.situation.containers
        if each.part is not Part.MAIN and not (each.last is not None and _is_past(each))
    ]
    return False, ("ContainersNotInitialized", f"containers with incomplete status: {_names(left)}")


def _is_past(container: Container) -> bool:
    """Whether an init container needs not be waited for any more."""
    last = container.last
    assert last is not None, "only what has run is asked about"
    return last.is_started if container.part is Part.SIDECAR else not last.is_alive and last.exit_code == 0


def _names(names: Iterable[str]) -> str:
    """Names as Go prints a list of them."""
    return f"[{' '.join(names)}]"


# --- containers ---


def _container_status(container: Container, seen: Seen) -> dict[str, Any]:
    state, shown, before = _state(container, seen)
    is_running = "running" in state
    last = container.last
    ended_well = container.part is Part.INIT and last is not None and not last.is_alive and last.exit_code == 0
    status: dict[str, Any] = {
        "name": container.name,
        "state": state,
        "lastState": {} if before is None else _terminated(before),
        "ready": ended_well or (is_running and last is not None and bool(last.status.get("ready"))),
        "started": is_running and last is not None and last.is_started,
        "restartCount": 0 if last is None else last.attempt,
        "image": container.spec.get("image") or "",
        "imageID": "",
    }
    if shown is not None:
        status["containerID"] = f"batchyard://{_id_of(shown)}"
    return status


def _state(container: Container, seen: Seen) -> tuple[Mapping[str, Any], Run | None, Run | None]:
    """The state of a container, the run that it tells of, and the run before that one."""
    last = container.last
    before = container.runs[-2] if len(container.runs) > 1 else None
    if last is None:
        return _not_begun(container, seen), None, None
    if last.phase == STARTING:
        return {"waiting": {"reason": "ContainerCreating"}}, None, before
    if last.is_alive:
        return {"running": {"startedAt": format_time(last.started_at)}}, last, before
    trouble = _trouble(container, seen)
    if trouble is not None and not seen.steps.has_ended:
        return {"waiting": trouble._asdict()}, last, last
    return _terminated(last), last, before


def _trouble(container: Container, seen: Seen) -> Trouble | None:
    wait = seen.steps.backoffs.get(container.name)
    if wait is not None:
        return backing_off(seen.situation.pod, container.name, wait)
    return seen.troubles.get(container.name)


def _not_begun(container: Container, seen: Seen) -> Mapping[str, Any]:
    if seen.steps.has_ended:
        return missing(_LOST)
    trouble = seen.troubles.get(container.name)
    if trouble is not None:
        return {"waiting": trouble._asdict()}
    waits_for_others = bool(seen.situation.pod["spec"].get("initContainers"))
    return {"waiting": {"reason": "PodInitializing" if waits_for_others else "ContainerCreating"}}


def _terminated(run: Run) -> Mapping[str, Any]:
    """The state of a container that has ended."""
    told: dict[str, Any] = {"exitCode": run.exit_code, "reason": run.status.get("reason") or _reason(run.exit_code)}
    if run.status.get("signal"):
        told["signal"] = run.status["signal"]
    if run.status.get("message"):
        told["message"] = run.status["message"]
    times = {"startedAt": format_time(run.started_at), "finishedAt": format_time(run.ended_at)}
    return {"terminated": {**told, **times, "containerID": f"batchyard://{_id_of(run)}"}}


def _reason(code: int) -> str:
    return "Error" if code else "Completed"


def _id_of(run: Run) -> str:
    metadata = run.obj["metadata"]
    return f"{metadata['namespace']}/{metadata['name'] if run.container else SANDBOX}"


def is_over(status: Mapping[str, Any]) -> bool:
    """Whether a status says that the pod has ended."""
    return status["phase"] in {SUCCEEDED, FAILED} and lifecycle.is_terminal({"status": status})
