"""The cost of a request is linear in its size: otherwise, these tests would not end."""

from typing import Any

import pytest

from batchyard.apiserver.apply import UPDATE_ENTRIES_MAX
from batchyard.apiserver.handlers.write import OBJECT_SIZE_MAX
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
    created = Api()
    created.post(MAPS, config_map("a", x="1"))
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    created.post(JOBS, {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": template}})
    return created


def managed_field(number: int, **about: Any) -> dict[str, Any]:
    """A forged entry of managedFields."""
    fields: dict[str, Any] = {"f:data": {f"f:a{number}": {}}}
    entry = {"manager": f"m{number}", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    return {**entry, "fieldsV1": fields, **about}


def with_managed_fields(*claims: dict[str, Any]) -> dict[str, Any]:
    return {**config_map("a", x="1"), "metadata": {"name": "a", "managedFields": list(claims)}}


@pytest.mark.parametrize("body", [b'{"a' + b'\\"' * MANY + b"[[" * 60, b"[[" * 60 + b'"' * MANY])
def test_decoding_unterminated_string_takes_linear_time(api: Api, body: bytes) -> None:
    assert api.ask("POST", MAPS, body).code == 400


def test_duplicate_field_is_reported_among_many_fields(api: Api) -> None:
    body = b'{"metadata":{"name":"b"},"data":{%s,"a0":""}}' % b",".join(b'"a%d":""' % i for i in range(MANY))
    response = api.ask("POST", f"{MAPS}?fieldValidation=Strict", body)
    assert (response.code, 'duplicate field "data.a0"' in response.body["message"]) == (400, True)


def test_object_with_many_unknown_fields_is_rejected(api: Api) -> None:
    response = api.ask("POST", "/api/v1/nodes", {f"f{i}": i for i in range(MANY // 4)})
    assert response.code == 422


def test_update_managers_are_merged_to_maximum(api: Api) -> None:
    assert api.ask("PUT", MAP, with_managed_fields(*map(managed_field, range(2_000)))).code == 200
    assert len(api.get(MAP)["metadata"]["managedFields"]) <= UPDATE_ENTRIES_MAX


def test_apply_with_many_appliers_takes_linear_time(api: Api) -> None:
    api.ask("PUT", MAP, with_managed_fields(*(managed_field(i, operation="Apply") for i in range(MANY // 4))))
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"y": "1"}}
    assert api.ask("PATCH", f"{MAP}?fieldManager=me", obj, headers=APPLY).code == 200


def test_managed_fields_of_unserved_versions_are_dropped(api: Api) -> None:
    api.ask("PUT", MAP, with_managed_fields(*(managed_field(i, apiVersion=f"v{i}") for i in range(4))))
    assert [entry["apiVersion"] for entry in api.get(MAP)["metadata"]["managedFields"]] == ["v1"]


def test_strategic_patch_merges_many_items_by_name(api: Api) -> None:
    env = [{"name": f"a{i}", "value": "b"} for i in range(MANY // 4)]
    container = {"name": "c", "$setElementOrder/env": [{"name": e["name"]} for e in env], "env": env}
    patch = {"spec": {"template": {"spec": {"containers": [container]}}}}
    response = api.ask("PATCH", f"{JOBS}/j", patch, headers=STRATEGIC)
    assert (response.code, "field is immutable" in response.body["message"]) == (422, True)


def test_strategic_patch_merges_many_scalar_values(api: Api) -> None:
    some = [f"a.b/c{i}" for i in range(MANY // 4)]
    patch = {"metadata": {"finalizers": some, "$deleteFromPrimitiveList/finalizers": some[1:]}}
    assert api.ask("PATCH", MAP, patch, headers=STRATEGIC).code == 200
    assert api.get(MAP)["metadata"]["finalizers"] == some[:1]


def test_json_patch_limits_size_of_copies(api: Api) -> None:
    doubled = [{"op": "copy", "from": "/metadata", "path": f"/metadata/a{i}"} for i in range(60)]
    response = api.ask("PATCH", MAP, doubled, headers=JSON_PATCH)
    assert response.code == 422
    assert "exceeding the limit 3145728" in response.body["details"]["causes"][0]["message"]


def test_json_patch_limits_number_of_moved_items(api: Api) -> None:
    begun: list[dict[str, Any]] = [{"op": "add", "path": "/x", "value": [0] * 150_000}]
    response = api.ask("PATCH", MAP, begun + [{"op": "add", "path": "/x/0", "value": 0}] * 9_000, headers=JSON_PATCH)
    assert response.code == 422
    assert (
        response.body["details"]["causes"][0]["message"]
        == "the patch shifts more than 100000000 list items; use a merge patch"
    )


def test_object_above_maximum_size_is_rejected(api: Api) -> None:
    event = {"metadata": {"name": "e"}, "involvedObject": {"namespace": "team-a"}, "message": "x" * OBJECT_SIZE_MAX}
    response = api.ask("POST", "/api/v1/namespaces/team-a/events", event)
    assert (response.code, response.body["reason"]) == (413, "RequestEntityTooLarge")
