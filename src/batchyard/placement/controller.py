"""Placement controller: binds pods to nodes, preempts pods of lower priority, and reports why pods are unschedulable.

It has one constant key, PASS. The key's rank makes everything else that is due run first, so that all pods of a gang
exist. A pass tries the due units in order; each sees the cluster as the units before it left it. Source:
kube-scheduler's schedule_one.go, framework/preemption/executor.go.
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
from batchyard.placement.filtering import NO_NODES, ChosenNode, Unschedulable, find_node
from batchyard.placement.gang import (
    GangPlaced,
    GangPreemption,
    may_have_room,
    place_claims,
    place_gang,
    preempt_for_gang,
)
from batchyard.placement.hotswap import EvictionUnit, FollowerReservations, HotswapPass, find_hotswap
from batchyard.placement.index import KINDS, PlacementIndex, pod_key
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.preemption import (
    PodPreemption,
    PreemptionFailure,
    are_mates,
    awaits_victims,
    find_preemption,
    no_victims_failure,
)
from batchyard.placement.scheduling_queue import EquivalenceKey
from batchyard.placement.units import set_gated, set_placed, set_preempted, set_unplaced

PASS: Final = Key("Pass", "", "placement")
#: Maximum length of an Event's note.
_NOTE_MAX: Final = 1024


class PlacementController:
    """The placement index, and with Hotswap the reserved room.

    `profile` scores nodes for pods that do not name a scheduler. With `hotswap`, victims leave as whole Workloads or
    gangs, and exclusively placed Jobs get a domain with room for all their pods.
    """

    name = "placement"
    rank = 12
    kinds = KINDS

    def __init__(self, profile: AutoscalingProfile = AutoscalingProfile.BALANCED, *, hotswap: bool = False) -> None:
        self._index = PlacementIndex(profile)
        #: The room that Hotswap reserves for pods that do not exist yet.
        self._held = FollowerReservations(self._index.nodes) if hotswap else None

    def has_room_for(
        self, pods: Sequence[PodView], *, without: Iterable[str] = (), with_nodes: Iterable[NodeView] = ()
    ) -> bool:
        """Whether the pods would fit together without the pods `without` (uids) and with the extra `with_nodes`."""
        nodes = self._index.nodes
        with nodes.what_if():
            for uid in without:
                nodes.remove_pod(uid)
            for view in with_nodes:
                nodes.set_node(view)
            return isinstance(place_gang(pods, nodes, self._index.profile_of(pods[0])), GangPlaced)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of the pass if the event makes a unit due."""
        return (PASS,) if self._index.observe(event) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Run one pass."""
        self._index.recover(reader)
        swaps = None if self._held is None else HotswapPass(self._index.nodes, self._held, reader, now)
        this_pass = _Pass(self._index, reader, now, swaps)
        waiting = self._index.waiting
        waiting.start()
        while unit := waiting.next_unit():
            this_pass.try_unit(unit)
        this_pass.update_stale_conditions()
        return this_pass.outcome


class _Pass:
    """One pass: the decisions so far, as writes and Events."""

    def __init__(self, index: PlacementIndex, reader: Reader, now: Instant, swaps: HotswapPass | None) -> None:
        self._index = index
        self._swaps = swaps
        self._nodes = index.nodes
        self._reader = reader
        self._now = now
        #: The messages of units that failed in this pass, by equivalence class. Nothing in a pass frees room for later
        #: ones.
        self._failures: dict[EquivalenceKey, Sequence[str]] = {}
        self._leaving: dict[str, None] = {}
        self.outcome = ReconcileResult(independent=True)

    def try_unit(self, unit: Sequence[PodView]) -> None:
        """Bind a single pod or a whole gang, preempt for it, or park it."""
        line = self._index.waiting.line_for(unit)
        known = self._failures.get(line)
        if known is not None:
            self._park(unit, [pod.unplaced or message for pod, message in zip(unit, known, strict=True)])
            return
        if self._swaps is not None:
            messages = self._try_whole(unit, self._swaps)
        else:
            messages = self._try_pod(unit[0]) if len(unit) == 1 else self._try_gang(unit)
        if messages:
            self._failures[line] = messages

    def _try_pod(self, pod: PodView) -> Sequence[str]:
        """Bind a pod, or preempt for it; else park it and return its messages."""
        placement = find_node(pod, self._nodes, self._index.profile_of(pod))
        if isinstance(placement, ChosenNode):
            self._bind(pod, placement.node)
            return ()
        preemption = find_preemption(pod, self._nodes, placement.obstacles)
        if isinstance(preemption, PodPreemption):
            self._make_room(pod, placement, preemption)
            return ()
        return self._park((pod,), [_failure_message(placement, preemption)], keeps_room=preemption.is_under_way)

    def _try_gang(self, pods: Sequence[PodView]) -> Sequence[str]:
        """Bind all the pods of a gang, or preempt for all of them; else park them and return their messages."""
        profile = self._index.profile_of(pods[0])
        if self._is_hopeless(pods, profile):
            keeps_room = any(awaits_victims(pod, self._nodes) for pod in pods)
            return self._park(pods, [pod.unplaced for pod in pods], keeps_room=keeps_room)
        placement = place_gang(pods, self._nodes, profile)
        if isinstance(placement, GangPlaced):
            self._bind_all(pods, placement.nodes)
            return ()
        stuck, why = placement
        preemption = preempt_for_gang(pods, self._nodes, profile)
        if isinstance(preemption, GangPreemption):
            for pod in pods:
                self._reserve(pod, preemption.nodes[pod.uid], _gang_message(pod, stuck, why.message()))
            self._index.waiting.park(pods)
            for victim, preemptor in preemption.victims:
                self._evict(victim, preemptor, preemption.nodes[preemptor.uid])
            return ()
        message = _failure_message(why, preemption)
        return self._park(
            pods, [_gang_message(pod, stuck, message) for pod in pods], keeps_room=preemption.is_under_way
        )

    def _try_whole(self, pods: Sequence[PodView], swaps: HotswapPass) -> Sequence[str]:
        """With Hotswap: bind pods, leaders with room for their followers, or preempt whole Workloads for them."""
        profile = self._index.profile_of(pods[0])
        if len(pods) > 1 and self._is_hopeless(pods, profile):
            self._index.waiting.park(pods)
            return [pod.unplaced for pod in pods]
        claims = swaps.claims_of(pods)
        placement = place_claims(claims, self._nodes, profile)
        if isinstance(placement, GangPlaced):
            self._bind_all(pods, placement.nodes)
            swaps.hold(claims, placement.nodes)
            return ()
        stuck, why = placement
        if len(pods) == 1 and not (stuck.gang or claims[0].topology_key):
            preemption = find_preemption(stuck, self._nodes, why.obstacles)
            if isinstance(preemption, PodPreemption) and not any(victim.gang for victim in preemption.victims):
                self._make_room(stuck, why, preemption)
                return ()
        swap = find_hotswap(claims, self._nodes, swaps.occupant_of, profile)
        if swap is None:
            swaps.hold(claims, {})
            message = _failure_message(why, self._preemption_failure(stuck, why))
            return self._park(pods, [_gang_message(pod, stuck, message) for pod in pods])
        for pod in pods:
            self._reserve(pod, swap.nodes[pod.uid], _gang_message(pod, stuck, why.message()))
        swaps.hold(claims, swap.nodes)
        self._index.waiting.park(pods)
        most_important = max(pods, key=lambda pod: pod.priority)
        for victim in swap.victims:
            self._let_leave(victim, most_important, swaps)
        return ()

    def _make_room(self, pod: PodView, why: Unschedulable, preemption: PodPreemption) -> None:
        """Nominate the node for the pod, and evict the victims."""
        self._reserve(pod, preemption.node, why.message())
        self._index.waiting.park((pod,))
        for victim in preemption.victims:
            self._evict(victim, pod, preemption.node)

    def update_stale_conditions(self) -> None:
        """Update the PodScheduled condition of gated and bound pods whose status differs."""
        for pod in list(self._index.stale_conditions.values()):
            obj = self._current(pod)
            if obj is None or pod.uid in self._leaving:
                continue
            updated = set_placed(obj, self._now) if pod.node_name else set_gated(obj, self._now)
            if updated is obj:
                del self._index.stale_conditions[pod.uid]
            else:
                self.outcome.writes.append(UpdateStatus(updated))

    def _preemption_failure(self, stuck: PodView, why: Unschedulable) -> PreemptionFailure:
        """Return kube-scheduler's message; a generic one if victims exist for this pod but not for the whole gang."""
        found = find_preemption(stuck, self._nodes, why.obstacles)
        if isinstance(found, PreemptionFailure) and not found.is_under_way:
            return found
        return no_victims_failure(why.obstacles, len(self._nodes))

    def _is_hopeless(self, pods: Sequence[PodView], profile: AutoscalingProfile) -> bool:
        """Whether a gang that was already unschedulable still fails the quick capacity check."""
        return all(pod.unplaced for pod in pods) and not may_have_room(pods, self._nodes, profile)

    def _bind_all(self, pods: Sequence[PodView], places: Mapping[str, str]) -> None:
        """Bind pods in the order in which they were placed, so that each gets the devices computed for it."""
        by_uid = {pod.uid: pod for pod in pods}
        for uid, node_name in places.items():
            if uid in by_uid:
                self._bind(by_uid[uid], node_name)

    def _bind(self, pod: PodView, node_name: str) -> None:
        obj = self._current(pod)
        if obj is None:
            self._index.waiting.drop(pod.uid)
            return
        self._nodes.withdraw(pod.uid)
        self._index.assume(pod, node_name)
        event = EventRecord(pod_key(pod), "Normal", "Scheduled", f"Successfully assigned {pod.key} to {node_name}")
        self.outcome.add(Update(_bound(obj, node_name, self._nodes.devices_of(pod.uid))), [event])

    def _reserve(self, pod: PodView, node_name: str, message: str) -> None:
        """Nominate the node for a pod. Pods of lower priority lose their nomination there and are activated."""
        for other in list(self._nodes.nominated_to(node_name).values()):
            if other.priority < pod.priority and not are_mates(pod, other):
                self._nodes.withdraw(other.uid)
                self._index.waiting.activate(other.uid)
        self._index.nominate(pod, node_name)
        self._set_unschedulable(pod, message, node_name)

    def _let_leave(self, victim: EvictionUnit, preemptor: PodView, swaps: HotswapPass) -> None:
        """Evict the victim's Workload, or its pods if it has none."""
        workload = swaps.evict(victim, preemptor, self.outcome)
        if workload is not None:
            self._index.condemn(key_of(workload), workload["metadata"]["uid"], preemptor)
            return
        for pod in victim.pods:
            self._evict(pod, preemptor, pod.node_name)

    def _evict(self, victim: PodView, preemptor: PodView, node_name: str) -> None:
        if victim.deleting or victim.uid in self._leaving:
            return
        self._leaving[victim.uid] = None
        self._index.condemn(pod_key(victim), victim.uid, preemptor)
        obj = self._current(victim)
        if obj is None or not obj["spec"].get("nodeName"):
            return  # bound in this pass: the next pass evicts it
        updated = set_preempted(obj, preemptor.scheduler, self._now)
        if updated is not obj:
            self.outcome.writes.append(UpdateStatus(updated))
        message = f"Preempted by pod {preemptor.uid} on node {node_name}"
        gone = Delete(pod_key(victim), uid=victim.uid)
        self.outcome.add(gone, [EventRecord(pod_key(victim), "Normal", "Preempted", message)])

    def _park(self, pods: Sequence[PodView], messages: Sequence[str], *, keeps_room: bool = False) -> Sequence[str]:
        """Park the pods until a relevant change; withdraw nominations unless `keeps_room`. Return the messages."""
        for pod, message in zip(pods, messages, strict=True):
            if not keeps_room:
                self._nodes.withdraw(pod.uid)
            self._set_unschedulable(pod, message, self._nodes.nomination_of(pod.uid))
        self._index.waiting.park(pods)
        return messages

    def _set_unschedulable(self, pod: PodView, message: str, nominated: str) -> None:
        obj = None if (message, nominated) == (pod.unplaced, pod.nominated) else self._current(pod)
        if obj is None:
            return
        updated = set_unplaced(obj, message, nominated, self._now)
        note = message if len(message) <= _NOTE_MAX else message[: _NOTE_MAX - 4] + " ..."
        is_news = message != pod.unplaced
        events = [EventRecord(pod_key(pod), "Warning", "FailedScheduling", note)] if is_news else []
        if updated is not obj:
            self._index.expect(pod)
            self.outcome.add(UpdateStatus(updated), events)
        else:
            self.outcome.events += events

    def _current(self, pod: PodView) -> Obj | None:
        """Return the pod's object; None if it was deleted or replaced."""
        obj = self._reader.get(pod_key(pod))
        return obj if obj is not None and obj["metadata"].get("uid", "") == pod.uid else None


def _bound(pod: Obj, node_name: str, gpus: Sequence[int]) -> Obj:
    """Return the pod bound to a node; GPU shares are written as an annotation in the same write."""
    bound = with_path(pod, ("spec", "nodeName"), node_name)
    if not gpus:
        return bound
    return with_path(bound, ("metadata", "annotations", well_known.GPU_INDEX), ",".join(map(str, gpus)))


def _failure_message(why: Unschedulable, preemption: PreemptionFailure) -> str:
    """Return why a pod does not fit, and why preemption does not help."""
    message = why.message()
    return message if message == NO_NODES else f"{message} {preemption.message}"


def _gang_message(pod: PodView, stuck: PodView, message: str) -> str:
    """Return the message for a pod of a gang; pods of another shape than the stuck pod get a prefixed one."""
    return message if pod.shape is stuck.shape else f"pod group is unschedulable: {message}"
