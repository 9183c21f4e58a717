"""The IP addresses of this machine's pods, and the answers of their name server."""

import struct
from collections.abc import Sequence
from ipaddress import IPv4Network

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.names import PodNames
from batchyard.server.local_node.network import DATAGRAM_MAX, NameServer, PodAddresses, QueryLimit


def test_released_address_is_reused_last() -> None:
    addresses = PodAddresses()
    assert [addresses.allocate(uid) for uid in ("a", "b")] == ["10.77.0.2/16", "10.77.0.3/16"]
    addresses.release("a")
    assert addresses.allocate("c") == "10.77.0.4/16"


def test_full_network_allocates_only_released_addresses() -> None:
    addresses = PodAddresses(IPv4Network("10.9.0.0/29"))
    allocated = [addresses.allocate(str(number)) for number in range(5)]
    assert allocated == [f"10.9.0.{number}/29" for number in range(2, 7)]
    with pytest.raises(ContainerError, match=r"no IP addresses available in range set: 10\.9\.0\.2-10\.9\.0\.6;"):
        addresses.allocate("new")
    addresses.release("3")
    assert addresses.allocate("new") == allocated[3]


def test_pod_in_full_network_may_get_its_own_address_again() -> None:
    addresses = PodAddresses(IPv4Network("10.9.0.0/30"))
    assert addresses.allocate("only") == addresses.allocate("only") == "10.9.0.2/30"


class NamedPods:
    """A reader of pods with DNS names, and of their Service, that counts how often pods are listed."""

    def __init__(self, count: int) -> None:
        self.lists = 0
        self.pods = {self.key(number): self.pod(number) for number in range(count)}

    @staticmethod
    def key(number: int) -> Key:
        return Key(scheme.POD, "team", f"p{number}")

    def pod(self, number: int, address: str = "") -> Obj:
        spec, status = {"hostname": f"h{number}", "subdomain": "web"}, {"podIP": address or f"10.77.0.{number}"}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": make.metadata(f"p{number}"),
            "spec": spec,
            "status": status,
        }

    def get(self, key: Key) -> Obj | None:
        return {"kind": "Service"} if key.kind == scheme.SERVICE else self.pods.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        self.lists += 1
        return [*self.pods.values()]

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        raise AssertionError


def test_reverse_lookups_share_one_scan_of_pods() -> None:
    reader = NamedPods(100)
    names = PodNames(reader)
    for number in range(100):
        found = names.resolve_address(f"{number}.0.77.10.in-addr.arpa", "cluster.local", 5.0)
        assert found == [f"h{number}.web.team.svc.cluster.local"]
    assert reader.lists == 1
    reader.pods[reader.key(7)] = reader.pod(7, "10.77.1.7")
    assert names.resolve_address("7.0.77.10.in-addr.arpa", "cluster.local", 5.5) is None
    assert names.resolve_address("7.1.77.10.in-addr.arpa", "cluster.local", 6.0) == ["h7.web.team.svc.cluster.local"]


def test_client_with_many_queries_gets_no_answers_for_a_while() -> None:
    limit = QueryLimit()
    answered = 0
    while limit.allows("10.77.0.2", 100.0):
        limit.count("10.77.0.2", 0.001, 100.0)
        answered += 1
    assert 150 <= answered <= 250
    assert limit.allows("10.77.0.3", 100.0)
    assert limit.allows("10.77.0.2", 101.0)


def test_clients_of_the_name_server_are_bounded() -> None:
    limit = QueryLimit()
    for _ in range(300):
        limit.count("busy", 0.001, 100.0)
    for number in range(5000):
        limit.count(f"client-{number}", 0.0, 100.0)
    assert limit.clients <= 1024
    assert not limit.allows("busy", 100.0)


def test_name_server_drops_queries_of_a_busy_client() -> None:
    server = NameServer(NamedPods(10), "cluster.local")
    labels = ["5", "0", "77", "10", "in-addr", "arpa"]
    name = b"".join(bytes([len(label)]) + label.encode() for label in labels)
    query = struct.pack("!6H", 1, 0, 1, 0, 0, 0) + name + struct.pack("!B2H", 0, 12, 1)
    answers = [server.response_to(query, DATAGRAM_MAX, "10.77.0.2") for _ in range(3000)]
    assert answers[0] is not None
    assert b"\x02h5\x03web\x04team" in answers[0]
    assert answers.count(None) > 500
    assert server.response_to(query, DATAGRAM_MAX, "10.77.0.3") is not None
