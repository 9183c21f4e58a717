"""The network of the pods on this machine, from outside: the switch that holds it hands out sockets in it."""

import os
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from batchyard.node import folder, switch

_ANSWER_MAX = 16


class PodsNetwork:
    """See the module. OSError if there is none."""

    def __init__(self, node: Path) -> None:
        opened = folder.open_folder(str(node))
        try:
            held = switch.find(opened)
        finally:
            os.close(opened)
        if held is None:
            raise ConnectionError("nobody holds the network of the pods")
        for file in (held.user_namespace, held.network):
            if file is not None:
                os.close(file)
        if held.network is None:
            held.connection.close()
            raise ConnectionError(held.failure)
        self._connection = held.connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._connection.close()

    def datagrams(self) -> socket.socket:
        """A new socket for UDP."""
        return self._given(b"udp")

    def streams(self) -> socket.socket:
        """A new socket for TCP."""
        return self._given(b"tcp")

    def _given(self, kind: bytes) -> socket.socket:
        self._connection.send(kind)
        _, files, _, _ = socket.recv_fds(self._connection, _ANSWER_MAX, 1)
        if not files:
            raise ConnectionError("the network of the pods gives no sockets any more")
        return socket.socket(fileno=files[0])
