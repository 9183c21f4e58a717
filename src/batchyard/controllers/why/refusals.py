"""Writes about an object that the API server refuses again and again, as the Events of controllers report them."""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import MINUTE, Instant, format_age
from batchyard.core.reasons import WRITE_REFUSED
from batchyard.ports.client import Reader

#: A refused write is retried every minute: an Event that is older than this is of a write that was done since.
_LASTS: Final = 5 * MINUTE


def last_refusal(obj: Obj, reader: Reader, now: Instant) -> str:
    """The last refusal of a write about an object, with its age; '' if there is none of the last minutes."""
    metadata = obj["metadata"]
    found = {
        _told_at(event): event["message"]
        for event in reader.list(scheme.EVENT, metadata.get("namespace") or "default")
        if event.get("reason") == WRITE_REFUSED and event["involvedObject"].get("uid") == metadata.get("uid")
    }
    last = max(found, default=0)
    return f"{found[last]} ({format_age(max(0, now - last))} ago)" if last and now - last < _LASTS else ""


def _told_at(event: Mapping[str, Any]) -> Instant:
    """When an Event was told last."""
    told = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return parse_time(told) if told else 0
