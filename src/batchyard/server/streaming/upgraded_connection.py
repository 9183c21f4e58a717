"""A connection that has become another than HTTP's: what is spoken on it, and its bounds in time."""

import asyncio
import socket
from typing import Any, Final, Protocol

from batchyard.server.http.connections import Connections

#: Seconds after which nothing is expected any more on a connection where nothing came or went. Source: the idle timeout
#: of a kubelet's streams.
IDLE_WITHIN: Final = 4 * 3600
#: Seconds in which the other end has to close, too.
CLOSED_WITHIN: Final = 10
#: After so many seconds of silence the other end's machine is asked whether it is there, so often, so many times.
_ALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6))


class Speaker(Protocol):
    """What is spoken on a connection."""

    def fed(self, data: bytes) -> None:
        """Take bytes as they come."""

    def may_write(self, *, may: bool) -> None:
        """Whether the other end takes more."""

    def ends(self) -> None:
        """The platform ends: say good-bye."""

    def lost(self) -> None:
        """The connection is gone."""


class Wire(Protocol):
    """A connection, as who speaks on it has it."""

    def send(self, data: bytes) -> None:
        """Send bytes."""

    def listen(self, *, listens: bool) -> None:
        """Whether more is to be fed."""

    def close(self, *, at_once: bool = False) -> None:
        """Close when all is sent and the other end closed, too, or in a while; or at once."""


class UpgradedConnection(asyncio.Protocol):
    """See the module."""

    def __init__(self, transport: Any, connections: Connections, peer: object) -> None:
        self._transport = transport
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._speaker: Speaker | None = None
        self._is_closing = False
        self._listens = True
        self._last = self._loop.time()
        self._timer = self._loop.call_later(IDLE_WITHIN, self._end_if_idle)
        #: Whom a certificate names.
        self.peer = peer
        found = transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _ALIVE:
                found.setsockopt(socket.IPPROTO_TCP, option, value)

        transport.set_protocol(self)
        connections.enter(self)

    def speak(self, speaker: Speaker, rest: bytes) -> None:
        """Let somebody speak, who is fed what came already."""
        self._speaker = speaker
        if rest:
            speaker.fed(rest)

    # --- what the event loop tells ---

    def data_received(self, data: bytes) -> None:
        """Something came."""
        self._last = self._loop.time()
        if self._speaker is not None:
            self._speaker.fed(data)

    def eof_received(self) -> None:
        """Whoever says no more hears no more."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._timer.cancel()
        self._connections.leave(self)
        speaker, self._speaker = self._speaker, None
        if speaker is not None:
            speaker.lost()

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        if self._speaker is not None:
            self._speaker.may_write(may=False)

    def resume_writing(self) -> None:
        """It does again."""
        if self._speaker is not None:
            self._speaker.may_write(may=True)

    # --- what the speaker says ---

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._last = self._loop.time()
        self._transport.write(data)

    def listen(self, *, listens: bool) -> None:
        """Whether more is to be fed."""
        if listens == self._listens or self._transport.is_closing():
            return
        self._listens = listens
        if listens:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self, *, at_once: bool = False) -> None:
        """Close when the other end does, or in a while: what it has sent meanwhile would take the last words away."""
        if at_once:
            self._transport.close()
        elif not self._is_closing:
            self._is_closing = True
            self.listen(listens=True)
            self._timer.cancel()
            self._timer = self._loop.call_later(CLOSED_WITHIN, self._transport.abort)

    # --- what the platform wants of all connections ---

    def end(self) -> None:
        """Say good-bye, and end."""
        if self._speaker is not None:
            self._speaker.ends()

    def abort(self) -> None:
        """End now."""
        self._transport.abort()

    def _end_if_idle(self) -> None:
        idle = self._loop.time() - self._last
        if idle < IDLE_WITHIN:
            self._timer = self._loop.call_later(IDLE_WITHIN - idle, self._end_if_idle)
        else:
            self._transport.abort()
