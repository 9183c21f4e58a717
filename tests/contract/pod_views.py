"""A client's view of pods and their owners, independent of time and place."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from contract.final_state import outcome

Obj = Mapping[str, Any]
Objects = Callable[[str], Sequence[Obj]]

_DRAWN: Final = re.compile(r"-[0-9a-z]{5}$")
_MARKS: Final = ("exitCode", "reason")
#: Events that the simulated kubelet does not report: normal progress and events of nodes.
_UNTOLD: Final = {"Pulled", "Created", "Started", "Killing", "Scheduled"}


def visible_objects(objects: Objects, scene: str) -> dict[str, Any]:
    """Return the visible parts of the objects whose names contain the name of a scene."""

    def of_scene(kind: str) -> Sequence[Obj]:
        return [obj for obj in objects(kind) if scene in obj["metadata"]["name"]]

    events = [e for e in objects(scheme.EVENT) if scene in e["involvedObject"]["name"] and e["reason"] not in _UNTOLD]
    whole = outcome(of_scene)
    del whole["pods"]  # events of nodes
    return {
        **_without_names(whole, of_scene(scheme.POD)),
        "pods": sorted((_pod(pod) for pod in of_scene(scheme.POD)), key=repr),
        "events": sorted({f"{_name(e['involvedObject'])} {e['type']} {e['reason']}" for e in events}),
    }


def _without_names(reported: Any, pods: Sequence[Obj]) -> Any:
    """Return a value in which the names of pods have no generated suffix."""
    if isinstance(reported, dict):
        return {name: _without_names(each, pods) for name, each in reported.items()}
    if isinstance(reported, list):
        return [_without_names(each, pods) for each in reported]
    if isinstance(reported, str):
        for name in (pod["metadata"]["name"] for pod in pods):
            reported = reported.replace(name, _DRAWN.sub("", name))
    return reported


def _name(reference: Obj) -> str:
    is_drawn = reference["kind"] in {"Pod", "Workload"}
    return f"{reference['kind']}/{_DRAWN.sub('', reference['name']) if is_drawn else reference['name']}"


def _pod(pod: Obj) -> dict[str, Any]:
    status = pod.get("status") or {}
    both = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return {
        "name": _DRAWN.sub("", pod["metadata"]["name"]),
        **{field: status.get(field) for field in ("phase", "reason", "message", "qosClass")},
        "conditions": {c["type"]: (c["status"], c.get("reason"), c.get("message")) for c in status["conditions"]},
        "containers": {each["name"]: _container(each) for each in both},
    }


def _container(status: Obj) -> dict[str, Any]:
    states = {field: _state(status.get(field) or {}) for field in ("state", "lastState")}
    return {**states, **{mark: status[mark] for mark in ("ready", "started", "restartCount")}}


def _state(state: Obj) -> list[tuple[str, list[Any]]]:
    return [(kind, [details.get(mark) for mark in _MARKS]) for kind, details in state.items()]
