"""The addresses of the Services of webhooks."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import make
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.admission.calls import WebhookCallError
from batchyard.apiserver.service_endpoints import EndpointAddress
from batchyard.server.platform.webhooks import resolve_service


class Objects:
    """Some objects by kind."""

    def __init__(self, **objects: Sequence[Obj]) -> None:
        self._objects = objects

    def get(self, key: Key) -> Obj | None:
        return next((obj for obj in self.list(key.kind) if obj["metadata"]["name"] == key.name), None)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        assert namespace in (None, "team")
        return self._objects.get(kind, ())


def service(**spec: Any) -> Mapping[str, Any]:
    """The Service `hooks`."""
    ports = [{"port": 443, "targetPort": "https"}]
    return {"metadata": {"name": "hooks", "namespace": "team"}, "spec": {"ports": ports, **spec}}


def pod(name: str, address: str, *, ready: bool = True) -> dict[str, Any]:
    """A pod with the label `app=hooks` and a port."""
    container = {"name": "main", "ports": [{"name": "https", "containerPort": 9443}]}
    condition = make.condition("Ready", ready)
    status = {"phase": "Running", "podIP": address, "conditions": [condition]}
    metadata = {"name": name, "namespace": "team", "labels": {"app": "hooks"}}
    return {"metadata": metadata, "spec": {"containers": [container]}, "status": status}


def test_selected_pod_that_is_ready_is_used() -> None:
    pods = [pod("a", "10.77.0.2", ready=False), pod("b", "10.77.0.3")]
    objects = Objects(Service=[service(selector={"app": "hooks"})], Pod=pods)
    assert resolve_service(objects, "team", "hooks", 443) == EndpointAddress("10.77.0.3", 9443, in_pod_network=True)


def test_service_with_unready_pods_has_no_endpoints() -> None:
    objects = Objects(Service=[service(selector={"app": "hooks"})], Pod=[pod("a", "10.77.0.2", ready=False)])
    with pytest.raises(WebhookCallError, match='no endpoints available for service "hooks"'):
        resolve_service(objects, "team", "hooks", 443)


def test_endpoints_take_precedence() -> None:
    subset = {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 8443}]}
    endpoints = {"metadata": {"name": "hooks"}, "subsets": [subset]}
    objects = Objects(Service=[service()], Endpoints=[endpoints])
    assert resolve_service(objects, "team", "hooks", 443) == EndpointAddress("192.0.2.1", 8443)


@pytest.mark.parametrize("selector", [None, {"app": "none"}])
def test_service_without_pods_is_a_process_of_this_machine(selector: Mapping[str, str] | None) -> None:
    objects = Objects(Service=[service(ports=[{"port": 443, "targetPort": 9443}], selector=selector)])
    assert resolve_service(objects, "team", "hooks", 443) == EndpointAddress("127.0.0.1", 9443)


@pytest.mark.parametrize(
    ("services", "port", "problem"),
    [
        ([], 443, 'service "hooks" not found'),
        ([service()], 80, 'no service port 80 found for service "hooks"'),
        ([service(selector={"a": "b"})], 443, 'no endpoints available for service "hooks"'),
        ([service(type="ExternalName")], 443, 'unsupported service type "ExternalName"'),
    ],
)
def test_missing_address_is_reported(services: Sequence[Obj], port: int, problem: str) -> None:
    with pytest.raises(WebhookCallError, match=problem):
        resolve_service(Objects(Service=services), "team", "hooks", port)
