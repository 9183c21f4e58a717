"""Rules of Events: one is kept where what it is about is. Source: Kubernetes's pkg/apis/core/validation/events.go.

Those with a time of their own are of the newer form, which must say more.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata, names

#: Where Events are about what has no namespace; the newer form has one place more.
_OF_NO_NAMESPACE: Final = ("default",)
_OF_NO_NAMESPACE_NEWER: Final = ("default", "kube-system")
#: Letters of the texts that the newer form must have, and of those that it may.
_LENGTH_MAX: Final = 128
_NOTE_LENGTH_MAX: Final = 1024
_TYPES: Final = ("Normal", "Warning")
#: What the newer form says in another way.
_OF_OLD: Final = ("firstTimestamp", "lastTimestamp", "count", "source")
_SETTLED: Final = (
    *("involvedObject", "reason", "message", *_OF_OLD, "type", "eventTime"),
    *("action", "related", "reportingComponent", "reportingInstance"),
)


def event_faults(event: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of an Event."""
    yield from metadata.metadata_faults(event)
    is_newer = bool(event.get("eventTime"))
    about, namespace = (
        (event.get("involvedObject") or {}).get("namespace") or "",
        event["metadata"].get("namespace", ""),
    )
    if not about:
        fits = namespace in (_OF_NO_NAMESPACE_NEWER if is_newer else _OF_NO_NAMESPACE)
    else:
        fits = is_newer or about == namespace
    if not fits:
        remedy = "tell of it in the namespace of what it is about; in `default` of what has none"
        yield faults.invalid("involvedObject.namespace", about, "does not match event.namespace", remedy)
    if is_newer:
        yield from _newer_faults(event)


def strict_faults(event: Mapping[str, Any]) -> Iterator[FieldError]:
    """What a new Event breaks beside these where it comes as one of `events.k8s.io`."""
    yield from _series_faults(event)
    if not event.get("eventTime"):
        yield faults.required("eventTime", "", "say when it was")
    if event.get("type") not in _TYPES:
        yield faults.invalid("type", "", f"has invalid value: {event.get('type') or ''}", "use Normal or Warning")
    for field in _OF_OLD:
        if event.get(field):
            yield faults.invalid(field, "", "needs to be unset", "leave it out")


def strict_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """What of an Event does not change by `events.k8s.io`: all but its series."""
    if new.get("series") != old.get("series"):
        yield from _series_faults(new)
    for field in _SETTLED:
        if (new.get(field) or None) != (old.get(field) or None):
            yield faults.immutable(field, new.get(field))


def _series_faults(event: Mapping[str, Any]) -> Iterator[FieldError]:
    series = event.get("series")
    if series is None:
        return
    if (series.get("count") or 0) < 2:
        yield faults.invalid("series.count", "", "should be at least 2", "tell of a single one without a series")
    if not series.get("lastObservedTime"):
        yield faults.required("series.lastObservedTime", "", "say when it was last")


def _newer_faults(event: Mapping[str, Any]) -> Iterator[FieldError]:
    component = event.get("reportingComponent") or ""
    if not component:
        yield faults.required("reportingComponent", "", "name who tells of it")
    for message in names.qualified_name(component):
        yield faults.invalid("reportingComponent", component, message, "name it as kubernetes.io/kubelet")
    for field in ("reportingInstance", "action", "reason"):
        text = event.get(field) or ""
        if not text:
            yield faults.required(field, "", "say it")
        if len(text.encode()) > _LENGTH_MAX:
            yield faults.invalid(field, "", f"can have at most {_LENGTH_MAX} characters", "say it in fewer")
    if len((event.get("message") or "").encode()) > _NOTE_LENGTH_MAX:
        yield faults.invalid("message", "", f"can have at most {_NOTE_LENGTH_MAX} characters", "say it in fewer")
