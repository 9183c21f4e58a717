"""Views of PersistentVolumes and PersistentVolumeClaims."""

from typing import Final

from batchyard.api.meta import Obj, amount

_STORAGE_CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"


def storage_class_name(obj: Obj) -> str:
    """Return the storage class of a PersistentVolume or PersistentVolumeClaim; '' if it names none.

    The deprecated annotation has precedence over the field `storageClassName`, as in Kubernetes.
    """
    annotation_text = (obj["metadata"].get("annotations") or {}).get(_STORAGE_CLASS_ANNOTATION)
    name = (obj.get("spec") or {}).get("storageClassName") if annotation_text is None else annotation_text
    return str(name or "")


def requested_storage(claim: Obj) -> int:
    """Return the storage that a PersistentVolumeClaim requests in bytes; 0 if it requests none."""
    requests = ((claim.get("spec") or {}).get("resources") or {}).get("requests") or {}
    return amount("storage", requests.get("storage", 0))
