"""The conditions of a pod as the kubelet of this machine writes them, from what its status says of its containers.

Source: pkg/kubelet/status (generate.go).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.base.instant import Instant
from batchyard.core.lifecycle.pod import FAILED, SUCCEEDED, condition
from batchyard.runtime.local.situation import Part, Situation

_OWN: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


class Verdict(NamedTuple):
    """Whether a condition holds, and why."""

    holds: bool
    reason: str = ""
    message: str = ""

    def of(self, kind: str, old: Mapping[str, Any] | None, now: Instant) -> Mapping[str, Any]:
        """The condition."""
        return condition(kind, self.holds, (self.reason, self.message), old, now)


def conditions_of(
    situation: Situation, statuses: Sequence[Mapping[str, Any]], phase: str, has_sandbox: bool, now: Instant
) -> list[Mapping[str, Any]]:
    """The conditions of others, then the kubelet's own; `statuses` are those of all containers."""
    pod = situation.pod
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    containers_ready = _containers_ready(situation, statuses, phase)
    own = {
        "PodReadyToStartContainers": Verdict(has_sandbox),
        "Initialized": _initialized(situation, statuses, phase),
        "Ready": _gated(pod, containers_ready),
        "ContainersReady": containers_ready,
        "PodScheduled": Verdict(True),
    }
    return [*_of_others(old), *(verdict.of(kind, old.get(kind), now) for kind, verdict in own.items())]


def conditions_of_rejected(pod: Obj, now: Instant) -> list[Mapping[str, Any]]:
    """The conditions of a pod that never began here."""
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    failed = Verdict(False, "PodFailed")
    return [*_of_others(old), *(failed.of(kind, old.get(kind), now) for kind in ("Ready", "ContainersReady"))]


def _of_others(old: Mapping[str, Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    return (c for kind, c in old.items() if kind not in _OWN)


def _containers_ready(situation: Situation, statuses: Sequence[Mapping[str, Any]], phase: str) -> Verdict:
    if phase in {SUCCEEDED, FAILED}:
        return Verdict(False, "PodCompleted" if phase == SUCCEEDED else "PodFailed")
    is_ready = {status["name"]: status["ready"] for status in statuses}
    unready = [each.name for each in situation.containers if each.part is not Part.INIT and not is_ready[each.name]]
    if unready:
        return Verdict(False, "ContainersNotReady", f"containers with unready status: {_names(unready)}")
    return Verdict(True)


def _gated(pod: Obj, containers_ready: Verdict) -> Verdict:
    """Whether a pod is ready whose containers are, or not: others may have to agree."""
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    if not containers_ready.holds or not gates:
        return containers_ready
    told: list[str] = []
    for gate in gates:
        found = find_condition(pod, gate)
        if found is None:
            told.append(f'corresponding condition of pod readiness gate "{gate}" does not exist.')
        elif found["status"] != "True":
            told.append(f'the status of pod readiness gate "{gate}" is not "True", but {found["status"]}')
    return Verdict(False, "ReadinessGatesNotReady", ", ".join(told)) if told else containers_ready


def _initialized(situation: Situation, statuses: Sequence[Mapping[str, Any]], phase: str) -> Verdict:
    if phase == SUCCEEDED:
        return Verdict(True, "PodCompleted")
    by_name = {status["name"]: status for status in statuses}
    if any("waiting" not in by_name[each.name]["state"] for each in situation.of(Part.MAIN)):
        return Verdict(True)
    marks = {Part.INIT: "ready", Part.SIDECAR: "started"}
    firsts = [each for each in situation.containers if each.part is not Part.MAIN]
    left = [each.name for each in firsts if not by_name[each.name].get(marks[each.part])]
    if left:
        return Verdict(False, "ContainersNotInitialized", f"containers with incomplete status: {_names(left)}")
    return Verdict(True)


def _names(names: Iterable[str]) -> str:
    """Names as Go prints a list of them."""
    return f"[{' '.join(names)}]"
