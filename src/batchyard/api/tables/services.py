"""Cells of Services. Source: Kubernetes's pkg/printers/internalversion."""

from collections.abc import Mapping
from typing import Any

from batchyard.api.meta import Obj
from batchyard.api.tables.cells import NONE, PENDING, text, value
from batchyard.base.instant import Instant


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


def _load_balancers(obj: Obj) -> list[str]:
    ingress = value(obj, "status", "loadBalancer", "ingress") or ()
    return sorted(dict.fromkeys(point.get("ip") or point["hostname"] for point in ingress))


def _port(port: Mapping[str, Any]) -> str:
    node_port = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port['port']}{node_port}/{port.get('protocol', 'TCP')}"
