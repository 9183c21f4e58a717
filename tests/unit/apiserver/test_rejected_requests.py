"""Requests that the API server rejects, and its messages."""

import pytest

from batchyard.apiserver.request import UserInfo
from unit.apiserver.api import Api, config_map
from unit.apiserver.roles import binding, role, rule, user

ONE = binding("one", "ClusterRole/one", user("dora"))


def test_create_in_missing_namespace_is_not_found() -> None:
    answer = Api().ask("POST", "/api/v1/namespaces/none/configmaps", config_map("a"))
    assert (answer.code, answer.body["reason"]) == (404, "NotFound")
    assert answer.body["message"] == 'namespaces "none" not found'
    assert answer.body["details"] == {"name": "none", "kind": "namespaces"}


def test_delete_of_default_namespace_is_forbidden() -> None:
    answer = Api().ask("DELETE", "/api/v1/namespaces/default")
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["message"] == 'namespaces "default" is forbidden: this namespace may not be deleted'


def test_apply_with_uid_of_missing_object_conflicts() -> None:
    api, maps, config = Api(), "/api/v1/namespaces/team/configmaps", config_map("a")
    config["metadata"]["uid"] = "u1"
    headers = {"content-type": "application/apply-patch+yaml"}
    answer = api.ask("PATCH", f"{maps}/a?fieldManager=me", config, headers=headers)
    reported = "uid mismatch: the provided object specified uid u1, and no existing object was found"
    assert (answer.code, answer.body["message"].endswith(reported)) == (409, True)
    assert api.ask("GET", f"{maps}/a").code == 404


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "LINK"])
def test_unsupported_http_methods_are_rejected(method: str) -> None:
    api, path = Api(), "/api/v1/namespaces/team/configmaps"
    answer = api.ask(method, path)
    assert (answer.code, answer.body["reason"]) == (405, "MethodNotAllowed")
    refused = api.ask(method, path, user=UserInfo("reader", ()))
    assert refused.body["message"].startswith('configmaps is forbidden: User "reader" cannot  resource "configmaps"')


def test_name_inside_selector_value_grants_no_right() -> None:
    api, path = Api(), "/api/v1/namespaces/team/configmaps"
    for obj in (role("one", rule("list deletecollection", "configmaps", names="open")), ONE):
        api.post(f"/apis/{obj['apiVersion']}/{obj['kind'].lower()}s", obj)
    dora = UserInfo("dora", ())
    assert api.ask("GET", f"{path}?fieldSelector=metadata.name=open", user=dora).code == 200
    assert api.ask("GET", f"{path}?fieldSelector=metadata.namespace=team,metadata.name==open", user=dora).code == 200
    escaped = "metadata.namespace!=a\\,metadata.name=open"
    assert api.ask("GET", f"{path}?fieldSelector={escaped}", user=dora).code == 403
    assert api.ask("GET", f"{path}?fieldSelector=metadata.name=a/b,metadata.name=open", user=dora).code == 403
    # A name in a field selector counts only for lists and watches.
    assert api.ask("DELETE", f"{path}?fieldSelector=metadata.name=open", user=dora).code == 403


def test_write_of_old_revision_conflicts_before_validation() -> None:
    api, path = Api(), "/apis/batch/v1/namespaces/team/jobs"
    pods = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    read = api.post(path, {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": pods}})
    placed = {"suspend": False, "template": {"spec": {"nodeSelector": {"pool": "a"}}}}
    merge = {"content-type": "application/merge-patch+json"}
    assert api.ask("PATCH", f"{path}/j", {"spec": placed}, headers=merge).code == 200
    expected = {**read, "spec": {**read["spec"], "suspend": False}}
    stale = api.ask("PUT", f"{path}/j", expected)
    assert (stale.code, stale.body["reason"]) == (409, "Conflict")
    assert "the object has been modified" in stale.body["message"]
    named = {"resourceVersion": read["metadata"]["resourceVersion"]}
    assert api.ask("PATCH", f"{path}/j", {"metadata": named, "spec": {"selector": {}}}, headers=merge).code == 409
    assert api.ask("PUT", f"{path}/j", {**expected, "metadata": {"name": "j", "namespace": "team"}}).code == 422
