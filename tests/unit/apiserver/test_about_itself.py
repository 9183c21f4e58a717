"""What the server tells of itself as objects: who serves what, how its parts are, where it is reached."""

from batchyard.api.decode import decode
from batchyard.api.tables import row
from batchyard.apiserver.own_service import own_service
from unit.apiserver.api import Api

SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def test_every_version_of_every_group_has_its_service() -> None:
    found = {item["metadata"]["name"]: item["spec"] for item in Api().get(SERVICES)["items"]}
    assert {"v1.", "v1.batch", "v1beta2.kueue.x-k8s.io", "v1beta1.metrics.k8s.io"} <= found.keys()
    assert "group" not in found["v1."]
    newest, oldest = found["v1beta2.kueue.x-k8s.io"], found["v1beta1.kueue.x-k8s.io"]
    assert newest["versionPriority"] > oldest["versionPriority"]


def test_they_are_all_here_and_available() -> None:
    table = Api().get(f"{SERVICES}/v1.batch", accept=TABLE)
    assert table["rows"][0]["cells"][:3] == ["v1.batch", "Local", "True"]
    assert Api().ask("GET", f"{SERVICES}/v9.batch").code == 404
    assert Api().ask("POST", SERVICES, {}).code == 405


def test_who_asks_how_its_parts_are_is_told_that_nobody_asks_so_any_more() -> None:
    answer = Api().ask("GET", "/api/v1/componentstatuses")
    assert [item["metadata"]["name"] for item in answer.body["items"]] == ["controller-manager", "journal", "scheduler"]
    assert answer.warnings == ("v1 ComponentStatus is deprecated in v1.19+",)


def test_versions_that_are_deprecated_say_so_whoever_asks() -> None:
    answer = Api().ask("GET", "/apis/kueue.x-k8s.io/v1beta1/clusterqueues")
    assert answer.warnings == ("This version is deprecated. Use v1beta2 instead.",)
    assert Api().ask("GET", "/apis/kueue.x-k8s.io/v1beta2/clusterqueues").warnings == ()


def test_its_own_service_leads_to_where_it_listens() -> None:
    service, endpoints, found = (decode(obj).obj for obj in own_service("127.0.0.1", 6443, is_secure=True))
    assert service is not None
    assert endpoints is not None
    assert found is not None
    assert row(service, now=0, wide=False)[:5] == ["kubernetes", "ClusterIP", "None", "<none>", "443/TCP"]
    assert row(endpoints, now=0, wide=False)[1] == "127.0.0.1:6443"
    assert row(found, now=0, wide=False)[1:4] == ["IPv4", "6443", "127.0.0.1"]


def test_it_may_listen_on_an_address_of_either_kind() -> None:
    assert own_service("::1", 1, is_secure=False)[2]["addressType"] == "IPv6"


def test_what_is_counted_is_a_number() -> None:
    api, path = Api(), "/api/v1/namespaces/team/configmaps"
    api.post(path, {"metadata": {"name": "a"}, "data": {"x": "1", "y": "2"}})
    assert api.get(path, accept=TABLE)["rows"][0]["cells"][:2] == ["a", 2]


def test_the_root_lists_what_can_be_asked() -> None:
    paths = Api().get("/")["paths"]
    assert paths == sorted(paths)
    assert {"/api/v1", "/apis", "/apis/batch", "/apis/batch/v1", "/openapi/v3", "/readyz", "/version"} <= {*paths}
