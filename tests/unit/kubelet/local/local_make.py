"""Pods and the objects they reference, for tests of the inputs of their containers."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.api.meta import Key, Obj, key_of


class FixedObjects:
    """A reader of fixed objects."""

    def __init__(self, *objects: Obj) -> None:
        self._objects = {key_of(obj): obj for obj in objects}

    def get(self, key: Key) -> Obj | None:
        return self._objects.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        keys = sorted(k for k in self._objects if k.kind == kind and namespace in (None, k.namespace))
        return [self._objects[key] for key in keys]

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        return []


NOTHING = FixedObjects()


def container(name: str = "main", **fields: Any) -> dict[str, Any]:
    """A container with a command."""
    return {"name": name, "image": "python:3.11", "command": ["run"], **fields}


def pod(*containers: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A bound pod; `labels` and `annotations` are metadata, other keywords are fields of its spec."""
    own = {field: fields.pop(field) for field in ("labels", "annotations") if field in fields}
    spec = {"nodeName": "node", "containers": list(containers) or [container()], **fields}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": make.metadata("pod", **own), "spec": spec}


def config_map(name: str, binary: Mapping[str, bytes] | None = None, **texts: str) -> Obj:
    """A ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": make.metadata(name),
        "data": texts,
        "binaryData": {key: base64.b64encode(value).decode() for key, value in (binary or {}).items()},
    }


def secret(name: str, **contents: bytes) -> Obj:
    """A Secret."""
    encoded = {key: base64.b64encode(value).decode() for key, value in contents.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": make.metadata(name), "data": encoded}


def service(name: str, address: str, *ports: Mapping[str, Any], namespace: str = "team") -> Obj:
    """A Service with an address."""
    spec = {"clusterIP": address, "ports": list(ports)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": make.metadata(name, namespace), "spec": spec}


def node(*addresses: tuple[str, str], **allocatable: str) -> Obj:
    """The pods' node; its addresses are (type, address)."""
    status = {"addresses": [{"type": kind, "address": at} for kind, at in addresses], "allocatable": allocatable}
    return {"apiVersion": "v1", "kind": "Node", "metadata": make.metadata("node", None), "spec": {}, "status": status}
