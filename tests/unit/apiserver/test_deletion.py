"""Deletion: finalizers, subresources and collections."""

from typing import Any

from unit.apiserver.api import Api

MAPS = "/api/v1/namespaces/team/configmaps"
JOBS = "/apis/batch/v1/namespaces/team/jobs"
MERGE = {"content-type": "application/merge-patch+json"}


def api_with_deleted_map() -> Api:
    """A server with a deleted ConfigMap, whose removal two finalizers delay."""
    api = Api()
    api.post(MAPS, {"metadata": {"name": "a", "finalizers": ["example.com/x", "example.com/y"]}})
    api.ask("DELETE", f"{MAPS}/a")
    return api


def with_finalizers(api: Api, *finalizers: str) -> Any:
    return api.ask("PATCH", f"{MAPS}/a", {"metadata": {"finalizers": [*finalizers]}}, headers=MERGE)


def test_deleting_object_rejects_new_finalizers() -> None:
    api = api_with_deleted_map()
    answer = with_finalizers(api, "example.com/x", "example.com/z")
    reported = 'found new finalizers []string{"example.com/z"}'
    assert (answer.code, reported in answer.body["message"]) == (422, True)
    assert answer.body["details"]["causes"][0]["field"] == "metadata.finalizers"


def test_deleting_object_is_gone_without_finalizers() -> None:
    api = api_with_deleted_map()
    assert with_finalizers(api, "example.com/y").body["metadata"]["finalizers"] == ["example.com/y"]
    assert with_finalizers(api).code == 200
    assert api.ask("GET", f"{MAPS}/a").code == 404


def test_delete_collection_of_namespaces_is_rejected() -> None:
    api = Api()
    assert api.ask("DELETE", "/api/v1/namespaces").code == 405
    verbs = {each["name"]: each["verbs"] for each in api.get("/api/v1")["resources"]}
    assert ("deletecollection" in verbs["namespaces"], "deletecollection" in verbs["configmaps"]) == (False, True)


def test_object_with_name_only_has_no_managed_fields() -> None:
    assert "managedFields" not in Api().post(MAPS, {"metadata": {"name": "a"}})["metadata"]


def test_status_subresource_rejects_delete() -> None:
    api = Api()
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    api.post(JOBS, {"metadata": {"name": "a"}, "spec": {"template": template}})
    assert api.ask("DELETE", f"{JOBS}/a/status").code == 405
    assert api.get(f"{JOBS}/a")["metadata"]["name"] == "a"


def test_delete_collection_respects_limit() -> None:
    api = Api()
    for name in ("b", "a", "c"):
        api.post(MAPS, {"metadata": {"name": name, "labels": {"l": "1"}}})
    answer = api.ask("DELETE", f"{MAPS}?labelSelector=l&limit=2")
    assert [item["metadata"]["name"] for item in answer.body["items"]] == ["a", "b"]
    assert [item["metadata"]["name"] for item in api.get(f"{MAPS}?labelSelector=l")["items"]] == ["c"]
    assert api.ask("DELETE", f"{MAPS}?limit=x").code == 400


def test_delete_collection_checks_preconditions() -> None:
    api = Api()
    first = api.post(MAPS, {"metadata": {"name": "a"}})["metadata"]
    api.post(MAPS, {"metadata": {"name": "b"}})
    answer = api.ask("DELETE", MAPS, {"preconditions": {"resourceVersion": first["resourceVersion"]}})
    assert (answer.code, answer.body["reason"], answer.body["details"]["name"]) == (409, "Conflict", "b")
    assert "the ResourceVersion in the precondition" in answer.body["message"]
    assert [item["metadata"]["name"] for item in api.get(MAPS)["items"]] == ["b"]


def api_with_job_in_foreground_deletion() -> Api:
    """A server with a Job in foreground deletion, which waits for a ConfigMap with a finalizer."""
    api = Api()
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    uid = api.post(JOBS, {"metadata": {"name": "a"}, "spec": {"template": template}})["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": uid, "blockOwnerDeletion": True}
    api.post(MAPS, {"metadata": {"name": "held", "finalizers": ["example.com/x"], "ownerReferences": [owner]}})
    api.ask("DELETE", f"{JOBS}/a?propagationPolicy=Foreground")
    return api


def test_second_deletion_without_policy_continues_foreground_deletion() -> None:
    api = api_with_job_in_foreground_deletion()
    api.ask("DELETE", f"{JOBS}/a")
    api.ask("DELETE", JOBS)
    assert api.get(f"{JOBS}/a")["metadata"]["finalizers"] == ["foregroundDeletion"]


def test_second_deletion_that_orphans_removes_owner() -> None:
    api = api_with_job_in_foreground_deletion()
    api.ask("DELETE", f"{JOBS}/a?propagationPolicy=Orphan")
    assert api.ask("GET", f"{JOBS}/a").code == 404
    assert "ownerReferences" not in api.get(f"{MAPS}/held")["metadata"]


def test_status_write_adds_no_finalizers_to_terminating_object() -> None:
    api = api_with_job_in_foreground_deletion()
    stored = api.get(f"{JOBS}/a")["metadata"]["finalizers"]
    codes = [
        api.ask("PATCH", f"{JOBS}/a/status", {"metadata": {"finalizers": finalizers}}, headers=MERGE).code
        for finalizers in ([*stored, "example.com/z"], stored)
    ]
    assert codes == [422, 200]
    assert api.get(f"{JOBS}/a")["metadata"]["finalizers"] == stored
