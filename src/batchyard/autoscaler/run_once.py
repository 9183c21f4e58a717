"""One autoscaler loop: scale up, scale down, mark nodes, and create or delete pools.

Source: kubernetes-sigs/cluster-autoscaler, pkg/core/static_autoscaler.go (RunOnce).
"""

from collections.abc import Iterable, MutableMapping, Sequence

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.cluster_forecast import UpcomingCluster
from batchyard.autoscaler.failures import Failures
from batchyard.autoscaler.index import NodeFacts, ScalingIndex
from batchyard.autoscaler.machines import marked_going, marked_needed, marked_unneeded
from batchyard.autoscaler.node_groups_state import NodeGroupsState
from batchyard.autoscaler.pending_units import units_of
from batchyard.autoscaler.provisioning_request_conditions import (
    BOOKING_TIME,
    PROVISIONED,
    ProvisioningRequestState,
    since,
    state_of,
)
from batchyard.autoscaler.scale_down import Candidate, PodDrainability, Removals, ScaleDown, drain_of
from batchyard.autoscaler.scale_up import LoopContext, ScaleUp
from batchyard.autoscaler.settings import YOUNG, YOUNG_ACCELERATED
from batchyard.base.instant import Duration, Instant
from batchyard.cloud.catalog.instances import new_instance
from batchyard.interfaces.client import Create, Delete, Reader, Update
from batchyard.interfaces.controller import EventRecord, ReconcileResult

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
