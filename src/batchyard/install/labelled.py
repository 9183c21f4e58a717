"""How the objects of an installation are told from others."""

from collections.abc import Mapping
from typing import Any

from batchyard.api.meta import Obj
from batchyard.install.settings import Settings


def labels(settings: Settings) -> Mapping[str, str]:
    """By which its pods are found."""
    return {"app.kubernetes.io/name": "batchyard", "app.kubernetes.io/instance": settings.name}


def labelled(obj: Mapping[str, Any], settings: Settings, name: str = "", namespace: str = "") -> Obj:
    """An object under its name, or the installation's, with the labels."""
    metadata: dict[str, Any] = {"name": name or settings.name, "labels": dict(labels(settings))}
    if namespace:
        metadata["namespace"] = namespace
    head = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata}
    return head | {field: value for field, value in obj.items() if field not in head}
