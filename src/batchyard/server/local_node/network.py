"""The pod network of this machine: sockets in its network namespace, addresses of pods, and the pods' DNS server."""

import asyncio
import logging
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

from batchyard.api.well_known import POD_CIDR
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.errors import CREATE_ERROR, ContainerError
from batchyard.kubelet.local.names import PodNames, resolve_dns_name
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.shim import state_dir
from batchyard.shim.isolation import network

_LOG: Final = logging.getLogger("batchyard")
_SWITCH_REPLY_SIZE_MAX = 64
#: A switch of an older release does not reply to every request.
_SWITCH_REPLY_TIMEOUT: Final = 2.0  # seconds


class PodNetworkConnection:
    """A connection to the process that owns the pod network. Creating it raises OSError if there is no pod network."""

    def __init__(self, node: Path) -> None:
        node_fd = state_dir.open_folder(str(node))
        try:
            switch_socket = network.connect_to_switch(node_fd)
        finally:
            os.close(node_fd)
        if switch_socket is None:
            raise ConnectionError("the switch process of the pod network is not running")
        for namespace_fd in (switch_socket.user_namespace_fd, switch_socket.network_fd):
            if namespace_fd is not None:
                os.close(namespace_fd)
        if switch_socket.network_fd is None:
            switch_socket.connection.close()
            raise ConnectionError(switch_socket.failure)
        self._connection = switch_socket.connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._connection.close()

    def create_udp_socket(self) -> socket.socket:
        """Return a new UDP socket, created in the network namespace of the pod network."""
        return self._request_socket(b"udp")

    def create_tcp_socket(self) -> socket.socket:
        """Return a new TCP socket, created in the network namespace of the pod network."""
        return self._request_socket(b"tcp")

    def add_local_network(self, network: IPv4Network) -> None:
        """Make the addresses of a network belong to the gateway of the pods. Raises OSError on failure."""
        self._connection.settimeout(_SWITCH_REPLY_TIMEOUT)
        self._connection.send(f"local {network}".encode())
        reply = self._connection.recv(_SWITCH_REPLY_SIZE_MAX)
        self._connection.settimeout(None)
        if reply != b"ok":
            raise ConnectionError(reply.decode(errors="replace"))

    def _request_socket(self, protocol: bytes) -> socket.socket:
        self._connection.send(protocol)
        _, fds, _, _ = socket.recv_fds(self._connection, _SWITCH_REPLY_SIZE_MAX, 1)
        if not fds:
            raise ConnectionError("the switch process of the pod network returned no socket")
        return socket.socket(fileno=fds[0])


def bind_in_pod_network(pod_socket: socket.socket, address: str, port: int) -> None:
    """Bind a socket to an address of the pod network, which the network's namespace may get later."""
    pod_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    pod_socket.setsockopt(socket.SOL_IP, _IP_FREEBIND, 1)
    pod_socket.bind((address, port))


#: Source: ip(7).
_IP_FREEBIND: Final = 15


class PodNetworkListeners(NamedTuple):
    """The sockets that serve the API in the pod network, bound but not listening, and their addresses."""

    #: The cluster IP of the API's Service first.
    addresses: Sequence[str]
    sockets: Sequence[socket.socket]


def create_pod_listeners(node: Path, gateway: str, service_network: IPv4Network, port: int) -> PodNetworkListeners:
    """Return sockets for the API at the first address of the Services' network and at the gateway of the pods.

    If the addresses of Services cannot be reached, because the switch process is of an older release, the API is served
    at the gateway only. Raises OSError if there is no pod network.
    """
    with PodNetworkConnection(node) as network_connection:
        addresses = [gateway]
        try:
            network_connection.add_local_network(service_network)
            addresses.insert(0, str(service_network[1]))
        except OSError as error:
            _LOG.warning(
                "pods do not reach the cluster IPs of Services: %s; stop all pods of this machine, and restart the"
                " platform",
                error.strerror or error,
            )
        with PodNetworkConnection(node) as sockets_connection:
            sockets = [sockets_connection.create_tcp_socket() for _ in addresses]
    for address, pod_socket in zip(addresses, sockets, strict=True):
        bind_in_pod_network(pod_socket, address, port)
    return PodNetworkListeners(addresses, sockets)


# Address allocation for pods, round-robin, and the address of the bridge.


_POD_NETWORK: Final = IPv4Network(POD_CIDR)
#: The host number of the first pod; number 1 is the gateway.
_FIRST_HOST_NUMBER: Final = 2


class PodAddresses:
    """The IP addresses of this machine's pods, by pod uid, with prefix length, such as `10.77.0.5/16`."""

    def __init__(self, network: IPv4Network = _POD_NETWORK) -> None:
        self._network = network
        self._last_host_number = network.num_addresses - 2
        self._address_by_uid: dict[str, str] = {}
        self._used_addresses: set[str] = set()
        self._next_number = _FIRST_HOST_NUMBER

    @property
    def gateway(self) -> str:
        """The IP address of the pod network's bridge, which is the gateway of the pods."""
        return str(self._network[1])

    def allocate(self, uid: str) -> str:
        """Allocate and return an IP address for the pod with this uid, with prefix length.

        Addresses are allocated in turn, so that a released address is reused as late as possible. Raises ContainerError
        if other pods use all addresses.
        """
        self.release(uid)
        if len(self._used_addresses) > self._last_host_number - _FIRST_HOST_NUMBER:
            address_range = f"{self._network[_FIRST_HOST_NUMBER]}-{self._network[self._last_host_number]}"
            problem = f"no IP addresses available in range set: {address_range}"
            raise ContainerError(CREATE_ERROR, f"{problem}; delete pods that are no longer needed")
        while (address := self._take_next_address()) in self._used_addresses:
            pass  # at least one address is free
        self.restore(uid, address)
        return address

    def _take_next_address(self) -> str:
        host_number = self._next_number
        self._next_number = _FIRST_HOST_NUMBER if host_number == self._last_host_number else host_number + 1
        return str(IPv4Interface((self._network[host_number], self._network.prefixlen)))

    def restore(self, uid: str, address: str | None) -> None:
        """Record the IP address of the pod with this uid as used; do nothing if the address is None."""
        if address is not None:
            self.release(uid)
            self._address_by_uid[uid] = address
            self._used_addresses.add(address)

    def release(self, uid: str) -> None:
        """Free the IP address of the pod with this uid, if it has one."""
        self._used_addresses.discard(self._address_by_uid.pop(uid, ""))


# DNS messages of the pods' name server, as far as common resolvers need them.
#
# A message has one question, which is answered with A or PTR records; other types get an empty answer. Sources: RFC
# 1035; RFC 6891, which allows to ignore the additional records of a question.


_DNS_HEADER: Final = struct.Struct("!6H")
_DNS_QUESTION: Final = struct.Struct("!2H")
_DNS_RECORD: Final = struct.Struct("!3HIH")
_INTERNET_CLASS: Final = 1
#: A compression pointer to the name of the question, which follows the header.
_QUESTION_NAME_POINTER: Final = 0xC000 | _DNS_HEADER.size
_RESPONSE_FLAG: Final = 0x8000
_OPCODE_MASK: Final = 0x7800
_AUTHORITATIVE_FLAG: Final = 0x0400
_TRUNCATED_FLAG: Final = 0x0200
_RECURSION_DESIRED_FLAG: Final = 0x0100
_RECURSION_AVAILABLE_FLAG: Final = 0x0080
_LABEL_MAX: Final = 63
#: The TTL of CoreDNS's kubernetes plugin.
_TTL_SECONDS: Final = 5
#: The maximum size of a UDP response for clients without EDNS.
DATAGRAM_MAX: Final = 512


class DnsType(IntEnum):
    """The DNS record types that the DNS server of the pods supports."""

    A = 1
    PTR = 12


class DnsResponseCode(IntEnum):
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
    """The question in a received DNS message is malformed, or its class is not IN."""


DnsLookup: TypeAlias = Callable[[DnsQuestion], Sequence[str] | None]
"""Returns the record values for a question (addresses or names); None if the name does not exist."""


def answer_dns_query(message: bytes, lookup: DnsLookup, length_max: int) -> bytes | None:
    """Return the DNS response to a query; None if `message` is not a query.

    If the response would be longer than `length_max` bytes, it has no records and is marked as truncated.
    """
    if len(message) < _DNS_HEADER.size:
        return None
    message_id, flags, questions, *_ = _DNS_HEADER.unpack_from(message)
    if flags & _RESPONSE_FLAG:
        return None
    if flags & _OPCODE_MASK or questions != 1:
        dns_code = DnsResponseCode.NOT_IMPLEMENTED if flags & _OPCODE_MASK else DnsResponseCode.MALFORMED
        return _DNS_HEADER.pack(message_id, _response_flags(flags, dns_code), 0, 0, 0, 0)
    try:
        question, question_end = _parse_question(message)
    except DnsMessageError:
        return _DNS_HEADER.pack(message_id, _response_flags(flags, DnsResponseCode.MALFORMED), 0, 0, 0, 0)
    record_values = lookup(question)
    dns_code = DnsResponseCode.NO_SUCH_NAME if record_values is None else DnsResponseCode.OK
    dns_records = [_encode_record(question.type, value) for value in record_values or ()]
    question_bytes = message[_DNS_HEADER.size : question_end]
    response_header = _DNS_HEADER.pack(message_id, _response_flags(flags, dns_code), 1, len(dns_records), 0, 0)
    response = response_header + question_bytes + b"".join(dns_records)
    if len(response) <= length_max:
        return response
    return _DNS_HEADER.pack(message_id, _response_flags(flags, dns_code) | _TRUNCATED_FLAG, 1, 0, 0, 0) + question_bytes


def _response_flags(flags: int, dns_code: DnsResponseCode) -> int:
    return _RESPONSE_FLAG | _AUTHORITATIVE_FLAG | _RECURSION_AVAILABLE_FLAG | flags & _RECURSION_DESIRED_FLAG | dns_code


def _parse_question(message: bytes) -> tuple[DnsQuestion, int]:
    labels: list[str] = []
    label_offset = _DNS_HEADER.size
    while label_offset < len(message) and (length := message[label_offset]):
        label = message[label_offset + 1 : label_offset + 1 + length]
        if length > _LABEL_MAX or len(label) < length:
            raise DnsMessageError
        labels.append(label.decode("ascii", "replace").lower())
        label_offset += 1 + length
    if label_offset + 1 + _DNS_QUESTION.size > len(message):
        raise DnsMessageError
    record_type, record_class = _DNS_QUESTION.unpack_from(message, label_offset + 1)
    if record_class != _INTERNET_CLASS:
        raise DnsMessageError
    return DnsQuestion(".".join(labels), record_type), label_offset + 1 + _DNS_QUESTION.size


def _encode_record(record_type: int, value: str) -> bytes:
    data = IPv4Address(value).packed if record_type == DnsType.A else _encode_name(value)
    return _DNS_RECORD.pack(_QUESTION_NAME_POINTER, record_type, _INTERNET_CLASS, _TTL_SECONDS, len(data)) + data


def _encode_name(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split(".")) + b"\0"


# The DNS server in the pod network, at the address of the bridge.
#
# It serves UDP, and TCP for responses that are too long for a datagram. TCP connections are limited in number and
# duration.


DNS_PORT: Final = 53
_MESSAGE_SIZE_MAX: Final = 65535
_CONNECTIONS_MAX: Final = 64
_QUERY_TIMEOUT: Final = 10.0  # seconds


#: The share of the platform's time that the answers to one client may take, and how much may be taken in advance.
_CLIENT_SHARE: Final = 0.1
_CLIENT_BURST: Final = 0.2  # seconds
#: The least time that an answer counts.
_ANSWER_TIME_MIN: Final = 0.0002  # seconds
_CLIENTS_MAX: Final = 1024


class QueryLimit:
    """Limits the time that the answers to each client take; the clients with the least recent work are forgotten."""

    def __init__(self) -> None:
        #: When the work of a client is within its share again, by address.
        self._free_at: dict[str, float] = {}

    @property
    def clients(self) -> int:
        """The number of clients that are known."""
        return len(self._free_at)

    def allows(self, client: str, now: float) -> bool:
        """Return whether a query of a client may be answered."""
        return self._free_at.get(client, now) - now < _CLIENT_BURST / _CLIENT_SHARE

    def count(self, client: str, duration: float, now: float) -> None:
        """Count the time of an answer to a client."""
        if client not in self._free_at and len(self._free_at) >= _CLIENTS_MAX:
            self._free_at = {address: at for address, at in self._free_at.items() if at > now}
        if client not in self._free_at and len(self._free_at) >= _CLIENTS_MAX:
            del self._free_at[min(self._free_at, key=self._free_at.__getitem__)]
        start = max(now, self._free_at.get(client, now))
        self._free_at[client] = start + max(duration, _ANSWER_TIME_MIN) / _CLIENT_SHARE


class NameServer:
    """The DNS server of this machine's pods, which serves names of the stored API objects over UDP and TCP."""

    def __init__(self, reader: Reader, cluster_domain: str) -> None:
        self._reader = reader
        self._domain = cluster_domain
        self._udp_socket: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._connections = 0
        self._pod_names = PodNames(reader)
        self._limit = QueryLimit()

    async def serve(self, udp_socket: socket.socket, tcp_socket: socket.socket, address: str) -> None:
        """Bind a UDP and a TCP socket of the pod network to the DNS port of an address, and start to answer queries."""
        for dns_socket in (udp_socket, tcp_socket):
            bind_in_pod_network(dns_socket, address, DNS_PORT)
            dns_socket.setblocking(False)
        self._udp_socket = udp_socket
        asyncio.get_running_loop().add_reader(udp_socket, self._answer_datagram, udp_socket)
        self._server = await asyncio.start_server(self._serve_tcp_connection, sock=tcp_socket)

    def close(self) -> None:
        """Close the sockets of the DNS server."""
        if self._udp_socket is not None:
            asyncio.get_running_loop().remove_reader(self._udp_socket)
            self._udp_socket.close()
        if self._server is not None:
            self._server.close()

    def response_to(self, message: bytes, length_max: int, client: str) -> bytes | None:
        """Return the DNS response to a query; None if `message` is not a query, or if the client asks too much.

        A response of over `length_max` bytes is truncated.
        """
        start = monotonic_seconds()
        if not self._limit.allows(client, start):
            return None
        response = answer_dns_query(message, self._look_up, length_max)
        now = monotonic_seconds()
        self._limit.count(client, now - start, now)
        return response

    def _look_up(self, question: DnsQuestion) -> Sequence[str] | None:
        if question.type == DnsType.PTR:
            return self._pod_names.resolve_address(question.name, self._domain, monotonic_seconds())
        values = resolve_dns_name(question.name, self._domain, self._reader)
        return values if question.type == DnsType.A or values is None else ()

    def _answer_datagram(self, udp_socket: socket.socket) -> None:
        """Answer the next UDP query. If the response cannot be sent, do nothing: the client retries."""
        with suppress(OSError):
            message, client_address = udp_socket.recvfrom(_MESSAGE_SIZE_MAX)
            response = self.response_to(message, DATAGRAM_MAX, client_address[0])
            if response is not None:
                udp_socket.sendto(response, client_address)

    async def _serve_tcp_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        client = writer.get_extra_info("peername")[0]
        try:
            while self._connections <= _CONNECTIONS_MAX:
                async with asyncio.timeout(_QUERY_TIMEOUT):
                    message_length = int.from_bytes(await reader.readexactly(2))
                    message = await reader.readexactly(message_length)
                    response = self.response_to(message, _MESSAGE_SIZE_MAX, client)
                    if response is None:
                        break
                    writer.write(len(response).to_bytes(2) + response)
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections -= 1
            writer.close()
