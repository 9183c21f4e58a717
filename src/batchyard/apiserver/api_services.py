"""APIServices: the server that is responsible for a group and version.

The platform provides one for each group and version that it serves. An APIService that references a Service is stored,
but requests are not proxied to that Service: the platform serves only its own groups.
Source: k8s.io/kube-aggregator, pkg/registry/apiservice and pkg/controllers/autoregister.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.conversion import TimeLocations, times_of_metadata
from batchyard.api.meta import Obj, find_condition, with_condition, with_status
from batchyard.api.printing import cells
from batchyard.api.printing.cells import Column
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.crd.definitions import CONDITIONS
from batchyard.apiserver.crd.strategy import CustomStrategy
from batchyard.apiserver.crd.values import PRESERVES
from batchyard.apiserver.discovery import versions_by_group
from batchyard.apiserver.resources import Resource
from batchyard.base.instant import Instant

API_SERVICE: Final = "APIService.apiregistration.k8s.io"
_INFO: Final = ServedKind(
    API_SERVICE,
    "APIService",
    "apiregistration.k8s.io",
    ("v1",),
    "v1",
    "apiservices",
    "apiservice",
    has_status=True,
    categories=("api-extensions",),
)
_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "format": "int32"}
_SPEC: Final = {
    "type": "object",
    "required": ["groupPriorityMinimum", "versionPriority"],
    "properties": {
        "caBundle": _TEXT,
        "group": _TEXT,
        "groupPriorityMinimum": _NUMBER,
        "insecureSkipTLSVerify": {"type": "boolean"},
        "service": {
            "type": "object",
            "properties": {"name": _TEXT, "namespace": _TEXT, "port": {**_NUMBER, "default": 443}},
        },
        "version": _TEXT,
        "versionPriority": _NUMBER,
    },
}
_STATUS: Final = {"type": "object", "properties": {"conditions": CONDITIONS}, PRESERVES: True}
_SCHEMA: Final = {"type": "object", "required": ["spec"], "properties": {"spec": _SPEC, "status": _STATUS}}
_VERSION: Final = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _SCHEMA}}
_LABELS: Final = {"kube-aggregator.kubernetes.io/automanaged": "onstart"}
_AVAILABLE: Final = "Available"
#: Priority of the core group, as in Kubernetes; further groups count down from it.
_PRIORITY: Final = 18000
_VERSION_PRIORITY: Final = 15


class ApiServiceStrategy(CustomStrategy):
    """The strategy of APIServices."""

    def __init__(self) -> None:
        super().__init__(_INFO, [_VERSION])

    def _times(self) -> TimeLocations:
        return {**times_of_metadata(), "status": {"conditions": {"lastTransitionTime": {}}}}

    def columns(self, api_version: str) -> Sequence[Column]:
        """Return the table columns."""
        return Column("Name", format="name"), Column("Service"), Column("Available"), Column("Age")

    def cells(self, stored: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of an APIService."""
        service: Mapping[str, str] = stored["spec"].get("service") or {}
        named = f"{service.get('namespace', '')}/{service.get('name', '')}" if service else "Local"
        condition = find_condition(stored, _AVAILABLE) or {}
        return [stored["metadata"]["name"], named, str(condition.get("status", "Unknown")), cells.age(stored, now)]


def api_service_resource() -> Resource:
    """Return the resource of APIServices."""
    strategy = ApiServiceStrategy()
    return Resource(
        _INFO, strategy, ("status",), shape=strategy.shape, is_native=True, drops_unknown=True, is_adoptable=True
    )


def provided_services(served: Sequence[Resource], now: Instant) -> list[dict[str, Any]]:
    """Return an APIService for each served version of each group."""
    groups = versions_by_group(served)
    return [
        _provided(group, version, _PRIORITY - rank, _VERSION_PRIORITY - place, now)
        for rank, (group, versions) in enumerate(groups.items())
        for place, version in enumerate(versions)
    ]


def with_availability(service: Obj, names: Mapping[str, Any], now: Instant) -> Obj:
    """Set the Available condition from whether the platform serves the group and version; itself if unchanged."""
    is_served = service["metadata"]["name"] in names
    reason, message = (
        ("Local", "Local APIServices are always available")
        if is_served
        else ("NotProxied", "batchyard passes no requests on to other servers")
    )
    status = service.get("status") or {}
    known = status.get("conditions") or []
    reported = with_condition(known, type=_AVAILABLE, status=is_served, reason=reason, message=message, now=now)
    return service if reported is known else with_status(service, {**status, "conditions": reported})


def _provided(group: str, version: str, priority: int, version_priority: int, now: Instant) -> dict[str, Any]:
    name = f"{version}.{group}"
    spec = {"groupPriorityMinimum": priority, "version": version, "versionPriority": version_priority}
    service: Obj = {
        "apiVersion": _INFO.api_version,
        "kind": _INFO.kind,
        "metadata": {"name": name, "labels": _LABELS, "annotations": {well_known.PROVIDED: "true"}},
        "spec": {**spec, **({"group": group} if group else {})},
    }
    return dict(with_availability(service, {name: None}, now))


# --- kubernetes service ---
#
# The Service `kubernetes` and its endpoints, through which in-cluster clients find the API server.
#
# It has a cluster IP only if pods have their own network in which the server listens too; no other Service has one.
# Source: Kubernetes's pkg/controlplane/controller/kubernetesservice.


_NAME: Final = "kubernetes"
_KUBERNETES_SERVICE_LABELS: Final = {"component": "apiserver", "provider": "kubernetes"}
_OF_SERVICE: Final = {"kubernetes.io/service-name": _NAME}
_PORT: Final = 443


def own_service(address: str, port: int, *, is_secure: bool, among_pods: str = "") -> Sequence[Obj]:
    """Return the Service of a server at an address, and its endpoints, to create.

    `among_pods` is its address in the pod network; '' if it does not listen there.
    """
    name = "https" if is_secure else "http"
    reached = [{"name": name, "port": port, "protocol": "TCP"}]
    service_port = {"name": name, "port": _PORT, "protocol": "TCP", "targetPort": port}
    spec = {"type": "ClusterIP", "clusterIP": among_pods or "None"}
    family = f"IPv{ipaddress.ip_address(address).version}"
    endpoint = {"addresses": [address], "conditions": {"ready": True}}
    return [
        {
            **_service_object("v1", "Service", _KUBERNETES_SERVICE_LABELS),
            "spec": {**spec, "ports": [service_port], "sessionAffinity": "None"},
        },
        {
            **_service_object("v1", "Endpoints", {"endpointslice.kubernetes.io/skip-mirror": "true"}),
            "subsets": [{"addresses": [{"ip": address}], "ports": reached}],
        },
        {
            **_service_object("discovery.k8s.io/v1", "EndpointSlice", _OF_SERVICE),
            "addressType": family,
            "endpoints": [endpoint],
            "ports": reached,
        },
    ]


def _service_object(api_version: str, kind: str, labels: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": _NAME, "namespace": "default", "labels": labels}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
