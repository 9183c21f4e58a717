"""The switch: a process that holds the network of the pods, a bridge in a network namespace of its own.

It holds the spawner's user namespace too, where there is one. It outlives the spawner, so that the next one finds the
pods of the last. Whoever connects to its socket, `switch` in the node's folder, is sent one message: `ok` or why there
is no network, with files of the user namespace and the network namespace. Then he may ask for sockets in the pods'
network, by `tcp` or `udp`, and is sent one each time. The switch ends when nobody is connected any more.
"""

import os
import signal
import socket
from functools import partial
from typing import NamedTuple, NoReturn

from batchyard.node import folder, linux
from batchyard.node.loop import Loop
from batchyard.node.netlink import Netlink

BRIDGE = "pods"
_KINDS = {b"tcp": socket.SOCK_STREAM, b"udp": socket.SOCK_DGRAM}


class Held(NamedTuple):
    """What the switch hands out. As long as the connection is open, by whomever, the switch stays."""

    connection: socket.socket
    user_namespace: int
    #: None where there is no network for pods: `failure` says why.
    network: int | None
    failure: str


def find(node: int) -> Held | None:
    """The switch that is at work in a node's folder."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(folder.address(node, "switch"))
        said, files = folder.take_files(connection, 4096, 2)
    except OSError:
        said, files = b"", []
    if not said:
        connection.close()
        return None
    network = files[1] if said == b"ok" else None
    return Held(connection, files[0], network, "" if said == b"ok" else said.decode())


def start(node: int) -> Held | None:
    """A new switch, in the user namespace of this process."""
    folder.remove(node, "switch")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(folder.address(node, "switch"))
    listening.listen(64)
    if os.fork() == 0:
        _be(listening)
    listening.close()
    return find(node)


def _be(listening: socket.socket) -> NoReturn:
    """Be the switch until nobody is connected."""
    try:
        os.setsid()
        os.closerange(3, listening.fileno())
        os.closerange(listening.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        _Switch(listening).serve()
    finally:
        os._exit(0)


class _Switch:
    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._loop = Loop()
        self._connected = 0
        self._hello = _make_network()
        self._files = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("user", "net")]

    def serve(self) -> None:
        self._loop.when_readable(self._listening.fileno(), self._accept)
        self._loop.run()

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        self._connected += 1
        try:
            socket.send_fds(connection, [self._hello], self._files)
        except OSError:
            self._connected -= 1
            return
        self._loop.when_readable(connection.fileno(), partial(self._answer, connection))

    def _answer(self, connection: socket.socket) -> None:
        """Hand out a socket, or note that somebody has gone."""
        try:
            asked = connection.recv(16)
            if asked in _KINDS:
                with socket.socket(socket.AF_INET, _KINDS[asked]) as given:
                    socket.send_fds(connection, [b"ok"], [given.fileno()])
        except OSError:
            asked = b""
        if not asked:
            self._loop.forget(connection.fileno())
            connection.close()
            self._connected -= 1
            if not self._connected:
                self._loop.stop()


def _make_network() -> bytes:
    """Make the network that pods are plugged into; what to say of it."""
    try:
        linux.unshare(linux.NEWNET)
        network = Netlink()
        network.set_up("lo")
        network.make_bridge(BRIDGE)
        linux.let_anybody_serve_any_port()
    except OSError as failure:
        return str(failure).encode()
    return b"ok"
