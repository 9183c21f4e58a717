"""Rules of probes and lifecycle hooks.

Source: Kubernetes's pkg/apis/core/validation (validateProbe, validateHandler).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, names

_PORT_MAX: Final = 65535
_PORT_MESSAGE: Final = "must be between 1 and 65535, inclusive"
_PORT_REMEDY: Final = "give the port the container listens on"
_COUNTS: Final = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_SCHEMES: Final = ("HTTP", "HTTPS")


def probes_faults(container: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the probes and hooks of a container."""
    for field in ("livenessProbe", "readinessProbe", "startupProbe"):
        if (probe := container.get(field)) is not None:
            yield from _probe_faults(probe, f"{path}.{field}", has_one_success=field != "readinessProbe")
    hooks = container.get("lifecycle") or {}
    for field in ("postStart", "preStop"):
        if (hook := hooks.get(field)) is not None:
            yield from _handler_faults(hook, f"{path}.lifecycle.{field}")


def _probe_faults(probe: Mapping[str, Any], path: str, *, has_one_success: bool) -> Iterator[FieldError]:
    yield from _handler_faults(probe, path)
    for field in _COUNTS:
        if (probe.get(field) or 0) < 0:
            yield faults.invalid(f"{path}.{field}", probe[field], faults.NEGATIVE, "use 0 or more")
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        message = "must be greater than 0"
        yield faults.invalid(f"{path}.terminationGracePeriodSeconds", grace, message, "give 1 or more seconds")
    successes = probe.get("successThreshold")
    if has_one_success and successes not in (None, 1):
        yield faults.invalid(f"{path}.successThreshold", successes, "must be 1", "drop it")


def _handler_faults(handler: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Exactly one handler is set."""
    given = [field for field in _HANDLERS if handler.get(field) is not None]
    if not given:
        yield faults.required(path, "must specify a handler type", "give exec, httpGet, tcpSocket or grpc")
        return
    first, *others = given
    match first:
        case "exec" if not handler["exec"].get("command"):
            yield faults.required(f"{path}.exec.command", "", "give the command to run")
        case "httpGet":
            yield from _http_faults(handler["httpGet"], f"{path}.httpGet")
        case "tcpSocket" | "grpc":
            yield from _port_faults(handler[first].get("port", 0), f"{path}.{first}.port")
    for field in others:
        yield faults.forbidden(f"{path}.{field}", "may not specify more than 1 handler type", f"leave {first} alone")


def _http_faults(action: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    yield from _port_faults(action.get("port", 0), f"{path}.port")
    scheme = action.get("scheme") or _SCHEMES[0]
    if scheme not in _SCHEMES:
        yield faults.unsupported(f"{path}.scheme", scheme, _SCHEMES)
    for header in action.get("httpHeaders") or ():
        name = header.get("name") or ""
        for message in names.header_name(name):
            yield faults.invalid(f"{path}.httpHeaders", name, message, "use letters, digits and '-'")


def _port_faults(port: int | str, path: str) -> Iterator[FieldError]:
    """A port is a number, or the name of a port of the container."""
    if isinstance(port, str):
        for message in names.port_name(port):
            yield faults.invalid(path, port, message, _PORT_REMEDY)
    elif not 1 <= port <= _PORT_MAX:
        yield faults.invalid(path, port, _PORT_MESSAGE, _PORT_REMEDY)
