"""Node conditions, the taints that follow from them, and cordon and drain.

Sources: k8s.io/kubernetes pkg/controller/nodelifecycle (nodes without heartbeats, taints by condition) and
pkg/kubelet/nodestatus (conditions of a kubelet); k8s.io/kubectl pkg/drain (filters).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation, controller_of, find_condition, with_path, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import is_terminal
from batchyard.base.instant import Instant

READY: Final = "Ready"
NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"

KUBELET_NOT_READY: Final = "KubeletNotReady"

Condition = Mapping[str, Any]
Taint = Mapping[str, Any]

#: The conditions of a healthy kubelet: status, reason, message. Ready comes last, as in kubelets.
_HEALTHY_CONDITIONS: Final[Mapping[str, tuple[str, str, str]]] = {
    "MemoryPressure": ("False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    READY: ("True", "KubeletReady", "kubelet is posting ready status"),
}
_HEARTBEATS_STOPPED_CONDITION: Final = ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")
_NEVER_UPDATED_CONDITION: Final = ("Unknown", "NodeStatusNeverUpdated", "Kubelet never posted node status.")
#: By condition and status: the key of the taint.
_TAINT_KEY_BY_CONDITION: Final[Mapping[tuple[str, str], str]] = {
    (READY, "False"): well_known.NOT_READY,
    (READY, "Unknown"): well_known.UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
}
#: The NoSchedule taints that follow from conditions and spec.
_NO_SCHEDULE_KEYS: Final = frozenset({*_TAINT_KEY_BY_CONDITION.values(), well_known.UNSCHEDULABLE})
_NO_EXECUTE_KEYS: Final = (well_known.NOT_READY, well_known.UNREACHABLE)


def readiness(node: Obj) -> str:
    """Return the status of a node's Ready condition: True, False or Unknown; '' without this condition."""
    condition = find_condition(node, READY)
    return "" if condition is None else condition["status"]


def with_lost_heartbeats(node: Obj, now: Instant) -> Obj:
    """Return the node with its kubelet's conditions set to Unknown, because the kubelet stopped sending heartbeats."""
    conditions = conditions_of(node)
    for kind in (READY, "MemoryPressure", "DiskPressure", "PIDPressure"):
        old = conditions.get(kind)
        if old is None:
            new_condition = _condition(kind, _NEVER_UPDATED_CONDITION, None, now)
            conditions[kind] = {**new_condition, "lastHeartbeatTime": node["metadata"]["creationTimestamp"]}
        elif old["status"] != "Unknown":
            conditions[kind] = _condition(kind, _HEARTBEATS_STOPPED_CONDITION, old, now)
    return _with_conditions(node, conditions)


def with_resumed_heartbeats(node: Obj, now: Instant) -> Obj:
    """Return the node with unknown or missing conditions set to healthy, because its kubelet sends heartbeats again."""
    conditions = conditions_of(node)
    for kind, values in _HEALTHY_CONDITIONS.items():
        old = conditions.get(kind)
        if old is None or old["status"] == "Unknown":
            conditions[kind] = {**_condition(kind, values, old, now), "lastHeartbeatTime": format_time(now)}
    return _with_conditions(node, conditions)


def with_shutdown(node: Obj, now: Instant) -> Obj:
    """Return the node with Ready=False, because its machine is shutting down."""
    conditions = conditions_of(node)
    condition_values = ("False", KUBELET_NOT_READY, "node is shutting down")
    new = _condition(READY, condition_values, conditions.get(READY), now)
    conditions[READY] = {**new, "lastHeartbeatTime": format_time(now)}
    return _with_conditions(node, conditions)


def conditions_of(node: Obj) -> dict[str, Condition]:
    """Return the conditions of a node by type."""
    return {c["type"]: c for c in (node.get("status") or {}).get("conditions") or ()}


def _condition(
    kind: str, status_reason_message: tuple[str, str, str], old: Condition | None, now: Instant
) -> dict[str, Any]:
    status, reason, message = status_reason_message
    transition_time = old["lastTransitionTime"] if old is not None and old["status"] == status else format_time(now)
    heartbeat = {} if old is None or "lastHeartbeatTime" not in old else {"lastHeartbeatTime": old["lastHeartbeatTime"]}
    time_fields = {**heartbeat, "lastTransitionTime": transition_time}
    return {"type": kind, "status": status, **time_fields, "reason": reason, "message": message}


def _with_conditions(node: Obj, conditions: Mapping[str, Condition]) -> Obj:
    if {k: _status_reason_message(c) for k, c in conditions.items()} == {
        k: _status_reason_message(c) for k, c in conditions_of(node).items()
    }:
        return node
    return with_status(node, {**(node.get("status") or {}), "conditions": list(conditions.values())})


def _status_reason_message(condition: Condition) -> tuple[str, str, str]:
    return condition["status"], condition.get("reason", ""), condition.get("message", "")


def taints_of(node: Obj) -> Sequence[Taint]:
    """Return the taints of a node."""
    return (node.get("spec") or {}).get("taints") or ()


def has_taint(node: Obj, key: str) -> bool:
    """Return whether a node has a taint with this key, regardless of the effect."""
    return any(taint["key"] == key for taint in taints_of(node))


def no_execute_taints(node: Obj) -> Sequence[Taint]:
    """Return all NoExecute taints of a node."""
    return [taint for taint in taints_of(node) if taint.get("effect") == NO_EXECUTE]


def has_unready_taint(node: Obj) -> bool:
    """Return whether a node has the NoExecute taint node.kubernetes.io/not-ready or unreachable."""
    return any(taint["key"] in _NO_EXECUTE_KEYS for taint in no_execute_taints(node))


def unready_taint_time(node: Obj) -> Instant | None:
    """Return when a node got the NoExecute taint not-ready or unreachable; None without such a taint or its time."""
    taint_times = [t["timeAdded"] for t in no_execute_taints(node) if t["key"] in _NO_EXECUTE_KEYS and "timeAdded" in t]
    return max(map(parse_time, taint_times), default=None)


def required_no_execute_taint_key(node: Obj) -> str | None:
    """Return the key of the NoExecute taint that a node's Ready condition requires.

    None if the node is ready or has no Ready condition.
    """
    return _TAINT_KEY_BY_CONDITION.get((READY, readiness(node)))


def with_taints(node: Obj, no_execute_key_to_set: str | None, now: Instant) -> Obj:
    """Return the node with the NoSchedule taints that its conditions and spec require, and one NoExecute taint, if any.

    `no_execute_key_to_set` is the key of the latter: not-ready, unreachable, or None. Taints of other clients stay, and
    existing taints keep their positions. A NoExecute taint without `timeAdded` gets one, because toleration times count
    from then.
    """
    missing_taints = {(key, NO_SCHEDULE): key for key in _no_schedule_keys(node)}
    if no_execute_key_to_set is not None:
        missing_taints[no_execute_key_to_set, NO_EXECUTE] = no_execute_key_to_set
    taints: list[Taint] = []
    for taint in taints_of(node):
        taint_identity = (taint["key"], taint.get("effect", ""))
        if _is_managed_taint(*taint_identity) and taint_identity not in missing_taints:
            continue
        missing_taints.pop(taint_identity, None)
        has_needed_time = taint_identity[1] != NO_EXECUTE or "timeAdded" in taint
        taints.append(taint if has_needed_time else {**taint, "timeAdded": format_time(now)})
    taints += [{"key": key, "effect": effect, "timeAdded": format_time(now)} for key, effect in missing_taints]
    return node if taints == list(taints_of(node)) else with_path(node, ("spec", "taints"), taints or None)


def _no_schedule_keys(node: Obj) -> Iterable[str]:
    for condition in (node.get("status") or {}).get("conditions") or ():
        key = _TAINT_KEY_BY_CONDITION.get((condition["type"], condition["status"]))
        if key is not None:
            yield key
    if (node.get("spec") or {}).get("unschedulable"):
        yield well_known.UNSCHEDULABLE


def _is_managed_taint(key: str, effect: str) -> bool:
    return key in _NO_SCHEDULE_KEYS if effect == NO_SCHEDULE else effect == NO_EXECUTE and key in _NO_EXECUTE_KEYS


class DrainPlan(NamedTuple):
    """The pods of a node that a drain evicts, and the pods that prevent the drain, with reasons."""

    evicted_pods: Sequence[Obj]
    refusals: Sequence[tuple[Obj, str]]


class DrainOptions(NamedTuple):
    """The options of a drain, named as the flags of kubectl drain."""

    force: bool = False
    ignore_daemonsets: bool = False
    delete_emptydir_data: bool = False


def with_unschedulable(node: Obj, unschedulable: bool = True) -> Obj:
    """Return the node with `spec.unschedulable` set to true, or removed if the argument is False."""
    if bool((node.get("spec") or {}).get("unschedulable")) == unschedulable:
        return node
    return with_path(node, ("spec", "unschedulable"), unschedulable or None)


def plan_drain(pods: Iterable[Obj], options: DrainOptions) -> DrainPlan:
    """Return which of a node's pods a drain evicts, and which pods prevent the drain."""
    evicted_pods: list[Obj] = []
    refusals: list[tuple[Obj, str]] = []
    for pod in pods:
        reason = None if is_terminal(pod) else _drain_refusal(pod, options)
        if reason is not None:
            refusals.append((pod, reason))
        elif not _is_skipped_by_drain(pod):
            evicted_pods.append(pod)
    return DrainPlan(evicted_pods, refusals)


def _drain_refusal(pod: Obj, options: DrainOptions) -> str | None:
    """Return why a drain cannot evict a pod; None if it can or if it skips the pod."""
    owner = controller_of(pod)
    if _is_daemonset_pod(pod):
        return None if options.ignore_daemonsets else "DaemonSet-managed Pods (use --ignore-daemonsets to ignore)"
    if annotation(pod, "kubernetes.io/config.mirror") is not None:
        return None
    if not options.delete_emptydir_data and any("emptyDir" in v for v in pod["spec"].get("volumes") or ()):
        return "Pods with local storage (use --delete-emptydir-data to override)"
    if owner is None and not options.force:
        return "cannot delete Pods that declare no controller (use --force to override)"
    return None


def _is_skipped_by_drain(pod: Obj) -> bool:
    if annotation(pod, "kubernetes.io/config.mirror") is not None:
        return True
    return _is_daemonset_pod(pod) and not is_terminal(pod)


def _is_daemonset_pod(pod: Obj) -> bool:
    owner = controller_of(pod)
    return owner is not None and owner["kind"] == "DaemonSet"
