"""Rules of containers, probes and security contexts; of Services, host aliases and DNS settings.

Source: Kubernetes's pkg/apis/core/validation.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import rules

# --- pod network ---
#
# Rules of host aliases and DNS configuration of pods, which become lines of files.
#
# Source: Kubernetes's pkg/apis/core/validation (ValidateHostAliases, validatePodDNSConfig).


_NAMESERVERS_MAX: Final = 3
# --- networking ---
#
# Rules of Services, and of hosts and DNS in pods. Source: Kubernetes's pkg/apis/core/validation.


_SEARCHES_MAX: Final = 32
_SEARCHES_LENGTH_MAX: Final = 2048
_HOST_REMEDY: Final = "give a host name, in lower case"


def host_faults(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate host aliases and DNS."""
    for i, alias in enumerate(spec.get("hostAliases") or ()):
        at = f"{path}.hostAliases[{i}]"
        yield from ip_faults(alias.get("ip") or "", f"{at}.ip")
        for j, hostname in enumerate(alias.get("hostnames") or ()):
            for message in rules.dns_subdomain(hostname):
                yield rules.invalid(f"{at}.hostnames[{j}]", hostname, message, _HOST_REMEDY)
    yield from _dns_faults(spec.get("dnsConfig"), spec.get("dnsPolicy"), f"{path}.dnsConfig")


def ip_faults(address: str, path: str) -> Iterator[FieldError]:
    """Validate an IP address without a zone and leading zeros."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        parsed = None
    if parsed is None or "%" in address:
        message = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        yield rules.invalid(path, address, message, "give an address such as 10.9.8.7")
    elif isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        message = "must not be an IPv4-mapped IPv6 address"
        yield rules.invalid(path, address, message, f"write {parsed.ipv4_mapped}")


def _dns_faults(config: Mapping[str, Any] | None, policy: str | None, path: str) -> Iterator[FieldError]:
    nameservers: Sequence[str] = (config or {}).get("nameservers") or ()
    if policy == "None" and not nameservers:
        missing = "at least one DNS nameserver" if config is not None else "`dnsConfig`"
        at = f"{path}.nameservers" if config is not None else path
        yield rules.required(at, f"must provide {missing} when `dnsPolicy` is None", "give a nameserver")
        return
    config = config or {}
    if len(nameservers) > _NAMESERVERS_MAX:
        message = f"must not have more than {_NAMESERVERS_MAX} nameservers"
        yield rules.invalid(f"{path}.nameservers", nameservers, message, "drop some")
    for i, address in enumerate(nameservers):
        yield from ip_faults(address, f"{path}.nameservers[{i}]")
    yield from _search_faults(config.get("searches") or (), f"{path}.searches")
    for i, option in enumerate(config.get("options") or ()):
        yield from _option_faults(option, f"{path}.options[{i}]")


def _search_faults(searches: Sequence[str], path: str) -> Iterator[FieldError]:
    if len(searches) > _SEARCHES_MAX:
        message = f"must not have more than {_SEARCHES_MAX} search paths"
        yield rules.invalid(path, searches, message, "drop some")
    if len(" ".join(searches).encode()) > _SEARCHES_LENGTH_MAX:
        message = f"must not have more than {_SEARCHES_LENGTH_MAX} characters (including spaces) in the search list"
        yield rules.invalid(path, searches, message, "drop some")
    for i, search in enumerate(searches):
        for message in rules.search_domain(search.removesuffix(".")) if search != "." else ():
            yield rules.invalid(f"{path}[{i}]", search.removesuffix("."), message, _HOST_REMEDY)


def _option_faults(option: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """An option has a name. Name and value are single words in resolv.conf, which Kubernetes does not check."""
    if not option.get("name"):
        yield rules.required(path, "must not be empty", "name the option")
    for field in ("name", "value"):
        text = option.get(field) or ""
        if not rules.is_word(text):
            message = "must not contain spaces or control characters"
            yield rules.invalid(f"{path}.{field}", text, message, "give one word")


_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_AFFINITIES: Final = ("ClientIP", "None")


def service_faults(service: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Service."""
    yield from rules.metadata_faults(service)
    spec = service.get("spec") or {}
    kind, ports = spec.get("type") or "ClusterIP", spec.get("ports") or ()
    if kind not in _TYPES:
        yield rules.unsupported("spec.type", kind, _TYPES)
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        yield rules.required("spec.ports", "", 'give a port, or set clusterIP: "None"')
    yield from _port_faults(ports)
    yield from rules.label_faults(spec.get("selector"), "spec.selector")
    affinity = spec.get("sessionAffinity")
    if affinity and affinity not in _AFFINITIES:
        yield rules.unsupported("spec.sessionAffinity", affinity, _AFFINITIES)
    if kind == "ExternalName":
        yield from _external_name_faults(spec)
    else:
        yield from _address_faults(spec)


def _address_faults(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    """Addresses are IP addresses; the cluster IP may be None."""
    addresses = [("spec.clusterIP", spec.get("clusterIP"))]
    for field in ("clusterIPs", "externalIPs"):
        addresses += [(f"spec.{field}[{i}]", address) for i, address in enumerate(spec.get(field) or ())]
    for path, address in addresses:
        if address and address != "None":
            yield from ip_faults(address, path)


def service_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Service: its cluster IP is immutable."""
    yield from service_faults(new)
    before, after = ((obj.get("spec") or {}).get("clusterIP") for obj in (old, new))
    if before and after and before != after:
        yield rules.immutable("spec.clusterIP", after)


def _external_name_faults(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    """An external name is a DNS name, without a cluster IP."""
    name, address = (spec.get("externalName") or "").removesuffix("."), spec.get("clusterIP")
    if not name:
        yield rules.required("spec.externalName", "", "give the name to resolve to")
    for message in rules.dns_subdomain(name) if name else ():
        yield rules.invalid("spec.externalName", name, message, "give a host name, in lower case")
    if address and address != "None":
        message = "may not be set when `type` is 'ExternalName'"
        yield rules.forbidden("spec.clusterIP", message, "drop the address")


def _port_faults(ports: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    """Ports are valid; several ports have unique names, and no two are equal."""
    seen: dict[object, None] = {}
    for i, port in enumerate(ports):
        path, name, number = f"spec.ports[{i}]", port.get("name") or "", port.get("port", 0)
        protocol = port.get("protocol") or "TCP"
        if not name and len(ports) > 1:
            yield rules.required(f"{path}.name", "", "name each of several ports")
        for message in rules.dns_label(name) if name else ():
            yield rules.invalid(f"{path}.name", name, message, "use lower case letters, digits and '-'")
        if name and name in seen:
            yield rules.duplicate(f"{path}.name", name, "give each port a name of its own")
        if not 1 <= number <= 65535:
            message = "must be between 1 and 65535, inclusive"
            yield rules.invalid(f"{path}.port", number, message, "give a port from 1 to 65535")
        if protocol not in _PROTOCOLS:
            yield rules.unsupported(f"{path}.protocol", protocol, _PROTOCOLS)
        if (number, protocol) in seen:
            yield rules.duplicate(path, {"port": number, "protocol": protocol}, "drop one of the two")
        seen |= {name: None, (number, protocol): None}


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
            yield rules.invalid(f"{path}.{field}", probe[field], rules.NEGATIVE, "use 0 or more")
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None and grace <= 0:
        message = "must be greater than 0"
        yield rules.invalid(f"{path}.terminationGracePeriodSeconds", grace, message, "give 1 or more seconds")
    successes = probe.get("successThreshold")
    if has_one_success and successes not in (None, 1):
        yield rules.invalid(f"{path}.successThreshold", successes, "must be 1", "drop it")


def _handler_faults(handler: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Exactly one handler is set."""
    given = [field for field in _HANDLERS if handler.get(field) is not None]
    if not given:
        yield rules.required(path, "must specify a handler type", "give exec, httpGet, tcpSocket or grpc")
        return
    first, *others = given
    match first:
        case "exec" if not handler["exec"].get("command"):
            yield rules.required(f"{path}.exec.command", "", "give the command to run")
        case "httpGet":
            yield from _http_faults(handler["httpGet"], f"{path}.httpGet")
        case "tcpSocket" | "grpc":
            yield from _port_value_faults(handler[first].get("port", 0), f"{path}.{first}.port")
    for field in others:
        yield rules.forbidden(f"{path}.{field}", "may not specify more than 1 handler type", f"leave {first} alone")


def _http_faults(action: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    yield from _port_value_faults(action.get("port", 0), f"{path}.port")
    scheme = action.get("scheme") or _SCHEMES[0]
    if scheme not in _SCHEMES:
        yield rules.unsupported(f"{path}.scheme", scheme, _SCHEMES)
    for header in action.get("httpHeaders") or ():
        name = header.get("name") or ""
        for message in rules.header_name(name):
            yield rules.invalid(f"{path}.httpHeaders", name, message, "use letters, digits and '-'")


def _port_value_faults(port: int | str, path: str) -> Iterator[FieldError]:
    """A port is a number, or the name of a port of the container."""
    if isinstance(port, str):
        for message in rules.port_name(port):
            yield rules.invalid(path, port, message, _PORT_REMEDY)
    elif not 1 <= port <= _PORT_MAX:
        yield rules.invalid(path, port, _PORT_MESSAGE, _PORT_REMEDY)


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
            yield rules.required(at, "", "name the kernel parameter")
        elif not _is_sysctl(name):
            message = f"must have at most {_SYSCTL_LENGTH_MAX} characters and match regex {_SYSCTL_PATTERN}"
            yield rules.invalid(at, name, message, "write it as net.ipv4.tcp_syncookies")
        elif name in seen:
            yield rules.duplicate(at, name, "set each parameter once")
        seen.add(name)


def container_security_faults(context: Mapping[str, Any], path: str, *, in_host_users: bool) -> Iterator[FieldError]:
    """Validate the security context of a container."""
    yield from _shared_faults(context, path)
    mount = context.get("procMount")
    if mount is not None and mount not in _PROC_MOUNTS:
        yield rules.unsupported(f"{path}.procMount", mount, _PROC_MOUNTS)
    if mount == "Unmasked" and in_host_users:
        message = "`hostUsers` must be false to use `Unmasked`"
        yield rules.invalid(f"{path}.procMount", mount, message, "set hostUsers: false")
    if context.get("allowPrivilegeEscalation") is False:
        begin = "cannot set `allowPrivilegeEscalation` to false and"
        if context.get("privileged"):
            yield rules.invalid_here(path, f"{begin} `privileged` to true", "drop one of them")
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            yield rules.invalid_here(path, f"{begin} `capabilities.Add` CAP_SYS_ADMIN", "drop one of them")


def _shared_faults(context: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field in ("runAsUser", "runAsGroup"):
        yield from _id_faults(context.get(field), f"{path}.{field}")
    if (profile := context.get("seccompProfile")) is not None:
        yield from _seccomp_faults(profile, f"{path}.seccompProfile")
    if (profile := context.get("appArmorProfile")) is not None:
        yield from _app_armor_faults(profile, f"{path}.appArmorProfile")


def _id_faults(number: int | None, path: str) -> Iterator[FieldError]:
    if number is not None and not 0 <= number <= _ID_MAX:
        yield rules.invalid(path, number, _ID_MESSAGE, "give the number of a user or group")


def _seccomp_faults(profile: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind, local = profile.get("type") or "", profile.get("localhostProfile")
    yield from _type_faults(kind, path, "seccompProfile")
    if kind == _LOCAL and local is None:
        message = "must be set when seccomp type is Localhost"
        yield rules.required(f"{path}.localhostProfile", message, "name the profile")
    elif kind == _LOCAL:
        yield from rules.local_path_faults(local or "", f"{path}.localhostProfile")
    elif local is not None:
        message = "can only be set when seccomp type is Localhost"
        yield rules.invalid(f"{path}.localhostProfile", local, message, "drop it")


def _app_armor_faults(profile: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind, local, at = profile.get("type") or "", profile.get("localhostProfile"), f"{path}.localhostProfile"
    yield from _type_faults(kind, path, "appArmorProfile")
    if kind == _LOCAL:
        if local is not None and local != local.strip():
            yield rules.invalid(at, local, "must not be padded with whitespace", "drop the spaces")
        if not local:
            yield rules.required(at, "must be set when AppArmor type is Localhost", "name the profile")
        elif len(local.encode()) > _PROFILE_LENGTH_MAX:
            yield rules.too_long(at, _PROFILE_LENGTH_MAX, "give the name of a profile")
    elif local is not None:
        yield rules.invalid(at, local, "can only be set when AppArmor type is Localhost", "drop it")


def _type_faults(kind: str, path: str, field: str) -> Iterator[FieldError]:
    if not kind:
        yield rules.required(f"{path}.type", f"type is required when {field} is set", "use RuntimeDefault")
    elif kind not in _SECCOMP_TYPES:
        yield rules.unsupported(f"{path}.type", kind, _SECCOMP_TYPES)


def _is_sysctl(name: str) -> bool:
    segments = _SYSCTL_DOTS.split(name) if len(name) <= _SYSCTL_LENGTH_MAX else [""]
    return all(_SYSCTL_SEGMENT.fullmatch(segment) for segment in segments)


#: The maximum number of volumes in a remedy.
_NAMED_MAX: Final = 10
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_NAME_REMEDY: Final = "use lower case letters, digits and '-', at most 63 in all"


def containers_faults(spec: Mapping[str, Any], volumes: Mapping[str, None], path: str) -> Iterator[FieldError]:
    """A pod has containers with unique names."""
    if not spec.get("containers"):
        yield rules.required(f"{path}.containers", "", "give at least one container")
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
                yield rules.duplicate(f"{at}.name", name, f"rename it: {seen[name]} has this name")
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
            yield rules.invalid(f"{at}.containerPort", own, message, "drop the hostPort")
        number = number or (own if on_host else 0)
        taken = f"{port.get('protocol') or 'TCP'}/{port.get('hostIP') or ''}/{number}"
        if number and taken in seen:
            yield rules.duplicate(f"{at}.hostPort", taken, "give each container a port of its own")
        seen[taken] = None


def _container_faults(container: Mapping[str, Any], volumes: Mapping[str, None], path: str) -> Iterator[FieldError]:
    """Validate a container's name, image, ports, environment, resources and mounts."""
    name = container.get("name") or ""
    if not name:
        yield rules.required(f"{path}.name", "", "give the container a name")
    for message in rules.dns_label(name) if name else ():
        yield rules.invalid(f"{path}.name", name, message, _NAME_REMEDY)
    image = container.get("image") or ""
    if not image:
        yield rules.required(f"{path}.image", "", "name the image to run")
    elif image != image.strip():
        message = "must not have leading or trailing whitespace"
        yield rules.invalid(f"{path}.image", image, message, f"write {rules.printed(image.strip())}")
    policy = container.get("imagePullPolicy")
    if policy and policy not in _PULL_POLICIES:
        yield rules.unsupported(f"{path}.imagePullPolicy", policy, _PULL_POLICIES)
    yield from _containers_port_faults(container.get("ports") or (), f"{path}.ports")
    yield from _env_faults(container.get("env") or (), f"{path}.env")
    yield from rules.resources_faults(container.get("resources") or {}, f"{path}.resources")
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
            yield rules.invalid(f"{at}.containerPort", number, message, "give the port the container listens on")
        if (taken := port.get("hostPort") or 0) and not 1 <= taken <= 65535:
            message = "must be between 1 and 65535, inclusive"
            yield rules.invalid(f"{at}.hostPort", taken, message, "give a port of the node, or drop it")
        if protocol not in _PROTOCOLS:
            yield rules.unsupported(f"{at}.protocol", protocol, _PROTOCOLS)
        for message in rules.port_name(port["name"]) if port.get("name") else ():
            yield rules.invalid(f"{at}.name", port["name"], message, "give a short name, such as http")
        if port.get("hostIP"):
            yield from ip_faults(port["hostIP"], f"{at}.hostIP")
        if (name := port.get("name")) and name in seen:
            yield rules.duplicate(f"{at}.name", name, "give each port a name of its own")
        if name:
            seen[name] = None


def _env_faults(env: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """Variables have names, and one source for each value."""
    for i, variable in enumerate(env):
        at, name = f"{path}[{i}]", variable.get("name") or ""
        if not name:
            yield rules.required(f"{at}.name", "", "name the variable")
        for message in rules.env_name(name) if name else ():
            yield rules.invalid(f"{at}.name", name, message, "use letters, digits and '_'")
        if (source := variable.get("valueFrom")) is not None:
            yield from _env_source_faults(source, variable.get("value"), f"{at}.valueFrom")


def _env_from_faults(sources: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    """A source of variables is one ConfigMap or Secret, with a valid prefix."""
    for i, source in enumerate(sources):
        at, prefix = f"{path}[{i}]", source.get("prefix") or ""
        for message in rules.env_name(prefix) if prefix else ():
            yield rules.invalid(f"{at}.prefix", prefix, message, "use letters, digits and '_'")
        given = [field for field in ("configMapRef", "secretRef") if source.get(field) is not None]
        if not given:
            yield rules.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`", "give one")
        elif len(given) > 1:
            yield rules.invalid(path, "", "may not have more than one field specified at a time", "leave one")
        for field in given:
            name = source[field].get("name") or ""
            if not name:
                yield rules.required(f"{at}.{field}.name", "", "name the object")
            for message in rules.dns_subdomain(name) if name else ():
                yield rules.invalid(f"{at}.{field}.name", name, message, "use lower case letters, digits and '-'")


def _env_source_faults(source: Mapping[str, Any], value: str | None, path: str) -> Iterator[FieldError]:
    """A value has exactly one source."""
    given = [field for field, place in source.items() if place is not None]
    if not given:
        message = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        yield rules.invalid(path, "", message, "say where the value comes from")
    elif value:
        message = "may not be specified when `value` is not empty"
        yield rules.invalid(path, "", message, "drop value or valueFrom")
    elif len(given) > 1:
        message = "may not have more than one field specified at a time"
        yield rules.invalid(path, "", message, f"leave one of {', '.join(given)}")


def _mount_faults(mounts: Sequence[Mapping[str, Any]], volumes: Mapping[str, None], path: str) -> Iterator[FieldError]:
    """Mounts name volumes of the pod, at unique paths."""
    seen: dict[str, None] = {}
    for i, mount in enumerate(mounts):
        at, name, place = f"{path}[{i}]", mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            yield rules.required(f"{at}.name", "", "name the volume")
        elif name not in volumes:
            some = ", ".join(islice(volumes, _NAMED_MAX))
            choice = f"use one of {some}, or add the volume" if volumes else "add the volume to the pod"
            yield rules.not_found(f"{at}.name", name, choice)
        if not place:
            yield rules.required(f"{at}.mountPath", "", "say where the container sees the volume")
        elif place in seen:
            yield rules.invalid(f"{at}.mountPath", place, "must be unique", "mount each volume at a path of its own")
        seen[place] = None
        for field in ("subPath", "subPathExpr"):
            yield from rules.local_path_faults(mount.get(field) or "", f"{path}.{field}")
        if mount.get("subPath") and mount.get("subPathExpr"):
            message = "subPathExpr and subPath are mutually exclusive"
            yield rules.invalid(f"{at}.subPathExpr", mount["subPathExpr"], message, "drop one of them")
