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
from batchyard.kubelet.local.errors import (
    CONFIG,
    CREATE,
    ConfigData,
    ContainerError,
    InputError,
    find_config_map,
    find_secret,
    no_config_map,
    no_secret,
    quoted,
)

# --- downward api ---
#
# Downward API: fields of the pod and its node for containers.
#
# Sources: pkg/fieldpath; pkg/kubelet/kubelet_pods.go (podFieldSelectorRuntimeValue); pkg/api/v1/resource (divisors, and
# the defaults of unset limits); k8s.io/component-helpers nodeaddresses (GetNodeHostIPs).


#: Limits that default to the node's allocatable amount.
_DEFAULTED: Final = ("cpu", "memory", "ephemeral-storage")


class PodFields(NamedTuple):
    """The sources of downward API fields: a pod, its addresses, and its node."""

    pod: Obj
    #: The pod's addresses, the primary one first; empty if it has none yet.
    addresses: Sequence[str]
    #: None if the node does not exist.
    node: Obj | None


def pod_fields_of(pod: Obj, addresses: Sequence[str], reader: Reader) -> PodFields:
    """Return the downward API sources of a pod that is bound to a node."""
    return PodFields(pod, addresses, reader.get(Key(scheme.NODE, "", pod["spec"].get("nodeName") or "")))


# --- fields ---


def variable_of_field(facts: PodFields, path: str) -> str:
    """Return the value of a `fieldRef` for an environment variable. InputError if the field is not supported."""
    spec: Mapping[str, Any] = facts.pod["spec"]
    match path:
        case "spec.nodeName":
            return str(spec.get("nodeName") or "")
        case "spec.serviceAccountName":
            return str(spec.get("serviceAccountName") or "")
        case "status.podIP":
            return next(iter(facts.addresses), "")
        case "status.podIPs":
            return ",".join(facts.addresses)
        case "status.hostIP":
            return _host_addresses(facts.node)[0]
        case "status.hostIPs":
            return ",".join(_host_addresses(facts.node))
    return text_of_field(facts.pod, path)


def text_of_field(pod: Obj, path: str) -> str:
    """Return the value of a metadata field for a downward API file. InputError if the field is not supported."""
    metadata: Mapping[str, Any] = pod["metadata"]
    field, subscript = _parted(path)
    if subscript is not None:
        return _entry(metadata, path, field, subscript)
    match path:
        case "metadata.annotations" | "metadata.labels":
            entries: Mapping[str, str] = metadata.get(field.removeprefix("metadata.")) or {}
            return "\n".join(f"{key}={quoted(value)}" for key, value in sorted(entries.items()))
        case "metadata.name" | "metadata.namespace" | "metadata.uid":
            return str(metadata.get(field.removeprefix("metadata.")) or "")
    raise InputError(f"unsupported fieldPath: {path}")


def _parted(path: str) -> tuple[str, str | None]:
    """Split `metadata.labels['x']` into the field and its subscript."""
    field, bracket, rest = path.partition("['")
    return (field, rest.removesuffix("']")) if field and bracket and path.endswith("']") else (path, None)


def _entry(metadata: Mapping[str, Any], path: str, field: str, key: str) -> str:
    if field not in {"metadata.annotations", "metadata.labels"}:
        raise InputError(f"fieldPath {quoted(path)} does not support subscript")
    wrong = rules.qualified_name(key.lower() if field == "metadata.annotations" else key)
    if wrong:
        raise InputError(f"invalid key subscript in {path}: {';'.join(wrong)}")
    return str((metadata.get(field.removeprefix("metadata.")) or {}).get(key, ""))


def _host_addresses(node: Obj | None) -> list[str]:
    """Return the node's first address, and the first one of the other IP family."""
    listed: Sequence[Mapping[str, str]] = ((node or {}).get("status") or {}).get("addresses") or ()
    found = [a["address"] for kind in ("InternalIP", "ExternalIP") for a in listed if a["type"] == kind]
    if not found:
        raise InputError("host IP unknown; known addresses: []")
    versions = [ipaddress.ip_address(address).version for address in found]
    return [found[0], *[a for a, version in zip(found, versions, strict=True) if version != versions[0]][:1]]


# --- resources ---


def text_of_resource(facts: PodFields, selector: Mapping[str, Any], own: str = "") -> str:
    """Return the value of a `resourceFieldRef`: a container's request or limit divided by the divisor, rounded up.

    `own` is the container to use if the selector names none. An unset limit defaults to the smaller of the pod's limit
    and the node's allocatable amount. InputError if the resource is not supported.
    """
    resource: str = selector["resource"]
    kind, _, name = resource.partition(".")
    is_known = name in _DEFAULTED or name.startswith("hugepages-")
    if kind not in {"limits", "requests"} or not is_known:
        raise InputError(f"unsupported container resource : {resource}")
    container = _container(facts.pod, selector.get("containerName") or own)
    amounts: Mapping[str, Any] = (container.get("resources") or {}).get(kind) or {}
    nano = meta.parse(amounts.get(name) or "0")
    if kind == "limits" and not nano and name in _DEFAULTED:
        nano = _ceiling(facts, name)
    unit = 1_000_000 if name == "cpu" else meta.NANO
    divisor = meta.parse(selector.get("divisor") or "1") or meta.NANO
    return str(-(-_whole(nano, unit) // _whole(divisor, unit)))


def _ceiling(facts: PodFields, name: str) -> int:
    """Return the value that an unset limit defaults to, in billionths; 0 if it is unknown."""
    allocatable: Mapping[str, Any] = ((facts.node or {}).get("status") or {}).get("allocatable") or {}
    pods_own: Mapping[str, Any] = (facts.pod["spec"].get("resources") or {}).get("limits") or {}
    known = [meta.parse(amounts[name]) for amounts in (allocatable, pods_own) if name in amounts]
    return min((nano for nano in known if nano), default=0)


def _whole(nano: int, unit: int) -> int:
    return -(-nano // unit)


def _container(pod: Obj, name: str) -> Mapping[str, Any]:
    spec = pod["spec"]
    for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
        if container["name"] == name:
            return container  # type: ignore[no-any-return]
    raise InputError(f"container {name} not found")


# --- expansion ---
# Expansion of variable references `$(NAME)` in environment values, commands and mount paths.
#
# Source: third_party/forked/golang/expansion, and the API documentation of `$$`.


#: Maximum length of one argument or variable, and of all variables or the command together. Source: execve(2) of Linux
#: (MAX_ARG_STRLEN, and a quarter of the default stack limit).
LONGEST: Final = 128 * 1024
TOTAL: Final = 2 * 1024 * 1024
_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, lookup: Callable[[str], str | None]) -> str:
    """Replace each `$(NAME)` in a text by its value, once, from left to right.

    Inserted values are not expanded again. Unknown names and an unclosed `$(` stay as written. `$$` becomes `$`.
    InputError if the inserted values exceed the length limit of one argument (`LONGEST`).
    """
    length = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal length
        name = match.group(1)
        value = "$" if name is None else lookup(name)
        if value is None:
            return match.group(0)
        length += len(value)
        if length > LONGEST:
            raise too_long()
        return value

    closed = text.rfind(")") + 1  # the rest has no reference, and the regex would search it for an end at each `$(`
    return _REFERENCE.sub(replaced, text[:closed]) + text[closed:].replace("$$", "$")


def too_long() -> InputError:
    """Return the error for a command line or environment that is too long, with the message of execve(2)."""
    return InputError("argument list too long")


def expand_path(text: str, variables: Mapping[str, str]) -> tuple[str, list[str]]:
    """Expand the variable references in a path; also return the sorted names of variables that are unset or empty."""
    missing: dict[str, None] = {}

    def lookup(name: str) -> str:
        value = variables.get(name, "")
        if not value:
            missing[name] = None
        return value

    return expand(text, lookup), sorted(missing)


# --- services ---
# Service environment variables.
#
# Source: pkg/kubelet/envvars; pkg/kubelet/kubelet_pods.go (getServiceEnvVarMap).


#: The Service of the API server, whose variables all pods get.
_MASTER: Final = Key(scheme.SERVICE, "default", "kubernetes")
_ENDPOINTS: Final = Key(scheme.ENDPOINTS, "default", "kubernetes")


def service_variables(namespace: str, reader: Reader, *, has_links: bool, has_network: bool) -> dict[str, str]:
    """Return the variables of a namespace's Services that have an address, and of the API server's Service.

    `has_links` is the pod's enableServiceLinks: if false, only the API server's Service is included. A Service of the
    namespace with the same name overrides it. A pod with its own network (`has_network`) reaches the API server at the
    Service address, a pod on the host network at the endpoint.
    """
    found: dict[str, Obj] = {}
    master = reader.get(_MASTER) if has_network else _as_the_node_sees_it(reader)
    if master is not None and _address(master):
        found[_MASTER.name] = master
    for service in reader.list(scheme.SERVICE, namespace) if has_links else ():
        if _address(service) and key_of(service) != _MASTER:
            found[service["metadata"]["name"]] = service
    return {name: value for service in found.values() for name, value in _variables(service).items()}


def _as_the_node_sees_it(reader: Reader) -> Obj | None:
    """Return the API server's Service with its endpoint's address and port, which the server's certificate covers."""
    endpoints = reader.get(_ENDPOINTS)
    for subset in (endpoints or {}).get("subsets") or ():
        if subset["ports"][0].get("name") == "https":
            spec = {"clusterIP": subset["addresses"][0]["ip"], "ports": subset["ports"]}
            return {"metadata": {"name": _MASTER.name}, "spec": spec}
    return None


def _address(service: Obj) -> str:
    address: str = service["spec"].get("clusterIP") or ""
    return "" if address == "None" else address


def _variables(service: Obj) -> dict[str, str]:
    prefix, address = _upper(service["metadata"]["name"]), _address(service)
    ports: list[Mapping[str, Any]] = list(service["spec"].get("ports") or ())
    variables = {f"{prefix}_SERVICE_HOST": address}
    if ports:
        variables[f"{prefix}_SERVICE_PORT"] = str(ports[0]["port"])
    variables.update({f"{prefix}_SERVICE_PORT_{_upper(p['name'])}": str(p["port"]) for p in ports if p.get("name")})
    for number, port in enumerate(ports):
        variables.update(_links(prefix, address, port, is_first=number == 0))
    return variables


def _links(prefix: str, address: str, port: Mapping[str, Any], *, is_first: bool) -> dict[str, str]:
    """Return the variables of one Service port in the format of Docker links (`REDIS_PORT_6379_TCP_ADDR`)."""
    protocol: str = port.get("protocol") or "TCP"
    host = f"[{address}]" if ":" in address else address
    url = f"{protocol.lower()}://{host}:{port['port']}"
    own = f"{prefix}_PORT_{port['port']}_{protocol.upper()}"
    return {
        **({f"{prefix}_PORT": url} if is_first else {}),
        own: url,
        f"{own}_PROTO": protocol.lower(),
        f"{own}_PORT": str(port["port"]),
        f"{own}_ADDR": address,
    }


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()


_Find = Callable[[Reader, str, str], ConfigData | None]
#: For each reference field: the lookup function, the kind for messages, and the message for a missing object.
_REFERENCES: Final[Mapping[str, tuple[_Find, str, Callable[[str], str]]]] = {
    "configMapRef": (find_config_map, "ConfigMap", no_config_map),
    "secretRef": (find_secret, "Secret", no_secret),
    "configMapKeyRef": (find_config_map, "ConfigMap", no_config_map),
    "secretKeyRef": (find_secret, "Secret", no_secret),
}


def environment(pod: Obj, container: Mapping[str, Any], addresses: Sequence[str], reader: Reader) -> dict[str, str]:
    """Return the environment variables of a container; ContainerError if a value is not available.

    `addresses` are the pod's addresses. The image's variables, HOME and HOSTNAME are not included.
    """
    try:
        variables = _environment_variables(pod_fields_of(pod, addresses, reader), container, reader)
    except InputError as error:
        raise ContainerError(CONFIG, str(error)) from error
    for name, value in variables.items():
        if "\0" in value:
            raise ContainerError(CREATE, f"environment variable {name} contains a null byte")
    return variables


def command_line(container: Mapping[str, Any], variables: Mapping[str, str]) -> list[str]:
    """Return the expanded command and arguments of a container; references to unknown variables stay as written.

    ContainerError if they are too long for a process.
    """
    found: list[str] = []
    left = TOTAL
    try:
        for part in [*(container.get("command") or ()), *(container.get("args") or ())]:
            found.append(expand(part, variables.get))
            left -= len(found[-1])
            if left < 0:
                raise too_long()
    except InputError as error:
        raise ContainerError(CREATE, str(error)) from error
    return found


def _environment_variables(facts: PodFields, container: Mapping[str, Any], reader: Reader) -> dict[str, str]:
    spec, namespace = facts.pod["spec"], facts.pod["metadata"].get("namespace") or ""
    has_links, has_network = spec.get("enableServiceLinks") is not False, bool(facts.addresses)
    services = service_variables(namespace, reader, has_links=has_links, has_network=has_network)
    own: dict[str, str] = {}
    left = TOTAL
    for source in container.get("envFrom") or ():
        whole = _from_whole(source, namespace, reader)
        left -= sum(len(name) + len(value) for name, value in whole.items())
        if left < 0:
            raise too_long()
        own.update(whole)
    for variable in container.get("env") or ():
        if variable.get("value"):
            value: str | None = expand(variable["value"], ChainMap(own, services).get)
        else:
            value = _from_source(facts, container, variable.get("valueFrom") or {}, reader)
        if value is not None:
            left -= len(variable["name"]) + len(value)
            if left < 0:
                raise too_long()
            own[variable["name"]] = value
    return {**{name: value for name, value in services.items() if name not in own}, **own}


def _from_whole(source: Mapping[str, Any], namespace: str, reader: Reader) -> dict[str, str]:
    """Return the variables of an `envFrom` entry: all entries of a ConfigMap or Secret, with the prefix."""
    found = next(((field, source[field]) for field in ("configMapRef", "secretRef") if source.get(field)), None)
    if found is None:
        return {}
    field, reference = found
    config = _find(field, reference, namespace, reader)
    prefix: str = source.get("prefix") or ""
    return {prefix + key: text for key, text in sorted(config.texts.items())} if config is not None else {}


def _from_source(
    facts: PodFields, container: Mapping[str, Any], source: Mapping[str, Any], reader: Reader
) -> str | None:
    """Return the value of an `env` entry from its `valueFrom`; None if the variable stays unset."""
    if source.get("fieldRef"):
        return variable_of_field(facts, source["fieldRef"]["fieldPath"])
    if source.get("resourceFieldRef"):
        return text_of_resource(facts, source["resourceFieldRef"], container["name"])
    if source.get("fileKeyRef"):
        raise InputError("fileKeyRef is not supported here; set the variable in the command, or by configMapKeyRef")
    for field in ("configMapKeyRef", "secretKeyRef"):
        if source.get(field):
            return _from_key(field, source[field], facts.pod["metadata"].get("namespace") or "", reader)
    return ""


def _from_key(field: str, reference: Mapping[str, Any], namespace: str, reader: Reader) -> str | None:
    config = _find(field, reference, namespace, reader)
    if config is None:
        return None
    key: str = reference["key"]
    if key not in config.texts and not reference.get("optional"):
        noun = _REFERENCES[field][1]
        raise InputError(f"couldn't find key {key} in {noun} {namespace}/{reference.get('name') or ''}")
    return config.texts.get(key)


def _find(field: str, reference: Mapping[str, Any], namespace: str, reader: Reader) -> ConfigData | None:
    """Return the referenced ConfigMap or Secret; None if it is optional and missing, otherwise InputError."""
    find, _, not_found = _REFERENCES[field]
    name: str = reference.get("name") or ""
    config = find(reader, namespace, name)
    if config is None and not reference.get("optional"):
        raise InputError(not_found(name))
    return config
