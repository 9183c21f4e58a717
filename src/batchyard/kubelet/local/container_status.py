"""Container statuses, computed from runs.

Sources: pkg/kubelet/kubelet_pods.go (convertToAPIContainerStatuses), pkg/kubelet/prober (prober_manager.go:
UpdatePodStatus), pkg/kubelet/kuberuntime (doBackOff).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Duration
from batchyard.interfaces.containers import SANDBOX
from batchyard.kubelet.local.pod_state import ContainerRole, PodContainer
from batchyard.kubelet.local.runs import STARTING, ObservedRun

UNKNOWN: Final = "ContainerStatusUnknown"
_LOST: Final = "The container could not be located when the pod was terminated"
_GONE: Final = "The container could not be located when the pod was deleted.  The container used to be Running"
_KILLED: Final = 137


class StartProblem(NamedTuple):
    """Why a container cannot start now: reason and message of its `waiting` state."""

    reason: str
    message: str

    def state(self) -> Mapping[str, Any]:
        """The container state for this reason."""
        return {"waiting": {field: text for field, text in self._asdict().items() if text}}


def container_status(
    container: PodContainer,
    pod: Obj,
    trouble: StartProblem | None,
    backoff: Duration | None,
    *,
    is_starting: bool = False,
) -> dict[str, Any]:
    """Return the status of a container; `backoff` is its current restart delay.

    While a container starts, its previous status stays.
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
    """Return the state of a container whose outcome is unknown."""
    return {"terminated": {"exitCode": _KILLED, "reason": UNKNOWN, "message": message}}


def backing_off(pod: Obj, container: str, wait: Duration) -> StartProblem:
    """Return the CrashLoopBackOff of a container that ended too soon."""
    minutes, seconds = divmod(wait // SECOND, 60)
    text = f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
    return StartProblem(
        "CrashLoopBackOff", f"back-off {text} restarting failed container={container} pod={full_name(pod)}"
    )


def full_name(pod: Obj) -> str:
    """Format a pod as kubelets do in messages."""
    metadata = pod["metadata"]
    return f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"


def _state(run: ObservedRun, why: StartProblem | None, pod: Obj) -> Mapping[str, Any]:
    if run.phase == STARTING:
        return _waiting(pod)
    if run.is_alive:
        return {"running": {"startedAt": format_time(run.started_at)}}
    return terminated(run) if why is None else why.state()


def _not_begun(container: PodContainer, pod: Obj, why: StartProblem | None) -> dict[str, Any]:
    """Return the status of a container without runs, based on its last reported status."""
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
    """Return the image as the engine resolved it; empty for an image that is mapped to this machine."""
    image: Mapping[str, str] = run.obj["spec"].get("image") or {}
    return {"image": image["resolved"], "imageID": image["digest"]} if "engine" in image else {}


def _mount(mount: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from {"name": mount["name"], "mountPath": mount["mountPath"]}.items()
    if mount.get("readOnly"):
        yield from {"readOnly": True, "recursiveReadOnly": "Disabled"}.items()


def terminated(run: ObservedRun) -> Mapping[str, Any]:
    """Return the `terminated` state of a run."""
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
