"""The decision ledger: what was decided about which object, when, by whom, and what it rested on."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from batchyard.api.meta import Key
from batchyard.base.instant import Instant


class DecisionRecord(NamedTuple):
    """One entry. The words are those of the Event that told it; `details` are what it rested on."""

    #: Counts up, over restarts too.
    number: int
    at: Instant
    component: str
    regarding: Key
    type: str
    reason: str
    message: str
    details: Mapping[str, Any]


class LedgerQuery(NamedTuple):
    """Which entries are asked for; what is empty or None bounds nothing."""

    #: Entries about any of these. A name may end with `?`s, one for each further character.
    about: Sequence[Key] = ()
    kind: str = ""
    namespace: str = ""
    name: str = ""
    reason: str = ""
    #: From this instant on, and before that one.
    since: Instant | None = None
    until: Instant | None = None
    #: No more than so many: the latest.
    limit: int = 500


class TooBroad(Exception):  # noqa: N818 - says what happened
    """So many entries would have to be looked through that it would take too long; nothing is answered."""


class Unreadable(Exception):  # noqa: N818 - as above
    """What was kept is not as it was written; says what to do."""


class Ledger(Protocol):
    """Where entries are kept."""

    def find(self, query: LedgerQuery) -> Sequence[DecisionRecord]:
        """The entries asked for, in order; TooBroad where that would take too long, Unreadable where it cannot be."""

    def get(self, number: int) -> DecisionRecord | None:
        """The entry of that number, if it is still kept; Unreadable where it cannot be read."""


# --- spans ---
#
# Spans: what took how long, and as part of what, as OpenTelemetry has them.


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
