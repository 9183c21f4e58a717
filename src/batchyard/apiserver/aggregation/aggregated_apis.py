"""Aggregated APIs: group versions that other servers serve, as APIServices with a Service announce them.

A group version that the platform serves itself is never aggregated. Sources: k8s.io/kube-aggregator,
pkg/apiserver/handler_proxy.go and pkg/controllers/status/remote; k8s.io/apiserver, pkg/util/proxy/proxy.go.
"""

import base64
import binascii
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, is_true
from batchyard.apiserver.aggregation.proxied_requests import encode_request, service_unavailable, user_headers
from batchyard.apiserver.api_services import API_SERVICE
from batchyard.apiserver.auth.authorization import RequestAttributes, verb_of_segments
from batchyard.apiserver.request import MASTERS_GROUP, PLAIN_TEXT, ApiRequest, ProxyResponse, Response, UserInfo
from batchyard.apiserver.service_endpoints import EndpointAddress, find_port, ready_addresses
from batchyard.interfaces.client import ObjectReader
from batchyard.interfaces.containers import ByteStream, SessionClient

#: Seconds within which a server must answer a request for discovery.
DISCOVERY_TIMEOUT: Final = 5.0
_AGGREGATOR: Final = UserInfo("system:kube-aggregator", (MASTERS_GROUP,))
_UNAVAILABLE: Final = Response(503, "service unavailable\n", content_type=PLAIN_TEXT)
#: Segments that another server may remove: it would then serve another path than the authorized one.
_AMBIGUOUS_SEGMENTS: Final = ("", ".", "..")
_OBJECT_PATH_LENGTH: Final = 3
Connector: TypeAlias = Callable[[SessionClient], ByteStream]


class ServerTls(NamedTuple):
    """How the certificate of an aggregated server is verified."""

    server_name: str
    #: Certificate authorities as PEM; '' for those of the machine.
    authority: str
    skips_verification: bool


class ServerConnections(Protocol):
    """Opens TLS connections to aggregated servers, with the front-proxy certificate of the platform."""

    def connect(self, address: EndpointAddress, tls: ServerTls, client: SessionClient) -> ByteStream:
        """Connect to a host and port."""


class Unavailable(NamedTuple):
    """Why an APIService is not available: the reason and message of its condition."""

    reason: str
    message: str


class AggregatedApis:
    """Passes requests for aggregated group versions on to their servers, and holds their discovery documents."""

    def __init__(
        self, objects: ObjectReader, connections: ServerConnections, is_served: Callable[[str, str], bool]
    ) -> None:
        """Create the aggregation. `is_served` returns whether the platform serves a group and version itself."""
        self._objects = objects
        self._connections = connections
        self._is_served = is_served
        #: The APIResourceLists of the available servers, by group and version; `edition` counts their changes.
        self.resource_lists: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.edition = 0

    def find(self, path: str) -> Obj | None:
        """Return the APIService that announces the server of a path; None if the platform answers the request."""
        segments = path.removesuffix("/").split("/")
        if len(segments) < 4 or segments[1] != "apis" or any(each in _AMBIGUOUS_SEGMENTS for each in segments[1:]):
            return None
        api_service = self._objects.get(Key(API_SERVICE, "", f"{segments[3]}.{segments[2]}"))
        return None if api_service is None or not self.is_aggregated(api_service) else api_service

    def is_aggregated(self, api_service: Obj) -> bool:
        """Return whether requests for an APIService are passed on to another server."""
        spec = api_service["spec"]
        return bool(spec.get("service")) and not self._is_served(spec.get("group", ""), spec.get("version", ""))

    def aggregated_services(self) -> list[Obj]:
        """Return the APIServices whose requests are passed on."""
        return [each for each in self._objects.list(API_SERVICE) if self.is_aggregated(each)]

    def forward(self, request: ApiRequest, api_service: Obj) -> ProxyResponse | Response:
        """Pass an authorized request on; return 503 if the server is not available."""
        if "upgrade" in request.headers:
            message = "upgrades of connections to aggregated APIs are not supported"
            return Response(501, f"{message}\n", content_type=PLAIN_TEXT)
        if not is_true(api_service, "Available"):
            return _UNAVAILABLE
        is_discovery = len(request.path.strip("/").split("/")) == _OBJECT_PATH_LENGTH
        return self._proxied(request, api_service, DISCOVERY_TIMEOUT if is_discovery else 0.0) or _UNAVAILABLE

    def discovery_probe(self, api_service: Obj) -> ProxyResponse | None:
        """Return the request for the resource list of a server, or None if the server has no address."""
        spec = api_service["spec"]
        path = f"/apis/{spec.get('group', '')}/{spec.get('version', '')}"
        request = ApiRequest("GET", path, headers={"accept": "application/json"}, user=_AGGREGATOR)
        return self._proxied(request, api_service, DISCOVERY_TIMEOUT)

    def set_resource_list(self, api_service: Obj, body: bytes | None) -> bool:
        """Store the resource list of a server, None if it is not available; return whether the list is valid."""
        group_version = (api_service["spec"].get("group", ""), api_service["spec"].get("version", ""))
        old_list, new_list = self.resource_lists.get(group_version), None if body is None else _resource_list(body)
        if new_list is None:
            self.resource_lists.pop(group_version, None)
        else:
            self.resource_lists[group_version] = new_list
        self.edition += old_list != new_list
        return new_list is not None

    def unavailable(self, api_service: Obj) -> Unavailable | None:
        """Return why the Service of an APIService cannot be reached; None if its server may be asked."""
        reference = api_service["spec"]["service"]
        name, namespace, port = _service_reference(reference)
        service = self._objects.get(Key(scheme.SERVICE, namespace, name))
        where = f'service/{name} in "{namespace}"'
        if service is None:
            return Unavailable("ServiceNotFound", f"{where} is not present")
        if _is_external(service):
            return None
        service_port = find_port(service, str(port))
        if service_port is None:
            return Unavailable("ServicePortError", f"{where} is not listening on port {port}")
        if not any(True for _ in ready_addresses(self._objects, service, service_port)):
            port_name = service_port.get("name") or ""
            message = f'endpointslices for {where} have no addresses with port name "{port_name}"'
            return Unavailable("MissingEndpoints", message)
        return None

    def _proxied(self, request: ApiRequest, api_service: Obj, timeout: float) -> ProxyResponse | None:
        name, namespace, port = _service_reference(api_service["spec"]["service"])
        address = self._address(name, namespace, port)
        if address is None:
            return None
        spec, server_name = api_service["spec"], f"{name}.{namespace}.svc"
        tls = ServerTls(server_name, _decode_authority(spec.get("caBundle")), bool(spec.get("insecureSkipTLSVerify")))
        forwarded = (("X-Forwarded-For", request.client_address),) if request.client_address else ()
        host = f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"
        encoded = encode_request(request, request.path, host, (*user_headers(request.user), *forwarded))
        connect = partial(self._connections.connect, address, tls)
        return ProxyResponse(request.method, encoded, connect, _failed_response, timeout)

    def _address(self, name: str, namespace: str, port: int) -> EndpointAddress | None:
        service = self._objects.get(Key(scheme.SERVICE, namespace, name))
        if service is None:
            return None
        if _is_external(service):
            return EndpointAddress(str(service["spec"].get("externalName") or ""), port)
        service_port = find_port(service, str(port))
        addresses = iter(()) if service_port is None else ready_addresses(self._objects, service, service_port)
        return next(addresses, None)


def aggregated_attributes(request: ApiRequest) -> RequestAttributes:
    """Return the authorization attributes of a request for an aggregated API.

    Source: k8s.io/apiserver, pkg/endpoints/request/requestinfo.go.
    """
    segments = request.path.strip("/").split("/")
    if len(segments) <= _OBJECT_PATH_LENGTH:
        return RequestAttributes(request.user, request.method.lower(), path=request.path)
    group, parts, namespace = segments[1], segments[3:], ""
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource, name, subresource = [*parts, "", ""][:3]
    verb = verb_of_segments(request, has_name=bool(name))
    return RequestAttributes(request.user, verb, group, resource, subresource, namespace, name)


def _failed_response(problem: str) -> Response:
    return service_unavailable(f"error trying to reach service: {problem}").response()


def _service_reference(reference: Mapping[str, Any]) -> tuple[str, str, int]:
    return reference.get("name", ""), reference.get("namespace", ""), reference.get("port", 443)


def _is_external(service: Obj) -> bool:
    return bool((service.get("spec") or {}).get("type") == "ExternalName")


def _decode_authority(bundle: Any) -> str:
    try:
        return base64.b64decode(bundle or "", validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError, TypeError):
        return ""


def _resource_list(body: bytes) -> Mapping[str, Any] | None:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    resources = document.get("resources") if isinstance(document, dict) else None
    is_valid = isinstance(resources, list) and all(
        isinstance(each, dict) and isinstance(each.get("name"), str) and isinstance(each.get("verbs"), list)
        for each in resources
    )
    return document if is_valid else None
