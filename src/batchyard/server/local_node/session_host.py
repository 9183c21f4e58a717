"""Connection to the host process of a session: a process that the spawner forks for exec, or the shim for attach."""

import asyncio
import json
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

#: A command line fits into the head of an HTTP request, but some characters take more bytes in JSON.
_REQUEST_BYTES: Final = 1 << 20
_MESSAGE_BYTES: Final = 1 << 16
_FILES_MAX: Final = 2
#: Seconds between two attempts to connect to a busy host, and the maximum number of attempts.
_AGAIN_AFTER: Final = 0.02
_TRIES: Final = 500


class HostConnection:
    """A connection to the socket of a host process.

    `hear` is called with each message of the host and its file descriptors, `lost` once when it disconnects.
    """

    def __init__(
        self,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        hear: Callable[[Mapping[str, Any], Sequence[int]], None],
        lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._hear = hear
        self._lost = lost
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_UNIX, kind)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        self._path = path
        #: The message and file descriptors to send once the host accepts the connection, and the timer of the retry.
        self._message = b""
        self._given: list[int] = []
        self._again: asyncio.TimerHandle | None = None

    def ask(self, asked: Mapping[str, Any], files: Sequence[int]) -> None:
        """Connect, and send a request with file descriptors. OSError if the host is unreachable."""
        self._message = json.dumps(asked).encode()
        try:
            self._connect(files)
        except BlockingIOError:
            self._given = [os.dup(file) for file in files]
            self._again = self._loop.call_later(_AGAIN_AFTER, self._try_again, _TRIES)

    def _try_again(self, tries: int) -> None:
        self._again = None
        try:
            self._connect(self._given)
        except BlockingIOError:
            if tries:
                self._again = self._loop.call_later(_AGAIN_AFTER, self._try_again, tries - 1)
                return
            self.close()
            self._lost()
        except OSError:
            self.close()
            self._lost()
        self._drop_given()

    def _drop_given(self) -> None:
        for file in self._given:
            os.close(file)
        self._given = []

    def _connect(self, files: Sequence[int]) -> None:
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.connect(f"/proc/self/fd/{folder}/{self._path.name}")
            socket.send_fds(self._socket, [self._message], files)
        finally:
            os.close(folder)
        self._loop.add_reader(self._socket, self._read)

    def say(self, message: Mapping[str, Any]) -> None:
        """Send a further message, ignoring a lost host."""
        with suppress(OSError):
            self._socket.send(json.dumps(message).encode())

    def close(self) -> None:
        """Disconnect, which notifies the host."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
            self._drop_given()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _read(self) -> None:
        message = b""
        files: Sequence[int] = ()
        try:
            message, files, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, _FILES_MAX, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            self._hear(json.loads(message), files)
        else:
            self.close()
            self._lost()
