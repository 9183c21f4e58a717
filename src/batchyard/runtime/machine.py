"""The machine a pod is on, as its kubelet knows it: its Node, and the Instance of the cloud behind that, if any.

A Node without an Instance of its name is on a machine that nobody switches off.
"""

import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant


class Machine(NamedTuple):
    """What the kubelet on a machine can do at an instant."""

    is_on: bool
    #: Whether the kubelet takes up pods.
    is_ready: bool
    #: What ran before this was lost.
    booted_at: Instant = 0
    #: When the kubelet was told that the machine goes off; None: it was not.
    notice_at: Instant | None = None
    host_ip: str = ""


OFF: Final = Machine(is_on=False, is_ready=False)
#: Where pods run in a world without nodes.
ANYWHERE: Final = Machine(is_on=True, is_ready=True)


def machine_of(node: Obj | None, instance: Obj | None, now: Instant) -> Machine:
    """The machine of a node at an instant."""
    if node is None:
        return OFF
    status: Mapping[str, Any] = (instance.get("status") or {}) if instance is not None else {"phase": "Running"}
    if not _is_on(status, now):
        return OFF
    booted_at, notice_at = parse_time(node["metadata"]["creationTimestamp"]), None
    if "since" in status:
        if status["phase"] == "Stopping":
            notice_at = parse_time(status["since"])
        else:
            booted_at = max(booted_at, parse_time(status["since"]))
    return Machine(True, is_true(node, "Ready"), booted_at, notice_at, host_ip(node))


def host_ip(node: Obj) -> str:
    """The address of a node: its own, else one made from its name."""
    for address in (node.get("status") or {}).get("addresses") or ():
        if address["type"] == "InternalIP":
            return str(address["address"])
    return address_in("10.128.0.0", 20, node["metadata"]["name"])


def address_in(network: str, prefix: int, name: str) -> str:
    """An address of a network of IPv4 for a name, the same each time; two names may meet."""
    size = 1 << 32 - prefix
    parts = list(map(int, network.split(".")))
    first = (parts[0] << 24) + (parts[1] << 16) + (parts[2] << 8) + parts[3]
    address = first + 1 + zlib.crc32(name.encode()) % (size - 2)
    return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))


def _is_on(status: Mapping[str, Any], now: Instant) -> bool:
    phase = status.get("phase")
    if phase == "Stopping":
        return "stopAt" not in status or now < parse_time(status["stopAt"])
    return phase == "Running"
