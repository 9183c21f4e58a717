"""Encoding of requests that are passed on to another server, and `pods/NAME:PORT/proxy`, `services/NAME:PORT/proxy`.

Sources: Kubernetes's pkg/registry/core/pod/{rest/subresources.go,strategy.go}, pkg/registry/core/service/storage;
k8s.io/apimachinery, pkg/util/{net/http.go,proxy}; k8s.io/client-go, transport/round_trippers.go.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.views.pods import is_ready
from batchyard.apiserver.request import (
    HEADER_SEPARATOR,
    HOP_BY_HOP_HEADERS,
    ApiRequest,
    ProxyResponse,
    Response,
    StatusError,
    UserInfo,
    bad_request,
)
from batchyard.apiserver.resources import EndpointHandlers, not_found_error
from batchyard.apiserver.service_endpoints import container_ports, find_port, named_container_port, selected_pods
from batchyard.interfaces.client import ObjectReader
from batchyard.interfaces.containers import Containers

PROXY_METHODS: Final = ("POST", "DELETE", "GET", "PATCH", "PUT")
_PATH_SAFE: Final = "/:@!$&'()*+,;=~-._"
_SCHEMES: Final = ("http", "https")
#: The headers of a client that another server does not get: of the connection, and the client's credentials.
_DROPPED_HEADERS: Final = HOP_BY_HOP_HEADERS | {"content-length", "host", "expect", "authorization"}
_DROPPED_PREFIXES: Final = ("impersonate-", "x-remote-")
#: Pages of pods run in an origin of their own: the origin of the API server is that of the dashboard.
_SANDBOX_HEADERS: Final = (("content-security-policy", "sandbox allow-scripts allow-forms allow-popups"),)
_TOKEN_CHARACTERS: Final = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def encode_request(request: ApiRequest, path: str, host: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """Encode a request for another server: with its own path, host, and further headers, without credentials."""
    query = urlencode(request.query_items or list(request.query.items()))
    target = quote(path, safe=_PATH_SAFE) + (f"?{query}" if query else "")
    lines = [f"{request.method} {target} HTTP/1.1", f"host: {host}"]
    for name, values in request.headers.items():
        # Some servers do not distinguish `_` and `-` in the names of headers.
        if name not in _DROPPED_HEADERS and not name.replace("_", "-").startswith(_DROPPED_PREFIXES):
            lines += [f"{name}: {value}" for value in values.split(HEADER_SEPARATOR)]
    lines += [f"{name}: {value}" for name, value in headers]
    if request.body or request.method in {"POST", "PUT", "PATCH"}:
        lines.append(f"content-length: {len(request.body)}")
    return "\r\n".join([*lines, "connection: close", "", ""]).encode("utf-8", "replace") + request.body


def user_headers(user: UserInfo) -> Iterator[tuple[str, str]]:
    """Yield the headers that name the user of a request to an aggregated API."""
    yield "X-Remote-User", _header_value(user.name)
    if user.uid:
        yield "X-Remote-Uid", _header_value(user.uid)
    for group in user.groups:
        yield "X-Remote-Group", _header_value(group)
    for key, values in user.extra:
        name = "".join(character if character in _TOKEN_CHARACTERS else quote(character, safe="") for character in key)
        for value in values:
            yield f"X-Remote-Extra-{name}", _header_value(value)


def _header_value(value: str) -> str:
    """Return a value without control characters, which could begin another header."""
    if any(ord(character) < 0x20 or ord(character) == 0x7F for character in value):
        raise StatusError(500, "InternalError", "Internal error occurred: the user has control characters in its name")
    return value


class ProxyTarget(NamedTuple):
    """A port of a pod or Service in a request: `[SCHEME:]NAME[:PORT]`."""

    scheme: str
    name: str
    #: '' for the first port.
    port: str


def parse_target(text: str, resource: str) -> ProxyTarget:
    """Parse the name in a proxy request. Raises StatusError (400) if it is malformed."""
    parts = text.split(":")
    if len(parts) == 3:
        target = ProxyTarget(parts[0] or "http", parts[1], parts[2])
    else:
        target = ProxyTarget("http", parts[0], parts[1] if len(parts) == 2 else "")
    if len(parts) > 3 or not target.name or target.scheme not in _SCHEMES:
        raise bad_request(f'invalid {resource} request "{text}"')
    return target


class PortProxies:
    """The handlers of the subresource `proxy` of pods and Services, which pass requests on to ports of pods."""

    def __init__(self, objects: ObjectReader, containers: Containers) -> None:
        self._objects = objects
        self._containers = containers

    def pod_handlers(self) -> EndpointHandlers:
        """Return the handlers of `pods/NAME/proxy`."""
        return _handlers("PodProxyOptions", self._proxy_pod)

    def service_handlers(self) -> EndpointHandlers:
        """Return the handlers of `services/NAME/proxy`."""
        return _handlers("ServiceProxyOptions", self._proxy_service)

    def _proxy_pod(self, request: ApiRequest, namespace: str, name: str) -> ProxyResponse:
        target = parse_target(name, "pod")
        pod = self._get(scheme.POD, namespace, target.name)
        return self._forward(request, name, pod, _pod_port(pod, target.port))

    def _proxy_service(self, request: ApiRequest, namespace: str, name: str) -> ProxyResponse:
        target = parse_target(name, "service")
        service = self._get(scheme.SERVICE, namespace, target.name)
        service_port = _service_port(service, target, name)
        pod = next(filter(is_ready, selected_pods(self._objects, service)), None)
        if pod is None:
            raise service_unavailable(f'no endpoints available for service "{target.name}"')
        target_port = service_port.get("targetPort") or service_port["port"]
        return self._forward(request, name, pod, _pod_port(pod, str(target_port)))

    def _get(self, kind: str, namespace: str, name: str) -> Obj:
        obj = self._objects.get(Key(kind, namespace, name))
        if obj is None:
            raise not_found_error(scheme.kind_info(kind), name)
        return obj

    def _forward(self, request: ApiRequest, name: str, pod: Obj, port: int) -> ProxyResponse:
        if "upgrade" in request.headers:
            raise bad_request("upgrades of connections are not supported by this proxy; use kubectl port-forward")
        if name.startswith("https:"):
            raise bad_request("the scheme https is not supported by this proxy; use kubectl port-forward")
        if reason := self._containers.no_process_reason(pod):
            raise bad_request(reason)
        prefix = "/".join(request.path.split("/")[:8])  # /api/v1/namespaces/NAMESPACE/pods/NAME/proxy
        path = request.path.removeprefix(prefix)
        headers = (
            ("X-Forwarded-Uri", quote(request.path, safe=_PATH_SAFE)),
            ("X-Forwarded-Host", request.headers.get("host", "")),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-For", request.client_address),
        )
        pod_name = pod["metadata"]["name"]
        encoded = encode_request(request, path or "/", f"{pod_name}:{port}", headers)
        failure = partial(_failed_response, f"error trying to reach service: pod {pod_name}, port {port}: ")
        connect = partial(self._containers.connect, pod, port)
        return ProxyResponse(request.method, encoded, connect, failure, added_headers=_SANDBOX_HEADERS)


def service_unavailable(message: str) -> StatusError:
    """Return a 503 error."""
    return StatusError(503, "ServiceUnavailable", message)


def _failed_response(prefix: str, problem: str) -> Response:
    return service_unavailable(prefix + problem).response()


def _handlers(kind: str, handler: Callable[[ApiRequest, str, str], ProxyResponse]) -> EndpointHandlers:
    return EndpointHandlers("", "v1", kind, dict.fromkeys(PROXY_METHODS, handler), takes_subpath=True)


def _pod_port(pod: Obj, text: str) -> int:
    """Return the port of a pod by number or name; for '' its first container port, else 80."""
    if not text:
        return next((int(port["containerPort"]) for port in container_ports(pod)), 80)
    if text.isdecimal() and text.isascii() and len(text) <= 5 and 0 < int(text) <= 65535:
        return int(text)
    port = named_container_port(pod, text)
    if port is None:
        raise service_unavailable(f'pod "{pod["metadata"]["name"]}" has no port named "{text}"')
    return port


def _service_port(service: Obj, target: ProxyTarget, text: str) -> Mapping[str, Any]:
    port = find_port(service, target.port)
    if port is None and target.port.isdecimal():
        raise service_unavailable(f'no service port {target.port} found for service "{target.name}"')
    if port is None:
        raise service_unavailable(f'no endpoints available for service "{text}"')
    return port
