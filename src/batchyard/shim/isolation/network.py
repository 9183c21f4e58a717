"""Pod networking: the network namespace of each pod, connected by a veth pair to a bridge of all pods."""

import os
import signal
import socket
import struct
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn

from batchyard.shim import linux, state_dir
from batchyard.shim.event_loop import ShimEventLoop

# Configures network links, addresses and routes through rtnetlink(7), without other programs.


_ACK, _CREATE, _EXCL, _REQUEST = 0x4, 0x400, 0x200, 0x1
_ERROR, _NEWLINK, _DELLINK, _GETLINK, _NEWADDR, _NEWROUTE = 2, 16, 17, 18, 20, 24
_INTERFACE_UP = 1
#: Attributes of links: IFLA_ADDRESS, IFLA_IFNAME, IFLA_MASTER, IFLA_LINKINFO, IFLA_NET_NS_FD.
_HARDWARE_ADDRESS, _NAME, _MASTER, _LINKINFO, _NAMESPACE = 1, 3, 10, 18, 28
_KIND, _DATA, _PEER = 1, 2, 1
#: Attributes of addresses and routes: IFA_ADDRESS, IFA_LOCAL, RTA_OIF, RTA_GATEWAY.
_ADDRESS, _LOCAL, _OUTPUT, _GATEWAY = 1, 2, 4, 5
_TABLE_MAIN, _PROTOCOL_BOOT, _UNICAST = 254, 3, 1
_TABLE_LOCAL, _SCOPE_HOST, _LOCAL_ROUTE = 255, 254, 2
#: The hardware address of the bridge, which no vendor assigns. No other interface of the pods' network has it.
_BRIDGE_HARDWARE_ADDRESS = b"\x02\0\0\0\0\x01"


class Netlink:
    """An rtnetlink socket, which configures the network namespace in which the socket was created."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)

    def close(self) -> None:
        """Close the netlink socket."""
        self._socket.close()

    def create_bridge(self, name: str) -> None:
        """Create a bridge interface with a hardware address of its own, and bring it up.

        A bridge without its own address takes over that of an attached interface. It would change when pods start or
        end, and the other pods would send to the old address until their neighbour entries expire.
        """
        link_info = _encode_attribute(_LINKINFO, _encode_attribute(_KIND, b"bridge"))
        hardware_address = _encode_attribute(_HARDWARE_ADDRESS, _BRIDGE_HARDWARE_ADDRESS)
        attributes = _text_attribute(_NAME, name) + hardware_address + link_info
        self._send_request(_NEWLINK, _CREATE | _EXCL, _link_header(is_up=True) + attributes)

    def create_veth_pair(self, name: str, peer: str, peer_namespace: int) -> None:
        """Create a veth pair: the end `name` here, the end `peer` in another network namespace.

        `peer_namespace` is the open descriptor of that namespace. Raises FileExistsError if one of the names is in use.
        """
        peer_attributes = _link_header() + _text_attribute(_NAME, peer) + _number_attribute(_NAMESPACE, peer_namespace)
        veth = _encode_attribute(_KIND, b"veth") + _encode_attribute(_DATA, _encode_attribute(_PEER, peer_attributes))
        self._send_request(
            _NEWLINK,
            _CREATE | _EXCL,
            _link_header(is_up=True) + _text_attribute(_NAME, name) + _encode_attribute(_LINKINFO, veth),
        )

    def attach_to_bridge(self, name: str, bridge: str) -> None:
        """Attach a network interface to a bridge, and bring it up."""
        master_attribute = _number_attribute(_MASTER, self.read_interface_index(bridge))
        self._send_request(_NEWLINK, 0, _link_header(is_up=True) + _text_attribute(_NAME, name) + master_attribute)

    def bring_interface_up(self, name: str) -> None:
        """Bring a network interface up."""
        self._send_request(_NEWLINK, 0, _link_header(is_up=True) + _text_attribute(_NAME, name))

    def delete_interface(self, name: str) -> None:
        """Delete a network interface."""
        self._send_request(_DELLINK, 0, _link_header() + _text_attribute(_NAME, name))

    def add_address(self, name: str, address: str) -> None:
        """Add an address such as `10.77.0.5/16` to a network interface. Raises FileExistsError if it has that."""
        host_address, _, prefix_length = address.partition("/")
        packed_address = socket.inet_aton(host_address)
        address_header = struct.pack(
            "=BBBBI", socket.AF_INET, int(prefix_length), 0, 0, self.read_interface_index(name)
        )
        body = address_header + _encode_attribute(_LOCAL, packed_address) + _encode_attribute(_ADDRESS, packed_address)
        self._send_request(_NEWADDR, _CREATE | _EXCL, body)

    def add_default_route(self, gateway: str, name: str) -> None:
        """Add a default route through a gateway and the network interface `name`."""
        route_header = struct.pack("=8BI", socket.AF_INET, 0, 0, 0, _TABLE_MAIN, _PROTOCOL_BOOT, 0, _UNICAST, 0)
        request_body = (
            route_header
            + _encode_attribute(_GATEWAY, socket.inet_aton(gateway))
            + _number_attribute(_OUTPUT, self.read_interface_index(name))
        )
        self._send_request(_NEWROUTE, _CREATE | _EXCL, request_body)

    def add_local_network(self, network: str) -> None:
        """Treat all addresses of a network such as `10.96.0.0/16` as addresses of this namespace."""
        address, _, prefix_length = network.partition("/")
        route_header = struct.pack(
            "=8BI", socket.AF_INET, int(prefix_length), 0, 0, _TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _LOCAL_ROUTE, 0
        )
        destination = _encode_attribute(_ADDRESS, socket.inet_aton(address))
        output = _number_attribute(_OUTPUT, self.read_interface_index("lo"))
        self._send_request(_NEWROUTE, _CREATE | _EXCL, route_header + destination + output)

    def read_interface_index(self, name: str) -> int:
        """Return the index of a network interface. Raises OSError if no interface has this name."""
        response = self._send_request(_GETLINK, 0, _link_header() + _text_attribute(_NAME, name))
        return int(struct.unpack_from("=4xi", response)[0])

    def _send_request(self, kind: int, flags: int, body: bytes) -> bytes:
        ack_flag = 0 if kind == _GETLINK else _ACK
        self._socket.send(struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | ack_flag | flags, 1, 0) + body)
        response = self._socket.recv(65536)
        _, response_kind, _, _, _ = struct.unpack_from("=IHHII", response)
        if response_kind != _ERROR:
            return response[16:]
        error_number = -struct.unpack_from("=i", response, 16)[0]
        if error_number:
            raise OSError(error_number, os.strerror(error_number))
        return b""


def _link_header(is_up: bool = False) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, 0, _INTERFACE_UP if is_up else 0, _INTERFACE_UP if is_up else 0)


def _encode_attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _text_attribute(kind: int, value: str) -> bytes:
    return _encode_attribute(kind, value.encode() + b"\0")


def _number_attribute(kind: int, value: int) -> bytes:
    return _encode_attribute(kind, struct.pack("=I", value))


# The switch is a process that keeps the pods' bridge in its own network namespace.
#
# It also keeps the spawner's user namespace, if any. It outlives the spawner, so that the next spawner finds the
# network of existing pods. A client connects to the socket `switch` in the node directory and receives one message:
# `ok`, or why pods have no network, with descriptors of the user and network namespaces. The client can then request
# sockets in the pods' network with `tcp` or `udp`. With `local` and a network such as 10.96.0.0/16, it requests that
# the network's addresses belong to the pods' gateway; the reply is `ok` or an error. The switch ends when its last
# client disconnects.


BRIDGE = "pods"
_LOCAL_NETWORK_REQUEST = b"local "
_SOCKET_TYPES = {b"tcp": socket.SOCK_STREAM, b"udp": socket.SOCK_DGRAM}


class SwitchConnection(NamedTuple):
    """A connection to the process that holds the pods' bridge (the switch), and the namespaces received from it.

    The switch process runs as long as a connection is open.
    """

    connection: socket.socket
    user_namespace_fd: int
    #: A descriptor of the pods' network namespace; None if pods have no network, for the reason in `failure`.
    network_fd: int | None
    failure: str


def connect_to_switch(node_fd: int) -> SwitchConnection | None:
    """Connect to a node's running switch, the process that holds the pods' bridge; return None if no switch runs.

    `node_fd` is the open descriptor of the node's directory.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(state_dir.socket_address(node_fd, "switch"))
        switch_reply, fds = state_dir.receive_fds(connection, 4096, 2)
    except OSError:
        switch_reply, fds = b"", []
    if not switch_reply:
        connection.close()
        return None
    network_fd = fds[1] if switch_reply == b"ok" else None
    return SwitchConnection(connection, fds[0], network_fd, "" if switch_reply == b"ok" else switch_reply.decode())


def start_switch(node_fd: int) -> SwitchConnection | None:
    """Start the process that holds the bridge of the pod network; return a connection to it, or None on failure.

    `node_fd` is the open descriptor of the node's directory.
    """
    state_dir.remove_file(node_fd, "switch")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(state_dir.socket_address(node_fd, "switch"))
    listener.listen(64)
    if os.fork() == 0:
        _run_switch(listener)
    listener.close()
    return connect_to_switch(node_fd)


def _run_switch(listener: socket.socket) -> NoReturn:
    try:
        os.setsid()
        os.closerange(3, listener.fileno())
        os.closerange(listener.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        for signal_number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, signal.SIG_IGN)
        _Switch(listener).serve()
    finally:
        os._exit(0)


class _Switch:
    def __init__(self, listener: socket.socket) -> None:
        self._listening = listener
        self._loop = ShimEventLoop()
        self._client_count = 0
        self._greeting = _create_pod_network()
        self._namespace_fds = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in ("user", "net")]

    def serve(self) -> None:
        self._loop.when_readable(self._listening.fileno(), self._accept_connection)
        self._loop.run()

    def _accept_connection(self) -> None:
        client_connection, _ = self._listening.accept()
        self._client_count += 1
        try:
            socket.send_fds(client_connection, [self._greeting], self._namespace_fds)
        except OSError:
            self._client_count -= 1
            return
        self._loop.when_readable(client_connection.fileno(), partial(self._handle_request, client_connection))

    def _handle_request(self, connection: socket.socket) -> None:
        try:
            request = connection.recv(64)
            if request in _SOCKET_TYPES:
                with socket.socket(socket.AF_INET, _SOCKET_TYPES[request]) as pod_socket:
                    socket.send_fds(connection, [b"ok"], [pod_socket.fileno()])
            elif request.startswith(_LOCAL_NETWORK_REQUEST):
                connection.send(_add_local_network(request.removeprefix(_LOCAL_NETWORK_REQUEST).decode()))
        except OSError:
            request = b""
        if not request:
            self._loop.unregister(connection.fileno())
            connection.close()
            self._client_count -= 1
            if not self._client_count:
                self._loop.stop()


def _create_pod_network() -> bytes:
    """Create the network namespace and bridge of all pods; return the message for clients: `ok`, or the error."""
    try:
        linux.unshare(linux.NEWNET)
        netlink = Netlink()
        netlink.bring_interface_up("lo")
        netlink.create_bridge(BRIDGE)
        linux.allow_unprivileged_ports()
    except OSError as failure:
        return str(failure).encode()
    return b"ok"


def _add_local_network(cidr: str) -> bytes:
    netlink = Netlink()
    try:
        netlink.add_local_network(cidr)
    except FileExistsError:
        return b"ok"
    except (OSError, ValueError, struct.error) as failure:
        return str(failure).encode()[:64]
    finally:
        netlink.close()
    return b"ok"


_POD_INTERFACE = "eth0"


def enter_pod_network(spec: dict[str, Any], network_fd: int) -> None:
    """Enter a new network namespace with the sandbox's address, connected to the bridge in namespace `network_fd`."""
    linux.enter_namespaces(network_fd, linux.NEWNET)
    bridge_netlink = Netlink()
    linux.unshare(linux.NEWNET)
    pod_netlink = Netlink()
    address, gateway = spec["address"], spec["gateway"]
    _connect_pod(pod_netlink, bridge_netlink, f"pod{socket.inet_aton(address.partition('/')[0]).hex()}", network_fd)
    with suppress(FileExistsError):
        bridge_netlink.add_address(BRIDGE, f"{gateway}/{address.partition('/')[2]}")
    pod_netlink.bring_interface_up("lo")
    pod_netlink.add_address(_POD_INTERFACE, address)
    pod_netlink.add_default_route(gateway, _POD_INTERFACE)
    linux.allow_unprivileged_ports()
    bridge_netlink.close()
    pod_netlink.close()


def _connect_pod(pod_netlink: Netlink, bridge_netlink: Netlink, peer_name: str, network_fd: int) -> None:
    """Create a pod's veth pair; first remove one that an earlier pod with the same address has left."""
    try:
        pod_netlink.create_veth_pair(_POD_INTERFACE, peer_name, network_fd)
    except FileExistsError:
        bridge_netlink.delete_interface(peer_name)
        pod_netlink.create_veth_pair(_POD_INTERFACE, peer_name, network_fd)
    bridge_netlink.attach_to_bridge(peer_name, BRIDGE)
