"""The webhooks and policies of an embedded platform; loaded when one of them is configured."""

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.views.pods import is_ready, is_terminal, is_terminating
from batchyard.apiserver import service_endpoints
from batchyard.apiserver.admission.calls import CallPorts, WebhookCallError
from batchyard.apiserver.admission.controller_writes import ControllerWrites
from batchyard.apiserver.admission.gate import AdmissionGate, GateParts
from batchyard.apiserver.admission.registrations import WebhookRegistry
from batchyard.apiserver.crd.converted_requests import WebhookConversions
from batchyard.apiserver.crd.webhook_conversion import ConversionObserver
from batchyard.apiserver.handlers.prepared_writes import WriteExecutor
from batchyard.apiserver.resources import Resources
from batchyard.apiserver.server import ApiServer
from batchyard.client.local import LocalClient
from batchyard.interfaces.client import ObjectReader, Write, WriteResult
from batchyard.metrics.forks import AdmissionWebhookMetrics, ConversionWebhookMetrics
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.http.webhook_client import WebhookClient
from batchyard.server.local_node.node import LocalNodeComponents
from batchyard.server.platform.status_report import EmbeddedMetrics

#: The address of processes of this machine that serve a Service without pods and endpoints.
_LOOPBACK: Final = "127.0.0.1"
_SERVICE_TYPES: Final = ("ClusterIP", "NodePort", "LoadBalancer")


class GateConnection(NamedTuple):
    """The parts of the admission by webhooks that the platform connects."""

    gate: AdmissionGate
    #: Executes the writes that controllers submit.
    intercept: Callable[[Iterable[Write], Callable[[WriteResult], None]], None]

    def refresh(self) -> bool:
        """Read the configurations again; return whether a policy or a webhook is configured."""
        self.gate.stages.registry.refresh()
        return self.gate.stages.is_configured


class GatePlatform(NamedTuple):
    """The parts of a platform that the admission by webhooks uses."""

    server: ApiServer
    client: LocalClient
    resources: Resources
    kernel: LiveKernel
    node: LocalNodeComponents | None
    #: The groups of controllers that the platform runs.
    controllers: Sequence[str]
    metrics: EmbeddedMetrics
    forked_work: WriteExecutor


class PlatformWebhooks:
    """The webhooks of a platform: admission, conversions, and the client that calls both, created when first used."""

    def __init__(self, platform: GatePlatform) -> None:
        """Create the client on the running asyncio loop."""
        self._platform = platform
        kernel, resolve = platform.kernel, partial(resolve_service, platform.client)
        create_socket = partial(_create_socket, platform.node)
        self._client = WebhookClient(asyncio.get_running_loop(), kernel.post, resolve, create_socket)

    @cached_property
    def gate(self) -> GateConnection:
        """The admission of writes."""
        server, client, resources, _, _, controllers, metrics, forked_work = self._platform
        webhook_metrics = AdmissionWebhookMetrics()
        metrics.requests.webhook_texts = webhook_metrics.texts
        registry = WebhookRegistry(client, controllers)
        parts = GateParts(
            *(client, server.write_handler, registry, webhook_metrics, self._client, wall_clock()),
            *(server.policy_loader, forked_work),
        )
        gate = AdmissionGate(parts)
        return GateConnection(gate, ControllerWrites(gate, client, resources).submit)

    @cached_property
    def conversions(self) -> WebhookConversions:
        """The conversions of custom objects."""
        return WebhookConversions(CallPorts(self._client, self._platform.forked_work))

    @cached_property
    def observe_conversion(self) -> ConversionObserver:
        """Counts the calls of conversion webhooks."""
        conversion_metrics = ConversionWebhookMetrics()
        self._platform.metrics.server_metrics.api_sources.append(conversion_metrics.texts)
        return conversion_metrics.count_conversion

    def close(self) -> None:
        """Cancel the calls in flight, and close all connections."""
        self._client.close()


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
