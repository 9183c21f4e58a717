"""Conditions: what is true of an object now, why, and since when.

Setters return a new list and share the conditions that stay. Source: k8s.io/apimachinery api/meta/conditions.go; the
cut of long messages: Kueue's pkg/util/api.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.base.instant import Instant

MESSAGE_BYTES_MAX: Final = 32 * 1024
_CUT: Final = b" ..."

Condition = Mapping[str, Any]


def find_condition(obj_or_status: Mapping[str, Any], type: str) -> Condition | None:  # noqa: A002 - the field's name
    """The condition of that type, or None. Takes a whole object or its status."""
    status = obj_or_status.get("status", obj_or_status)
    for condition in (status and status.get("conditions")) or ():
        if condition["type"] == type:
            return condition  # type: ignore[no-any-return]
    return None


def is_true(obj_or_status: Mapping[str, Any], type: str) -> bool:  # noqa: A002
    """Whether there is a condition of that type with status True."""
    condition = find_condition(obj_or_status, type)
    return condition is not None and condition["status"] == "True"


def with_condition(  # noqa: PLR0913 - the fields of a condition
    conditions: Sequence[Condition],
    *,
    type: str,  # noqa: A002
    status: bool,
    reason: str,
    message: str,
    now: Instant,
    generation: int | None = None,
) -> list[Condition]:
    """The conditions with this one set: in its old place, or at the end.

    `lastTransitionTime` changes only with the status. Returns the very list it was given when nothing changes.
    """
    wanted: dict[str, Any] = {"type": type, "status": "True" if status else "False"}
    if generation:
        wanted["observedGeneration"] = generation
    wanted |= {"lastTransitionTime": format_time(now), "reason": reason, "message": cut_message(message)}
    for index, old in enumerate(conditions):
        if old["type"] != type:
            continue
        if old["status"] == wanted["status"] and "lastTransitionTime" in old:
            wanted["lastTransitionTime"] = old["lastTransitionTime"]
        if old == wanted and isinstance(conditions, list):
            return conditions
        return [*conditions[:index], wanted, *conditions[index + 1 :]]
    return [*conditions, wanted]


def cut_message(message: str, bytes_max: int = MESSAGE_BYTES_MAX) -> str:
    """The message, cut to what a condition may hold, or to so many bytes."""
    if len(message) * 4 <= bytes_max:
        return message
    encoded = message.encode()
    if len(encoded) <= bytes_max:
        return message
    return (encoded[: bytes_max - len(_CUT)] + _CUT).decode(errors="ignore")


# --- events ---
#
# Events of both sorts: those that are counted and those that are series, read alike.


def last_told(event: Obj) -> str:
    """When it was told last, as it is written; '' if it does not say. Source: printEvent of Kubernetes's printers."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return last or ""


def times_told(event: Obj) -> int:
    """How often it was told."""
    return (event.get("series") or {}).get("count") or event.get("count") or 1
