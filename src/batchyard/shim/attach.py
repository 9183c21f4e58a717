"""Attach: sends the output of a container to attached clients in addition to its log.

A client connects to `attach` in the run's directory, a unix SEQPACKET socket. Its message names the outputs, with one
file to write to for each. The reply is `started`, with the container's terminal if it has one, which the client then
writes to. Without a terminal the client writes to the pipe `stdin` in the directory, and sends `end_input` to close the
container's input. As with containerd, a slow client blocks the container's output.
"""

import json
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from batchyard.shim import state_dir
from batchyard.shim.event_loop import Loop

_ASKED_BYTES = 4096
_WAITING_MAX = 16


class AttachedClients:
    """The clients attached to one container; `wants_more` pauses or resumes the reading of an output."""

    def __init__(self, loop: Loop, run: int, wants_more: Callable[[str, bool], None]) -> None:
        self._loop = loop
        self._wants_more = wants_more
        self._terminal: int | None = None
        self._input: int | None = None
        self._open: list[_Attachment] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(state_dir.address(run, "attach"))

    def begin(self, terminal: int | None, stdin: int | None) -> None:
        """Accept clients. They write to a terminal, to a pipe whose end is held open, or to nothing."""
        self._terminal, self._input = terminal, stdin
        self._socket.listen(_WAITING_MAX)
        self._loop.when_readable(self._socket.fileno(), self._accept)

    def give(self, name: str, written: bytes) -> None:
        """Send data from one of the container's outputs to all clients."""
        for attachment in list(self._open):
            attachment.give(name, written)

    def end(self, name: str) -> None:
        """Close an output for all clients."""
        for attachment in list(self._open):
            attachment.end(name)

    def update_reading(self, name: str) -> None:
        """Resume the reading of an output unless a client still has pending data from it."""
        self._wants_more(name, not any(attachment.waits(name) for attachment in self._open))

    def _accept(self) -> None:
        connection, _ = self._socket.accept()
        message, files = state_dir.take_files(connection, _ASKED_BYTES, 2)
        try:
            names = json.loads(message)["outputs"]
        except (ValueError, KeyError, TypeError):
            names = []
        if len(names) != len(files):
            connection.close()
            return
        with suppress(OSError):
            socket.send_fds(connection, [b'{"started": true}'], [] if self._terminal is None else [self._terminal])
        attachment = _Attachment(self, self._loop, dict(zip(names, files, strict=True)))
        self._open.append(attachment)
        self._loop.when_readable(connection.fileno(), partial(self._hear, connection, attachment))

    def _hear(self, connection: socket.socket, attachment: "_Attachment") -> None:
        message = b""
        with suppress(OSError):
            message = connection.recv(_ASKED_BYTES)
        if b"end_input" in message:
            if self._input is not None:
                os.close(self._input)
                self._input = None
        elif not message:
            self._loop.forget(connection.fileno())
            connection.close()
            self._open.remove(attachment)
            attachment.close()


class _Attachment:
    """The files of one attached client, and the data pending for each."""

    def __init__(self, attached: AttachedClients, loop: Loop, files: dict[str, int]) -> None:
        self._attached = attached
        self._loop = loop
        self._files = files
        self._waiting: dict[str, bytes] = {}
        for file in files.values():
            os.set_blocking(file, False)

    def give(self, name: str, written: bytes) -> None:
        """Write the data, or keep it pending; the output is not read meanwhile."""
        if name in self._files:
            self._waiting[name] = self._waiting.get(name, b"") + written
            self._write(name)

    def waits(self, name: str) -> bool:
        """Whether data is pending for an output."""
        return bool(self._waiting.get(name))

    def end(self, name: str) -> None:
        """Close the file of an output."""
        file = self._files.pop(name, None)
        self._waiting.pop(name, None)
        if file is not None:
            self._loop.forget(file)
            os.close(file)

    def close(self) -> None:
        """Close all files after the client has disconnected."""
        for name in list(self._files):
            self.end(name)
            self._attached.update_reading(name)

    def _write(self, name: str) -> None:
        file, waiting = self._files[name], self._waiting[name]
        try:
            self._waiting[name] = waiting[os.write(file, waiting) :]
        except BlockingIOError:
            pass
        except OSError:
            self.end(name)
        self._loop.forget(file)
        if self.waits(name):
            self._loop.when_writable(file, partial(self._write, name))
        self._attached.update_reading(name)
