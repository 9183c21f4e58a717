"""Answers that are conversations: the head that says so, and who speaks then on the connection."""

from collections.abc import Callable
from typing import Final

from batchyard.apiserver.request import Request
from batchyard.apiserver.streams import Command, Conversation
from batchyard.apiserver.upgrades import WEBSOCKET
from batchyard.live.command_channels import CommandChannels
from batchyard.live.command_streams import CommandStreams
from batchyard.live.port_channels import PortChannels
from batchyard.live.port_streams import PortStreams
from batchyard.live.upgraded import Speaker, UpgradedConnection
from batchyard.live.websocket import WebSocket, accepted

_SWITCHING: Final = b"HTTP/1.1 101 Switching Protocols\r\ndate: %b\r\nconnection: Upgrade\r\n%b\r\n"


def switched(answer: Conversation, request: Request, date: bytes) -> bytes:
    """The head of the answer that hands a connection over."""
    upgrade = answer.upgrade
    if upgrade.to == WEBSOCKET:
        key = accepted(request.headers["sec-websocket-key"])
        said = f"upgrade: websocket\r\nsec-websocket-accept: {key}\r\n"
        if upgrade.protocol:
            said += f"sec-websocket-protocol: {upgrade.protocol}\r\n"
    else:
        said = f"upgrade: {upgrade.to}\r\nx-stream-protocol-version: {upgrade.protocol}\r\n"
    return _SWITCHING % (date, said.encode("ascii"))


def converse(answer: Conversation, wire: UpgradedConnection, rest: bytes, over: Callable[[], None]) -> None:
    """Let an answer be spoken on a connection, that was sent something already; `over` once the connection is gone."""
    speaker = _over_websocket(answer, wire) if answer.upgrade.to == WEBSOCKET else _over_spdy(answer, wire)
    wire.speak(_Last(speaker, over), rest)


def _over_websocket(answer: Conversation, wire: UpgradedConnection) -> Speaker:
    socket = WebSocket(wire)
    if isinstance(answer, Command):
        CommandChannels(socket, answer)
    elif answer.ports:
        PortChannels(socket, answer)
    else:
        socket.tell(PortStreams(socket, answer))
    return socket


def _over_spdy(answer: Conversation, wire: UpgradedConnection) -> Speaker:
    return CommandStreams(wire, answer) if isinstance(answer, Command) else PortStreams(wire, answer)


class _Last:
    """A speaker, and what is to be done when the connection is gone."""

    def __init__(self, speaker: Speaker, over: Callable[[], None]) -> None:
        self._over = over
        self.fed = speaker.fed
        self.may_write = speaker.may_write
        self.ends = speaker.ends
        self._lost = speaker.lost

    def lost(self) -> None:
        """The connection is gone."""
        self._lost()
        self._over()
