"""Platform side of the watchdog process (`shim/guard.py`): shares its heartbeats and current request with it."""

import asyncio
import faulthandler
import logging
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from batchyard.apiserver.request import ApiRequest
from batchyard.server.clocks.wall import ticks
from batchyard.server.logging.logs import JsonFormatter
from batchyard.shim.guard import LAYOUT, SIZE

_MODULE: Final = "batchyard.shim.guard"
_BEATS_EVERY: Final = 0.25  # seconds
#: Maximum bytes of the description of a request.
_NAMED_MAX: Final = 512


class LoopWatchdog:
    """A running watchdog process, and the memory shared with it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listeners: Sequence[socket.socket], certificate: Path | None
    ) -> None:
        self._loop = loop
        memory, self._stacks = os.memfd_create("guard"), os.memfd_create("stacks", 0)
        os.truncate(memory, SIZE)
        self._memory = mmap.mmap(memory, SIZE)
        reading, self._alive = os.pipe()
        faulthandler.register(signal.SIGUSR2, file=self._stacks)
        self._timer = loop.call_soon(self._beat)
        self._note(ticks(), 0.0, b"")
        files = (reading, memory, self._stacks, *(each.fileno() for each in listeners))
        names = (str(os.getpid()), *map(str, files[:3]), _form(), "" if certificate is None else str(certificate))
        self._process = subprocess.Popen(  # noqa: S603 - a fixed command
            [sys.executable, "-I", "-m", _MODULE, *names, *map(str, files[3:])],
            stdin=subprocess.DEVNULL,
            pass_fds=files,
            start_new_session=True,
        )
        os.close(reading)
        os.close(memory)

    @property
    def pid(self) -> int:
        """The pid of the watchdog process."""
        return self._process.pid

    def begin(self, request: ApiRequest) -> None:
        """Record the request in progress."""
        named = f"{request.method} {request.path} of {request.user.name}".encode("utf-8", "replace")[:_NAMED_MAX]
        began = ticks()
        self._note(began, began, named)

    def end(self) -> None:
        """Record that no request is in progress."""
        self._note(ticks(), 0.0, b"")

    def close(self) -> None:
        """Kill the watchdog process."""
        self._timer.cancel()
        faulthandler.unregister(signal.SIGUSR2)
        self._process.kill()
        self._process.wait()
        os.close(self._alive)
        os.close(self._stacks)

    def _beat(self) -> None:
        self._timer = self._loop.call_later(_BEATS_EVERY, self._beat)
        self._note(ticks(), 0.0, b"")

    def _note(self, seen: float, began: float, named: bytes) -> None:
        LAYOUT.pack_into(self._memory, 0, seen, began, len(named))
        self._memory[LAYOUT.size : LAYOUT.size + len(named)] = named


def _form() -> str:
    """Return the log format of this process."""
    handlers = logging.getLogger().handlers
    return "json" if any(isinstance(handler.formatter, JsonFormatter) for handler in handlers) else "text"
