"""Bytes through files that are pipes, terminals or sockets, on the event loop: neither way waits."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Final

#: Bytes that are read at once.
_PART: Final = 64 * 1024
#: Bytes that may wait to be written before who writes is told to stop, and at which he is told to go on.
_HIGH: Final = 256 * 1024
_LOW: Final = 64 * 1024


class Inflow:
    """Reads a file to its end, as long as it is listened to; then closes it."""

    def __init__(
        self, file: int, loop: asyncio.AbstractEventLoop, take: Callable[[bytes], None], over: Callable[[], None]
    ) -> None:
        self._file = file
        self._loop = loop
        self._take = take
        self._over = over
        self._is_open = True
        self._listens = False
        os.set_blocking(file, False)
        self.listen(listens=True)

    def listen(self, *, listens: bool) -> None:
        """Whether anything is to be read."""
        if listens == self._listens or not self._is_open:
            return
        self._listens = listens
        if listens:
            self._loop.add_reader(self._file, self._read)
        else:
            self._loop.remove_reader(self._file)

    def close(self) -> None:
        """Read no more."""
        self.listen(listens=False)
        if self._is_open:
            self._is_open = False
            os.close(self._file)

    def _read(self) -> None:
        try:
            data = os.read(self._file, _PART)
        except BlockingIOError:
            return
        except OSError:  # a terminal that nobody has open any more, or a connection that was reset
            data = b""
        if data:
            self._take(data)
        else:
            self.close()
            self._over()


class Outflow:
    """Writes to a file what it is given; `wants_more` is told when too much waits, and when it does no more."""

    def __init__(self, file: int, loop: asyncio.AbstractEventLoop, wants_more: Callable[[bool], None]) -> None:
        self._file = file
        self._loop = loop
        self._wants_more = wants_more
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._is_open = True
        self._is_ending = False
        self._is_full = False
        os.set_blocking(file, False)

    def write(self, data: bytes) -> None:
        """Write it as soon as that can be. What nobody reads any more is dropped."""
        if not self._is_open or self._is_ending or not data:
            return
        self._waiting.append(data)
        self._bytes += len(data)
        if len(self._waiting) == 1:
            self._write()
        if self._bytes > _HIGH and not self._is_full:
            self._is_full = True
            self._wants_more(False)

    def end(self) -> None:
        """Close it when all is written."""
        self._is_ending = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        """Write no more."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_writer(self._file)
            os.close(self._file)
            self._waiting.clear()
            self._bytes = 0
            self._tell()

    def _write(self) -> None:
        """Write as much as is taken now."""
        try:
            while self._waiting:
                data = self._waiting[0]
                written = os.write(self._file, data)
                self._bytes -= written
                if written < len(data):
                    self._waiting[0] = data[written:]
                    break
                self._waiting.popleft()
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it any more
            self.close()
            return
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._loop.add_writer(self._file, self._write)
        else:
            self._loop.remove_writer(self._file)
            if self._is_ending:
                self.close()
        self._tell()

    def _tell(self) -> None:
        if self._is_full and self._bytes <= _LOW:
            self._is_full = False
            self._wants_more(True)
