"""The OpenAPI documents: whole, and true to the field tables."""

from collections.abc import Iterator
from typing import Any

import pytest

from unit.apiserver.api import Api


def places() -> list[str]:
    return list(Api().get("/openapi/v3")["paths"])


@pytest.mark.parametrize("place", places())
def test_every_reference_leads_somewhere(place: str) -> None:
    document = Api().get(f"/openapi/v3/{place}")
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= names


def test_the_schema_of_a_kind_says_what_it_is() -> None:
    schemas = Api().get("/openapi/v3/apis/kueue.x-k8s.io/v1beta2")["components"]["schemas"]
    queue = schemas["io.x-k8s.kueue.v1beta2.ClusterQueue"]
    kind = {"group": "kueue.x-k8s.io", "version": "v1beta2", "kind": "ClusterQueue"}
    assert queue["x-kubernetes-group-version-kind"] == [kind]
    spec = schemas["dev.batchyard.kueue.v1beta2.ClusterQueue.spec"]["properties"]
    assert spec["queueingStrategy"]["enum"] == ["StrictFIFO", "BestEffortFIFO"]
    assert spec["resourceGroups"]["maxItems"] == 16


def test_required_fields_are_said() -> None:
    schemas = Api().get("/openapi/v3/apis/batch/v1")["components"]["schemas"]
    assert schemas["io.k8s.JobSpec"]["required"] == ["template"]


def test_version_2_has_all_kinds_in_one() -> None:
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
