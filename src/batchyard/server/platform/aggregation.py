"""Connections to aggregated API servers, the checks of their availability, and the front-proxy certificate.

Source: k8s.io/kube-aggregator, pkg/controllers/status/remote/remote_available_controller.go.
"""

import asyncio
import ssl
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from batchyard.api.meta import Key, Obj, with_condition, with_status
from batchyard.api.scheme import ENDPOINT_SLICE, ENDPOINTS, NAMESPACE, POD, SERVICE
from batchyard.apiserver.aggregation.aggregated_apis import AggregatedApis, ServerTls
from batchyard.apiserver.api_services import API_SERVICE
from batchyard.apiserver.request import Response, StreamingResponse
from batchyard.apiserver.resources import Resources
from batchyard.apiserver.service_endpoints import EndpointAddress
from batchyard.base.instant import SECOND, Instant
from batchyard.client.local import LocalClient, create_or_replace
from batchyard.interfaces.client import EventType, UpdateStatus, WatchEvent, WriteResult
from batchyard.interfaces.containers import ByteStream, SessionClient
from batchyard.interfaces.controller import Kernel
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.local_node.node import LocalNodeComponents
from batchyard.server.platform.credentials import CA_FILE, CertificateAuthority
from batchyard.server.platform.data_dir import write_private
from batchyard.server.streaming.http_exchange import TcpStream, forward_request

#: The name in the certificate with which the platform authenticates at aggregated servers.
FRONT_PROXY_NAME: Final = "front-proxy-client"
_CHECK_INTERVAL: Final = 30 * SECOND
_CHECK_DELAY: Final = SECOND // 5
#: The Namespace of the objects that aggregated servers read.
_SYSTEM_NAMESPACE: Final = Key(NAMESPACE, "", "kube-system")
_KINDS: Final = frozenset({API_SERVICE, SERVICE, ENDPOINTS, ENDPOINT_SLICE})


class FrontProxy:
    """Opens connections to aggregated servers, with a client certificate of an authority that signs no others."""

    def __init__(self, folder: Path, now: Instant, node: LocalNodeComponents | None = None) -> None:
        """Create or load the authority in `front-proxy` of the data directory, and issue the certificate.

        `node` runs the servers that are pods of this machine.
        """
        self._node = node
        proxy_folder = folder / "front-proxy"
        proxy_folder.mkdir(mode=0o700, exist_ok=True)
        authority = CertificateAuthority(proxy_folder, now)
        certificate = authority.issue_client_certificate(FRONT_PROXY_NAME, ())
        self._certificate_file = proxy_folder / "client.pem"
        write_private(self._certificate_file, certificate.certificate + certificate.key)
        #: The certificate of the authority as PEM.
        self.authority_pem = authority.certificate_file.read_text("ascii")
        self._context = lru_cache(maxsize=64)(self._create_context)

    def connect(self, address: EndpointAddress, tls: ServerTls, client: SessionClient) -> ByteStream:
        """Connect to a host and port with TLS."""
        node = self._node if address.in_pod_network else None
        create_socket = None if node is None else node.create_pod_network_socket
        return TcpStream((address.host, address.port), (self._context(tls), tls.server_name), client, create_socket)

    def _create_context(self, tls: ServerTls) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cadata=tls.authority or None)
        except (ssl.SSLError, ValueError):
            context = ssl.create_default_context(cadata=None)  # the server is then not trusted
        if tls.skips_verification:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(self._certificate_file)
        return context


class AvailabilityChecks:
    """Checks the servers of aggregated APIs regularly and after changes, and writes the condition Available."""

    def __init__(self, apis: AggregatedApis, client: LocalClient, kernel: Kernel) -> None:
        self._apis = apis
        self._client = client
        self._kernel = kernel
        self._loop = asyncio.get_running_loop()
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        #: The names of the APIServices that are being checked.
        self._in_progress: set[str] = set()

    def observe(self, event: WatchEvent) -> None:
        """Schedule the checks after a change of an APIService, or of what may lead to its server."""
        kind = event.key.kind
        if kind == API_SERVICE and event.type is EventType.DELETED:
            self._apis.set_resource_list(event.obj, None)
        if kind in _KINDS or (kind == POD and self._timer is not None and event.type is not EventType.MODIFIED):
            self.schedule()

    def schedule(self, delay: Instant = _CHECK_DELAY) -> None:
        """Check all servers after a delay, unless checks are scheduled already."""
        if not self._is_scheduled:
            self._is_scheduled = True
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(delay / SECOND, self._check_all)

    def close(self) -> None:
        """Stop the checks."""
        self._is_scheduled = True
        if self._timer is not None:
            self._timer.cancel()

    def _check_all(self) -> None:
        self._is_scheduled = False
        self._timer = None
        api_services = self._apis.aggregated_services()
        for api_service in api_services:
            self._check(api_service)
        if api_services:
            self._timer = self._loop.call_later(_CHECK_INTERVAL / SECOND, self._check_all)

    def _check(self, api_service: Obj) -> None:
        name = api_service["metadata"]["name"]
        if name in self._in_progress:
            return
        unavailable = self._apis.unavailable(api_service)
        probe = None if unavailable else self._apis.discovery_probe(api_service)
        if probe is None:
            reason, message = unavailable or ("MissingEndpoints", "the Service has no address")
            self._apis.set_resource_list(api_service, None)
            self._write_condition(name, reason, message, is_available=False)
            return
        self._in_progress.add(name)
        forward_request(probe, partial(self._process_response, name), streams=False)

    def _process_response(self, name: str, response: Response | StreamingResponse) -> None:
        assert isinstance(response, Response), "the response is not streamed"
        self._in_progress.discard(name)
        api_service = self._client.get(Key(API_SERVICE, "", name))
        if api_service is None:
            return
        spec, is_success = api_service["spec"], 200 <= response.code < 300
        if self._apis.set_resource_list(api_service, response.body if is_success else None):
            self._write_condition(name, "Passed", "all checks passed", is_available=True)
            return
        reference = spec["service"]
        url = f"https://{reference.get('name', '')}.{reference.get('namespace', '')}.svc"
        url += f"/apis/{spec.get('group', '')}/{spec.get('version', '')}"
        problem = "the response is no APIResourceList" if is_success else f"bad status from {url}: {response.code}"
        if isinstance(response.body, dict):
            problem = str(response.body.get("message", problem)).removeprefix("error trying to reach service: ")
        message = f"failing or missing response from {url}: {problem}"
        self._write_condition(name, "FailedDiscoveryCheck", message, is_available=False)

    def _write_condition(self, name: str, reason: str, message: str, *, is_available: bool) -> None:
        def write() -> None:
            api_service = self._client.get(Key(API_SERVICE, "", name))
            if api_service is None:
                return
            status = api_service.get("status") or {}
            old_conditions, now = status.get("conditions") or [], self._kernel.now()
            conditions = with_condition(
                old_conditions, type="Available", status=is_available, reason=reason, message=message, now=now
            )
            if conditions is not old_conditions:
                updated = with_status(api_service, {**status, "conditions": conditions})
                self._client.submit([UpdateStatus(updated)], _ignore_result)

        self._kernel.call_at(self._kernel.now(), write)


class Aggregation:
    """The aggregation of a platform: its connections and checks, and the objects that aggregated servers read."""

    def __init__(
        self,
        client: LocalClient,
        kernel: Kernel,
        resources: Resources,
        folder: Path,
        node: LocalNodeComponents | None = None,
    ) -> None:
        """Create the aggregation of APIs that `resources` does not contain, with credentials in a data directory."""
        self._client = client
        self._kernel = kernel
        self._folder = folder
        self._front_proxy = FrontProxy(folder, wall_clock(), node)
        self.apis = AggregatedApis(client, self._front_proxy, resources.is_group_version_served)
        self.checks = AvailabilityChecks(self.apis, client, kernel)

    def observe(self, event: WatchEvent) -> None:
        """Process a change: write the objects once their Namespace exists, and check servers again."""
        if event.key == _SYSTEM_NAMESPACE and event.type is EventType.ADDED:
            self._kernel.call_at(self._kernel.now(), self._write_objects)
        self.checks.observe(event)

    def begin(self) -> None:
        """Write the objects that aggregated servers read if their Namespace exists, and start the checks."""
        if self._client.get(_SYSTEM_NAMESPACE) is not None:
            self._kernel.call_at(self._kernel.now(), self._write_objects)
        self.checks.schedule()

    def _write_objects(self) -> None:
        authority_file = self._folder / CA_FILE
        authority_pem = authority_file.read_text("ascii") if authority_file.exists() else ""
        objects = front_proxy_objects(self._front_proxy, authority_pem)
        create_or_replace(self._client, objects, _ignore_result)


def front_proxy_objects(front_proxy: FrontProxy, client_authority_pem: str) -> Iterator[Obj]:
    """Yield the ConfigMap from which aggregated servers read whom they can trust, and the Role to read it.

    Source: Kubernetes's pkg/controlplane/controller/clusterauthenticationtrust.
    """
    name, namespace = "extension-apiserver-authentication", _SYSTEM_NAMESPACE.name
    data = {
        "client-ca-file": client_authority_pem,
        "requestheader-allowed-names": f'["{FRONT_PROXY_NAME}"]',
        "requestheader-client-ca-file": front_proxy.authority_pem,
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-uid-headers": '["X-Remote-Uid"]',
        "requestheader-username-headers": '["X-Remote-User"]',
    }
    metadata = {"name": name, "namespace": namespace}
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get", "list", "watch"]}
    role_metadata = {"name": f"{name}-reader", "namespace": namespace}
    yield {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": role_metadata, "rules": [rule]}


def _ignore_result(_result: WriteResult) -> None:
    """Ignore the result: after a conflict, the next check writes the condition."""
