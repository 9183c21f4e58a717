"""Cells of Events. Source: Kubernetes's pkg/printers/internalversion (printEvent)."""

from typing import Final

from batchyard.api.events import last_told, times_told
from batchyard.api.meta import Obj
from batchyard.api.tables import cells
from batchyard.api.tables.cells import UNKNOWN, Column, at, value
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant, format_age


def _last_seen(obj: Obj, now: Instant) -> str:
    at_last = last_told(obj)
    return format_age(now - parse_time(at_last)) if at_last else UNKNOWN


def _first_seen(obj: Obj, now: Instant) -> str:
    at_first = obj.get("firstTimestamp") or obj.get("eventTime")
    return format_age(now - parse_time(at_first)) if at_first else UNKNOWN


def _count(obj: Obj, _now: Instant) -> str:
    return str(times_told(obj))


def _object(obj: Obj, _now: Instant) -> str:
    kind, name = (value(obj, "involvedObject", field) or "" for field in ("kind", "name"))
    return f"{kind.lower()}/{name}" if name else kind.lower()


def _source(obj: Obj, _now: Instant) -> str:
    component = value(obj, "source", "component") or obj.get("reportingComponent") or ""
    host = value(obj, "source", "host") or obj.get("reportingInstance") or ""
    return f"{component}, {host}" if host else component


EVENTS: Final = (
    (Column("Last Seen"), _last_seen),
    (Column("Type"), at("type")),
    (Column("Reason"), at("reason")),
    (Column("Object"), _object),
    (Column("Subobject", priority=1), at("involvedObject", "fieldPath")),
    (Column("Source", priority=1), _source),
    (Column("Message"), lambda obj, _now: (obj.get("message") or "").strip()),
    (Column("First Seen", priority=1), _first_seen),
    (Column("Count", priority=1, counts=True), _count),
    (Column("Name", priority=1), cells.name),
)
