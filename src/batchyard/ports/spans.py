"""Spans: what took how long, and as part of what, as OpenTelemetry has them."""

from collections.abc import Mapping
from typing import NamedTuple

from batchyard.base.instant import Instant


class SpanEvent(NamedTuple):
    """Something that happened within a span."""

    at: Instant
    name: str
    attributes: Mapping[str, str | int]


class Span(NamedTuple):
    """One span. Ids are lower-case hexadecimal, 32 digits for traces and 16 for spans."""

    trace: str
    id: str
    #: '' for the root of its trace.
    parent: str
    name: str
    start: Instant
    end: Instant
    attributes: Mapping[str, str | int]
    events: tuple[SpanEvent, ...] = ()
    #: Spans of other traces that it has to do with: trace and span.
    links: tuple[tuple[str, str], ...] = ()
    #: Why it failed; '' if it did not.
    error: str = ""
