"""Rules of Services, and of hosts and DNS in pods. Source: Kubernetes's pkg/apis/core/validation."""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import errors as faults
from batchyard.api.validation import metadata, names

# --- pod network ---
#
# Rules of host aliases and DNS configuration of pods, which become lines of files.
#
# Source: Kubernetes's pkg/apis/core/validation (ValidateHostAliases, validatePodDNSConfig).


_NAMESERVERS_MAX: Final = 3
_SEARCHES_MAX: Final = 32
_SEARCHES_LENGTH_MAX: Final = 2048
_HOST_REMEDY: Final = "give a host name, in lower case"


def host_faults(spec: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate host aliases and DNS."""
    for i, alias in enumerate(spec.get("hostAliases") or ()):
        at = f"{path}.hostAliases[{i}]"
        yield from ip_faults(alias.get("ip") or "", f"{at}.ip")
        for j, hostname in enumerate(alias.get("hostnames") or ()):
            for message in names.dns_subdomain(hostname):
                yield faults.invalid(f"{at}.hostnames[{j}]", hostname, message, _HOST_REMEDY)
    yield from _dns_faults(spec.get("dnsConfig"), spec.get("dnsPolicy"), f"{path}.dnsConfig")


def ip_faults(address: str, path: str) -> Iterator[FieldError]:
    """Validate an IP address without a zone and leading zeros."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        parsed = None
    if parsed is None or "%" in address:
        message = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        yield faults.invalid(path, address, message, "give an address such as 10.9.8.7")
    elif isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        message = "must not be an IPv4-mapped IPv6 address"
        yield faults.invalid(path, address, message, f"write {parsed.ipv4_mapped}")


def _dns_faults(config: Mapping[str, Any] | None, policy: str | None, path: str) -> Iterator[FieldError]:
    nameservers: Sequence[str] = (config or {}).get("nameservers") or ()
    if policy == "None" and not nameservers:
        missing = "at least one DNS nameserver" if config is not None else "`dnsConfig`"
        at = f"{path}.nameservers" if config is not None else path
        yield faults.required(at, f"must provide {missing} when `dnsPolicy` is None", "give a nameserver")
        return
    config = config or {}
    if len(nameservers) > _NAMESERVERS_MAX:
        message = f"must not have more than {_NAMESERVERS_MAX} nameservers"
        yield faults.invalid(f"{path}.nameservers", nameservers, message, "drop some")
    for i, address in enumerate(nameservers):
        yield from ip_faults(address, f"{path}.nameservers[{i}]")
    yield from _search_faults(config.get("searches") or (), f"{path}.searches")
    for i, option in enumerate(config.get("options") or ()):
        yield from _option_faults(option, f"{path}.options[{i}]")


def _search_faults(searches: Sequence[str], path: str) -> Iterator[FieldError]:
    if len(searches) > _SEARCHES_MAX:
        message = f"must not have more than {_SEARCHES_MAX} search paths"
        yield faults.invalid(path, searches, message, "drop some")
    if len(" ".join(searches).encode()) > _SEARCHES_LENGTH_MAX:
        message = f"must not have more than {_SEARCHES_LENGTH_MAX} characters (including spaces) in the search list"
        yield faults.invalid(path, searches, message, "drop some")
    for i, search in enumerate(searches):
        for message in names.search_domain(search.removesuffix(".")) if search != "." else ():
            yield faults.invalid(f"{path}[{i}]", search.removesuffix("."), message, _HOST_REMEDY)


def _option_faults(option: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """An option has a name. Name and value are single words in resolv.conf, which Kubernetes does not check."""
    if not option.get("name"):
        yield faults.required(path, "must not be empty", "name the option")
    for field in ("name", "value"):
        text = option.get(field) or ""
        if not names.is_word(text):
            message = "must not contain spaces or control characters"
            yield faults.invalid(f"{path}.{field}", text, message, "give one word")


_TYPES: Final = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
_AFFINITIES: Final = ("ClientIP", "None")


def service_faults(service: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Service."""
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
        yield faults.immutable("spec.clusterIP", after)


def _external_name_faults(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    """An external name is a DNS name, without a cluster IP."""
    name, address = (spec.get("externalName") or "").removesuffix("."), spec.get("clusterIP")
    if not name:
        yield faults.required("spec.externalName", "", "give the name to resolve to")
    for message in names.dns_subdomain(name) if name else ():
        yield faults.invalid("spec.externalName", name, message, "give a host name, in lower case")
    if address and address != "None":
        message = "may not be set when `type` is 'ExternalName'"
        yield faults.forbidden("spec.clusterIP", message, "drop the address")


def _port_faults(ports: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    """Ports are valid; several ports have unique names, and no two are equal."""
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
