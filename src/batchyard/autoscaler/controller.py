"""The autoscaler's controller: scans the cluster to add and remove nodes, and drains nodes before it deletes them."""

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_of, key_of
from batchyard.api.times import parse_time
from batchyard.api.views.node import grace_period
from batchyard.api.views.pods import DISRUPTION_BY_EVICTION, PodView, is_terminating, with_disruption
from batchyard.autoscaler import node_groups
from batchyard.autoscaler.cluster_forecast import UpcomingCluster
from batchyard.autoscaler.expander import NodeGroupsState
from batchyard.autoscaler.index import WATCHED_KINDS, FailedMachines, NodeRecord, ScalingIndex
from batchyard.autoscaler.machines import (
    taint_to_be_deleted,
    taint_unneeded_node,
    untaint_needed_node,
    untaint_to_be_deleted,
)
from batchyard.autoscaler.provisioning_request_pods import (
    BOOKING_TIME,
    PROVISIONED,
    ProvisioningRequestState,
    state_of,
    transition_time,
)
from batchyard.autoscaler.scale_up import LoopContext, ScaleUp, units_of
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.cloud.catalog.instances import new_instance
from batchyard.disruption.controller import eviction_decision
from batchyard.interfaces.client import Create, Delete, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import PodFilters
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.node_info import NodeInfo

# The effect of each pod on the removal of its node.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/simulator/drainability/rules. As on GKE, local volumes do not block.
# Disruption budgets come last: they do not apply to pods annotated as safe to evict.


_MIRROR_POD_ANNOTATION: Final = "kubernetes.io/config.mirror"
# Scale-down: find unneeded nodes, and choose the nodes to remove now.
#
# A node is unneeded while its utilization is low and all its pods fit elsewhere. It is removed when it has been
# unneeded for long enough and no nodes were added recently: empty nodes in bulk, others one at a time, slices as a
# whole. Source: kubernetes-sigs/cluster-autoscaler, pkg/core/scaledown (eligibility, planner, unneeded, budgets) and
# pkg/simulator (cluster.go, utilization).


_SYSTEM_NAMESPACE: Final = "kube-system"
#: A pod that is still terminating this long after its grace period is ignored.
_TERMINATION_TOLERANCE: Final = 30 * SECOND


class PodDrainability(Enum):
    """The effect of a pod on the removal of its node: the pod moves, stays, must end first, or blocks the removal."""

    #: The pod is evicted before the node is removed.
    MOVES = auto()
    #: The pod is removed with the node.
    STAYS = auto()
    #: The node may be removed only after the pod has ended.
    WAITS = auto()
    #: The node must stay.
    BLOCKS = auto()


_DRAINABILITY_BY_SAFE_TO_EVICT: Final = {"true": PodDrainability.MOVES, "on-completion": PodDrainability.WAITS}


def pod_drainability(pod: Obj, now: Instant, *, is_guarded: bool = False) -> PodDrainability:
    """Return the effect of a pod on the removal of its node.

    `is_guarded` is whether a PodDisruptionBudget forbids the eviction of the pod now.
    """
    deletion_timestamp = pod["metadata"].get("deletionTimestamp")
    grace_time = grace_period(pod["spec"]) * SECOND
    if deletion_timestamp is not None and parse_time(deletion_timestamp) + grace_time + _TERMINATION_TOLERANCE < now:
        return PodDrainability.STAYS
    owner, safe_to_evict = controller_of(pod), annotation(pod, well_known.SAFE_TO_EVICT)
    if annotation(pod, _MIRROR_POD_ANNOTATION) is not None or (owner is not None and owner.get("kind") == "DaemonSet"):
        return PodDrainability.STAYS
    if safe_to_evict in _DRAINABILITY_BY_SAFE_TO_EVICT:
        return _DRAINABILITY_BY_SAFE_TO_EVICT[safe_to_evict]
    blocks_removal = owner is None or safe_to_evict == "false" or pod["metadata"].get("namespace") == _SYSTEM_NAMESPACE
    return PodDrainability.BLOCKS if blocks_removal or is_guarded else PodDrainability.MOVES


DrainabilityFunction: TypeAlias = Callable[[PodView, bool], PodDrainability]
"""A function that returns the effect of a pod, given whether its disruption budget allows no disruption."""


class RemovalCandidate(NamedTuple):
    """A node that scale-down may remove, with its node group and readiness."""

    name: str
    group: node_groups.NodeGroup
    is_ready: bool
    #: The time since when the node is unneeded, if known.
    unneeded_since: Instant | None


@dataclass(slots=True)
class ScaleDownDecisions:
    """The decisions of one scale-down: unneeded nodes, nodes to remove with the pods to move, and the next check."""

    #: The nodes that are unneeded now, by name.
    unneeded_nodes: dict[str, RemovalCandidate] = field(default_factory=dict)
    #: By name of each node to remove: the pods to move.
    pods_to_move_by_node: dict[str, Sequence[PodView]] = field(default_factory=dict)
    requeue_at: Instant | None = None

    def requeue_by(self, requeue_at: Instant) -> None:
        """Make the next scan happen at this time or earlier."""
        self.requeue_at = requeue_at if self.requeue_at is None else min(requeue_at, self.requeue_at)


class ScaleDown:
    """One scale-down, which moves pods in the node snapshot; use only within `nodes.what_if()`."""

    def __init__(
        self,
        nodes: ClusterSnapshot,
        fleet: NodeGroupsState,
        limits: node_groups.ClusterLimits,
        loop_context: LoopContext,
        pod_drainability: DrainabilityFunction,
    ) -> None:
        self._nodes = nodes
        self._fleet = fleet
        self._limits = limits
        self._loop_context = loop_context
        self._drainability_of = pod_drainability
        #: The disruptions that budgets still allow after the moves so far.
        self._budgets = nodes.budgets.remaining_disruptions()
        self._moving_pods: dict[str, Sequence[PodView]] = {}
        #: The nodes with pods that must end before the removal.
        self._waiting_nodes: dict[str, None] = {}
        #: Nodes that must not receive pods, to remove from the snapshot before the first move.
        self._excluded_nodes: list[str] = []
        self.decisions = ScaleDownDecisions()

    def record_unneeded_nodes(
        self,
        removal_candidates: Sequence[RemovalCandidate],
        needed_nodes: Mapping[str, object],
        upcoming_nodes: Iterable[str],
    ) -> None:
        """Record the unneeded candidates: underused nodes whose pods do not block the removal, and fit other nodes.

        Nodes in `needed_nodes` are not recorded. Pods do not move to `upcoming_nodes`, which are still being created.
        """
        self._excluded_nodes += upcoming_nodes
        for candidate in sorted(removal_candidates, key=self._sort_key):
            node = self._nodes.get(candidate.name)
            if node is None or candidate.name in needed_nodes or not self._is_underused(node, candidate.group):
                continue
            pods = list(node.pods.values())
            drainabilities = [self._drainability_of(pod, self._budgets.blocks(pod)) for pod in pods]
            moving_pods = [pod for pod, each in zip(pods, drainabilities, strict=True) if each is PodDrainability.MOVES]
            if PodDrainability.BLOCKS not in drainabilities and self._move_pods(node, moving_pods):
                self._budgets.subtract_disruptions(moving_pods)
                self._moving_pods[candidate.name] = moving_pods
                self.decisions.unneeded_nodes[candidate.name] = candidate
                if PodDrainability.WAITS in drainabilities:
                    self._waiting_nodes[candidate.name] = None

    def choose_removals(self, last_scale_up_time: Instant | None, draining_node_count: int) -> ScaleDownDecisions:
        """Choose the unneeded nodes to remove now, and return all decisions of the scale-down.

        No node is removed during the configured pause after `last_scale_up_time`. `draining_node_count` nodes are being
        drained already.
        """
        now, scale_down_delays = self._loop_context.now, self._loop_context.settings.scale_down_delays
        candidates = [c for c in self.decisions.unneeded_nodes.values() if c.name not in self._waiting_nodes]
        due_candidates = [candidate for candidate in candidates if self._is_removal_due(candidate)]
        removals_resume_at = now if last_scale_up_time is None else last_scale_up_time + scale_down_delays.pause
        if due_candidates and removals_resume_at > now:
            self.decisions.requeue_by(removals_resume_at)
        elif due_candidates:
            self._remove_due_candidates(due_candidates, draining_node_count)
        return self.decisions

    # --- unneeded nodes ---

    def _sort_key(self, removal_candidate: RemovalCandidate) -> tuple[bool, bool, str]:
        node = self._nodes.get(removal_candidate.name)
        return removal_candidate.unneeded_since is None, node is not None and bool(node.pods), removal_candidate.name

    def _is_underused(self, node: NodeInfo, group: node_groups.NodeGroup) -> bool:
        accelerator = group.machine.accelerator
        resources = ("cpu", "memory") if accelerator is None else (accelerator.resource,)
        limit = self._loop_context.settings.utilization_threshold
        total, free = node.view.allocatable, node.free_amounts
        return all(
            (total.get(r, 0) - free.get(r, 0)) * meta.NANO <= limit * total[r] for r in resources if total.get(r)
        )

    def _move_pods(self, node: NodeInfo, pods: Sequence[PodView]) -> bool:
        """Simulate the removal of a node: move `pods` to other nodes, and remove the node from the snapshot.

        If a pod fits no other node, undo the moves and return False.
        """
        node_view, moved_pods = node.view, list[PodView]()
        self._excluded_nodes.append(node.name)
        while pods and self._excluded_nodes:
            self._nodes.remove_node(self._excluded_nodes.pop())
        for pod in pods:
            node_name = self._find_node_name_for(pod)
            if not node_name:
                for moved_pod in moved_pods:
                    self._nodes.add_pod(moved_pod, node.name)
                self._nodes.set_node(node_view)
                return False
            self._nodes.add_pod(pod, node_name)
            moved_pods.append(pod)
        return True

    def _find_node_name_for(self, pod: PodView) -> str:
        node_shortlist = self._nodes.candidate_cache.candidates_for(pod.shape, AutoscalingProfile.BALANCED)
        return node_shortlist.best_node(PodFilters(pod, self._nodes).accepts_node)

    # --- removal ---

    def _is_removal_due(self, candidate: RemovalCandidate) -> bool:
        """Return whether a node has been unneeded long enough to be removed; if not, requeue the scan for that time."""
        unneeded_since = self._loop_context.now if candidate.unneeded_since is None else candidate.unneeded_since
        wait = (
            self._loop_context.settings.scale_down_delays.unneeded_time
            if candidate.is_ready
            else node_groups.UNREADY_TIME
        )
        if unneeded_since + wait > self._loop_context.now:
            self.decisions.requeue_by(unneeded_since + wait)
            return False
        return True

    def _remove_due_candidates(self, due_candidates: Sequence[RemovalCandidate], draining_count: int) -> None:
        """Remove complete TPU slices of which all nodes are due, then empty nodes, then other nodes.

        The limits of parallel removals and drains do not hold back slices, but their nodes count toward the limit of
        removals. Slices of node groups with a minimum size are not removed.
        """
        removal_max = node_groups.PARALLEL_REMOVALS_MAX - draining_count
        drain_max = node_groups.PARALLEL_DRAINS_MAX - draining_count
        slices: dict[node_groups.NodeGroup, list[RemovalCandidate]] = {}
        single_nodes: list[RemovalCandidate] = []
        for candidate in due_candidates:
            (slices.setdefault(candidate.group, []) if candidate.group.hosts > 1 else single_nodes).append(candidate)
        for group, hosts in slices.items():
            if len(hosts) == self._fleet.size(group) and not group.size.minimum:
                self._mark_candidates_removed(hosts)
                removal_max -= len(hosts)
        single_nodes.sort(key=lambda candidate: bool(self._moving_pods[candidate.name]))
        for candidate in single_nodes:
            is_empty = not self._moving_pods[candidate.name]
            if removal_max <= 0 or (not is_empty and drain_max <= 0):
                self.decisions.requeue_by(self._loop_context.now + self._loop_context.settings.scan_interval)
                return
            if self._may_shrink(candidate.group):
                self._mark_candidates_removed([candidate])
                removal_max -= 1
                drain_max -= not is_empty

    def _may_shrink(self, group: node_groups.NodeGroup) -> bool:
        can_shrink = self._fleet.size(group) > group.size.minimum and self._fleet.pool_size(group) > group.total.minimum
        return can_shrink and self._limits.may_remove_nodes(group.counted_resources)

    def _mark_candidates_removed(self, candidates: Sequence[RemovalCandidate]) -> None:
        for candidate in candidates:
            self._fleet.grow(candidate.group, -1)
            self._limits.add_usage(candidate.group.counted_resources, -1)
            self.decisions.pods_to_move_by_node[candidate.name] = self._moving_pods[candidate.name]


# One autoscaler loop: scale up, scale down, taint nodes, and create or delete pools.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/core/static_autoscaler.go (RunOnce).


_ACCELERATORS = (well_known.GPU, well_known.TPU)


class AutoscalerLoop:
    """One scan of the cluster, which updates `last_messages`: the last Event message by pod uid.

    An Event that repeats the last message of its pod is left out.
    """

    def __init__(
        self, index: ScalingIndex, reader: Reader, loop_context: LoopContext, last_messages: MutableMapping[str, str]
    ) -> None:
        self._index = index
        self._reader = reader
        self._loop_context = loop_context
        self._last_messages = last_messages
        self._now = loop_context.now
        self._failures = FailedMachines(index, reader, loop_context)
        self.outcome = ReconcileResult()

    def run(self) -> ReconcileResult:
        """Simulate a scale-up and a scale-down; return the resulting writes and Events.

        Both are postponed while recent pods may still be followed by other pods of their gang.
        """
        self._failures.detect()
        self._requeue_by(self._failures.requeue_at)
        with self._index.nodes.what_if():
            upcoming_cluster = UpcomingCluster(self._index, self._reader, self._loop_context, self._failures)
            upcoming_cluster.add_upcoming_capacity()
            wait_end = self._recent_pods_wait_end(self._index.pending_pods.values())
            if wait_end is None:
                upcoming_cluster.scale_up.complete_slices()
                upcoming_cluster.scale_up.grow_to_minimum()
                for unit in units_of(self._index.pending_pods.values()):
                    upcoming_cluster.scale_up.plan(unit)
                decisions = self._scale_down(upcoming_cluster)
            else:
                self._requeue_by(wait_end)
                decisions = None
        self._add_writes(upcoming_cluster.scale_up, decisions)
        return self.outcome

    # --- decisions ---

    def _recent_pods_wait_end(self, pods: Iterable[PodView]) -> Instant | None:
        delays: list[tuple[Instant, Duration]] = [(pod.created, node_groups.RECENT_POD_WAIT) for pod in pods]
        delays = [min(delays)] if delays else []
        accelerated_pod_times = [
            pod.created for pod in pods if any(resource in _ACCELERATORS for resource, _ in pod.requests)
        ]
        delays += (
            [(min(accelerated_pod_times), node_groups.RECENT_ACCELERATED_POD_WAIT)] if accelerated_pod_times else []
        )
        wait_end = max((created + wait for created, wait in delays), default=self._now)
        return wait_end if wait_end > self._now else None

    def _scale_down(self, forecast: UpcomingCluster) -> ScaleDownDecisions:
        scale_up = forecast.scale_up
        scale_down = ScaleDown(
            self._index.nodes, forecast.fleet, forecast.limits, self._loop_context, self._drainability_of
        )
        needed_nodes = {**dict.fromkeys(scale_up.node_by_pod.values()), **forecast.booked_nodes}
        upcoming_nodes = [*forecast.upcoming_nodes, *scale_up.new_nodes]
        scale_down.record_unneeded_nodes(self._removal_candidates(forecast.fleet), needed_nodes, upcoming_nodes)
        index = self._index
        times = [at for name, at in index.machines.last_creation_times().items() if index.is_pool_autoscaled(name.pool)]
        last_scale_up_time = self._now if scale_up.increases else max(times, default=None)
        return scale_down.choose_removals(last_scale_up_time, self._draining_count())

    def _removal_candidates(self, fleet: NodeGroupsState) -> list[RemovalCandidate]:
        removal_candidates = []
        for name, record in self._index.node_records.items():
            if record.is_upcoming or record.is_scale_down_disabled or record.draining_since is not None:
                continue
            machine = self._index.machines.get(name)
            group = None if machine is None or machine.is_being_deleted else fleet.groups.get(machine.group)
            if group is not None and group.is_autoscaled and not self._is_for_resize_request(record):
                removal_candidates.append(RemovalCandidate(name, group, record.view.ready, record.unneeded_since))
        return removal_candidates

    def _is_for_resize_request(self, node_record: NodeRecord) -> bool:
        """Return whether a node is still reserved for the ProvisioningRequest whose ResizeRequest created it.

        If the end of the reservation is known, also requeue the scan for that time.
        """
        resize_request = node_record.view.labels.get(well_known.NODE_PROVISIONING_REQUEST)
        key = self._index.request_by_resize_request.get(resize_request or "")
        if key is None:
            return False
        request = self._index.requests[key]
        request_state, provisioned_at = state_of(request), transition_time(request, PROVISIONED)
        if request_state is ProvisioningRequestState.ACCEPTED or provisioned_at is None:
            return request_state is ProvisioningRequestState.ACCEPTED
        reservation_end = provisioned_at + max(
            0, BOOKING_TIME - self._loop_context.settings.scale_down_delays.unneeded_time
        )
        if request_state is not ProvisioningRequestState.PROVISIONED or reservation_end <= self._now:
            return False
        self._requeue_by(reservation_end)
        return True

    def _drainability_of(self, pod: PodView, is_guarded: bool) -> PodDrainability:
        obj = self._reader.get(Key(scheme.POD, pod.namespace, pod.name))
        return PodDrainability.MOVES if obj is None else pod_drainability(obj, self._now, is_guarded=is_guarded)

    def _draining_count(self) -> int:
        machines = [self._index.machines.get(name) for name in self._index.draining_nodes]
        return sum(machine is not None and not machine.is_being_deleted for machine in machines)

    def _requeue_by(self, requeue_at: Instant | None) -> None:
        if requeue_at is not None:
            earlier_requeue = self.outcome.requeue_at
            self.outcome.requeue_at = requeue_at if earlier_requeue is None else min(requeue_at, earlier_requeue)

    # --- writes ---

    def _add_writes(self, scale_up: ScaleUp, decisions: ScaleDownDecisions | None) -> None:
        self.outcome.writes += self._failures.writes()
        self.outcome.events += self._failures.events
        self._request_machines(scale_up)
        self._record_pod_events(scale_up)
        if decisions is not None:
            self._update_node_taints(decisions)
            self._requeue_by(decisions.requeue_at)
        self._delete_unused_pools(scale_up)

    def _request_machines(self, scale_up: ScaleUp) -> None:
        self.outcome.writes += [Create(pool) for pool in scale_up.pools]
        for group, count in scale_up.increases.items():
            instance = new_instance(group.pool, group.name.zone, self._loop_context.cluster)
            self.outcome.writes += [Create(instance)] * count

    def _record_pod_events(self, scale_up: ScaleUp) -> None:
        for uid, groups in scale_up.groups_by_pod.items():
            message = f"pod triggered scale-up: {scale_up.format_increase(groups)}"
            self._record_pod_event(uid, "TriggeredScaleUp", message)
        for uid, refusal in scale_up.refusal_by_pod.items():
            self._record_pod_event(uid, "NotTriggerScaleUp", f"pod didn't trigger scale-up: {refusal}")
        if scale_up.refusal_by_pod:
            self._requeue_by(scale_up.next_backoff_end())
        for uid in [uid for uid in self._last_messages if uid not in self._index.pending_pods]:
            del self._last_messages[uid]

    def _record_pod_event(self, uid: str, reason: str, message: str) -> None:
        if self._last_messages.get(uid) == message:
            return
        self._last_messages[uid] = message
        pod = self._index.pending_pods[uid]
        key = Key(scheme.POD, pod.namespace, pod.name)
        self.outcome.events.append(EventRecord(key, "Normal", reason, message))

    def _update_node_taints(self, decisions: ScaleDownDecisions) -> None:
        node_records_by_name = self._index.node_records
        candidate_nodes = [name for name, record in node_records_by_name.items() if record.unneeded_since is not None]
        for name in dict.fromkeys([*decisions.unneeded_nodes, *candidate_nodes]):
            key, record = Key(scheme.NODE, "", name), node_records_by_name[name]
            node = self._reader.get(key)
            if node is None or record.draining_since is not None:
                continue
            if name in decisions.pods_to_move_by_node:
                self.outcome.writes.append(Update(taint_to_be_deleted(node, self._now)))
                message = "marked the node as toBeDeleted/unschedulable"
                self.outcome.events.append(EventRecord(key, "Normal", "ScaleDown", message))
            elif name not in decisions.unneeded_nodes:
                self.outcome.writes.append(Update(untaint_needed_node(node)))
            elif record.unneeded_since is None:
                self.outcome.writes.append(Update(taint_unneeded_node(node, self._now)))

    def _delete_unused_pools(self, scale_up: ScaleUp) -> None:
        growing_pools = {group.name.pool for group in scale_up.increases}
        for name, groups in self._index.groups.items():
            machines: Sequence[str] = [m for group in groups for m in self._index.machines.machines_of(group.name)]
            if not groups or not groups[0].is_auto_provisioned or machines:
                continue
            if name not in growing_pools and not self._index.is_requested(name):
                self.outcome.writes.append(Delete(Key(scheme.NODE_POOL, "", name)))


# Drain the nodes with the ToBeDeleted taint: evict their pods, then delete their machines.
#
# All state is in the objects, so draining continues after a restart. A node stays if its pods do not stop in time or if
# it has received a pod that blocks scale-down. Source: kubernetes-sigs/cluster-autoscaler,
# pkg/core/scaledown/actuation.


#: The retry interval for pods whose eviction a disruption budget has rejected.
RETRY_TIME: Final = 10 * SECOND


def drain_nodes(index: ScalingIndex, reader: Reader, now: Instant) -> ReconcileResult:
    """Return the writes that drain nodes with the ToBeDeleted taint, and delete the machines of drained nodes.

    The taint is removed instead, so that the node stays, if a pod blocks the removal or must first end by itself, or if
    pods to be evicted remain after DRAIN_TIME.
    """
    reconcile_result = ReconcileResult()
    for name in index.draining_nodes:
        machine, node = index.machines.get(name), reader.get(Key(scheme.NODE, "", name))
        if machine is not None and not machine.is_being_deleted and node is not None:
            _drain_node(name, node, index, reader, now, reconcile_result)
    return reconcile_result


def _drain_node(
    name: str, node: Obj, index: ScalingIndex, reader: Reader, now: Instant, outcome: ReconcileResult
) -> None:
    pods = _pods_on(name, index, reader)
    effects = [pod_drainability(pod, now) for pod in pods]
    moving_pods = [pod for pod, each in zip(pods, effects, strict=True) if each is PodDrainability.MOVES]
    deadline = (index.node_records[name].draining_since or 0) + node_groups.DRAIN_TIME
    if PodDrainability.BLOCKS in effects or PodDrainability.WAITS in effects or (moving_pods and deadline <= now):
        outcome.writes.append(Update(untaint_to_be_deleted(node)))
    elif moving_pods:
        requeue_at = min(deadline, now + RETRY_TIME) if _evict_pods(moving_pods, reader, now, outcome) else deadline
        outcome.requeue_at = requeue_at if outcome.requeue_at is None else min(requeue_at, outcome.requeue_at)
    else:
        outcome.writes.append(Delete(Key(scheme.INSTANCE, "", name)))


def _pods_on(name: str, index: ScalingIndex, reader: Reader) -> list[Obj]:
    node = index.nodes.get(name)
    pod_views = [] if node is None else list(node.pods.values())
    pods_or_none = [reader.get(Key(scheme.POD, view.namespace, view.name)) for view in pod_views]
    return [pod for pod in pods_or_none if pod is not None]


def _evict_pods(pods: Sequence[Obj], reader: Reader, now: Instant, reconcile_result: ReconcileResult) -> bool:
    budgets: dict[Key, Obj] = {}
    eviction_writes = ReconcileResult()
    is_eviction_refused = False
    for pod in pods:
        if is_terminating(pod):
            continue
        namespace_budgets = reader.list(scheme.POD_DISRUPTION_BUDGET, pod["metadata"].get("namespace", ""))
        decision = eviction_decision(pod, [budgets.get(key_of(budget), budget) for budget in namespace_budgets], now)
        if decision.refusal is not None:
            is_eviction_refused = True
            continue
        if decision.new_budget is not None:
            budgets[key_of(decision.new_budget)] = decision.new_budget
        _evict_pod(pod, now, eviction_writes)
    reconcile_result.writes += [*map(UpdateStatus, budgets.values()), *eviction_writes.writes]
    reconcile_result.events += eviction_writes.events
    return is_eviction_refused


def _evict_pod(pod: Obj, now: Instant, reconcile_result: ReconcileResult) -> None:
    metadata = pod["metadata"]
    key = Key(scheme.POD, metadata.get("namespace", ""), metadata["name"])
    grace_seconds = min(grace_period(pod["spec"]), node_groups.GRACE_MAX)
    marked_pod = with_disruption(pod, DISRUPTION_BY_EVICTION, now)
    reconcile_result.writes += [UpdateStatus(marked_pod), Delete(key, grace_seconds, uid=metadata["uid"])]
    reconcile_result.events.append(EventRecord(key, "Normal", "ScaleDown", "deleting pod for node scale down"))


_AUTOSCALER_KEY: Final = Key(scheme.CLUSTER, "", "autoscaler")


class Autoscaler:
    """The controller that scans the cluster at intervals, and updates the ScalingIndex for ProvisioningRequests.

    Scan times are multiples of the scan interval since the creation of the Cluster, so a restart does not shift them.
    """

    name = "autoscaler"
    rank = 15
    kinds = WATCHED_KINDS

    def __init__(self, index: ScalingIndex) -> None:
        self._index = index
        self._last_scan: Instant | None = None
        self._last_messages: dict[str, str] = {}

    def last_message_for(self, pod_uid: str) -> str:
        """Return the last Event message (scale-up triggered or refused) for a pod; '' if none."""
        return self._last_messages.get(pod_uid, "")

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Update the index; return the autoscaler's only key if the event requires a scan, otherwise nothing."""
        return (_AUTOSCALER_KEY,) if self._index.observe(event) and self._index.is_needed else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Advance the drain of nodes; if that writes nothing and a scan is due, scan the cluster."""
        self._index.catch_up(reader)
        cluster, settings = self._index.cluster, self._index.settings
        if cluster is None or settings is None or not self._index.is_needed:
            return ReconcileResult()
        drain_result = drain_nodes(self._index, reader, now)
        if drain_result.writes:
            return drain_result
        cluster_created_at = parse_time(cluster["metadata"]["creationTimestamp"])
        next_scan_time = settings.next_scan(cluster_created_at, now if self._last_scan != now else now + 1)
        if next_scan_time > now:
            return ReconcileResult(requeue_at=next_scan_time)
        self._last_scan = now
        result = AutoscalerLoop(self._index, reader, LoopContext(cluster, settings, now), self._last_messages).run()
        requeue_times = [due for due in (drain_result.requeue_at, result.requeue_at) if due is not None]
        result.requeue_at = min(requeue_times, default=None)
        return result
