"""The result of a write: pure functions from the stored object and the sent one to the next one.

They follow the API server's rules for every kind. The server owns uid, creationTimestamp, generation, resourceVersion
and the two deletion fields. In a write these are preconditions (uid, resourceVersion) or ignored. Only UpdateStatus
writes the status. `generation` counts changes of the desired state, which is everything except metadata and status. A
function that changes nothing returns the stored object itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import Conflict, FieldError, InvalidObject
from batchyard.api.meta import Key, Obj, group_kind
from batchyard.api.times import format_time
from batchyard.api.views.pod import grace_period
from batchyard.base.instant import SECOND, Instant

_SERVERS_OWN: Final = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
)
#: Kinds without a generation.
_UNCOUNTED: Final = frozenset(
    {
        *(scheme.NAMESPACE, scheme.NODE, scheme.CONFIG_MAP, scheme.SECRET, scheme.SERVICE, scheme.SERVICE_ACCOUNT),
        *(scheme.EVENT, scheme.LEASE, scheme.ENDPOINTS, scheme.LIMIT_RANGE, scheme.RESOURCE_QUOTA),
        *(scheme.ROLE, scheme.ROLE_BINDING, scheme.CLUSTER_ROLE, scheme.CLUSTER_ROLE_BINDING, scheme.RUNTIME_CLASS),
        *(scheme.PERSISTENT_VOLUME, scheme.PERSISTENT_VOLUME_CLAIM),
    }
)
_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # from apimachinery's rand: no vowels, so no words
_SUFFIX_LENGTH: Final = 5
_GENERATED_LENGTH_MAX: Final = 63


def created(obj: Obj, uid: str, now: Instant) -> Obj:
    """Return a new object; a given uid and creation time are kept."""
    given = obj["metadata"]
    metadata = {
        **given,
        "uid": given.get("uid") or uid,
        "creationTimestamp": given.get("creationTimestamp") or format_time(now),
        "generation": 1,
    }
    if group_kind(obj) in _UNCOUNTED:
        del metadata["generation"]
    metadata.pop("deletionTimestamp", None)
    metadata.pop("deletionGracePeriodSeconds", None)
    return {**obj, "metadata": metadata}


def generated_name(prefix: str, uid: str) -> str:
    """Return the name for a `generateName`: the prefix and five characters derived from the uid."""
    number = int(uid.replace("-", "")[:12], 16)
    letters = []
    for _ in range(_SUFFIX_LENGTH):
        number, letter = divmod(number, len(_SUFFIX_ALPHABET))
        letters.append(_SUFFIX_ALPHABET[letter])
    return prefix[: _GENERATED_LENGTH_MAX - _SUFFIX_LENGTH] + "".join(letters)


def check_named(obj: Obj) -> None:
    """Raise InvalidObject unless the object has a name or a generateName."""
    metadata = obj["metadata"]
    if not metadata.get("name") and not metadata.get("generateName"):
        raise InvalidObject([FieldError("metadata.name", "Required value: name or generateName is required")])


def check_preconditions(key: Key, stored: Obj, sent: Obj) -> None:
    """Raise Conflict if the sent object names another uid or resourceVersion than the stored one."""
    found, wanted = stored["metadata"], sent["metadata"]
    if found is wanted:
        return
    version = wanted.get("resourceVersion")
    if version and version != found["resourceVersion"]:
        raise Conflict(
            f'{key.kind} "{key}": the object has been modified (read at {version}, now {found["resourceVersion"]}); '
            "apply your changes to the latest version and try again"
        )
    uid = wanted.get("uid")
    if uid and uid != found["uid"]:
        raise Conflict(f'{key.kind} "{key}": the object has been deleted and recreated (uid {uid}, now {found["uid"]})')


def updated(stored: Obj, sent: Obj, managed_fields: Sequence[Obj] | None = None, *, is_whole: bool = False) -> Obj:
    """Return the object after an Update: as sent, except a status subresource and server-owned fields."""
    metadata = _managed(_updated_metadata(stored["metadata"], sent["metadata"]), managed_fields)
    if _desired(stored) != _desired(sent) or (is_whole and stored.get("status") != sent.get("status")):
        metadata = {**metadata, **_counted(stored["metadata"])}
    elif metadata is stored["metadata"]:
        return stored
    new = {**sent, "metadata": metadata}
    if is_whole:
        return new
    if "status" in stored:
        new["status"] = stored["status"]
    else:
        new.pop("status", None)
    return new


def status_updated(stored: Obj, sent: Obj, managed_fields: Sequence[Obj] | None = None) -> Obj:
    """Return the object after an UpdateStatus: the status as sent, the rest as stored."""
    status, metadata = sent.get("status"), _managed(stored["metadata"], managed_fields)
    if metadata is not stored["metadata"]:
        stored = {**stored, "metadata": metadata}
    elif status == stored.get("status"):
        return stored
    if status is None:
        return {field: value for field, value in stored.items() if field != "status"}
    return {**stored, "status": status}


def deletion_grace(stored: Obj, wanted: int | None) -> int:
    """Return the deletion grace period in seconds: 0 except for a running pod that is bound to a node.

    Source: Kubernetes's pkg/registry/core/pod/strategy.go (CheckGracefulDelete).
    """
    if group_kind(stored) != "Pod":
        return 0
    spec, status = stored["spec"], stored.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        return 0
    return grace_period(spec) if wanted is None else wanted


def marked_deleted(stored: Obj, now: Instant, grace: int = 0, *, finalizers: Sequence[str] = ()) -> Obj:
    """Return the object after a Delete that does not remove it yet: marked, with these additional finalizers.

    An object that is already marked changes only if its grace period gets shorter.
    """
    metadata = stored["metadata"]
    added = [name for name in finalizers if name not in metadata.get("finalizers", ())]
    is_marked = "deletionTimestamp" in metadata
    if is_marked and grace >= metadata["deletionGracePeriodSeconds"] and not added:
        return stored
    if is_marked:
        grace = min(grace, metadata["deletionGracePeriodSeconds"])
    mark: dict[str, Any] = {
        "deletionTimestamp": format_time(now + grace * SECOND),
        "deletionGracePeriodSeconds": grace,
        **({} if is_marked else _counted(metadata)),
    }
    if added:
        mark["finalizers"] = [*metadata.get("finalizers", ()), *added]
    return {**stored, "metadata": {**metadata, **mark}}


def _counted(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generation after a change of the desired state, for kinds that have one."""
    return {"generation": metadata["generation"] + 1} if "generation" in metadata else {}


def is_released(obj: Obj) -> bool:
    """Report whether a deleted object has no finalizers and no grace period left, so that it is removed."""
    metadata = obj["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def _updated_metadata(stored: Mapping[str, Any], sent: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata as sent, with server-owned fields as stored; the stored mapping itself if they are equal."""
    if sent is stored:
        return stored
    metadata = dict(sent)
    for field in _SERVERS_OWN:
        if field in stored:
            metadata[field] = stored[field]
        else:
            metadata.pop(field, None)
    return stored if metadata == stored else metadata


def _managed(metadata: Mapping[str, Any], managed_fields: Sequence[Obj] | None) -> Mapping[str, Any]:
    """Return the metadata with these managedFields; the mapping itself if they are unchanged."""
    if managed_fields is None or managed_fields == metadata.get("managedFields", []):
        return metadata
    return {**metadata, "managedFields": managed_fields}


def _desired(obj: Obj) -> dict[str, Any]:
    """Return everything of an object except its metadata and status: the desired state."""
    return {field: value for field, value in obj.items() if field not in {"metadata", "status"}}
