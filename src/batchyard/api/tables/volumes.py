"""Cells of volumes and of claims to them. Source: Kubernetes's pkg/printers/internalversion."""

from typing import Final

from batchyard.api.meta import Obj
from batchyard.api.tables import cells
from batchyard.api.tables.cells import Cell, Column, at, text, value
from batchyard.base.instant import Instant

_NAME: Final = (Column("Name"), cells.name)
_AGE: Final = (Column("Age"), cells.age)
_UNSET: Final = "<unset>"
_OLD_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
_MODES: Final = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _phase(obj: Obj, _now: Instant) -> str:
    return "Terminating" if "deletionTimestamp" in obj["metadata"] else text(value(obj, "status", "phase"))


def _modes(part: str) -> Cell:
    """The cell of the access modes that a part of the object has, in the order in which Kubernetes tells them."""

    def cell(obj: Obj, _now: Instant) -> str:
        found = value(obj, part, "accessModes") or ()
        return ",".join(short for mode, short in _MODES.items() if mode in found)

    return cell


def _class(obj: Obj, _now: Instant) -> str:
    old = (obj["metadata"].get("annotations") or {}).get(_OLD_CLASS)
    return text(value(obj, "spec", "storageClassName") if old is None else old)


def _claim(obj: Obj, _now: Instant) -> str:
    claim = value(obj, "spec", "claimRef")
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


_CLASSES: Final = (
    (Column("StorageClass"), _class),
    (Column("VolumeAttributesClass"), at("spec", "volumeAttributesClassName", default=_UNSET)),
)
_MODE: Final = (Column("VolumeMode", priority=1), at("spec", "volumeMode", default=_UNSET))

VOLUMES: Final = (
    _NAME,
    (Column("Capacity"), at("spec", "capacity", "storage", default="0")),
    (Column("Access Modes"), _modes("spec")),
    (Column("Reclaim Policy"), at("spec", "persistentVolumeReclaimPolicy")),
    (Column("Status"), _phase),
    (Column("Claim"), _claim),
    *_CLASSES,
    (Column("Reason"), at("status", "reason")),
    _AGE,
    _MODE,
)
CLAIMS: Final = (
    _NAME,
    (Column("Status"), _phase),
    (Column("Volume"), at("spec", "volumeName")),
    (Column("Capacity"), at("status", "capacity", "storage")),
    (Column("Access Modes"), _modes("status")),
    *_CLASSES,
    _AGE,
    _MODE,
)
