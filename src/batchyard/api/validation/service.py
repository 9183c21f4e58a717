"""Rules of Services, as far as Jobs need them. Source: Kubernetes's pkg/apis/core/validation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults, metadata, names, pod_network

_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_AFFINITIES: Final = ("ClientIP", "None")


def service_faults(service: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a Service."""
    yield from metadata.metadata_faults(service)
    spec = service.get("spec") or {}
    kind, ports = spec.get("type") or "ClusterIP", spec.get("ports") or ()
    if kind not in _TYPES:
        yield faults.unsupported("spec.type", kind, _TYPES)
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != "None":
        yield faults.required("spec.ports", "", 'give a port, or set clusterIP: "None"')
    yield from _port_faults(ports)
    yield from metadata.label_faults(spec.get("selector"), "spec.selector")
    affinity = spec.get("sessionAffinity")
    if affinity and affinity not in _AFFINITIES:
        yield faults.unsupported("spec.sessionAffinity", affinity, _AFFINITIES)
    if kind == "ExternalName":
        yield from _external_name_faults(spec)
    else:
        yield from _address_faults(spec)


def _address_faults(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    """Addresses are IP addresses; that of the cluster may be none."""
    addresses = [("spec.clusterIP", spec.get("clusterIP"))]
    for field in ("clusterIPs", "externalIPs"):
        addresses += [(f"spec.{field}[{i}]", address) for i, address in enumerate(spec.get(field) or ())]
    for path, address in addresses:
        if address and address != "None":
            yield from pod_network.ip_faults(address, path)


def service_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed Service: its address stays."""
    yield from service_faults(new)
    before, after = ((obj.get("spec") or {}).get("clusterIP") for obj in (old, new))
    if before and after and before != after:
        yield faults.immutable("spec.clusterIP", after)


def _external_name_faults(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    """An external name is a name, and there is no address besides."""
    name, address = (spec.get("externalName") or "").removesuffix("."), spec.get("clusterIP")
    if not name:
        yield faults.required("spec.externalName", "", "give the name to resolve to")
    for message in names.dns_subdomain(name) if name else ():
        yield faults.invalid("spec.externalName", name, message, "give a host name, in lower case")
    if address and address != "None":
        message = "may not be set when `type` is 'ExternalName'"
        yield faults.forbidden("spec.clusterIP", message, "drop the address")


def _port_faults(ports: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    """Ports are ports; where there are several each has a name of its own, and no two are alike."""
    seen: dict[object, None] = {}
    for i, port in enumerate(ports):
        path, name, number = f"spec.ports[{i}]", port.get("name") or "", port.get("port", 0)
        protocol = port.get("protocol") or "TCP"
        if not name and len(ports) > 1:
            yield faults.required(f"{path}.name", "", "name each of several ports")
        for message in names.dns_label(name) if name else ():
            yield faults.invalid(f"{path}.name", name, message, "use lower case letters, digits and '-'")
        if name and name in seen:
            yield faults.duplicate(f"{path}.name", name, "give each port a name of its own")
        if not 1 <= number <= 65535:
            message = "must be between 1 and 65535, inclusive"
            yield faults.invalid(f"{path}.port", number, message, "give a port from 1 to 65535")
        if protocol not in _PROTOCOLS:
            yield faults.unsupported(f"{path}.protocol", protocol, _PROTOCOLS)
        if (number, protocol) in seen:
            yield faults.duplicate(path, {"port": number, "protocol": protocol}, "drop one of the two")
        seen |= {name: None, (number, protocol): None}
