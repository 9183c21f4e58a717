"""Pods of this machine reach Services at their cluster IPs and DNS names; processes of the machine do not."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL

import pytest

from e2e_local_pods.node import PATIENCE, local_platform, programs_of, script, wait_for
from e2e_platform.platform_process import UpProcess

#: Serves a TCP port that returns the name of the pod, and a UDP port that returns what it receives.
_SERVER = """
exec python3 -c '
import socket, threading
def echo():
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("", 9000))
    while True:
        udp.sendto(*udp.recvfrom(2000))
threading.Thread(target=echo, daemon=True).start()
tcp = socket.create_server(("", 8080), backlog=50)
while True:
    connection, _ = tcp.accept()
    received = b"".join(iter(lambda: connection.recv(4096), b""))
    connection.sendall(socket.gethostname().encode() + b" " + str(len(received)).encode())
    connection.close()
'
"""
_TCP_CLIENT = """
exec python3 -c '
import socket, sys, threading
def connect():
    for _ in range(1000):
        try:
            return socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
        except ConnectionRefusedError:
            threading.Event().wait(0.05)
for _ in range(int(sys.argv[3])):
    with connect() as connection:
        connection.sendall(b"x" * 1000000)
        connection.shutdown(socket.SHUT_WR)
        print(b"".join(iter(lambda: connection.recv(4096), b"")).decode())
' {host} {port} {count}
"""
_UDP_CLIENT = """
exec python3 -c '
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.settimeout(10)
    udp.sendto(b"hello", ("echo.default.svc.cluster.local", 53))
    print(udp.recv(100).decode())
'
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """A platform with two pods behind the Services `web` and `sticky` (TCP) and `echo` (UDP)."""
    with local_platform(tmp_path_factory.mktemp("platform")) as started:
        if started.kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}") == "None":
            pytest.skip("pods have no network of their own here")
        for name in ("web-1", "web-2"):
            pod = json.loads(script(name, _SERVER))
            pod["metadata"]["labels"] = {"app": "web"}
            started.kubectl("create", "-f", "-", sent=json.dumps(pod))
        for name, port in (("web", {"port": 80, "targetPort": 8080}), ("echo", {"port": 53, "protocol": "UDP"})):
            target = {"targetPort": 9000} if name == "echo" else {}
            spec = {"selector": {"app": "web"}, "ports": [{**port, **target}]}
            started.kubectl("create", "-f", "-", sent=service(name, **spec))
        started.kubectl("create", "-f", "-", sent=service("sticky", sessionAffinity="ClientIP", **web_spec()))
        started.kubectl("wait", "pod", "web-1", "web-2", "--for=condition=Ready", PATIENCE)
        yield started


def web_spec() -> dict[str, object]:
    return {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}


def service(name: str, **spec: object) -> str:
    """A Service as JSON."""
    return json.dumps({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})


def run(platform: UpProcess, name: str, text: str) -> list[str]:
    """The output lines of a script that succeeds in a pod."""
    platform.kubectl("create", "-f", "-", sent=script(name, text))
    wait_for(platform, name, "Succeeded")
    return platform.kubectl("logs", name).splitlines()


def connect(platform: UpProcess, name: str, host: str = "web", port: int = 80, count: int = 4) -> list[str]:
    """The answers of connections from one pod; each contains the name of a pod and the number of received bytes."""
    return run(platform, name, _TCP_CLIENT.format(host=host, port=port, count=count))


def cluster_ip(platform: UpProcess, name: str) -> str:
    return platform.kubectl("get", "service", name, "-o", "jsonpath={.spec.clusterIP}")


def test_connections_are_spread_over_the_pods(platform: UpProcess) -> None:
    assert sorted(set(connect(platform, "spread"))) == ["web-1 1000000", "web-2 1000000"]
    assert len(connect(platform, "by-address", cluster_ip(platform, "web"), count=1)) == 1


def test_client_with_affinity_reaches_one_pod(platform: UpProcess) -> None:
    assert len(set(connect(platform, "sticks", "sticky.default.svc"))) == 1


def test_udp_packets_are_forwarded(platform: UpProcess) -> None:
    assert run(platform, "echoes", _UDP_CLIENT) == ["hello"]


def test_processes_of_the_machine_do_not_reach_cluster_ips(platform: UpProcess) -> None:
    received = b""
    with suppress(OSError), socket.create_connection((cluster_ip(platform, "web"), 80), 2) as connection:
        connection.shutdown(socket.SHUT_WR)  # a gateway of the machine may accept the connection
        received = connection.recv(100)
    assert b"web-" not in received


def test_service_at_the_port_of_the_api_has_its_own_pods(platform: UpProcess) -> None:
    spec = {"selector": {"app": "web"}, "ports": [{"port": 443, "targetPort": 8080}]}
    platform.kubectl("create", "-f", "-", sent=service("secure", **spec))
    assert connect(platform, "to-secure", "secure", 443, count=1)[0].endswith(" 1000000")


def test_killed_forwarder_is_started_again(platform: UpProcess) -> None:
    assert connect(platform, "before-kill", count=1)
    (forwarder,) = forwarders(platform)
    os.kill(forwarder, SIGKILL)
    assert connect(platform, "after-kill", count=1)
    assert forwarders(platform) != [forwarder]


def forwarders(platform: UpProcess) -> list[int]:
    """The processes that forward Services."""
    listed = command_lines(platform)
    return [pid for pid, arguments in listed.items() if "batchyard.server.local_node.service_proxy" in arguments]


def command_lines(platform: UpProcess) -> dict[int, str]:
    """The command lines of the processes of the node, by process."""
    result = {}
    for pid in programs_of(platform.kubeconfig.parent):
        result[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
    return result
