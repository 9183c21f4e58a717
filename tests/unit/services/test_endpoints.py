"""Endpoints and EndpointSlices follow the pods of Services, and EndpointSlices mirror custom Endpoints."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.services.controller import EndpointController, EndpointsMirrorController
from batchyard.services.endpoints import repack_subsets, truncated_subsets
from stage import Stage

HTTP = {"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP"}


class ServicesWorld(Stage):
    """A stage with the controllers of endpoints, and a node."""

    def __init__(self) -> None:
        super().__init__(EndpointController(), EndpointsMirrorController())
        zone = {"topology.kubernetes.io/zone": "a"}
        self.put({"apiVersion": "v1", "kind": "Node", "metadata": make.metadata("n1", None, labels=zone)})

    def messages(self, reason: str) -> list[str]:
        """Return the messages of the Events with a reason."""
        return [event.message for event in self.events if event.reason == reason]

    def slices(self) -> list[Obj]:
        """Return all EndpointSlices."""
        return list(self.client.list(scheme.ENDPOINT_SLICE))

    def ready_addresses(self) -> list[str]:
        """Return the addresses of the ready endpoints of all slices."""
        endpoints = [each for slice_ in self.slices() for each in slice_["endpoints"]]
        return sorted(each["addresses"][0] for each in endpoints if each["conditions"]["ready"])


def service(name: str = "web", **spec: Any) -> Obj:
    fields = {"clusterIP": "10.96.0.9", "ipFamilies": ["IPv4"], "selector": {"app": "web"}, "ports": [HTTP]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": make.metadata(name), "spec": {**fields, **spec}}


def pod(number: int, *, ready: bool = True, port: int = 8080, **spec: Any) -> Obj:
    container = {"name": "c", "image": "i", "ports": [{"name": "web", "containerPort": port}]}
    address = f"10.77.{number // 250}.{number % 250 + 2}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": make.metadata(f"p{number:04}", labels={"app": "web"}),
        "spec": {"nodeName": "n1", "containers": [container], **spec},
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [make.condition("Ready", ready)],
        },
    }


def test_slice_of_a_service_lists_its_pods() -> None:
    world = ServicesWorld()
    world.put(service(), pod(1), pod(2, ready=False))
    world.run(2)
    (slice_,) = world.slices()
    metadata = slice_["metadata"]
    assert metadata["labels"] == {
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
    }
    assert metadata["ownerReferences"][0]["kind"] == "Service"
    assert slice_["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
    first, second = slice_["endpoints"]
    assert first["conditions"] == {"ready": True, "serving": True, "terminating": False}
    assert second["conditions"] == {"ready": False, "serving": False, "terminating": False}
    assert (first["nodeName"], first["zone"], first["targetRef"]["name"]) == ("n1", "a", "p0001")


def test_endpoints_object_separates_unready_pods() -> None:
    world = ServicesWorld()
    world.put(pod(1), pod(2, ready=False), service())
    endpoints = world.get(scheme.ENDPOINTS, "web")
    (subset,) = endpoints["subsets"]
    assert [each["ip"] for each in subset["addresses"]] == ["10.77.0.3"]
    assert [each["ip"] for each in subset["notReadyAddresses"]] == ["10.77.0.4"]
    assert subset["ports"] == [{"port": 8080, "protocol": "TCP", "name": "http"}]
    assert endpoints["metadata"]["labels"] == {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}


def test_terminating_pod_is_serving_but_not_ready() -> None:
    world = ServicesWorld()
    world.put(service(), pod(1))
    world.delete(scheme.POD, "p0001")
    world.run(2)
    (endpoint,) = world.slices()[0]["endpoints"]
    assert endpoint["conditions"] == {"ready": False, "serving": True, "terminating": True}
    assert "subsets" not in world.get(scheme.ENDPOINTS, "web")


def test_unready_pods_are_published_on_request() -> None:
    world = ServicesWorld()
    headless = service(clusterIP="None", publishNotReadyAddresses=True)
    world.put(headless, pod(1, ready=False, hostname="h", subdomain="web"))
    world.run(2)
    (slice_,) = world.slices()
    (endpoint,) = slice_["endpoints"]
    assert (endpoint["conditions"]["ready"], endpoint["hostname"]) == (True, "h")
    assert slice_["metadata"]["labels"]["service.kubernetes.io/headless"] == ""


def test_service_without_pods_has_an_empty_slice() -> None:
    world = ServicesWorld()
    world.put(service())
    (slice_,) = world.slices()
    assert (slice_["endpoints"], slice_["ports"]) == ([], [])
    world.put(pod(1))
    world.run(2)
    (filled,) = world.slices()
    assert filled["metadata"]["name"] == slice_["metadata"]["name"]
    assert len(filled["endpoints"]) == 1
    world.delete(scheme.POD, "p0001")
    world.put({**pod(1), "status": {"phase": "Failed"}})
    world.run(4)
    (empty,) = world.slices()
    assert (empty["endpoints"], empty["ports"]) == ([], [])


def test_slices_have_at_most_100_endpoints() -> None:
    world = ServicesWorld()
    world.put(*(pod(number) for number in range(250)), service())
    assert sorted(len(each["endpoints"]) for each in world.slices()) == [50, 100, 100]
    names = {each["metadata"]["name"] for each in world.slices()}
    world.put(*(pod(number) for number in range(250, 290)))
    world.run(2)
    assert sorted(len(each["endpoints"]) for each in world.slices()) == [90, 100, 100]
    assert {each["metadata"]["name"] for each in world.slices()} == names


def test_pods_with_other_port_numbers_have_their_own_slice() -> None:
    world = ServicesWorld()
    world.put(pod(1), pod(2, port=9090), service())
    assert sorted(each["ports"][0]["port"] for each in world.slices()) == [8080, 9090]
    ports = [subset["ports"][0]["port"] for subset in world.get(scheme.ENDPOINTS, "web")["subsets"]]
    assert ports == [8080, 9090]


def test_changes_are_batched() -> None:
    world = ServicesWorld()
    world.put(service())
    first_revision = world.store.revision
    world.put(*(pod(number) for number in range(20)))
    assert world.store.revision == first_revision + 20  # one revision for each pod
    world.run(2)
    assert len(world.ready_addresses()) == 20
    assert world.store.revision == first_revision + 22  # one slice, one Endpoints object


def test_deleted_slice_is_created_again() -> None:
    world = ServicesWorld()
    world.put(pod(1), service())
    name = world.slices()[0]["metadata"]["name"]
    world.delete(scheme.ENDPOINT_SLICE, name)
    world.run(2)
    assert world.ready_addresses() == ["10.77.0.3"]


def test_deleted_service_has_neither_slices_nor_endpoints() -> None:
    world = ServicesWorld()
    world.put(pod(1), service())
    world.delete(scheme.SERVICE, "web")
    assert (world.slices(), list(world.client.list(scheme.ENDPOINTS))) == ([], [])


def test_custom_endpoints_are_mirrored() -> None:
    world = ServicesWorld()
    ports = [{"name": "db", "port": 5432, "protocol": "TCP"}]
    subset = {"addresses": [{"ip": "192.0.2.1"}], "notReadyAddresses": [{"ip": "2001:db8::1"}], "ports": ports}
    custom = {"apiVersion": "v1", "kind": "Endpoints", "metadata": make.metadata("db"), "subsets": [subset]}
    world.put(service("db", selector=None), custom)
    by_family = {each["addressType"]: each for each in world.slices()}
    assert by_family["IPv4"]["endpoints"] == [{"addresses": ["192.0.2.1"], "conditions": {"ready": True}}]
    assert by_family["IPv6"]["endpoints"] == [{"addresses": ["2001:db8::1"], "conditions": {"ready": False}}]
    assert by_family["IPv4"]["ports"] == ports
    owner = by_family["IPv4"]["metadata"]["ownerReferences"][0]
    assert owner["kind"] == "Endpoints"
    world.delete(scheme.ENDPOINTS, "db")
    assert world.slices() == []


def test_mirrors_are_limited() -> None:
    world = ServicesWorld()
    addresses = [{"ip": f"192.0.{number // 200}.{number % 200}"} for number in range(1100)]
    subsets = [{"addresses": [{"ip": "+"}, *addresses], "ports": [{"port": 1, "protocol": "TCP"}]}]
    custom = {"apiVersion": "v1", "kind": "Endpoints", "metadata": make.metadata("db"), "subsets": subsets}
    world.put(service("db", selector=None), custom)
    assert sum(len(each["endpoints"]) for each in world.slices()) == 1000
    assert world.messages("InvalidIPAddress") == ["Skipped 1 invalid IP addresses when mirroring to EndpointSlices"]
    (message,) = world.messages("TooManyAddressesToMirror")
    assert message.endswith("101 addresses were skipped")


def test_large_endpoints_objects_are_truncated() -> None:
    addresses = [{"ip": f"10.0.{number // 250}.{number % 250}"} for number in range(1500)]
    subsets, is_truncated = truncated_subsets([{"addresses": addresses[:1100], "notReadyAddresses": addresses[1100:]}])
    assert is_truncated
    assert [len(subset["addresses"]) for subset in subsets] == [1000]
    assert "notReadyAddresses" not in subsets[0]


def test_ports_with_the_same_addresses_share_a_subset() -> None:
    address, first, second = {"ip": "10.0.0.1"}, {"port": 1, "protocol": "TCP"}, {"port": 2, "protocol": "TCP"}
    subsets = [{"addresses": [address], "ports": [second]}, {"addresses": [address], "ports": [first]}]
    assert repack_subsets(subsets) == [{"addresses": [address], "ports": [first, second]}]
