"""Rules of containers. Source: Kubernetes's pkg/apis/core/validation."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, names, paths, pod_network, probes, resources, security_contexts

_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
#: Volumes that a remedy names.
_NAMED_MAX: Final = 10
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_NAME_REMEDY: Final = "use lower case letters, digits and '-', at most 63 in all"


def containers_faults(spec: Mapping[str, Any], volumes: Mapping[str, None], path: str) -> Iterator[FieldError]:
    """A pod has containers, each with a name of its own."""
    if not spec.get("containers"):
        yield faults.required(f"{path}.containers", "", "give at least one container")
    seen: dict[str, str] = {}
    for field in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(field) or ()):
            at = f"{path}.{field}[{i}]"
            yield from _container_faults(container, volumes, at)
            context = container.get("securityContext") or {}
            yield from security_contexts.container_security_faults(
                context, f"{at}.securityContext", in_host_users=spec.get("hostUsers") is not False
            )
            name = container.get("name") or ""
            if name in seen:
                yield faults.duplicate(f"{at}.name", name, f"rename it: {seen[name]} has this name")
            seen.setdefault(name, at)
    yield from _host_port_faults(spec, path)


def _host_port_faults(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """No two containers take the same port of the node; on the node's network each port is one of the node."""
    on_host, seen = bool(spec.get("hostNetwork")), dict[str, None]()
    places = [(f"{path}.containers[{i}]", container) for i, container in enumerate(spec.get("containers") or ())]
    for at, port in [(f"{at}.ports[{i}]", p) for at, c in places for i, p in enumerate(c.get("ports") or ())]:
        number, own = port.get("hostPort") or 0, port.get("containerPort", 0)
        if on_host and number not in (0, own):
            message = "must match `hostPort` when `hostNetwork` is true"
            yield faults.invalid(f"{at}.containerPort", own, message, "drop the hostPort")
        number = number or (own if on_host else 0)
        taken = f"{port.get('protocol') or 'TCP'}/{port.get('hostIP') or ''}/{number}"
        if number and taken in seen:
            yield faults.duplicate(f"{at}.hostPort", taken, "give each container a port of its own")
        seen[taken] = None


def _container_faults(container: Mapping[str, Any], volumes: Mapping[str, None], path: str) -> Iterator[FieldError]:
    """A container's name, image, ports, environment, resources and mounts."""
    name = container.get("name") or ""
    if not name:
        yield faults.required(f"{path}.name", "", "give the container a name")
    for message in names.dns_label(name) if name else ():
        yield faults.invalid(f"{path}.name", name, message, _NAME_REMEDY)
    image = container.get("image") or ""
    if not image:
        yield faults.required(f"{path}.image", "", "name the image to run")
    elif image != image.strip():
        message = "must not have leading or trailing whitespace"
        yield faults.invalid(f"{path}.image", image, message, f"write {faults.printed(image.strip())}")
    policy = container.get("imagePullPolicy")
    if policy and policy not in _PULL_POLICIES:
        yield faults.unsupported(f"{path}.imagePullPolicy", policy, _PULL_POLICIES)
    yield from _port_faults(container.get("ports") or (), f"{path}.ports")
    yield from _env_faults(container.get("env") or (), f"{path}.env")
    yield from resources.resources_faults(container.get("resources") or {}, f"{path}.resources")
    yield from _env_from_faults(container.get("envFrom") or (), f"{path}.envFrom")
    yield from _mount_faults(container.get("volumeMounts") or (), volumes, f"{path}.volumeMounts")
    yield from probes.probes_faults(container, path)


def _port_faults(ports: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Ports are ports of a known protocol; their names differ."""
    seen: dict[str, None] = {}
    for i, port in enumerate(ports):
        at, number, protocol = f"{path}[{i}]", port.get("containerPort", 0), port.get("protocol") or "TCP"
        if not 1 <= number <= 65535:
            message = "must be between 1 and 65535, inclusive"
            yield faults.invalid(f"{at}.containerPort", number, message, "give the port the container listens on")
        if (taken := port.get("hostPort") or 0) and not 1 <= taken <= 65535:
            message = "must be between 1 and 65535, inclusive"
            yield faults.invalid(f"{at}.hostPort", taken, message, "give a port of the node, or drop it")
        if protocol not in _PROTOCOLS:
            yield faults.unsupported(f"{at}.protocol", protocol, _PROTOCOLS)
        for message in names.port_name(port["name"]) if port.get("name") else ():
            yield faults.invalid(f"{at}.name", port["name"], message, "give a short name, such as http")
        if port.get("hostIP"):
            yield from pod_network.ip_faults(port["hostIP"], f"{at}.hostIP")
        if (name := port.get("name")) and name in seen:
            yield faults.duplicate(f"{at}.name", name, "give each port a name of its own")
        if name:
            seen[name] = None


def _env_faults(env: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Variables have names, and one source of their value."""
    for i, variable in enumerate(env):
        at, name = f"{path}[{i}]", variable.get("name") or ""
        if not name:
            yield faults.required(f"{at}.name", "", "name the variable")
        for message in names.env_name(name) if name else ():
            yield faults.invalid(f"{at}.name", name, message, "use letters, digits and '_'")
        if (source := variable.get("valueFrom")) is not None:
            yield from _env_source_faults(source, variable.get("value"), f"{at}.valueFrom")


def _env_from_faults(sources: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Variables of ConfigMaps and Secrets have a prefix that can begin a name, and one source."""
    for i, source in enumerate(sources):
        at, prefix = f"{path}[{i}]", source.get("prefix") or ""
        for message in names.env_name(prefix) if prefix else ():
            yield faults.invalid(f"{at}.prefix", prefix, message, "use letters, digits and '_'")
        given = [field for field in ("configMapRef", "secretRef") if source.get(field) is not None]
        if not given:
            yield faults.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`", "give one")
        elif len(given) > 1:
            yield faults.invalid(path, "", "may not have more than one field specified at a time", "leave one")
        for field in given:
            name = source[field].get("name") or ""
            if not name:
                yield faults.required(f"{at}.{field}.name", "", "name the object")
            for message in names.dns_subdomain(name) if name else ():
                yield faults.invalid(f"{at}.{field}.name", name, message, "use lower case letters, digits and '-'")


def _env_source_faults(source: Mapping[str, Any], value: str | None, path: str) -> Iterator[FieldError]:
    """A value comes from exactly one place."""
    given = [field for field, place in source.items() if place is not None]
    if not given:
        message = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        yield faults.invalid(path, "", message, "say where the value comes from")
    elif value:
        message = "may not be specified when `value` is not empty"
        yield faults.invalid(path, "", message, "drop value or valueFrom")
    elif len(given) > 1:
        message = "may not have more than one field specified at a time"
        yield faults.invalid(path, "", message, f"leave one of {', '.join(given)}")


def _mount_faults(mounts: Sequence[Mapping[str, Any]], volumes: Mapping[str, None], path: str) -> Iterator[FieldError]:
    """Mounts are of volumes of the pod, each at a place of its own."""
    seen: dict[str, None] = {}
    for i, mount in enumerate(mounts):
        at, name, place = f"{path}[{i}]", mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            yield faults.required(f"{at}.name", "", "name the volume")
        elif name not in volumes:
            some = ", ".join(islice(volumes, _NAMED_MAX))
            choice = f"use one of {some}, or add the volume" if volumes else "add the volume to the pod"
            yield faults.not_found(f"{at}.name", name, choice)
        if not place:
            yield faults.required(f"{at}.mountPath", "", "say where the container sees the volume")
        elif place in seen:
            yield faults.invalid(f"{at}.mountPath", place, "must be unique", "mount each volume at a path of its own")
        seen[place] = None
        for field in ("subPath", "subPathExpr"):
            yield from paths.local_path_faults(mount.get(field) or "", f"{path}.{field}")
        if mount.get("subPath") and mount.get("subPathExpr"):
            message = "subPathExpr and subPath are mutually exclusive"
            yield faults.invalid(f"{at}.subPathExpr", mount["subPathExpr"], message, "drop one of them")
