"""Network links, addresses and routes, made by asking Linux itself (rtnetlink(7)): no program is started for them."""

import os
import socket
import struct

_ACK, _CREATE, _EXCL, _REQUEST = 0x4, 0x400, 0x200, 0x1
_ERROR, _NEWLINK, _DELLINK, _GETLINK, _NEWADDR, _NEWROUTE = 2, 16, 17, 18, 20, 24
_UP = 1
#: Attributes of links: IFLA_IFNAME, IFLA_MASTER, IFLA_LINKINFO, IFLA_NET_NS_FD.
_NAME, _MASTER, _LINKINFO, _NAMESPACE = 3, 10, 18, 28
_KIND, _DATA, _PEER = 1, 2, 1
#: Attributes of addresses and routes: IFA_ADDRESS, IFA_LOCAL, RTA_OIF, RTA_GATEWAY.
_ADDRESS, _LOCAL, _OUTPUT, _GATEWAY = 1, 2, 4, 5
_TABLE_MAIN, _PROTOCOL_BOOT, _UNICAST = 254, 3, 1


class Netlink:
    """A way to ask for changes in the network namespace in which it was made, wherever the process is by then."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)

    def close(self) -> None:
        """Ask no more."""
        self._socket.close()

    def make_bridge(self, name: str) -> None:
        """A bridge, which is up."""
        kind = _attribute(_LINKINFO, _attribute(_KIND, b"bridge"))
        self._ask(_NEWLINK, _CREATE | _EXCL, _link(up=True) + _text(_NAME, name) + kind)

    def make_pair(self, name: str, peer: str, peer_namespace: int) -> None:
        """A cable: one end here, the other in the network namespace that is held open."""
        other = _link() + _text(_NAME, peer) + _number(_NAMESPACE, peer_namespace)
        pair = _attribute(_KIND, b"veth") + _attribute(_DATA, _attribute(_PEER, other))
        self._ask(_NEWLINK, _CREATE | _EXCL, _link(up=True) + _text(_NAME, name) + _attribute(_LINKINFO, pair))

    def plug(self, name: str, bridge: str) -> None:
        """Plug a link into a bridge, and set it up."""
        master = _number(_MASTER, self.index(bridge))
        self._ask(_NEWLINK, 0, _link(up=True) + _text(_NAME, name) + master)

    def set_up(self, name: str) -> None:
        """Set a link up."""
        self._ask(_NEWLINK, 0, _link(up=True) + _text(_NAME, name))

    def remove(self, name: str) -> None:
        """Remove a link."""
        self._ask(_DELLINK, 0, _link() + _text(_NAME, name))

    def add_address(self, name: str, address: str) -> None:
        """Give a link an address, such as `10.77.0.5/16`. FileExistsError where it has it."""
        number, _, length = address.partition("/")
        packed = socket.inet_aton(number)
        head = struct.pack("=BBBBI", socket.AF_INET, int(length), 0, 0, self.index(name))
        body = head + _attribute(_LOCAL, packed) + _attribute(_ADDRESS, packed)
        self._ask(_NEWADDR, _CREATE | _EXCL, body)

    def route_by(self, gateway: str, name: str) -> None:
        """Send what is for nobody near by to a gateway."""
        head = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, _TABLE_MAIN, _PROTOCOL_BOOT, 0, _UNICAST, 0)
        body = head + _attribute(_GATEWAY, socket.inet_aton(gateway)) + _number(_OUTPUT, self.index(name))
        self._ask(_NEWROUTE, _CREATE | _EXCL, body)

    def index(self, name: str) -> int:
        """The number of a link."""
        answer = self._ask(_GETLINK, 0, _link() + _text(_NAME, name))
        return int(struct.unpack_from("=4xi", answer)[0])

    def _ask(self, kind: int, flags: int, body: bytes) -> bytes:
        """Send a request; its answer, empty where it is only acknowledged. OSError where it is refused."""
        acknowledged = 0 if kind == _GETLINK else _ACK
        self._socket.send(struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | acknowledged | flags, 1, 0) + body)
        answer = self._socket.recv(65536)
        _, answered, _, _, _ = struct.unpack_from("=IHHII", answer)
        if answered != _ERROR:
            return answer[16:]
        number = -struct.unpack_from("=i", answer, 16)[0]
        if number:
            raise OSError(number, os.strerror(number))
        return b""


def _link(up: bool = False) -> bytes:
    """The head of a message about a link that is named by an attribute."""
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, 0, _UP if up else 0, _UP if up else 0)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _text(kind: int, value: str) -> bytes:
    return _attribute(kind, value.encode() + b"\0")


def _number(kind: int, value: int) -> bytes:
    return _attribute(kind, struct.pack("=I", value))
