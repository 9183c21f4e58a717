"""A pod's place in the network: a namespace of its own, and a cable to the bridge that all pods share."""

import socket
from contextlib import suppress
from typing import Any

from batchyard.node import linux
from batchyard.node.netlink import Netlink
from batchyard.node.switch import BRIDGE

_LINK = "eth0"


def enter_new(spec: dict[str, Any], network: int) -> None:
    """Enter a new network namespace, plugged into the network that is held open, with the address of the spec."""
    linux.enter(network, linux.NEWNET)
    outside = Netlink()
    linux.unshare(linux.NEWNET)
    inside = Netlink()
    address, gateway = spec["address"], spec["gateway"]
    _plug(inside, outside, f"pod{socket.inet_aton(address.partition('/')[0]).hex()}", network)
    with suppress(FileExistsError):
        outside.add_address(BRIDGE, f"{gateway}/{address.partition('/')[2]}")
    inside.set_up("lo")
    inside.add_address(_LINK, address)
    inside.route_by(gateway, _LINK)
    linux.let_anybody_serve_any_port()
    outside.close()
    inside.close()


def _plug(inside: Netlink, outside: Netlink, peer: str, network: int) -> None:
    """Lay the cable. One that a pod of the same address has left goes first: Linux takes its time to clean up."""
    try:
        inside.make_pair(_LINK, peer, network)
    except FileExistsError:
        outside.remove(peer)
        inside.make_pair(_LINK, peer, network)
    outside.plug(peer, BRIDGE)
