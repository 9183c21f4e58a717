"""The probes and hooks of a container."""

from typing import Any

import pytest

from batchyard.kubelet.local.errors import ContainerError
from batchyard.kubelet.local.run_requests import lifecycle_hooks_of, probes_of
from unit.kubelet.local.local_make import container

PORTS = [{"name": "web", "containerPort": 8080}, {"containerPort": 1}]
DEFAULTS = {
    "initialDelaySeconds": 0,
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}


def test_probe_gets_default_values() -> None:
    only = container(livenessProbe={"exec": {"command": ["true"]}, "periodSeconds": 5})
    assert probes_of(only) == {"liveness": {**DEFAULTS, "periodSeconds": 5, "exec": {"command": ["true"]}}}
    assert probes_of(container()) == {}


def test_port_name_is_resolved_to_number() -> None:
    only = container(ports=PORTS, startupProbe={"httpGet": {"port": "web"}}, readinessProbe={"tcpSocket": {"port": 1}})
    result = probes_of(only)
    assert result["startup"]["httpGet"] == {"port": 8080, "path": "/", "scheme": "HTTP"}
    assert result["readiness"]["tcpSocket"] == {"port": 1}


def test_grpc_service_defaults_to_empty() -> None:
    assert probes_of(container(livenessProbe={"grpc": {"port": 9, "service": None}}))["liveness"]["grpc"] == {
        "port": 9,
        "service": "",
    }


def test_probe_without_handler_is_rejected() -> None:
    with pytest.raises(ContainerError, match="startup probe: must specify a handler type"):
        probes_of(container(startupProbe={"periodSeconds": 3}))


def test_hook_ports_are_resolved_to_numbers() -> None:
    hooks = {"postStart": {"exec": {"command": ["a"]}}, "preStop": {"httpGet": {"port": "9090", "path": "/bye"}}}
    assert lifecycle_hooks_of(container(lifecycle=hooks)) == {
        "postStart": {"exec": {"command": ["a"]}},
        "preStop": {"httpGet": {"port": 9090, "path": "/bye", "scheme": "HTTP"}},
    }
    assert lifecycle_hooks_of(container(lifecycle={"preStop": {"sleep": {"seconds": 3}}})) == {
        "preStop": {"sleep": {"seconds": 3}}
    }


@pytest.mark.parametrize(
    ("port", "reported"),
    [("no", "port no not found"), ("70000", "invalid port number: 70000"), (0, "invalid port number: 0")],
)
def test_invalid_port_is_rejected(port: Any, reported: str) -> None:
    with pytest.raises(ContainerError, match=f"readiness probe: {reported}"):
        probes_of(container(ports=PORTS, readinessProbe={"httpGet": {"port": port}}))
    with pytest.raises(ContainerError, match=f"preStop hook: {reported}"):
        lifecycle_hooks_of(container(ports=PORTS, lifecycle={"preStop": {"httpGet": {"port": port}}}))
