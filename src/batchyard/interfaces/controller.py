"""What a controller is: it names the objects to look at, and says what it wants written. The runner does the rest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from batchyard.api.errors import ApiError
from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Reader, WatchEvent, Write


class EventRecord(NamedTuple):
    """A Kubernetes Event about an object, recorded only if the writes of its outcome succeed."""

    regarding: Key
    type: str  # Normal or Warning
    reason: str
    message: str
    #: What it rested on, for the decision ledger; worked out only where one is kept.
    details: Callable[[], Mapping[str, Any]] | None = None


@dataclass(slots=True)
class Outcome:
    """What one reconcile wants: writes in order, events if they succeed, and when to look again.

    Of the writes those before one that is refused are done, or before a crash. Independent ones do not need each other:
    whatever becomes of one, the others are tried.

    Where there are no writes `requeue_at` is all that there is to wait for: what a look before asked for is forgotten.
    """

    writes: list[Write] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    requeue_at: Instant | None = None
    independent: bool = False
    #: Of independent writes, what is recorded of each that succeeds, by its place.
    of_writes: dict[int, Sequence[EventRecord]] = field(default_factory=dict)
    #: What is recorded if one is refused: once, of the first.
    if_refused: Callable[[Write, ApiError], EventRecord | None] | None = None

    def add(self, write: Write, records: Sequence[EventRecord]) -> None:
        """Want one more independent write, and these events if it succeeds."""
        self.of_writes[len(self.writes)] = records
        self.writes.append(write)


class Controller(Protocol):
    """A function from a view of the objects to intended writes. No I/O, no clock, no waiting.

    What it remembers is an index that the same watch events would build again. Controllers with a higher `rank` run
    only when no key of a lower rank is waiting and no write is under way: so a scheduling cycle sees all that is due.
    """

    @property
    def name(self) -> str:
        """Its name, unlike any other's."""

    @property
    def rank(self) -> int:
        """The lower ranks settle first."""

    @property
    def kinds(self) -> Sequence[str] | None:
        """The kinds whose changes `keys_for` is told of; None: all."""

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Take note of a change, and name the objects to reconcile because of it."""

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Look at one object and say what to write."""


# --- kernel ---
#
# Time and the queue of work: one thread, work in order of (instant, arrival).


Work: TypeAlias = Callable[[], None]
Ticket: TypeAlias = int
"""Names work that is to be done later."""


class Clock(Protocol):
    """What time it is."""

    def now(self) -> Instant:
        """The present instant."""


class Kernel(Clock, Protocol):
    """A clock and the queue of work: live on an event loop, simulated on a heap."""

    def call_at(self, when: Instant, work: Work) -> Ticket:
        """Do the work at an instant (now, if that is past); equal instants in order of arrival."""

    def cancel(self, ticket: Ticket) -> None:
        """Do that work no more, unless its instant has come; no time passes for the sake of it."""

    def call_soon(self, work: Work) -> None:
        """Do the work at the present instant, after all that is due now."""


class Pace(Protocol):
    """How much of the time controllers above the lowest rank take, so that whoever asks need not wait for them."""

    def next_turn(self) -> Instant:
        """When they may look next, or it is to be asked again."""

    def take(self, turn: Work) -> None:
        """Do what one look is."""
