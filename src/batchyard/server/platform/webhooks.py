"""The admission of writes by webhooks in an embedded platform; loaded when a webhook is configured."""

import asyncio
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from batchyard.apiserver.admission.controller_writes import ControllerWrites
from batchyard.apiserver.admission.gate import AdmissionGate, GateParts
from batchyard.apiserver.admission.registrations import WebhookRegistry
from batchyard.apiserver.admission.services import resolve_service
from batchyard.apiserver.resources import Resources
from batchyard.apiserver.server import ApiServer
from batchyard.client.local import LocalClient
from batchyard.interfaces.client import Write, WriteResult
from batchyard.metrics.controllers import RequestMetrics
from batchyard.metrics.forks import AdmissionWebhookMetrics
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.http.webhook_client import WebhookClient
from batchyard.server.local_node.node import LocalNodeComponents


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
