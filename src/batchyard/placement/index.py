"""Index of the placement controller: the cluster snapshot and the scheduling queue, built from watch events.

A bound pod counts on its node at once (assume); its watch event confirms it. A write that is unconfirmed when all
writes have completed has failed: `recover` reads its object again.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.views.node import namespace_labels, node_view
from batchyard.api.views.pods import PodView, is_terminating, pod_view
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.scheduling_queue import SchedulingQueue
from batchyard.placement.units import GATED
from batchyard.scheduling.workload.lifecycle import is_evicted

KINDS: Final = (scheme.POD, scheme.NODE, scheme.NAMESPACE, scheme.POD_DISRUPTION_BUDGET)
#: The scheduler names that this one serves, each with its profile; None: the cluster's.
_SCHEDULERS: Final[Mapping[str, AutoscalingProfile | None]] = {
    "default-scheduler": None,
    "gke.io/optimize-utilization-scheduler": AutoscalingProfile.OPTIMIZE_UTILIZATION,
}
_DELETED: Final = EventType.DELETED


class Victim(NamedTuple):
    """A pod or Workload whose eviction was written, and the uid of the preemptor."""

    key: Key
    uid: str
    preemptor: str


class PlacementIndex:
    """Cluster snapshot, scheduling queue and unconfirmed writes."""

    def __init__(self, profile: AutoscalingProfile) -> None:
        self._profile = profile
        self.nodes = ClusterSnapshot()
        self.waiting = SchedulingQueue(self.nodes)
        #: Pods whose PodScheduled condition must be updated: gated or bound.
        self.stale_conditions: dict[str, PodView] = {}
        #: Pods with a write that no watch event has confirmed yet.
        self._unconfirmed: dict[str, Key] = {}
        self._victims: list[Victim] = []
        self._handlers: dict[str, Callable[[WatchEvent], None]] = {
            scheme.POD: self._on_pod,
            scheme.NODE: self._on_node,
            scheme.NAMESPACE: self._on_namespace,
            scheme.POD_DISRUPTION_BUDGET: self._on_budget,
        }

    def observe(self, event: WatchEvent) -> bool:
        """Apply a watch event; return whether a pass is needed."""
        self._handlers[event.key.kind](event)
        return self.waiting.has_work or bool(self.stale_conditions) or bool(self._victims)

    def profile_of(self, pod: PodView) -> AutoscalingProfile:
        """Return the scoring profile for a pod."""
        return _SCHEDULERS[pod.scheduler] or self._profile

    # --- decisions that count at once ---

    def assume(self, pod: PodView, node_name: str) -> None:
        """Count a pod on its node before the binding is confirmed."""
        self.waiting.drop(pod.uid)
        self._place(pod, node_name)
        self._unconfirmed[pod.uid] = pod_key(pod)

    def nominate(self, pod: PodView, node_name: str) -> None:
        """Nominate a pod before the write is confirmed."""
        self.nodes.nominate(pod, node_name)
        self._unconfirmed[pod.uid] = pod_key(pod)

    def expect(self, pod: PodView) -> None:
        """Expect confirmation of a status write; if that fails, the pod is tried again."""
        self._unconfirmed[pod.uid] = pod_key(pod)

    def condemn(self, victim: Key, uid: str, preemptor: PodView) -> None:
        """Record the eviction of a pod or a Workload for a preemptor."""
        self._victims.append(Victim(victim, uid, preemptor.uid))

    def recover(self, reader: Reader) -> None:
        """After all writes have completed, reread the objects of unconfirmed ones and activate their pods."""
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for uid, key in unconfirmed.items():
            obj = reader.get(key)
            if obj is None or obj["metadata"].get("uid", "") != uid:
                self._forget(uid)
            else:
                self._sync(pod_view(obj))
                self.waiting.activate(uid)
        victims, self._victims = self._victims, []
        for victim in victims:
            obj = reader.get(victim.key)
            if obj is None or obj["metadata"].get("uid") != victim.uid:
                continue
            if not (is_terminating(obj) or is_evicted(obj)):
                self.waiting.activate(victim.preemptor)

    # --- events ---

    def _on_node(self, event: WatchEvent) -> None:
        if event.type is _DELETED:
            self.nodes.remove_node(event.key.name)
        else:
            self.nodes.set_node(node_view(event.obj))

    def _on_budget(self, event: WatchEvent) -> None:
        if event.type is _DELETED:
            self.nodes.budgets.remove(event.key)
        else:
            self.nodes.budgets.set(event.obj)

    def _on_namespace(self, event: WatchEvent) -> None:
        namespaces, name = self.nodes.namespaces, event.key.name
        before = namespaces.pop(name, None)
        if event.type is not _DELETED:
            namespaces[name] = namespace_labels(event.obj)
        if namespaces.get(name) != before:
            self.waiting.note_namespaces()

    def _on_pod(self, event: WatchEvent) -> None:
        view = pod_view(event.obj)
        self._unconfirmed.pop(view.uid, None)
        if event.type is _DELETED:
            self._forget(view.uid)
        else:
            self._sync(view)

    def _sync(self, pod: PodView) -> None:
        """Put a pod where its current state belongs: bound, pending, gated or ignored."""
        self.stale_conditions.pop(pod.uid, None)
        if pod.is_terminal or (pod.scheduler not in _SCHEDULERS and not pod.node_name):
            self._forget(pod.uid)
        elif pod.node_name:
            self._on_bound(pod)
        elif pod.deleting or pod.gated:
            self._forget(pod.uid)
            if not pod.deleting and pod.unscheduled != GATED:
                self.stale_conditions[pod.uid] = pod
        else:
            self._on_waiting(pod)

    def _on_bound(self, pod: PodView) -> None:
        if self.waiting.get(pod.uid) is not None:
            self.waiting.drop(pod.uid)
            self.nodes.withdraw(pod.uid)
        self._place(pod, pod.node_name)
        if pod.unscheduled or pod.nominated:
            self.stale_conditions[pod.uid] = pod

    def _on_waiting(self, pod: PodView) -> None:
        known = self.waiting.get(pod.uid)
        self._remove(pod.uid)
        is_held_as_before = self.nodes.nomination_of(pod.uid) == pod.nominated
        if not is_held_as_before:
            self.nodes.withdraw(pod.uid)
            if pod.nominated:
                self.nodes.nominate(pod, pod.nominated)
        if known is not None and is_held_as_before and _asks_for_the_same(pod, known):
            self.waiting.refresh(pod)
        else:
            self.waiting.add(pod)

    def _forget(self, uid: str) -> None:
        """Remove a pod that no longer concerns placement."""
        self._remove(uid)
        self.stale_conditions.pop(uid, None)
        self.waiting.drop(uid)
        self.nodes.withdraw(uid)

    def _place(self, pod: PodView, node_name: str) -> None:
        """Count a pod on a node, whether it is new there or not."""
        known = self.nodes.pod(pod.uid)
        if known is not None and self.nodes.place_of(pod.uid) == node_name and _asks_for_the_same(pod, known):
            self.nodes.update_pod(pod)
            if pod.deleting == known.deleting:
                return
        else:
            if known is not None:
                self.waiting.note_relabelled(known)
            self.nodes.add_pod(pod, node_name)
        self.waiting.note_moved(pod, not pod.deleting)

    def _remove(self, uid: str) -> None:
        """Remove a pod from its node."""
        known = self.nodes.pod(uid)
        if known is not None:
            self.nodes.remove_pod(uid)
            self.waiting.note_moved(known, False)


def pod_key(pod: PodView) -> Key:
    """Return the key of a pod."""
    return Key(scheme.POD, pod.namespace, pod.name)


def _asks_for_the_same(pod: PodView, known: PodView) -> bool:
    """Whether two revisions of a pod have the same requirements."""
    return (
        pod.shape is known.shape
        and pod.labels == known.labels
        and (pod.priority, pod.may_preempt, pod.gang) == (known.priority, known.may_preempt, known.gang)
    )
