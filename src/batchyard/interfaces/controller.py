"""The interfaces of controllers: reconciling, the event loop (`Kernel`), the decision ledger, trace spans."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from batchyard.api.errors import ApiError
from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Reader, WatchEvent, Write


class EventRecord(NamedTuple):
    """A Kubernetes Event to record about an object, if the writes of the same reconcile succeed."""

    regarding: Key
    type: str  # Normal or Warning
    reason: str
    message: str
    #: Returns the inputs of the decision for the decision ledger; called only if there is a ledger.
    details: Callable[[], Mapping[str, Any]] | None = None


@dataclass(slots=True)
class ReconcileResult:
    """The result of a reconcile: writes in order, Events to record if they succeed, and when to requeue.

    If a write is rejected, or the process crashes, the earlier writes take effect and the later ones do not.
    If `independent`, all writes are attempted, even if some of them are rejected.

    Without writes, `requeue_at` replaces the key's earlier requeue time (None: no requeue). With writes, the earlier of
    both times counts. If `is_settled`, `requeue_at` holds for the state after the only write, the status of the key's
    object. Then the watch event of this write does not reconcile the key again.

    The key is not reconciled again before all its writes have results. A controller that does not need these results
    sets `in_flight_max`: then its key may be reconciled again while at most so many of its writes have no result. These
    writes must be independent. The controller must not submit another write of an object before the result of its last
    one (`on_result`).
    """

    writes: list[Write] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    requeue_at: Instant | None = None
    independent: bool = False
    is_settled: bool = False
    #: For independent writes: the Events to record if a write succeeds, by its index.
    events_by_write: dict[int, Sequence[EventRecord]] = field(default_factory=dict)
    #: Returns the Event to record if a write is rejected; called for the first rejected one only.
    event_if_rejected: Callable[[Write, ApiError], EventRecord | None] | None = None
    in_flight_max: int = 0
    #: Called with each independent write and its error, None on success; returns whether to reconcile the key again.
    on_result: Callable[[Write, ApiError | None], bool] | None = None

    def add(self, write: Write, events: Sequence[EventRecord]) -> None:
        """Add an independent write, with the Events to record if the write succeeds."""
        self.events_by_write[len(self.writes)] = events
        self.writes.append(write)


class Controller(Protocol):
    """A controller computes the required writes from the current objects, without I/O, clock access or waiting.

    Its state is an index that can be rebuilt from the watch events. A controller with a higher `rank` runs only when no
    controller of a lower rank has queued keys and the client has settled (`ObjectClient.is_settled`).
    """

    @property
    def name(self) -> str:
        """The unique name of the controller."""

    @property
    def rank(self) -> int:
        """The rank of the controller: controllers with a lower rank run first."""

    @property
    def kinds(self) -> Sequence[str] | None:
        """The kinds whose changes `keys_for` receives; None for all kinds."""

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Update the controller's index with a watch event, and return the keys to reconcile."""

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Reconcile one key, and return the writes that it requires."""


# Time and scheduled callbacks: one thread runs them in order of (instant, arrival).


Work: TypeAlias = Callable[[], None]
Ticket: TypeAlias = int
"""Identifies scheduled work."""


class Clock(Protocol):
    """The current time, real or simulated."""

    def now(self) -> Instant:
        """Return the current instant."""


class Kernel(Clock, Protocol):
    """A clock and a queue of callbacks by time: an event loop in the live platform, a heap in the simulator."""

    def call_at(self, instant: Instant, callback: Work) -> Ticket:
        """Schedule a callback for an instant, or for now if the instant has passed; return the ticket to cancel it.

        Callbacks of one instant run in the order in which they were scheduled.
        """

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a scheduled callback that is not due yet. Simulated time does not advance for a canceled one."""

    def call_soon(self, callback: Work) -> None:
        """Run a callback at the current instant, after all callbacks that are already due."""


class ReconcileThrottle(Protocol):
    """Limits the time used by controllers above the lowest rank, so that API requests are not delayed."""

    def next_turn(self) -> Instant:
        """Return a past instant if a reconcile may run now, else the instant at which to call this method again."""

    def run_reconcile(self, reconcile: Work) -> None:
        """Run one reconcile, and count its duration toward the limit on the controllers' share of time."""


# The decision ledger: records of scheduling decisions with object, time, component and inputs.


class DecisionRecord(NamedTuple):
    """An entry of the decision ledger: a scheduling decision, its inputs (`details`), and the text of its Event."""

    #: The number of the record, which increases monotonically, across restarts too.
    number: int
    at: Instant
    component: str
    regarding: Key
    type: str
    reason: str
    message: str
    details: Mapping[str, Any]


class LedgerQuery(NamedTuple):
    """A filter for entries of the decision ledger; empty and None fields match all entries."""

    #: Entries about any of these objects. A name may end with `?`s, one for each further character.
    regarding: Sequence[Key] = ()
    kind: str = ""
    namespace: str = ""
    name: str = ""
    reason: str = ""
    #: Entries from `since` (inclusive) to `until` (exclusive).
    since: Instant | None = None
    until: Instant | None = None
    #: The maximum number of entries; the latest are returned.
    limit: int = 500


class QueryTooBroad(Exception):  # noqa: N818 - named after the condition
    """A query of the decision ledger would scan too many entries; no entries are returned."""


class LedgerUnreadable(Exception):  # noqa: N818 - as above
    """A stored entry of the decision ledger is corrupt. The message contains the remedy."""


class DecisionLedger(Protocol):
    """Read access to the records of scheduling decisions."""

    def find(self, query: LedgerQuery) -> Sequence[DecisionRecord]:
        """Return the decision records that match a query, oldest first. Raises QueryTooBroad or LedgerUnreadable."""

    def get(self, number: int) -> DecisionRecord | None:
        """Return the decision record with a number; None if there is none. Raises LedgerUnreadable if it is corrupt."""


# Trace spans in OpenTelemetry form.


class SpanEvent(NamedTuple):
    """An event within a trace span, as in OpenTelemetry."""

    at: Instant
    name: str
    attributes: Mapping[str, str | int]


class TraceSpan(NamedTuple):
    """A span of an OpenTelemetry trace. Ids are lowercase hexadecimal: 32 digits for traces, 16 for spans."""

    trace_id: str
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
