"""Time and the queue of work: one thread, work in order of (instant, arrival)."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from batchyard.base.instant import Instant

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
