"""Which PersistentVolume a claim binds, and the objects that result: bound volumes, bound claims, and new volumes.

Sources: pkg/controller/volume/persistentvolume of Kubernetes (pv_controller.go, index.go); component-helpers/storage
(FindMatchingVolume).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from batchyard.api import meta
from batchyard.api.views.volumes import requested_storage, storage_class_name
from batchyard.volumes.admission import PROVISIONER

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
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


def phase_of(obj: meta.Obj) -> str:
    """Return the phase of a volume or claim; Pending if its status has none."""
    return (obj.get("status") or {}).get("phase") or PENDING


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


def find_volume(claim: meta.Obj, volumes: Iterable[meta.Obj]) -> meta.Obj | None:
    """Return the volume that a claim binds: one reserved for it, or the smallest with the fewest access modes."""
    selector = meta.parse_selector(claim["spec"].get("selector"))
    candidates: list[tuple[int, int, str, meta.Obj]] = []
    for volume in volumes:
        if "deletionTimestamp" in volume["metadata"] or _capacity(volume) < requested_storage(claim):
            continue
        if volume["spec"].get("claimRef"):
            if is_reserved_for(volume, claim) and _modes(claim) <= _modes(volume):
                return volume
            continue
        is_selected = selector is None or selector.matches(volume["metadata"].get("labels") or {})
        if phase_of(volume) == AVAILABLE and is_selected and not mismatch_of(volume, claim):
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


def provisioned_volume(claim: meta.Obj, storage_class: meta.Obj) -> dict[str, Any]:
    """Return a new volume for a claim: a folder of the local node."""
    name, spec = provisioned_name(claim), claim["spec"]
    metadata = {
        "name": name,
        "annotations": {PROVISIONED_BY: PROVISIONER},
        "finalizers": [VOLUME_FINALIZER, FOLDER_FINALIZER],
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": metadata,
        "spec": {
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


def with_provisioner(claim: meta.Obj, provisioner: str) -> meta.Obj:
    """Return the claim with the annotations that name its provisioner; the same claim if it has them."""
    if meta.annotation(claim, STORAGE_PROVISIONER) == provisioner:
        return claim
    return _with_annotations(claim, dict.fromkeys((STORAGE_PROVISIONER, _OLD_STORAGE_PROVISIONER), provisioner))


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
