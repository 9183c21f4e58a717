"""Where the objects of a kind are found on an API server, and how they are read from there."""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from batchyard.api import conversion, scheme
from batchyard.api.defaults.kueue import jobset_defaults, specified
from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import ServedKind

_SPECIFIED: Final = frozenset(
    {
        *(scheme.TOPOLOGY, scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG),
        *(scheme.COHORT, scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.WORKLOAD),
    }
)


def path_of_kind(info: ServedKind, version: str) -> str:
    """The path of all objects of a kind."""
    return f"{root_of(info.group, version)}/{info.plural}"


def root_of(group: str, version: str) -> str:
    """The path of a group's version."""
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


def path_of(info: ServedKind, version: str, namespace: str, name: str = "", part: str = "") -> str:
    """The path of an object, or of a part of it; without a name of all that are in its namespace."""
    within = f"/namespaces/{quote(namespace)}" if info.namespaced else ""
    path = f"{root_of(info.group, version)}{within}/{info.plural}"
    return "/".join([path, *[quote(each) for each in (name, part) if each]])


def received(info: ServedKind, version: str, sent: Mapping[str, Any]) -> Obj:
    """An object as the server told it, in its storage version. Those of lists may lack their kind.

    A JobSet has its defaults then, and what has a spec has one: on a server that is another's nobody else may have
    given it any, and the kinds of Kueue let whoever writes leave it out.
    """
    obj: Obj = sent
    if "kind" not in sent or "apiVersion" not in sent:
        obj = {"apiVersion": info.api_version_for(version), "kind": info.kind, **sent}
    stored = conversion.to_storage(obj)
    if info.constant == scheme.JOB_SET:
        return jobset_defaults(stored)
    return specified(stored) if info.constant in _SPECIFIED else stored


def key_in(info: ServedKind, obj: Obj) -> Key:
    """The key of an object of a kind."""
    metadata = obj["metadata"]
    return Key(info.constant, metadata.get("namespace") or "", metadata["name"])


def revision_of(obj: Mapping[str, Any]) -> int:
    """The revision of an object or a list; 0 where the server's are no numbers."""
    text = str((obj.get("metadata") or {}).get("resourceVersion") or "")
    return int(text) if text.isdecimal() else 0
