"""Contents of responses: the objects that deletes return, list items, response schemas."""

import json
from typing import Any

import pytest

from batchyard.apiserver.request import Response
from batchyard.server.http.dispatcher import encode_body
from unit.apiserver.api import Api

CORE = "/api/v1/namespaces/team"
CONTAINERS: Any = {"containers": [{"name": "c", "image": "i"}]}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
VOLUME = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/data"}}


@pytest.mark.parametrize(
    ("path", "kind", "content"),
    [
        (f"{CORE}/services", "Service", {"spec": {"ports": [{"port": 80}]}}),
        (f"{CORE}/serviceaccounts", "ServiceAccount", {}),
        (f"{CORE}/resourcequotas", "ResourceQuota", {"spec": {"hard": {"pods": "3"}}}),
        (f"{CORE}/persistentvolumeclaims", "PersistentVolumeClaim", {"spec": CLAIM}),
        (f"{CORE}/podtemplates", "PodTemplate", {"template": {"spec": CONTAINERS}}),
        (f"{CORE}/pods", "Pod", {"spec": CONTAINERS}),
        ("/api/v1/persistentvolumes", "PersistentVolume", {"spec": VOLUME}),
        ("/api/v1/namespaces", "Namespace", {}),
    ],
)
def test_delete_returns_object_of_some_kinds(path: str, kind: str, content: dict[str, Any]) -> None:
    api = Api()
    created = api.post(path, {"metadata": {"name": "one"}, **content})
    gone = api.ask("DELETE", f"{path}/one", {"gracePeriodSeconds": 0}).body
    assert (gone["kind"], gone["metadata"]["uid"]) == (kind, created["metadata"]["uid"])
    assert int(gone["metadata"]["resourceVersion"]) > int(created["metadata"]["resourceVersion"])


def test_delete_returns_status_for_other_kinds() -> None:
    api = Api()
    api.post(f"{CORE}/configmaps", {"metadata": {"name": "one"}})
    gone = api.ask("DELETE", f"{CORE}/configmaps/one").body
    assert (gone["kind"], gone["status"], gone["details"]["name"]) == ("Status", "Success", "one")


def test_list_items_of_built_in_kinds_have_no_type() -> None:
    api = Api()
    api.post(f"{CORE}/configmaps", {"metadata": {"name": "one"}})
    for listed in (api.get(f"{CORE}/configmaps"), api.ask("DELETE", f"{CORE}/configmaps").body):
        (item,) = listed["items"]
        assert (listed["kind"], item["metadata"]["name"]) == ("ConfigMapList", "one")
        assert item.keys().isdisjoint({"apiVersion", "kind"})


def test_list_items_of_custom_kinds_have_type() -> None:
    api = Api()
    flavors = "/apis/kueue.x-k8s.io/v1beta2/resourceflavors"
    api.post(flavors, {"metadata": {"name": "one"}})
    (item,) = api.get(flavors)["items"]
    assert (item["apiVersion"], item["kind"]) == ("kueue.x-k8s.io/v1beta2", "ResourceFlavor")


def test_create_as_dry_run_accepts_resource_version() -> None:
    api, body = Api(), {"metadata": {"name": "one", "resourceVersion": "1"}}
    assert api.ask("POST", f"{CORE}/configmaps?dryRun=All", body).code == 201
    refused = api.ask("POST", f"{CORE}/configmaps", body)
    assert refused.body["message"] == "resourceVersion should not be set on objects to be created"


@pytest.mark.parametrize("body", [{"a": 1}, [1]])
def test_json_response_ends_with_newline(body: Any) -> None:
    assert encode_body(Response(200, body)).body == json.dumps(body, separators=(",", ":")).encode() + b"\n"


def test_text_response_is_sent_unchanged() -> None:
    assert encode_body(Response(200, "ok")).body == b"ok"


def responses(document: Any, path: str, method: str) -> dict[str, str]:
    """The definitions that the responses of an operation refer to, by code."""
    result = document["paths"][path][method]["responses"]
    return {code: each["schema"]["$ref"].rpartition(".")[2] for code, each in result.items() if "schema" in each}


def test_openapi_v2_responses_have_schemas() -> None:
    document = Api().get("/openapi/v2")
    core = "/api/v1/namespaces/{namespace}"
    assert responses(document, f"{core}/services", "get") == {"200": "ServiceList"}
    assert responses(document, f"{core}/services", "post") == {"200": "Service", "201": "Service", "202": "Service"}
    assert responses(document, f"{core}/services/{{name}}", "delete") == {"200": "Service", "202": "Service"}
    assert responses(document, f"{core}/configmaps/{{name}}", "delete") == {"200": "Status", "202": "Status"}
    assert responses(document, f"{core}/configmaps/{{name}}", "patch") == {"200": "ConfigMap", "201": "ConfigMap"}
    assert responses(document, "/api/v1/namespaces/{name}", "delete") == {"200": "Status", "202": "Status"}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method != "parameters":
                assert all("schema" in each for code, each in operation["responses"].items() if code != "401"), path


def test_openapi_v2_operations_have_parameters() -> None:
    operations = Api().get("/openapi/v2")["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"]
    assert [(each["name"], each["in"], each["type"]) for each in operations["parameters"]] == [
        ("name", "path", "string"),
        ("namespace", "path", "string"),
    ]
    body = operations["put"]["parameters"][0]
    assert (body["in"], body["schema"]) == ("body", {"$ref": "#/definitions/io.k8s.api.core.v1.ConfigMap"})
    assert {each["in"] for each in operations["put"]["parameters"][1:]} == {"query"}
