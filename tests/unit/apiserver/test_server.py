"""Discovery, health, defaults, and paths that do not exist."""

import pytest

from batchyard.apiserver.request import Response, UserInfo
from unit.apiserver.api import Api, config_map

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def test_discovery_sorts_groups_like_kubernetes_and_resources_by_name() -> None:
    api = Api()
    groups = [group["name"] for group in api.get("/apis")["groups"]]
    assert groups[:3] == ["apps", "authentication.k8s.io", "authorization.k8s.io"]
    assert groups.index("coordination.k8s.io") < groups.index("autoscaling.x-k8s.io") < groups.index("kueue.x-k8s.io")
    names = [each["name"] for each in api.get("/api/v1")["resources"] if "/" not in each["name"]]
    assert names == sorted(names)


def test_both_discovery_formats_list_same_resources() -> None:
    api = Api()
    listed = [each["name"] for each in api.get("/apis/batch/v1")["resources"] if "/" not in each["name"]]
    (batch,) = [each for each in api.get("/apis", accept=AGGREGATED)["items"] if each["metadata"]["name"] == "batch"]
    assert [each["resource"] for each in batch["versions"][0]["resources"]] == listed == ["cronjobs", "jobs"]


def test_unknown_path_returns_kubernetes_404_page() -> None:
    for path in ("/apis/example.com/v1/things", "/api/v1/namespaces/team/pods/a/nothing", "/nothing"):
        answer = Api().ask("GET", path)
        assert (answer.code, answer.body) == (404, "404 page not found\n")


@pytest.mark.parametrize("check", ["livez", "readyz", "healthz"])
def test_health_endpoints_return_ok_or_verbose_checks(check: str) -> None:
    assert Api().get(f"/{check}") == "ok"
    assert Api().get(f"/{check}?verbose=") == f"[+]ping ok\n{check} check passed\n"


def test_metadata_has_no_empty_fields() -> None:
    sent = config_map("a", colour="red")
    empty: dict[str, object] = {"labels": {}, "annotations": {}, "finalizers": [], "ownerReferences": []}
    created = Api().post("/api/v1/namespaces/team/configmaps", {**sent, "metadata": {"name": "a", **empty}})
    assert not created["metadata"].keys() & empty.keys()


def test_secret_without_type_is_opaque() -> None:
    created = Api().post("/api/v1/namespaces/team/secrets", {"metadata": {"name": "a"}})
    assert created["type"] == "Opaque"


def test_put_on_platform_path_needs_right_for_put() -> None:
    api = Api()
    api.server.add_put_handler("/batchyard/clock", lambda request: Response(200, {"sent": request.body.decode()}))
    assert api.ask("PUT", "/batchyard/clock", {"until": 1}).body == {"sent": '{"until":1}'}
    assert (
        api.ask("PUT", "/batchyard/clock", {"until": 1}, user=UserInfo("guest", ("system:authenticated",))).code == 403
    )
    assert api.ask("PUT", "/batchyard/other", {}).code == 404
