"""The OpenAPI documents: complete, and consistent with the field tables."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from batchyard.apiserver.protobuf import fields_of
from unit.apiserver.api import Api
from unit.apiserver.crd.rockets import space


def places() -> list[str]:
    return list(Api().get("/openapi/v3")["paths"])


@pytest.mark.parametrize("place", places())
def test_every_schema_reference_resolves(place: str) -> None:
    document = Api().get(f"/openapi/v3/{place}")
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= names


def test_schema_has_group_version_kind_enums_and_limits() -> None:
    schemas = Api().get("/openapi/v3/apis/kueue.x-k8s.io/v1beta2")["components"]["schemas"]
    queue = schemas["io.x-k8s.kueue.v1beta2.ClusterQueue"]
    kind = {"group": "kueue.x-k8s.io", "version": "v1beta2", "kind": "ClusterQueue"}
    assert queue["x-kubernetes-group-version-kind"] == [kind]
    spec = schemas["dev.batchyard.kueue.v1beta2.ClusterQueue.spec"]["properties"]
    assert spec["queueingStrategy"]["enum"] == ["StrictFIFO", "BestEffortFIFO"]
    assert spec["resourceGroups"]["maxItems"] == 16


def test_schema_lists_required_fields() -> None:
    schemas = Api().get("/openapi/v3/apis/batch/v1")["components"]["schemas"]
    assert schemas["io.k8s.JobSpec"]["required"] == ["template"]


def test_native_kinds_publish_spec_as_optional() -> None:
    definitions = Api().get("/openapi/v2")["definitions"]
    kinds = ("core.v1.Pod", "core.v1.Service", "core.v1.PodTemplate", "apps.v1.Deployment", "batch.v1.Job")
    assert [kind for kind in kinds if "required" in definitions[f"io.k8s.api.{kind}"]] == []


def test_each_patch_operation_of_pods_has_field_validation() -> None:
    paths = Api().get("/openapi/v3/api/v1")["paths"]
    patches = [each["patch"] for each in paths.values() if "patch" in each]
    pod_patches = [patch for patch in patches if patch["x-kubernetes-group-version-kind"]["kind"] == "Pod"]
    assert len(pod_patches) == 3
    assert all("fieldValidation" in {each["name"] for each in patch["parameters"]} for patch in pod_patches)


def test_openapi_v2_omits_fields_beside_unknown_ones() -> None:
    api = space({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    assert "properties" not in api.get("/openapi/v2")["definitions"]["com.example.space.v1.Rocket"]


def test_openapi_v2_document_has_all_kinds() -> None:
    document = Api().get("/openapi/v2")
    assert document["swagger"] == "2.0"
    assert {"io.k8s.api.batch.v1.Job", "io.x-k8s.jobset.v1alpha2.JobSet"} <= set(document["definitions"])
    assert all(reference.startswith("#/definitions/") for reference in references(document))


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_openapi_v2_protobuf_has_same_definitions() -> None:
    accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    api = Api()
    answer = api.ask("GET", "/openapi/v2", headers={"accept": accept})
    assert "@" not in answer.content_type, "clients take it for no media type"
    reported = message_fields(answer.body)
    assert reported.keys() == {1, 2, 9}, "kubectl would judge by the paths"
    definitions = named_values(reported[9])
    assert definitions.keys() == api.get("/openapi/v2")["definitions"].keys()
    job = message_fields(definitions["io.k8s.api.batch.v1.Job"])
    assert {"metadata", "spec", "status"} <= named_values(job[25]).keys()
    extension = message_fields(job[31])
    assert extension[1] == b"x-kubernetes-group-version-kind"
    assert json.loads(message_fields(extension[2])[2]) == [{"group": "batch", "version": "v1", "kind": "Job"}]


def named_values(message: bytes) -> dict[str, Any]:
    return {part[1].decode(): part[2] for part in (message_fields(each) for _, each in fields_of(message))}


def message_fields(message: Any) -> dict[int, Any]:
    return dict(fields_of(message))
