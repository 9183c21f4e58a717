"""The status of a pod as the kubelet of this machine writes it, from what ran of it.

Sources: pkg/kubelet/kubelet_pods.go (generateAPIPodStatus, getPhase), pkg/kubelet/status (status_manager.go:
mergePodStatus, TerminatePod).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.base.instant import Instant
from batchyard.core.lifecycle.pod import FAILED, PENDING, RUNNING, SUCCEEDED, is_terminal
from batchyard.runtime.local.conditions import conditions_of, conditions_of_rejected
from batchyard.runtime.local.container_status import Trouble, container_status, unknown
from batchyard.runtime.local.next_steps import Steps
from batchyard.runtime.local.runs import READY
from batchyard.runtime.local.situation import Part, Situation
from batchyard.runtime.local.termination import ending_of
from batchyard.runtime.pod_status import qos_class

Statuses = Sequence[Mapping[str, Any]]


class Seen(NamedTuple):
    """All that a status is made of."""

    situation: Situation
    steps: Steps
    #: Why containers are not started that should be, by name.
    troubles: Mapping[str, Trouble]
    host_ip: str


def status_of(seen: Seen, now: Instant) -> dict[str, Any]:
    """The status of a pod; what others say in it stays."""
    situation, has_ended = seen.situation, seen.steps.has_ended
    pod = situation.pod
    old = pod.get("status") or {}
    firsts: Statuses = _statuses(seen, (Part.INIT, Part.SIDECAR))
    mains: Statuses = sorted(_statuses(seen, (Part.MAIN,)), key=lambda status: str(status["name"]))
    phase, why = _judged(seen, firsts, mains, now)
    has_sandbox = situation.sandbox is not None and situation.sandbox.phase == READY and not has_ended
    status = {
        **old,
        **(why if has_ended else {}),
        "conditions": conditions_of(situation, [*firsts, *mains], phase, has_sandbox, now),
        # What is decided is told when nothing runs any more: others take what it held then.
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


def rejected(pod: Obj, said: Mapping[str, Any], now: Instant) -> dict[str, Any]:
    """The status of a pod that this machine does not take. Source: rejectPod in pkg/kubelet."""
    old = pod.get("status") or {}
    times = {"startTime": format_time(now), "qosClass": qos_class(pod["spec"])}
    return {**old, **said, **times, "conditions": conditions_of_rejected(pod, now)}


def _statuses(seen: Seen, parts: Sequence[Part]) -> list[dict[str, Any]]:
    pod, steps = seen.situation.pod, seen.steps
    starting = {start.container.name for start in steps.starts}
    return [
        container_status(
            each, pod, seen.troubles.get(each.name), steps.backoffs.get(each.name), is_starting=each.name in starting
        )
        for each in seen.situation.containers
        if each.part in parts
    ]


def _addresses(seen: Seen, old: Mapping[str, Any]) -> Mapping[str, Any]:
    """The address of the sandbox; of a pod without a network of its own that of the node."""
    sandbox = seen.situation.sandbox
    is_on_node = bool(seen.situation.pod["spec"].get("hostNetwork"))
    has_none = sandbox is None or sandbox.phase != READY
    if has_none and not (is_on_node and "podIP" not in old):
        return {}
    address = seen.host_ip if is_on_node or sandbox is None else sandbox.address or seen.host_ip
    return {"podIP": address, "podIPs": [{"ip": address}]}


# --- phase ---


def _judged(seen: Seen, firsts: Statuses, mains: Statuses, now: Instant) -> tuple[str, Mapping[str, str]]:
    """The phase that a pod is to be in, with reason and message."""
    pod = seen.situation.pod
    if is_terminal(pod):
        return pod["status"]["phase"], {}
    ending = ending_of(seen.situation, now)
    if ending is not None and ending.why:
        return FAILED, {"reason": ending.why, "message": ending.message}
    phase = _phase(seen, firsts, mains)
    return (FAILED if seen.steps.has_ended and phase not in {SUCCEEDED, FAILED} else phase), {}


def _phase(seen: Seen, firsts: Statuses, mains: Statuses) -> str:
    """The phase as what its containers do makes it."""
    situation, policy = seen.situation, seen.situation.restart_policy
    parts = {each.name: each.part for each in situation.containers}
    inits = [status for status in firsts if parts[status["name"]] is Part.INIT]
    sidecars = [status for status in firsts if parts[status["name"]] is Part.SIDECAR]
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
    """How a container ended that does not run; None for one that runs, or has not."""
    state = status["state"]
    ended = state.get("terminated") or ("waiting" in state and status["lastState"].get("terminated")) or None
    return ended["exitCode"] if ended else None


# --- what has ended for good ---


def _concluded(situation: Situation, firsts: Statuses, mains: Statuses) -> tuple[Statuses, Statuses]:
    """All containers as ended that may have begun: what became of those that waited nobody knows."""
    if not firsts or _has_initialized(situation, firsts, mains):
        mains = [_ended(status) for status in mains]
    begun = max((number for number, status in enumerate(firsts) if _has_begun(status)), default=0)
    return [*map(_ended, firsts[: begun + 1]), *firsts[begun + 1 :]], mains


def _has_initialized(situation: Situation, firsts: Statuses, mains: Statuses) -> bool:
    last = list(_firsts(situation))[-1]
    return any(_has_begun(status) for status in mains) or bool(last.part is Part.INIT and _code(firsts[-1]) == 0)


def _firsts(situation: Situation) -> Iterator[Any]:
    return (each for each in situation.containers if each.part is not Part.MAIN)


def _has_begun(status: Mapping[str, Any]) -> bool:
    return "waiting" not in status["state"] or bool(status["lastState"])


def _ended(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return status if "terminated" in status["state"] else {**status, "state": unknown()}
