"""The pod network of this machine: sockets in it, from the switch process that holds it, and pod addresses."""

import os
import socket
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from batchyard.shim import network as switch
from batchyard.shim import state_dir

_ANSWER_MAX = 16


class PodsNetwork:
    """A connection to the switch of the pod network. OSError if it is not running."""

    def __init__(self, node: Path) -> None:
        opened = state_dir.open_folder(str(node))
        try:
            held = switch.find(opened)
        finally:
            os.close(opened)
        if held is None:
            raise ConnectionError("the switch of the pod network is not running")
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
        """Return a new UDP socket in the pod network."""
        return self._given(b"udp")

    def streams(self) -> socket.socket:
        """Return a new TCP socket in the pod network."""
        return self._given(b"tcp")

    def _given(self, kind: bytes) -> socket.socket:
        self._connection.send(kind)
        _, files, _, _ = socket.recv_fds(self._connection, _ANSWER_MAX, 1)
        if not files:
            raise ConnectionError("the switch of the pod network returned no socket")
        return socket.socket(fileno=files[0])


# --- addresses ---
#
# Address allocation for pods, round-robin, and the address of the bridge.


_PODS: Final = IPv4Network("10.77.0.0/16")


class PodAddresses:
    """The allocated addresses, by pod uid, as `10.77.0.5/16`."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._taken: set[str] = set()
        self._next = 2

    @property
    def gateway(self) -> str:
        """The address of the bridge."""
        return str(_PODS[1])

    def take(self, uid: str) -> str:
        """Allocate a free address. Round-robin delays the reuse of addresses."""
        last = _PODS.num_addresses - 2
        for _ in range(last):
            number, self._next = self._next, self._next % last + 1
            address = str(IPv4Interface((_PODS[max(number, 2)], _PODS.prefixlen)))
            if address not in self._taken:
                break
        self.keep(uid, address)
        return address

    def keep(self, uid: str, address: str | None) -> None:
        """Record the address of a pod that was started earlier."""
        if address is not None:
            self.give_back(uid)
            self._given[uid] = address
            self._taken.add(address)

    def give_back(self, uid: str) -> None:
        """Release the address of a deleted pod."""
        self._taken.discard(self._given.pop(uid, ""))
