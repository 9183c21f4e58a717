"""The program that forwards connections from the cluster IPs of Services to pods, in the network of the pods.

It runs as its own process in the network namespace of the pods, so only pods reach its sockets. It reads tables from
its standard input, one JSON line each, and ends with the input. A table lists every forwarded port:

    [["10.96.3.4", 80, "TCP", 0, [["10.77.0.5", 8080]]], ...]

The fourth value is the session affinity timeout in seconds, 0 without affinity. Connections, UDP flows and affinities
are limited in number. At the limit, a new connection of a client ends the oldest one of the client with the most.
"""

import asyncio
import json
import os
import resource
import socket
import sys
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from batchyard.shim import linux, state_dir
from batchyard.shim.isolation import network

_CONNECTIONS_MAX: Final = 4096
_FLOWS_MAX: Final = 4096
_AFFINITIES_MAX: Final = 4096
_LISTENERS_MAX: Final = 8192
_TABLE_BYTES_MAX: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_DATAGRAM_BYTES_MAX: Final = 65535
_BACKLOG: Final = 128
_CONNECT_ATTEMPTS: Final = 3
_CONNECT_TIMEOUT: Final = 5.0  # seconds
_FLOW_TIMEOUT: Final = 60.0  # seconds without a datagram
#: The socket option that allows to bind an address that the namespace does not have yet. Source: ip(7).
IP_FREEBIND: Final = 15

Address = tuple[str, int]


class ServicePort(NamedTuple):
    """A forwarded port of a Service, and the addresses of its endpoints."""

    address: Address
    is_udp: bool
    affinity_seconds: int
    endpoints: Sequence[Address]


def parse_table(line: bytes) -> dict[tuple[Address, bool], ServicePort]:
    """Return the forwarded ports of a table, by address and protocol."""
    ports = {}
    for host, port, protocol, affinity_seconds, endpoints in json.loads(line):
        is_udp = protocol == "UDP"
        targets = [(each[0], each[1]) for each in endpoints]
        ports[((host, port), is_udp)] = ServicePort((host, port), is_udp, affinity_seconds, targets)
    return ports


class EndpointChoice:
    """Chooses endpoints of one Service port in turn, or by client for a Service with session affinity."""

    def __init__(self) -> None:
        self.port = ServicePort(("", 0), False, 0, ())
        self._turns = count()
        #: The endpoint of each client and when it was last used, the least recently used client first.
        self._affinities: OrderedDict[str, tuple[Address, float]] = OrderedDict()

    def choose(self, client: str, now: float) -> Address | None:
        """Return the endpoint for a connection of a client; None if there are no endpoints."""
        endpoints = self.port.endpoints
        if not endpoints:
            return None
        if not self.port.affinity_seconds:
            return endpoints[next(self._turns) % len(endpoints)]
        known = self._affinities.pop(client, None)
        is_valid = known is not None and known[0] in endpoints and now - known[1] < self.port.affinity_seconds
        chosen = known[0] if known is not None and is_valid else endpoints[next(self._turns) % len(endpoints)]
        self._affinities[client] = (chosen, now)
        while len(self._affinities) > _AFFINITIES_MAX:
            self._affinities.popitem(last=False)
        return chosen

    def forget(self, client: str) -> None:
        """Forget the endpoint of a client, because it does not respond."""
        self._affinities.pop(client, None)


_Member = TypeVar("_Member")


class FairShares(Generic[_Member]):
    """Connections or flows by client address, at most `limit`, so that no client takes the share of another."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0
        #: The members of each client, the oldest first.
        self._members: dict[str, dict[_Member, None]] = {}

    def find_excess(self, client: str) -> tuple[bool, _Member | None]:
        """Return whether a client may get another member, and the member of another client to end for it, if any.

        At the limit, the client with the most members loses its oldest one, unless the new client would have as many.
        """
        if self._count < self._limit:
            return True, None
        biggest = max(self._members.values(), key=len)
        if len(biggest) <= len(self._members.get(client, ())) + 1:
            return False, None
        return True, next(iter(biggest))

    def add(self, client: str, member: _Member) -> None:
        """Count a member of a client."""
        self._members.setdefault(client, {})[member] = None
        self._count += 1

    def remove(self, client: str, member: _Member) -> None:
        """Forget an ended member of a client."""
        members = self._members[client]
        del members[member]
        self._count -= 1
        if not members:
            del self._members[client]


class ServiceProxy:
    """The listening sockets, by address and protocol, and the numbers of connections and flows."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[tuple[Address, bool], socket.socket] = {}
        self._choices: dict[tuple[Address, bool], EndpointChoice] = {}
        self._connections = FairShares[asyncio.Task[None]](_CONNECTIONS_MAX)
        self._flows: dict[tuple[Address, Address], _Flow] = {}
        self._flow_shares = FairShares[tuple[Address, Address]](_FLOWS_MAX)

    def apply(self, table: dict[tuple[Address, bool], ServicePort]) -> None:
        """Open and close sockets so that the ports of a table are forwarded."""
        for key in [key for key in self._sockets if key not in table]:
            self._close(key)
        for key, port in table.items():
            if key not in self._sockets:
                self._open(key)
            if key in self._choices:
                self._choices[key].port = port

    def _open(self, key: tuple[Address, bool]) -> None:
        address, is_udp = key
        if len(self._sockets) >= _LISTENERS_MAX:
            _log(f"{address[0]}:{address[1]} is not forwarded: {_LISTENERS_MAX} ports are")
            return
        service_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if is_udp else socket.SOCK_STREAM)
        try:
            if not is_udp:  # a UDP socket would take the datagrams of another one at its address, such as DNS
                service_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            service_socket.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
            service_socket.setblocking(False)
            service_socket.bind(address)
            if not is_udp:
                service_socket.listen(_BACKLOG)
        except OSError as error:
            service_socket.close()
            _log(f"{address[0]}:{address[1]} is not forwarded: {error.strerror or error}")
            return
        choice = self._choices[key] = EndpointChoice()
        self._sockets[key] = service_socket
        self._loop.add_reader(service_socket, self._receive if is_udp else self._accept, service_socket, choice)

    def _close(self, key: tuple[Address, bool]) -> None:
        service_socket = self._sockets.pop(key)
        self._loop.remove_reader(service_socket)
        service_socket.close()
        del self._choices[key]
        if key[1]:
            for flow_key in [each for each in self._flows if each[0] == key[0]]:
                self._end_flow(flow_key)

    def _accept(self, service_socket: socket.socket, choice: EndpointChoice) -> None:
        with suppress(OSError):
            connection, client = service_socket.accept()
            has_room, excess = self._connections.find_excess(client[0])
            if not has_room:
                connection.close()
                return
            if excess is not None:
                excess.cancel()
            connection.setblocking(False)
            task = self._loop.create_task(self._forward(connection, client[0], choice))
            self._connections.add(client[0], task)
            task.add_done_callback(partial(self._connections.remove, client[0]))

    async def _forward(self, connection: socket.socket, client: str, choice: EndpointChoice) -> None:
        with connection, suppress(OSError):
            target = await self._connect(client, choice)
            if target is not None:
                with target:
                    tasks = (self._copy(connection, target), self._copy(target, connection))
                    await asyncio.gather(*tasks)

    async def _connect(self, client: str, choice: EndpointChoice) -> socket.socket | None:
        for _ in range(_CONNECT_ATTEMPTS):
            address = choice.choose(client, self._loop.time())
            if address is None:
                return None
            target = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            target.setblocking(False)
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    await self._loop.sock_connect(target, address)
            except OSError:  # a TimeoutError too
                target.close()
                choice.forget(client)
            else:
                return target
        return None

    async def _copy(self, source: socket.socket, destination: socket.socket) -> None:
        """Copy one direction of a connection until its end; the other direction may continue."""
        try:
            while data := await self._loop.sock_recv(source, _CHUNK_BYTES):
                await self._loop.sock_sendall(destination, data)
            destination.shutdown(socket.SHUT_WR)
        except OSError:
            for each in (source, destination):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _receive(self, service_socket: socket.socket, choice: EndpointChoice) -> None:
        with suppress(OSError):
            data, client = service_socket.recvfrom(_DATAGRAM_BYTES_MAX)
            key = (choice.port.address, client)
            flow = self._flows.get(key)
            if flow is None or flow.endpoint not in choice.port.endpoints:
                flow = self._replace_flow(key, flow, service_socket, choice)
            if flow is not None:
                flow.used_at = self._loop.time()
                flow.target.send(data)

    def _replace_flow(
        self, key: tuple[Address, Address], old: "_Flow | None", service_socket: socket.socket, choice: EndpointChoice
    ) -> "_Flow | None":
        if old is not None:
            self._end_flow(key)
        has_room, excess = self._flow_shares.find_excess(key[1][0])
        endpoint = choice.choose(key[1][0], self._loop.time())
        if endpoint is None or not has_room:
            return None
        if excess is not None:
            self._end_flow(excess)
        flow = self._flows[key] = _Flow(endpoint, self._loop.time())
        self._flow_shares.add(key[1][0], key)
        self._loop.add_reader(flow.target, self._return_datagram, flow, service_socket, key[1])
        self._loop.call_later(_FLOW_TIMEOUT, self._expire_flow, key, flow)
        return flow

    def _return_datagram(self, flow: "_Flow", service_socket: socket.socket, client: Address) -> None:
        with suppress(OSError):
            data = flow.target.recv(_DATAGRAM_BYTES_MAX)
            flow.used_at = self._loop.time()
            service_socket.sendto(data, client)

    def _expire_flow(self, key: tuple[Address, Address], flow: "_Flow") -> None:
        if self._flows.get(key) is not flow:
            return
        idle_until = flow.used_at + _FLOW_TIMEOUT
        if idle_until > self._loop.time():
            self._loop.call_at(idle_until, self._expire_flow, key, flow)
        else:
            self._end_flow(key)

    def _end_flow(self, key: tuple[Address, Address]) -> None:
        flow = self._flows.pop(key)
        self._flow_shares.remove(key[1][0], key)
        self._loop.remove_reader(flow.target)
        flow.target.close()


class _Flow:
    """The UDP packets between one client and one endpoint."""

    def __init__(self, endpoint: Address, now: float) -> None:
        self.endpoint = endpoint
        self.used_at = now
        self.target = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.target.setblocking(False)
        self.target.connect(endpoint)


def _log(message: str) -> None:
    sys.stderr.write(f"services: {message}\n")
    sys.stderr.flush()


def enter_pod_network(node: str) -> None:
    """Move this process to the network namespace of the pods. Raises OSError if there is none."""
    node_fd = state_dir.open_folder(node)
    try:
        switch = network.connect_to_switch(node_fd)
    finally:
        os.close(node_fd)
    if switch is None or switch.network_fd is None:
        raise ConnectionError("there is no pod network" if switch is None else switch.failure)
    if not _is_own_user_namespace(switch.user_namespace_fd):
        linux.enter_namespaces(switch.user_namespace_fd, linux.NEWUSER)
    linux.enter_namespaces(switch.network_fd, linux.NEWNET)
    os.close(switch.user_namespace_fd)
    os.close(switch.network_fd)


def _is_own_user_namespace(fd: int) -> bool:
    own, other = Path("/proc/self/ns/user").stat(), os.fstat(fd)
    return (own.st_dev, own.st_ino) == (other.st_dev, other.st_ino)


async def _serve_tables() -> None:
    proxy = ServiceProxy()
    reader = asyncio.StreamReader(limit=_TABLE_BYTES_MAX)
    protocol: Any = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    while line := await reader.readline():
        proxy.apply(parse_table(line))


def main(node: str) -> None:
    """Forward connections in the pod network of the node in a folder, until standard input ends."""
    enter_pod_network(node)
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    asyncio.run(_serve_tables())


if __name__ == "__main__":
    main(sys.argv[1])
