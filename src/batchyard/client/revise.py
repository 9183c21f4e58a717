"""What a write makes of an object: pure functions from the stored object and the sent one to the next.

They follow the API server's rules for every kind. The server owns uid, creationTimestamp, generation, resourceVersion
and the two deletion fields: what a writer sends for them is a precondition (uid, resourceVersion) or ignored. A status
is written by UpdateStatus and by nothing else. `generation` counts changes of what is wanted, which is all but
metadata and status. A function that finds nothing to change returns the stored object itself.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api.errors import Conflict, FieldError, InvalidObject
from batchyard.api.meta import Key, Obj
from batchyard.api.times import format_time
from batchyard.base.instant import Instant

_SERVERS_OWN: Final = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # of apimachinery's rand: no vowels, so no words
_SUFFIX_LENGTH: Final = 5
_GENERATED_LENGTH_MAX: Final = 63


def created(obj: Obj, uid: str, now: Instant) -> Obj:
    """A new object: its uid and creation time are kept where given."""
    given = obj["metadata"]
    metadata = {
        **given,
        "uid": given.get("uid") or uid,
        "creationTimestamp": given.get("creationTimestamp") or format_time(now),
        "generation": 1,
    }
    metadata.pop("deletionTimestamp", None)
    metadata.pop("deletionGracePeriodSeconds", None)
    return {**obj, "metadata": metadata}


def generated_name(prefix: str, uid: str) -> str:
    """The name for a `generateName`: the prefix and five letters fixed by the uid."""
    number = int(uid.replace("-", "")[:12], 16)
    letters = []
    for _ in range(_SUFFIX_LENGTH):
        number, letter = divmod(number, len(_SUFFIX_ALPHABET))
        letters.append(_SUFFIX_ALPHABET[letter])
    return prefix[: _GENERATED_LENGTH_MAX - _SUFFIX_LENGTH] + "".join(letters)


def check_named(obj: Obj) -> None:
    """Raise InvalidObject unless the object has a name or asks for one."""
    metadata = obj["metadata"]
    if not metadata.get("name") and not metadata.get("generateName"):
        raise InvalidObject([FieldError("metadata.name", "Required value: name or generateName is required")])


def check_preconditions(key: Key, stored: Obj, sent: Obj) -> None:
    """Raise Conflict if the sent object names another uid or resourceVersion than the stored one has."""
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
        raise Conflict(
            f'{key.kind} "{key}": the object has been deleted and made again (uid {uid}, now {found["uid"]})'
        )


def updated(stored: Obj, sent: Obj) -> Obj:
    """The object after an Update: everything as sent, but the status and what the server owns."""
    metadata = _updated_metadata(stored["metadata"], sent["metadata"])
    if _desired(stored) != _desired(sent):
        metadata = {**metadata, "generation": stored["metadata"].get("generation", 0) + 1}
    elif metadata is stored["metadata"]:
        return stored
    new = {**sent, "metadata": metadata}
    if "status" in stored:
        new["status"] = stored["status"]
    else:
        new.pop("status", None)
    return new


def status_updated(stored: Obj, sent: Obj) -> Obj:
    """The object after an UpdateStatus: the status as sent, all else as stored."""
    status = sent.get("status")
    if status == stored.get("status"):
        return stored
    if status is None:
        return {field: value for field, value in stored.items() if field != "status"}
    return {**stored, "status": status}


def marked_deleted(stored: Obj, now: Instant) -> Obj:
    """The object after a Delete that its finalizers hold up: marked, once."""
    metadata = stored["metadata"]
    if "deletionTimestamp" in metadata:
        return stored
    mark = {"deletionTimestamp": format_time(now), "deletionGracePeriodSeconds": 0}
    return {**stored, "metadata": {**metadata, **mark, "generation": metadata.get("generation", 0) + 1}}


def is_released(obj: Obj) -> bool:
    """Whether an object marked as deleted has no finalizer left, so that it goes."""
    metadata = obj["metadata"]
    return "deletionTimestamp" in metadata and not metadata.get("finalizers")


def _updated_metadata(stored: Mapping[str, Any], sent: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata as sent but for what the server owns; the stored mapping itself if they say the same."""
    if sent is stored:
        return stored
    metadata = dict(sent)
    for field in _SERVERS_OWN:
        if field in stored:
            metadata[field] = stored[field]
        else:
            metadata.pop(field, None)
    return stored if metadata == stored else metadata


def _desired(obj: Obj) -> dict[str, Any]:
    """All of an object but its metadata and status: what somebody wants."""
    return {field: value for field, value in obj.items() if field not in {"metadata", "status"}}
