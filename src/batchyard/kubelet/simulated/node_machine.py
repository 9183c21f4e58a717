"""The machine a pod is on, as its kubelet knows it: its Node, and the Instance of the cloud behind that, if any.

A Node without an Instance of its name is on a machine that nobody switches off.
"""

import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant


class Machine(NamedTuple):
    """What the kubelet on a machine can do at an instant."""

    is_on: bool
    #: None where there are no nodes, and pods run anywhere.
    node: Obj | None = None
    #: What ran before this was lost.
    booted_at: Instant = 0
    #: When the kubelet was told that the machine goes off; None: it was not.
    notice_at: Instant | None = None

    def is_ready(self) -> bool:
        """Whether the kubelet takes up pods."""
        return self.is_on and (self.node is None or is_true(self.node, "Ready"))

    def host_ip(self) -> str:
        """The address of the node: its own, else one made from its name; empty where there are no nodes."""
        if self.node is None:
            return ""
        for address in (self.node.get("status") or {}).get("addresses") or ():
            if address["type"] == "InternalIP":
                return str(address["address"])
        return _host_address(self.node["metadata"]["name"])


OFF: Final = Machine(is_on=False)
ANYWHERE: Final = Machine(is_on=True)


def machine_of(node: Obj | None, instance: Obj | None, now: Instant) -> Machine:
    """The machine of a node at an instant."""
    if node is None:
        return OFF
    if instance is None:
        return Machine(True, node, parse_time(node["metadata"]["creationTimestamp"]))
    status: Mapping[str, Any] = instance.get("status") or {}
    if not _is_on(status, now):
        return OFF
    booted_at = parse_time(node["metadata"]["creationTimestamp"])
    if status["phase"] == "Running":
        booted_at = max(booted_at, parse_time(status["since"]))
    return Machine(True, node, booted_at, notice_at(instance))


def notice_at(instance: Obj) -> Instant | None:
    """When the system of a machine was told that it goes off: it is to stop, or was given up; None: it was not."""
    status: Mapping[str, Any] = instance.get("status") or {}
    if status.get("phase") == "Stopping":
        return parse_time(status["since"])
    given_up = instance["metadata"].get("deletionTimestamp")
    return parse_time(given_up) if given_up is not None and status.get("phase") == "Running" else None


def pod_address(uid: str) -> str:
    """An address for a pod in the network 10.4.0.0/14; two may meet."""
    number = zlib.crc32(uid.encode())
    return f"10.{4 + (number >> 16 & 3)}.{number >> 8 & 255}.{number & 255}"


@lru_cache(maxsize=16384)
def _host_address(name: str) -> str:
    """An address for a node in the network 10.128.0.0/20; two may meet."""
    number = zlib.crc32(name.encode())
    return f"10.128.{number >> 8 & 15}.{number & 255}"


def _is_on(status: Mapping[str, Any], now: Instant) -> bool:
    phase = status.get("phase")
    if phase == "Stopping":
        return "stopAt" not in status or now < parse_time(status["stopAt"])
    return phase == "Running"
