"""Pod status of simulated kubelets.

All containers of a simulated pod do the same at the same time (`Run`), and init containers take no time, so their
statuses are equal. Sources: pkg/kubelet/kubelet_pods.go (generateAPIPodStatus), pkg/kubelet/status (generate.go:
conditions), pkg/apis/core/v1/helper/qos.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import quantity
from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.api.views.pod_lifecycle import FAILED, SUCCEEDED, condition
from batchyard.base.instant import Instant
from batchyard.kubelet.simulated.node_machine import NodeMachine, pod_address

State = Mapping[str, Mapping[str, Any]]

_HAS_SANDBOX: Final = "PodReadyToStartContainers"
_OWN_CONDITIONS: Final = frozenset({_HAS_SANDBOX, "Initialized", "Ready", "ContainersReady", "PodScheduled"})
_NO_WORDS: Final = ("", "")
_NOTHING: Final[State] = {}
_QOS_RESOURCES: Final = ("cpu", "memory")


class SimulatedRunState(NamedTuple):
    """The common state of a pod's containers."""

    #: waiting, running or terminated, with its details.
    state: State
    #: The state before the last restart; empty if there was none.
    last: State = _NOTHING
    restarts: int = 0


def creating(pod: Obj) -> State:
    """Return the state of containers that are being created."""
    reason = "PodInitializing" if pod["spec"].get("initContainers") else "ContainerCreating"
    return {"waiting": {"reason": reason}}


def running(since: Instant) -> State:
    """Return the state of running containers."""
    return {"running": {"startedAt": format_time(since)}}


def exited(code: int, started_at: str, finished_at: Instant) -> State:
    """Return the state of containers that exited or were stopped."""
    times = {"startedAt": started_at, "finishedAt": format_time(finished_at)}
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", **times}}


def missing(message: str) -> State:
    """Return the state of containers whose outcome is unknown."""
    return {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": message}}


def run_of(pod: Obj) -> SimulatedRunState | None:
    """Return the container state from a pod's status; None if no kubelet has accepted the pod."""
    statuses = (pod.get("status") or {}).get("containerStatuses")
    if not statuses:
        return None
    first = statuses[0]
    return SimulatedRunState(first["state"], first.get("lastState") or _NOTHING, first.get("restartCount", 0))


def pod_status(pod: Obj, phase: str, run: SimulatedRunState, machine: NodeMachine, now: Instant) -> dict[str, Any]:
    """Return a pod's status with this phase and container state; fields of other controllers are kept."""
    old = pod.get("status") or {}
    status = {**old, "phase": phase, "conditions": _conditions(pod, phase, run, now)}
    if "startTime" not in status:
        status["startTime"], status["qosClass"] = format_time(now), qos_class(pod["spec"])
    if machine.node is not None and "hostIP" not in status:
        address = machine.host_ip()
        status["hostIP"], status["hostIPs"] = address, [{"ip": address}]
    if "running" in run.state and "podIP" not in status:
        address = _pod_ip(pod, machine)
        status["podIP"], status["podIPs"] = address, [{"ip": address}]
    if pod["spec"].get("initContainers"):
        status["initContainerStatuses"] = _init_container_statuses(pod, run, now)
    status["containerStatuses"] = [_container_status(c, run) for c in pod["spec"]["containers"]]
    return status


def qos_class(spec: Mapping[str, Any]) -> str:
    """Return the QoS class of a pod: Guaranteed, Burstable or BestEffort."""
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    amounts = [(_amounts(c, "requests"), _amounts(c, "limits")) for c in containers]
    if not any(requests or limits for requests, limits in amounts):
        return "BestEffort"
    for requests, limits in amounts:
        if len(limits) < len(_QOS_RESOURCES) or any(
            requests.get(name, limits[name]) != limits[name] for name in limits
        ):
            return "Burstable"
    return "Guaranteed"


# --- conditions ---


def _conditions(pod: Obj, phase: str, run: SimulatedRunState, now: Instant) -> list[Mapping[str, Any]]:
    """Return the conditions of other controllers, then the kubelet's own."""
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    is_creating = "waiting" in run.state and not run.last
    runs, not_ready = "running" in run.state, _why_not_ready(pod, phase, run)
    is_initialized, why = _initialized(pod, phase, is_creating)
    return [
        *[c for kind, c in old.items() if kind not in _OWN_CONDITIONS],
        condition(
            _HAS_SANDBOX, runs or bool(run.last and "waiting" in run.state), _NO_WORDS, old.get(_HAS_SANDBOX), now
        ),
        condition("Initialized", is_initialized, why, old.get("Initialized"), now),
        condition("Ready", runs, not_ready, old.get("Ready"), now),
        condition("ContainersReady", runs, not_ready, old.get("ContainersReady"), now),
        condition("PodScheduled", True, _NO_WORDS, old.get("PodScheduled"), now),
    ]


def _why_not_ready(pod: Obj, phase: str, run: SimulatedRunState) -> tuple[str, str]:
    if phase in {SUCCEEDED, FAILED}:
        return ("PodCompleted" if phase == SUCCEEDED else "PodFailed"), ""
    if "running" in run.state:
        return _NO_WORDS
    sidecars = [c for c in pod["spec"].get("initContainers") or () if _is_sidecar(c)]
    return "ContainersNotReady", f"containers with unready status: {_names([*sidecars, *pod['spec']['containers']])}"


def _initialized(pod: Obj, phase: str, is_creating: bool) -> tuple[bool, tuple[str, str]]:
    first = pod["spec"].get("initContainers") or ()
    if is_creating and first:
        return False, ("ContainersNotInitialized", f"containers with incomplete status: {_names(first)}")
    return True, ("PodCompleted" if phase == SUCCEEDED else "", "")


def _names(containers: Iterable[Mapping[str, Any]]) -> str:
    """Format names as Go prints a list."""
    return f"[{' '.join(c['name'] for c in containers)}]"


# --- containers ---


def _container_status(container: Mapping[str, Any], run: SimulatedRunState) -> dict[str, Any]:
    runs = "running" in run.state
    return {
        "name": container["name"],
        "state": run.state,
        "lastState": run.last,
        "ready": runs,
        "started": runs,
        "restartCount": run.restarts,
        "image": container.get("image") or "",
        "imageID": "",
    }


def _init_container_statuses(pod: Obj, run: SimulatedRunState, now: Instant) -> list[Mapping[str, Any]]:
    """Return statuses of sidecars equal to the main containers', and of init containers as done when these start."""
    old = {s["name"]: s for s in (pod.get("status") or {}).get("initContainerStatuses") or ()}
    done = SimulatedRunState(exited(0, format_time(now), now))
    return [_init_container_status(c, run, done, old.get(c["name"])) for c in pod["spec"]["initContainers"]]


def _init_container_status(
    container: Mapping[str, Any], run: SimulatedRunState, done: SimulatedRunState, old: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    if _is_sidecar(container) or ("waiting" in run.state and not run.last):
        return _container_status(container, run)
    if old is not None and "terminated" in old["state"]:
        return old
    return {**_container_status(container, done), "ready": True}


def _is_sidecar(container: Mapping[str, Any]) -> bool:
    return container.get("restartPolicy") == "Always"


def _pod_ip(pod: Obj, machine: NodeMachine) -> str:
    if pod["spec"].get("hostNetwork") and machine.node is not None:
        return machine.host_ip()
    return pod_address(pod["metadata"]["uid"])


def _amounts(container: Mapping[str, Any], kind: str) -> Mapping[str, int]:
    """Return the requests or limits that determine the QoS class."""
    asked: Mapping[str, Any] = (container.get("resources") or {}).get(kind) or {}
    found: Sequence[tuple[str, int]] = [(name, quantity.parse(asked[name])) for name in _QOS_RESOURCES if name in asked]
    return {name: nano for name, nano in found if nano > 0}
