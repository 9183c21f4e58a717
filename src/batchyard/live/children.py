"""Work in a fork of this process: it has all objects for nothing, and sends what it found over a pipe.

A child closes all files but its pipe, and keeps away from threads, sockets and the journal. It does not collect
garbage, which would copy all pages. It ends at once, without any of what ends a process in order.
"""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn, TypeAlias

#: How much less than others a child is given of the processors.
_NICE: Final = 10
_READ: Final = 1 << 16
#: What the kernel counts memory in.
_MAXRSS: Final = 1024
ChildWork: TypeAlias = Callable[[], bytes]
"""Computes what a child sends."""


class ChildResult(NamedTuple):
    """What a child sent, nothing where it was killed or has a defect, and what it used."""

    sent: bytes
    cpu_seconds: float
    memory: int


class Child:
    """A fork of this process that computes one result."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: ChildWork, within: float, done: Callable[[ChildResult], None]
    ) -> None:
        """Fork; `done` is called with the result, after `within` seconds at the latest: then the child is killed."""
        self._loop = loop
        self._done = done
        self._sent = bytearray()
        self._reading, writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _run(work, writing)
        os.close(writing)
        self._killing = loop.call_later(within, self.kill)
        loop.add_reader(self._reading, self._read)

    def kill(self) -> None:
        """Kill the child; its result is empty."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _read(self) -> None:
        """Take in a part of the result, or its end."""
        part = os.read(self._reading, _READ)
        if part:
            self._sent += part
            return
        self._loop.remove_reader(self._reading)
        os.close(self._reading)
        self._killing.cancel()
        used = os.wait4(self._pid, 0)[2]
        self._done(ChildResult(bytes(self._sent), used.ru_utime + used.ru_stime, used.ru_maxrss * _MAXRSS))


def _run(work: ChildWork, writing: int) -> NoReturn:
    """Do all that a child does."""
    code = 1
    try:
        gc.disable()
        os.nice(_NICE)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _close_all_but(writing)
        sent = memoryview(work())
        while sent:
            sent = sent[os.write(writing, sent) :]
        code = 0
    finally:
        os._exit(code)


def _close_all_but(kept: int) -> None:
    """Close all files, so that no other process waits for this one to close them."""
    os.closerange(0, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
