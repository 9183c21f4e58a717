"""The connections there are: how many there may be, and how they end when the platform does."""

import asyncio
from email.utils import formatdate
from typing import Final, Protocol

from batchyard.base.instant import SECOND
from batchyard.live.clock import wall_clock

#: Below the 1,024 open files that a process may commonly have.
CONNECTIONS_MAX: Final = 900


class Ending(Protocol):
    """A connection, as far as its end goes."""

    def end(self) -> None:
        """End once what is under way is answered."""

    def abort(self) -> None:
        """End now."""


class Connections:
    """See the module."""

    def __init__(self) -> None:
        self._open: dict[Ending, None] = {}
        self._none_left = asyncio.Event()
        self._second = 0
        self._date = b""

    def enter(self, connection: Ending) -> bool:
        """Count a connection until it leaves; False where there are too many."""
        self._open[connection] = None
        return len(self._open) <= CONNECTIONS_MAX

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
