"""Pod status of the local kubelet, computed from a pod's runs.

Sources: pkg/kubelet/kubelet_pods.go (generateAPIPodStatus, getPhase), pkg/kubelet/status (status_manager.go:
mergePodStatus, TerminatePod).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj, find_condition
from batchyard.api.times import format_time
from batchyard.api.views.pods import FAILED, PENDING, RUNNING, SUCCEEDED, condition, is_terminal
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.containers import SANDBOX
from batchyard.kubelet.local.pod_actions import ContainerRole, PodActions, PodContainer, PodState, termination_of
from batchyard.kubelet.local.runs import READY, STARTING, ObservedRun
from batchyard.kubelet.simulated.pod_status import qos_class

# --- container status ---
#
# Statuses of containers, computed from their runs.
#
# Sources: pkg/kubelet/kubelet_pods.go (convertToAPIContainerStatuses), pkg/kubelet/prober (prober_manager.go:
# UpdatePodStatus), pkg/kubelet/kuberuntime (doBackOff).


UNKNOWN: Final = "ContainerStatusUnknown"
_LOST: Final = "The container could not be located when the pod was terminated"
_GONE: Final = "The container could not be located when the pod was deleted.  The container used to be Running"
_KILLED: Final = 137


class StartProblem(NamedTuple):
    """The reason and message of the `waiting` state of a container that cannot start now."""

    reason: str
    message: str

    def state(self) -> Mapping[str, Any]:
        """Return the `waiting` state with this reason and message."""
        return {"waiting": {field: text for field, text in self._asdict().items() if text}}


def container_status(
    container: PodContainer,
    pod: Obj,
    trouble: StartProblem | None,
    backoff: Duration | None,
    *,
    is_starting: bool = False,
) -> dict[str, Any]:
    """Return the status of a container; `trouble` is why it cannot start, `backoff` its current restart delay.

    The previous status is kept while the container is starting.
    """
    run, reported = container.last, container.reported
    why = trouble if backoff is None else backing_off(pod, container.name, backoff)
    if run is None:
        return _not_begun(container, pod, why)
    was_waiting = bool(reported) and "waiting" in reported["state"] and bool(reported["lastState"])
    if reported and (run.phase == STARTING or (is_starting and why is None and was_waiting)):
        return {**reported}
    before = container.runs[-2] if len(container.runs) > 1 else None
    state, last_state = _state(run, why, pod), {} if before is None else terminated(before)
    if "waiting" in state and not run.is_alive:
        last_state = terminated(run)
    is_running = "running" in state
    has_ended_well = container.part is ContainerRole.INIT and not run.is_alive and run.exit_code == 0
    return {
        **_outline(container),
        **_image_of(run),
        "state": state,
        "lastState": last_state,
        "ready": has_ended_well
        or (is_running and container.part is not ContainerRole.INIT and bool(run.status.get("ready"))),
        "started": is_running and run.is_started,
        "restartCount": run.attempt,
        **({} if run.phase == STARTING else {"containerID": _id_of(run)}),
    }


def unknown(message: str = _LOST) -> Mapping[str, Any]:
    """Return the `terminated` state of a container whose exit code is unknown."""
    return {"terminated": {"exitCode": _KILLED, "reason": UNKNOWN, "message": message}}


def backing_off(pod: Obj, container: str, wait: Duration) -> StartProblem:
    """Return the CrashLoopBackOff problem of a container whose restart is delayed by `wait`."""
    minutes, seconds = divmod(wait // SECOND, 60)
    text = f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
    return StartProblem(
        "CrashLoopBackOff", f"back-off {text} restarting failed container={container} pod={full_name(pod)}"
    )


def full_name(pod: Obj) -> str:
    """Format a pod's name, namespace and uid as in messages of the kubelet."""
    metadata = pod["metadata"]
    return f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"


def _state(run: ObservedRun, why: StartProblem | None, pod: Obj) -> Mapping[str, Any]:
    if run.phase == STARTING:
        return _waiting(pod)
    if run.is_alive:
        return {"running": {"startedAt": format_time(run.started_at)}}
    return terminated(run) if why is None else why.state()


def _not_begun(container: PodContainer, pod: Obj, why: StartProblem | None) -> dict[str, Any]:
    """Return the status of a container without runs, based on its reported status."""
    reported = container.reported
    if reported and "terminated" in reported["state"]:
        return {**reported}
    last_state = reported.get("lastState") or {}
    if reported and "running" in reported["state"]:
        last_state = unknown(_GONE)
    return {
        **_outline(container),
        "state": _waiting(pod) if why is None else why.state(),
        "lastState": last_state,
        "ready": False,
        "started": False,
        "restartCount": reported.get("restartCount", 0),
    }


def _waiting(pod: Obj) -> Mapping[str, Any]:
    has_others_first = bool(pod["spec"].get("initContainers"))
    return {"waiting": {"reason": "PodInitializing" if has_others_first else "ContainerCreating"}}


def _outline(container: PodContainer) -> dict[str, Any]:
    outline = {"name": container.name, "image": container.spec.get("image") or "", "imageID": ""}
    mounts = [dict(_mount(mount)) for mount in container.spec.get("volumeMounts") or ()]
    return {**outline, "volumeMounts": mounts} if mounts else outline


def _image_of(run: ObservedRun) -> Mapping[str, str]:
    """Return the image and imageID fields as the engine resolved them; empty for an image mapped to this machine."""
    image: Mapping[str, str] = run.obj["spec"].get("image") or {}
    return {"image": image["resolved"], "imageID": image["digest"]} if "engine" in image else {}


def _mount(mount: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from {"name": mount["name"], "mountPath": mount["mountPath"]}.items()
    if mount.get("readOnly"):
        yield from {"readOnly": True, "recursiveReadOnly": "Disabled"}.items()


def terminated(run: ObservedRun) -> Mapping[str, Any]:
    """Return the `terminated` state of an ended run."""
    if run.status.get("reason") == UNKNOWN:
        return unknown()
    state: dict[str, Any] = {"exitCode": run.exit_code, "reason": run.status.get("reason") or _reason(run.exit_code)}
    if run.status.get("signal"):
        state["signal"] = run.status["signal"]
    if run.status.get("message"):
        state["message"] = run.status["message"]
    times = {"startedAt": format_time(run.started_at), "finishedAt": format_time(run.ended_at)}
    return {"terminated": {**state, **times, "containerID": _id_of(run)}}


def _reason(code: int) -> str:
    return "Error" if code else "Completed"


def _id_of(run: ObservedRun) -> str:
    metadata = run.obj["metadata"]
    return f"batchyard://{metadata['namespace']}/{metadata['name'] if run.container else SANDBOX}"


# --- conditions ---
# Conditions of pods, computed from the container statuses.
#
# Source: pkg/kubelet/status (generate.go).


_OWN: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


class ConditionVerdict(NamedTuple):
    """The status of a pod condition, with reason and message."""

    holds: bool
    reason: str = ""
    message: str = ""

    def of(self, kind: str, old: Mapping[str, Any] | None, now: Instant) -> Mapping[str, Any]:
        """Return the pod condition of type `kind`; the transition time of `old` is kept if the status is unchanged."""
        return condition(kind, self.holds, (self.reason, self.message), old, now)


def conditions_of(
    situation: PodState, statuses: Sequence[Mapping[str, Any]], phase: str, has_sandbox: bool, now: Instant
) -> list[Mapping[str, Any]]:
    """Return a pod's conditions: those of other controllers, then the kubelet's; `statuses` are of all containers."""
    pod = situation.pod
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    containers_ready = _containers_ready(situation, statuses, phase)
    own = {
        "PodReadyToStartContainers": ConditionVerdict(has_sandbox),
        "Initialized": _initialized(situation, statuses, phase),
        "Ready": _gated(pod, containers_ready),
        "ContainersReady": containers_ready,
        "PodScheduled": ConditionVerdict(True),
    }
    return [*_of_others(old), *(verdict.of(kind, old.get(kind), now) for kind, verdict in own.items())]


def conditions_of_rejected(pod: Obj, now: Instant) -> list[Mapping[str, Any]]:
    """Return the conditions of a rejected pod."""
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    failed = ConditionVerdict(False, "PodFailed")
    return [*_of_others(old), *(failed.of(kind, old.get(kind), now) for kind in ("Ready", "ContainersReady"))]


def _of_others(old: Mapping[str, Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    return (c for kind, c in old.items() if kind not in _OWN)


def _containers_ready(situation: PodState, statuses: Sequence[Mapping[str, Any]], phase: str) -> ConditionVerdict:
    if phase in {SUCCEEDED, FAILED}:
        return ConditionVerdict(False, "PodCompleted" if phase == SUCCEEDED else "PodFailed")
    is_ready = {status["name"]: status["ready"] for status in statuses}
    unready = [
        each.name for each in situation.containers if each.part is not ContainerRole.INIT and not is_ready[each.name]
    ]
    if unready:
        return ConditionVerdict(False, "ContainersNotReady", f"containers with unready status: {_names(unready)}")
    return ConditionVerdict(True)


def _gated(pod: Obj, containers_ready: ConditionVerdict) -> ConditionVerdict:
    """Return the Ready condition: true if the containers are ready and all readiness gates are true."""
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    if not containers_ready.holds or not gates:
        return containers_ready
    messages: list[str] = []
    for gate in gates:
        found = find_condition(pod, gate)
        if found is None:
            messages.append(f'corresponding condition of pod readiness gate "{gate}" does not exist.')
        elif found["status"] != "True":
            messages.append(f'the status of pod readiness gate "{gate}" is not "True", but {found["status"]}')
    return ConditionVerdict(False, "ReadinessGatesNotReady", ", ".join(messages)) if messages else containers_ready


def _initialized(situation: PodState, statuses: Sequence[Mapping[str, Any]], phase: str) -> ConditionVerdict:
    if phase == SUCCEEDED:
        return ConditionVerdict(True, "PodCompleted")
    by_name = {status["name"]: status for status in statuses}
    if any("waiting" not in by_name[each.name]["state"] for each in situation.of(ContainerRole.MAIN)):
        return ConditionVerdict(True)
    marks = {ContainerRole.INIT: "ready", ContainerRole.SIDECAR: "started"}
    firsts = [each for each in situation.containers if each.part is not ContainerRole.MAIN]
    left = [each.name for each in firsts if not by_name[each.name].get(marks[each.part])]
    if left:
        return ConditionVerdict(False, "ContainersNotInitialized", f"containers with incomplete status: {_names(left)}")
    return ConditionVerdict(True)


def _names(names: Iterable[str]) -> str:
    """Format names as Go prints a list."""
    return f"[{' '.join(names)}]"


Statuses = Sequence[Mapping[str, Any]]


class StatusInputs(NamedTuple):
    """The inputs from which a pod's status is computed."""

    situation: PodState
    steps: PodActions
    #: Why containers cannot be started, by container name.
    troubles: Mapping[str, StartProblem]
    host_ip: str


def status_of(seen: StatusInputs, now: Instant) -> dict[str, Any]:
    """Return the new status of a pod; fields written by other controllers are kept."""
    situation, has_ended = seen.situation, seen.steps.has_ended
    pod = situation.pod
    old = pod.get("status") or {}
    firsts: Statuses = _statuses(seen, (ContainerRole.INIT, ContainerRole.SIDECAR))
    mains: Statuses = sorted(_statuses(seen, (ContainerRole.MAIN,)), key=lambda status: str(status["name"]))
    phase, why = _judged(seen, firsts, mains, now)
    has_sandbox = situation.sandbox is not None and situation.sandbox.phase == READY and not has_ended
    status = {
        **old,
        **(why if has_ended else {}),
        "conditions": conditions_of(situation, [*firsts, *mains], phase, has_sandbox, now),
        # The final phase is reported only when nothing runs, because other controllers then reuse the pod's resources.
        "phase": phase if has_ended or phase not in {SUCCEEDED, FAILED} else old.get("phase", PENDING),
        "hostIP": seen.host_ip,
        "hostIPs": [{"ip": seen.host_ip}],
        **_addresses(seen, old),
    }
    status.setdefault("startTime", format_time(now))
    status.setdefault("qosClass", qos_class(pod["spec"]))
    if has_ended:
        firsts, mains = _concluded(situation, firsts, mains)
    if firsts:
        status["initContainerStatuses"] = firsts
    status["containerStatuses"] = mains
    return status


def rejected(pod: Obj, rejection: Mapping[str, Any], now: Instant) -> dict[str, Any]:
    """Return the status of a pod that the kubelet rejects. Source: rejectPod in pkg/kubelet."""
    old = pod.get("status") or {}
    times = {"startTime": format_time(now), "qosClass": qos_class(pod["spec"])}
    return {**old, **rejection, **times, "conditions": conditions_of_rejected(pod, now)}


def _statuses(seen: StatusInputs, parts: Sequence[ContainerRole]) -> list[dict[str, Any]]:
    pod, steps = seen.situation.pod, seen.steps
    starting = {start.container.name for start in steps.starts}
    return [
        container_status(
            each, pod, seen.troubles.get(each.name), steps.backoffs.get(each.name), is_starting=each.name in starting
        )
        for each in seen.situation.containers
        if each.part in parts
    ]


def _addresses(seen: StatusInputs, old: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the podIP fields: the sandbox's address, or the node's address for a pod on the host network."""
    sandbox = seen.situation.sandbox
    is_on_node = bool(seen.situation.pod["spec"].get("hostNetwork"))
    has_none = sandbox is None or sandbox.phase != READY
    if has_none and not (is_on_node and "podIP" not in old):
        return {}
    address = seen.host_ip if is_on_node or sandbox is None else sandbox.address or seen.host_ip
    return {"podIP": address, "podIPs": [{"ip": address}]}


# --- phase ---


def _judged(seen: StatusInputs, firsts: Statuses, mains: Statuses, now: Instant) -> tuple[str, Mapping[str, str]]:
    """Return the phase of a pod, and the status fields `reason` and `message` if a termination sets them."""
    pod = seen.situation.pod
    if is_terminal(pod):
        return pod["status"]["phase"], {}
    ending = termination_of(seen.situation, now)
    if ending is not None and ending.why:
        return FAILED, {"reason": ending.why, "message": ending.message}
    phase = _phase(seen, firsts, mains)
    return (FAILED if seen.steps.has_ended and phase not in {SUCCEEDED, FAILED} else phase), {}


def _phase(seen: StatusInputs, firsts: Statuses, mains: Statuses) -> str:
    """Return the phase of a pod, computed from its container statuses and its restart policy."""
    situation, policy = seen.situation, seen.situation.restart_policy
    parts = {each.name: each.part for each in situation.containers}
    inits = [status for status in firsts if parts[status["name"]] is ContainerRole.INIT]
    sidecars = [status for status in firsts if parts[status["name"]] is ContainerRole.SIDECAR]
    codes = [_code(status) for status in mains]
    if policy == "Never" and any(_code(status) for status in inits):
        return FAILED
    has_begun = any("waiting" not in status["state"] for status in mains)
    is_pending = any(_code(status) is None for status in inits) or (
        not has_begun and any(_code(status) is None and not status["started"] for status in sidecars)
    )
    if is_pending or any(code is None and "running" not in s["state"] for code, s in zip(codes, mains, strict=True)):
        return PENDING
    if any("running" in status["state"] for status in (*mains, *sidecars)):
        return RUNNING
    if not seen.steps.has_ended and (policy == "Always" or (policy == "OnFailure" and any(codes))):
        return RUNNING
    return FAILED if any(codes) else SUCCEEDED


def _code(status: Mapping[str, Any]) -> int | None:
    """Return the exit code in a container status; None if the container runs or has never ended."""
    state = status["state"]
    ended = state.get("terminated") or ("waiting" in state and status["lastState"].get("terminated")) or None
    return ended["exitCode"] if ended else None


# --- terminated pods ---


def _concluded(situation: PodState, firsts: Statuses, mains: Statuses) -> tuple[Statuses, Statuses]:
    """Return the final container statuses: each container that may have started becomes terminated."""
    if not firsts or _has_initialized(situation, firsts, mains):
        mains = [_ended(status) for status in mains]
    begun = max((number for number, status in enumerate(firsts) if _has_begun(status)), default=0)
    return [*map(_ended, firsts[: begun + 1]), *firsts[begun + 1 :]], mains


def _has_initialized(situation: PodState, firsts: Statuses, mains: Statuses) -> bool:
    last = list(_firsts(situation))[-1]
    return any(_has_begun(status) for status in mains) or bool(
        last.part is ContainerRole.INIT and _code(firsts[-1]) == 0
    )


def _firsts(situation: PodState) -> Iterator[Any]:
    return (each for each in situation.containers if each.part is not ContainerRole.MAIN)


def _has_begun(status: Mapping[str, Any]) -> bool:
    return "waiting" not in status["state"] or bool(status["lastState"])


def _ended(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return status if "terminated" in status["state"] else {**status, "state": unknown()}
