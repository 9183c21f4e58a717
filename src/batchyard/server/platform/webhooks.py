"""The admission of writes by webhooks in an embedded platform; loaded when a webhook is configured."""

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.views.pods import is_ready, is_terminal, is_terminating
from batchyard.apiserver import service_endpoints
from batchyard.apiserver.admission.controller_writes import ControllerWrites
from batchyard.apiserver.admission.gate import AdmissionGate, GateParts
from batchyard.apiserver.admission.registrations import WebhookRegistry
from batchyard.apiserver.admission.reviews import WebhookCallError
from batchyard.apiserver.resources import Resources
from batchyard.apiserver.server import ApiServer
from batchyard.client.local import LocalClient
from batchyard.interfaces.client import ObjectReader, Write, WriteResult
from batchyard.metrics.controllers import RequestMetrics
from batchyard.metrics.forks import AdmissionWebhookMetrics
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.http.webhook_client import WebhookClient
from batchyard.server.local_node.node import LocalNodeComponents

#: The address of processes of this machine that serve a Service without pods and endpoints.
_LOOPBACK: Final = "127.0.0.1"
_SERVICE_TYPES: Final = ("ClusterIP", "NodePort", "LoadBalancer")


class GateConnection(NamedTuple):
    """The parts of the admission by webhooks that the platform connects."""

    gate: AdmissionGate
    #: Executes the writes that controllers submit.
    intercept: Callable[[Iterable[Write], Callable[[WriteResult], None]], None]
    webhook_client: WebhookClient

    def refresh(self) -> bool:
        """Read the configurations again; return whether a webhook is configured."""
        self.gate.registry.refresh()
        return not self.gate.registry.is_empty


class GatePlatform(NamedTuple):
    """The parts of a platform that the admission by webhooks uses."""

    server: ApiServer
    client: LocalClient
    resources: Resources
    kernel: LiveKernel
    node: LocalNodeComponents | None
    #: The groups of controllers that the platform runs.
    controllers: Sequence[str]
    requests: RequestMetrics


def connect_gate(platform: GatePlatform) -> GateConnection:
    """Create the admission of writes by webhooks, which calls them on the running asyncio loop."""
    server, client, resources, kernel, node, controllers, requests = platform
    metrics = AdmissionWebhookMetrics()
    requests.webhook_texts = metrics.texts
    webhook_client = WebhookClient(
        asyncio.get_running_loop(), kernel.post, partial(resolve_service, client), partial(_create_socket, node)
    )
    registry = WebhookRegistry(client, controllers)
    parts = GateParts(
        client, server.write_handler, registry, metrics, webhook_client, wall_clock(), server.policy_loader
    )
    gate = AdmissionGate(parts)
    return GateConnection(gate, ControllerWrites(gate, client, resources).submit, webhook_client)


def _create_socket(node: LocalNodeComponents | None) -> socket.socket:
    """Return a socket in the pod network of this machine, or an ordinary socket if there is none."""
    pod_socket = None if node is None else node.create_pod_network_socket()
    return pod_socket or socket.socket(socket.AF_INET, socket.SOCK_STREAM)


def resolve_service(objects: ObjectReader, namespace: str, name: str, port: int) -> service_endpoints.EndpointAddress:
    """Return the address of a ready endpoint of the Service of a webhook.

    The endpoints are those of the Service's Endpoints object, else the ready pods that its selector selects. Without
    both, a process of this machine serves the Service at the target port, which must be a number.
    Raises WebhookCallError if the Service or its port does not exist, or if no endpoint is ready.
    """
    service = objects.get(Key(scheme.SERVICE, namespace, name))
    if service is None:
        raise WebhookCallError(f'service "{name}" not found')
    service_type = (service.get("spec") or {}).get("type", "ClusterIP")
    if service_type not in _SERVICE_TYPES:
        raise WebhookCallError(f'unsupported service type "{service_type}"')
    service_port = service_endpoints.find_port(service, str(port))
    if service_port is None:
        raise WebhookCallError(f'no service port {port} found for service "{name}"')
    address = next(_addresses(objects, service, service_port), None)
    if address is None:
        raise WebhookCallError(f'no endpoints available for service "{name}"')
    return address


def _addresses(
    objects: ObjectReader, service: Obj, service_port: Mapping[str, Any]
) -> Iterator[service_endpoints.EndpointAddress]:
    endpoints = service_endpoints.find_endpoints(objects, service)
    if endpoints.get("subsets"):
        return service_endpoints.endpoints_addresses(objects, endpoints, service_port)
    pods = [
        pod
        for pod in service_endpoints.selected_pods(objects, service)
        if not is_terminal(pod) and not is_terminating(pod)
    ]
    if pods:
        uses_all = service["spec"].get("publishNotReadyAddresses")
        return service_endpoints.pod_addresses((pod for pod in pods if uses_all or is_ready(pod)), service_port)
    target_port = service_port.get("targetPort") or service_port["port"]
    return iter([service_endpoints.EndpointAddress(_LOOPBACK, target_port)] if isinstance(target_port, int) else ())
