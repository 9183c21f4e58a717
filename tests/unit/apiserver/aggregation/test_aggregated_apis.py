"""Aggregated APIs: which requests are passed on, with which headers, and their authorization and discovery."""

import base64
from typing import Any

import msgspec
import pytest

from batchyard.api.meta import Key, Obj, with_status
from batchyard.apiserver.aggregation.aggregated_apis import AggregatedApis, ServerTls, Unavailable
from batchyard.apiserver.api_services import API_SERVICE
from batchyard.apiserver.request import ProxyResponse, Response, UserInfo
from batchyard.apiserver.service_endpoints import EndpointAddress
from batchyard.interfaces.client import UpdateStatus
from batchyard.interfaces.containers import ByteStream, SessionClient
from unit.apiserver import roles
from unit.apiserver.api import Api

GROUP = "flowers.example.com"
PATH = f"/apis/{GROUP}/v1"
ANNA = UserInfo("anna", ("team-a", "system:authenticated"), "u1", (("example.com/Scope", ("a b",)),))
ROSES = {"name": "roses", "singularName": "rose", "namespaced": True, "kind": "Rose", "verbs": ["get", "list"]}
RESOURCE_LIST = {"kind": "APIResourceList", "resources": [{**ROSES, "name": "roses/status"}, ROSES]}


class RecordedConnections:
    """Records connections instead of opening them."""

    def __init__(self) -> None:
        self.opened: list[tuple[EndpointAddress, ServerTls]] = []

    def connect(self, address: EndpointAddress, tls: ServerTls, client: SessionClient) -> ByteStream:
        self.opened.append((address, tls))
        raise AssertionError("the test opens no connection")


class Garden:
    """An API server with an APIService for flowers."""

    def __init__(self, *, is_available: bool = True, **spec: Any) -> None:
        self.api = Api()
        self.connections = RecordedConnections()
        self.apis = AggregatedApis(self.api.stored, self.connections, self.api.resources.is_group_version_served)
        self.api.server.set_aggregation(self.apis)
        reference = {"name": "flowers", "namespace": "default"}
        whole_spec = {"group": GROUP, "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1, **spec}
        self.api_service = self.api.post(
            "/apis/apiregistration.k8s.io/v1/apiservices",
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{whole_spec['version']}.{whole_spec['group']}"},
                "spec": {"service": reference, **whole_spec},
            },
        )
        if is_available:
            conditions = [{"type": "Available", "status": "True"}]
            self.api.stored.attempt(UpdateStatus(with_status(self.stored(), {"conditions": conditions})))

    def stored(self) -> Obj:
        """The stored APIService."""
        obj = self.api.stored.get(Key(API_SERVICE, "", self.api_service["metadata"]["name"]))
        assert obj is not None
        return obj

    def add_service(self, **spec: Any) -> None:
        """Create the Service."""
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "flowers"}, "spec": spec}
        self.api.post("/api/v1/namespaces/default/services", service)

    def add_endpoints(self, ip: str = "10.1.2.3", **fields: Any) -> None:
        """Create the Endpoints of the Service."""
        subset = {"addresses": [{"ip": ip, **fields}], "ports": [{"port": 8443}]}
        metadata = {"name": "flowers", "namespace": "default"}
        endpoints = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": [subset]}
        self.api.post("/api/v1/namespaces/default/endpoints", endpoints)

    def answer(self, path: str, user: UserInfo | None = None, method: str = "GET", **headers: str) -> Any:
        """The answer to a request."""
        return self.api._answer(method, path, None, headers, user or UserInfo("owner", ("system:masters",)))


def head_of(answer: ProxyResponse) -> list[str]:
    """The lines of the encoded head of a request."""
    return answer.request.decode().split("\r\n")


def test_request_is_passed_on_with_the_user_and_without_credentials() -> None:
    garden = Garden()
    garden.add_service(ports=[{"port": 443}])
    garden.add_endpoints()
    spoofed = {
        "x-remote-user": "root",
        "x_remote_group": "root",
        "authorization": "Bearer t",
        "connection": "x",
        "accept": "application/json",
    }
    owner = ANNA._replace(groups=("system:masters",))
    answer = garden.answer(f"{PATH}/namespaces/a b/roses?limit=5", owner, **spoofed)
    assert head_of(answer)[:2] == [f"GET {PATH}/namespaces/a%20b/roses?limit=5 HTTP/1.1", "host: 10.1.2.3:8443"]
    user_lines = ["X-Remote-User: anna", "X-Remote-Uid: u1", "X-Remote-Group: system:masters"]
    assert [line for line in head_of(answer) if line.lower().startswith("x-remote")] == [
        *user_lines,
        "X-Remote-Extra-example.com%2FScope: a b",
    ]
    assert "accept: application/json" in head_of(answer)
    assert not any("Bearer" in line or "root" in line for line in head_of(answer))


def test_certificate_of_the_server_is_verified_by_the_bundle_and_the_name_of_the_service() -> None:
    garden = Garden(caBundle=base64.b64encode(b"PEM").decode())
    garden.add_service(type="ExternalName", externalName="flowers.example.net")
    answer = garden.answer(f"{PATH}/roses")
    with pytest.raises(AssertionError):
        answer.connect(None)
    address = EndpointAddress("flowers.example.net", 443)
    assert garden.connections.opened == [(address, ServerTls("flowers.default.svc", "PEM", False))]


def test_server_that_is_a_pod_is_reached_in_the_pod_network() -> None:
    garden = Garden()
    garden.add_service(ports=[{"port": 443}])
    target = {"kind": "Pod", "namespace": "default", "name": "gone"}
    garden.add_endpoints(targetRef=target)
    with pytest.raises(AssertionError, match="opens no connection"):
        garden.answer(f"{PATH}/roses").connect(None)
    assert garden.connections.opened[0][0] == EndpointAddress("10.1.2.3", 8443, in_pod_network=True)


def test_user_with_a_line_break_in_its_name_is_not_passed_on() -> None:
    garden = Garden()
    garden.add_service(type="ExternalName", externalName="x")
    response = garden.answer(f"{PATH}/roses", UserInfo("a\r\nX-Remote-Group: system:masters", ("system:masters",)))
    assert response.code == 500


@pytest.mark.parametrize("is_available", [True, False])
def test_unavailable_server_is_answered_with_503(is_available: bool) -> None:
    answer = Garden(is_available=is_available).answer(f"{PATH}/roses")
    assert answer == Response(503, "service unavailable\n", content_type="text/plain; charset=utf-8")


def test_request_is_authorized_as_a_request_for_the_resource() -> None:
    garden = Garden()
    garden.add_service(type="ExternalName", externalName="x")
    group_path = f"/apis/{roles.GROUP}/v1"
    role = roles.role("r", roles.rule("list", "roses", GROUP), namespace="team-a")
    garden.api.post(f"{group_path}/namespaces/team-a/roles", role)
    binding = roles.binding("b", "Role/r", roles.user("anna"), "team-a")
    garden.api.post(f"{group_path}/namespaces/team-a/rolebindings", binding)
    allowed = garden.answer(f"{PATH}/namespaces/team-a/roses", ANNA)
    assert isinstance(allowed, ProxyResponse)
    for path in (f"{PATH}/namespaces/team-a/roses/a", f"{PATH}/roses", f"{PATH}/namespaces/team-a/roses/a/status"):
        denied = garden.answer(path, ANNA)
        assert denied.code == 403, path
    message = f'cannot watch resource "roses" in API group "{GROUP}" at the cluster scope'
    assert message in garden.answer(f"{PATH}/roses?watch=true", ANNA).body["message"]


@pytest.mark.parametrize("path", [f"{PATH}//roses", f"{PATH}/./roses", f"{PATH}/namespaces/team-a/roses/../../b/roses"])
def test_path_that_a_server_may_read_otherwise_is_not_passed_on(path: str) -> None:
    garden = Garden()
    garden.add_service(type="ExternalName", externalName="x")
    assert isinstance(garden.answer(f"{PATH}/roses/"), ProxyResponse)
    assert garden.answer(path).code == 404


def test_group_version_of_the_platform_is_not_passed_on() -> None:
    garden = Garden(group="batch")
    assert garden.apis.find("/apis/batch/v1/jobs") is None
    assert garden.api.get("/apis/batch/v1/jobs")["kind"] == "JobList"


def test_reasons_for_unavailability_are_those_of_kubernetes() -> None:
    garden = Garden()
    problem = garden.apis.unavailable(garden.stored())
    assert problem == Unavailable("ServiceNotFound", 'service/flowers in "default" is not present')
    garden.add_service(ports=[{"port": 443}])
    problem = garden.apis.unavailable(garden.stored())
    message = 'endpointslices for service/flowers in "default" have no addresses with port name ""'
    assert problem == Unavailable("MissingEndpoints", message)
    garden.add_endpoints()
    assert garden.apis.unavailable(garden.stored()) is None


def test_service_without_the_port_is_unavailable() -> None:
    garden = Garden()
    garden.add_service(ports=[{"port": 80}])
    message = 'service/flowers in "default" is not listening on port 443'
    assert garden.apis.unavailable(garden.stored()) == Unavailable("ServicePortError", message)


def test_discovery_lists_resources_of_available_servers() -> None:
    garden = Garden()
    assert garden.apis.set_resource_list(garden.stored(), msgspec.json.encode(RESOURCE_LIST))
    assert GROUP in [each["name"] for each in garden.api.get("/apis")["groups"]]
    version = {"groupVersion": f"{GROUP}/v1", "version": "v1"}
    assert garden.api.get(f"/apis/{GROUP}")["preferredVersion"] == version
    accepted = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    items = garden.api.get("/apis", accept=accepted)["items"]
    (entry,) = next(each for each in items if each["metadata"]["name"] == GROUP)["versions"][0]["resources"]
    assert (entry["resource"], entry["scope"], entry["verbs"]) == ("roses", "Namespaced", ["get", "list"])
    assert [each["subresource"] for each in entry["subresources"]] == ["status"]
    garden.apis.set_resource_list(garden.stored(), None)
    assert GROUP not in [each["name"] for each in garden.api.get("/apis")["groups"]]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"resources": [{"name": 1, "verbs": []}]}'])
def test_malformed_resource_list_is_not_used(body: bytes) -> None:
    garden = Garden()
    assert not garden.apis.set_resource_list(garden.stored(), body)
    assert not garden.apis.resource_lists
