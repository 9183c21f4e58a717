"""What a request of a few bytes or of many may cost: none of these would end, were it more than there is to read."""

from typing import Any

import pytest

from batchyard.apiserver.apply import UPDATERS_MAX
from batchyard.apiserver.handlers.write import OBJECT_MAX
from unit.apiserver.api import Api, config_map

MAPS = "/api/v1/namespaces/team-a/configmaps"
MAP = f"{MAPS}/a"
JOBS = "/apis/batch/v1/namespaces/team-a/jobs"
MANY = 60_000
JSON_PATCH = {"content-type": "application/json-patch+json"}
STRATEGIC = {"content-type": "application/strategic-merge-patch+json"}
APPLY = {"content-type": "application/apply-patch+yaml"}


@pytest.fixture
def api() -> Api:
    made = Api()
    made.post(MAPS, config_map("a", x="1"))
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    made.post(JOBS, {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": template}})
    return made


def claim(number: int, **about: Any) -> dict[str, Any]:
    """One of managedFields, as nobody but a forger would write it."""
    fields: dict[str, Any] = {"f:data": {f"f:a{number}": {}}}
    entry = {"manager": f"m{number}", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    return {**entry, "fieldsV1": fields, **about}


def with_claims(*claims: dict[str, Any]) -> dict[str, Any]:
    return {**config_map("a", x="1"), "metadata": {"name": "a", "managedFields": list(claims)}}


@pytest.mark.parametrize("body", [b'{"a' + b'\\"' * MANY + b"[[" * 60, b"[[" * 60 + b'"' * MANY])
def test_strings_that_do_not_end_are_read_once(api: Api, body: bytes) -> None:
    assert api.ask("POST", MAPS, body).code == 400


def test_a_field_that_is_there_twice_is_told_among_many(api: Api) -> None:
    body = b'{"metadata":{"name":"b"},"data":{%s,"a0":""}}' % b",".join(b'"a%d":""' % i for i in range(MANY))
    response = api.ask("POST", f"{MAPS}?fieldValidation=Strict", body)
    assert (response.code, 'duplicate field "data.a0"' in response.body["message"]) == (400, True)


def test_of_many_unknown_fields_the_first_are_explained(api: Api) -> None:
    response = api.ask("POST", "/api/v1/nodes", {f"f{i}": i for i in range(MANY // 4)})
    assert response.code == 422


def test_many_updaters_become_a_few(api: Api) -> None:
    assert api.ask("PUT", MAP, with_claims(*map(claim, range(2_000)))).code == 200
    assert len(api.get(MAP)["metadata"]["managedFields"]) <= UPDATERS_MAX


def test_an_apply_over_many_appliers_looks_at_each_once(api: Api) -> None:
    api.ask("PUT", MAP, with_claims(*(claim(i, operation="Apply") for i in range(MANY // 4))))
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"y": "1"}}
    assert api.ask("PATCH", f"{MAP}?fieldManager=me", obj, headers=APPLY).code == 200


def test_nobody_cares_for_fields_of_versions_that_are_not_served(api: Api) -> None:
    api.ask("PUT", MAP, with_claims(*(claim(i, apiVersion=f"v{i}") for i in range(4))))
    assert [entry["apiVersion"] for entry in api.get(MAP)["metadata"]["managedFields"]] == ["v1"]


def test_many_items_are_merged_by_their_names(api: Api) -> None:
    env = [{"name": f"a{i}", "value": "b"} for i in range(MANY // 4)]
    container = {"name": "c", "$setElementOrder/env": [{"name": e["name"]} for e in env], "env": env}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    response = api.ask("PATCH", f"{JOBS}/j", patch, headers=STRATEGIC)
    assert (response.code, "field is immutable" in response.body["message"]) == (422, True)


def test_many_plain_values_are_merged(api: Api) -> None:
    some = [f"a.b/c{i}" for i in range(MANY // 4)]
    patch = {"metadata": {"finalizers": some, "$deleteFromPrimitiveList/finalizers": some[1:]}}
    assert api.ask("PATCH", MAP, patch, headers=STRATEGIC).code == 200
    assert api.get(MAP)["metadata"]["finalizers"] == some[:1]


def test_copies_of_copies_end(api: Api) -> None:
    doubled = [{"op": "copy", "from": "/metadata", "path": f"/metadata/a{i}"} for i in range(60)]
    response = api.ask("PATCH", MAP, doubled, headers=JSON_PATCH)
    assert response.code == 422
    assert "exceeding the limit 3145728" in response.body["details"]["causes"][0]["message"]


def test_moving_items_ends(api: Api) -> None:
    begun: list[dict[str, Any]] = [{"op": "add", "path": "/x", "value": [0] * 150_000}]
    response = api.ask("PATCH", MAP, begun + [{"op": "add", "path": "/x/0", "value": 0}] * 9_000, headers=JSON_PATCH)
    assert response.code == 422
    assert response.body["details"]["causes"][0]["message"] == "the patch moves too many list items"


def test_an_object_has_a_bound(api: Api) -> None:
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "team-a"}, "message": "x" * OBJECT_MAX}
    response = api.ask("POST", "/api/v1/namespaces/team-a/events", event)
    assert (response.code, response.body["reason"]) == (413, "RequestEntityTooLarge")
