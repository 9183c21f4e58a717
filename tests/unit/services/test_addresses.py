"""Services get cluster IPs and node ports, which no two Services share and which do not change."""

from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Any

import pytest

from batchyard.api.meta import Obj
from batchyard.apiserver.request import Response
from batchyard.services.addresses import ServiceAddresses
from unit.apiserver.api import Api

SERVICES = "/api/v1/namespaces/team/services"
PORT = {"port": 80, "protocol": "TCP"}


def service(name: str = "web", **spec: Any) -> Obj:
    fields = {"ports": [PORT], "selector": {"app": "web"}, **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": fields}


def create(api: Api, name: str = "web", **spec: Any) -> Mapping[str, Any]:
    """Create a Service, and return its spec."""
    return api.post(SERVICES, service(name, **spec))["spec"]  # type: ignore[no-any-return]


def update(api: Api, name: str = "web", **spec: Any) -> Mapping[str, Any]:
    """Patch the spec of a Service, and return the new one."""
    return patch(api, name, **spec).body["spec"]  # type: ignore[no-any-return]


def patch(api: Api, name: str = "web", **spec: Any) -> Response:
    """Patch the spec of a Service."""
    headers = {"content-type": "application/merge-patch+json"}
    return api.ask("PATCH", f"{SERVICES}/{name}", {"spec": spec}, headers=headers)


def rejection(api: Api, **spec: Any) -> str:
    """Return the message with which a new Service is rejected."""
    response = api.ask("POST", SERVICES, service("other", **spec))
    assert response.code == 422, response
    return str(response.body["message"])


def test_service_gets_an_address() -> None:
    spec = create(Api())
    assert spec["clusterIP"].startswith("10.96.")
    assert spec["clusterIPs"] == [spec["clusterIP"]]
    assert (spec["ipFamilies"], spec["ipFamilyPolicy"]) == (["IPv4"], "SingleStack")


def test_headless_service_has_no_address() -> None:
    api = Api()
    spec = create(api, clusterIP="None")
    assert (spec["clusterIP"], spec["clusterIPs"], spec["ipFamilies"]) == ("None", ["None"], ["IPv4"])
    without_selector = create(api, "open", clusterIP="None", selector=None)
    assert without_selector["ipFamilies"] == ["IPv4", "IPv6"]
    assert without_selector["ipFamilyPolicy"] == "RequireDualStack"


def test_services_do_not_share_an_address() -> None:
    api = Api()
    addresses = {create(api, f"s{number}")["clusterIP"] for number in range(300)}
    assert len(addresses) == 300


def test_chosen_address_must_be_free_and_in_the_range() -> None:
    api = Api()
    assert create(api, clusterIP="10.96.0.50")["clusterIP"] == "10.96.0.50"
    problems = {
        "10.96.0.50": "provided IP is already allocated",
        "10.96.0.1": "provided IP is already allocated",
        "10.97.0.1": "the provided IP (10.97.0.1) is not in the valid range. The range of valid IPs is 10.96.0.0/16",
        "10.96.255.255": "is not in the valid range",
    }
    for address, problem in problems.items():
        assert problem in rejection(api, clusterIP=address)


def test_full_range_is_reported() -> None:
    addresses = ServiceAddresses("10.1.0.0/29")
    used: list[Obj] = []
    for number in range(5):
        given = {**service(f"s{number}"), "metadata": {"name": f"s{number}", "namespace": "team", "uid": str(number)}}
        used.append(addresses.complete_new(given, ListedServices(used)))
    assert sorted(each["spec"]["clusterIP"] for each in used) == [f"10.1.0.{number}" for number in range(2, 7)]
    with pytest.raises(Exception, match='failed to allocate a serviceIP for Service "web": range is full'):
        addresses.complete_new({**service(), "metadata": {"name": "web", "namespace": "team"}}, ListedServices(used))


class ListedServices:
    """A reader of given Services."""

    def __init__(self, services: list[Obj]) -> None:
        self._services = services

    def get(self, key: object) -> None:
        """Return nothing: the allocation only lists."""

    def list(self, kind: str, namespace: str | None = None) -> list[Obj]:
        """Return the Services."""
        return self._services


def test_address_stays() -> None:
    api = Api()
    address = create(api)["clusterIP"]
    assert update(api, clusterIP=None, clusterIPs=None)["clusterIP"] == address
    replaced = api.ask("PUT", f"{SERVICES}/web", service())
    assert replaced.body["spec"]["clusterIP"] == address
    assert (
        patch(api, clusterIP="10.96.0.99")
        .body["message"]
        .startswith(
            'Service "web" is invalid: spec.clusterIPs[0]: Invalid value: ["10.96.0.99"]: may not change once set'
        )
    )


def test_address_follows_the_type() -> None:
    api = Api()
    create(api)
    external = update(api, type="ExternalName", externalName="db.example.com")
    assert not external.keys() & {"clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"}
    assert update(api, type="ClusterIP", externalName=None)["clusterIP"].startswith("10.96.")


def test_node_ports_are_allocated_kept_and_released() -> None:
    api = Api()
    create(api)
    named = {**PORT, "name": "a"}
    (port,) = update(api, type="NodePort", ports=[named])["ports"]
    assert 30000 <= port["nodePort"] <= 32767
    assert update(api, ports=[named, {"name": "b", "port": 81, "protocol": "TCP"}])["ports"][0] == port
    assert all("nodePort" not in each for each in update(api, type="ClusterIP")["ports"])


def test_node_ports_do_not_clash() -> None:
    api = Api()
    taken = {**PORT, "nodePort": 30100}
    assert create(api, type="NodePort", ports=[taken])["ports"][0]["nodePort"] == 30100
    message = rejection(api, type="NodePort", ports=[taken])
    assert "spec.ports[0].nodePort: Invalid value: 30100: provided port is already allocated" in message
    message = rejection(api, type="NodePort", ports=[{**PORT, "nodePort": 443}])
    assert "The range of valid ports is 30000-32767" in message


def test_protocols_of_a_port_share_a_node_port() -> None:
    ports = [{"name": "t", "port": 53, "protocol": "TCP"}, {"name": "u", "port": 53, "protocol": "UDP"}]
    first, second = create(Api(), type="NodePort", ports=ports)["ports"]
    assert first["nodePort"] == second["nodePort"]


def test_local_load_balancer_has_a_health_check_port() -> None:
    spec = create(Api(), type="LoadBalancer", externalTrafficPolicy="Local")
    assert spec["healthCheckNodePort"] not in {0, spec["ports"][0]["nodePort"]}


def test_dual_stack_is_rejected() -> None:
    api = Api()
    message = rejection(api, ipFamilyPolicy="RequireDualStack")
    assert "this cluster is not configured for dual-stack services" in message
    message = rejection(api, ipFamilies=["IPv6"])
    assert 'spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster' in message


@pytest.mark.parametrize("cidr", ["10.96.0.0/31", "10.0.0.0/8", "fd00::/112", "10.96.0.1/16", "x"])
def test_unusable_ranges_are_rejected(cidr: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ServiceAddresses(cidr)


@pytest.mark.parametrize("address", ["10.96.0.50", "10.96.0.1", "10.77.0.1", "10.97.0.1"])
@pytest.mark.parametrize("old_ip", ["None", None])
def test_former_external_name_cannot_take_an_address(address: str, old_ip: str | None) -> None:
    api = Api()
    create(api, "victim", clusterIP="10.96.0.50")
    create(api, type="ExternalName", externalName="x.example", clusterIP=old_ip)
    response = patch(api, type="ClusterIP", externalName=None, clusterIP=address, clusterIPs=[address])
    assert response.code == 422
    assert f"failed to allocate IP {address}" in response.body["message"]
    free = update(api, type="ClusterIP", externalName=None, clusterIP="10.96.0.51")
    assert (free["clusterIP"], free["clusterIPs"]) == ("10.96.0.51", ["10.96.0.51"])


def address_errors(api: Api) -> list[str]:
    """Return what is wrong with the addresses of the stored Services."""
    specs = [each["spec"] for each in api.get("/api/v1/services")["items"]]
    specs = [spec for spec in specs if spec["type"] != "ExternalName"]
    addresses = [spec["clusterIP"] for spec in specs if spec["clusterIP"] != "None"]
    wrong = [f"{address} is shared" for address in set(addresses) if addresses.count(address) > 1]
    first, last = IPv4Address("10.96.0.2"), IPv4Address("10.96.255.254")
    wrong += [f"{address} is not usable" for address in addresses if not first <= IPv4Address(address) <= last]
    return wrong + [f"{spec} differs" for spec in specs if spec["clusterIPs"] != [spec["clusterIP"]]]


EXTERNAL = {"type": "ExternalName", "externalName": "x.example"}
STATES = {"ClusterIP": {}, "NodePort": {}, "LoadBalancer": {}, "ExternalName": EXTERNAL, "None": {"clusterIP": "None"}}
VICTIM = "10.96.0.50"
ADDRESSES = ("", "None", VICTIM, "10.96.0.60", "10.96.0.1", "10.97.0.1")
#: Values of clusterIP and clusterIPs.
CHOICES = [
    *((address, None) for address in (None, *ADDRESSES)),
    *((address, [address]) for address in ADDRESSES),
    *((address, [VICTIM]) for address in (None, "", "None", "10.96.0.60")),
    ("10.96.0.60", ["10.96.0.60", VICTIM]),
    ("None", ["None", "None"]),
    (None, []),
]


def state(kind: str, **spec: Any) -> dict[str, Any]:
    """Return the spec of a type of Service, or of a headless one, without null fields."""
    fields = {"type": "ClusterIP" if kind == "None" else kind, **STATES[kind], **spec}
    return {name: value for name, value in fields.items() if value is not None}


@pytest.mark.parametrize("old", STATES)
@pytest.mark.parametrize("new", STATES)
@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_no_change_of_type_takes_an_address(old: str, new: str, method: str) -> None:
    api = Api()
    create(api, "victim", clusterIP=VICTIM)
    for address, addresses in CHOICES:
        api.ask("DELETE", f"{SERVICES}/web")
        create(api, **state(old))
        given: dict[str, Any] = {"clusterIP": address, "clusterIPs": addresses}
        if method == "PUT":
            response = api.ask("PUT", f"{SERVICES}/web", service(**state(new, **given)))
        else:
            response = patch(api, type=state(new)["type"], externalName=STATES[new].get("externalName"), **given)
        assert response.code in {200, 422}, response
        assert address_errors(api) == [], given


@pytest.mark.parametrize("kind", ["ClusterIP", "NodePort", "LoadBalancer"])
def test_cluster_ips_must_match(kind: str) -> None:
    message = rejection(Api(), type=kind, clusterIP="10.96.0.60", clusterIPs=["10.96.0.61"])
    assert 'spec.clusterIPs: Invalid value: ["10.96.0.61"]: first value must match `clusterIP`' in message
    message = rejection(Api(), type=kind, clusterIPs=["10.96.0.61"])
    assert "must be empty when `clusterIP` is not specified" in message
    api = Api()
    create(api, type=kind)
    assert "first value must match `clusterIP`" in patch(api, clusterIPs=["10.96.0.61"]).body["message"]


def test_pair_of_addresses_is_rejected() -> None:
    pair = {"clusterIP": "10.96.0.60", "clusterIPs": ["10.96.0.60", "10.96.0.61"]}
    assert "may specify no more than one IP for each IP family" in rejection(Api(), **pair)
    assert "spec.clusterIPs: Forbidden: may not be set" in rejection(Api(), **EXTERNAL, clusterIPs=[VICTIM])
    headless = rejection(Api(), type="NodePort", clusterIP="None")
    assert "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services" in headless


@pytest.mark.parametrize("address", [VICTIM, "10.97.0.1"])
def test_service_of_the_api_cannot_take_an_address(address: str) -> None:
    api, path = Api(), "/api/v1/namespaces/default/services"
    create(api, "victim", clusterIP=VICTIM)
    response = api.ask("POST", path, service("kubernetes", clusterIP=address))
    assert f"failed to allocate IP {address}" in response.body["message"]
    assert api.post(path, service("kubernetes", clusterIP="10.96.0.1"))["spec"]["clusterIPs"] == ["10.96.0.1"]
