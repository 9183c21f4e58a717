"""The pod network of the local node: sockets in its network namespace, pod addresses, and the DNS server of pods."""

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeAlias

from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.names import addresses, reverse
from batchyard.shim import state_dir
from batchyard.shim.isolation import network

_ANSWER_MAX = 16


class PodsNetwork:
    """A connection to the switch process, which owns the pod network. Raises OSError if it is not running."""

    def __init__(self, node: Path) -> None:
        opened = state_dir.open_folder(str(node))
        try:
            held = network.find(opened)
        finally:
            os.close(opened)
        if held is None:
            raise ConnectionError("the switch process of the pod network is not running")
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
        """Return a new UDP socket in the network namespace of the pod network."""
        return self._given(b"udp")

    def streams(self) -> socket.socket:
        """Return a new TCP socket in the network namespace of the pod network."""
        return self._given(b"tcp")

    def _given(self, kind: bytes) -> socket.socket:
        self._connection.send(kind)
        _, files, _, _ = socket.recv_fds(self._connection, _ANSWER_MAX, 1)
        if not files:
            raise ConnectionError("the switch process of the pod network returned no socket")
        return socket.socket(fileno=files[0])


# --- addresses ---
#
# Address allocation for pods, round-robin, and the address of the bridge.


_PODS: Final = IPv4Network("10.77.0.0/16")


class PodAddresses:
    """The IP addresses allocated to pods, by pod uid, with their prefix length, such as `10.77.0.5/16`."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._taken: set[str] = set()
        self._next = 2

    @property
    def gateway(self) -> str:
        """The address of the pod network's bridge, which is the pods' gateway."""
        return str(_PODS[1])

    def take(self, uid: str) -> str:
        """Allocate a free address to a pod, round-robin, so that addresses are reused as late as possible."""
        last = _PODS.num_addresses - 2
        for _ in range(last):
            number, self._next = self._next, self._next % last + 1
            address = str(IPv4Interface((_PODS[max(number, 2)], _PODS.prefixlen)))
            if address not in self._taken:
                break
        self.keep(uid, address)
        return address

    def keep(self, uid: str, address: str | None) -> None:
        """Record the address of a pod that an earlier process started; None if it has no address."""
        if address is not None:
            self.give_back(uid)
            self._given[uid] = address
            self._taken.add(address)

    def give_back(self, uid: str) -> None:
        """Release the address of a deleted pod for reuse."""
        self._taken.discard(self._given.pop(uid, ""))


# --- dns ---
#
# DNS messages of the pods' name server, as far as common resolvers need them.
#
# A message has one question, which is answered with A or PTR records; other types get an empty answer. Sources: RFC
# 1035; RFC 6891, which allows to ignore the additional records of a question.


_HEADER: Final = struct.Struct("!6H")
_QUESTION: Final = struct.Struct("!2H")
_RECORD: Final = struct.Struct("!3HIH")
_INTERNET: Final = 1
#: A compression pointer to the name of the question, which follows the header.
_SAME_NAME: Final = 0xC000 | _HEADER.size
_IS_ANSWER: Final = 0x8000
_OPCODE: Final = 0x7800
_IS_AUTHORITY: Final = 0x0400
_IS_CUT: Final = 0x0200
_RECURSION_WANTED: Final = 0x0100
_RECURSION_IS_HAD: Final = 0x0080
_LABEL_MAX: Final = 63
#: The TTL of CoreDNS's kubernetes plugin.
_SECONDS: Final = 5
#: The maximum size of a UDP response for clients without EDNS.
DATAGRAM_MAX: Final = 512


class DnsType(IntEnum):
    """The supported DNS record types."""

    A = 1
    PTR = 12


class DnsCode(IntEnum):
    """DNS response codes."""

    OK = 0
    MALFORMED = 1
    NO_SUCH_NAME = 3
    NOT_IMPLEMENTED = 4


class DnsQuestion(NamedTuple):
    """A DNS question: a name in lowercase without the final dot, and a record type."""

    name: str
    type: int


class DnsMessageError(Exception):
    """The question of a DNS message is malformed."""


Look: TypeAlias = Callable[[DnsQuestion], Sequence[str] | None]
"""Returns the record values for a question (addresses or names); None if the name does not exist."""


def answer(message: bytes, look: Look, length_max: int) -> bytes | None:
    """Return the DNS response to a query, truncated to `length_max` bytes; None if `message` is not a query."""
    if len(message) < _HEADER.size:
        return None
    number, flags, questions, *_ = _HEADER.unpack_from(message)
    if flags & _IS_ANSWER:
        return None
    if flags & _OPCODE or questions != 1:
        code = DnsCode.NOT_IMPLEMENTED if flags & _OPCODE else DnsCode.MALFORMED
        return _HEADER.pack(number, _flags(flags, code), 0, 0, 0, 0)
    try:
        question, end = _question(message)
    except DnsMessageError:
        return _HEADER.pack(number, _flags(flags, DnsCode.MALFORMED), 0, 0, 0, 0)
    found = look(question)
    code = DnsCode.NO_SUCH_NAME if found is None else DnsCode.OK
    records = [_record(question.type, each) for each in found or ()]
    asked = message[_HEADER.size : end]
    whole = _HEADER.pack(number, _flags(flags, code), 1, len(records), 0, 0) + asked + b"".join(records)
    if len(whole) <= length_max:
        return whole
    return _HEADER.pack(number, _flags(flags, code) | _IS_CUT, 1, 0, 0, 0) + asked


def _flags(asked: int, code: DnsCode) -> int:
    return _IS_ANSWER | _IS_AUTHORITY | _RECURSION_IS_HAD | asked & _RECURSION_WANTED | code


def _question(message: bytes) -> tuple[DnsQuestion, int]:
    """Parse the question of a DNS message; return it and the offset of its end. Raises DnsMessageError."""
    labels: list[str] = []
    place = _HEADER.size
    while place < len(message) and (length := message[place]):
        label = message[place + 1 : place + 1 + length]
        if length > _LABEL_MAX or len(label) < length:
            raise DnsMessageError
        labels.append(label.decode("ascii", "replace").lower())
        place += 1 + length
    if place + 1 + _QUESTION.size > len(message):
        raise DnsMessageError
    asked, class_ = _QUESTION.unpack_from(message, place + 1)
    if class_ != _INTERNET:
        raise DnsMessageError
    return DnsQuestion(".".join(labels), asked), place + 1 + _QUESTION.size


def _record(kind: int, value: str) -> bytes:
    data = IPv4Address(value).packed if kind == DnsType.A else _name(value)
    return _RECORD.pack(_SAME_NAME, kind, _INTERNET, _SECONDS, len(data)) + data


def _name(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split(".")) + b"\0"


# --- name server ---
#
# The DNS server in the pod network, at the address of the bridge.
#
# It serves UDP, and TCP for responses that are too long for a datagram. TCP connections are limited in number and
# duration.


PORT: Final = 53
_LENGTH_MAX: Final = 65535
_CONNECTIONS_MAX: Final = 64
_ASKS_WITHIN: Final = 10.0  # seconds


class NameServer:
    """The DNS server of the pods, which answers over UDP and TCP from the stored objects."""

    def __init__(self, reader: Reader, domain: str) -> None:
        self._reader = reader
        self._domain = domain
        self._datagrams: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._connections = 0

    async def serve(self, datagrams: socket.socket, streams: socket.socket) -> None:
        """Bind these sockets of the pod network to the DNS port, and start to serve."""
        for each in (datagrams, streams):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("0.0.0.0", PORT))  # noqa: S104 - in the pod network's namespace
            each.setblocking(False)
        self._datagrams = datagrams
        asyncio.get_running_loop().add_reader(datagrams, self._datagram, datagrams)
        self._server = await asyncio.start_server(self._stream, sock=streams)

    def close(self) -> None:
        """Close the sockets of the server."""
        if self._datagrams is not None:
            asyncio.get_running_loop().remove_reader(self._datagrams)
            self._datagrams.close()
        if self._server is not None:
            self._server.close()

    def answer(self, message: bytes, length_max: int) -> bytes | None:
        """Return the DNS response to a query; None if `message` is not a query."""
        return answer(message, self._look, length_max)

    def _look(self, question: DnsQuestion) -> Sequence[str] | None:
        if question.type == DnsType.PTR:
            return reverse(question.name, self._domain, self._reader)
        found = addresses(question.name, self._domain, self._reader)
        return found if question.type == DnsType.A or found is None else ()

    def _datagram(self, asked: socket.socket) -> None:
        """Answer the next UDP query. If sending fails, the client retries."""
        with suppress(OSError):
            message, sender = asked.recvfrom(_LENGTH_MAX)
            response = self.answer(message, DATAGRAM_MAX)
            if response is not None:
                asked.sendto(response, sender)

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the queries of a TCP connection."""
        self._connections += 1
        try:
            while self._connections <= _CONNECTIONS_MAX:
                async with asyncio.timeout(_ASKS_WITHIN):
                    length = int.from_bytes(await reader.readexactly(2))
                    response = self.answer(await reader.readexactly(length), _LENGTH_MAX)
                    if response is None:
                        break
                    writer.write(len(response).to_bytes(2) + response)
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections -= 1
            writer.close()
