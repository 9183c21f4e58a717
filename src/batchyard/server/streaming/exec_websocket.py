"""A command over a WebSocket: each message begins with the number of a channel.

0 is the command's input, 1 and 2 its outputs, 3 tells how it ended, 4 the size of its terminal; since version 5 a 255
and a number say that nothing more comes on that channel. Sources: k8s.io/apimachinery pkg/util/remotecommand,
k8s.io/streaming pkg/httpstream/wsstream.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from batchyard.apiserver.responses import Command
from batchyard.interfaces.containers import Ending, ProcessSession
from batchyard.server.streaming.websocket import WebSocket

_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE = range(5)
_CLOSE: Final = 255
_OUTPUTS: Final = {"stdout": _STDOUT, "stderr": _STDERR}
#: Bytes of a size that is being told.
SIZE_MAX: Final = 1024


class CommandChannels:
    """See the module."""

    def __init__(self, socket: WebSocket, command: Command) -> None:
        self._socket = socket
        self._command = command
        self._channel: int | None = None
        #: What came of a message to end a channel, or of sizes.
        self._closing = b""
        self._sizes = Sizes()
        self._session: ProcessSession | None = None
        streams = command.streams
        socket.tell(self)
        # An empty message tells that the connection stands.
        socket.send(bytes([_STDOUT if streams.stdout else _STDERR if streams.stderr else _STATUS]))
        self._session = command.open(self)

    # --- what the WebSocket tells ---

    def part(self, data: bytes, *, is_first: bool) -> None:
        """Take a part of a message, or the first one of the next."""
        if is_first:
            self._channel, self._closing = None, b""
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        if self._session is None or not data:
            return
        if self._channel == _STDIN:
            self._session.write(data)
        elif self._channel == _RESIZE:
            for columns, rows in self._sizes.fed(data):
                self._session.resize(columns, rows)
        elif self._channel == _CLOSE and self._command.upgrade.protocol.startswith("v5"):
            self._closing = (self._closing + data)[:2]
            if self._closing == bytes([_STDIN]):
                self._session.end_input()

    def may_write(self, *, may: bool) -> None:
        """Whether the client takes more: if not, the command's outputs wait."""
        if self._session is not None:
            self._session.listen(listens=may)

    def ends(self) -> None:
        """The platform ends."""

    def lost(self) -> None:
        """Nobody talks to the command any more."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- what the command tells ---

    def received(self, output: str, data: bytes) -> None:
        """Take what the command wrote."""
        self._socket.send(bytes([_OUTPUTS[output]]) + data)

    def wants_more(self, *, wants: bool) -> None:
        """Whether the command reads: if not, the client waits."""
        self._socket.listen(listens=wants)

    def ended(self, ending: Ending) -> None:
        """The command has ended."""
        self._session = None
        self._socket.send(bytes([_STATUS]) + msgspec.json.encode(self._command.status(ending)))
        self._socket.close()


class Sizes:
    """Sizes of a terminal, told one after the other as JSON."""

    def __init__(self) -> None:
        self._text = b""

    def fed(self, data: bytes) -> list[tuple[int, int]]:
        """The sizes, as columns and rows, that are whole by now."""
        *texts, self._text = (self._text + data).replace(b"}", b"}\n").split(b"\n")
        self._text = self._text[:SIZE_MAX]
        return [size for text in texts if (size := _size(text)) is not None]


def _size(text: bytes) -> tuple[int, int] | None:
    try:
        told: Mapping[str, Any] = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.MsgspecError:
        return None
    return told.get("Width", 0), told.get("Height", 0)
