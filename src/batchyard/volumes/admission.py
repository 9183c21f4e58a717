"""Admission of PersistentVolumeClaims: the default class of new claims, and no larger claims.

Sources: plugin/pkg/admission/storage of Kubernetes (storageclass/setdefault, persistentvolume/resize).
"""

from collections.abc import Iterable
from typing import Any, Final

from batchyard.api import meta, scheme
from batchyard.api.errors import Forbidden
from batchyard.api.views.volumes import requested_storage
from batchyard.interfaces.client import Reader

#: The provisioner whose volumes are folders of the local node.
PROVISIONER: Final = "batchyard.dev/folder"
DEFAULT_CLASS_ANNOTATION: Final = "storageclass.kubernetes.io/is-default-class"
_DEFAULT_CLASS_NAME: Final = "standard"
_DEFAULT_CLASS_ANNOTATIONS: Final = (DEFAULT_CLASS_ANNOTATION, "storageclass.beta.kubernetes.io/is-default-class")
_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"


def default_storage_class() -> dict[str, Any]:
    """Return the StorageClass that the platform provides."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": _DEFAULT_CLASS_NAME, "annotations": {DEFAULT_CLASS_ANNOTATION: "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def find_default_class(storage_classes: Iterable[meta.Obj]) -> meta.Obj | None:
    """Return the newest StorageClass that is marked as the default; None if there is none."""
    defaults = [each for each in storage_classes if _is_default(each)]
    by_name = sorted(defaults, key=lambda each: str(each["metadata"]["name"]))
    return max(by_name, key=lambda each: str(each["metadata"].get("creationTimestamp")), default=None)


def _is_default(storage_class: meta.Obj) -> bool:
    return any(meta.annotation(storage_class, name) == "true" for name in _DEFAULT_CLASS_ANNOTATIONS)


def needs_default_class(claim: meta.Obj) -> bool:
    """Return whether a claim names no class, not even the empty one."""
    has_annotation = meta.annotation(claim, _CLASS_ANNOTATION) is not None
    return not has_annotation and claim["spec"].get("storageClassName") is None


def prepare_claim(claim: meta.Obj, reader: Reader) -> meta.Obj:
    """Return a new claim with the default class, if it names none."""
    if not needs_default_class(claim):
        return claim
    storage_class = find_default_class(reader.list(scheme.STORAGE_CLASS))
    if storage_class is None:
        return claim
    return meta.with_path(claim, ("spec", "storageClassName"), storage_class["metadata"]["name"])


def check_claim_size(new: meta.Obj, old: meta.Obj) -> None:
    """Raise Forbidden if a claim requests more storage than before: no volume can be expanded."""
    if requested_storage(new) <= requested_storage(old):
        return
    reason = "Only bound persistent volume claims can be expanded"
    if (old.get("status") or {}).get("phase") == "Bound":
        reason = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc"
        reason = f"{reason} must support resize"
    raise Forbidden(f'persistentvolumeclaims "{new["metadata"]["name"]}" is forbidden: {reason}')
