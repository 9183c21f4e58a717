"""A connection that has become another than HTTP's: what is spoken on it, and its bounds in time."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from batchyard.server.http.connections import Connections

#: Seconds after which nothing is expected any more on a connection where nothing came or went. Source: the idle timeout
#: of a kubelet's streams.
IDLE_WITHIN: Final = 4 * 3600
#: Seconds in which the other end has to close, too.
CLOSED_WITHIN: Final = 10
#: Bytes that are fed at once, those that may wait for that, and those that the other end may leave where they are.
PART: Final = 16 * 1024
WAITING_MAX: Final = 64 * 1024
UNTAKEN_MAX: Final = 8 * 1024 * 1024
TakeTurn: TypeAlias = Callable[[Callable[[], None]], None]
"""Calls a function soon, once others had their turn."""
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

    def __init__(
        self, transport: Any, connections: Connections, peer: object, holder: str, take_turn: TakeTurn
    ) -> None:
        """`holder` is whose it is, '' for the owner; `take_turn` gives what came its turn among what others sent."""
        self._transport = transport
        self._connections = connections
        self._holder = holder
        self._take_turn = take_turn
        #: What came and is not fed yet.
        self._came = bytearray()
        self._has_turn = False
        self._is_paused = False
        self._is_aborted = False
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
        self._came += rest
        self._go_on()

    # --- connections to ports ---

    def enter_port(self) -> bool:
        """Count a connection to a port until it leaves; False, and it is not counted, where there are too many."""
        return self._connections.enter_port(self._holder)

    def leave_port(self) -> None:
        """A connection to a port is gone."""
        self._connections.leave_port(self._holder)

    # --- what the event loop tells ---

    def data_received(self, data: bytes) -> None:
        """Something came."""
        self._last = self._loop.time()
        self._came += data
        self._go_on()

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
        if self._is_aborted:
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNTAKEN_MAX:  # whoever asks for answers has to take them
            self._is_aborted = True
            self._transport.abort()

    def listen(self, *, listens: bool) -> None:
        """Whether more is to be fed."""
        if listens != self._listens:
            self._listens = listens
            self._go_on()

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

    def _go_on(self) -> None:
        """Feed what came when its turn comes, and take no more from the other end than is soon fed."""
        if self._came and self._listens and self._speaker is not None and not self._has_turn:
            self._has_turn = True
            self._take_turn(self._feed)
        is_paused = not self._listens or len(self._came) > WAITING_MAX
        if is_paused != self._is_paused and not self._transport.is_closing():
            self._is_paused = is_paused
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()

    def _feed(self) -> None:
        self._has_turn = False
        if self._speaker is not None and self._listens:
            part = bytes(self._came[:PART])
            del self._came[:PART]
            self._speaker.fed(part)
            self._go_on()

    def _end_if_idle(self) -> None:
        idle = self._loop.time() - self._last
        if idle < IDLE_WITHIN:
            self._timer = self._loop.call_later(IDLE_WITHIN - idle, self._end_if_idle)
        else:
            self._transport.abort()
