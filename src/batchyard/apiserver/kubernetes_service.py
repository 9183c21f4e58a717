"""The Service `kubernetes` and its endpoints, through which in-cluster clients find the API server.

It has a cluster IP only if pods have their own network in which the server listens too; no other Service has one.
Source: Kubernetes's pkg/controlplane/controller/kubernetesservice.
"""

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

from batchyard.api.meta import Obj

_NAME: Final = "kubernetes"
_LABELS: Final = {"component": "apiserver", "provider": "kubernetes"}
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
            **_service_object("v1", "Service", _LABELS),
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
