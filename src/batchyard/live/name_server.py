"""The name server of the pods on this machine, in their network, at the address of its bridge.

It is asked over UDP, and over TCP where an answer is too long for a datagram. There are so many connections at once,
each for so long.
"""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from batchyard.live.dns_messages import DATAGRAM_MAX, Question, Type, answer
from batchyard.ports.client import Reader
from batchyard.runtime.local.names import addresses, reverse

PORT: Final = 53
_LENGTH_MAX: Final = 65535
_CONNECTIONS_MAX: Final = 64
_ASKS_WITHIN: Final = 10.0  # seconds


class NameServer:
    """See the module. Made of two sockets of the pods' network, the first of UDP."""

    def __init__(self, reader: Reader, domain: str) -> None:
        self._reader = reader
        self._domain = domain
        self._datagrams: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._connections = 0

    async def serve(self, datagrams: socket.socket, streams: socket.socket) -> None:
        """Answer what is asked at these sockets, which are not bound yet."""
        for each in (datagrams, streams):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("0.0.0.0", PORT))  # noqa: S104 - of the pods' network
            each.setblocking(False)
        self._datagrams = datagrams
        asyncio.get_running_loop().add_reader(datagrams, self._datagram, datagrams)
        self._server = await asyncio.start_server(self._stream, sock=streams)

    def close(self) -> None:
        """Answer no more."""
        if self._datagrams is not None:
            asyncio.get_running_loop().remove_reader(self._datagrams)
            self._datagrams.close()
        if self._server is not None:
            self._server.close()

    def answer(self, message: bytes, length_max: int) -> bytes | None:
        """What is answered to a message."""
        return answer(message, self._look, length_max)

    def _look(self, question: Question) -> Sequence[str] | None:
        if question.type == Type.PTR:
            return reverse(question.name, self._domain, self._reader)
        found = addresses(question.name, self._domain, self._reader)
        return found if question.type == Type.A or found is None else ()

    def _datagram(self, asked: socket.socket) -> None:
        """Answer the next datagram; what cannot be sent is asked again."""
        with suppress(OSError):
            message, sender = asked.recvfrom(_LENGTH_MAX)
            told = self.answer(message, DATAGRAM_MAX)
            if told is not None:
                asked.sendto(told, sender)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what is asked over one connection."""
        self._connections += 1
        try:
            while self._connections <= _CONNECTIONS_MAX:
                async with asyncio.timeout(_ASKS_WITHIN):
                    length = int.from_bytes(await reader.readexactly(2))
                    told = self.answer(await reader.readexactly(length), _LENGTH_MAX)
                    if told is None:
                        break
                    writer.write(len(told).to_bytes(2) + told)
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections -= 1
            writer.close()
