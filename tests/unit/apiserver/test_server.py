"""What the server tells of itself, and of what is not there."""

import pytest

from batchyard.apiserver.request import Response, UserInfo
from unit.apiserver.api import Api, config_map

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def test_groups_are_listed_in_kubernetes_order_and_resources_by_name() -> None:
    api = Api()
    groups = [group["name"] for group in api.get("/apis")["groups"]]
    assert groups[:3] == ["apps", "authentication.k8s.io", "authorization.k8s.io"]
    assert groups.index("coordination.k8s.io") < groups.index("autoscaling.x-k8s.io") < groups.index("kueue.x-k8s.io")
    names = [each["name"] for each in api.get("/api/v1")["resources"] if "/" not in each["name"]]
    assert names == sorted(names)


def test_both_forms_of_discovery_list_the_same() -> None:
    api = Api()
    listed = [each["name"] for each in api.get("/apis/batch/v1")["resources"] if "/" not in each["name"]]
    (batch,) = [each for each in api.get("/apis", accept=AGGREGATED)["items"] if each["metadata"]["name"] == "batch"]
    assert [each["resource"] for each in batch["versions"][0]["resources"]] == listed == ["cronjobs", "jobs"]


def test_where_nothing_is_the_answer_is_a_page_as_kubernetes_has_it() -> None:
    for path in ("/apis/example.com/v1/things", "/api/v1/namespaces/team/pods/a/nothing", "/nothing"):
        answer = Api().ask("GET", path)
        assert (answer.code, answer.body) == (404, "404 page not found\n")


@pytest.mark.parametrize("check", ["livez", "readyz", "healthz"])
def test_health_is_told_in_one_word_or_check_by_check(check: str) -> None:
    assert Api().get(f"/{check}") == "ok"
    assert Api().get(f"/{check}?verbose=") == f"[+]ping ok\n{check} check passed\n"


def test_metadata_has_no_empty_fields() -> None:
    sent = config_map("a", colour="red")
    empty: dict[str, object] = {"labels": {}, "annotations": {}, "finalizers": [], "ownerReferences": []}
    made = Api().post("/api/v1/namespaces/team/configmaps", {**sent, "metadata": {"name": "a", **empty}})
    assert not made["metadata"].keys() & empty.keys()


def test_a_secret_of_no_type_is_opaque() -> None:
    made = Api().post("/api/v1/namespaces/team/secrets", {"metadata": {"name": "a"}})
    assert made["type"] == "Opaque"


def test_what_is_put_on_a_path_of_the_platform_is_for_those_with_that_verb() -> None:
    api = Api()
    api.server.add_put_handler("/batchyard/clock", lambda request: Response(200, {"sent": request.body.decode()}))
    assert api.ask("PUT", "/batchyard/clock", {"until": 1}).body == {"sent": '{"until":1}'}
    assert (
        api.ask("PUT", "/batchyard/clock", {"until": 1}, user=UserInfo("guest", ("system:authenticated",))).code == 403
    )
    assert api.ask("PUT", "/batchyard/other", {}).code == 404
