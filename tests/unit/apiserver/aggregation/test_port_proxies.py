"""`pods/NAME:PORT/proxy` and `services/NAME:PORT/proxy`: the target of a request, and what the pod gets."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.aggregation.proxied_requests import PortProxies
from batchyard.apiserver.request import ApiRequest, ProxyResponse, StatusError
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.containers import ByteStream, SessionClient
from batchyard.kubelet.simulated.containers import SimulatedContainers
from batchyard.store.memory import Store

PODS, SERVICES = "/api/v1/namespaces/team/pods", "/api/v1/namespaces/team/services"


class ReachableContainers(SimulatedContainers):
    """Containers with ports, and the connections to them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, VirtualEventLoop(0))  # type: ignore[arg-type]
        self.opened: list[tuple[str, int]] = []
        self.reason = ""

    def no_process_reason(self, pod: Obj) -> str:
        return self.reason

    def connect(self, pod: Obj, port: int, session_client: SessionClient) -> ByteStream:
        self.opened.append((pod["metadata"]["name"], port))
        raise AssertionError("the test opens no connection")


class Proxies:
    """The proxies of a Namespace with the pod `web`, ready behind the Service `site`."""

    def __init__(self, *, is_ready: bool = True) -> None:
        store = Store(window=10)
        ports = [{"name": "http", "containerPort": 8080}]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**make.metadata("web", "team"), "labels": {"app": "a"}}}
        conditions = [{"type": "Ready", "status": "True" if is_ready else "False"}]
        pod |= {"spec": {"containers": [{"name": "c", "ports": ports}]}, "status": {"conditions": conditions}}
        store.put(Key(scheme.POD, "team", "web"), pod)
        service = {"apiVersion": "v1", "kind": "Service", "metadata": make.metadata("site", "team")}
        service_ports = [{"port": 80, "targetPort": "http"}, {"name": "other", "port": 81, "targetPort": 9090}]
        spec = {"selector": {"app": "a"}, "ports": service_ports}
        store.put(Key(scheme.SERVICE, "team", "site"), {**service, "spec": spec})
        self.containers = ReachableContainers(store)
        self._proxies = PortProxies(store, self.containers)

    def ask(self, path: str, method: str = "GET", **fields: Any) -> ProxyResponse:
        """The answer to a request."""
        kind, name = path.split("/")[5:7]
        handlers = self._proxies.pod_handlers() if kind == "pods" else self._proxies.service_handlers()
        answer = handlers.by_method[method](ApiRequest(method, path, **fields), "team", name)
        assert isinstance(answer, ProxyResponse)
        return answer

    def target(self, path: str) -> tuple[str, int]:
        """The pod and the port to which a request goes."""
        with pytest.raises(AssertionError):
            self.ask(path).connect(None)  # type: ignore[arg-type]
        return self.containers.opened[-1]


@pytest.mark.parametrize(
    ("path", "port"),
    [
        (f"{PODS}/web/proxy", 8080),
        (f"{PODS}/web:9000/proxy/x", 9000),
        (f"{PODS}/http:web:9000/proxy", 9000),
        (f"{PODS}/:web:9000/proxy", 9000),
        (f"{SERVICES}/site/proxy/", 8080),
        (f"{SERVICES}/site:80/proxy/", 8080),
        (f"{SERVICES}/site:other/proxy/", 9090),
    ],
)
def test_target_is_the_named_port(path: str, port: int) -> None:
    assert Proxies().target(path) == ("web", port)


@pytest.mark.parametrize(
    ("path", "code", "message"),
    [
        (f"{PODS}/no/proxy", 404, 'pods "no" not found'),
        (f"{PODS}/a:b:c:d/proxy", 400, 'invalid pod request "a:b:c:d"'),
        (f"{PODS}/ftp:web:1/proxy", 400, 'invalid pod request "ftp:web:1"'),
        (f"{PODS}/https:web:1/proxy", 400, "the scheme https is not supported"),
        (f"{SERVICES}/no/proxy", 404, 'services "no" not found'),
        (f"{SERVICES}/site:82/proxy", 503, 'no service port 82 found for service "site"'),
        (f"{SERVICES}/site:name/proxy", 503, 'no endpoints available for service "site:name"'),
    ],
)
def test_unknown_target_is_rejected(path: str, code: int, message: str) -> None:
    with pytest.raises(StatusError, match=message) as caught:
        Proxies().ask(path)
    assert caught.value.code == code


def test_service_without_ready_pods_is_unavailable() -> None:
    with pytest.raises(StatusError, match='no endpoints available for service "site"'):
        Proxies(is_ready=False).ask(f"{SERVICES}/site/proxy/")


def test_simulated_pod_and_upgrades_are_rejected() -> None:
    proxies = Proxies()
    with pytest.raises(StatusError, match="upgrades of connections"):
        proxies.ask(f"{PODS}/web/proxy", headers={"upgrade": "websocket"})
    proxies.containers.reason = "it is simulated"
    with pytest.raises(StatusError, match="it is simulated"):
        proxies.ask(f"{PODS}/web/proxy")


def test_pod_gets_path_query_and_body_but_no_credentials() -> None:
    headers = {"authorization": "Bearer t", "host": "api", "impersonate-user": "x", "x-a": "1\n2"}
    query = (("q", "a b"), ("q", "2"))
    answer = Proxies().ask(f"{PODS}/web/proxy/a/b c", "POST", headers=headers, query_items=query, body=b"data")
    head, _, body = answer.request.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert (lines[0], lines[1], body) == ("POST /a/b%20c?q=a+b&q=2 HTTP/1.1", "host: web:8080", b"data")
    assert {"x-a: 1", "x-a: 2", "content-length: 4", "X-Forwarded-Host: api"} <= {*lines}
    assert not any("Bearer" in line or "impersonate" in line for line in lines)


def test_pages_of_pods_run_in_a_sandbox() -> None:
    assert dict(Proxies().ask(f"{PODS}/web/proxy").added_headers)["content-security-policy"].startswith("sandbox ")


def test_pod_whose_name_begins_like_the_subresource_is_found() -> None:
    with pytest.raises(StatusError, match='pods "proxy-1" not found'):
        Proxies().ask(f"{PODS}/proxy-1/proxy/x")
