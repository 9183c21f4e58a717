"""Lossless conversion of objects between API versions.

Objects are stored in the storage version. Fields that one version cannot represent are kept in an annotation
while the object has that version. Objects must be structurally valid in their version. Kueue's kinds have v1beta1 and
v1beta2, and v1beta2 is stored. The versions of ProvisioningRequests differ only in their name. Kueue's Configuration is
a file; both versions are read and converted to the newer one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.conversion import configuration, kueue
from batchyard.api.conversion.parts import ConversionPart, converted, flipped
from batchyard.api.meta import Obj, group_kind

OLD: Final = "kueue.x-k8s.io/v1beta1"
STORAGE: Final = "kueue.x-k8s.io/v1beta2"
#: On objects of the storage version: fields that only v1beta1 has.
OLD_ONLY: Final = "batchyard.dev/v1beta1-only"
#: On objects of v1beta1: fields that only the storage version has.
NEW_ONLY: Final = "batchyard.dev/v1beta2-only"

#: Versions with identical fields, each with the storage version.
_SAME: Final = {"autoscaling.x-k8s.io/v1beta1": "autoscaling.x-k8s.io/v1"}

_PARTS: Final[Mapping[str, Sequence[ConversionPart]]] = {
    scheme.CLUSTER_QUEUE: kueue.CLUSTER_QUEUE_PARTS,
    scheme.COHORT: kueue.COHORT_PARTS,
    scheme.LOCAL_QUEUE: kueue.LOCAL_QUEUE_PARTS,
    scheme.WORKLOAD: kueue.PARTS,
    scheme.ADMISSION_CHECK: kueue.ADMISSION_CHECK_PARTS,
    scheme.MULTI_KUEUE_CONFIG: kueue.MULTI_KUEUE_CONFIG_PARTS,
    scheme.MULTI_KUEUE_CLUSTER: kueue.MULTI_KUEUE_CLUSTER_PARTS,
}
_FLIPPED: Final = {kind: tuple(map(flipped, parts)) for kind, parts in _PARTS.items()}


def to_storage(obj: Obj) -> dict[str, Any]:
    """Convert an object to its storage version; return the same object if it already has that version."""
    version = obj["apiVersion"]
    if version in _SAME:
        return {**obj, "apiVersion": _SAME[version]}
    if version == configuration.OLD:
        return configuration.to_storage(obj)
    if version != OLD:
        return obj if isinstance(obj, dict) else dict(obj)
    done = converted(obj, _PARTS.get(group_kind(obj), ()), taken=NEW_ONLY, kept=OLD_ONLY)
    return {**done, "apiVersion": STORAGE}


def from_storage(obj: Obj, api_version: str) -> dict[str, Any]:
    """Convert an object to another version (`group/version`); return the same object if it already has that version."""
    if obj["apiVersion"] == api_version:
        return obj if isinstance(obj, dict) else dict(obj)
    if _SAME.get(api_version) == obj["apiVersion"]:
        return {**obj, "apiVersion": api_version}
    if (obj["apiVersion"], api_version) != (STORAGE, OLD):
        raise ValueError(f"{obj['apiVersion']} {obj['kind']} has no version {api_version}")
    done = converted(obj, _FLIPPED.get(group_kind(obj), ()), taken=OLD_ONLY, kept=NEW_ONLY)
    return {**done, "apiVersion": OLD}
