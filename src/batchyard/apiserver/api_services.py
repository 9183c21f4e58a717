"""APIService objects (one for each served API group and version), and the API server's own Service `kubernetes`.

The platform provides an APIService for each group and version that it serves. An APIService that references a Service
is stored, but requests are not proxied to that Service: the platform serves only its own groups.
Source: k8s.io/kube-aggregator, pkg/registry/apiservice and pkg/controllers/autoregister.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.conversion import TimeLocations, metadata_time_locations
from batchyard.api.meta import Obj, find_condition, with_condition, with_status
from batchyard.api.printing import cells
from batchyard.api.printing.cells import Column
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.crd.definitions import CONDITIONS_SCHEMA
from batchyard.apiserver.crd.strategy import CustomStrategy
from batchyard.apiserver.crd.values import PRESERVE_UNKNOWN_FIELDS
from batchyard.apiserver.discovery import versions_by_group
from batchyard.apiserver.resources import Resource
from batchyard.base.instant import Instant

API_SERVICE: Final = "APIService.apiregistration.k8s.io"
_API_SERVICE_INFO: Final = ServedKind(
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
_STRING_SCHEMA: Final = {"type": "string"}
_INT32_SCHEMA: Final = {"type": "integer", "format": "int32"}
_SPEC_SCHEMA: Final = {
    "type": "object",
    "required": ["groupPriorityMinimum", "versionPriority"],
    "properties": {
        "caBundle": _STRING_SCHEMA,
        "group": _STRING_SCHEMA,
        "groupPriorityMinimum": _INT32_SCHEMA,
        "insecureSkipTLSVerify": {"type": "boolean"},
        "service": {
            "type": "object",
            "properties": {
                "name": _STRING_SCHEMA,
                "namespace": _STRING_SCHEMA,
                "port": {**_INT32_SCHEMA, "default": 443},
            },
        },
        "version": _STRING_SCHEMA,
        "versionPriority": _INT32_SCHEMA,
    },
}
_STATUS: Final = {"type": "object", "properties": {"conditions": CONDITIONS_SCHEMA}, PRESERVE_UNKNOWN_FIELDS: True}
_SCHEMA: Final = {"type": "object", "required": ["spec"], "properties": {"spec": _SPEC_SCHEMA, "status": _STATUS}}
_V1_DEFINITION: Final = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _SCHEMA}}
_PROVIDED_SERVICE_LABELS: Final = {"kube-aggregator.kubernetes.io/automanaged": "onstart"}
_AVAILABLE: Final = "Available"
#: Priority of the core group, as in Kubernetes; further groups count down from it.
_CORE_GROUP_PRIORITY: Final = 18000
_VERSION_PRIORITY: Final = 15


class ApiServiceStrategy(CustomStrategy):
    """The kind-specific API logic of APIServices: schema, time fields and table columns."""

    def __init__(self) -> None:
        super().__init__(_API_SERVICE_INFO, [_V1_DEFINITION])

    def _time_locations(self) -> TimeLocations:
        return {**metadata_time_locations(), "status": {"conditions": {"lastTransitionTime": {}}}}

    def columns(self, api_version: str) -> Sequence[Column]:
        """Return the table columns of APIServices."""
        return Column("Name", format="name"), Column("Service"), Column("Available"), Column("Age")

    def cells(self, stored_object: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of an APIService."""
        service: Mapping[str, str] = stored_object["spec"].get("service") or {}
        service_name = f"{service.get('namespace', '')}/{service.get('name', '')}" if service else "Local"
        status = str((find_condition(stored_object, _AVAILABLE) or {}).get("status", "Unknown"))
        return [stored_object["metadata"]["name"], service_name, status, cells.age_text(stored_object, now)]


def api_service_resource() -> Resource:
    """Return the resource `apiservices` as the API server serves it."""
    strategy = ApiServiceStrategy()
    resource = Resource(_API_SERVICE_INFO, strategy, ("status",), merge_schema=strategy.merge_schema, is_native=True)
    return resource._replace(prunes_unknown=True, is_adoptable=True)


def provided_api_services(resources: Sequence[Resource], now: Instant) -> list[dict[str, Any]]:
    """Return an APIService for each served version of each group."""
    versions_of_groups = versions_by_group(resources)
    return [
        _provided_api_service(
            group, version, _CORE_GROUP_PRIORITY - group_index, _VERSION_PRIORITY - version_index, now
        )
        for group_index, (group, versions) in enumerate(versions_of_groups.items())
        for version_index, version in enumerate(versions)
    ]


def with_available_condition(api_service: Obj, served_names: Mapping[str, Any], now: Instant) -> Obj:
    """Return an APIService with the Available condition: true if its name is among those that the platform serves.

    The APIService itself is returned if it already has this condition.
    """
    is_served = api_service["metadata"]["name"] in served_names
    if not is_served and api_service["spec"].get("service"):
        return api_service  # the checks of aggregated APIs write the condition
    reason, message = (
        ("Local", "Local APIServices are always available")
        if is_served
        else ("NotServed", "batchyard does not serve this group and version, and the APIService names no Service")
    )
    status = api_service.get("status") or {}
    old_conditions = status.get("conditions") or []
    conditions = with_condition(
        old_conditions, type=_AVAILABLE, status=is_served, reason=reason, message=message, now=now
    )
    return (
        api_service if conditions is old_conditions else with_status(api_service, {**status, "conditions": conditions})
    )


def _provided_api_service(
    group: str, version: str, priority: int, version_priority: int, now: Instant
) -> dict[str, Any]:
    name = f"{version}.{group}"
    spec = {"groupPriorityMinimum": priority, "version": version, "versionPriority": version_priority}
    service: Obj = {
        "apiVersion": _API_SERVICE_INFO.api_version,
        "kind": _API_SERVICE_INFO.kind,
        "metadata": {"name": name, "labels": _PROVIDED_SERVICE_LABELS, "annotations": {well_known.PROVIDED: "true"}},
        "spec": {**spec, **({"group": group} if group else {})},
    }
    return dict(with_available_condition(service, {name: None}, now))


# The Service `kubernetes` and its endpoints, through which in-cluster clients find the API server.
#
# Source: Kubernetes's pkg/controlplane/controller/kubernetesservice.


_SERVICE_NAME: Final = "kubernetes"
_KUBERNETES_SERVICE_LABELS: Final = {"component": "apiserver", "provider": "kubernetes"}
_ENDPOINT_SLICE_LABELS: Final = {"kubernetes.io/service-name": _SERVICE_NAME}
_SERVICE_PORT: Final = 443


def kubernetes_service_objects(address: str, port: int, *, is_https: bool, cluster_ip: str = "") -> Sequence[Obj]:
    """Return the Service `kubernetes`, its Endpoints and EndpointSlice, for a server at an address.

    Without a cluster IP ('') the Service is headless.
    """
    name = "https" if is_https else "http"
    endpoint_ports = [{"name": name, "port": port, "protocol": "TCP"}]
    service_port = {"name": name, "port": _SERVICE_PORT, "protocol": "TCP", "targetPort": port}
    spec = {
        "type": "ClusterIP",
        "clusterIP": cluster_ip or "None",
        "clusterIPs": [cluster_ip or "None"],
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster",
    }
    address_family = f"IPv{ipaddress.ip_address(address).version}"
    endpoint = {"addresses": [address], "conditions": {"ready": True}}
    return [
        {
            **_service_object("v1", "Service", _KUBERNETES_SERVICE_LABELS),
            "spec": {**spec, "ports": [service_port], "sessionAffinity": "None"},
        },
        {
            **_service_object("v1", "Endpoints", {"endpointslice.kubernetes.io/skip-mirror": "true"}),
            "subsets": [{"addresses": [{"ip": address}], "ports": endpoint_ports}],
        },
        {
            **_service_object("discovery.k8s.io/v1", "EndpointSlice", _ENDPOINT_SLICE_LABELS),
            "addressType": address_family,
            "endpoints": [endpoint],
            "ports": endpoint_ports,
        },
    ]


def _service_object(api_version: str, kind: str, labels: dict[str, str]) -> dict[str, Any]:
    metadata = {"name": _SERVICE_NAME, "namespace": "default", "labels": labels}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
