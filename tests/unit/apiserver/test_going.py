"""Objects that are being deleted, and which of them go together."""

from typing import Any

from unit.apiserver.api import Api

MAPS = "/api/v1/namespaces/team/configmaps"
MERGE = {"content-type": "application/merge-patch+json"}


def going() -> Api:
    """A ConfigMap that is deleted, and held by two."""
    api = Api()
    api.post(MAPS, {"metadata": {"name": "a", "finalizers": ["example.com/x", "example.com/y"]}})
    api.ask("DELETE", f"{MAPS}/a")
    return api


def held_by(api: Api, *finalizers: str) -> Any:
    return api.ask("PATCH", f"{MAPS}/a", {"metadata": {"finalizers": [*finalizers]}}, headers=MERGE)


def test_nobody_else_holds_what_is_being_deleted() -> None:
    api = going()
    answer = held_by(api, "example.com/x", "example.com/z")
    reported = 'found new finalizers []string{"example.com/z"}'
    assert (answer.code, reported in answer.body["message"]) == (422, True)
    assert answer.body["details"]["causes"][0]["field"] == "metadata.finalizers"


def test_who_held_it_may_let_it_go() -> None:
    api = going()
    assert held_by(api, "example.com/y").body["metadata"]["finalizers"] == ["example.com/y"]
    assert held_by(api).code == 200
    assert api.ask("GET", f"{MAPS}/a").code == 404


def test_namespaces_go_one_by_one() -> None:
    api = Api()
    assert api.ask("DELETE", "/api/v1/namespaces").code == 405
    verbs = {each["name"]: each["verbs"] for each in api.get("/api/v1")["resources"]}
    assert ("deletecollection" in verbs["namespaces"], "deletecollection" in verbs["configmaps"]) == (False, True)


def test_nobody_cares_for_a_name_alone() -> None:
    assert "managedFields" not in Api().post(MAPS, {"metadata": {"name": "a"}})["metadata"]


def test_nothing_goes_by_its_status() -> None:
    api, jobs = Api(), "/apis/batch/v1/namespaces/team/jobs"
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    api.post(jobs, {"metadata": {"name": "a"}, "spec": {"template": template}})
    assert api.ask("DELETE", f"{jobs}/a/status").code == 405
    assert api.get(f"{jobs}/a")["metadata"]["name"] == "a"


def test_no_more_go_together_than_are_asked_for() -> None:
    api = Api()
    for name in ("b", "a", "c"):
        api.post(MAPS, {"metadata": {"name": name, "labels": {"l": "1"}}})
    answer = api.ask("DELETE", f"{MAPS}?labelSelector=l&limit=2")
    assert [item["metadata"]["name"] for item in answer.body["items"]] == ["a", "b"]
    assert [item["metadata"]["name"] for item in api.get(f"{MAPS}?labelSelector=l")["items"]] == ["c"]
    assert api.ask("DELETE", f"{MAPS}?limit=x").code == 400


def test_what_goes_together_is_what_was_meant() -> None:
    api = Api()
    first = api.post(MAPS, {"metadata": {"name": "a"}})["metadata"]
    api.post(MAPS, {"metadata": {"name": "b"}})
    answer = api.ask("DELETE", MAPS, {"preconditions": {"resourceVersion": first["resourceVersion"]}})
    assert (answer.code, answer.body["reason"], answer.body["details"]["name"]) == (409, "Conflict", "b")
    assert "the ResourceVersion in the precondition" in answer.body["message"]
    assert [item["metadata"]["name"] for item in api.get(MAPS)["items"]] == ["b"]
