"""Conditions in the status of an object.

Setters return a new list and share the unchanged conditions. Source: k8s.io/apimachinery api/meta/conditions.go; the
truncation of long messages: Kueue's pkg/util/api.
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
    """Return the condition of that type, or None. Takes a whole object or its status."""
    status = obj_or_status.get("status", obj_or_status)
    for condition in (status and status.get("conditions")) or ():
        if condition["type"] == type:
            return condition  # type: ignore[no-any-return]
    return None


def is_true(obj_or_status: Mapping[str, Any], type: str) -> bool:  # noqa: A002
    """Report whether a condition of that type has the status True."""
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
    """Return the conditions with this one set, in its old place or at the end.

    `lastTransitionTime` changes only with the status. Returns the given list itself if nothing changes.
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
    """Truncate a message to the maximum size of a condition message, or to that many bytes."""
    if len(message) * 4 <= bytes_max:
        return message
    encoded = message.encode()
    if len(encoded) <= bytes_max:
        return message
    return (encoded[: bytes_max - len(_CUT)] + _CUT).decode(errors="ignore")


# --- events ---
#
# Fields of Events of both APIs, core/v1 with a count and events.k8s.io/v1 with a series.


def event_last_time(event: Obj) -> str:
    """Return the time of the last occurrence as text, or ''. Source: printEvent of Kubernetes's printers."""
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return last or ""


def event_count(event: Obj) -> int:
    """Return the number of occurrences."""
    return (event.get("series") or {}).get("count") or event.get("count") or 1
