"""Connections to ports of this machine's pods, from within their network namespaces."""

import asyncio
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from batchyard.interfaces.containers import SessionClient, SessionEnd
from batchyard.server.local_node.sessions import SESSIONS, HostConnection

_CONNECTED_WITHIN: Final = 10  # seconds
#: How long a port may stay silent after its client has ended its input.
_ANSWERS_WITHIN: Final = 60  # seconds
_LOOPBACK: Final = ((4, "127.0.0.1", "127.0.0.1"), (6, "::1", "[::1]"))


class LocalPort(asyncio.Protocol):
    """A connection to a loopback port in a run's network namespace; `run` is its path in the node's folder."""

    def __init__(self, node: Path, run: Path, network: str, port: int, talker: SessionClient) -> None:
        self._loop = asyncio.get_running_loop()
        self._talker = talker
        self._port = port
        self._network = network
        self._transport: Any = None
        self._listens = True
        #: Data to send once the connection is established.
        self._early: list[bytes] = []
        self._is_ending = False
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._host = HostConnection(node / SESSIONS, self._loop, self._hear, self._lost)
        try:
            self._host.ask({"sockets": str(run)}, ())
        except OSError as error:
            self._loop.call_soon(self._fail, str(error.strerror))

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self._transport is not None:
            self._transport.write(data)
        elif not self._is_closed:
            self._early.append(data)
            self._talker.wants_more(wants=False)

    def end_input(self) -> None:
        """End the input: half-close the connection."""
        self._is_ending = True
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
            self._await_answer()

    def listen(self, *, listens: bool) -> None:
        """Resume or pause reading."""
        if listens != self._listens:
            self._listens = listens
            if self._transport is not None and not self._transport.is_closing():
                (self._transport.resume_reading if listens else self._transport.pause_reading)()

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        self._host.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    # --- callbacks of the event loop ---

    def connection_made(self, transport: Any) -> None:
        """Send the early data on the established connection."""
        self._transport = transport
        if self._is_closed:
            transport.abort()
            return
        for data in self._early:
            transport.write(data)
        if self._early:
            self._talker.wants_more(wants=True)
        self._early.clear()
        if not self._listens:
            transport.pause_reading()
        if self._is_ending:
            self.end_input()

    def data_received(self, data: bytes) -> None:
        """Pass on received bytes."""
        if not self._is_closed:
            self._talker.received("stdout", data)
            if self._is_ending:
                self._await_answer()

    def pause_writing(self) -> None:
        """Notify that the port does not accept more data."""
        self._talker.wants_more(wants=False)

    def resume_writing(self) -> None:
        """Notify that the port accepts data again."""
        self._talker.wants_more(wants=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session: the connection is lost."""
        self._end(SessionEnd())

    # --- establishing the connection ---

    def _hear(self, message: Mapping[str, Any], files: Sequence[int]) -> None:
        """Take the sockets that the host created in the pod's network namespace."""
        self._host.close()
        if "error" in message:
            for file in files:
                os.close(file)
            self._fail(message["error"])
        else:
            self._connect([socket.socket(fileno=file) for file in files])

    def _lost(self) -> None:
        self._fail("its host was lost")

    def _connect(self, sockets: Sequence[socket.socket]) -> None:
        self._task = self._loop.create_task(self._try(sockets))

    async def _try(self, sockets: Sequence[socket.socket]) -> None:
        """Connect over IPv4, or else over IPv6."""
        failures = []
        try:
            for opened, (version, address, shown) in zip(sockets, _LOOPBACK, strict=True):
                try:
                    async with asyncio.timeout(_CONNECTED_WITHIN):
                        await self._loop.sock_connect(opened, (address, self._port))
                except (OSError, TimeoutError) as error:
                    why = os.strerror(error.errno).lower() if error.errno else "i/o timeout"
                    failures.append(f"IPv{version}: dial tcp{version} {shown}:{self._port}: connect: {why}")
                    continue
                await self._loop.create_connection(lambda: self, sock=opened.dup())
                return
        finally:
            for opened in sockets:
                opened.close()
        self._fail(
            f'failed to connect to localhost:{self._port} inside namespace "{self._network}", {" ".join(failures)}'
        )

    def _fail(self, why: str) -> None:
        self._end(SessionEnd(failure=f'failed to execute portforward in network namespace "{self._network}": {why}'))

    def _end(self, ending: SessionEnd) -> None:
        if not self._is_closed:
            self.close()
            self._talker.ended(ending)

    def _await_answer(self) -> None:
        """Close the connection if the port stays silent."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_ANSWERS_WITHIN, self._transport.abort)
