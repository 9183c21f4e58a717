"""The decision ledger: records of decisions with object, time, component and inputs."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from batchyard.api.meta import Key
from batchyard.base.instant import Instant


class DecisionRecord(NamedTuple):
    """A ledger entry. Type, reason and message are those of its Event; `details` are the inputs of the decision."""

    #: Increases monotonically, across restarts too.
    number: int
    at: Instant
    component: str
    regarding: Key
    type: str
    reason: str
    message: str
    details: Mapping[str, Any]


class LedgerQuery(NamedTuple):
    """A filter for entries; empty and None fields match all."""

    #: Entries about any of these. A name may end with `?`s, one for each further character.
    about: Sequence[Key] = ()
    kind: str = ""
    namespace: str = ""
    name: str = ""
    reason: str = ""
    #: From this instant (inclusive) to that one (exclusive).
    since: Instant | None = None
    until: Instant | None = None
    #: The maximum number of entries; the latest are returned.
    limit: int = 500


class QueryTooBroad(Exception):  # noqa: N818 - named after the condition
    """The query would scan too many entries; it returns nothing."""


class LedgerUnreadable(Exception):  # noqa: N818 - as above
    """A stored entry is corrupt; the message includes the remedy."""


class DecisionLedger(Protocol):
    """Stores decision records."""

    def find(self, query: LedgerQuery) -> Sequence[DecisionRecord]:
        """Return the matching entries in order. Raises TooBroad if that takes too long, Unreadable on corruption."""

    def get(self, number: int) -> DecisionRecord | None:
        """Return the entry of a number, or None. Raises Unreadable on corruption."""


# --- spans ---
#
# Trace spans in OpenTelemetry form.


class SpanEvent(NamedTuple):
    """An event within a span."""

    at: Instant
    name: str
    attributes: Mapping[str, str | int]


class TraceSpan(NamedTuple):
    """A span. Ids are lower-case hexadecimal, 32 digits for traces and 16 for spans."""

    trace: str
    id: str
    #: '' for the root of its trace.
    parent: str
    name: str
    start: Instant
    end: Instant
    attributes: Mapping[str, str | int]
    events: tuple[SpanEvent, ...] = ()
    #: Linked spans of other traces: (trace, span).
    links: tuple[tuple[str, str], ...] = ()
    #: The error; '' on success.
    error: str = ""
