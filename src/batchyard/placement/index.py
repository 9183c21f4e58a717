"""Index of the placement controller: the cluster snapshot and the scheduling queue, built from watch events.

A binding is counted at once (assumed) and confirmed by the pod's watch event. A write that is still unconfirmed when
all writes have completed has failed: `recover_failed_writes` reads its object again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.views.node import namespace_labels, node_view
from batchyard.api.views.pods import PodView, is_terminating, pod_view
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.gpu_policies import GpuPolicy, NodeScoring
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.scheduling_queue import SchedulingQueue
from batchyard.placement.units import GATED
from batchyard.scheduling.workload.lifecycle import is_evicted

KINDS: Final = (scheme.POD, scheme.NODE, scheme.NAMESPACE, scheme.POD_DISRUPTION_BUDGET)
#: The kinds whose changes may help pods with claims.
VOLUME_KINDS: Final = (scheme.PERSISTENT_VOLUME_CLAIM, scheme.PERSISTENT_VOLUME, scheme.STORAGE_CLASS)
#: The scheduler names that this controller serves, each with its scoring profile; None for the cluster's profile.
_PROFILE_BY_SCHEDULER: Final[Mapping[str, AutoscalingProfile | None]] = {
    "default-scheduler": None,
    "gke.io/optimize-utilization-scheduler": AutoscalingProfile.OPTIMIZE_UTILIZATION,
}
_DELETED: Final = EventType.DELETED


class RecordedVictim(NamedTuple):
    """A pod or Workload whose eviction was written, with the uid of the preempting pod."""

    key: Key
    uid: str
    preemptor: str


class PlacementIndex:
    """The state of the placement controller: cluster snapshot, scheduling queue and unconfirmed writes."""

    def __init__(self, profile: NodeScoring) -> None:
        self._profile = profile
        self.nodes = ClusterSnapshot()
        self.pending_units = SchedulingQueue(self.nodes)
        #: Pods whose PodScheduled condition must be updated: gated or bound.
        self.pods_with_stale_conditions: dict[str, PodView] = {}
        #: Pods with a write that no watch event has confirmed yet.
        self._unconfirmed: dict[str, Key] = {}
        self._unconfirmed_victims: list[RecordedVictim] = []
        #: The uids of the pending pods by namespace and name of a claim that they use.
        self._claimants: dict[tuple[str, str], dict[str, None]] = {}
        self._handlers: dict[str, Callable[[WatchEvent], None]] = {
            scheme.POD: self._on_pod,
            scheme.NODE: self._on_node,
            scheme.NAMESPACE: self._on_namespace,
            scheme.POD_DISRUPTION_BUDGET: self._on_disruption_budget,
            **dict.fromkeys(VOLUME_KINDS, self._on_volume_change),
        }

    def observe(self, event: WatchEvent) -> bool:
        """Apply a watch event; return whether a placement pass is due."""
        self._handlers[event.key.kind](event)
        return self.pending_units.has_work or bool(self.pods_with_stale_conditions) or bool(self._unconfirmed_victims)

    def profile_of(self, pod: PodView) -> NodeScoring:
        """Return the node scoring profile for a pod, by its scheduler name."""
        return _PROFILE_BY_SCHEDULER[pod.scheduler] or self._profile

    # --- decisions that count at once ---

    def assume(self, pod: PodView, node_name: str) -> None:
        """Count a pod on its node before a watch event confirms its binding, like kube-scheduler's assume."""
        self.pending_units.drop(pod.uid)
        self._forget_claimant(pod)
        self._place_on_node(pod, node_name, self._choose_gpus(pod, node_name))
        self._unconfirmed[pod.uid] = pod_key(pod)

    def _choose_gpus(self, pod: PodView, node_name: str) -> Sequence[int]:
        """Return the indices of the GPUs that a GPU placement policy chooses for a pod; () without such a policy."""
        profile, node = self.profile_of(pod), self.nodes.get(node_name)
        if not (pod.shape.gpu_milli and isinstance(profile, GpuPolicy) and node is not None):
            return ()
        return profile.choose_gpus(pod.shape, node)

    def nominate(self, pod: PodView, node_name: str) -> None:
        """Nominate a node for a pod before a watch event confirms the status write."""
        self.nodes.nominate(pod, node_name)
        self._unconfirmed[pod.uid] = pod_key(pod)

    def expect_status_write(self, pod: PodView) -> None:
        """Record that a pod's status write awaits its watch event; if the event does not come, the pod is retried."""
        self._unconfirmed[pod.uid] = pod_key(pod)

    def record_eviction(self, victim: Key, uid: str, preemptor: PodView) -> None:
        """Record the eviction of a pod or Workload for the preempting pod, which is retried if the eviction fails."""
        self._unconfirmed_victims.append(RecordedVictim(victim, uid, preemptor.uid))

    def recover_failed_writes(self, reader: Reader) -> None:
        """Read the objects of unconfirmed writes again, and retry the pods that still need a node.

        All writes must have completed.
        """
        unconfirmed_pods, self._unconfirmed = self._unconfirmed, {}
        for uid, key in unconfirmed_pods.items():
            obj = reader.get(key)
            if obj is None or obj["metadata"].get("uid", "") != uid:
                self._forget_pod(uid)
            else:
                self._sync_pod(pod_view(obj))
                self.pending_units.activate(uid)
        unconfirmed_victims, self._unconfirmed_victims = self._unconfirmed_victims, []
        for victim in unconfirmed_victims:
            obj = reader.get(victim.key)
            if obj is None or obj["metadata"].get("uid") != victim.uid:
                continue
            if not (is_terminating(obj) or is_evicted(obj)):
                self.pending_units.activate(victim.preemptor)

    # --- events ---

    def _on_node(self, event: WatchEvent) -> None:
        if event.type is _DELETED:
            self.nodes.remove_node(event.key.name)
        else:
            self.nodes.set_node(node_view(event.obj))

    def _on_disruption_budget(self, event: WatchEvent) -> None:
        if event.type is _DELETED:
            self.nodes.budgets.remove(event.key)
        else:
            self.nodes.budgets.set(event.obj)

    def _on_namespace(self, event: WatchEvent) -> None:
        namespaces, name = self.nodes.namespaces, event.key.name
        old_labels = namespaces.pop(name, None)
        if event.type is not _DELETED:
            namespaces[name] = namespace_labels(event.obj)
        if namespaces.get(name) != old_labels:
            self.pending_units.record_namespace_change()

    def _on_volume_change(self, event: WatchEvent) -> None:
        """Retry the pods of a changed claim, of the claim that a changed volume is for, or all pods with claims."""
        claim = event.key
        if claim.kind == scheme.PERSISTENT_VOLUME:
            reference = event.obj["spec"].get("claimRef") or {}
            claim = claim._replace(namespace=reference.get("namespace", ""), name=reference.get("name", ""))
        if claim.kind == scheme.STORAGE_CLASS or not claim.name:
            uids = dict.fromkeys(uid for users in self._claimants.values() for uid in users)
        else:
            uids = self._claimants.get((claim.namespace, claim.name), {})
        for uid in uids:
            self.pending_units.activate(uid)

    def _forget_claimant(self, pod: PodView) -> None:
        for name in pod.volume_claims:
            users = self._claimants.get((pod.namespace, name), {})
            users.pop(pod.uid, None)
            if not users:
                self._claimants.pop((pod.namespace, name), None)

    def _on_pod(self, event: WatchEvent) -> None:
        view = pod_view(event.obj)
        self._unconfirmed.pop(view.uid, None)
        self._forget_claimant(view)
        if event.type is _DELETED:
            self._forget_pod(view.uid)
        else:
            self._sync_pod(view)

    def _sync_pod(self, pod: PodView) -> None:
        self.pods_with_stale_conditions.pop(pod.uid, None)
        if pod.is_terminal or (pod.scheduler not in _PROFILE_BY_SCHEDULER and not pod.node_name):
            self._forget_pod(pod.uid)
        elif pod.node_name:
            self._on_bound_pod(pod)
        elif pod.deleting or pod.gated:
            self._forget_pod(pod.uid)
            if not pod.deleting and pod.unscheduled_reason != GATED:
                self.pods_with_stale_conditions[pod.uid] = pod
        else:
            self._on_pending_pod(pod)

    def _on_bound_pod(self, pod: PodView) -> None:
        if self.pending_units.get(pod.uid) is not None:
            self.pending_units.drop(pod.uid)
            self.nodes.withdraw_nomination(pod.uid)
        self._place_on_node(pod, pod.node_name)
        if pod.unscheduled_reason or pod.nominated_node:
            self.pods_with_stale_conditions[pod.uid] = pod

    def _on_pending_pod(self, pod: PodView) -> None:
        previous_revision = self.pending_units.get(pod.uid)
        self._remove_from_node(pod.uid)
        is_nomination_unchanged = self.nodes.nominated_node_of(pod.uid) == pod.nominated_node
        if not is_nomination_unchanged:
            self.nodes.withdraw_nomination(pod.uid)
            if pod.nominated_node:
                self.nodes.nominate(pod, pod.nominated_node)
        if previous_revision is not None and is_nomination_unchanged and _has_same_requirements(pod, previous_revision):
            self.pending_units.refresh(pod)
        else:
            self.pending_units.add(pod)
        for name in pod.volume_claims:
            self._claimants.setdefault((pod.namespace, name), {})[pod.uid] = None

    def _forget_pod(self, uid: str) -> None:
        self._remove_from_node(uid)
        self.pods_with_stale_conditions.pop(uid, None)
        self.pending_units.drop(uid)
        self.nodes.withdraw_nomination(uid)

    def _place_on_node(self, pod: PodView, node_name: str, gpu_indices: Sequence[int] = ()) -> None:
        previous_revision = self.nodes.pod(pod.uid)
        if (
            previous_revision is not None
            and self.nodes.node_name_of(pod.uid) == node_name
            and _has_same_requirements(pod, previous_revision)
        ):
            self.nodes.update_pod(pod)
            if pod.deleting == previous_revision.deleting:
                return
        else:
            if previous_revision is not None:
                self.pending_units.record_relabeled_pod(previous_revision)
            self.nodes.add_pod(pod, node_name, gpu_indices)
        self.pending_units.record_moved_pod(pod, not pod.deleting)

    def _remove_from_node(self, uid: str) -> None:
        previous_revision = self.nodes.pod(uid)
        if previous_revision is not None:
            self.nodes.remove_pod(uid)
            for name in previous_revision.volume_claims:
                for waiting_uid in self._claimants.get((previous_revision.namespace, name), ()):
                    self.pending_units.activate(waiting_uid)
            self.pending_units.record_moved_pod(previous_revision, False)


def pod_key(pod: PodView) -> Key:
    """Return the object key of a pod."""
    return Key(scheme.POD, pod.namespace, pod.name)


def _has_same_requirements(pod: PodView, previous_revision: PodView) -> bool:
    return (
        pod.shape is previous_revision.shape
        and pod.labels == previous_revision.labels
        and (pod.priority, pod.may_preempt, pod.gang)
        == (previous_revision.priority, previous_revision.may_preempt, previous_revision.gang)
    )
