"""The forwarder of Services: endpoints in turn, session affinity, tables, and real connections on the loopback."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress

import make
from batchyard.api.meta import Obj
from batchyard.server.local_node.service_forwarding import NAMESPACE_PORTS_MAX, service_table
from batchyard.server.local_node.service_proxy import (
    Address,
    EndpointChoice,
    FairShares,
    ServicePort,
    ServiceProxy,
    parse_table,
)

_HOST = "127.0.0.1"
_ENDPOINTS = [("10.0.0.1", 1), ("10.0.0.2", 1)]


def choice(affinity_seconds: int, endpoints: Sequence[Address] = _ENDPOINTS) -> EndpointChoice:
    made = EndpointChoice()
    made.port = ServicePort(("10.96.0.2", 80), False, affinity_seconds, endpoints)
    return made


def test_endpoints_are_chosen_in_turn() -> None:
    chooser = choice(0)
    assert [chooser.choose("client", 0) for _ in range(3)] == [_ENDPOINTS[0], _ENDPOINTS[1], _ENDPOINTS[0]]
    assert choice(0, []).choose("client", 0) is None


def test_affinity_ends_with_its_timeout_and_with_the_endpoint() -> None:
    chooser = choice(10)
    first = chooser.choose("client", 0)
    assert [chooser.choose("client", time) for time in (5, 14)] == [first, first]
    assert chooser.choose("client", 24) != first
    chooser.port = chooser.port._replace(endpoints=[("10.0.0.3", 1)])
    assert chooser.choose("client", 25) == ("10.0.0.3", 1)


def test_affinities_are_limited() -> None:
    chooser = choice(10)
    for number in range(5000):
        chooser.choose(str(number), 0)
    assert len(chooser._affinities) == 4096


class Listed:
    """A reader of given objects."""

    def __init__(self, *objects: Obj) -> None:
        self._objects = objects

    def get(self, key: object) -> None:
        """Return nothing: the table only lists."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return the objects of a kind."""
        return [obj for obj in self._objects if obj["kind"] == kind.partition(".")[0]]


def slice_of(*endpoints: Obj) -> Obj:
    labels = {"kubernetes.io/service-name": "web"}
    ports = [{"name": "http", "port": 8080, "protocol": "TCP"}]
    fields = {"addressType": "IPv4", "ports": ports, "endpoints": endpoints}
    return {"kind": "EndpointSlice", "metadata": make.metadata("web-1", labels=labels), **fields}


def endpoint(address: str, **conditions: bool) -> Obj:
    return {"addresses": [address], "conditions": conditions}


def test_table_lists_ready_endpoints_else_serving_ones() -> None:
    ports = [{"name": "http", "port": 80}, {"name": "none", "port": 1}, {"name": "s", "port": 2, "protocol": "SCTP"}]
    spec = {"clusterIP": "10.96.0.2", "ports": ports}
    web = {"apiVersion": "v1", "kind": "Service", "metadata": make.metadata("web"), "spec": spec}
    ending = endpoint("10.77.0.2", ready=False, serving=True, terminating=True)
    unready = endpoint("10.77.0.3", ready=False, serving=False, terminating=False)
    table = service_table(Listed(web, slice_of(ending, unready, endpoint("10.77.0.4", ready=True))))
    assert table.rows == [("10.96.0.2", 80, "TCP", 0, [("10.77.0.4", 8080)]), ("10.96.0.2", 1, "TCP", 0, [])]
    assert service_table(Listed(web, slice_of(ending, unready))).rows[0][4] == [("10.77.0.2", 8080)]


def free_port() -> int:
    with socket.create_server((_HOST, 0)) as server:
        return int(server.getsockname()[1])


async def exchange(port: int) -> bytes:
    """Send to a port, half-close, and return what comes back."""
    reader, writer = await asyncio.open_connection(_HOST, port)
    try:
        writer.write(b"question")
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"answer to " + await reader.read())
    writer.close()
    await writer.wait_closed()


def test_connections_are_forwarded_past_a_dead_endpoint() -> None:
    async def check() -> None:
        server = await asyncio.start_server(answer, _HOST, 0)
        live, dead, port = server.sockets[0].getsockname()[1], free_port(), free_port()
        proxy = ServiceProxy()
        proxy.apply(parse_table(f'[["{_HOST}",{port},"TCP",0,[["{_HOST}",{dead}],["{_HOST}",{live}]]]]'.encode()))
        assert await exchange(port) == b"answer to question"
        proxy.apply({})
        server.close()
        await server.wait_closed()
        with socket.socket() as late:
            assert late.connect_ex((_HOST, port)) != 0

    asyncio.run(check())


def test_service_without_endpoints_closes_connections() -> None:
    async def check() -> None:
        port, proxy = free_port(), ServiceProxy()
        proxy.apply(parse_table(f'[["{_HOST}",{port},"TCP",0,[]]]'.encode()))
        try:
            result = await exchange(port)
        except OSError:
            result = b""
        assert result == b""
        proxy.apply({})

    asyncio.run(check())


def test_datagrams_are_forwarded_both_ways() -> None:
    async def check() -> None:
        loop, port, proxy = asyncio.get_running_loop(), free_port(), ServiceProxy()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as pod, socket.socket(type=socket.SOCK_DGRAM) as client:
            for each in (pod, client):
                each.setblocking(False)
            pod.bind((_HOST, 0))
            proxy.apply(parse_table(f'[["{_HOST}",{port},"UDP",0,[["{_HOST}",{pod.getsockname()[1]}]]]]'.encode()))
            await loop.sock_sendto(client, b"question", (_HOST, port))
            data, sender = await loop.sock_recvfrom(pod, 100)
            await loop.sock_sendto(pod, b"answer to " + data, sender)
            assert await loop.sock_recv(client, 100) == b"answer to question"
        proxy.apply({})

    asyncio.run(check())


def test_older_service_keeps_a_shared_address() -> None:
    def service(name: str, created: str, port: int) -> Obj:
        metadata = {**make.metadata(name), "creationTimestamp": created}
        spec = {"clusterIP": "10.96.0.2", "ports": [{"port": port}]}
        return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}

    younger, older = service("a", "2026-01-02T00:00:00Z", 53), service("b", "2026-01-01T00:00:00Z", 80)
    for services in ((younger, older), (older, younger)):
        assert service_table(Listed(*services)).rows == [("10.96.0.2", 80, "TCP", 0, [])]


def test_ports_of_a_namespace_are_limited() -> None:
    ports = [{"name": f"p{number}", "port": number + 1} for number in range(NAMESPACE_PORTS_MAX)]
    services = [
        {"apiVersion": "v1", "kind": "Service", "metadata": make.metadata(name, namespace=namespace), "spec": spec}
        for name, namespace, spec in (
            ("big", "a", {"clusterIP": "10.96.0.2", "ports": ports}),
            ("more", "a", {"clusterIP": "10.96.0.3", "ports": ports[:1]}),
            ("other", "b", {"clusterIP": "10.96.0.4", "ports": ports[:1]}),
        )
    ]
    table = service_table(Listed(*services))
    assert [key.name for key in table.excluded] == ["more"]
    assert {row[0] for row in table.rows} == {"10.96.0.2", "10.96.0.4"}


def test_client_with_most_connections_makes_room() -> None:
    shares = FairShares[int](4)
    for number in range(3):
        shares.add("big", number)
    shares.add("small", 3)
    assert shares.find_excess("new") == (True, 0)
    shares.remove("big", 0)
    shares.add("new", 4)
    assert shares.find_excess("big") == (False, None)
    assert shares.find_excess("small") == (False, None)
    shares.remove("new", 4)
    assert shares.find_excess("small") == (True, None)


def test_udp_port_of_another_program_is_not_taken() -> None:
    async def check() -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as name_server:
            name_server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            name_server.bind((_HOST, 0))
            port, proxy = name_server.getsockname()[1], ServiceProxy()
            proxy.apply(parse_table(f'[["{_HOST}",{port},"UDP",0,[]]]'.encode()))
            assert not proxy._sockets

    asyncio.run(check())
