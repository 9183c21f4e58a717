"""The probes and lifecycle hooks of a container, complete: defaults filled in, ports as numbers.

A kubelet finds out that a port's name is unknown when it probes, tells it, and probes again for ever; here such a
container is not made. Source: pkg/apis/core/v1/defaults.go; pkg/probe (ResolveContainerPort).
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.runtime.local.errors import CONFIG, ContainerError

_PROBES: Final[Mapping[str, str]] = {
    "startupProbe": "startup",
    "livenessProbe": "liveness",
    "readinessProbe": "readiness",
}
_HOOKS: Final = ("postStart", "preStop")
_DEFAULTS: Final[Mapping[str, int]] = {
    "initialDelaySeconds": 0,
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
_OF_ACTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "httpGet": {"path": "/", "scheme": "HTTP"},
    "grpc": {"service": ""},
    "tcpSocket": {},
}
_PORT_MAX: Final = 65535


def probes_of(container: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The probes of a container by `startup`, `liveness` and `readiness`; ContainerError if a port is unknown."""
    found = {name: container[field] for field, name in _PROBES.items() if container.get(field)}
    for name, probe in found.items():
        if not any(probe.get(action) for action in ("exec", *_OF_ACTIONS)):
            raise ContainerError(CONFIG, f"{name} probe: must specify a handler type")
    return {
        name: {**_DEFAULTS, **_said(probe), **_actions(probe, container, f"{name} probe")}
        for name, probe in found.items()
    }


def hooks_of(container: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The handlers of a container by `postStart` and `preStop`; ContainerError if a port is unknown."""
    lifecycle: Mapping[str, Any] = container.get("lifecycle") or {}
    found = {name: lifecycle[name] for name in _HOOKS if lifecycle.get(name)}
    return {name: {**_said(hook), **_actions(hook, container, f"{name} hook")} for name, hook in found.items()}


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in fields.items() if value is not None}


def _actions(fields: Mapping[str, Any], container: Mapping[str, Any], whose: str) -> dict[str, Mapping[str, Any]]:
    """What a probe or hook does that has a port."""
    return {
        action: {**defaults, **_said(fields[action]), "port": _port(fields[action].get("port"), container, whose)}
        for action, defaults in _OF_ACTIONS.items()
        if fields.get(action) is not None
    }


def _port(port: int | str | None, container: Mapping[str, Any], whose: str) -> int:
    number = port
    if isinstance(port, str):
        named = {p["name"]: p["containerPort"] for p in container.get("ports") or () if p.get("name")}
        number = named.get(port, int(port) if port.isdecimal() and port.isascii() else None)
    if number is None:
        raise ContainerError(CONFIG, f"{whose}: port {port} not found")
    if not 0 < int(number) <= _PORT_MAX:
        raise ContainerError(CONFIG, f"{whose}: invalid port number: {number}")
    return int(number)
