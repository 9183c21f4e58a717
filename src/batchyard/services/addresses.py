"""Cluster IPs and node ports of Services: allocation when a Service is created or changes its type.

The platform has one IPv4 range of cluster IPs. An allocation reads the stored Services, so a deleted Service frees its
addresses at once. Sources: pkg/registry/core/service of Kubernetes (storage/alloc.go, storage/storage.go, ipallocator,
portallocator).
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from ipaddress import IPv4Network, ip_address
from typing import Any, Final

from batchyard.api import meta, scheme
from batchyard.api.errors import ApiError, InvalidObject
from batchyard.api.validation import rules
from batchyard.api.well_known import DEFAULT_SERVICE_CIDR, POD_GATEWAY
from batchyard.interfaces.client import ObjectReader

_NODE_PORTS: Final = range(30000, 32768)
_EXTERNAL_NAME, _LOAD_BALANCER, _NONE = "ExternalName", "LoadBalancer", "None"
_NODE_PORT_TYPES: Final = frozenset({"NodePort", _LOAD_BALANCER})
_API_SERVICE: Final = meta.Key(scheme.SERVICE, "default", "kubernetes")
_IP_REMEDY: Final = "omit clusterIP to get a free address"
_PORT_REMEDY: Final = "omit nodePort to get a free port"
_FAMILY_REMEDY: Final = "use the IPv4 family and the policy SingleStack or PreferDualStack"


class ServiceAddresses:
    """The range of cluster IPs, such as `10.96.0.0/16`; its first address belongs to the API server's Service."""

    def __init__(self, cidr: str = DEFAULT_SERVICE_CIDR) -> None:
        """Create the range; raise ValueError unless `cidr` is an IPv4 network of 4 to 2^20 addresses."""
        self._network = IPv4Network(cidr)
        if not 12 <= self._network.prefixlen <= 30:
            raise ValueError(
                f"the prefix length of the service CIDR must be 12 to 30, but is {self._network.prefixlen}"
            )

    def complete_new(self, service: meta.Obj, reader: ObjectReader) -> meta.Obj:
        """Return a new Service with IP families, cluster IP and node ports. Raises InvalidObject for unusable ones."""
        spec = dict(service["spec"])
        if spec.get("clusterIP") and not spec.get("clusterIPs"):
            spec["clusterIPs"] = [spec["clusterIP"]]
        _check_cluster_ips(spec)
        self._set_families(spec)
        self._set_cluster_ip(spec, service, reader)
        _set_node_ports(spec, (), service, reader)
        return {**service, "spec": spec}

    def complete_update(self, new: meta.Obj, old: meta.Obj, reader: ObjectReader) -> meta.Obj:
        """Return an updated Service with the addresses of the old one as far as its type has them, else new ones."""
        spec, old_spec = dict(new["spec"]), old["spec"]
        _keep_addresses(spec, old_spec)
        if any(spec.get(field) != old_spec.get(field) for field in ("type", "clusterIP", "clusterIPs")):
            _check_cluster_ips(spec)  # unless an older release stored them
        _keep_node_ports(spec, old_spec)
        self._set_families(spec)
        # A former ExternalName owns no address, whatever its clusterIP says.
        if not old_spec.get("clusterIP") or old_spec.get("type") == _EXTERNAL_NAME:
            self._set_cluster_ip(spec, new, reader)
        old_ports = [port["nodePort"] for port in old_spec.get("ports") or () if port.get("nodePort")]
        _set_node_ports(spec, [*old_ports, old_spec.get("healthCheckNodePort")], new, reader)
        return new if spec == new["spec"] else {**new, "spec": spec}

    def _set_families(self, spec: dict[str, Any]) -> None:
        if spec.get("type") == _EXTERNAL_NAME:
            return
        is_open = spec.get("clusterIP") == _NONE and not spec.get("selector")
        policy = spec.setdefault("ipFamilyPolicy", "RequireDualStack" if is_open else "SingleStack")
        families: Sequence[str] = spec.get("ipFamilies") or ()
        if is_open:
            first = families[0] if families else "IPv4"
            both = [first, "IPv6" if first == "IPv4" else "IPv4"]
            spec["ipFamilies"] = list(families) if len(families) > 1 or policy == "SingleStack" else both
            spec["ipFamilies"] = spec["ipFamilies"] or ["IPv4"]
            return
        errors = []
        if policy == "RequireDualStack":
            message = "this cluster is not configured for dual-stack services"
            errors.append(rules.invalid("spec.ipFamilyPolicy", policy, message, _FAMILY_REMEDY))
        for index, family in enumerate(families):
            if family != "IPv4":
                path = f"spec.ipFamilies[{index}]"
                errors.append(rules.invalid(path, family, "not configured on this cluster", _FAMILY_REMEDY))
        if errors:
            raise InvalidObject(errors)
        spec["ipFamilies"] = ["IPv4"]

    # Cluster IPs.

    def _set_cluster_ip(self, spec: dict[str, Any], service: meta.Obj, reader: ObjectReader) -> None:
        if spec.get("type") == _EXTERNAL_NAME:
            return
        given = spec.get("clusterIP") or ""
        is_own = meta.key_of(service) == _API_SERVICE and given in {str(self._network[1]), POD_GATEWAY}
        if given != _NONE and not is_own:
            used = set(_used_ips(service, reader))
            given = self._checked(given, used) if given else self._free_ip(used, service)
        spec["clusterIP"], spec["clusterIPs"] = given, [given]

    def _checked(self, address: str, used: set[str]) -> str:
        parsed = ip_address(address)
        problem = ""
        if parsed not in self._network or parsed in {self._network[0], self._network[-1]}:
            valid = f"The range of valid IPs is {self._network}"
            problem = f"the provided IP ({address}) is not in the valid range. {valid}"
        elif address in used or parsed == self._network[1]:
            problem = "provided IP is already allocated"
        if problem:
            message = f"failed to allocate IP {address}: {problem}"
            raise InvalidObject([rules.invalid("spec.clusterIPs", [address], message, _IP_REMEDY)])
        return address

    def _free_ip(self, used: set[str], service: meta.Obj) -> str:
        """Return a free address, of the upper part of the range if possible: users choose from the lower part."""
        count = self._network.num_addresses - 2
        static_count = _static_band(count, 16, 256)
        for start, end in ((max(1, static_count), count), (1, static_count)):
            for number in _rotated(start, end, service):
                address = str(self._network[number + 1])
                if address not in used:
                    return address
        name = service["metadata"].get("name", "")
        raise ApiError(f'Internal error occurred: failed to allocate a serviceIP for Service "{name}": range is full')


def _static_band(size: int, divisor: int, maximum: int) -> int:
    return min(max(16, size // divisor), maximum) if size > 16 else 0


def _rotated(start: int, end: int, service: meta.Obj) -> Iterator[int]:
    """Yield the numbers from `start` to `end`, starting at one that the uid of the Service determines."""
    size = end - start
    if size > 0:
        digest = sha256(str(service["metadata"].get("uid")).encode()).digest()
        first = int.from_bytes(digest[:8]) % size
        yield from (start + (first + index) % size for index in range(size))


def _other_services(service: meta.Obj, reader: ObjectReader) -> Iterator[Mapping[str, Any]]:
    key = meta.key_of(service)
    return (each["spec"] for each in reader.list(scheme.SERVICE) if meta.key_of(each) != key)


def _used_ips(service: meta.Obj, reader: ObjectReader) -> Iterator[str]:
    return (spec["clusterIP"] for spec in _other_services(service, reader) if spec.get("clusterIP"))


def _keep_addresses(spec: dict[str, Any], old_spec: Mapping[str, Any]) -> None:
    """Keep the addresses of the old spec, or remove them if the Service has become an ExternalName.

    A client that knows only clusterIP changes clusterIPs with it.
    """
    ip, old_ip = spec.get("clusterIP") or "", old_spec.get("clusterIP") or ""
    addresses, old_addresses = spec.get("clusterIPs") or [], old_spec.get("clusterIPs") or []
    if ip != old_ip and addresses == old_addresses:
        addresses = spec["clusterIPs"] = [ip] if ip else []
    if spec.get("type") == _EXTERNAL_NAME:
        if ip in {"", old_ip} and (not addresses or addresses == old_addresses):
            for field in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
                spec.pop(field, None)
        return
    if old_spec.get("type") == _EXTERNAL_NAME:
        if ip and not addresses:
            spec["clusterIPs"] = [ip]
        return
    for field in ("clusterIP", "ipFamilyPolicy"):
        if not spec.get(field) and old_spec.get(field):
            spec[field] = old_spec[field]
    if spec.get("clusterIP") == old_spec.get("clusterIP") and not spec.get("ipFamilies") and old_spec.get("ipFamilies"):
        spec["ipFamilies"] = old_spec["ipFamilies"]
    if spec.get("clusterIP") and not spec.get("clusterIPs"):
        spec["clusterIPs"] = old_addresses if ip in {"", old_ip} and old_addresses else [spec["clusterIP"]]


def _check_cluster_ips(spec: Mapping[str, Any]) -> None:
    """Raise InvalidObject unless clusterIPs has clusterIP only, and the type of the Service can have it.

    Source: ValidateServiceClusterIPsRelatedFields of pkg/apis/core/validation.
    """
    ip, addresses, kind = spec.get("clusterIP") or "", spec.get("clusterIPs") or [], spec.get("type")
    if kind == _EXTERNAL_NAME:
        return
    path, value, problem = "spec.clusterIPs", addresses, ""
    if not ip and addresses:
        problem = "must be empty when `clusterIP` is not specified"
    elif ip and addresses[0] != ip:
        problem = "first value must match `clusterIP`"
    elif ip == _NONE and len(addresses) > 1:
        problem = "'None' must be the first and only value"
    elif ip == _NONE and kind in _NODE_PORT_TYPES:
        path, value, problem = f"{path}[0]", ip, f"may not be set to 'None' for {kind} services"
    elif len(addresses) > 2:
        problem = "may only hold up to 2 values"
    elif len(addresses) == 2 and (":" in addresses[0]) == (":" in addresses[1]):
        problem = "may specify no more than one IP for each IP family"
    elif len(addresses) == 2:
        path, problem = f"{path}[1]", "IPv6 is not configured on this cluster"
    if problem:
        raise InvalidObject([rules.invalid(path, value, problem, _IP_REMEDY)])


# Node ports.


def _keep_node_ports(spec: dict[str, Any], old_spec: Mapping[str, Any]) -> None:
    """Keep the node ports of the old spec, or remove them if the type of the Service has no node ports any more."""
    old_ports: Sequence[Mapping[str, Any]] = old_spec.get("ports") or ()
    ports: Sequence[Mapping[str, Any]] = spec.get("ports") or ()
    if old_spec.get("type") not in _NODE_PORT_TYPES:
        return
    if spec.get("type") not in _NODE_PORT_TYPES:
        old_numbers = {port.get("nodePort") for port in old_ports}
        if all(port.get("nodePort") in {None, 0, *old_numbers} for port in ports):
            spec["ports"] = [{name: value for name, value in port.items() if name != "nodePort"} for port in ports]
        for field in ("healthCheckNodePort", "externalTrafficPolicy", "allocateLoadBalancerNodePorts"):
            spec.pop(field, None)
        return
    known = {(port.get("protocol"), port["port"]): port["nodePort"] for port in old_ports if port.get("nodePort")}
    used = {port.get("nodePort") for port in ports}
    kept: list[Mapping[str, Any]] = []
    for port in ports:
        number = known.get((port.get("protocol"), port["port"]))
        is_kept = not port.get("nodePort") and number is not None and number not in used
        kept.append({**port, "nodePort": number} if is_kept else port)
    spec["ports"] = kept
    if needs_health_check(old_spec) and needs_health_check(spec) and old_spec.get("healthCheckNodePort"):
        spec.setdefault("healthCheckNodePort", old_spec["healthCheckNodePort"])


def needs_health_check(spec: Mapping[str, Any]) -> bool:
    """Return whether a Service has a node port for health checks: a load balancer with local traffic only."""
    return spec.get("type") == _LOAD_BALANCER and spec.get("externalTrafficPolicy") == "Local"


def _set_node_ports(
    spec: dict[str, Any], own_ports: Sequence[int | None], service: meta.Obj, reader: ObjectReader
) -> None:
    if spec.get("type") not in _NODE_PORT_TYPES:
        return
    used = set(_used_ports(service, reader))
    allocates = spec["type"] != _LOAD_BALANCER or spec.get("allocateLoadBalancerNodePorts") is not False
    # Ports with the same number and other protocols share a node port.
    numbers: dict[int, int] = {}
    for port in spec.get("ports") or ():
        if port.get("nodePort"):
            numbers.setdefault(port["port"], port["nodePort"])
    ports: list[Mapping[str, Any]] = []
    for index, port in enumerate(spec.get("ports") or ()):
        number = port.get("nodePort") or (numbers.get(port["port"]) if allocates else 0)
        if number and number not in own_ports:
            _check_node_port(number, used, f"spec.ports[{index}].nodePort")
        elif not number and allocates:
            number = numbers[port["port"]] = _free_node_port({*used, *numbers.values()}, service)
        ports.append({**port, "nodePort": number} if number else port)
    spec["ports"] = ports
    if needs_health_check(spec):
        number = spec.get("healthCheckNodePort")
        if number and number not in own_ports:
            _check_node_port(number, used, "spec.healthCheckNodePort")
        spec["healthCheckNodePort"] = number or _free_node_port({*used, *numbers.values()}, service)


def _used_ports(service: meta.Obj, reader: ObjectReader) -> Iterator[int]:
    for spec in _other_services(service, reader):
        yield from (port["nodePort"] for port in spec.get("ports") or () if port.get("nodePort"))
        if spec.get("healthCheckNodePort"):
            yield spec["healthCheckNodePort"]


def _check_node_port(number: int, used: set[int], path: str) -> None:
    problem = ""
    if number not in _NODE_PORTS:
        valid = f"{_NODE_PORTS.start}-{_NODE_PORTS.stop - 1}"
        problem = f"provided port is not in the valid range. The range of valid ports is {valid}"
    elif number in used:
        problem = "provided port is already allocated"
    if problem:
        raise InvalidObject([rules.invalid(path, number, problem, _PORT_REMEDY)])


def _free_node_port(used: set[int], service: meta.Obj) -> int:
    static_count = _static_band(len(_NODE_PORTS), 32, 128)
    for start, end in ((static_count, len(_NODE_PORTS)), (0, static_count)):
        for index in _rotated(start, end, service):
            if _NODE_PORTS[index] not in used:
                return _NODE_PORTS[index]
    raise ApiError("Internal error occurred: failed to allocate a nodePort: range is full")
