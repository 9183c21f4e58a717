"""Pods in a pod network."""

import os
import socket
from typing import Any

from integration_shim.machine import ShimMachine, shell, state, until, wait_for_phase

PLUGGED: dict[str, Any] = {"network": "pod", "gateway": "10.99.0.1"}
SERVE = "python3 -c \"import socket; s = socket.create_server(('', 80)); print('up', flush=True); s.accept()\""
ASK_GATEWAY = """python3 -c "
import socket
socket.socket().connect_ex(('10.99.0.1', 9))
entries = open('/proc/net/arp').read().splitlines()
print(next(line.split()[3] for line in entries if line.startswith('10.99.0.1 ')))
"
"""
FETCH = "python3 -c \"import socket; print(socket.create_connection(('10.99.0.5', 80), 10).getpeername())\""


def test_pods_connect_by_address(node: ShimMachine) -> None:
    node.sandbox("a", address="10.99.0.5/16", **PLUGGED)
    node.sandbox("b", address="10.99.0.6/16", **PLUGGED)
    server = node.start(shell(SERVE, network="pod"), "a")
    until(lambda: state(server).get("phase") == "Running" and node.texts("a"), "the server is up")
    assert node.ended(shell(FETCH, network="pod"), "b")["exitCode"] == 0
    assert node.texts("b") == ["('10.99.0.5', 80)"]
    assert wait_for_phase(server, "Exited")["exitCode"] == 0


def test_pods_connect_across_restart_of_spawner(node: ShimMachine) -> None:
    node.sandbox("a", address="10.99.0.5/16", **PLUGGED)
    server = node.start(shell(SERVE, network="pod"), "a")
    until(lambda: state(server).get("phase") == "Running" and node.texts("a"), "the server is up")
    node.spawner.kill()
    node.spawner.wait()
    node.spawner = node.start_spawner()
    node.sandbox("b", address="10.99.0.6/16", **PLUGGED)
    assert node.ended(shell(FETCH, network="pod"), "b")["exitCode"] == 0
    reported = node.ended(shell("echo also", container="second", network="pod"), "a")
    assert (reported["exitCode"], wait_for_phase(server, "Exited")["exitCode"]) == (0, 0)


def test_pod_address_is_reusable_at_once(node: ShimMachine) -> None:
    for pod in ("a", "b", "c"):
        run = node.sandbox(pod, address="10.99.0.5/16", **PLUGGED)
        assert node.ended(shell("grep -c eth0 /proc/net/dev", network="pod"), pod)["exitCode"] == 0
        node.stop(run)
        wait_for_phase(run, "Exited")


def test_gateway_keeps_hardware_address_when_pods_start_and_end(node: ShimMachine) -> None:
    """Otherwise running pods lose their connections to the API, to Services and to DNS."""
    seen = set()
    for index in range(6):
        run = node.sandbox(f"pod{index}", address=f"10.99.0.{5 + index}/16", **PLUGGED)
        node.ended(shell(ASK_GATEWAY, network="pod"), f"pod{index}")
        seen.add(node.texts(f"pod{index}")[0])
        if index % 2:
            node.stop(run)
            wait_for_phase(run, "Exited")
    assert seen == {"02:00:00:00:00:01"}


def test_pod_resolves_names_with_its_hosts_and_resolvers(node: ShimMachine) -> None:
    named: dict[str, Any] = {"resolvers": ["10.99.0.1"], "searches": ["a.svc.cluster.local", "svc.cluster.local"]}
    node.sandbox(hosts="127.0.0.1 localhost\n10.99.0.5 p\n", address="10.99.0.5/16", **PLUGGED, **named)
    node.ended(shell("cat /etc/resolv.conf; getent hosts p", network="pod"))
    *resolv, hosts = node.texts()
    assert resolv == ["search a.svc.cluster.local svc.cluster.local", "nameserver 10.99.0.1", "options ndots:5"]
    assert hosts.split() == ["10.99.0.5", "p"]


def test_switch_provides_sockets_in_pod_network(node: ShimMachine) -> None:
    node.sandbox(address="10.99.0.5/16", **PLUGGED)
    run = node.start(shell(SERVE, network="pod"))
    until(lambda: state(run).get("phase") == "Running" and node.texts(), "the server is up")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.connect(str(node.root / "switch"))
        close(socket.recv_fds(asking, 100, 2)[1])
        asking.send(b"tcp")
        given = socket.socket(fileno=socket.recv_fds(asking, 100, 1)[1][0])
    with given:
        given.settimeout(10)
        given.connect(("10.99.0.5", 80))
    assert wait_for_phase(run, "Exited")["exitCode"] == 0


def close(files: list[int]) -> None:
    for file in files:
        os.close(file)
