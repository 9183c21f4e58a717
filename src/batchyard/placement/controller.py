"""Placement controller: binds pods to nodes, preempts pods of lower priority, and reports why pods are unschedulable.

The controller has one constant key, PASS_KEY. Its rank lets the job controllers run first, so that all pods of a gang
exist. A pass tries the due scheduling units (a pod or a gang) in order, each on the cluster state that earlier units
left. Sources: kube-scheduler's schedule_one.go, framework/preemption/executor.go.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from batchyard.api import well_known
from batchyard.api.meta import Key, Obj, key_of, with_path
from batchyard.api.views.node import NodeView
from batchyard.api.views.pods import PodView
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Delete, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.placement import gang
from batchyard.placement.cluster_snapshot import VolumeFilterFactory
from batchyard.placement.filtering import NO_NODES, ChosenNode, Unschedulable, find_node
from batchyard.placement.gpu_policies import NodeScoring
from batchyard.placement.hotswap import EvictionUnit, FollowerReservations, HotswapPass, find_hotswap
from batchyard.placement.index import KINDS, VOLUME_KINDS, PlacementIndex, pod_key
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.preemption import (
    PodPreemption,
    PreemptionFailure,
    are_in_same_gang,
    awaits_victims,
    find_preemption,
    no_victims_failure,
)
from batchyard.placement.scheduling_queue import EquivalenceKey
from batchyard.placement.units import (
    set_gated_condition,
    set_preempted,
    set_scheduled_condition,
    set_unschedulable_condition,
)

PASS_KEY: Final = Key("Pass", "", "placement")
#: Maximum length of an Event's note.
_EVENT_NOTE_MAX: Final = 1024


class PlacementController:
    """Controller that binds pending pods to nodes as kube-scheduler does, and preempts pods of lower priority.

    `profile` scores nodes for pods of the default scheduler. With `hotswap`, the pods of a Workload are evicted
    together, and exclusively placed Jobs get a topology domain with room for all their pods.
    """

    name = "placement"
    rank = 12
    kinds: Sequence[str] = KINDS

    def __init__(
        self,
        profile: NodeScoring = AutoscalingProfile.BALANCED,
        *,
        hotswap: bool = False,
        volume_filter: VolumeFilterFactory | None = None,
    ) -> None:
        """Create the controller; without `volume_filter`, the claims of pods do not affect their placement."""
        self._index = PlacementIndex(profile)
        self._index.nodes.volume_filter = volume_filter
        if volume_filter is not None:
            self.kinds = (*KINDS, *VOLUME_KINDS)
        #: The node capacity that Hotswap reserves for pods that do not exist yet.
        self._reservations = FollowerReservations(self._index.nodes) if hotswap else None

    def has_room_for(
        self, pods: Sequence[PodView], *, without_uids: Iterable[str] = (), with_nodes: Iterable[NodeView] = ()
    ) -> bool:
        """Return whether all `pods` would fit if `with_nodes` were added and the pods with `without_uids` were gone."""
        nodes = self._index.nodes
        with nodes.what_if():
            for uid in without_uids:
                nodes.remove_pod(uid)
            for view in with_nodes:
                nodes.set_node(view)
            return isinstance(gang.place_gang(pods, nodes, self._index.profile_of(pods[0])), gang.GangPlacement)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Update the index from the event; return PASS_KEY if a placement pass is due, otherwise ()."""
        return (PASS_KEY,) if self._index.observe(event) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Try all due pods and gangs: bind them, preempt pods for them, or report why they are unschedulable."""
        self._index.recover_failed_writes(reader)
        reservations = self._reservations
        hotswap_pass = None if reservations is None else HotswapPass(self._index.nodes, reservations, reader, now)
        placement_pass = _PlacementPass(self._index, reader, now, hotswap_pass)
        pending_units = self._index.pending_units
        pending_units.start()
        while unit := pending_units.next_unit():
            placement_pass.try_unit(unit)
        placement_pass.update_stale_conditions()
        return placement_pass.outcome


class _PlacementPass:
    def __init__(self, index: PlacementIndex, reader: Reader, now: Instant, hotswap_pass: HotswapPass | None) -> None:
        self._index = index
        self._hotswap_pass = hotswap_pass
        self._nodes = index.nodes
        self._reader = reader
        self._now = now
        #: The messages of units that did not fit in this pass, by equivalence class: later members do not fit either.
        self._failures: dict[EquivalenceKey, Sequence[str]] = {}
        self._evicted_uids: dict[str, None] = {}
        self.outcome = ReconcileResult(independent=True)

    def try_unit(self, pods: Sequence[PodView]) -> None:
        equivalence_key = self._index.pending_units.equivalence_key(pods)
        known_messages = self._failures.get(equivalence_key)
        if known_messages is not None:
            self._park_as_unschedulable(
                pods, [pod.unschedulable_message or message for pod, message in zip(pods, known_messages, strict=True)]
            )
            return
        if self._hotswap_pass is not None:
            failure_messages = self._try_with_hotswap(pods, self._hotswap_pass)
        else:
            failure_messages = self._try_pod(pods[0]) if len(pods) == 1 else self._try_gang(pods)
        if failure_messages:
            self._failures[equivalence_key] = failure_messages

    def _try_pod(self, pod: PodView) -> Sequence[str]:
        """Bind a pod, or preempt pods for it, and return (); otherwise mark it unschedulable and return why."""
        placement = find_node(pod, self._nodes, self._index.profile_of(pod))
        if isinstance(placement, ChosenNode):
            self._bind_pod(pod, placement.node)
            return ()
        preemption = find_preemption(pod, self._nodes, placement.obstacles)
        if isinstance(preemption, PodPreemption):
            self._execute_preemption(pod, placement, preemption)
            return ()
        return self._park_as_unschedulable(
            (pod,), [_failure_message(placement, preemption)], keeps_nomination=preemption.is_under_way
        )

    def _try_gang(self, pods: Sequence[PodView]) -> Sequence[str]:
        profile = self._index.profile_of(pods[0])
        if self._still_lacks_capacity(pods, profile):
            keeps_nomination = any(awaits_victims(pod, self._nodes) for pod in pods)
            return self._park_as_unschedulable(
                pods, [pod.unschedulable_message for pod in pods], keeps_nomination=keeps_nomination
            )
        placement = gang.place_gang(pods, self._nodes, profile)
        if isinstance(placement, gang.GangPlacement):
            self._bind_all(pods, placement.nodes)
            return ()
        unplaced_pod, reason = placement
        preemption = gang.preempt_for_gang(pods, self._nodes, profile)
        if isinstance(preemption, gang.GangPreemption):
            for pod in pods:
                self._reserve_node(pod, preemption.nodes[pod.uid], _gang_message(pod, unplaced_pod, reason.message()))
            self._index.pending_units.park(pods)
            for victim, preemptor in preemption.victims:
                self._evict_pod(victim, preemptor, preemption.nodes[preemptor.uid])
            return ()
        message = _failure_message(reason, preemption)
        failure_messages = [_gang_message(pod, unplaced_pod, message) for pod in pods]
        return self._park_as_unschedulable(pods, failure_messages, keeps_nomination=preemption.is_under_way)

    def _try_with_hotswap(self, pods: Sequence[PodView], hotswap_pass: HotswapPass) -> Sequence[str]:
        profile = self._index.profile_of(pods[0])
        if len(pods) > 1 and self._still_lacks_capacity(pods, profile):
            self._index.pending_units.park(pods)
            return [pod.unschedulable_message for pod in pods]
        claims = hotswap_pass.claims_of(pods)
        placement = gang.place_claims(claims, self._nodes, profile)
        if isinstance(placement, gang.GangPlacement):
            self._bind_all(pods, placement.nodes)
            hotswap_pass.reserve_nodes(claims, placement.nodes)
            return ()
        stuck_pod, fit_error = placement
        if len(pods) == 1 and not (stuck_pod.gang or claims[0].topology_key):
            preemption = find_preemption(stuck_pod, self._nodes, fit_error.obstacles)
            if isinstance(preemption, PodPreemption) and not any(victim.gang for victim in preemption.victims):
                self._execute_preemption(stuck_pod, fit_error, preemption)
                return ()
        hotswap_plan = find_hotswap(claims, self._nodes, hotswap_pass.find_eviction_unit, profile)
        if hotswap_plan is None:
            hotswap_pass.reserve_nodes(claims, {})
            message = _failure_message(fit_error, self._preemption_failure(stuck_pod, fit_error))
            return self._park_as_unschedulable(pods, [_gang_message(pod, stuck_pod, message) for pod in pods])
        for pod in pods:
            self._reserve_node(pod, hotswap_plan.nodes[pod.uid], _gang_message(pod, stuck_pod, fit_error.message()))
        hotswap_pass.reserve_nodes(claims, hotswap_plan.nodes)
        self._index.pending_units.park(pods)
        most_important_pod = max(pods, key=lambda pod: pod.priority)
        for victim in hotswap_plan.victims:
            self._evict_unit(victim, most_important_pod, hotswap_pass)
        return ()

    def _execute_preemption(self, pod: PodView, fit_error: Unschedulable, preemption: PodPreemption) -> None:
        self._reserve_node(pod, preemption.node, fit_error.message())
        self._index.pending_units.park((pod,))
        for victim in preemption.victims:
            self._evict_pod(victim, pod, preemption.node)

    def update_stale_conditions(self) -> None:
        for pod in list(self._index.pods_with_stale_conditions.values()):
            obj = self._current_object(pod)
            if obj is None or pod.uid in self._evicted_uids:
                continue
            updated_pod = (
                set_scheduled_condition(obj, self._now) if pod.node_name else set_gated_condition(obj, self._now)
            )
            if updated_pod is obj:
                del self._index.pods_with_stale_conditions[pod.uid]
            else:
                self.outcome.writes.append(UpdateStatus(updated_pod))

    def _preemption_failure(self, stuck_pod: PodView, fit_error: Unschedulable) -> PreemptionFailure:
        """Return why preemption does not help `stuck_pod`, which fits no node, although hotswap was tried for its gang.

        If preemption would help this pod alone, or is already under way for it, the reason is that no pod may be
        evicted.
        """
        preemption = find_preemption(stuck_pod, self._nodes, fit_error.obstacles)
        if isinstance(preemption, PreemptionFailure) and not preemption.is_under_way:
            return preemption
        return no_victims_failure(fit_error.obstacles, len(self._nodes))

    def _still_lacks_capacity(self, pods: Sequence[PodView], profile: NodeScoring) -> bool:
        return all(pod.unschedulable_message for pod in pods) and not gang.may_have_room(pods, self._nodes, profile)

    def _bind_all(self, pods: Sequence[PodView], nodes_by_uid: Mapping[str, str]) -> None:
        """Bind pods in the order of `nodes_by_uid`, so that each pod gets the GPUs computed for it in this order."""
        pods_by_uid = {pod.uid: pod for pod in pods}
        for uid, node_name in nodes_by_uid.items():
            if uid in pods_by_uid:
                self._bind_pod(pods_by_uid[uid], node_name)

    def _bind_pod(self, pod: PodView, node_name: str) -> None:
        obj = self._current_object(pod)
        if obj is None:
            self._index.pending_units.drop(pod.uid)
            return
        self._nodes.withdraw_nomination(pod.uid)
        self._index.assume(pod, node_name)
        event = EventRecord(pod_key(pod), "Normal", "Scheduled", f"Successfully assigned {pod.key} to {node_name}")
        self.outcome.add(Update(_with_node(obj, node_name, self._nodes.gpu_indices_of(pod.uid))), [event])

    def _reserve_node(self, pod: PodView, node_name: str, message: str) -> None:
        for nominated in list(self._nodes.pods_nominated_to(node_name).values()):
            if nominated.priority < pod.priority and not are_in_same_gang(pod, nominated):
                self._nodes.withdraw_nomination(nominated.uid)
                self._index.pending_units.activate(nominated.uid)
        self._index.nominate(pod, node_name)
        self._set_unschedulable(pod, message, node_name)

    def _evict_unit(self, victim: EvictionUnit, preemptor: PodView, hotswap_pass: HotswapPass) -> None:
        workload = hotswap_pass.evict(victim, preemptor, self.outcome)
        if workload is not None:
            self._index.record_eviction(key_of(workload), workload["metadata"]["uid"], preemptor)
            return
        for pod in victim.pods:
            self._evict_pod(pod, preemptor, pod.node_name)

    def _evict_pod(self, victim: PodView, preemptor: PodView, node_name: str) -> None:
        if victim.deleting or victim.uid in self._evicted_uids:
            return
        self._evicted_uids[victim.uid] = None
        self._index.record_eviction(pod_key(victim), victim.uid, preemptor)
        obj = self._current_object(victim)
        if obj is None or not obj["spec"].get("nodeName"):
            return  # bound in this pass: the next pass evicts it
        updated_pod = set_preempted(obj, preemptor.scheduler, self._now)
        if updated_pod is not obj:
            self.outcome.writes.append(UpdateStatus(updated_pod))
        message = f"Preempted by pod {preemptor.uid} on node {node_name}"
        deletion = Delete(pod_key(victim), uid=victim.uid)
        self.outcome.add(deletion, [EventRecord(pod_key(victim), "Normal", "Preempted", message)])

    def _park_as_unschedulable(
        self, pods: Sequence[PodView], messages: Sequence[str], *, keeps_nomination: bool = False
    ) -> Sequence[str]:
        for pod, message in zip(pods, messages, strict=True):
            if not keeps_nomination:
                self._nodes.withdraw_nomination(pod.uid)
            self._set_unschedulable(pod, message, self._nodes.nominated_node_of(pod.uid))
        self._index.pending_units.park(pods)
        return messages

    def _set_unschedulable(self, pod: PodView, message: str, node_name: str) -> None:
        obj = (
            None
            if (message, node_name) == (pod.unschedulable_message, pod.nominated_node)
            else self._current_object(pod)
        )
        if obj is None:
            return
        updated_pod = set_unschedulable_condition(obj, message, node_name, self._now)
        event_note = message if len(message) <= _EVENT_NOTE_MAX else message[: _EVENT_NOTE_MAX - 4] + " ..."
        is_new_message = message != pod.unschedulable_message
        events = [EventRecord(pod_key(pod), "Warning", "FailedScheduling", event_note)] if is_new_message else []
        if updated_pod is not obj:
            self._index.expect_status_write(pod)
            self.outcome.add(UpdateStatus(updated_pod), events)
        else:
            self.outcome.events += events

    def _current_object(self, pod: PodView) -> Obj | None:
        obj = self._reader.get(pod_key(pod))
        return obj if obj is not None and obj["metadata"].get("uid", "") == pod.uid else None


def _with_node(pod: Obj, node_name: str, gpu_indices: Sequence[int]) -> Obj:
    bound_pod = with_path(pod, ("spec", "nodeName"), node_name)
    if not gpu_indices:
        return bound_pod
    return with_path(bound_pod, ("metadata", "annotations", well_known.GPU_INDEX), ",".join(map(str, gpu_indices)))


def _failure_message(fit_error: Unschedulable, preemption: PreemptionFailure) -> str:
    message = fit_error.message()
    return message if message == NO_NODES else f"{message} {preemption.message}"


def _gang_message(pod: PodView, stuck_pod: PodView, message: str) -> str:
    return message if pod.shape is stuck_pod.shape else f"pod group is unschedulable: {message}"
