"""Which PersistentVolume a claim binds, and the objects that result: bound volumes, bound claims, and new volumes.

Sources: pkg/controller/volume/persistentvolume of Kubernetes (pv_controller.go, index.go); component-helpers/storage
(FindMatchingVolume).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from batchyard.api import meta, scheme, well_known
from batchyard.api.views.node import NodeView
from batchyard.api.views.pod_shape import parse_node_term
from batchyard.api.views.volumes import requested_storage, storage_class_name
from batchyard.interfaces.client import ObjectReader
from batchyard.placement.node_filters import matches_term
from batchyard.volumes.admission import PROVISIONER

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
#: The node of the first pod that uses a claim.
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
STORAGE_PROVISIONER: Final = "volume.kubernetes.io/storage-provisioner"
_OLD_STORAGE_PROVISIONER: Final = "volume.beta.kubernetes.io/storage-provisioner"
CLAIM_FINALIZER: Final = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER: Final = "kubernetes.io/pv-protection"
#: Keeps a volume until its folder is deleted.
FOLDER_FINALIZER: Final = "batchyard.dev/volume-folder"
AVAILABLE: Final = "Available"
BOUND: Final = "Bound"
RELEASED: Final = "Released"
LOST: Final = "Lost"
PENDING: Final = "Pending"
_WAIT_FOR_CONSUMER: Final = "WaitForFirstConsumer"


def phase_of(obj: meta.Obj) -> str:
    """Return the phase of a volume or claim; Pending if its status has none."""
    return (obj.get("status") or {}).get("phase") or PENDING


def is_fully_bound(claim: meta.Obj) -> bool:
    """Return whether the binding of a claim is complete."""
    return bool(claim["spec"].get("volumeName")) and meta.annotation(claim, BIND_COMPLETED) is not None


def volume_key(claim: meta.Obj) -> meta.Key:
    """Return the key of the volume that a claim names."""
    return meta.Key(scheme.PERSISTENT_VOLUME, "", claim["spec"]["volumeName"])


def storage_class_of(claim: meta.Obj, reader: ObjectReader) -> meta.Obj | None:
    """Return the StorageClass of a claim; None if it names none, or one that does not exist."""
    name = storage_class_name(claim)
    return reader.get(meta.Key(scheme.STORAGE_CLASS, "", name)) if name else None


def waits_for_consumer(claim: meta.Obj, reader: ObjectReader) -> bool:
    """Return whether an unbound claim gets a volume only when a pod that uses it has a node."""
    storage_class = None if claim["spec"].get("volumeName") else storage_class_of(claim, reader)
    return storage_class is not None and storage_class.get("volumeBindingMode") == _WAIT_FOR_CONSUMER


def suits_node(volume: meta.Obj, node: NodeView) -> bool:
    """Return whether a node matches the node affinity of a volume."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required") or {}
    terms = required.get("nodeSelectorTerms") or ()
    return not terms or any(matches_term(parse_node_term(term), node) for term in terms)


def claim_reference(claim: meta.Obj) -> dict[str, Any]:
    """Return the reference of a volume to the claim that it is bound to."""
    metadata = claim["metadata"]
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": metadata["name"]}
    reference |= {"namespace": metadata["namespace"], "uid": metadata["uid"]}
    return {**reference, "resourceVersion": metadata["resourceVersion"]}


def is_reserved_for(volume: meta.Obj, claim: meta.Obj) -> bool:
    """Return whether a volume refers to a claim, by its uid or, before the binding, only by its name."""
    reference, metadata = volume["spec"].get("claimRef") or {}, claim["metadata"]
    is_same_name = (reference.get("namespace"), reference.get("name")) == (metadata["namespace"], metadata["name"])
    return is_same_name and reference.get("uid") in {None, "", metadata["uid"]}


def mismatch_of(volume: meta.Obj, claim: meta.Obj) -> str:
    """Return why a volume cannot satisfy a claim that names it; '' if it can."""
    spec, claim_spec = volume["spec"], claim["spec"]
    if _capacity(volume) < requested_storage(claim):
        return "requested PV is too small"
    if storage_class_name(volume) != storage_class_name(claim):
        return "storageClassName does not match"
    if (spec.get("volumeAttributesClassName") or "") != (claim_spec.get("volumeAttributesClassName") or ""):
        return "volumeAttributesClassName does not match"
    if _volume_mode(volume) != _volume_mode(claim):
        return "incompatible volumeMode"
    return "" if _modes(claim) <= _modes(volume) else "incompatible accessMode"


def find_volume(claim: meta.Obj, volumes: Iterable[meta.Obj], node: NodeView | None = None) -> meta.Obj | None:
    """Return the volume that a claim binds: one reserved for it, or the smallest with the fewest access modes.

    `node` is the node of the first pod that uses the claim; the node affinity of the volume must match it.
    """
    selector = meta.parse_selector(claim["spec"].get("selector"))
    candidates: list[tuple[int, int, str, meta.Obj]] = []
    for volume in volumes:
        if "deletionTimestamp" in volume["metadata"] or _capacity(volume) < requested_storage(claim):
            continue
        has_affinity = node is None or suits_node(volume, node)
        if volume["spec"].get("claimRef"):
            if is_reserved_for(volume, claim) and _modes(claim) <= _modes(volume):
                return volume if has_affinity else None
            continue
        is_selected = selector is None or selector.matches(volume["metadata"].get("labels") or {})
        if phase_of(volume) == AVAILABLE and has_affinity and is_selected and not mismatch_of(volume, claim):
            name: str = volume["metadata"]["name"]
            candidates.append((len(_modes(volume)), _capacity(volume), name, volume))
    return min(candidates, key=lambda each: each[:3])[3] if candidates else None


def bound_volume(volume: meta.Obj, claim: meta.Obj) -> meta.Obj:
    """Return the volume with a complete reference to the claim; the same volume if it has one."""
    reference = volume["spec"].get("claimRef")
    if reference and reference.get("uid") == claim["metadata"]["uid"]:
        return volume
    new = meta.with_path(volume, ("spec", "claimRef"), claim_reference(claim))
    return new if reference else _with_annotations(new, {BOUND_BY_CONTROLLER: "yes"})


def bound_claim(claim: meta.Obj, volume: meta.Obj) -> meta.Obj:
    """Return the claim with the name of its volume and the mark of a completed binding."""
    new, name = claim, volume["metadata"]["name"]
    if claim["spec"].get("volumeName") != name:
        new = _with_annotations(meta.with_path(claim, ("spec", "volumeName"), name), {BOUND_BY_CONTROLLER: "yes"})
    return (
        new if meta.annotation(claim, BIND_COMPLETED) is not None else _with_annotations(new, {BIND_COMPLETED: "yes"})
    )


def bound_claim_status(claim: meta.Obj, volume: meta.Obj) -> Mapping[str, Any]:
    """Return the status of a claim that is bound to a volume."""
    spec = volume["spec"]
    status = {"phase": BOUND, "accessModes": spec.get("accessModes") or [], "capacity": spec.get("capacity") or {}}
    return {**(claim.get("status") or {}), **status}


def unbound_volume(volume: meta.Obj) -> meta.Obj:
    """Return a volume that the controller had bound without its reference to a claim."""
    annotations = {k: v for k, v in volume["metadata"]["annotations"].items() if k != BOUND_BY_CONTROLLER}
    spec = {field: value for field, value in volume["spec"].items() if field != "claimRef"}
    return meta.with_metadata({**volume, "spec": spec}, annotations=annotations or None)


def provisioned_name(claim: meta.Obj) -> str:
    """Return the name of the volume that is provisioned for a claim, which is also the name of its folder."""
    return f"pvc-{claim['metadata']['uid']}"


def provisioned_volume(claim: meta.Obj, storage_class: meta.Obj, node: NodeView | None) -> dict[str, Any]:
    """Return a new volume for a claim: a folder of the local node.

    If the claim waited for its first consumer, only pods on the same node as this consumer can use the volume.
    """
    name, spec = provisioned_name(claim), claim["spec"]
    metadata = {
        "name": name,
        "annotations": {PROVISIONED_BY: PROVISIONER},
        "finalizers": [VOLUME_FINALIZER, FOLDER_FINALIZER],
    }
    hostname = "" if node is None else node.labels.get(well_known.HOSTNAME)
    term = {"matchExpressions": [{"key": well_known.HOSTNAME, "operator": "In", "values": [hostname]}]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": metadata,
        "spec": {
            **({"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}} if hostname else {}),
            "accessModes": spec.get("accessModes") or [],
            "capacity": {"storage": ((spec.get("resources") or {}).get("requests") or {}).get("storage", "0")},
            "claimRef": claim_reference(claim),
            "csi": {"driver": PROVISIONER, "volumeHandle": name},
            "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy") or "Delete",
            "storageClassName": storage_class["metadata"]["name"],
            "volumeMode": "Filesystem",
        },
        "status": {"phase": PENDING},
    }


def with_provisioner(claim: meta.Obj, provisioner: str, node: NodeView | None) -> meta.Obj:
    """Return the claim with the annotations for its provisioner; the same claim if it has them."""
    annotations = dict.fromkeys((STORAGE_PROVISIONER, _OLD_STORAGE_PROVISIONER), provisioner)
    if node is not None:
        annotations[SELECTED_NODE] = node.name
    is_complete = all(meta.annotation(claim, name) == value for name, value in annotations.items())
    return claim if is_complete else _with_annotations(claim, annotations)


def is_folder(volume: meta.Obj) -> bool:
    """Return whether a volume was provisioned as a folder of the local node."""
    return meta.annotation(volume, PROVISIONED_BY) == PROVISIONER


def _with_annotations(obj: meta.Obj, annotations: Mapping[str, str]) -> meta.Obj:
    return meta.with_metadata(obj, annotations={**(obj["metadata"].get("annotations") or {}), **annotations})


def _capacity(volume: meta.Obj) -> int:
    return meta.amount("storage", (volume["spec"].get("capacity") or {}).get("storage", 0))


def _volume_mode(obj: meta.Obj) -> str:
    return obj["spec"].get("volumeMode") or "Filesystem"


def _modes(obj: meta.Obj) -> frozenset[str]:
    return frozenset(obj["spec"].get("accessModes") or ())
