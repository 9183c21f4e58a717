"""The controller of PersistentVolumeClaims and PersistentVolumes: binding, provisioning, reclaiming, protection.

A claim that waits for its first consumer gets a volume when a pod with the claim is assigned to a node, for which the
scheduler has checked that a volume exists or can be provisioned. Sources:
pkg/controller/volume/{persistentvolume,pvcprotection,pvprotection} of Kubernetes.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from batchyard.api import meta, scheme
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pod_shape import claim_names
from batchyard.api.views.pods import bound_node, is_terminal
from batchyard.api.views.volumes import storage_class_name
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.volumes import binding
from batchyard.volumes.admission import PROVISIONER, find_default_class, needs_default_class
from batchyard.volumes.binding import CLAIM_FINALIZER, VOLUME_FINALIZER

_CLAIM: Final = scheme.PERSISTENT_VOLUME_CLAIM
_VOLUME: Final = scheme.PERSISTENT_VOLUME
_DELETED: Final = EventType.DELETED
_WAIT_FOR_CONSUMER: Final = "WaitForFirstConsumer"


class VolumeController:
    """Controller of claims and volumes, with the claims without a volume, and the pods that use each claim."""

    name = "persistentvolume-controller"
    rank = 0
    kinds = (_CLAIM, _VOLUME, scheme.STORAGE_CLASS, scheme.POD)

    def __init__(self, *, with_nodes: bool, has_folders: bool) -> None:
        """Create the controller; with `has_folders`, a node deletes the folders of released volumes."""
        self._with_nodes = with_nodes
        self._has_folders = has_folders
        self._unbound: dict[meta.Key, None] = {}
        #: The pods that use a claim, by the key of the claim.
        self._users: dict[meta.Key, dict[meta.Key, None]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the keys of the claims and volumes that a change may affect."""
        match event.key.kind:
            case scheme.POD:
                return self.observe_pod(event)
            case scheme.STORAGE_CLASS:
                return list(self._unbound)
            case scheme.PERSISTENT_VOLUME:
                return self._keys_of_volume(event)
        name = event.obj["spec"].get("volumeName")
        is_unbound = event.type is not _DELETED and meta.annotation(event.obj, binding.BIND_COMPLETED) is None
        if is_unbound:
            self._unbound[event.key] = None
        else:
            self._unbound.pop(event.key, None)
        return (event.key, meta.Key(_VOLUME, "", name)) if name else (event.key,)

    def _keys_of_volume(self, event: WatchEvent) -> Iterable[meta.Key]:
        reference = event.obj["spec"].get("claimRef")
        if reference:
            return (event.key, meta.Key(_CLAIM, reference.get("namespace", ""), reference.get("name", "")))
        return (event.key, *self._unbound)

    def observe_pod(self, event: WatchEvent) -> Iterable[meta.Key]:
        """Update the users of claims by a change of a pod; return the claims that the pod uses."""
        keys = [meta.Key(_CLAIM, event.key.namespace, name) for name in claim_names(event.obj["spec"])]
        if not keys:
            return ()
        for key in keys:
            if event.type is _DELETED:
                users = self._users.get(key, {})
                users.pop(event.key, None)
                if not users:
                    self._users.pop(key, None)
            else:
                self._users.setdefault(key, {})[event.key] = None
        has_same_use = event.old is not None and _use_of(event.old) == _use_of(event.obj)
        return () if has_same_use and event.type is not _DELETED else keys

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Bind or provision for a claim, update a volume's phase, or remove the finalizer of an unused object."""
        obj = reader.get(key)
        if obj is None:
            return ReconcileResult()
        if key.kind == _VOLUME:
            return self._sync_volume(obj, reader)
        if "deletionTimestamp" in obj["metadata"]:
            return self._release_claim(obj, reader)
        if CLAIM_FINALIZER not in (obj["metadata"].get("finalizers") or ()):
            return ReconcileResult([Update(meta.with_finalizer(obj, CLAIM_FINALIZER))])
        if meta.annotation(obj, binding.BIND_COMPLETED) is not None:
            return _sync_bound_claim(obj, reader)
        return self._sync_unbound_claim(obj, reader)

    # Claims.

    def _release_claim(self, claim: meta.Obj, reader: Reader) -> ReconcileResult:
        """Remove the finalizer of a deleted claim that no assigned pod uses; even a pod that has ended uses it."""
        is_used = any(self._is_assigned(pod) for pod in self._pods_of(claim, reader))
        if CLAIM_FINALIZER not in (claim["metadata"].get("finalizers") or ()) or is_used:
            return ReconcileResult()
        return ReconcileResult([Update(meta.without_finalizer(claim, CLAIM_FINALIZER))])

    def _pods_of(self, claim: meta.Obj, reader: Reader) -> Sequence[meta.Obj]:
        """Return the pods that use a claim."""
        return [pod for key in self._users.get(meta.key_of(claim), ()) if (pod := reader.get(key)) is not None]

    def _is_assigned(self, pod: meta.Obj) -> bool:
        return bool(bound_node(pod)) or not self._with_nodes

    def _sync_unbound_claim(self, claim: meta.Obj, reader: Reader) -> ReconcileResult:
        name = claim["spec"].get("volumeName")
        if name:
            return _bind_named_volume(claim, reader.get(meta.Key(_VOLUME, "", name)))
        pods = [pod for pod in self._pods_of(claim, reader) if not is_terminal(pod)]
        scheduled = [pod for pod in pods if self._is_assigned(pod)]
        waits = binding.waits_for_consumer(claim, reader)
        if waits and not scheduled:
            return _waiting_result(claim, pods)
        node = reader.get(meta.Key(scheme.NODE, "", bound_node(scheduled[0]))) if waits else None
        selected_node = None if node is None else node_view(node)
        volume = binding.find_volume(claim, reader.list(_VOLUME), selected_node)
        if volume is not None:
            return _bind(volume, claim)
        if needs_default_class(claim):
            default = find_default_class(reader.list(scheme.STORAGE_CLASS))
            if default is not None:
                named = meta.with_path(claim, ("spec", "storageClassName"), default["metadata"]["name"])
                return ReconcileResult([Update(named)])
        return _provision_if_possible(claim, reader, selected_node)

    # Volumes.

    def _sync_volume(self, volume: meta.Obj, reader: Reader) -> ReconcileResult:
        if "deletionTimestamp" in volume["metadata"] and binding.phase_of(volume) != binding.BOUND:
            return self._release_volume(volume)
        if "deletionTimestamp" not in volume["metadata"]:
            protected = meta.with_finalizer(volume, VOLUME_FINALIZER)
            if protected is not volume:
                return ReconcileResult([Update(protected)])
        reference = volume["spec"].get("claimRef")
        if not reference or not reference.get("uid"):
            return _volume_phase_result(volume, binding.AVAILABLE)
        claim = reader.get(meta.Key(_CLAIM, reference.get("namespace", ""), reference.get("name", "")))
        if claim is None or claim["metadata"]["uid"] != reference["uid"]:
            return _reclaim(volume)
        name = claim["spec"].get("volumeName")
        if not name:
            return ReconcileResult()  # the claim's own reconcile completes the binding
        if name == volume["metadata"]["name"]:
            return _volume_phase_result(volume, binding.BOUND)
        if binding.is_folder(volume) and _reclaim_policy(volume) == "Delete":
            return _reclaim(volume)
        if meta.annotation(volume, binding.BOUND_BY_CONTROLLER) is not None:
            return ReconcileResult([Update(binding.unbound_volume(volume))])
        return ReconcileResult()

    def _release_volume(self, volume: meta.Obj) -> ReconcileResult:
        finalizers = volume["metadata"].get("finalizers") or ()
        if VOLUME_FINALIZER in finalizers:
            return ReconcileResult([Update(meta.without_finalizer(volume, VOLUME_FINALIZER))])
        if binding.FOLDER_FINALIZER in finalizers and not self._has_folders:
            return ReconcileResult([Update(meta.without_finalizer(volume, binding.FOLDER_FINALIZER))])
        return ReconcileResult()


def _use_of(pod: meta.Obj) -> tuple[str, bool]:
    return bound_node(pod), is_terminal(pod)


def _event_result(claim: meta.Obj, event_type: str, reason: str, message: str) -> ReconcileResult:
    return ReconcileResult(events=[EventRecord(meta.key_of(claim), event_type, reason, message)])


def _waiting_result(claim: meta.Obj, pods: Sequence[meta.Obj]) -> ReconcileResult:
    names = ",".join(pod["metadata"]["name"] for pod in pods)
    if not pods:
        message = "waiting for first consumer to be created before binding"
        return _event_result(claim, "Normal", _WAIT_FOR_CONSUMER, message)
    noun = "pod" if len(pods) == 1 else "pods"
    return _event_result(claim, "Normal", "WaitForPodScheduled", f"waiting for {noun} {names} to be scheduled")


def _bind_named_volume(claim: meta.Obj, volume: meta.Obj | None) -> ReconcileResult:
    if volume is None:
        return ReconcileResult()
    name = volume["metadata"]["name"]
    if not volume["spec"].get("claimRef"):
        mismatch = binding.mismatch_of(volume, claim)
        if mismatch:
            message = f'Cannot bind to requested volume "{name}": {mismatch}'
            return _event_result(claim, "Warning", "VolumeMismatch", message)
        return _bind(volume, claim)
    if binding.is_reserved_for(volume, claim):
        return _bind(volume, claim)
    message = f'volume "{name}" already bound to a different claim.'
    return _event_result(claim, "Warning", "FailedBinding", message)


def _bind(volume: meta.Obj, claim: meta.Obj) -> ReconcileResult:
    """Make the next step of a binding: reference to the claim, name of the volume, then both statuses."""
    new_volume = binding.bound_volume(volume, claim)
    if new_volume is not volume:
        return ReconcileResult([Update(new_volume)])
    new_claim = binding.bound_claim(claim, volume)
    if new_claim is not claim:
        return ReconcileResult([Update(new_claim)])
    writes: list[Write] = []
    if binding.phase_of(volume) != binding.BOUND:
        writes.append(UpdateStatus(meta.with_status(volume, {**(volume.get("status") or {}), "phase": binding.BOUND})))
    status = binding.bound_claim_status(claim, volume)
    if status != claim.get("status"):
        writes.append(UpdateStatus(meta.with_status(claim, status)))
    return ReconcileResult(writes, independent=True)


def _sync_bound_claim(claim: meta.Obj, reader: Reader) -> ReconcileResult:
    name = claim["spec"].get("volumeName")
    if not name:
        message = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
        return _lost_result(claim, "ClaimLost", message)
    volume = reader.get(meta.Key(_VOLUME, "", name))
    if volume is None:
        message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
        return _lost_result(claim, "ClaimLost", message)
    reference = volume["spec"].get("claimRef")
    if not reference or reference.get("uid") == claim["metadata"]["uid"]:
        return _bind(volume, claim)
    message = "Two claims are bound to the same volume, this one is bound incorrectly"
    return _lost_result(claim, "ClaimMisbound", message)


def _lost_result(claim: meta.Obj, reason: str, message: str) -> ReconcileResult:
    if binding.phase_of(claim) == binding.LOST:
        return ReconcileResult()
    status = UpdateStatus(meta.with_status(claim, {"phase": binding.LOST}))
    return ReconcileResult([status], [EventRecord(meta.key_of(claim), "Warning", reason, message)])


def _provision_if_possible(claim: meta.Obj, reader: Reader, node: NodeView | None) -> ReconcileResult:
    """Provision a volume for a claim that no volume suits, or report why this is impossible."""
    class_name, storage_class = storage_class_name(claim), binding.storage_class_of(claim, reader)
    if not class_name:
        message = "no persistent volumes available for this claim and no storage class is set"
        return _event_result(claim, "Normal", "FailedBinding", message)
    if storage_class is None:
        message = f'storageclass.storage.k8s.io "{class_name}" not found'
        return _event_result(claim, "Warning", "ProvisioningFailed", message)
    return _provision(claim, storage_class, node)


def _provision(claim: meta.Obj, storage_class: meta.Obj, node: NodeView | None) -> ReconcileResult:
    provisioner: str = storage_class["provisioner"]
    named = binding.with_provisioner(claim, provisioner, node)
    if named is not claim:
        return ReconcileResult([Update(named)])
    if provisioner != PROVISIONER:
        message = (
            f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the "
            "system administrator. If volume creation is delayed, please verify that the provisioner is running and "
            "correctly registered."
        )
        return _event_result(claim, "Normal", "ExternalProvisioning", message)
    problem = _provisioning_problem(claim, storage_class)
    if problem:
        return _event_result(claim, "Warning", "ProvisioningFailed", problem)
    volume = binding.provisioned_volume(claim, storage_class, node)
    message = f"Successfully provisioned volume {volume['metadata']['name']}"
    succeeded = EventRecord(meta.key_of(claim), "Normal", "ProvisioningSucceeded", message)
    return ReconcileResult([Create(volume)], [succeeded])


def _provisioning_problem(claim: meta.Obj, storage_class: meta.Obj) -> str:
    """Return why no folder can be provisioned for a claim; '' if it can."""
    name, spec = storage_class["metadata"]["name"], claim["spec"]
    if storage_class.get("mountOptions"):
        options = " ".join(storage_class["mountOptions"])
        supported = "Mount options are not supported by the provisioner"
        return f'{supported} but StorageClass "{name}" has mount options [{options}]'
    prefix = f'Failed to provision volume with StorageClass "{name}"'
    if spec.get("volumeMode") == "Block":
        return f"{prefix}: volumes of mode Block are not supported"
    if spec.get("dataSource") or spec.get("dataSourceRef"):
        return f"{prefix}: data sources are not supported"
    return f"{prefix}: claim.Spec.Selector is not supported" if spec.get("selector") else ""


def _reclaim(volume: meta.Obj) -> ReconcileResult:
    if binding.phase_of(volume) not in {binding.RELEASED, "Failed"}:
        return _volume_phase_result(volume, binding.RELEASED)
    is_deleted = _reclaim_policy(volume) == "Delete" and binding.is_folder(volume)
    if not is_deleted or "deletionTimestamp" in volume["metadata"]:
        return ReconcileResult()
    return ReconcileResult([Delete(meta.key_of(volume), uid=volume["metadata"]["uid"])])


def _volume_phase_result(volume: meta.Obj, phase: str) -> ReconcileResult:
    if binding.phase_of(volume) == phase:
        return ReconcileResult()
    status = {**(volume.get("status") or {}), "phase": phase}
    return ReconcileResult([UpdateStatus(meta.with_status(volume, status))])


def _reclaim_policy(volume: meta.Obj) -> str:
    return volume["spec"].get("persistentVolumeReclaimPolicy") or "Retain"


def with_existing_pods(controller: VolumeController, pods: Iterable[meta.Obj]) -> VolumeController:
    """Return the controller, which knows pods that are older than the first claim."""
    for pod in pods:
        controller.observe_pod(WatchEvent(EventType.ADDED, meta.key_of(pod), pod, None, 0))
    return controller
