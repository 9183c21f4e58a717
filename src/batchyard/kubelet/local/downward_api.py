"""What a container may know of its pod and of its node: the downward API.

Sources: pkg/fieldpath; pkg/kubelet/kubelet_pods.go (podFieldSelectorRuntimeValue); pkg/api/v1/resource (divisors, and
what stands in for a limit that is not set); k8s.io/component-helpers nodeaddresses (GetNodeHostIPs).
"""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import quantity, scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.validation import names
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.errors import InputError, quoted

#: Limits for which what the node has stands in.
_DEFAULTED: Final = ("cpu", "memory", "ephemeral-storage")


class Facts(NamedTuple):
    """A pod, the addresses it was given, and its node."""

    pod: Obj
    #: The pod's own, the first one its main one; none where it has none yet.
    addresses: Sequence[str]
    #: None where there is no such object.
    node: Obj | None


def facts_of(pod: Obj, addresses: Sequence[str], reader: Reader) -> Facts:
    """What is known of a pod that is bound."""
    return Facts(pod, addresses, reader.get(Key(scheme.NODE, "", pod["spec"].get("nodeName") or "")))


# --- fields ---


def variable_of_field(facts: Facts, path: str) -> str:
    """The value of a variable that is a field; InputError if it can be none."""
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
    """A field of the metadata as text, as files have it; InputError if it can be none."""
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
    """`metadata.labels['x']` as its field and what stands between the quotes."""
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
    """The addresses of a node: its first one, and the first of the other family."""
    listed: Sequence[Mapping[str, str]] = ((node or {}).get("status") or {}).get("addresses") or ()
    found = [a["address"] for kind in ("InternalIP", "ExternalIP") for a in listed if a["type"] == kind]
    if not found:
        raise InputError("host IP unknown; known addresses: []")
    versions = [ipaddress.ip_address(address).version for address in found]
    return [found[0], *[a for a, version in zip(found, versions, strict=True) if version != versions[0]][:1]]


# --- resources ---


def text_of_resource(facts: Facts, selector: Mapping[str, Any], own: str = "") -> str:
    """What a container requests or is limited to, in units of the divisor, rounded up; InputError if it can be none.

    `own` is the container that is meant where the selector names none. Where it has no limit its pod's stands in, or
    all that pods may have of the node.
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


def _ceiling(facts: Facts, name: str) -> int:
    """What stands in for a limit, in billionths; 0 where nothing is known."""
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
