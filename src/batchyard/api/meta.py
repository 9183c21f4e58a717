"""API objects: plain mappings, their keys, and setters that copy.

A shared object is never changed. `with_*` return a new object that shares all unchanged parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

Obj: TypeAlias = Mapping[str, Any]


class Key(NamedTuple):
    """The identity of an object: kind (`Kind` in the core group, else `Kind.group`), namespace (maybe ''), and name."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """`namespace/name`, or the bare name of a cluster-scoped object."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def group_kind(obj: Obj) -> str:
    """Return `Kind.group` of an object, or `Kind` in the core group."""
    return _group_kind(obj["apiVersion"], obj["kind"])


@lru_cache(maxsize=1024)
def _group_kind(api_version: str, kind: str) -> str:
    group, slash, _ = api_version.partition("/")
    return f"{kind}.{group}" if slash else kind


def key_of(obj: Obj) -> Key:
    """Return the key of an object."""
    metadata = obj["metadata"]
    return Key(group_kind(obj), metadata.get("namespace") or "", metadata["name"])


def annotation(obj: Obj, name: str) -> str | None:
    """Return the value of an annotation, or None."""
    annotations = obj["metadata"].get("annotations")
    return annotations.get(name) if annotations else None


def label(obj: Obj, name: str) -> str | None:
    """Return the value of a label, or None."""
    labels = obj["metadata"].get("labels")
    return labels.get(name) if labels else None


def with_path(obj: Obj, path: Iterable[str], value: object) -> dict[str, Any]:
    """Return the object with one value set, copying only the mappings on the path; None removes the field."""
    head, *rest = path
    new = dict(obj)
    if rest:
        new[head] = with_path(new.get(head) or {}, rest, value)
    elif value is None:
        new.pop(head, None)
    else:
        new[head] = value
    return new


def with_status(obj: Obj, status: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object with another status."""
    return {**obj, "status": status}


def with_metadata(obj: Obj, **fields: Any) -> dict[str, Any]:
    """Return the object with metadata fields set; None removes one."""
    metadata = {k: v for k, v in {**obj["metadata"], **fields}.items() if v is not None}
    return {**obj, "metadata": metadata}


def finalizers_of(obj: Obj) -> Sequence[str]:
    """Return the finalizers of an object."""
    finalizers: Sequence[str] = obj["metadata"].get("finalizers") or ()
    return finalizers


def with_finalizer(obj: Obj, name: str) -> Obj:
    """Return the object with that finalizer; itself if it has it."""
    finalizers = finalizers_of(obj)
    return obj if name in finalizers else with_metadata(obj, finalizers=[*finalizers, name])


def without_finalizer(obj: Obj, name: str) -> Obj:
    """Return the object without that finalizer; itself if it does not have it."""
    finalizers = finalizers_of(obj)
    if name not in finalizers:
        return obj
    return with_metadata(obj, finalizers=[other for other in finalizers if other != name] or None)


def controller_reference(owner: Obj) -> dict[str, Any]:
    """Return the owner reference for objects that `owner` controls."""
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def controller_of(obj: Obj) -> Mapping[str, Any] | None:
    """Return the owner reference marked as controller, or None."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return owner  # type: ignore[no-any-return]
    return None
