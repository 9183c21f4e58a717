"""Protocol upgrades: the 101 response, and the handler of the upgraded connection."""

from collections.abc import Callable
from typing import Final

from batchyard.apiserver.request import ApiRequest, ExecResponse, UpgradeResponse
from batchyard.apiserver.subresources.pod_streams import WEBSOCKET
from batchyard.server.streaming.exec import ExecSpdy, ExecWebSocket
from batchyard.server.streaming.portforward import PortForwardSpdy, PortForwardWebSocket
from batchyard.server.streaming.upgraded_connection import UpgradedConnection, UpgradeHandler
from batchyard.server.streaming.websocket import WebSocket, accepted

_SWITCHING: Final = b"HTTP/1.1 101 Switching Protocols\r\ndate: %b\r\nconnection: Upgrade\r\n%b\r\n"


def switched(answer: UpgradeResponse, request: ApiRequest, date: bytes) -> bytes:
    """Return the head of the 101 response."""
    upgrade = answer.upgrade
    if upgrade.to == WEBSOCKET:
        key = accepted(request.headers["sec-websocket-key"])
        fields = f"upgrade: websocket\r\nsec-websocket-accept: {key}\r\n"
        if upgrade.protocol:
            fields += f"sec-websocket-protocol: {upgrade.protocol}\r\n"
    else:
        fields = f"upgrade: {upgrade.to}\r\nx-stream-protocol-version: {upgrade.protocol}\r\n"
    return _SWITCHING % (date, fields.encode("ascii"))


def serve_upgraded(answer: UpgradeResponse, wire: UpgradedConnection, rest: bytes, over: Callable[[], None]) -> None:
    """Serve an upgraded connection, from which `rest` was already read. `over` is called when it is lost."""
    speaker = _over_websocket(answer, wire) if answer.upgrade.to == WEBSOCKET else _over_spdy(answer, wire)
    wire.speak(_NotifyingHandler(speaker, over), rest)


def _over_websocket(answer: UpgradeResponse, wire: UpgradedConnection) -> UpgradeHandler:
    socket = WebSocket(wire)
    if isinstance(answer, ExecResponse):
        ExecWebSocket(socket, answer)
    elif answer.ports:
        PortForwardWebSocket(socket, answer, wire)
    else:
        socket.set_handler(PortForwardSpdy(socket, answer, wire))
    return socket


def _over_spdy(answer: UpgradeResponse, wire: UpgradedConnection) -> UpgradeHandler:
    return ExecSpdy(wire, answer) if isinstance(answer, ExecResponse) else PortForwardSpdy(wire, answer, wire)


class _NotifyingHandler:
    """A handler of a connection that also calls a callback when the connection is lost."""

    def __init__(self, speaker: UpgradeHandler, over: Callable[[], None]) -> None:
        self._over = over
        self.fed = speaker.fed
        self.may_write = speaker.may_write
        self.ends = speaker.ends
        self._lost = speaker.lost

    def lost(self) -> None:
        """Notify the handler, and call the callback."""
        self._lost()
        self._over()
