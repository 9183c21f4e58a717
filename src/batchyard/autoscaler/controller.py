"""Autoscaler controller: scans the cluster at most once per scan interval, when something changed or is due."""

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_of, key_of
from batchyard.api.times import parse_time
from batchyard.api.views.node import grace_period
from batchyard.api.views.pods import BY_EVICTION, PodView, disrupted, is_terminating
from batchyard.autoscaler.cluster_forecast import UpcomingCluster
from batchyard.autoscaler.expander import NodeGroupsState
from batchyard.autoscaler.index import KINDS, Failures, NodeFacts, ScalingIndex
from batchyard.autoscaler.machines import marked_going, marked_needed, marked_staying, marked_unneeded
from batchyard.autoscaler.node_groups import (
    DRAIN_MAX,
    DRAIN_TIME,
    GRACE_MAX,
    PARALLEL_MAX,
    UNREADY_TIME,
    YOUNG,
    YOUNG_ACCELERATED,
    ClusterLimits,
    NodeGroup,
)
from batchyard.autoscaler.provisioning_request_pods import (
    BOOKING_TIME,
    PROVISIONED,
    ProvisioningRequestState,
    since,
    state_of,
)
from batchyard.autoscaler.scale_up import LoopContext, ScaleUp, units_of
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.cloud.catalog.instances import new_instance
from batchyard.disruption.controller import verdict
from batchyard.interfaces.client import Create, Delete, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import PodFilters
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.node_info import NodeInfo

# --- drain ---
#
# Drainability of pods on a node that may be removed.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/simulator/drainability/rules. As on GKE, local volumes do not block.
# Disruption budgets come last: they do not apply to pods annotated as safe to evict.


_MIRROR: Final = "kubernetes.io/config.mirror"
# --- scale down ---
#
# Scale-down: which nodes are unneeded, and which of them are removed now.
#
# A node is unneeded while its utilization is low and all its pods fit elsewhere. It is removed when it has been
# unneeded for long enough and no nodes were added recently: empty nodes in bulk, others one at a time, slices as a
# whole. Source: kubernetes-sigs/cluster-autoscaler, pkg/core/scaledown (eligibility, planner, unneeded, budgets) and
# pkg/simulator (cluster.go, utilization).


_SYSTEM_NAMESPACE: Final = "kube-system"
#: A pod that is still terminating this long after its grace period, counted twice, is ignored.
_LATE: Final = 30 * SECOND


class PodDrainability(Enum):
    """The effect of a pod on the removal of its node."""

    #: It fits another node, or its controller creates a replacement.
    MOVES = auto()
    #: It is removed with the node.
    STAYS = auto()
    #: The node may be removed only after the pod has ended.
    WAITS = auto()
    #: The node must stay.
    BLOCKS = auto()


_SAFE: Final = {"true": PodDrainability.MOVES, "on-completion": PodDrainability.WAITS}


def drain_of(pod: Obj, now: Instant, *, is_guarded: bool = False) -> PodDrainability:
    """Return the effect of a pod; `is_guarded`: its disruption budget allows no disruption."""
    deleted = pod["metadata"].get("deletionTimestamp")
    grace = grace_period(pod["spec"]) * SECOND
    if deleted is not None and parse_time(deleted) + grace + _LATE < now:
        return PodDrainability.STAYS
    owner, safe = controller_of(pod), annotation(pod, well_known.SAFE_TO_EVICT)
    if annotation(pod, _MIRROR) is not None or (owner is not None and owner.get("kind") == "DaemonSet"):
        return PodDrainability.STAYS
    if safe in _SAFE:
        return _SAFE[safe]
    is_kept = owner is None or safe == "false" or pod["metadata"].get("namespace") == _SYSTEM_NAMESPACE
    return PodDrainability.BLOCKS if is_kept or is_guarded else PodDrainability.MOVES


DrainOf: TypeAlias = Callable[[PodView, bool], PodDrainability]
"""Returns the effect of a pod, given whether its disruption budget allows no disruption."""


class Candidate(NamedTuple):
    """A node that may be removed."""

    name: str
    group: NodeGroup
    is_ready: bool
    #: Unneeded since this time, if known.
    since: Instant | None


@dataclass(slots=True)
class Removals:
    """The result of a scale-down."""

    #: The nodes that are unneeded now.
    unneeded: dict[str, Candidate] = field(default_factory=dict)
    #: The nodes to remove, with the pods to move.
    going: dict[str, Sequence[PodView]] = field(default_factory=dict)
    look_at: Instant | None = None

    def look_again(self, when: Instant) -> None:
        """Requeue no later than at this time."""
        self.look_at = when if self.look_at is None else min(when, self.look_at)


class ScaleDown:
    """The scale-down of one loop. It moves pods on the nodes themselves: use only within `what_if`."""

    def __init__(
        self,
        nodes: ClusterSnapshot,
        fleet: NodeGroupsState,
        limits: ClusterLimits,
        situation: LoopContext,
        drain_of: DrainOf,
    ) -> None:
        self._nodes = nodes
        self._fleet = fleet
        self._limits = limits
        self._situation = situation
        self._drain_of = drain_of
        #: The disruptions that budgets allow after the moves so far.
        self._budgets = nodes.budgets.rest()
        self._moving: dict[str, Sequence[PodView]] = {}
        #: Nodes with pods that must end first.
        self._waiting: dict[str, None] = {}
        #: Nodes that must not receive pods; removed from the snapshot before the first move.
        self._gone: list[str] = []
        self.removals = Removals()

    def find_unneeded(
        self, candidates: Sequence[Candidate], awaited: Mapping[str, object], upcoming: Iterable[str]
    ) -> None:
        """Find unneeded nodes. Nodes in `awaited` are needed; pods do not move to `upcoming` nodes."""
        self._gone += upcoming
        for candidate in sorted(candidates, key=self._turn):
            node = self._nodes.get(candidate.name)
            if node is None or candidate.name in awaited or not self._is_underused(node, candidate.group):
                continue
            pods = list(node.pods.values())
            drains = [self._drain_of(pod, self._budgets.blocks(pod)) for pod in pods]
            moving = [pod for pod, drain in zip(pods, drains, strict=True) if drain is PodDrainability.MOVES]
            if PodDrainability.BLOCKS not in drains and self._move(node, moving):
                self._budgets.take(moving)
                self._moving[candidate.name] = moving
                self.removals.unneeded[candidate.name] = candidate
                if PodDrainability.WAITS in drains:
                    self._waiting[candidate.name] = None

    def remove(self, last_added: Instant | None, draining: int) -> Removals:
        """Return the unneeded nodes to remove now."""
        now, patience = self._situation.now, self._situation.settings.patience
        due = [c for c in self.removals.unneeded.values() if c.name not in self._waiting and self._is_due(c)]
        calm = now if last_added is None else last_added + patience.after_add
        if due and calm > now:
            self.removals.look_again(calm)
        elif due:
            self._remove_due(due, draining)
        return self.removals

    # --- which are unneeded ---

    def _turn(self, candidate: Candidate) -> tuple[bool, bool, str]:
        """Sort key: already unneeded nodes first, then empty ones."""
        node = self._nodes.get(candidate.name)
        return candidate.since is None, node is not None and bool(node.pods), candidate.name

    def _is_underused(self, node: NodeInfo, group: NodeGroup) -> bool:
        accelerator = group.machine.accelerator
        resources = ("cpu", "memory") if accelerator is None else (accelerator.resource,)
        threshold = self._situation.settings.utilization_threshold
        total, left = node.view.allocatable, node.left
        return all(
            (total.get(r, 0) - left.get(r, 0)) * meta.NANO <= threshold * total[r] for r in resources if total.get(r)
        )

    def _move(self, node: NodeInfo, pods: Sequence[PodView]) -> bool:
        """Move the pods of a node elsewhere if all fit; the node is then removed from the snapshot."""
        view, moved = node.view, list[PodView]()
        self._gone.append(node.name)
        while pods and self._gone:
            self._nodes.remove_node(self._gone.pop())
        for pod in pods:
            place = self._place_for(pod)
            if not place:
                for back in moved:
                    self._nodes.add_pod(back, node.name)
                self._nodes.set_node(view)
                return False
            self._nodes.add_pod(pod, place)
            moved.append(pod)
        return True

    def _place_for(self, pod: PodView) -> str:
        """Return a node that the pod fits; '' if none. Scores other than resources are ignored."""
        shortlist = self._nodes.shortlists.of(pod.shape, AutoscalingProfile.BALANCED)
        return shortlist.best(PodFilters(pod, self._nodes).passes)

    # --- which go ---

    def _is_due(self, candidate: Candidate) -> bool:
        """Whether the node was unneeded for long enough."""
        since = self._situation.now if candidate.since is None else candidate.since
        wait = self._situation.settings.patience.unneeded if candidate.is_ready else UNREADY_TIME
        if since + wait > self._situation.now:
            self.removals.look_again(since + wait)
            return False
        return True

    def _remove_due(self, due: Sequence[Candidate], draining: int) -> None:
        """Remove slices first, then empty nodes, then others, within the limits of one loop."""
        budget, drains = PARALLEL_MAX - draining, DRAIN_MAX - draining
        slices: dict[NodeGroup, list[Candidate]] = {}
        single: list[Candidate] = []
        for candidate in due:
            (slices.setdefault(candidate.group, []) if candidate.group.hosts > 1 else single).append(candidate)
        for group, hosts in slices.items():
            if len(hosts) == self._fleet.size(group) and not group.size.least:
                self._mark_removed(hosts)
                budget -= len(hosts)
        single.sort(key=lambda candidate: bool(self._moving[candidate.name]))
        for candidate in single:
            is_empty = not self._moving[candidate.name]
            if budget <= 0 or (not is_empty and drains <= 0):
                self.removals.look_again(self._situation.now + self._situation.settings.scan_interval)
                return
            if self._may_shrink(candidate.group):
                self._mark_removed([candidate])
                budget -= 1
                drains -= not is_empty

    def _may_shrink(self, group: NodeGroup) -> bool:
        least = self._fleet.size(group) > group.size.least and self._fleet.pool_size(group) > group.total.least
        return least and self._limits.may_go(group.uses)

    def _mark_removed(self, candidates: Sequence[Candidate]) -> None:
        for candidate in candidates:
            self._fleet.grow(candidate.group, -1)
            self._limits.take(candidate.group.uses, -1)
            self.removals.going[candidate.name] = self._moving[candidate.name]


# --- run once ---
#
# One autoscaler loop: scale up, scale down, mark nodes, and create or delete pools.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/core/static_autoscaler.go (RunOnce).


_DEVICES = (well_known.GPU, well_known.TPU)


class AutoscalerLoop:
    """One loop over the cluster. The last message of each pod is kept by uid, to suppress repeated Events."""

    def __init__(
        self, index: ScalingIndex, reader: Reader, situation: LoopContext, last_messages: MutableMapping[str, str]
    ) -> None:
        self._index = index
        self._reader = reader
        self._situation = situation
        self._last_messages = last_messages
        self._now = situation.now
        self._failures = Failures(index, reader, situation.now)
        self.outcome = ReconcileResult()

    def run(self) -> ReconcileResult:
        """Compute the decisions of this loop as writes and Events."""
        self._failures.find()
        self._look_again(self._failures.look_at)
        with self._index.nodes.what_if():
            trial = UpcomingCluster(self._index, self._reader, self._situation, self._failures)
            trial.prepare()
            waits_until = self._young_until(self._index.pending.values())
            if waits_until is None:
                trial.scale_up.complete_slices()
                trial.scale_up.grow_to_least()
                for unit in units_of(self._index.pending.values()):
                    trial.scale_up.help(unit)
                removals = self._scale_down(trial)
            else:
                self._look_again(waits_until)
                removals = None
        self._write(trial.scale_up, removals)
        return self.outcome

    # --- looking ---

    def _young_until(self, pods: Iterable[PodView]) -> Instant | None:
        """Return the time until which young pods are ignored so that gangs are complete; None if none is young."""
        waits: list[tuple[Instant, Duration]] = [(pod.created, YOUNG) for pod in pods]
        waits = [min(waits)] if waits else []
        accelerated = [pod.created for pod in pods if any(resource in _DEVICES for resource, _ in pod.requests)]
        waits += [(min(accelerated), YOUNG_ACCELERATED)] if accelerated else []
        until = max((created + wait for created, wait in waits), default=self._now)
        return until if until > self._now else None

    def _scale_down(self, trial: UpcomingCluster) -> Removals:
        scale_up = trial.scale_up
        scale_down = ScaleDown(self._index.nodes, trial.fleet, trial.limits, self._situation, self._drain_of)
        awaited = {**dict.fromkeys(scale_up.places.values()), **trial.booked}
        scale_down.find_unneeded(self._candidates(trial.fleet), awaited, [*trial.upcoming, *scale_up.new_nodes])
        added = [when for name, when in self._index.machines.last_added().items() if self._index.scales(name.pool)]
        last_added = self._now if scale_up.increases else max(added, default=None)
        return scale_down.remove(last_added, self._draining())

    def _candidates(self, fleet: NodeGroupsState) -> list[Candidate]:
        """Return the nodes that may be scaled down."""
        found = []
        for name, facts in self._index.facts.items():
            if facts.is_coming or facts.stays or facts.going_since is not None:
                continue
            machine = self._index.machines.get(name)
            group = None if machine is None or machine.is_leaving else fleet.groups.get(machine.group)
            if group is not None and group.is_autoscaled and not self._is_kept(facts):
                found.append(Candidate(name, group, facts.view.ready, facts.unneeded_since))
        return found

    def _is_kept(self, facts: NodeFacts) -> bool:
        """Whether a node is reserved for the ProvisioningRequest that it was provisioned for."""
        resize_request = facts.view.labels.get(well_known.NODE_PROVISIONING_REQUEST)
        key = self._index.by_resize_request.get(resize_request or "")
        if key is None:
            return False
        request = self._index.requests[key]
        state, provisioned = state_of(request), since(request, PROVISIONED)
        if state is ProvisioningRequestState.ACCEPTED or provisioned is None:
            return state is ProvisioningRequestState.ACCEPTED
        until = provisioned + max(0, BOOKING_TIME - self._situation.settings.patience.unneeded)
        if state is not ProvisioningRequestState.PROVISIONED or until <= self._now:
            return False
        self._look_again(until)
        return True

    def _drain_of(self, pod: PodView, is_guarded: bool) -> PodDrainability:
        obj = self._reader.get(Key(scheme.POD, pod.namespace, pod.name))
        return PodDrainability.MOVES if obj is None else drain_of(obj, self._now, is_guarded=is_guarded)

    def _draining(self) -> int:
        """Return the number of nodes that are draining."""
        machines = [self._index.machines.get(name) for name in self._index.going]
        return sum(machine is not None and not machine.is_leaving for machine in machines)

    def _look_again(self, when: Instant | None) -> None:
        if when is not None:
            due = self.outcome.requeue_at
            self.outcome.requeue_at = when if due is None else min(when, due)

    # --- writing ---

    def _write(self, scale_up: ScaleUp, removals: Removals | None) -> None:
        self.outcome.writes += self._failures.writes()
        self.outcome.events += self._failures.events
        self._ask(scale_up)
        self._record_pod_events(scale_up)
        if removals is not None:
            self._mark(removals)
            self._look_again(removals.look_at)
        self._drop_pools(scale_up)

    def _ask(self, scale_up: ScaleUp) -> None:
        """Create pools and request machines."""
        self.outcome.writes += [Create(pool) for pool in scale_up.pools]
        for group, count in scale_up.increases.items():
            instance = new_instance(group.pool, group.name.zone, self._situation.cluster)
            self.outcome.writes += [Create(instance)] * count

    def _record_pod_events(self, scale_up: ScaleUp) -> None:
        """Emit the Events of scaled-up and refused pods; requeue when the backoff of a group ends."""
        for uid, groups in scale_up.helped.items():
            self._record_pod_event(
                uid, "TriggeredScaleUp", f"pod triggered scale-up: {scale_up.format_increase(groups)}"
            )
        for uid, why in scale_up.refused.items():
            self._record_pod_event(uid, "NotTriggerScaleUp", f"pod didn't trigger scale-up: {why}")
        if scale_up.refused:
            self._look_again(scale_up.backoffs_end())
        for uid in [uid for uid in self._last_messages if uid not in self._index.pending]:
            del self._last_messages[uid]

    def _record_pod_event(self, uid: str, reason: str, message: str) -> None:
        if self._last_messages.get(uid) == message:
            return
        self._last_messages[uid] = message
        pod = self._index.pending[uid]
        key = Key(scheme.POD, pod.namespace, pod.name)
        self.outcome.events.append(EventRecord(key, "Normal", reason, message))

    def _mark(self, removals: Removals) -> None:
        """Update the unneeded-since annotations and ToBeDeleted taints of nodes."""
        marked = [name for name, facts in self._index.facts.items() if facts.unneeded_since is not None]
        for name in dict.fromkeys([*removals.unneeded, *marked]):
            key, facts = Key(scheme.NODE, "", name), self._index.facts[name]
            node = self._reader.get(key)
            if node is None or facts.going_since is not None:
                continue
            if name in removals.going:
                self.outcome.writes.append(Update(marked_going(node, self._now)))
                message = "marked the node as toBeDeleted/unschedulable"
                self.outcome.events.append(EventRecord(key, "Normal", "ScaleDown", message))
            elif name not in removals.unneeded:
                self.outcome.writes.append(Update(marked_needed(node)))
            elif facts.unneeded_since is None:
                self.outcome.writes.append(Update(marked_unneeded(node, self._now)))

    def _drop_pools(self, scale_up: ScaleUp) -> None:
        """Delete auto-provisioned pools that are empty and not needed."""
        growing = {group.name.pool for group in scale_up.increases}
        for name, groups in self._index.groups.items():
            machines: Sequence[str] = [m for group in groups for m in self._index.machines.of_group(group.name)]
            if not groups or not groups[0].is_auto_provisioned or machines:
                continue
            if name not in growing and not self._index.is_requested(name):
                self.outcome.writes.append(Delete(Key(scheme.NODE_POOL, "", name)))


# --- draining nodes before deletion ---
#
# Draining of nodes with the ToBeDeleted taint: evict their pods, then delete their machines.
#
# All state is in the objects, so draining continues after a restart. A node is kept if its pods do not stop in time, or
# if it got a pod that blocks scale-down. Source: kubernetes-sigs/cluster-autoscaler, pkg/core/scaledown/actuation.


#: Retry interval for pods whose eviction a disruption budget rejected.
RETRY_TIME: Final = 10 * SECOND


def empty_nodes(index: ScalingIndex, reader: Reader, now: Instant) -> ReconcileResult:
    """Advance the draining nodes by one step."""
    outcome = ReconcileResult()
    for name in index.going:
        machine, node = index.machines.get(name), reader.get(Key(scheme.NODE, "", name))
        if machine is not None and not machine.is_leaving and node is not None:
            _empty(name, node, index, reader, now, outcome)
    return outcome


def _empty(name: str, node: Obj, index: ScalingIndex, reader: Reader, now: Instant, outcome: ReconcileResult) -> None:
    pods = _pods_on(name, index, reader)
    drains = [drain_of(pod, now) for pod in pods]
    moving = [pod for pod, drain in zip(pods, drains, strict=True) if drain is PodDrainability.MOVES]
    ends = (index.facts[name].going_since or 0) + DRAIN_TIME
    if PodDrainability.BLOCKS in drains or PodDrainability.WAITS in drains or (moving and ends <= now):
        outcome.writes.append(Update(marked_staying(node)))
    elif moving:
        look_at = min(ends, now + RETRY_TIME) if _evict_all(moving, reader, now, outcome) else ends
        outcome.requeue_at = look_at if outcome.requeue_at is None else min(look_at, outcome.requeue_at)
    else:
        outcome.writes.append(Delete(Key(scheme.INSTANCE, "", name)))


def _pods_on(name: str, index: ScalingIndex, reader: Reader) -> list[Obj]:
    node = index.nodes.get(name)
    views = [] if node is None else list(node.pods.values())
    found = [reader.get(Key(scheme.POD, view.namespace, view.name)) for view in views]
    return [pod for pod in found if pod is not None]


def _evict_all(pods: Sequence[Obj], reader: Reader, now: Instant, outcome: ReconcileResult) -> bool:
    """Evict the pods that their disruption budgets allow; return whether some were rejected."""
    budgets: dict[Key, Obj] = {}
    evictions = ReconcileResult()
    is_refused = False
    for pod in pods:
        if is_terminating(pod):
            continue
        known = reader.list(scheme.POD_DISRUPTION_BUDGET, pod["metadata"].get("namespace", ""))
        judged = verdict(pod, [budgets.get(key_of(budget), budget) for budget in known], now)
        if judged.refusal is not None:
            is_refused = True
            continue
        if judged.spent is not None:
            budgets[key_of(judged.spent)] = judged.spent
        _evict(pod, now, evictions)
    outcome.writes += [*map(UpdateStatus, budgets.values()), *evictions.writes]
    outcome.events += evictions.events
    return is_refused


def _evict(pod: Obj, now: Instant, outcome: ReconcileResult) -> None:
    metadata = pod["metadata"]
    key = Key(scheme.POD, metadata.get("namespace", ""), metadata["name"])
    grace = min(grace_period(pod["spec"]), GRACE_MAX)
    outcome.writes += [UpdateStatus(disrupted(pod, BY_EVICTION, now)), Delete(key, grace, uid=metadata["uid"])]
    outcome.events.append(EventRecord(key, "Normal", "ScaleDown", "deleting pod for node scale down"))


_CLUSTER: Final = Key(scheme.CLUSTER, "", "autoscaler")


class Autoscaler:
    """Scans the cluster, and updates the index, which other readers must run after.

    Scan instants are counted from the creation of the Cluster, so that a restart does not move them.
    """

    name = "autoscaler"
    rank = 15
    kinds = KINDS

    def __init__(self, index: ScalingIndex) -> None:
        self._index = index
        self._last_scan: Instant | None = None
        self._last_messages: dict[str, str] = {}

    def last_message_for(self, pod: str) -> str:
        """Return the last message for a pending pod, by uid; '' if none."""
        return self._last_messages.get(pod, "")

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the cluster's key if the change requires a scan."""
        return (_CLUSTER,) if self._index.observe(event) and self._index.is_needed else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Advance draining nodes; scan the cluster if a scan is due."""
        self._index.catch_up(reader)
        cluster, settings = self._index.cluster, self._index.settings
        if cluster is None or settings is None or not self._index.is_needed:
            return ReconcileResult()
        leaving = empty_nodes(self._index, reader, now)
        if leaving.writes:
            return leaving
        start = parse_time(cluster["metadata"]["creationTimestamp"])
        next_scan = settings.next_scan(start, now if self._last_scan != now else now + 1)
        if next_scan > now:
            return ReconcileResult(requeue_at=next_scan)
        self._last_scan = now
        looked = AutoscalerLoop(self._index, reader, LoopContext(cluster, settings, now), self._last_messages).run()
        dues = [due for due in (leaving.requeue_at, looked.requeue_at) if due is not None]
        looked.requeue_at = min(dues, default=None)
        return looked
