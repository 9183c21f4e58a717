"""An object and where it comes from."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Obj

PART_OF: Final = "app.kubernetes.io/part-of"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"


class Made(NamedTuple):
    """An object that a platform comes to, and the field of the platform that says so."""

    obj: Obj
    path: str


def obj_of(kind: str, platform: str, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
    """An object of a kind in its storage version, with the labels by which what a platform made is found."""
    info = scheme.kind_info(kind)
    metadata: dict[str, Any] = {"name": name, "labels": labels_of(platform)}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, **fields}


def labels_of(platform: str) -> Mapping[str, str]:
    """By which what a platform made is found."""
    return {MANAGED_BY: "batchyard", PART_OF: platform}
