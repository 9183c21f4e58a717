"""A rendered object and its origin."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Obj

PART_OF: Final = "app.kubernetes.io/part-of"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"


class RenderedObject(NamedTuple):
    """A rendered object, and the platform field it comes from."""

    obj: Obj
    path: str


def obj_of(kind: str, platform: str, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
    """Return an object in the storage version of its kind, with the platform's labels."""
    info = scheme.kind_info(kind)
    metadata: dict[str, Any] = {"name": name, "labels": labels_of(platform)}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": info.api_version, "kind": info.kind, "metadata": metadata, **fields}


def labels_of(platform: str) -> Mapping[str, str]:
    """Return the labels by which a platform's objects are found."""
    return {MANAGED_BY: "batchyard", PART_OF: platform}
