"""Validation of the containers of pods (probes, security contexts, mounts), of host aliases and DNS, and of Services.

Source: Kubernetes's pkg/apis/core/validation.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import rules

# Rules of host aliases and DNS configuration of pods (lines of /etc/hosts and resolv.conf), and of Services.
#
# Source: Kubernetes's pkg/apis/core/validation (ValidateHostAliases, validatePodDNSConfig).


_NAMESERVERS_MAX: Final = 3
_SEARCH_DOMAINS_MAX: Final = 32
_DNS_SEARCH_LENGTH_MAX: Final = 2048
_HOST_NAME_REMEDY: Final = "use a host name of lowercase letters, digits, '-' and '.'"


def host_alias_and_dns_errors(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the host aliases and the DNS configuration of a pod."""
    for i, alias in enumerate(spec.get("hostAliases") or ()):
        item_path = f"{path}.hostAliases[{i}]"
        yield from ip_errors(alias.get("ip") or "", f"{item_path}.ip")
        for j, hostname in enumerate(alias.get("hostnames") or ()):
            for message in rules.dns_subdomain_errors(hostname):
                yield rules.invalid(f"{item_path}.hostnames[{j}]", hostname, message, _HOST_NAME_REMEDY)
    yield from _dns_errors(spec.get("dnsConfig"), spec.get("dnsPolicy"), f"{path}.dnsConfig")


def ip_errors(address: str, path: str) -> Iterator[FieldError]:
    """Report an address that is not an IP address, or is an IPv4 address in IPv6 form."""
    try:
        parsed_address = ipaddress.ip_address(address)
    except ValueError:
        parsed_address = None
    if parsed_address is None or "%" in address:
        message = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        yield rules.invalid(path, address, message, "use an address such as 10.9.8.7")
    elif isinstance(parsed_address, ipaddress.IPv6Address) and parsed_address.ipv4_mapped is not None:
        message = "must not be an IPv4-mapped IPv6 address"
        yield rules.invalid(path, address, message, f"write {parsed_address.ipv4_mapped}")


def _dns_errors(dns_config: Mapping[str, Any] | None, dns_policy: str | None, path: str) -> Iterator[FieldError]:
    nameservers: Sequence[str] = (dns_config or {}).get("nameservers") or ()
    if dns_policy == "None" and not nameservers:
        setting = "at least one DNS nameserver" if dns_config is not None else "`dnsConfig`"
        item_path = f"{path}.nameservers" if dns_config is not None else path
        yield rules.required(item_path, f"must provide {setting} when `dnsPolicy` is None", "add a nameserver's IP")
        return
    dns_config = dns_config or {}
    if len(nameservers) > _NAMESERVERS_MAX:
        message = f"must not have more than {_NAMESERVERS_MAX} nameservers"
        yield rules.invalid(f"{path}.nameservers", nameservers, message, "remove some nameservers")
    for i, address in enumerate(nameservers):
        yield from ip_errors(address, f"{path}.nameservers[{i}]")
    yield from _dns_search_errors(dns_config.get("searches") or (), f"{path}.searches")
    for i, option in enumerate(dns_config.get("options") or ()):
        yield from _dns_option_errors(option, f"{path}.options[{i}]")


def _dns_search_errors(search_domains: Sequence[str], path: str) -> Iterator[FieldError]:
    if len(search_domains) > _SEARCH_DOMAINS_MAX:
        message = f"must not have more than {_SEARCH_DOMAINS_MAX} search paths"
        yield rules.invalid(path, search_domains, message, "remove some search domains")
    if len(" ".join(search_domains).encode()) > _DNS_SEARCH_LENGTH_MAX:
        message = f"must not have more than {_DNS_SEARCH_LENGTH_MAX} characters (including spaces) in the search list"
        yield rules.invalid(path, search_domains, message, "remove some search domains")
    for i, search in enumerate(search_domains):
        for message in rules.search_domain_errors(search.removesuffix(".")) if search != "." else ():
            yield rules.invalid(f"{path}[{i}]", search.removesuffix("."), message, _HOST_NAME_REMEDY)


def _dns_option_errors(option: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Report a DNS option without a name, or whose name or value is not a single word, as resolv.conf requires."""
    if not option.get("name"):
        yield rules.required(path, "must not be empty", "set the name of the option")
    for field in ("name", "value"):
        text = option.get(field) or ""
        if not rules.is_printable_without_spaces(text):
            message = "must not contain spaces or control characters"
            yield rules.invalid(f"{path}.{field}", text, message, f"use a {field} without spaces")


_SERVICE_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_PORT_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_SESSION_AFFINITIES: Final = ("ClientIP", "None")


def service_errors(service: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Service: its type, ports, selector, session affinity and addresses."""
    yield from rules.metadata_errors(service)
    spec = service.get("spec") or {}
    kind, ports = spec.get("type") or "ClusterIP", spec.get("ports") or ()
    if kind not in _SERVICE_TYPES:
        yield rules.unsupported("spec.type", kind, _SERVICE_TYPES)
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        yield rules.required("spec.ports", "", 'add a port, or set clusterIP: "None"')
    yield from _service_port_errors(ports)
    yield from rules.label_errors(spec.get("selector"), "spec.selector")
    session_affinity = spec.get("sessionAffinity")
    if session_affinity and session_affinity not in _SESSION_AFFINITIES:
        yield rules.unsupported("spec.sessionAffinity", session_affinity, _SESSION_AFFINITIES)
    if kind == "ExternalName":
        yield from _external_name_errors(spec)
    else:
        yield from _service_address_errors(spec)


def _service_address_errors(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    if spec.get("clusterIP") not in {None, "", "None"}:
        yield from ip_errors(spec["clusterIP"], "spec.clusterIP")
    for i, address in enumerate(spec.get("clusterIPs") or ()):
        if i or address != "None":
            yield from ip_errors(address, f"spec.clusterIPs[{i}]")
    for i, address in enumerate(spec.get("externalIPs") or ()):
        yield from ip_errors(address, f"spec.externalIPs[{i}]")


def service_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a Service: its cluster IP cannot be replaced by another."""
    new_spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    is_released = new_spec.get("type") == "ExternalName" and all(
        not new_spec.get(field) or new_spec[field] == old_spec.get(field) for field in ("clusterIP", "clusterIPs")
    )
    released_spec = {**new_spec, "clusterIP": None, "clusterIPs": None}
    yield from service_errors({**new, "spec": released_spec} if is_released else new)
    if "ExternalName" in {new_spec.get("type"), old_spec.get("type")}:
        return
    old_ip, new_ip = old_spec.get("clusterIP"), new_spec.get("clusterIP")
    if old_ip and new_ip and old_ip != new_ip:
        message = "may not change once set"
        yield rules.invalid("spec.clusterIPs[0]", [new_ip], message, "delete the Service and create it again")


def _external_name_errors(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    name, cluster_ip = (spec.get("externalName") or "").removesuffix("."), spec.get("clusterIP")
    if not name:
        yield rules.required("spec.externalName", "", "specify a DNS name, such as db.example.com")
    for message in rules.dns_subdomain_errors(name) if name else ():
        yield rules.invalid("spec.externalName", name, message, _HOST_NAME_REMEDY)
    if cluster_ip and cluster_ip != "None":
        message = "may not be set when `type` is 'ExternalName'"
        yield rules.forbidden("spec.clusterIP", message, "remove clusterIP")
    elif spec.get("clusterIPs"):
        message = "may not be set for ExternalName services"
        yield rules.forbidden("spec.clusterIPs", message, "remove clusterIPs")


def _service_port_errors(ports: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    seen_port_keys: dict[object, None] = {}
    for i, port in enumerate(ports):
        path, name, port_number = f"spec.ports[{i}]", port.get("name") or "", port.get("port", 0)
        protocol = port.get("protocol") or "TCP"
        if not name and len(ports) > 1:
            yield rules.required(f"{path}.name", "", "set a name: it is required if there are several ports")
        for message in rules.dns_label_errors(name) if name else ():
            yield rules.invalid(f"{path}.name", name, message, "use lowercase letters, digits and '-'")
        if name and name in seen_port_keys:
            yield rules.duplicate(f"{path}.name", name, "give each port a unique name")
        if not 1 <= port_number <= 65535:
            message = "must be between 1 and 65535, inclusive"
            yield rules.invalid(f"{path}.port", port_number, message, "use a port from 1 to 65535")
        if protocol not in _PORT_PROTOCOLS:
            yield rules.unsupported(f"{path}.protocol", protocol, _PORT_PROTOCOLS)
        if (port_number, protocol) in seen_port_keys:
            yield rules.duplicate(path, {"port": port_number, "protocol": protocol}, "remove one of the two ports")
        seen_port_keys |= {name: None, (port_number, protocol): None}


# Rules of probes and lifecycle hooks.
#
# Source: Kubernetes's pkg/apis/core/validation (validateProbe, validateHandler).


_PORT_MAX: Final = 65535
_PORT_RANGE_MESSAGE: Final = "must be between 1 and 65535, inclusive"
_PORT_REMEDY: Final = "specify the port on which the container listens"
_PROBE_NUMBER_FIELDS: Final = (
    "initialDelaySeconds",
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
)
_HANDLER_FIELDS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
_HTTP_SCHEMES: Final = ("HTTP", "HTTPS")


def probes_errors(container: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the probes and lifecycle hooks of a container: their handlers, ports, times and thresholds."""
    for field in ("livenessProbe", "readinessProbe", "startupProbe"):
        if (probe := container.get(field)) is not None:
            yield from _probe_errors(probe, f"{path}.{field}", requires_one_success=field != "readinessProbe")
    lifecycle_hooks = container.get("lifecycle") or {}
    for field in ("postStart", "preStop"):
        if (hook := lifecycle_hooks.get(field)) is not None:
            yield from _handler_errors(hook, f"{path}.lifecycle.{field}")


def _probe_errors(probe: Mapping[str, Any], path: str, *, requires_one_success: bool) -> Iterator[FieldError]:
    yield from _handler_errors(probe, path)
    for field in _PROBE_NUMBER_FIELDS:
        if (probe.get(field) or 0) < 0:
            yield rules.invalid(f"{path}.{field}", probe[field], rules.NEGATIVE_MESSAGE, "use 0 or more")
    grace_seconds = probe.get("terminationGracePeriodSeconds")
    if grace_seconds is not None and grace_seconds <= 0:
        message = "must be greater than 0"
        yield rules.invalid(f"{path}.terminationGracePeriodSeconds", grace_seconds, message, "use 1 second or more")
    count = probe.get("successThreshold")
    if requires_one_success and count not in (None, 1):
        yield rules.invalid(f"{path}.successThreshold", count, "must be 1", "use 1, except in a readinessProbe")


def _handler_errors(handler: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    handler_fields = [field for field in _HANDLER_FIELDS if handler.get(field) is not None]
    if not handler_fields:
        yield rules.required(path, "must specify a handler type", "set exec, httpGet, tcpSocket or grpc")
        return
    kind, *other_handler_fields = handler_fields
    match kind:
        case "exec" if not handler["exec"].get("command"):
            yield rules.required(f"{path}.exec.command", "", "specify the command to run")
        case "httpGet":
            yield from _http_get_errors(handler["httpGet"], f"{path}.httpGet")
        case "tcpSocket" | "grpc":
            yield from _port_value_errors(handler[kind].get("port", 0), f"{path}.{kind}.port")
    for name in other_handler_fields:
        yield rules.forbidden(f"{path}.{name}", "may not specify more than 1 handler type", f"remove {name} or {kind}")


def _http_get_errors(action: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    yield from _port_value_errors(action.get("port", 0), f"{path}.port")
    scheme = action.get("scheme") or _HTTP_SCHEMES[0]
    if scheme not in _HTTP_SCHEMES:
        yield rules.unsupported(f"{path}.scheme", scheme, _HTTP_SCHEMES)
    for header in action.get("httpHeaders") or ():
        name = header.get("name") or ""
        for message in rules.header_name_errors(name):
            yield rules.invalid(f"{path}.httpHeaders", name, message, "use letters, digits and '-'")


def _port_value_errors(port: int | str, path: str) -> Iterator[FieldError]:
    if isinstance(port, str):
        for message in rules.port_name_errors(port):
            yield rules.invalid(path, port, message, _PORT_REMEDY)
    elif not 1 <= port <= _PORT_MAX:
        yield rules.invalid(path, port, _PORT_RANGE_MESSAGE, _PORT_REMEDY)


# Rules of security contexts of pods and of containers. Source: Kubernetes's pkg/apis/core/validation.


_USER_ID_MAX: Final = 2**31 - 1
_USER_ID_RANGE_MESSAGE: Final = "must be between 0 and 2147483647, inclusive"
_SECCOMP_TYPES: Final = ("Localhost", "RuntimeDefault", "Unconfined")
_PROC_MOUNTS: Final = ("Default", "Unmasked")
_LOCALHOST_PROFILE_TYPE: Final = "Localhost"
_SYSCTL_LENGTH_MAX: Final = 253
_SYSCTL_PATTERN: Final = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"
_SYSCTL_SEGMENT: Final = re.compile(r"[a-z0-9](?:[-_a-z0-9]*[a-z0-9])?")
_SYSCTL_SEPARATOR: Final = re.compile(r"[./]")
_APP_ARMOR_PROFILE_LENGTH_MAX: Final = 4095


def pod_security_errors(context: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the security context of a pod: user and group ids, profiles and sysctls."""
    yield from _common_security_errors(context, path)
    yield from _user_or_group_id_errors(context.get("fsGroup"), f"{path}.fsGroup")
    for i, group in enumerate(context.get("supplementalGroups") or ()):
        yield from _user_or_group_id_errors(group, f"{path}.supplementalGroups[{i}]")
    seen_sysctl_names: set[str] = set()
    for i, sysctl in enumerate(context.get("sysctls") or ()):
        item_path, name = f"{path}.sysctls[{i}].name", sysctl.get("name") or ""
        if not name:
            yield rules.required(item_path, "", "specify the name of a kernel parameter")
        elif not _is_sysctl_name(name):
            message = f"must have at most {_SYSCTL_LENGTH_MAX} characters and match regex {_SYSCTL_PATTERN}"
            yield rules.invalid(item_path, name, message, "use a name such as net.ipv4.tcp_syncookies")
        elif name in seen_sysctl_names:
            yield rules.duplicate(item_path, name, "remove one of the two sysctls")
        seen_sysctl_names.add(name)


def container_security_errors(
    context: Mapping[str, Any], path: str, *, in_host_user_namespace: bool
) -> Iterator[FieldError]:
    """Validate a container's security context; `in_host_user_namespace`: the pod runs in the host's user namespace."""
    yield from _common_security_errors(context, path)
    proc_mount = context.get("procMount")
    if proc_mount is not None and proc_mount not in _PROC_MOUNTS:
        yield rules.unsupported(f"{path}.procMount", proc_mount, _PROC_MOUNTS)
    if proc_mount == "Unmasked" and in_host_user_namespace:
        message = "`hostUsers` must be false to use `Unmasked`"
        yield rules.invalid(f"{path}.procMount", proc_mount, message, "set hostUsers: false in the pod")
    if context.get("allowPrivilegeEscalation") is False:
        message_start = "cannot set `allowPrivilegeEscalation` to false and"
        if context.get("privileged"):
            yield rules.invalid_without_value(
                path, f"{message_start} `privileged` to true", "remove allowPrivilegeEscalation or privileged"
            )
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            remedy = "remove allowPrivilegeEscalation or the capability"
            yield rules.invalid_without_value(path, f"{message_start} `capabilities.Add` CAP_SYS_ADMIN", remedy)


def _common_security_errors(context: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field in ("runAsUser", "runAsGroup"):
        yield from _user_or_group_id_errors(context.get(field), f"{path}.{field}")
    if (profile := context.get("seccompProfile")) is not None:
        yield from _seccomp_errors(profile, f"{path}.seccompProfile")
    if (profile := context.get("appArmorProfile")) is not None:
        yield from _app_armor_errors(profile, f"{path}.appArmorProfile")


def _user_or_group_id_errors(id_number: int | None, path: str) -> Iterator[FieldError]:
    if id_number is not None and not 0 <= id_number <= _USER_ID_MAX:
        yield rules.invalid(path, id_number, _USER_ID_RANGE_MESSAGE, "specify the id of a user or group")


def _seccomp_errors(profile: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind, profile_path = profile.get("type") or "", profile.get("localhostProfile")
    yield from _profile_type_errors(kind, path, "seccompProfile")
    if kind == _LOCALHOST_PROFILE_TYPE and profile_path is None:
        message = "must be set when seccomp type is Localhost"
        yield rules.required(f"{path}.localhostProfile", message, "specify the path of the profile on the node")
    elif kind == _LOCALHOST_PROFILE_TYPE:
        yield from rules.local_path_errors(profile_path or "", f"{path}.localhostProfile")
    elif profile_path is not None:
        message = "can only be set when seccomp type is Localhost"
        yield rules.invalid(
            f"{path}.localhostProfile", profile_path, message, "remove the field, or set type to Localhost"
        )


def _app_armor_errors(profile: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind, profile_path = profile.get("type") or "", profile.get("localhostProfile")
    item_path = f"{path}.localhostProfile"
    yield from _profile_type_errors(kind, path, "appArmorProfile")
    if kind == _LOCALHOST_PROFILE_TYPE:
        if profile_path is not None and profile_path != profile_path.strip():
            yield rules.invalid(item_path, profile_path, "must not be padded with whitespace", "remove the spaces")
        if not profile_path:
            yield rules.required(item_path, "must be set when AppArmor type is Localhost", "specify a profile name")
        elif len(profile_path.encode()) > _APP_ARMOR_PROFILE_LENGTH_MAX:
            yield rules.too_long(item_path, _APP_ARMOR_PROFILE_LENGTH_MAX, "shorten the profile name")
    elif profile_path is not None:
        message = "can only be set when AppArmor type is Localhost"
        yield rules.invalid(item_path, profile_path, message, "remove the field, or set type to Localhost")


def _profile_type_errors(kind: str, path: str, field: str) -> Iterator[FieldError]:
    if not kind:
        yield rules.required(f"{path}.type", f"type is required when {field} is set", "use RuntimeDefault, for example")
    elif kind not in _SECCOMP_TYPES:
        yield rules.unsupported(f"{path}.type", kind, _SECCOMP_TYPES)


def _is_sysctl_name(name: str) -> bool:
    name_segments = _SYSCTL_SEPARATOR.split(name) if len(name) <= _SYSCTL_LENGTH_MAX else [""]
    return all(_SYSCTL_SEGMENT.fullmatch(segment) for segment in name_segments)


#: The maximum number of volume names in an error message.
_VOLUMES_SHOWN_MAX: Final = 10
_IMAGE_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_CONTAINER_NAME_REMEDY: Final = "use at most 63 lowercase letters, digits and '-'"


def containers_errors(spec: Mapping[str, Any], volumes: Mapping[str, None], path: str) -> Iterator[FieldError]:
    """Validate the containers and init containers of a pod; report missing containers and duplicate names."""
    if not spec.get("containers"):
        yield rules.required(f"{path}.containers", "", "add at least one container")
    in_host_user_namespace = spec.get("hostUsers") is not False
    paths: dict[str, str] = {}
    for field in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(field) or ()):
            item_path = f"{path}.{field}[{i}]"
            yield from _container_errors(container, volumes, item_path)
            context = container.get("securityContext") or {}
            yield from container_security_errors(
                context, f"{item_path}.securityContext", in_host_user_namespace=in_host_user_namespace
            )
            name = container.get("name") or ""
            if name in paths:
                yield rules.duplicate(f"{item_path}.name", name, f"rename the container: {paths[name]} has this name")
            paths.setdefault(name, item_path)
    yield from _host_port_errors(spec, path)


def _host_port_errors(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    is_on_host_network, seen_port_keys = bool(spec.get("hostNetwork")), dict[str, None]()
    containers = [(f"{path}.containers[{i}]", container) for i, container in enumerate(spec.get("containers") or ())]
    for item_path, port in [
        (f"{item_path}.ports[{i}]", p) for item_path, c in containers for i, p in enumerate(c.get("ports") or ())
    ]:
        host_port, container_port = port.get("hostPort") or 0, port.get("containerPort", 0)
        if is_on_host_network and host_port not in (0, container_port):
            message = "must match `hostPort` when `hostNetwork` is true"
            yield rules.invalid(f"{item_path}.containerPort", container_port, message, "remove hostPort")
        host_port = host_port or (container_port if is_on_host_network else 0)
        port_key = f"{port.get('protocol') or 'TCP'}/{port.get('hostIP') or ''}/{host_port}"
        if host_port and port_key in seen_port_keys:
            yield rules.duplicate(f"{item_path}.hostPort", port_key, "use another port in one of the containers")
        seen_port_keys[port_key] = None


def _container_errors(container: Mapping[str, Any], volumes: Mapping[str, None], path: str) -> Iterator[FieldError]:
    name = container.get("name") or ""
    if not name:
        yield rules.required(f"{path}.name", "", "set the name of the container")
    for message in rules.dns_label_errors(name) if name else ():
        yield rules.invalid(f"{path}.name", name, message, _CONTAINER_NAME_REMEDY)
    image = container.get("image") or ""
    if not image:
        yield rules.required(f"{path}.image", "", "specify the image to run")
    elif image != image.strip():
        message = "must not have leading or trailing whitespace"
        yield rules.invalid(f"{path}.image", image, message, f"write the image as {rules.format_json(image.strip())}")
    pull_policy = container.get("imagePullPolicy")
    if pull_policy and pull_policy not in _IMAGE_PULL_POLICIES:
        yield rules.unsupported(f"{path}.imagePullPolicy", pull_policy, _IMAGE_PULL_POLICIES)
    yield from _container_port_errors(container.get("ports") or (), f"{path}.ports")
    yield from _env_errors(container.get("env") or (), f"{path}.env")
    yield from rules.resources_errors(container.get("resources") or {}, f"{path}.resources")
    yield from _env_from_errors(container.get("envFrom") or (), f"{path}.envFrom")
    yield from _mount_errors(container.get("volumeMounts") or (), volumes, f"{path}.volumeMounts")
    yield from probes_errors(container, path)


def _container_port_errors(ports: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    seen_port_names: dict[str, None] = {}
    for i, port in enumerate(ports):
        item_path, port_number, protocol = f"{path}[{i}]", port.get("containerPort", 0), port.get("protocol") or "TCP"
        if not 1 <= port_number <= 65535:
            message = "must be between 1 and 65535, inclusive"
            yield rules.invalid(f"{item_path}.containerPort", port_number, message, _PORT_REMEDY)
        if (host_port := port.get("hostPort") or 0) and not 1 <= host_port <= 65535:
            message = "must be between 1 and 65535, inclusive"
            yield rules.invalid(
                f"{item_path}.hostPort", host_port, message, "use a port from 1 to 65535, or omit hostPort"
            )
        if protocol not in _PORT_PROTOCOLS:
            yield rules.unsupported(f"{item_path}.protocol", protocol, _PORT_PROTOCOLS)
        name = port.get("name")
        for message in rules.port_name_errors(name) if name else ():
            yield rules.invalid(f"{item_path}.name", name, message, "use at most 15 lowercase letters, digits and '-'")
        if port.get("hostIP"):
            yield from ip_errors(port["hostIP"], f"{item_path}.hostIP")
        if name and name in seen_port_names:
            yield rules.duplicate(f"{item_path}.name", name, "give each port a unique name")
        if name:
            seen_port_names[name] = None


def _env_errors(env: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    for i, variable in enumerate(env):
        item_path, name = f"{path}[{i}]", variable.get("name") or ""
        if not name:
            yield rules.required(f"{item_path}.name", "", "set the name of the variable")
        for message in rules.env_name_errors(name) if name else ():
            yield rules.invalid(f"{item_path}.name", name, message, "use letters, digits, '_', '-' and '.'")
        if (source := variable.get("valueFrom")) is not None:
            yield from _env_value_from_errors(source, variable.get("value"), f"{item_path}.valueFrom")


def _env_from_errors(sources: Sequence[Mapping[str, Any]], path: str) -> Iterator[FieldError]:
    for i, source in enumerate(sources):
        item_path, name_prefix = f"{path}[{i}]", source.get("prefix") or ""
        for message in rules.env_name_errors(name_prefix) if name_prefix else ():
            yield rules.invalid(f"{item_path}.prefix", name_prefix, message, "use letters, digits, '_', '-' and '.'")
        reference_fields = [field for field in ("configMapRef", "secretRef") if source.get(field) is not None]
        if not reference_fields:
            yield rules.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`", "set one of the two")
        elif len(reference_fields) > 1:
            yield rules.invalid(path, "", "may not have more than one field specified at a time", "keep one of the two")
        for field in reference_fields:
            name, name_path = source[field].get("name") or "", f"{item_path}.{field}.name"
            if not name:
                kind = "ConfigMap" if field == "configMapRef" else "Secret"
                yield rules.required(name_path, "", f"specify the name of a {kind}")
            for message in rules.dns_subdomain_errors(name) if name else ():
                yield rules.invalid(name_path, name, message, "use lowercase letters, digits, '-' and '.'")


def _env_value_from_errors(source: Mapping[str, Any], value: str | None, path: str) -> Iterator[FieldError]:
    source_fields = [field for field, reference in source.items() if reference is not None]
    if not source_fields:
        message = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        yield rules.invalid(path, "", message, "set one of these fields")
    elif value:
        message = "may not be specified when `value` is not empty"
        yield rules.invalid(path, "", message, "remove value or valueFrom")
    elif len(source_fields) > 1:
        message = "may not have more than one field specified at a time"
        yield rules.invalid(path, "", message, f"keep only one of {', '.join(source_fields)}")


def _mount_errors(mounts: Sequence[Mapping[str, Any]], volumes: Mapping[str, None], path: str) -> Iterator[FieldError]:
    seen_mount_paths: dict[str, None] = {}
    for i, mount in enumerate(mounts):
        item_path, name, mount_path = f"{path}[{i}]", mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            yield rules.required(f"{item_path}.name", "", "specify the name of a volume of the pod")
        elif name not in volumes:
            names = ", ".join(islice(volumes, _VOLUMES_SHOWN_MAX))
            remedy = f"use one of {names}, or add the volume to the pod" if volumes else "add the volume to the pod"
            yield rules.not_found(f"{item_path}.name", name, remedy)
        if not mount_path:
            yield rules.required(f"{item_path}.mountPath", "", "specify the path of the volume in the container")
        elif mount_path in seen_mount_paths:
            yield rules.invalid(f"{item_path}.mountPath", mount_path, "must be unique", "use each path once")
        seen_mount_paths[mount_path] = None
        for field in ("subPath", "subPathExpr"):
            yield from rules.local_path_errors(mount.get(field) or "", f"{path}.{field}")
        if mount.get("subPath") and mount.get("subPathExpr"):
            message = "subPathExpr and subPath are mutually exclusive"
            yield rules.invalid(f"{item_path}.subPathExpr", mount["subPathExpr"], message, "remove one of the two")
