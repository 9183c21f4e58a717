"""Machine of a pod as its kubelet knows it: its Node, and the cloud Instance behind it, if any.

A Node without an Instance of its name is on a machine that never shuts down.
"""

import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant


class NodeMachine(NamedTuple):
    """The power state and Node of a machine at an instant."""

    is_on: bool
    #: None in a cluster without nodes, where pods run anywhere.
    node: Obj | None = None
    #: Containers started earlier were lost.
    booted_at: Instant = 0
    #: When the shutdown notice arrived; None if there was none.
    notice_at: Instant | None = None

    def is_ready(self) -> bool:
        """Whether the kubelet accepts pods."""
        return self.is_on and (self.node is None or is_true(self.node, "Ready"))

    def host_ip(self) -> str:
        """Return the node's address, or one derived from its name; empty without nodes."""
        if self.node is None:
            return ""
        for address in (self.node.get("status") or {}).get("addresses") or ():
            if address["type"] == "InternalIP":
                return str(address["address"])
        return _host_address(self.node["metadata"]["name"])


OFF: Final = NodeMachine(is_on=False)
ANYWHERE: Final = NodeMachine(is_on=True)


def machine_of(node: Obj | None, instance: Obj | None, now: Instant) -> NodeMachine:
    """Return the machine of a node at an instant."""
    if node is None:
        return OFF
    if instance is None:
        return NodeMachine(True, node, parse_time(node["metadata"]["creationTimestamp"]))
    status: Mapping[str, Any] = instance.get("status") or {}
    if not _is_on(status, now):
        return OFF
    booted_at = parse_time(node["metadata"]["creationTimestamp"])
    if status["phase"] == "Running":
        booted_at = max(booted_at, parse_time(status["since"]))
    return NodeMachine(True, node, booted_at, notice_at(instance))


def notice_at(instance: Obj) -> Instant | None:
    """Return when a machine began to stop or its Instance was deleted, which is its shutdown notice; None if
    neither.
    """
    status: Mapping[str, Any] = instance.get("status") or {}
    if status.get("phase") == "Stopping":
        return parse_time(status["since"])
    given_up = instance["metadata"].get("deletionTimestamp")
    return parse_time(given_up) if given_up is not None and status.get("phase") == "Running" else None


def pod_address(uid: str) -> str:
    """Return an address for a pod in 10.4.0.0/14; two pods may share one."""
    number = zlib.crc32(uid.encode())
    return f"10.{4 + (number >> 16 & 3)}.{number >> 8 & 255}.{number & 255}"


@lru_cache(maxsize=16384)
def _host_address(name: str) -> str:
    """Return an address for a node in 10.128.0.0/20; two nodes may share one."""
    number = zlib.crc32(name.encode())
    return f"10.128.{number >> 8 & 15}.{number & 255}"


def _is_on(status: Mapping[str, Any], now: Instant) -> bool:
    phase = status.get("phase")
    if phase == "Stopping":
        return "stopAt" not in status or now < parse_time(status["stopAt"])
    return phase == "Running"
