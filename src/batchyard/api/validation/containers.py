"""Rules of containers. Source: Kubernetes's pkg/apis/core/validation."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import errors as faults
from batchyard.api.validation import names, networking, resources
from batchyard.api.validation import names as paths

# --- probes ---
#
# Rules of probes and lifecycle hooks.
#
# Source: Kubernetes's pkg/apis/core/validation (validateProbe, validateHandler).


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


# --- security contexts ---
#
# Rules of security contexts of pods and of containers. Source: Kubernetes's pkg/apis/core/validation.


_ID_MAX: Final = 2**31 - 1
_ID_MESSAGE: Final = "must be between 0 and 2147483647, inclusive"
_SECCOMP_TYPES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_PROC_MOUNTS: Final = ("Default", "Unmasked")
_LOCAL: Final = "Localhost"
_SYSCTL_LENGTH_MAX: Final = 253
_SYSCTL_PATTERN: Final = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
_SYSCTL_SEGMENT: Final = re.compile(r"[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?")
_SYSCTL_DOTS: Final = re.compile(r"[./]")
_PROFILE_LENGTH_MAX: Final = 4095


def pod_security_faults(context: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the security context of a pod."""
    yield from _shared_faults(context, path)
    yield from _id_faults(context.get("fsGroup"), f"{path}.fsGroup")
    for i, group in enumerate(context.get("supplementalGroups") or ()):
        yield from _id_faults(group, f"{path}.supplementalGroups[{i}]")
    seen: set[str] = set()
    for i, sysctl in enumerate(context.get("sysctls") or ()):
        at, name = f"{path}.sysctls[{i}].name", sysctl.get("name") or ""
        if not name:
            yield faults.required(at, "", "name the kernel parameter")
        elif not _is_sysctl(name):
            message = f"must have at most {_SYSCTL_LENGTH_MAX} characters and match regex {_SYSCTL_PATTERN}"
            yield faults.invalid(at, name, message, "write it as net.ipv4.tcp_syncookies")
        elif name in seen:
            yield faults.duplicate(at, name, "set each parameter once")
        seen.add(name)


def container_security_faults(context: Mapping[str, Any], path: str, *, in_host_users: bool) -> Iterator[FieldError]:
    """Validate the security context of a container."""
    yield from _shared_faults(context, path)
    mount = context.get("procMount")
    if mount is not None and mount not in _PROC_MOUNTS:
        yield faults.unsupported(f"{path}.procMount", mount, _PROC_MOUNTS)
    if mount == "Unmasked" and in_host_users:
        message = "`hostUsers` must be false to use `Unmasked`"
        yield faults.invalid(f"{path}.procMount", mount, message, "set hostUsers: false")
    if context.get("allowPrivilegeEscalation") is False:
        begin = "cannot set `allowPrivilegeEscalation` to false and"
        if context.get("privileged"):
            yield faults.invalid_here(path, f"{begin} `privileged` to true", "drop one of them")
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            yield faults.invalid_here(path, f"{begin} `capabilities.Add` CAP_SYS_ADMIN", "drop one of them")


def _shared_faults(context: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field in ("runAsUser", "runAsGroup"):
        yield from _id_faults(context.get(field), f"{path}.{field}")
    if (profile := context.get("seccompProfile")) is not None:
        yield from _seccomp_faults(profile, f"{path}.seccompProfile")
    if (profile := context.get("appArmorProfile")) is not None:
        yield from _app_armor_faults(profile, f"{path}.appArmorProfile")


def _id_faults(number: int | None, path: str) -> Iterator[FieldError]:
    if number is not None and not 0 <= number <= _ID_MAX:
        yield faults.invalid(path, number, _ID_MESSAGE, "give the number of a user or group")


def _seccomp_faults(profile: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind, local = profile.get("type") or "", profile.get("localhostProfile")
    yield from _type_faults(kind, path, "seccompProfile")
    if kind == _LOCAL and local is None:
        message = "must be set when seccomp type is Localhost"
        yield faults.required(f"{path}.localhostProfile", message, "name the profile")
    elif kind == _LOCAL:
        yield from paths.local_path_faults(local or "", f"{path}.localhostProfile")
    elif local is not None:
        message = "can only be set when seccomp type is Localhost"
        yield faults.invalid(f"{path}.localhostProfile", local, message, "drop it")


def _app_armor_faults(profile: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind, local, at = profile.get("type") or "", profile.get("localhostProfile"), f"{path}.localhostProfile"
    yield from _type_faults(kind, path, "appArmorProfile")
    if kind == _LOCAL:
        if local is not None and local != local.strip():
            yield faults.invalid(at, local, "must not be padded with whitespace", "drop the spaces")
        if not local:
            yield faults.required(at, "must be set when AppArmor type is Localhost", "name the profile")
        elif len(local.encode()) > _PROFILE_LENGTH_MAX:
            yield faults.too_long(at, _PROFILE_LENGTH_MAX, "give the name of a profile")
    elif local is not None:
        yield faults.invalid(at, local, "can only be set when AppArmor type is Localhost", "drop it")


def _type_faults(kind: str, path: str, field: str) -> Iterator[FieldError]:
    if not kind:
        yield faults.required(f"{path}.type", f"type is required when {field} is set", "use RuntimeDefault")
    elif kind not in _SECCOMP_TYPES:
        yield faults.unsupported(f"{path}.type", kind, _SECCOMP_TYPES)


def _is_sysctl(name: str) -> bool:
    segments = _SYSCTL_DOTS.split(name) if len(name) <= _SYSCTL_LENGTH_MAX else [""]
    return all(_SYSCTL_SEGMENT.fullmatch(segment) for segment in segments)


_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
#: The maximum number of volumes in a remedy.
_NAMED_MAX: Final = 10
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_NAME_REMEDY: Final = "use lower case letters, digits and '-', at most 63 in all"


def containers_faults(spec: Mapping[str, Any], volumes: Mapping[str, None], path: str) -> Iterator[FieldError]:
    """A pod has containers with unique names."""
    if not spec.get("containers"):
        yield faults.required(f"{path}.containers", "", "give at least one container")
    seen: dict[str, str] = {}
    for field in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(field) or ()):
            at = f"{path}.{field}[{i}]"
            yield from _container_faults(container, volumes, at)
            context = container.get("securityContext") or {}
            yield from container_security_faults(
                context, f"{at}.securityContext", in_host_users=spec.get("hostUsers") is not False
            )
            name = container.get("name") or ""
            if name in seen:
                yield faults.duplicate(f"{at}.name", name, f"rename it: {seen[name]} has this name")
            seen.setdefault(name, at)
    yield from _host_port_faults(spec, path)


def _host_port_faults(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """No two containers use the same host port; on the host network each port is a host port."""
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
    """Validate a container's name, image, ports, environment, resources and mounts."""
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
    yield from _containers_port_faults(container.get("ports") or (), f"{path}.ports")
    yield from _env_faults(container.get("env") or (), f"{path}.env")
    yield from resources.resources_faults(container.get("resources") or {}, f"{path}.resources")
    yield from _env_from_faults(container.get("envFrom") or (), f"{path}.envFrom")
    yield from _mount_faults(container.get("volumeMounts") or (), volumes, f"{path}.volumeMounts")
    yield from probes_faults(container, path)


def _containers_port_faults(ports: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Ports have a valid number and protocol, and unique names."""
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
            yield from networking.ip_faults(port["hostIP"], f"{at}.hostIP")
        if (name := port.get("name")) and name in seen:
            yield faults.duplicate(f"{at}.name", name, "give each port a name of its own")
        if name:
            seen[name] = None


def _env_faults(env: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Variables have names, and one source for each value."""
    for i, variable in enumerate(env):
        at, name = f"{path}[{i}]", variable.get("name") or ""
        if not name:
            yield faults.required(f"{at}.name", "", "name the variable")
        for message in names.env_name(name) if name else ():
            yield faults.invalid(f"{at}.name", name, message, "use letters, digits and '_'")
        if (source := variable.get("valueFrom")) is not None:
            yield from _env_source_faults(source, variable.get("value"), f"{at}.valueFrom")


def _env_from_faults(sources: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """A source of variables is one ConfigMap or Secret, with a valid prefix."""
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
    """A value has exactly one source."""
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
    """Mounts name volumes of the pod, at unique paths."""
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
