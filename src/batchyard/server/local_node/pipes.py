"""Non-blocking reads and writes of pipes, terminals and sockets on the event loop."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import Final

#: Bytes read at once.
_PART: Final = 64 * 1024
#: Watermarks in bytes: above the high one the producer must pause, at the low one it may resume.
_HIGH: Final = 256 * 1024
_LOW: Final = 64 * 1024


class PipeReader:
    """Reads a file until its end while enabled, then closes it."""

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
        """Resume or pause reading."""
        if listens == self._listens or not self._is_open:
            return
        self._listens = listens
        if listens:
            self._loop.add_reader(self._file, self._read)
        else:
            self._loop.remove_reader(self._file)

    def close(self) -> None:
        """Stop reading, and close the file."""
        self.listen(listens=False)
        if self._is_open:
            self._is_open = False
            os.close(self._file)

    def _read(self) -> None:
        try:
            data = os.read(self._file, _PART)
        except BlockingIOError:
            return
        except OSError:  # a terminal without open slaves, or a reset connection
            data = b""
        if data:
            self._take(data)
        else:
            self.close()
            self._over()


class PipeWriter:
    """A buffered writer to a file. `wants_more` gets False when the buffer is full and True when it has room again."""

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
        """Write data as soon as possible. It is dropped once the reader has closed."""
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
        """Close the file once everything is written."""
        self._is_ending = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        """Close the file, and drop buffered data."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_writer(self._file)
            os.close(self._file)
            self._waiting.clear()
            self._bytes = 0
            self._report_room()

    def _write(self) -> None:
        """Write as much as possible now."""
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
        except OSError:  # the reader has closed
            self.close()
            return
        self._continue()

    def _continue(self) -> None:
        if self._waiting:
            self._loop.add_writer(self._file, self._write)
        else:
            self._loop.remove_writer(self._file)
            if self._is_ending:
                self.close()
        self._report_room()

    def _report_room(self) -> None:
        if self._is_full and self._bytes <= _LOW:
            self._is_full = False
            self._wants_more(True)
