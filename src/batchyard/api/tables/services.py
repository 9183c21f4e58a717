"""Cells of Services and of what leads to them. Source: Kubernetes's pkg/printers/internalversion."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.api.tables.cells import NONE, PENDING, text, value
from batchyard.base.instant import Instant

#: How many addresses or hosts a cell names.
_SHOWN: Final = 3


def type_of(obj: Obj, _now: Instant) -> str:
    """The type of a Service."""
    return value(obj, "spec", "type") or "ClusterIP"


def cluster_ip(obj: Obj, _now: Instant) -> str:
    """Where a Service is reached from inside."""
    given = value(obj, "spec", "clusterIPs") or [value(obj, "spec", "clusterIP")]
    return given[0] or NONE


def external_ip(obj: Obj, now: Instant) -> str:
    """Where a Service is reached from outside."""
    external = list(value(obj, "spec", "externalIPs") or ())
    match type_of(obj, now):
        case "LoadBalancer":
            return ",".join([*_load_balancers(obj), *external]) or PENDING
        case "ExternalName":
            return text(value(obj, "spec", "externalName"))
    return ",".join(external) or NONE


def ports(obj: Obj, _now: Instant) -> str:
    """The ports of a Service, with those of nodes."""
    return ",".join(map(_port, value(obj, "spec", "ports") or ())) or NONE


def endpoints(obj: Obj, _now: Instant) -> str:
    """The first addresses behind a Service, with their ports, and how many more there are."""
    found = [
        f"{address['ip']}:{port['port']}" if port else str(address["ip"])
        for subset in obj.get("subsets") or ()
        for port in subset.get("ports") or [{}]
        for address in subset.get("addresses") or ()
    ]
    return _some(found)


def slice_ports(obj: Obj, _now: Instant) -> str:
    """The ports of an EndpointSlice."""
    found = obj.get("ports")
    if found is None:
        return "<unset>"
    return _some([str(port.get("port", "*")) for port in found])


def slice_endpoints(obj: Obj, _now: Instant) -> str:
    """The addresses of an EndpointSlice."""
    found = obj.get("endpoints")
    if found is None:
        return "<unset>"
    return _some([str(address) for endpoint in found for address in endpoint.get("addresses") or ()])


def hosts(obj: Obj, _now: Instant) -> str:
    """The hosts of an Ingress, the first of them by name."""
    rules = value(obj, "spec", "rules") or ()
    return _first([rule["host"] for rule in rules[:_SHOWN] if rule.get("host")], len(rules)) or "*"


def addresses(obj: Obj, _now: Instant) -> str:
    """Where an Ingress is reached."""
    return ",".join(_load_balancers(obj))


def _first(found: Sequence[str], of: int) -> str:
    """The first few of many."""
    told = ",".join(found[:_SHOWN])
    return f"{told} + {of - _SHOWN} more..." if told and of > _SHOWN else told


def _some(found: Sequence[str]) -> str:
    """The first three of a list, and how many more there are."""
    more = f" + {len(found) - _SHOWN} more..." if len(found) > _SHOWN else ""
    return ",".join(found[:_SHOWN]) + more or NONE


def _load_balancers(obj: Obj) -> list[str]:
    ingress = value(obj, "status", "loadBalancer", "ingress") or ()
    return sorted(dict.fromkeys(point.get("ip") or point["hostname"] for point in ingress))


def _port(port: Mapping[str, Any]) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port['port']}{node_port}/{port.get('protocol', 'TCP')}"
