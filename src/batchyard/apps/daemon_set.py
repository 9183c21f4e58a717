"""DaemonSet controller: one pod on each node that its pods select and tolerate.

Source: pkg/controller/daemon of Kubernetes.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme
from batchyard.api.errors import ApiError
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pod_shape import NodeRules, read_shape
from batchyard.api.views.pods import FAILED, SUCCEEDED, bound_node, is_ready, is_terminating, phase
from batchyard.apps import children
from batchyard.apps.children import BURST_REPLICAS, ChildIndex
from batchyard.apps.revisions import REVISION_HASH, RevisionHistory, hashes_of, revision_hash_of
from batchyard.base.instant import MINUTE, SECOND, Instant, exponential_backoff
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.placement import node_filters

_NODE_NAME_FIELD: Final = "metadata.name"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_TOLERATED: Final = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_NETWORK_UNAVAILABLE: Final = ("node.kubernetes.io/network-unavailable", "NoSchedule")
#: The backoff before a failed pod is deleted.
_FAILED_BACKOFF_MIN: Final = SECOND
_FAILED_BACKOFF_MAX: Final = 15 * MINUTE


class NodeDecision(NamedTuple):
    """Whether a DaemonSet should have a pod on a node, and whether an existing pod may stay."""

    runs: bool
    stays: bool


class FailedPodBackoff:
    """When the failed pods of a DaemonSet on each node may be deleted: after 1 s, doubling up to 15 min."""

    def __init__(self) -> None:
        self._failures: dict[tuple[str, int, str], tuple[int, Instant]] = {}

    def due_time(self, daemon_set: meta.Obj, node: str) -> Instant:
        """Return when a failed pod on a node may be deleted."""
        count, last_time = self._failures.get(self._key(daemon_set, node), (0, 0))
        return last_time + exponential_backoff(_FAILED_BACKOFF_MIN, _FAILED_BACKOFF_MAX, count) if count else 0

    def record(self, daemon_set: meta.Obj, node: str, now: Instant) -> None:
        """Record that a failed pod on a node is deleted now."""
        key = self._key(daemon_set, node)
        self._failures[key] = (self._failures.get(key, (0, 0))[0] + 1, now)

    def forget(self, uid: str) -> None:
        """Forget the failures of a deleted DaemonSet."""
        self._failures = {key: value for key, value in self._failures.items() if key[0] != uid}

    def _key(self, daemon_set: meta.Obj, node: str) -> tuple[str, int, str]:
        return daemon_set["metadata"]["uid"], children.status_count(daemon_set, "observedGeneration"), node


class DaemonSetController:
    """Controller that reconciles DaemonSets with their pods and the nodes."""

    name = "daemonset-controller"
    rank = 0
    kinds = (scheme.DAEMON_SET, scheme.POD, scheme.NODE)

    def __init__(self) -> None:
        self._pods = ChildIndex(scheme.DAEMON_SET, scheme.POD)
        self._backoff = FailedPodBackoff()
        self._keys: dict[meta.Key, None] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the keys of a changed DaemonSet, of a pod's DaemonSets, or of all after a change of the nodes."""
        if event.key.kind == scheme.POD:
            return self._pods.observe_child(event)
        if event.key.kind == scheme.NODE:
            is_relevant = event.type is not EventType.MODIFIED or _has_new_constraints(event)
            return list(self._keys) if is_relevant else ()
        self._pods.observe_parent(event)
        if event.type is EventType.DELETED:
            self._keys.pop(event.key, None)
            self._backoff.forget(event.obj["metadata"]["uid"])
            return ()
        self._keys[event.key] = None
        return (event.key,)

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Create missing pods, delete superfluous ones, continue a rolling update, and update the status."""
        daemon_set = reader.get(key)
        if daemon_set is None or "deletionTimestamp" in daemon_set["metadata"]:
            return ReconcileResult()
        claim = self._pods.claim(daemon_set, reader)
        if claim.writes:
            return ReconcileResult(list(claim.writes), independent=True)
        sync = DaemonSetSync(daemon_set, claim.children, reader, self._backoff, now)
        sync.reconcile()
        return sync.outcome


def _has_new_constraints(event: WatchEvent) -> bool:
    if event.old is None:
        return True
    new, old = node_view(event.obj), event.old
    old_spec, new_spec = old.get("spec") or {}, event.obj.get("spec") or {}
    has_same_spec = all(new_spec.get(field) == old_spec.get(field) for field in ("taints", "unschedulable"))
    return not has_same_spec or new.labels != (old["metadata"].get("labels") or {})


class DaemonSetSync:
    """One reconcile of a DaemonSet: its pods by node, its revisions, and the writes."""

    def __init__(
        self, daemon_set: meta.Obj, pods: Sequence[meta.Obj], reader: Reader, backoff: FailedPodBackoff, now: Instant
    ) -> None:
        self._set = daemon_set
        self._key = meta.key_of(daemon_set)
        self._reader = reader
        self._backoff = backoff
        self._now = now
        self._min_ready_seconds: int = daemon_set["spec"].get("minReadySeconds") or 0
        self._pods = pods
        self._history = RevisionHistory(daemon_set, reader)
        self._hash: str = self._history.update["metadata"]["labels"][REVISION_HASH]
        self._spec = daemon_pod_spec(daemon_set)
        rules = read_shape(self._spec, self._key.namespace, {}).rules
        nodes = sorted(map(node_view, reader.list(scheme.NODE)), key=lambda node: node.name)
        self._decisions = {node.name: decide_node(self._spec, rules, node) for node in nodes}
        self._pods_by_node: dict[str, list[meta.Obj]] = {}
        for pod in sorted(pods, key=_by_age):
            self._pods_by_node.setdefault(target_node(pod), []).append(pod)
        self._next_check: Instant | None = None
        self.outcome = ReconcileResult(self._history.writes, independent=True)

    def reconcile(self) -> None:
        """Compute the writes, their Events, and the time of the next reconcile."""
        new_nodes, old_pods = self._missing_and_superfluous()
        if not new_nodes and not old_pods and self._strategy_type() == "RollingUpdate":
            new_nodes, old_pods = self._roll()
        self._create_pods(new_nodes[:BURST_REPLICAS])
        for pod in old_pods[:BURST_REPLICAS]:
            deletion_event = children.pod_event(self._key, "Delete", pod)
            self.outcome.add(Delete(meta.key_of(pod), uid=pod["metadata"]["uid"]), [deletion_event])
        self._history.delete_old(hashes_of(self._pods), revision_hash_of, counts_live=True)
        status = self._new_status()
        if status != self._set.get("status"):
            self.outcome.writes.append(UpdateStatus(meta.with_status(self._set, status)))
        self.outcome.event_if_rejected = partial(_rejection_event, self._key)
        checks = (self._next_check, children.next_availability(self._pods, self._min_ready_seconds, self._now))
        self.outcome.requeue_at = min((check for check in checks if check is not None), default=None)

    # Missing and superfluous pods.

    def _missing_and_superfluous(self) -> tuple[list[str], list[meta.Obj]]:
        new_nodes: list[str] = []
        old_pods: list[meta.Obj] = []
        for node, decision in self._decisions.items():
            pods = self._pods_by_node.get(node)
            if decision.runs and not pods:
                new_nodes.append(node)
            elif decision.stays and pods:
                running_pods = self._running_pods(node, pods, old_pods)
                old_pods += self._surplus_pods(running_pods)
                if not running_pods and decision.runs and self._allows_surge():
                    new_nodes.append(node)
            else:
                old_pods += [pod for pod in pods or () if not is_terminating(pod)]
        for node, pods in self._pods_by_node.items():
            if node not in self._decisions:
                old_pods += [pod for pod in pods if not bound_node(pod)]
        return new_nodes, old_pods

    def _running_pods(self, node: str, pods: Iterable[meta.Obj], old_pods: list[meta.Obj]) -> list[meta.Obj]:
        """Return the pods on a node that have not ended; add the ended pods that are to be deleted to `old_pods`."""
        running_pods: list[meta.Obj] = []
        for pod in pods:
            if is_terminating(pod):
                continue
            name = f"{self._key.namespace}/{pod['metadata']['name']} on node {node}"
            if phase(pod) == FAILED:
                due_time = self._backoff.due_time(self._set, node)
                if due_time > self._now:
                    self._next_check = min(due_time, self._next_check or due_time)
                    continue
                self._backoff.record(self._set, node, self._now)
                message = f"Found failed daemon pod {name}, will try to kill it"
                self._add_event("Warning", "FailedDaemonPod", message)
                old_pods.append(pod)
            elif phase(pod) == SUCCEEDED:
                message = f"Found succeeded daemon pod {name}, will try to delete it"
                self._add_event("Normal", "SucceededDaemonPod", message)
                old_pods.append(pod)
            else:
                running_pods.append(pod)
        return running_pods

    def _surplus_pods(self, pods: Sequence[meta.Obj]) -> Sequence[meta.Obj]:
        if len(pods) <= 1 or not self._allows_surge():
            return pods[1:]
        updated_pods, old_pods = self._split(pods)
        surplus = [*updated_pods[1:], *old_pods[1:]]
        if updated_pods and old_pods and (not is_ready(old_pods[0]) or self._is_available(updated_pods[0])):
            surplus.append(old_pods[0])
        return surplus

    # Rolling updates.

    def _roll(self) -> tuple[list[str], list[meta.Obj]]:
        """Return the nodes for new pods and the pods to delete in the next step of a rolling update."""
        desired_count = sum(decision.runs for decision in self._decisions.values())
        settings = (self._set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
        max_surge = children.scaled_value(settings.get("maxSurge"), desired_count, round_up=True)
        max_unavailable = children.scaled_value(settings.get("maxUnavailable"), desired_count, round_up=True)
        if max_surge:
            return self._roll_with_surge(max_surge, desired_count)
        return [], self._roll_in_place(max_unavailable or 1)

    def _roll_in_place(self, max_unavailable: int) -> list[meta.Obj]:
        unavailable_count, replaceable, candidates = 0, list[meta.Obj](), list[meta.Obj]()
        for updated_pods, old_pods in self._updates_by_node():
            if len(updated_pods) + len(old_pods) != 1:
                unavailable_count += 1
            elif updated_pods:
                unavailable_count += not self._is_available(updated_pods[0])
            elif not self._is_available(old_pods[0]):
                replaceable.append(old_pods[0])
                unavailable_count += 1
            elif unavailable_count < max_unavailable:
                candidates.append(old_pods[0])
        return [*replaceable, *candidates[: max(0, max_unavailable - unavailable_count)]]

    def _roll_with_surge(self, max_surge: int, desired_count: int) -> tuple[list[str], list[meta.Obj]]:
        surge_count, available_count = 0, 0
        allowed_nodes, candidate_nodes = list[str](), list[str]()
        replaced_pods, unwanted_pods = list[meta.Obj](), list[meta.Obj]()
        for node, (updated_pods, old_pods) in zip(self._updated_nodes(), self._updates_by_node(), strict=True):
            if len(updated_pods) > 1 or len(old_pods) > 1:
                surge_count += 1
                continue
            available_count += any(map(self._is_available, old_pods or updated_pods))
            if not old_pods:
                continue
            may_stay = self._decisions.get(node, NodeDecision(False, False)).stays
            if updated_pods and not self._is_available(updated_pods[0]):
                surge_count += 1
            elif updated_pods or (not may_stay and not self._is_available(old_pods[0])):
                replaced_pods.append(old_pods[0])
            elif not self._is_available(old_pods[0]):
                allowed_nodes.append(node)
            elif not may_stay:
                unwanted_pods.append(old_pods[0])
            elif surge_count < max_surge:
                candidate_nodes.append(node)
        replaced_pods += unwanted_pods[: max(0, available_count - desired_count)]
        return [*allowed_nodes, *candidate_nodes[: max(0, max_surge - surge_count)]], replaced_pods

    def _updated_nodes(self) -> Sequence[str]:
        wanted_nodes = [node for node, decision in self._decisions.items() if decision.runs]
        return sorted({*self._pods_by_node, *wanted_nodes})

    def _updates_by_node(self) -> Sequence[tuple[list[meta.Obj], list[meta.Obj]]]:
        live_pods = {node: [p for p in pods if not is_terminating(p)] for node, pods in self._pods_by_node.items()}
        return [self._split(live_pods.get(node, ())) for node in self._updated_nodes()]

    def _split(self, pods: Iterable[meta.Obj]) -> tuple[list[meta.Obj], list[meta.Obj]]:
        """Split pods into updated and old ones."""
        updated_pods, old_pods = list[meta.Obj](), list[meta.Obj]()
        for pod in pods:
            (updated_pods if revision_hash_of(pod) == self._hash else old_pods).append(pod)
        return updated_pods, old_pods

    # Writes and status.

    def _create_pods(self, nodes: Sequence[str]) -> None:
        if not nodes:
            return
        pod = children.pod_from_template(self._set, self._set["spec"]["template"])
        labels = {**(pod["metadata"].get("labels") or {}), REVISION_HASH: self._hash}
        pod = {**meta.with_metadata(pod, labels=labels), "spec": self._spec}
        new_pods = [with_node_name_affinity(pod, node) for node in nodes]
        for new_pod in children.with_generated_names(new_pods, self._set, self._reader, self._now):
            self.outcome.add(Create(new_pod), [children.pod_event(self._key, "Create", new_pod)])

    def _new_status(self) -> dict[str, Any]:
        scheduled_pods = {node: pods[0] for node, pods in self._pods_by_node.items()}
        wanted_pods = [scheduled_pods.get(node) for node, decision in self._decisions.items() if decision.runs]
        current_pods = [pod for pod in wanted_pods if pod is not None]
        available_count = sum(map(self._is_available, current_pods))
        unwanted_nodes = [node for node, decision in self._decisions.items() if not decision.runs]
        optional_counts = {
            "updatedNumberScheduled": sum(revision_hash_of(pod) == self._hash for pod in current_pods),
            "numberAvailable": available_count,
            "numberUnavailable": len(wanted_pods) - available_count,
            "collisionCount": self._history.collision_count,
        }
        return {
            "currentNumberScheduled": len(current_pods),
            "numberMisscheduled": sum(node in scheduled_pods for node in unwanted_nodes),
            "desiredNumberScheduled": len(wanted_pods),
            "numberReady": sum(map(is_ready, current_pods)),
            "observedGeneration": self._set["metadata"].get("generation", 0),
            **{field: count for field, count in optional_counts.items() if count},
        }

    def _is_available(self, pod: meta.Obj) -> bool:
        return children.is_available(pod, self._min_ready_seconds, self._now)

    def _strategy_type(self) -> Any:
        return (self._set["spec"].get("updateStrategy") or {}).get("type", "RollingUpdate")

    def _allows_surge(self) -> bool:
        settings = (self._set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
        return self._strategy_type() == "RollingUpdate" and bool(
            children.scaled_value(settings.get("maxSurge"), 1, round_up=True)
        )

    def _add_event(self, event_type: str, reason: str, message: str) -> None:
        self.outcome.events.append(EventRecord(self._key, event_type, reason, message))


def decide_node(spec: Mapping[str, Any], rules: NodeRules, node: NodeView) -> NodeDecision:
    """Return whether a pod with this spec and these node rules should run, or may continue to run, on a node."""
    if spec.get("nodeName") not in {None, "", node.name} or not node_filters.selects(rules, node):
        return NodeDecision(False, False)
    untolerated = [taint for taint in node.taints if not node_filters.tolerates(rules.tolerations, taint)]
    effects = {taint.effect for taint in untolerated}
    return NodeDecision(not effects & {"NoSchedule", "NoExecute"}, "NoExecute" not in effects)


def daemon_pod_spec(daemon_set: meta.Obj) -> Mapping[str, Any]:
    """Return the pod spec of a DaemonSet with the tolerations that all daemon pods have."""
    spec = daemon_set["spec"]["template"]["spec"]
    taints = [*_TOLERATED, *([_NETWORK_UNAVAILABLE] if spec.get("hostNetwork") else ())]
    added = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in taints]
    tolerations = [each for each in spec.get("tolerations") or () if each not in added]
    return {**spec, "tolerations": [*tolerations, *added]}


def with_node_name_affinity(pod: meta.Obj, node: str) -> meta.Obj:
    """Return the pod with a required node affinity to one node, instead of its own required node affinity."""
    affinity = pod["spec"].get("affinity") or {}
    requirement = {"key": _NODE_NAME_FIELD, "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [requirement]}]}
    node_affinity = {**(affinity.get("nodeAffinity") or {}), _REQUIRED: required}
    return meta.with_path(pod, ("spec", "affinity"), {**affinity, "nodeAffinity": node_affinity})


def target_node(pod: meta.Obj) -> str:
    """Return the node of a daemon pod: the one it is bound to, or that of its node affinity; '' if there is none."""
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    if bound_node(pod):
        return bound_node(pod)
    for term in affinity.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field["key"] == _NODE_NAME_FIELD and field["operator"] == "In" and len(field["values"]) == 1:
                return str(field["values"][0])
    return ""


def _by_age(pod: meta.Obj) -> tuple[bool, tuple[int, str]]:
    return not bound_node(pod), children.oldest_first(pod)


def _rejection_event(key: meta.Key, write: Write, error: ApiError) -> EventRecord | None:
    target = write.key.kind if isinstance(write, Delete) else meta.group_kind(write.obj)
    if target != scheme.POD:
        return None
    return children.failed_pod_event(key, is_creation=isinstance(write, Create), error=error)
