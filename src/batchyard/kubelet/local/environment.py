"""Container environment variables and commands, with variable references expanded.

Later sources override earlier ones: Services, then `envFrom` in order, then `env` in order. `$(NAME)` in a value refers
to a variable set before it, or to a variable of a Service. Every name that the API accepts is used, as in Kubernetes
1.34 and later. Sources: pkg/kubelet/kubelet_pods.go (makeEnvironmentVariables); pkg/kubelet/container.
"""

import ipaddress
import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.validation import rules
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local import errors as local_errors

# Downward API: fields of the pod and its node for containers.
#
# Sources: pkg/fieldpath; pkg/kubelet/kubelet_pods.go (podFieldSelectorRuntimeValue); pkg/api/v1/resource (divisors, and
# the defaults of unset limits); k8s.io/component-helpers nodeaddresses (GetNodeHostIPs).


#: Limits that default to the node's allocatable amount.
_NODE_LIMITED_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")


class PodFields(NamedTuple):
    """The objects from which downward API fields are read: a pod, its IP addresses, and its node."""

    pod: Obj
    #: The addresses of the pod's own network, the primary one first; empty without such a network.
    addresses: Sequence[str]
    #: None if the node does not exist.
    node: Obj | None


def pod_fields_of(pod: Obj, addresses: Sequence[str], reader: Reader) -> PodFields:
    """Return the objects for the downward API fields of a pod that is bound to a node."""
    return PodFields(pod, addresses, reader.get(Key(scheme.NODE, "", pod["spec"].get("nodeName") or "")))


def field_value_for_variable(pod_fields: PodFields, path: str) -> str:
    """Return the value of an environment variable whose `fieldRef` has the field path `path`.

    A pod without its own network has the IP addresses of its node; '' if they are unknown. Raises InputError if the
    path is not supported, or if the path is `status.hostIP` or `status.hostIPs` and the node has no IP address.
    """
    spec: Mapping[str, Any] = pod_fields.pod["spec"]
    match path:
        case "spec.nodeName":
            return str(spec.get("nodeName") or "")
        case "spec.serviceAccountName":
            return str(spec.get("serviceAccountName") or "")
        case "status.podIP":
            return next(iter(pod_fields.addresses or _node_addresses(pod_fields.node)), "")
        case "status.podIPs":
            return ",".join(pod_fields.addresses or _node_addresses(pod_fields.node))
        case "status.hostIP":
            return _host_addresses(pod_fields.node)[0]
        case "status.hostIPs":
            return ",".join(_host_addresses(pod_fields.node))
    return field_value_for_file(pod_fields.pod, path)


def field_value_for_file(pod: Obj, path: str) -> str:
    """Return the value of the metadata field `path` for a downward API file. Raises InputError for other paths."""
    metadata: Mapping[str, Any] = pod["metadata"]
    field_path, subscript = _split_field_path(path)
    if subscript is not None:
        return _metadata_entry(metadata, path, field_path, subscript)
    match path:
        case "metadata.annotations" | "metadata.labels":
            labels_or_annotations: Mapping[str, str] = metadata.get(field_path.removeprefix("metadata.")) or {}
            return "\n".join(
                f"{key}={local_errors.quote_like_go(value)}" for key, value in sorted(labels_or_annotations.items())
            )
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(metadata.get(field_path.removeprefix("metadata.")) or "")
    raise local_errors.InputError(f"unsupported fieldPath: {path}")


def _split_field_path(path: str) -> tuple[str, str | None]:
    field, bracket, remainder = path.partition("['")
    return (field, remainder.removesuffix("']")) if field and bracket and path.endswith("']") else (path, None)


def _metadata_entry(metadata: Mapping[str, Any], path: str, field: str, key: str) -> str:
    if field not in {"metadata.annotations", "metadata.labels"}:
        raise local_errors.InputError(f"fieldPath {local_errors.quote_like_go(path)} does not support subscript")
    errors = rules.qualified_name_errors(key.lower() if field == "metadata.annotations" else key)
    if errors:
        raise local_errors.InputError(f"invalid key subscript in {path}: {';'.join(errors)}")
    return str((metadata.get(field.removeprefix("metadata.")) or {}).get(key, ""))


def _host_addresses(node: Obj | None) -> list[str]:
    """Return the IP addresses of a pod's node, one for each IP family. Raises InputError if the node has none."""
    addresses = _node_addresses(node)
    if not addresses:
        raise local_errors.InputError("host IP unknown; known addresses: []")
    return addresses


def _node_addresses(node: Obj | None) -> list[str]:
    """Return a node's first IP address, and its first of the other IP family, if any; internal addresses come first."""
    node_addresses: Sequence[Mapping[str, str]] = ((node or {}).get("status") or {}).get("addresses") or ()
    addresses = [a["address"] for kind in ("InternalIP", "ExternalIP") for a in node_addresses if a["type"] == kind]
    versions = [ipaddress.ip_address(address).version for address in addresses]
    other_family = [a for a, version in zip(addresses, versions, strict=True) if version != versions[0]]
    return [*addresses[:1], *other_family[:1]]


def resource_field_value(pod_fields: PodFields, selector: Mapping[str, Any], default_container: str = "") -> str:
    """Return the value of a `resourceFieldRef`: a container's request or limit divided by the divisor, rounded up.

    `default_container` is used if the selector names no container. An unset limit of cpu, memory or ephemeral-storage
    defaults to the smaller of the pod's limit and the node's allocatable amount. Raises InputError if the resource is
    not supported or the container does not exist.
    """
    resource: str = selector["resource"]
    kind, _, name = resource.partition(".")
    is_known_resource = name in _NODE_LIMITED_RESOURCES or name.startswith("hugepages-")
    if kind not in {"limits", "requests"} or not is_known_resource:
        raise local_errors.InputError(f"unsupported container resource : {resource}")
    container = _find_container(pod_fields.pod, selector.get("containerName") or default_container)
    resource_amounts: Mapping[str, Any] = (container.get("resources") or {}).get(kind) or {}
    nano_amount = meta.parse_quantity(resource_amounts.get(name) or "0")
    if kind == "limits" and not nano_amount and name in _NODE_LIMITED_RESOURCES:
        nano_amount = _default_limit(pod_fields, name)
    nano_per_unit = 1_000_000 if name == "cpu" else meta.NANO
    divisor = meta.parse_quantity(selector.get("divisor") or "1") or meta.NANO
    return str(-(-_divide_rounding_up(nano_amount, nano_per_unit) // _divide_rounding_up(divisor, nano_per_unit)))


def _default_limit(pod_fields: PodFields, name: str) -> int:
    """Return the default of an unset resource limit in billionths of a unit; 0 if it is unknown.

    It is the smaller of the node's allocatable amount and the pod's limit.
    """
    allocatable: Mapping[str, Any] = ((pod_fields.node or {}).get("status") or {}).get("allocatable") or {}
    pod_limits: Mapping[str, Any] = (pod_fields.pod["spec"].get("resources") or {}).get("limits") or {}
    default_limits = [meta.parse_quantity(amounts[name]) for amounts in (allocatable, pod_limits) if name in amounts]
    return min((nano for nano in default_limits if nano), default=0)


def _divide_rounding_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


def _find_container(pod: Obj, name: str) -> Mapping[str, Any]:
    spec = pod["spec"]
    fields = ("containers", "initContainers", "ephemeralContainers")
    for container in (each for field in fields for each in spec.get(field) or ()):
        if container["name"] == name:
            return container  # type: ignore[no-any-return]
    raise local_errors.InputError(f"container {name} not found")


# Expansion of variable references `$(NAME)` in environment values, commands and mount paths.
#
# Source: third_party/forked/golang/expansion, and the API documentation of `$$`.


#: Maximum length of one argument or variable, and of all variables or the command together. Source: execve(2) of Linux
#: (MAX_ARG_STRLEN, and a quarter of the default stack limit).
ARGUMENT_LENGTH_MAX: Final = 128 * 1024
ARGUMENTS_LENGTH_MAX: Final = 2 * 1024 * 1024
_VARIABLE_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand_references(text: str, find_value: Callable[[str], str | None]) -> str:
    """Replace each `$(NAME)` in a text by its value, once, from left to right.

    Inserted values are not expanded again. Unknown names and an unclosed `$(` stay as written. `$$` becomes `$`.
    Raises InputError if the inserted values exceed the length limit of one argument.
    """
    expanded_length = 0

    def replace_reference(match: re.Match[str]) -> str:
        nonlocal expanded_length
        name = match.group(1)
        value = "$" if name is None else find_value(name)
        if value is None:
            return match.group(0)
        expanded_length += len(value)
        if expanded_length > ARGUMENT_LENGTH_MAX:
            raise too_long_arguments_error()
        return value

    end = text.rfind(")") + 1  # after the last `)` is no reference, and the search for a `)` at each `$(` would be slow
    return _VARIABLE_REFERENCE.sub(replace_reference, text[:end]) + text[end:].replace("$$", "$")


def too_long_arguments_error() -> local_errors.InputError:
    """Return the error for a command or an environment over the length limit, with the message of execve(2)."""
    return local_errors.InputError("argument list too long")


def expand_path(text: str, variables: Mapping[str, str]) -> tuple[str, list[str]]:
    """Expand the variable references in a path; return the path, and the sorted names of unset or empty variables."""
    missing_variable_names: dict[str, None] = {}

    def find_value(name: str) -> str:
        value = variables.get(name, "")
        if not value:
            missing_variable_names[name] = None
        return value

    return expand_references(text, find_value), sorted(missing_variable_names)


# Service environment variables.
#
# Source: pkg/kubelet/envvars; pkg/kubelet/kubelet_pods.go (getServiceEnvVarMap).


#: The Service of the API server, whose variables all pods get.
_API_SERVICE: Final = Key(scheme.SERVICE, "default", "kubernetes")
_API_ENDPOINTS: Final = Key(scheme.ENDPOINTS, "default", "kubernetes")


def service_variables(namespace: str, reader: Reader, *, has_links: bool, has_network: bool) -> dict[str, str]:
    """Return variables such as `REDIS_SERVICE_HOST` for the API server's Service and a namespace's Services.

    Services without a cluster IP are skipped. `has_links` is the pod's enableServiceLinks: if false, only the API
    server's Service is included. A Service named `kubernetes` in the namespace overrides the API server's Service. A
    pod with its own network (`has_network`) reaches the API server at the Service address, a pod on the host network
    at the endpoint.
    """
    services: dict[str, Obj] = {}
    api_service = reader.get(_API_SERVICE) if has_network else _api_service_at_endpoint(reader)
    if api_service is not None and _cluster_ip(api_service):
        services[_API_SERVICE.name] = api_service
    for service in reader.list(scheme.SERVICE, namespace) if has_links else ():
        if _cluster_ip(service) and key_of(service) != _API_SERVICE:
            services[service["metadata"]["name"]] = service
    return {name: value for service in services.values() for name, value in _service_address_variables(service).items()}


def _api_service_at_endpoint(reader: Reader) -> Obj | None:
    """Return the API server's Service with the address and port of its https endpoint; None without an endpoint.

    The TLS certificate is valid for this address.
    """
    endpoints = reader.get(_API_ENDPOINTS)
    for subset in (endpoints or {}).get("subsets") or ():
        if subset["ports"][0].get("name") == "https":
            spec = {"clusterIP": subset["addresses"][0]["ip"], "ports": subset["ports"]}
            return {"metadata": {"name": _API_SERVICE.name}, "spec": spec}
    return None


def _cluster_ip(service: Obj) -> str:
    address: str = service["spec"].get("clusterIP") or ""
    return "" if address == "None" else address


def _service_address_variables(service: Obj) -> dict[str, str]:
    prefix, address = _env_prefix(service["metadata"]["name"]), _cluster_ip(service)
    ports: list[Mapping[str, Any]] = list(service["spec"].get("ports") or ())
    variables = {f"{prefix}_SERVICE_HOST": address}
    if ports:
        variables[f"{prefix}_SERVICE_PORT"] = str(ports[0]["port"])
    variables |= {f"{prefix}_SERVICE_PORT_{_env_prefix(p['name'])}": str(p["port"]) for p in ports if p.get("name")}
    for number, port in enumerate(ports):
        variables.update(_link_variables(prefix, address, port, is_first=number == 0))
    return variables


def _link_variables(prefix: str, address: str, port: Mapping[str, Any], *, is_first: bool) -> dict[str, str]:
    """Return the variables of one Service port in the format of Docker links (`REDIS_PORT_6379_TCP_ADDR`)."""
    protocol: str = port.get("protocol") or "TCP"
    host = f"[{address}]" if ":" in address else address
    url = f"{protocol.lower()}://{host}:{port['port']}"
    port_prefix = f"{prefix}_PORT_{port['port']}_{protocol.upper()}"
    return {
        **({f"{prefix}_PORT": url} if is_first else {}),
        port_prefix: url,
        f"{port_prefix}_PROTO": protocol.lower(),
        f"{port_prefix}_PORT": str(port["port"]),
        f"{port_prefix}_ADDR": address,
    }


def _env_prefix(name: str) -> str:
    return name.replace("-", "_").upper()


_ConfigFinder = Callable[[Reader, str, str], local_errors.ConfigData | None]
#: For each reference field: the lookup function, the kind for messages, and the message for a missing object.
_REFERENCE_KINDS: Final[Mapping[str, tuple[_ConfigFinder, str, Callable[[str], str]]]] = {
    "configMapRef": (local_errors.find_config_map, "ConfigMap", local_errors.missing_config_map_message),
    "secretRef": (local_errors.find_secret, "Secret", local_errors.missing_secret_message),
    "configMapKeyRef": (local_errors.find_config_map, "ConfigMap", local_errors.missing_config_map_message),
    "secretKeyRef": (local_errors.find_secret, "Secret", local_errors.missing_secret_message),
}


def environment(pod: Obj, container: Mapping[str, Any], addresses: Sequence[str], reader: Reader) -> dict[str, str]:
    """Return a container's environment variables. Raises ContainerError if a value is unavailable or invalid.

    `addresses` are those of the pod's own network, if any. The image's variables, HOME and HOSTNAME are not included.
    """
    try:
        variables = _environment_variables(pod_fields_of(pod, addresses, reader), container, reader)
    except local_errors.InputError as error:
        raise local_errors.ContainerError(local_errors.CONFIG_ERROR, str(error)) from error
    for name, value in variables.items():
        if "\0" in value:
            raise local_errors.ContainerError(
                local_errors.CREATE_ERROR, f"environment variable {name} contains a null byte"
            )
    return variables


def command_line(container: Mapping[str, Any], variables: Mapping[str, str]) -> list[str]:
    """Return a container's command and arguments with variables expanded.

    Raises ContainerError if they are too long.
    """
    argv: list[str] = []
    remaining_length = ARGUMENTS_LENGTH_MAX
    try:
        for argument in [*(container.get("command") or ()), *(container.get("args") or ())]:
            argv.append(expand_references(argument, variables.get))
            remaining_length -= len(argv[-1])
            if remaining_length < 0:
                raise too_long_arguments_error()
    except local_errors.InputError as error:
        raise local_errors.ContainerError(local_errors.CREATE_ERROR, str(error)) from error
    return argv


def _environment_variables(pod_fields: PodFields, container: Mapping[str, Any], reader: Reader) -> dict[str, str]:
    spec, namespace = pod_fields.pod["spec"], pod_fields.pod["metadata"].get("namespace") or ""
    has_links, has_network = spec.get("enableServiceLinks") is not False, bool(pod_fields.addresses)
    services = service_variables(namespace, reader, has_links=has_links, has_network=has_network)
    variables: dict[str, str] = {}
    remaining_length = ARGUMENTS_LENGTH_MAX
    for source in container.get("envFrom") or ():
        object_variables = _variables_from_object(source, namespace, reader)
        remaining_length -= sum(len(name) + len(value) for name, value in object_variables.items())
        if remaining_length < 0:
            raise too_long_arguments_error()
        variables.update(object_variables)
    for variable in container.get("env") or ():
        if variable.get("value"):
            value: str | None = expand_references(variable["value"], ChainMap(variables, services).get)
        else:
            value = _value_from_source(pod_fields, container, variable.get("valueFrom") or {}, reader)
        if value is not None:
            remaining_length -= len(variable["name"]) + len(value)
            if remaining_length < 0:
                raise too_long_arguments_error()
            variables[variable["name"]] = value
    return {**{name: value for name, value in services.items() if name not in variables}, **variables}


def _variables_from_object(env_from: Mapping[str, Any], namespace: str, reader: Reader) -> dict[str, str]:
    entry = next(((field, env_from[field]) for field in ("configMapRef", "secretRef") if env_from.get(field)), None)
    if entry is None:
        return {}
    field, reference = entry
    config = _find_config_data(field, reference, namespace, reader)
    prefix: str = env_from.get("prefix") or ""
    return {prefix + key: value for key, value in sorted(config.variable_values.items())} if config is not None else {}


def _value_from_source(
    pod_fields: PodFields, container: Mapping[str, Any], value_from: Mapping[str, Any], reader: Reader
) -> str | None:
    if value_from.get("fieldRef"):
        return field_value_for_variable(pod_fields, value_from["fieldRef"]["fieldPath"])
    if value_from.get("resourceFieldRef"):
        return resource_field_value(pod_fields, value_from["resourceFieldRef"], container["name"])
    if value_from.get("fileKeyRef"):
        raise local_errors.InputError(
            f"fileKeyRef in env of container {container['name']} is not supported here; set the variable in the "
            "command, or by configMapKeyRef"
        )
    for field in ("configMapKeyRef", "secretKeyRef"):
        if value_from.get(field):
            return _value_from_key(field, value_from[field], pod_fields.pod["metadata"].get("namespace") or "", reader)
    return ""


def _value_from_key(field: str, reference: Mapping[str, Any], namespace: str, reader: Reader) -> str | None:
    config = _find_config_data(field, reference, namespace, reader)
    if config is None:
        return None
    key: str = reference["key"]
    if key not in config.variable_values and not reference.get("optional"):
        kind_name = _REFERENCE_KINDS[field][1]
        raise local_errors.InputError(
            f"couldn't find key {key} in {kind_name} {namespace}/{reference.get('name') or ''}"
        )
    return config.variable_values.get(key)


def _find_config_data(
    field: str, reference: Mapping[str, Any], namespace: str, reader: Reader
) -> local_errors.ConfigData | None:
    find_object, _, not_found_message = _REFERENCE_KINDS[field]
    name: str = reference.get("name") or ""
    config_data = find_object(reader, namespace, name)
    if config_data is None and not reference.get("optional"):
        raise local_errors.InputError(not_found_message(name))
    return config_data
