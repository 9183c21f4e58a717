"""Invariants of pods in queues: groups start whole, and no finalizer outlives the Workload of its pod."""

from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, finalizers_of, key_of
from batchyard.api.views import pods, queued_pods
from batchyard.api.views.workload import workload_view
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.workload import lifecycle
from batchyard.sim.invariants.invariant import Invariant, WorldView

_DELETED: Final = EventType.DELETED


class PodGroupsStartWhole(Invariant):
    """Invariant: all pods of a group lose the gate of their admission together, when their Workload is admitted."""

    name = "pod_groups_start_whole"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        #: The groups with changes at this instant, by the key of their Workload.
        self._changed: dict[Key, None] = {}

    def check_event(self, event: WatchEvent) -> None:
        """Record the group of a changed pod."""
        if event.key.kind == scheme.POD and event.type is not _DELETED and pods.is_in_queue(event.obj):
            name = queued_pods.group_name(event.obj)
            if name:
                self._changed[Key(scheme.WORKLOAD, event.key.namespace, name)] = None

    def end_instant(self) -> None:
        """Check that no pod of an admitted group waits, and that no pod of another group runs."""
        for key in self._changed:
            workload = self.world_view.world.client.get(key)
            if workload is None or not lifecycle.is_group_workload(workload) or workload_view(workload).finished:
                continue
            is_admitted = workload_view(workload).admitted
            for pod in self._live_owners(workload):
                if is_admitted and queued_pods.has_admission_gate(pod):
                    self.violate(f"pod {key_of(pod)} waits, but group {key} is admitted", key, key_of(pod))
                if not is_admitted and pods.phase(pod) == pods.RUNNING:
                    self.violate(f"pod {key_of(pod)} runs, but group {key} is not admitted", key, key_of(pod))
        self._changed.clear()

    def _live_owners(self, workload: Obj) -> list[Obj]:
        client, namespace = self.world_view.world.client, workload["metadata"]["namespace"]
        owners = [
            client.get(Key(scheme.POD, namespace, owner["name"])) for owner in workload["metadata"]["ownerReferences"]
        ]
        return [pod for pod in owners if pod is not None and not pods.is_terminating(pod) and not pods.is_terminal(pod)]


class GatesAreKeptUntilAdmission(Invariant):
    """Invariant: a pod in a queue loses the gate of its admission only when its Workload is admitted."""

    name = "gates_are_kept_until_admission"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        #: The uids of the pods that lost the gate at this instant: a StatefulSet may replace a pod of the same name.
        self._released: dict[Key, str] = {}

    def check_event(self, event: WatchEvent) -> None:
        """Record a pod that lost the gate."""
        if event.key.kind != scheme.POD or event.type is _DELETED or event.old is None:
            return
        if queued_pods.has_admission_gate(event.old) and not queued_pods.has_admission_gate(event.obj):
            self._released[event.key] = event.obj["metadata"]["uid"]

    def end_instant(self) -> None:
        """Check that the Workloads of these pods are admitted, unless the pods are being deleted."""
        client = self.world_view.world.client
        for key, uid in self._released.items():
            pod = client.get(key)
            if pod is None or pods.is_terminating(pod) or pods.is_terminal(pod) or pod["metadata"]["uid"] != uid:
                continue
            if not any(workload_view(each).admitted for each in _workloads_of(pod, self.world_view)):
                self.violate(f"pod {key} lost its gate, but its Workload is not admitted", key)
        self._released.clear()


def _workloads_of(pod: Obj, world_view: WorldView) -> list[Obj]:
    """Return the Workload of a pod's group and those that the pod owns."""
    client, metadata = world_view.world.client, pod["metadata"]
    name = queued_pods.group_name(pod)
    workload = client.get(Key(scheme.WORKLOAD, metadata["namespace"], name)) if name else None
    owned = client.owned_by(metadata["uid"], metadata["namespace"])
    return [each for each in (workload, *owned) if each is not None and each["kind"] == "Workload"]


class PodFinalizersEnd(Invariant):
    """Invariant: at the end, no ended or deleted pod has the finalizer of pods in queues without a Workload for it."""

    name = "pod_finalizers_end"

    def finish(self) -> None:
        """Check the pods that have ended or are being deleted."""
        for pod in self.world_view.world.objects(scheme.POD):
            has_ended = pods.is_terminal(pod) or (pods.is_terminating(pod) and not pods.bound_node(pod))
            if has_ended and well_known.MANAGED in finalizers_of(pod) and not self._has_workload(pod):
                self.violate(f"pod {key_of(pod)} has ended without a Workload, but keeps its finalizer", key_of(pod))

    def _has_workload(self, pod: Obj) -> bool:
        return any(not workload_view(each).finished for each in _workloads_of(pod, self.world_view))
