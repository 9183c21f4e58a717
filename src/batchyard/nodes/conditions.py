"""The states of a Node: its conditions, the taints that follow from them, and what a drain makes its pods leave.

Sources: k8s.io/kubernetes pkg/controller/nodelifecycle (nodes that are not heard of, taints by condition) and
pkg/kubelet/nodestatus (what a kubelet says); k8s.io/kubectl pkg/drain (filters).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj, annotation, controller_of, with_path, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pod_lifecycle import is_terminal
from batchyard.base.instant import Instant

READY: Final = "Ready"
NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"

KUBELET_NOT_READY: Final = "KubeletNotReady"

Condition = Mapping[str, Any]
Taint = Mapping[str, Any]

#: The conditions kubelets post, as long as all is well: status, reason, message. Ready is the last, as kubelets do it.
_HEALTHY: Final[Mapping[str, tuple[str, str, str]]] = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    READY: ("True", "KubeletReady", "kubelet is posting ready status"),
}
_SILENT: Final = ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
_NEVER_HEARD: Final = ("Unknown", "NodeStatusNeverUpdated", "Kubelet never posted node status.")
#: The taint that goes with a condition in a status.
_TAINT_KEYS: Final[Mapping[tuple[str, str], str]] = {
    (READY, "False"): well_known.NOT_READY,
    (READY, "Unknown"): well_known.UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
}
#: The NoSchedule taints that say nothing but what conditions and spec say.
_SCHEDULING_KEYS: Final = frozenset({*_TAINT_KEYS.values(), well_known.UNSCHEDULABLE})
_EXECUTION_KEYS: Final = (well_known.NOT_READY, well_known.UNREACHABLE)


# --- conditions ---


def readiness(node: Obj) -> str:
    """The status of its condition Ready: True, False or Unknown; empty if nobody posted one."""
    ready = find_condition(node, READY)
    return "" if ready is None else ready["status"]


def unheard_of(node: Obj, now: Instant) -> Obj:
    """The node whose kubelet is not heard of any more: nothing it said counts."""
    conditions = conditions_of(node)
    for kind in (READY, "MemoryPressure", "DiskPressure", "PIDPressure"):
        old = conditions.get(kind)
        if old is None:
            never = _condition(kind, _NEVER_HEARD, None, now)
            conditions[kind] = {**never, "lastHeartbeatTime": node["metadata"]["creationTimestamp"]}
        elif old["status"] != "Unknown":
            conditions[kind] = _condition(kind, _SILENT, old, now)
    return _with_conditions(node, conditions)


def heard_of_again(node: Obj, now: Instant) -> Obj:
    """The node whose kubelet posts anew: what was unknown, or never said, is well."""
    conditions = conditions_of(node)
    for kind, said in _HEALTHY.items():
        old = conditions.get(kind)
        if old is None or old["status"] == "Unknown":
            conditions[kind] = {**_condition(kind, said, old, now), "lastHeartbeatTime": format_time(now)}
    return _with_conditions(node, conditions)


def shutting_down(node: Obj, now: Instant) -> Obj:
    """The node whose kubelet was told that the machine goes off."""
    conditions = conditions_of(node)
    said = ("False", KUBELET_NOT_READY, "node is shutting down")
    new = _condition(READY, said, conditions.get(READY), now)
    conditions[READY] = {**new, "lastHeartbeatTime": format_time(now)}
    return _with_conditions(node, conditions)


def conditions_of(node: Obj) -> dict[str, Condition]:
    """Its conditions by type."""
    return {c["type"]: c for c in (node.get("status") or {}).get("conditions") or ()}


def _condition(kind: str, said: tuple[str, str, str], old: Condition | None, now: Instant) -> dict[str, Any]:
    """A condition as nodes have them; the time of the last heartbeat stays."""
    status, reason, message = said
    since = old["lastTransitionTime"] if old is not None and old["status"] == status else format_time(now)
    beat = {} if old is None or "lastHeartbeatTime" not in old else {"lastHeartbeatTime": old["lastHeartbeatTime"]}
    return {"type": kind, "status": status, **beat, "lastTransitionTime": since, "reason": reason, "message": message}


def _with_conditions(node: Obj, conditions: Mapping[str, Condition]) -> Obj:
    """The node with these conditions; the node itself if they say what it says, but for the time of heartbeats."""
    if {k: _words(c) for k, c in conditions.items()} == {k: _words(c) for k, c in conditions_of(node).items()}:
        return node
    return with_status(node, {**(node.get("status") or {}), "conditions": list(conditions.values())})


def _words(condition: Condition) -> tuple[str, str, str]:
    return condition["status"], condition.get("reason", ""), condition.get("message", "")


# --- taints ---


def taints_of(node: Obj) -> Sequence[Taint]:
    """Its taints."""
    return (node.get("spec") or {}).get("taints") or ()


def has_taint(node: Obj, key: str) -> bool:
    """Whether it has a taint with that key, whatever its effect."""
    return any(taint["key"] == key for taint in taints_of(node))


def execution_taints(node: Obj) -> Sequence[Taint]:
    """Its taints that drive out pods."""
    return [taint for taint in taints_of(node) if taint.get("effect") == NO_EXECUTE]


def is_given_up(node: Obj) -> bool:
    """Whether it has a taint that drives out pods since it is not ready."""
    return any(taint["key"] in _EXECUTION_KEYS for taint in execution_taints(node))


def given_up_at(node: Obj) -> Instant | None:
    """When it got such a taint; None: it has none, or none that says so."""
    times = [t["timeAdded"] for t in execution_taints(node) if t["key"] in _EXECUTION_KEYS and "timeAdded" in t]
    return max(map(parse_time, times), default=None)


def execution_key(node: Obj) -> str | None:
    """The key of the NoExecute taint that its condition Ready asks for; None: it asks for none."""
    return _TAINT_KEYS.get((READY, readiness(node)))


def with_taints(node: Obj, execution: str | None, now: Instant) -> Obj:
    """The node with the taints its conditions and spec ask for, and of those that drive out pods this one.

    Taints of others stay, and old ones keep their places. A NoExecute taint is told when it came if it does not say:
    from then on pods are tolerated to stay.
    """
    wanted = {(key, NO_SCHEDULE): key for key in _scheduling_keys(node)}
    if execution is not None:
        wanted[execution, NO_EXECUTE] = execution
    taints: list[Taint] = []
    for taint in taints_of(node):
        identity = (taint["key"], taint.get("effect", ""))
        if _is_ours(*identity) and identity not in wanted:
            continue
        wanted.pop(identity, None)
        stamped = identity[1] != NO_EXECUTE or "timeAdded" in taint
        taints.append(taint if stamped else {**taint, "timeAdded": format_time(now)})
    taints += [{"key": key, "effect": effect, "timeAdded": format_time(now)} for key, effect in wanted]
    return node if taints == list(taints_of(node)) else with_path(node, ("spec", "taints"), taints or None)


def _scheduling_keys(node: Obj) -> Iterable[str]:
    """The keys of the NoSchedule taints that its conditions and spec ask for."""
    for condition in (node.get("status") or {}).get("conditions") or ():
        key = _TAINT_KEYS.get((condition["type"], condition["status"]))
        if key is not None:
            yield key
    if (node.get("spec") or {}).get("unschedulable"):
        yield well_known.UNSCHEDULABLE


def _is_ours(key: str, effect: str) -> bool:
    return key in _SCHEDULING_KEYS if effect == NO_SCHEDULE else effect == NO_EXECUTE and key in _EXECUTION_KEYS


# --- cordon and drain ---


class Drain(NamedTuple):
    """Which pods of a node a drain evicts, and which keep it from being drained, with the reason."""

    evicted: Sequence[Obj]
    refused: Sequence[tuple[Obj, str]]


class DrainOptions(NamedTuple):
    """How far a drain may go: kubectl's flags of the same names."""

    force: bool = False
    ignore_daemonsets: bool = False
    delete_emptydir_data: bool = False


def cordoned(node: Obj, unschedulable: bool = True) -> Obj:
    """The node closed to new pods, or opened again."""
    if bool((node.get("spec") or {}).get("unschedulable")) == unschedulable:
        return node
    return with_path(node, ("spec", "unschedulable"), unschedulable or None)


def drain(pods: Iterable[Obj], options: DrainOptions) -> Drain:
    """What a drain does to the pods of a node; it does nothing at all if one is refused."""
    evicted: list[Obj] = []
    refused: list[tuple[Obj, str]] = []
    for pod in pods:
        reason = None if is_terminal(pod) else _refusal(pod, options)
        if reason is not None:
            refused.append((pod, reason))
        elif not _stays(pod):
            evicted.append(pod)
    return Drain(evicted, refused)


def _refusal(pod: Obj, options: DrainOptions) -> str | None:
    """Why a drain may not evict a pod that has not ended; None: it may, or passes it over."""
    owner = controller_of(pod)
    if _is_of_daemonset(pod):
        return None if options.ignore_daemonsets else "DaemonSet-managed Pods (use --ignore-daemonsets to ignore)"
    if annotation(pod, "kubernetes.io/config.mirror") is not None:
        return None
    if not options.delete_emptydir_data and any("emptyDir" in v for v in pod["spec"].get("volumes") or ()):
        return "Pods with local storage (use --delete-emptydir-data to override)"
    if owner is None and not options.force:
        return "cannot delete Pods that declare no controller (use --force to override)"
    return None


def _stays(pod: Obj) -> bool:
    """Whether a drain passes a pod over: nothing brings it elsewhere."""
    if annotation(pod, "kubernetes.io/config.mirror") is not None:
        return True
    return _is_of_daemonset(pod) and not is_terminal(pod)


def _is_of_daemonset(pod: Obj) -> bool:
    owner = controller_of(pod)
    return owner is not None and owner["kind"] == "DaemonSet"
