"""Failures of nodes in topology assignments: which nodes of a Workload must be replaced, and when this is tried.

A Workload with one failed node gets another one in its place; with a second failed node, it is evicted. The scheduler
tries the replacement after a delay that grows with each try. Sources: Kueue's pkg/controller/tas/node_controller.go and
pkg/cache/queue/second_pass_queue.go.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import (
    Key,
    Obj,
    StatusDraft,
    annotation,
    find_condition,
    format_amount,
    is_true,
    key_of,
    with_path,
)
from batchyard.api.times import parse_time
from batchyard.api.views.node import Taint, parse_taint, parse_toleration
from batchyard.api.views.topology import format_topology_assignment
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import SECOND, Duration, Instant, exponential_backoff
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.scheduling.decisions import Admit, Head, Preempt, SecondPassOutcome
from batchyard.scheduling.flavor_assigner import PodSetAssignment
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.lifecycle import Eviction
from batchyard.topology.state import is_topology_pod
from batchyard.topology.ungater import AdmittedSlices, has_ended, has_topology_gate, pod_owner_name, slice_name

_DELETED: Final = EventType.DELETED
_NO_KEYS: Final[dict[Key, None]] = {}
_SCHEDULING_EFFECTS: Final = ("NoSchedule", "NoExecute")
_NO_GATES: Final[Mapping[str, bool]] = {}
#: How long a node may be unready while pods run on it, without the gate TASReplaceNodeOnPodTermination.
_NODE_FAILURE_DELAY: Final = 30 * SECOND
_TERMINATED_MESSAGE: Final = "Pod terminated by Kueue NodeController due to node taint"


def needs_replacement(view: WorkloadView) -> bool:
    """Return whether the topology assignment of an admitted Workload contains a failed node."""
    if not view.unhealthy_nodes or view.finished or view.evicted or not view.admitted:
        return False
    return any(node in view.unhealthy_nodes for node in assigned_nodes(view))


def assigned_nodes(view: WorkloadView) -> list[str]:
    """Return the nodes in the topology assignment of a Workload, whose host names are also their names."""
    topologies = [held.topology for held in view.admitted_pod_sets if held.topology is not None]
    return [domain.values[-1] for each in topologies if each.is_by_host for domain in each.domains]


class _NodeHealth(Enum):
    """Whether pods can use a node; a draining node fails once no pod runs on it, and pods cannot start there."""

    USABLE = "usable"
    DRAINING = "draining"
    FAILED = "failed"


class NodeFailures:
    """Controller that records failed nodes in `status.unhealthyNodes`, and evicts Workloads with several of them.

    A node fails at once if it is deleted or has no Ready condition. If it is not ready, or has a taint that the pods do
    not tolerate for ever, it has failed once the Workload has no running pods on it. The taint of a cordon counts only
    for Workloads of jobs. Pods that wait for a node where they cannot start fail, so that their job replaces them.

    With the feature gate TASReplaceNodeOnPodTermination disabled, a node that is not ready for 30 seconds, or has a
    taint that the pods do not tolerate, fails at once. With TASReplaceNodeOnNodeTaints disabled, taints do not count.
    With TASReplaceNodeDueToNotReadyOverFixedTime enabled, a node that is not ready for 30 seconds fails at its next
    reconciliation, for example when a pod on it ends; as in Kueue, the end of the 30 seconds causes none. With
    TASFailedNodeReplacement disabled, only pods that end or wait for a node cause reconciliations.
    """

    name = "node-failures"
    #: After the controllers that taint nodes.
    rank = 2
    kinds = (scheme.NODE, scheme.WORKLOAD, scheme.POD)

    def __init__(self, gates: Mapping[str, bool] = _NO_GATES) -> None:
        """Create the controller; `gates` are the feature gates of topology-aware scheduling that are set."""
        self._waits_for_pods = gates.get(well_known.TAS_POD_TERMINATION, True)
        self._checks_taints = gates.get(well_known.TAS_TAINTED_NODES, True)
        self._observes_nodes = gates.get(well_known.TAS_FAILED_NODE_REPLACEMENT, True)
        self._fails_after_delay = gates.get(well_known.TAS_FIXED_DELAY, False)
        #: Whether a node may fail at a check that no change of the node causes.
        self._has_late_failures = self._fails_after_delay or not self._observes_nodes
        self._slices = AdmittedSlices()
        self._workloads_by_node: dict[str, dict[Key, None]] = {}
        self._nodes_by_workload: dict[Key, list[str]] = {}
        #: The pods that must run on a node, by its name, and have not been scheduled yet; and those that have been.
        self._waiting_pods: dict[str, dict[Key, None]] = {}
        self._pods_by_node: dict[str, dict[Key, None]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of the node that may have failed or recovered with Workloads on it, or of a waiting pod."""
        if event.key.kind == scheme.WORKLOAD:
            self._slices.observe(event)
            nodes = self._index_workload(event)
            # After a restart, the state of the nodes may have changed without an event.
            return [Key(scheme.NODE, "", node) for node in nodes] if event.old is None and self._observes_nodes else ()
        if event.key.kind == scheme.POD:
            return self._observe_pod(event)
        if not self._observes_nodes:
            return ()
        is_relevant = (
            event.old is None
            or event.type is _DELETED
            or is_true(event.old, "Ready") is not is_true(event.obj, "Ready")
            or (self._checks_taints and _taints_of(event.old) != _taints_of(event.obj))
        )
        is_used = event.key.name in self._workloads_by_node or event.key.name in self._waiting_pods
        # A node that has been unready for a while may have Workloads by then.
        is_used = is_used or not self._waits_for_pods
        return (event.key,) if is_relevant and is_used else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update the failed nodes of the Workloads on a node, or evict those with another failed node."""
        outcome = ReconcileResult(independent=True)
        node = reader.get(key)
        if node is None and not reader.list(scheme.NODE):
            return outcome  # Nodes are not watched
        if node is not None and not self._waits_for_pods:
            failed_at = _failed_at(node)
            if failed_at > now:
                return ReconcileResult(requeue_at=failed_at)
        has_expired = self._fails_after_delay and node is not None and 0 < _failed_at(node) <= now
        owners = self._owners_of_running_pods(key.name, reader)
        for workload_key in self._workloads_by_node.get(key.name, _NO_KEYS):
            workload = reader.get(workload_key)
            if workload is not None:
                has_pods = (workload_key.namespace, slice_name(workload)) in owners
                health = self._health_of(key.name, node, workload, reader)
                has_failed = health is _NodeHealth.FAILED or (health is _NodeHealth.DRAINING and not has_pods)
                has_failed |= has_expired
                _record_health(outcome, workload_key, workload, key.name, now, has_failed=has_failed)
        if key.name in self._waiting_pods and node is not None and find_condition(node, "Ready") is not None:
            self._end_waiting_pods(key.name, node, reader, now, outcome)
        return outcome

    def _observe_pod(self, event: WatchEvent) -> Iterable[Key]:
        """Index a pod that waits for a certain node; return the key of its node if the node must be checked."""
        pod = event.obj
        if annotation(pod, well_known.WORKLOAD) is None:
            return ()
        spec = pod["spec"]
        node, selected_node = spec.get("nodeName") or "", (spec.get("nodeSelector") or {}).get(well_known.HOSTNAME)
        exists = event.type is not _DELETED
        if node:
            # As in Kueue, every pod of a Workload keeps its node, but only pods with a topology request are followed.
            _index_pod(self._pods_by_node, node, event.key, is_member=exists)
        if not is_topology_pod(pod):
            return ()
        if selected_node:
            is_waiting = exists and _is_waiting(pod)
            _index_pod(self._waiting_pods, selected_node, event.key, is_member=is_waiting)
            if is_waiting:
                return (Key(scheme.NODE, "", selected_node),)
        # As in Kueue, the end of a pod is checked. Other changes only matter if a gate makes such a check decide more.
        is_ignored = self._has_late_failures and not (pod["metadata"].get("deletionTimestamp") or has_ended(pod))
        return (Key(scheme.NODE, "", node),) if node in self._workloads_by_node and not is_ignored else ()

    def _owners_of_running_pods(self, node: str, reader: Reader) -> set[tuple[str, str]]:
        """Return the namespace and the name (see `pod_owner_name`) of the Workloads with running pods on a node."""
        pods = [pod for key in self._pods_by_node.get(node, _NO_KEYS) if (pod := reader.get(key)) is not None]
        running_pods = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp") and not has_ended(pod)]
        return {(pod["metadata"]["namespace"], pod_owner_name(pod)) for pod in running_pods}

    def _end_waiting_pods(self, name: str, node: Obj, reader: Reader, now: Instant, outcome: ReconcileResult) -> None:
        """Fail the pods that wait for a node on which they cannot start: it failed, or is no longer assigned to them.

        Their job replaces them, and the new pods get a domain of the current assignment. The pods of a Workload that is
        being evicted are left to its eviction.
        """
        assigned = self._workloads_by_node.get(name, _NO_KEYS)
        new_workloads = {key_of(write.obj): write.obj for write in outcome.writes if isinstance(write, UpdateStatus)}
        for pod_key in self._waiting_pods[name]:
            pod = reader.get(pod_key)
            workload_key = None if pod is None else self._slices.workload_of(pod)
            if pod is None or workload_key is None:
                continue
            workload = new_workloads.get(workload_key) or reader.get(workload_key)
            if workload is None or is_true(workload, "Finished") or is_true(workload, "Evicted"):
                continue
            is_draining = self._health_of(name, node, workload, reader) is _NodeHealth.DRAINING
            if workload_key not in assigned or is_draining:
                event = EventRecord(pod_key, "Normal", "PodTerminatedByKueue", _TERMINATED_MESSAGE)
                outcome.add(UpdateStatus(_failed_pod(pod, now)), [event])

    def _health_of(self, name: str, node: Obj | None, workload: Obj, reader: Reader) -> _NodeHealth:
        """Return the health of a node for the pods of a Workload that are assigned to it."""
        if node is None or find_condition(node, "Ready") is None:
            return _NodeHealth.FAILED
        is_ready = is_true(node, "Ready")
        taints = [] if not is_ready or not self._checks_taints else _scheduling_taints(node, workload)
        if is_ready and (not taints or _tolerates_all(workload, name, taints, reader, permanently=True)):
            return _NodeHealth.USABLE
        if self._waits_for_pods:
            return _NodeHealth.DRAINING
        is_tolerated = is_ready and _tolerates_all(workload, name, taints, reader, permanently=False)
        return _NodeHealth.DRAINING if is_tolerated else _NodeHealth.FAILED

    def _index_workload(self, event: WatchEvent) -> Sequence[str]:
        """Index the nodes of a Workload while it is admitted; return them."""
        view = workload_view(event.obj)
        is_running = event.type is not _DELETED and view.admitted and not view.finished and not view.evicted
        nodes = assigned_nodes(view) if is_running else []
        for node in self._nodes_by_workload.pop(event.key, ()):
            workloads = self._workloads_by_node.get(node)
            if workloads is not None:
                workloads.pop(event.key, None)
                if not workloads:
                    del self._workloads_by_node[node]
        if nodes:
            self._nodes_by_workload[event.key] = nodes
            for node in nodes:
                self._workloads_by_node.setdefault(node, {})[event.key] = None
        return nodes


def _index_pod(index: dict[str, dict[Key, None]], node: str, pod: Key, *, is_member: bool) -> None:
    if is_member:
        index.setdefault(node, {})[pod] = None
    elif node in index:
        index[node].pop(pod, None)
        if not index[node]:
            del index[node]


def _taints_of(node: Obj) -> Sequence[Mapping[str, Any]]:
    taints: Sequence[Mapping[str, Any]] = (node.get("spec") or {}).get("taints") or ()
    return taints


def _failed_at(node: Obj) -> Instant:
    """Return when a node that is not ready has failed, although pods may run on it; 0 for other nodes."""
    condition = find_condition(node, "Ready")
    if condition is None or condition["status"] == "True" or "lastTransitionTime" not in condition:
        return 0
    return parse_time(condition["lastTransitionTime"]) + _NODE_FAILURE_DELAY


def _record_health(
    outcome: ReconcileResult, key: Key, workload: Obj, node: str, now: Instant, *, has_failed: bool
) -> None:
    failed_nodes = [each["name"] for each in workload["status"].get("unhealthyNodes") or ()]
    if not has_failed:
        if node in failed_nodes:
            outcome.add(UpdateStatus(_with_failed_nodes(workload, [each for each in failed_nodes if each != node])), ())
    elif not failed_nodes:
        outcome.add(UpdateStatus(_with_failed_nodes(workload, [node])), ())
    elif node not in failed_nodes:
        names = ", ".join([*failed_nodes, node])
        message = f"Workload eviction triggered due to multiple TAS assigned node failures, including: {names}"
        evict_for_node_failures(outcome, key, workload, message, now)


def _with_failed_nodes(workload: Obj, names: Sequence[str]) -> Obj:
    return with_path(workload, ("status", "unhealthyNodes"), [{"name": name} for name in names] or None)


def evict_for_node_failures(outcome: ReconcileResult, key: Key, workload: Obj, message: str, now: Instant) -> None:
    """Add to the outcome the write that evicts a Workload because of failed nodes, and its Event."""
    eviction = Eviction(evictions.EVICTED_DUE_TO_NODE_FAILURES, message)
    evicted_workload = evictions.evict(workload, reason=eviction.reason, message=message, now=now)
    outcome.add(UpdateStatus(evicted_workload), [EventRecord(key, "Normal", eviction.event_reason, message)])


def _is_waiting(pod: Obj) -> bool:
    """Return whether a pod without the topology gate has no node yet."""
    is_pending = (pod.get("status") or {}).get("phase") in {None, "Pending"}
    return is_pending and not pod["spec"].get("nodeName") and not has_topology_gate(pod)


def _failed_pod(pod: Obj, now: Instant) -> Obj:
    draft = StatusDraft(pod, now)
    draft.set_condition("TerminatedByKueue", True, "UnschedulableOnAssignedNode", _TERMINATED_MESSAGE, False)
    draft.set_field("phase", "Failed")
    return draft.result()


def _scheduling_taints(node: Obj, workload: Obj) -> list[Taint]:
    # A Workload without a job has no pods whose end would tell that a cordoned node is drained.
    ignored_key = "" if workload["metadata"].get("ownerReferences") else well_known.UNSCHEDULABLE
    taints = [parse_taint(taint) for taint in _taints_of(node)]
    return [taint for taint in taints if taint.effect in _SCHEDULING_EFFECTS and taint.key != ignored_key]


def _tolerates_all(workload: Obj, node: str, taints: Sequence[Taint], reader: Reader, *, permanently: bool) -> bool:
    """Return whether all pods of a Workload that are assigned to a node tolerate its taints.

    With `permanently`, tolerations with a time limit do not count.
    """
    for held in workload_view(workload).admitted_pod_sets:
        if held.topology is None or all(domain.values[-1] != node for domain in held.topology.domains):
            continue
        objs = _tolerations_of_pod_set(workload, held.name)
        for flavor in dict.fromkeys(held.flavors.values()):
            flavor_obj = reader.get(Key(scheme.RESOURCE_FLAVOR, "", flavor)) or {}
            objs += (flavor_obj.get("spec") or {}).get("tolerations") or ()
        tolerations = [parse_toleration(o) for o in objs if not permanently or o.get("tolerationSeconds") is None]
        if any(not any(toleration.tolerates(taint) for toleration in tolerations) for taint in taints):
            return False
    return True


def _tolerations_of_pod_set(workload: Obj, name: str) -> list[Mapping[str, Any]]:
    """Return the tolerations of a pod set, with those that AdmissionChecks add."""
    for pod_set in workload["spec"].get("podSets") or ():
        if pod_set["name"] == name:
            spec = (pod_set.get("template") or {}).get("spec") or {}
            tolerations: list[Mapping[str, Any]] = [*(spec.get("tolerations") or ())]
            for check in lifecycle.checks_of(workload):
                updates = [each for each in check.get("podSetUpdates") or () if each["name"] == name]
                tolerations += updates[0].get("tolerations") or () if updates else ()
            return tolerations
    return []


# The queue of the Workloads with quota for which the scheduler must replace a failed node, or search delayed domains.


def needs_delayed_domains(workload: Obj) -> bool:
    """Return whether a Workload with quota and ready AdmissionChecks must get its topology domains now."""
    view = workload_view(workload)
    if view.admitted or not view.quota_reserved or view.finished or view.evicted:
        return False
    checks = lifecycle.checks_of(workload)
    return bool(checks) and lifecycle.are_checks_ready(checks) and lifecycle.awaits_topology(workload["status"])


_BACKOFF_MIN: Final = SECOND
_BACKOFF_MAX: Final = 30 * SECOND


class _Retry(NamedTuple):
    view: WorkloadView
    due: Instant
    #: The number of this try, from 1.
    iteration: int


class SecondPassQueue:
    """The Workloads that need a replacement of a failed node or delayed domains, each with the time of the next try.

    The first try is a second after the failure, or after the AdmissionChecks are ready. As in Kueue, a try sees the
    Workload as it was when the try was scheduled; it takes place even if the node recovered in the meantime.
    """

    def __init__(self) -> None:
        self._retries: dict[str, _Retry] = {}
        self._iterations: dict[str, int] = {}

    def observe(self, event: WatchEvent, now: Instant) -> bool:
        """Schedule a try for a Workload if it needs one; return whether the next try may have become earlier."""
        view = workload_view(event.obj)
        if event.type is not _DELETED and needs_replacement(view):
            return self._schedule(view, 1, now)
        if event.type is not _DELETED and not view.admitted and needs_delayed_domains(event.obj):
            return self._schedule(view, 1, now)
        if view.key in self._retries and (event.type is _DELETED or view.finished or view.evicted or not view.admitted):
            del self._retries[view.key]
        return False

    def postpone(self, view: WorkloadView, now: Instant) -> None:
        """Schedule the next try of a Workload after one without a result."""
        self._schedule(view, self._iterations.get(view.key, 1) + 1, now)

    def _schedule(self, view: WorkloadView, iteration: int, now: Instant) -> bool:
        if view.key in self._retries:
            return False
        delay: Duration = exponential_backoff(_BACKOFF_MIN, _BACKOFF_MAX, iteration)
        self._retries[view.key] = _Retry(view, now + delay, iteration)
        return True

    def take_due(self, now: Instant) -> list[Head]:
        """Remove and return the Workloads that are due, as heads of their ClusterQueues."""
        due = [retry for retry in self._retries.values() if retry.due <= now] if self._retries else []
        for retry in due:
            del self._retries[retry.view.key]
        self._iterations = {retry.view.key: retry.iteration for retry in due}
        return [Head(retry.view, retry.view.cluster_queue) for retry in due]

    def next_due(self) -> Instant | None:
        """Return the time of the next try; None if there is none."""
        return min((retry.due for retry in self._retries.values()), default=None)


def apply_second_pass(
    outcomes: Iterable[SecondPassOutcome],
    pass_of_heads: tuple[Sequence[Head], SecondPassQueue],
    reader: Reader,
    now: Instant,
    outcome: ReconcileResult,
) -> list[Preempt]:
    """Apply the decisions about Workloads with quota; return the preemptions, whose targets must be evicted.

    Workloads that got no topology domains and were not evicted wait for their next try.
    """
    preemptions: list[Preempt] = []
    waiting_heads = {head.workload.key: head for head in pass_of_heads[0]}
    for decision, evicts in outcomes:
        view = decision.head.workload
        key = Key(scheme.WORKLOAD, view.namespace, view.name)
        workload = reader.get(key)
        is_current = workload is not None and (
            is_still_admitted(workload) if view.admitted else needs_delayed_domains(workload)
        )
        if evicts or isinstance(decision, Admit):
            del waiting_heads[view.key]
        else:
            outcome.events.append(EventRecord(key, "Warning", "SecondPassFailed", decision.why.message))
        if isinstance(decision, Preempt):
            preemptions.append(decision)
        if workload is not None and is_current and evicts:
            names = ",".join(view.unhealthy_nodes)
            message = f"Workload was evicted as there was no replacement for unhealthy node(s): {names}"
            evict_for_node_failures(outcome, key, workload, message, now)
        elif workload is not None and is_current and isinstance(decision, Admit):
            outcome.add(UpdateStatus(_with_domains(workload, decision)), ())
    for head in waiting_heads.values():
        pass_of_heads[1].postpone(head.workload, now)
    return preemptions


def _with_domains(workload: Obj, decision: Admit) -> Obj:
    """Return a Workload with the topology domains that it got in the second pass, and without failed nodes."""
    assigned_pod_sets = {pod_set.name: pod_set for pod_set in decision.assignment.pod_sets}
    pod_counts = {held.name: held.pods for held in decision.head.workload.admitted_pod_sets}
    assignments = [
        _assignment_status(each, assigned_pod_sets[each["name"]], pod_counts[each["name"]])
        if each["name"] in assigned_pod_sets
        else each
        for each in workload["status"]["admission"]["podSetAssignments"]
    ]
    new_workload = with_path(workload, ("status", "admission", "podSetAssignments"), assignments)
    return with_path(new_workload, ("status", "unhealthyNodes"), None)


def _assignment_status(status: Obj, assigned: PodSetAssignment, pod_count: int) -> Obj:
    """Return the status of a pod set assignment with topology domains, and fewer pods if it has been shrunk."""
    new_status: dict[str, Any] = {**status}
    if assigned.topology is not None:
        new_status["topologyAssignment"] = format_topology_assignment(assigned.topology)
        if "delayedTopologyRequest" in status:
            new_status["delayedTopologyRequest"] = "Ready"
    if assigned.count != pod_count:
        new_status["count"] = assigned.count
        new_status["resourceUsage"] = {name: format_amount(name, amount) for name, amount in assigned.requests}
        new_status.pop("delayedTopologyRequest", None)  # as in Kueue
    return new_status


def is_still_admitted(workload: Obj | None) -> bool:
    """Return whether a Workload still exists with its admission, so that a failed node may be replaced."""
    if workload is None:
        return False
    view = workload_view(workload)
    return view.admitted and view.quota_reserved and not view.finished and not view.evicted
