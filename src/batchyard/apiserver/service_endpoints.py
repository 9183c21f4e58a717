"""The endpoints of Services: ports, and the addresses of EndpointSlices, Endpoints and selected pods.

Source: k8s.io/apiserver, pkg/util/proxy/proxy.go (ResolveEndpoint).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.views.pods import is_ready
from batchyard.interfaces.client import ObjectReader

_SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"


class EndpointAddress(NamedTuple):
    """A TCP address, and whether only the pod network of this machine reaches it."""

    host: str
    port: int
    in_pod_network: bool = False


def find_port(service: Obj, port: str) -> Mapping[str, Any] | None:
    """Return the port of a Service by number or name; '' is the name of a port without a name."""
    ports: Sequence[Mapping[str, Any]] = (service.get("spec") or {}).get("ports") or ()
    is_number = port.isdecimal()
    return next((each for each in ports if port == (str(each["port"]) if is_number else each.get("name") or "")), None)


def container_ports(pod: Obj) -> Iterator[Mapping[str, Any]]:
    """Yield the ports of the containers of a pod."""
    for container in pod["spec"].get("containers") or ():
        yield from container.get("ports") or ()


def named_container_port(pod: Obj, name: str) -> int | None:
    """Return the number of the container port with this name, or None."""
    return next((int(port["containerPort"]) for port in container_ports(pod) if port.get("name") == name), None)


def selected_pods(objects: ObjectReader, service: Obj) -> Sequence[Obj]:
    """Return the pods that the selector of a Service selects; none without a selector."""
    selector: Mapping[str, str] = (service.get("spec") or {}).get("selector") or {}
    pods = objects.list(scheme.POD, service["metadata"]["namespace"]) if selector else ()
    return [pod for pod in pods if selector.items() <= (pod["metadata"].get("labels") or {}).items()]


def pod_addresses(pods: Iterable[Obj], service_port: Mapping[str, Any]) -> Iterator[EndpointAddress]:
    """Yield the addresses of pods at the target port of a port of their Service."""
    target_port = service_port.get("targetPort") or service_port["port"]
    for pod in pods:
        port = target_port if isinstance(target_port, int) else named_container_port(pod, target_port)
        address = (pod.get("status") or {}).get("podIP")
        if address and port is not None:
            yield EndpointAddress(address, port, not pod["spec"].get("hostNetwork"))


def find_endpoints(objects: ObjectReader, service: Obj) -> Obj:
    """Return the Endpoints object of a Service; an empty one if there is none."""
    metadata = service["metadata"]
    return objects.get(Key(scheme.ENDPOINTS, metadata["namespace"], metadata["name"])) or {}


def _is_in_pod_network(objects: ObjectReader, target: Mapping[str, Any] | None) -> bool:
    """Return whether the target of an endpoint is a pod with a network of its own."""
    if target is None or target.get("kind") != "Pod":
        return False
    pod = objects.get(Key(scheme.POD, target.get("namespace") or "", target.get("name") or ""))
    return pod is None or not pod["spec"].get("hostNetwork")


def endpoints_addresses(
    objects: ObjectReader, endpoints: Obj, service_port: Mapping[str, Any]
) -> Iterator[EndpointAddress]:
    """Yield the addresses of an Endpoints object."""
    for subset in endpoints.get("subsets") or ():
        for port in _port_numbers(subset, service_port):
            for address in subset.get("addresses") or ():
                yield EndpointAddress(address["ip"], port, _is_in_pod_network(objects, address.get("targetRef")))


def _slice_addresses(objects: ObjectReader, service: Obj, service_port: Mapping[str, Any]) -> Iterator[EndpointAddress]:
    """Yield the addresses of ready endpoints in the EndpointSlices of a Service."""
    metadata = service["metadata"]
    for endpoint_slice in objects.list(scheme.ENDPOINT_SLICE, metadata["namespace"]):
        if (endpoint_slice["metadata"].get("labels") or {}).get(_SERVICE_NAME_LABEL) == metadata["name"]:
            endpoints = filter(_is_ready_endpoint, endpoint_slice.get("endpoints") or ())
            for endpoint, port in product(endpoints, [*_port_numbers(endpoint_slice, service_port)]):
                is_in_pod_network = _is_in_pod_network(objects, endpoint.get("targetRef"))
                yield EndpointAddress(endpoint["addresses"][0], port, is_in_pod_network)


def _is_ready_endpoint(endpoint: Mapping[str, Any]) -> bool:
    return (endpoint.get("conditions") or {}).get("ready") is not False


def ready_addresses(objects: ObjectReader, service: Obj, service_port: Mapping[str, Any]) -> Iterator[EndpointAddress]:
    """Yield the addresses behind a Service: of EndpointSlices, of Endpoints, and of the ready pods it selects."""
    addresses = chain(
        _slice_addresses(objects, service, service_port),
        endpoints_addresses(objects, find_endpoints(objects, service), service_port),
        pod_addresses(filter(is_ready, selected_pods(objects, service)), service_port),
    )
    yield from dict.fromkeys(addresses)


def _port_numbers(endpoints: Mapping[str, Any], service_port: Mapping[str, Any]) -> Iterator[int]:
    for port in endpoints.get("ports") or ():
        if (port.get("name") or "") == (service_port.get("name") or "") and port.get("port"):
            yield port["port"]
