"""The interfaces of controllers: reconciliation, the kernel (clock and work queue), decision ledger, trace spans."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from batchyard.api.errors import ApiError
from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Reader, WatchEvent, Write


class EventRecord(NamedTuple):
    """A Kubernetes Event about an object, recorded only if the writes of the same reconcile result succeed."""

    regarding: Key
    type: str  # Normal or Warning
    reason: str
    message: str
    #: The inputs of the decision for the ledger; computed only if a ledger is kept.
    details: Callable[[], Mapping[str, Any]] | None = None


@dataclass(slots=True)
class ReconcileResult:
    """The result of a reconcile: writes in order, Events to record if they succeed, and when to requeue.

    Writes before a rejected one, or before a crash, take effect. Independent writes are all attempted, even if others
    are rejected.

    Without writes, `requeue_at` replaces the requeue time of earlier reconciles.
    """

    writes: list[Write] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    requeue_at: Instant | None = None
    independent: bool = False
    #: For independent writes: the Events to record if a write succeeds, by its index.
    events_by_write: dict[int, Sequence[EventRecord]] = field(default_factory=dict)
    #: Returns the Event to record if a write is rejected; called for the first rejected one only.
    event_if_rejected: Callable[[Write, ApiError], EventRecord | None] | None = None

    def add(self, write: Write, records: Sequence[EventRecord]) -> None:
        """Add an independent write, with the Events to record if the write succeeds."""
        self.events_by_write[len(self.writes)] = records
        self.writes.append(write)


class Controller(Protocol):
    """A function from a view of the objects to intended writes, without I/O, clock or waiting.

    Its state is an index that can be rebuilt from the same watch events. Controllers with a higher `rank` run only when
    no key of a lower rank is queued and no write is in progress. So a scheduling cycle sees the results of all due
    reconciles.
    """

    @property
    def name(self) -> str:
        """The unique name of the controller."""

    @property
    def rank(self) -> int:
        """The order of the controller: controllers with a lower rank run first."""

    @property
    def kinds(self) -> Sequence[str] | None:
        """The kinds whose changes `keys_for` receives; None for all kinds."""

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Update the controller's index with a change, and return the keys to reconcile."""

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Reconcile one key and return the intended writes."""


# Time and the work queue: one thread, work in order of (instant, arrival).


Work: TypeAlias = Callable[[], None]
Ticket: TypeAlias = int
"""Identifies scheduled work."""


class Clock(Protocol):
    """The current time, real or simulated."""

    def now(self) -> Instant:
        """Return the current instant."""


class Kernel(Clock, Protocol):
    """A clock and a queue of timed work: an event loop in the live platform, a heap in the simulator."""

    def call_at(self, instant: Instant, work: Work) -> Ticket:
        """Schedule work at an instant, or now if that has passed; work of the same instant runs in order of arrival."""

    def cancel(self, ticket: Ticket) -> None:
        """Cancel scheduled work that is not due yet. Simulated time does not advance for canceled work."""

    def call_soon(self, work: Work) -> None:
        """Run the work at the current instant, after all work that is already due."""


class ReconcileThrottle(Protocol):
    """Limits the time share of controllers above the lowest rank, so that API requests are not delayed."""

    def next_turn(self) -> Instant:
        """Return the instant of the next allowed reconcile, or the instant to call this method again."""

    def take(self, turn: Work) -> None:
        """Run one reconcile, and count its duration toward the limit."""


# The decision ledger: records of decisions with object, time, component and inputs.


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
    """A filter for ledger entries; empty and None fields match all."""

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
    """The ledger query would scan too many entries; it returns nothing."""


class LedgerUnreadable(Exception):  # noqa: N818 - as above
    """A stored ledger entry is corrupt; the message includes the remedy."""


class DecisionLedger(Protocol):
    """Stores decision records."""

    def find(self, query: LedgerQuery) -> Sequence[DecisionRecord]:
        """Return the matching entries in order. Raises QueryTooBroad, or LedgerUnreadable if an entry is corrupt."""

    def get(self, number: int) -> DecisionRecord | None:
        """Return the ledger entry with a number, or None. Raises LedgerUnreadable if it is corrupt."""


# Trace spans in OpenTelemetry form.


class SpanEvent(NamedTuple):
    """An event within a trace span."""

    at: Instant
    name: str
    attributes: Mapping[str, str | int]


class TraceSpan(NamedTuple):
    """A trace span. Ids are lowercase hexadecimal: 32 digits for traces, 16 for spans."""

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
