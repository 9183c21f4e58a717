"""The connections there are: how many there may be, and how they end when the platform does."""

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from typing import Final, Protocol

from batchyard.base.instant import SECOND
from batchyard.server.clocks.wall import wall_clock

#: Below the 1,024 open files that a process may commonly have.
CONNECTIONS_MAX: Final = 900
#: Of one certificate, and of all who show none: some are left to others.
CONNECTIONS_OF_ONE_MAX: Final = 600
#: Connections to ports of pods that are forwarded, each an open file: all, and those of one user.
PORTS_MAX: Final = 4000
PORTS_OF_ONE_MAX: Final = 400
#: Bytes of all bodies that are taken in and not answered yet.
BODIES_MAX: Final = 256 * 1024 * 1024
#: Of these, the bodies of one user.
BODIES_OF_ONE_MAX: Final = 64 * 1024 * 1024


class Ending(Protocol):
    """A connection, as far as its end goes."""

    def end(self) -> None:
        """End once what is under way is answered."""

    def abort(self) -> None:
        """End now."""

    @property
    def peer(self) -> object:
        """Who is at the other end, as far as the connection itself tells."""


class Connections:
    """See the module."""

    def __init__(self) -> None:
        self._open: dict[Ending, None] = {}
        self._none_left = asyncio.Event()
        self._held = 0
        self._held_by: dict[str, int] = {}
        self._ports: dict[str, int] = {}
        self._second = 0
        self._date = b""

    def enter(self, connection: Ending) -> bool:
        """Count a connection until it leaves; False where there are too many, or too many of one peer."""
        peer = connection.peer
        alike = sum(1 for each in self._open if each.peer == peer)
        self._open[connection] = None
        return len(self._open) <= CONNECTIONS_MAX and alike < CONNECTIONS_OF_ONE_MAX

    def hold(self, holder: str, length: int) -> bool:
        """Count bytes of bodies that are taken in, or given back; False where there are too many.

        `holder` is the flow that they belong to; '' is the owner's, which has no bound of its own.
        """
        self._held += length
        of_one = self._held_by.get(holder, 0) + length
        if of_one:
            self._held_by[holder] = of_one
        else:
            self._held_by.pop(holder, None)
        return self._held <= BODIES_MAX and (not holder or of_one <= BODIES_OF_ONE_MAX)

    def enter_port(self, holder: str) -> bool:
        """Count a connection to a port until it leaves; False, and it is not counted, where there are too many.

        `holder` is as for bodies.
        """
        of_one = self._ports.get(holder, 0)
        if sum(self._ports.values()) >= PORTS_MAX or (holder and of_one >= PORTS_OF_ONE_MAX):
            return False
        self._ports[holder] = of_one + 1
        return True

    def leave_port(self, holder: str) -> None:
        """A connection to a port is gone."""
        self._ports[holder] -= 1
        if not self._ports[holder]:
            del self._ports[holder]

    def leave(self, connection: Ending) -> None:
        """A connection is gone."""
        self._open.pop(connection, None)
        if not self._open:
            self._none_left.set()

    async def end(self, within: float) -> None:
        """End all of them; those that take longer than some seconds, at once."""
        for connection in list(self._open):
            connection.end()
        if self._open:
            self._none_left.clear()
            try:
                await asyncio.wait_for(self._none_left.wait(), within)
            except TimeoutError:
                for connection in list(self._open):
                    connection.abort()

    def date(self) -> bytes:
        """The present time as HTTP has it."""
        second = wall_clock() // SECOND
        if second != self._second:
            self._second, self._date = second, formatdate(second, usegmt=True).encode()
        return self._date


# --- deadline ---
#
# One thing at a time that has to come within a time.
#
# What is awaited changes several times with each request, so the timer is let run: when it rings it is looked whether
# anything is late, and otherwise it is set again.


class Deadline:
    """What is awaited, and what happens if it does not come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awaited: tuple[str, int] | None = None
        self._late: Callable[[], object] = _nothing
        #: By the loop's clock: when what is awaited is late, and when the timer rings.
        self._due = 0.0
        self._rings = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, awaited: tuple[str, int], within: float, late: Callable[[], object]) -> None:
        """Await something, the so-manieth of its kind; it has no more time because it is awaited again."""
        if awaited == self._awaited:
            return
        self._awaited, self._late = awaited, late
        self._due = self._loop.time() + within
        if self._timer is None or self._rings > self._due:
            self._set()

    def stop(self) -> None:
        """Await nothing."""
        self._awaited = None

    def end(self) -> None:
        """Await nothing any more."""
        self._awaited, self._late = None, _nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = self._due
        self._timer = self._loop.call_at(self._due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._awaited is None:
            return
        if self._due > self._rings:
            self._set()
        else:
            self._late()


def _nothing() -> None:
    pass
