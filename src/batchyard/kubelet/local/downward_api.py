"""Downward API: fields of the pod and its node for containers.

Sources: pkg/fieldpath; pkg/kubelet/kubelet_pods.go (podFieldSelectorRuntimeValue); pkg/api/v1/resource (divisors, and
the defaults of unset limits); k8s.io/component-helpers nodeaddresses (GetNodeHostIPs).
"""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import quantity, scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.validation import names
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.errors import InputError, quoted

#: Limits that default to the node's allocatable amount.
_DEFAULTED: Final = ("cpu", "memory", "ephemeral-storage")


class PodFields(NamedTuple):
    """A pod, its addresses, and its node."""

    pod: Obj
    #: The pod's addresses, the primary one first; empty if it has none yet.
    addresses: Sequence[str]
    #: None if the node does not exist.
    node: Obj | None


def pod_fields_of(pod: Obj, addresses: Sequence[str], reader: Reader) -> PodFields:
    """Return the fields' sources for a bound pod."""
    return PodFields(pod, addresses, reader.get(Key(scheme.NODE, "", pod["spec"].get("nodeName") or "")))


# --- fields ---


def variable_of_field(facts: PodFields, path: str) -> str:
    """Return a field as the value of an environment variable. InputError if it is not supported."""
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
    """Return a metadata field as text, as in files. InputError if it is not supported."""
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
    wrong = names.qualified_name(key.lower() if field == "metadata.annotations" else key)
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
    """Return a container's request or limit in units of the divisor, rounded up. InputError if it is not supported.

    `own` is the container to use if the selector names none. An unset limit defaults to the smaller of the pod's limit
    and the node's allocatable amount.
    """
    resource: str = selector["resource"]
    kind, _, name = resource.partition(".")
    is_known = name in _DEFAULTED or name.startswith("hugepages-")
    if kind not in {"limits", "requests"} or not is_known:
        raise InputError(f"unsupported container resource : {resource}")
    container = _container(facts.pod, selector.get("containerName") or own)
    amounts: Mapping[str, Any] = (container.get("resources") or {}).get(kind) or {}
    nano = quantity.parse(amounts.get(name) or "0")
    if kind == "limits" and not nano and name in _DEFAULTED:
        nano = _ceiling(facts, name)
    unit = 1_000_000 if name == "cpu" else quantity.NANO
    divisor = quantity.parse(selector.get("divisor") or "1") or quantity.NANO
    return str(-(-_whole(nano, unit) // _whole(divisor, unit)))


def _ceiling(facts: PodFields, name: str) -> int:
    """Return the default of an unset limit, in billionths; 0 if unknown."""
    allocatable: Mapping[str, Any] = ((facts.node or {}).get("status") or {}).get("allocatable") or {}
    pods_own: Mapping[str, Any] = (facts.pod["spec"].get("resources") or {}).get("limits") or {}
    known = [quantity.parse(amounts[name]) for amounts in (allocatable, pods_own) if name in amounts]
    return min((nano for nano in known if nano), default=0)


def _whole(nano: int, unit: int) -> int:
    return -(-nano // unit)


def _container(pod: Obj, name: str) -> Mapping[str, Any]:
    spec = pod["spec"]
    for container in [*spec["containers"], *(spec.get("initContainers") or ())]:
        if container["name"] == name:
            return container  # type: ignore[no-any-return]
    raise InputError(f"container {name} not found")
