"""Cells of Pods: ready containers, and the status word.

Source: printPod of Kubernetes's pkg/printers/internalversion.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Obj
from batchyard.api.printing.cells import NONE, text, value
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant, format_age

Container: TypeAlias = Mapping[str, Any]

_ENDED: Final = ("Succeeded", "Failed")
#: The reason of pods on an unreachable node.
_NODE_LOST: Final = "NodeLost"
_GATED: Final = "SchedulingGated"


class _Start(NamedTuple):
    """The progress of the init containers."""

    #: The statuses up to the first that is not done.
    begun: Sequence[Container]
    #: The state of the first that is not done; empty if all are done.
    reason: str
    #: The number of ready sidecars.
    ready: int


def ready(obj: Obj, _now: Instant) -> str:
    """Return the ready containers and the total, including sidecars."""
    start = _start(obj)
    running = [each for each in _counted(obj, start) if _is_running(each)]
    total = len(value(obj, "spec", "containers") or ()) + len(_sidecars(obj))
    return f"{start.ready + len(running)}/{total}"


def status(obj: Obj, _now: Instant) -> str:
    """Return the status word of a pod: its deletion, the reason of its containers, or its phase."""
    phase, pod_reason = value(obj, "status", "phase"), value(obj, "status", "reason")
    if obj["metadata"].get("deletionTimestamp"):
        if pod_reason == _NODE_LOST:
            return "Unknown"
        if phase not in _ENDED:
            return "Terminating"
    gated = (find_condition(obj, "PodScheduled") or {}).get("reason") == _GATED
    start = _start(obj)
    return _of_containers(obj, start) or start.reason or (_GATED if gated else text(pod_reason or phase))


def restarts(obj: Obj, now: Instant) -> str:
    """Return the number of container restarts, and the time since the last one."""
    start = _start(obj)
    sidecars = _sidecars(obj)
    beside = [each for each in start.begun if each["name"] in sidecars]
    counted = [*beside, *_counted(obj, start)] if _is_prepared(obj, start) else start.begun
    times = sum(each.get("restartCount") or 0 for each in counted)
    ends = [value(each, "lastState", "terminated", "finishedAt") for each in counted]
    last = max((parse_time(end) for end in ends if end), default=None)
    return str(times) if not times or last is None else f"{times} ({format_age(now - last)} ago)"


def ip(obj: Obj, _now: Instant) -> str:
    """Return the pod's IP address."""
    addresses = value(obj, "status", "podIPs") or [{"ip": value(obj, "status", "podIP")}]
    return addresses[0].get("ip") or NONE


def readiness_gates(obj: Obj, _now: Instant) -> str:
    """Return the number of readiness gates that are true, and the total."""
    gates = value(obj, "spec", "readinessGates") or ()
    return f"{sum(is_true(obj, gate['conditionType']) for gate in gates)}/{len(gates)}" if gates else NONE


def _of_containers(obj: Obj, start: _Start) -> str:
    """Return the reason of the first container that does not run; empty if there is none."""
    counted = _counted(obj, start)
    reason = next(filter(None, map(_why_not_running, counted)), "")
    if reason == "Completed" and any(map(_is_running, counted)):
        return "Running" if is_true(obj, "Ready") else "NotReady"
    return reason


def _counted(obj: Obj, start: _Start) -> Sequence[Container]:
    """Return the statuses of the main containers, once the init containers are done."""
    return (value(obj, "status", "containerStatuses") or ()) if _is_prepared(obj, start) else ()


def _is_prepared(obj: Obj, start: _Start) -> bool:
    return not start.reason or is_true(obj, "Initialized")


def _start(obj: Obj) -> _Start:
    """Return the progress of the init containers."""
    sidecars, total = _sidecars(obj), len(value(obj, "spec", "initContainers") or ())
    begun: list[Container] = []
    up = 0
    for index, container in enumerate(value(obj, "status", "initContainerStatuses") or ()):
        begun.append(container)
        ended = value(container, "state", "terminated")
        if ended is not None and not ended.get("exitCode"):
            continue
        if container["name"] not in sidecars or not container.get("started"):
            return _Start(begun, f"Init:{_why_not_running(container, 'PodInitializing') or f'{index}/{total}'}", up)
        up += bool(container.get("ready"))
    return _Start(begun, "", up)


def _sidecars(obj: Obj) -> Mapping[str, None]:
    """Return the sidecars: init containers with restartPolicy Always."""
    found = value(obj, "spec", "initContainers") or ()
    return {each["name"]: None for each in found if each.get("restartPolicy") == "Always"}


def _why_not_running(container: Container, usual: str = "") -> str:
    """Return the waiting reason of a container, unless it is `usual`, or its exit reason; empty if it runs."""
    waits, ended = (value(container, "state", way) for way in ("waiting", "terminated"))
    if waits is not None and waits.get("reason"):
        return "" if waits["reason"] == usual else str(waits["reason"])
    if ended is None:
        return ""
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _is_running(container: Container) -> bool:
    return bool(container.get("ready")) and value(container, "state", "running") is not None
