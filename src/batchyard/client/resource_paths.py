"""URL paths of kinds and objects on an API server, and decoding of received objects."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from batchyard.api import conversion, scheme
from batchyard.api.defaults.kueue import jobset_defaults, with_spec
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import ServedKind

_SPECIFIED: Final = frozenset(
    {
        *(scheme.TOPOLOGY, scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG),
        *(scheme.COHORT, scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.WORKLOAD),
    }
)


def path_of_kind(info: ServedKind, version: str) -> str:
    """Return the path of all objects of a kind."""
    return f"{root_of(info.group, version)}/{info.plural}"


def root_of(group: str, version: str) -> str:
    """Return the path of a group's version."""
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


def path_of(info: ServedKind, version: str, namespace: str, name: str = "", part: str = "") -> str:
    """Return the path of an object, or of a subresource; without a name the path of all objects in the namespace."""
    within = f"/namespaces/{quote(namespace)}" if info.namespaced else ""
    path = f"{root_of(info.group, version)}{within}/{info.plural}"
    return "/".join([path, *[quote(each) for each in (name, part) if each]])


def received(info: ServedKind, version: str, sent: Mapping[str, Any]) -> Obj:
    """Convert a received object to its storage version. Items of lists may lack apiVersion and kind.

    A JobSet gets its defaults, and Kueue's kinds get a `spec`: a foreign server may not have set them, and Kueue allows
    writers to omit the spec.
    """
    obj: Obj = sent
    if "kind" not in sent or "apiVersion" not in sent:
        obj = {"apiVersion": info.api_version_for(version), "kind": info.kind, **sent}
    stored = conversion.to_storage(obj)
    if info.constant == scheme.JOB_SET:
        return jobset_defaults(stored)
    return with_spec(stored) if info.constant in _SPECIFIED else stored


def key_in(info: ServedKind, obj: Obj) -> Key:
    """Return the key of an object of a kind."""
    metadata = obj["metadata"]
    return Key(info.constant, metadata.get("namespace") or "", metadata["name"])


def revision_of(obj: Mapping[str, Any]) -> int:
    """Return the revision of an object or a list; 0 if it is not a number."""
    text = str((obj.get("metadata") or {}).get("resourceVersion") or "")
    return int(text) if text.isdecimal() else 0
