"""The addresses of Services that webhooks name: endpoints, pods of this machine, or a process of this machine.

Source: k8s.io/apiserver, pkg/util/proxy/proxy.go (ResolveEndpoint).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, parse_selector
from batchyard.api.views.pods import is_ready, is_terminal, is_terminating
from batchyard.apiserver.admission.reviews import WebhookCallError
from batchyard.interfaces.client import ObjectReader

#: The address of processes of this machine that serve a Service without pods and endpoints.
_LOOPBACK: Final = "127.0.0.1"
_SERVICE_TYPES: Final = ("ClusterIP", "NodePort", "LoadBalancer")


class EndpointAddress(NamedTuple):
    """A TCP address, and whether only the pod network of this machine reaches it."""

    host: str
    port: int
    in_pod_network: bool = False


def resolve_service(objects: ObjectReader, namespace: str, name: str, port: int) -> EndpointAddress:
    """Return the address of a ready endpoint of a Service.

    The endpoints are those of the Service's Endpoints object, else the ready pods that its selector selects. Without
    both, a process of this machine serves the Service at the target port, which must be a number.
    Raises WebhookCallError if the Service or its port does not exist, or if no endpoint is ready.
    """
    service = objects.get(Key(scheme.SERVICE, namespace, name))
    if service is None:
        raise WebhookCallError(f'service "{name}" not found')
    spec: Mapping[str, Any] = service.get("spec") or {}
    service_type = spec.get("type", "ClusterIP")
    if service_type not in _SERVICE_TYPES:
        raise WebhookCallError(f'unsupported service type "{service_type}"')
    service_port = next((each for each in spec.get("ports") or () if each["port"] == port), None)
    if service_port is None:
        raise WebhookCallError(f'no service port {port} found for service "{name}"')
    endpoints = objects.get(Key(scheme.ENDPOINTS, namespace, name))
    if endpoints is not None and endpoints.get("subsets"):
        addresses = _endpoint_addresses(endpoints, service_port)
    elif pods := _selected_pods(objects, namespace, spec):
        addresses = _pod_addresses(pods, spec, service_port)
    else:
        target_port = service_port.get("targetPort") or port
        addresses = iter([EndpointAddress(_LOOPBACK, target_port)] if isinstance(target_port, int) else ())
    address = next(addresses, None)
    if address is None:
        raise WebhookCallError(f'no endpoints available for service "{name}"')
    return address


def _endpoint_addresses(endpoints: Obj, service_port: Mapping[str, Any]) -> Iterator[EndpointAddress]:
    for subset in endpoints["subsets"]:
        for endpoint_port in subset.get("ports") or ():
            if endpoint_port.get("name", "") == service_port.get("name", ""):
                for address in subset.get("addresses") or ():
                    yield EndpointAddress(address["ip"], endpoint_port["port"], _is_pod_address(address))


def _is_pod_address(address: Mapping[str, Any]) -> bool:
    return bool((address.get("targetRef") or {}).get("kind") == "Pod")


def _selected_pods(objects: ObjectReader, namespace: str, spec: Mapping[str, Any]) -> Sequence[Obj]:
    """Return the pods that a Service selects and that have not ended."""
    selector = parse_selector({"matchLabels": spec["selector"]}) if spec.get("selector") else None
    if selector is None:
        return ()
    return [
        pod
        for pod in objects.list(scheme.POD, namespace)
        if selector.matches(pod["metadata"].get("labels") or {}) and not is_terminal(pod) and not is_terminating(pod)
    ]


def _pod_addresses(
    pods: Sequence[Obj], spec: Mapping[str, Any], service_port: Mapping[str, Any]
) -> Iterator[EndpointAddress]:
    for pod in pods:
        address, port = (pod.get("status") or {}).get("podIP"), _target_port(pod, service_port)
        if address and port is not None and (is_ready(pod) or spec.get("publishNotReadyAddresses")):
            yield EndpointAddress(address, port, not pod["spec"].get("hostNetwork"))


def _target_port(pod: Obj, service_port: Mapping[str, Any]) -> int | None:
    target_port = service_port.get("targetPort") or service_port["port"]
    if isinstance(target_port, int):
        return target_port
    container_ports = (port for container in pod["spec"]["containers"] for port in container.get("ports") or ())
    return next((port["containerPort"] for port in container_ports if port.get("name") == target_port), None)
