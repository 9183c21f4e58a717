"""The IP addresses of this machine's pods."""

from ipaddress import IPv4Network

import pytest

from batchyard.kubelet.local.errors import ContainerError
from batchyard.server.local_node.network import PodAddresses


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
