"""The network of the pods on this machine, from outside: the switch that holds it hands out sockets in it."""

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
    """See the module. OSError if there is none."""

    def __init__(self, node: Path) -> None:
        opened = state_dir.open_folder(str(node))
        try:
            held = switch.find(opened)
        finally:
            os.close(opened)
        if held is None:
            raise ConnectionError("nobody holds the network of the pods")
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
        """A new socket for UDP."""
        return self._given(b"udp")

    def streams(self) -> socket.socket:
        """A new socket for TCP."""
        return self._given(b"tcp")

    def _given(self, kind: bytes) -> socket.socket:
        self._connection.send(kind)
        _, files, _, _ = socket.recv_fds(self._connection, _ANSWER_MAX, 1)
        if not files:
            raise ConnectionError("the network of the pods gives no sockets any more")
        return socket.socket(fileno=files[0])


# --- addresses ---
#
# The addresses of pods on this machine, each in turn, and the bridge's own.


_PODS: Final = IPv4Network("10.77.0.0/16")


class Addresses:
    """See the module. They are given as `10.77.0.5/16`, by the uid of a pod."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._taken: set[str] = set()
        self._next = 2

    @property
    def gateway(self) -> str:
        """The address of the bridge."""
        return str(_PODS[1])

    def take(self, uid: str) -> str:
        """An address that no other pod has, each in turn so that none is soon another's."""
        last = _PODS.num_addresses - 2
        for _ in range(last):
            number, self._next = self._next, self._next % last + 1
            address = str(IPv4Interface((_PODS[max(number, 2)], _PODS.prefixlen)))
            if address not in self._taken:
                break
        self.keep(uid, address)
        return address

    def keep(self, uid: str, address: str | None) -> None:
        """Take note of an address that a pod has from before."""
        if address is not None:
            self.give_back(uid)
            self._given[uid] = address
            self._taken.add(address)

    def give_back(self, uid: str) -> None:
        """Have the address of a pod that is no more."""
        self._taken.discard(self._given.pop(uid, ""))
