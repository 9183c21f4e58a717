"""How kinds that users define are served: columns, scale, selectors, discovery, schemas."""

from typing import Any

from unit.apiserver.crd.rockets import (
    DEFINITIONS,
    NAME,
    ROCKETS,
    DefinitionApi,
    definition,
    rocket,
    schema_of,
    space,
    version_of,
)

WHOLE = {"type": "integer"}
TEXT = {"type": "string"}
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
MERGE = {"content-type": "application/merge-patch+json"}
SCALE = {"specReplicasPath": ".spec.engines", "statusReplicasPath": ".status.engines"}


def cells(api: DefinitionApi, path: str = ROCKETS) -> tuple[list[tuple[str, str, int]], list[str]]:
    """The columns of a table, and the cells of its first row."""
    table = api.get(path, accept=TABLE)
    columns = [(each["name"], each["type"], each["priority"]) for each in table["columnDefinitions"]]
    return columns, table["rows"][0]["cells"]


def test_table_has_columns_of_definition() -> None:
    columns: list[dict[str, Any]] = [
        {"name": "Engines", "type": "integer", "jsonPath": ".spec.engines"},
        {"name": "Crewed", "type": "boolean", "jsonPath": ".spec.crewed", "priority": 1},
        {"name": "Made", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        {"name": "Ready", "type": "string", "jsonPath": '.spec.list[?(@.type=="Ready")].status'},
        {"name": "First", "type": "string", "jsonPath": ".spec.list[0].type"},
        {"name": "Label", "type": "string", "jsonPath": r".metadata.labels.a\.b/c"},
        {"name": "None", "type": "string", "jsonPath": ".spec.nothing"},
    ]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything}}
    api = space(schema, additionalPrinterColumns=columns)
    sent = rocket(engines=2, crewed=True, list=[{"type": "Up", "status": "x"}, {"type": "Ready", "status": "Yes"}])
    sent["metadata"]["labels"] = {"a.b/c": "d"}
    api.post(ROCKETS, sent)
    reported, row = cells(api)
    assert reported[:3] == [("Name", "string", 0), ("Engines", "integer", 0), ("Crewed", "boolean", 1)]
    assert row == ["ariane", 2, True, "0s", "Yes", "Up", "d", ""]


def test_table_without_defined_columns_has_age() -> None:
    api = space(schema_of())
    api.post(ROCKETS, rocket())
    assert cells(api) == ([("Name", "string", 0), ("Age", "date", 0)], ["ariane", "0s"])


def test_table_has_columns_of_requested_version() -> None:
    api, column = DefinitionApi(), {"name": "Engines", "type": "integer", "jsonPath": ".spec.engines"}
    first = version_of(schema_of(engines=WHOLE), additionalPrinterColumns=[column])
    api.define(definition(first, version_of(schema_of(engines=WHOLE), "v1beta1")))
    api.post(ROCKETS, rocket(engines=2))
    reported = [cells(api, path)[0][1][0] for path in (ROCKETS, ROCKETS.replace("/v1/", "/v1beta1/"))]
    assert reported == ["Engines", "Age"]


def test_table_of_definitions_has_creation_time() -> None:
    reported, row = cells(space(schema_of()), DEFINITIONS)
    assert reported == [("Name", "string", 0), ("Created At", "date", 0)]
    assert row == [NAME, "1970-01-01T00:00:00Z"]


def test_scale_subresource_is_read_and_updated() -> None:
    api = space(schema_of(engines={**WHOLE, "maximum": 5}), subresources={"status": {}, "scale": SCALE})
    api.post(ROCKETS, rocket(engines=2))
    path = f"{ROCKETS}/ariane/scale"
    scale = api.get(path)
    assert (scale["kind"], scale["spec"], scale["status"]) == ("Scale", {"replicas": 2}, {"replicas": 0})
    assert api.ask("PUT", path, {**scale, "spec": {"replicas": 3}}).body["spec"] == {"replicas": 3}
    assert api.get(f"{ROCKETS}/ariane")["metadata"]["generation"] == 2
    assert api.ask("PUT", path, {**scale, "spec": {"replicas": 4}}).code == 409
    assert api.ask("PATCH", path, {"spec": {"replicas": 9}}, headers=MERGE).code == 422
    assert api.ask("PATCH", path, {"spec": {"replicas": -1}}, headers=MERGE).code == 422
    assert api.ask("GET", f"{ROCKETS}/none/scale").code == 404


def test_scale_update_as_dry_run_changes_nothing() -> None:
    api = space(schema_of(engines=WHOLE), subresources={"status": {}, "scale": SCALE})
    api.post(ROCKETS, rocket(engines=2))
    path = f"{ROCKETS}/ariane/scale"
    scale = api.get(path)
    assert api.ask("PUT", f"{path}?dryRun=All", {**scale, "spec": {"replicas": 3}}).body["spec"] == {"replicas": 3}
    assert api.get(path) == scale
    assert [api.ask("PUT", path, {**scale, part: 3}).code for part in ("spec", "metadata")] == [400, 400]


def test_field_selector_uses_selectable_fields_of_definition() -> None:
    api = space(schema_of(orbit=TEXT), selectableFields=[{"jsonPath": ".spec.orbit"}])
    api.post(ROCKETS, rocket("a", orbit="low"))
    api.post(ROCKETS, rocket("b", orbit="high"))
    result = api.get(f"{ROCKETS}?fieldSelector=spec.orbit=high")["items"]
    assert [each["metadata"]["name"] for each in result] == ["b"]
    assert api.ask("GET", f"{ROCKETS}?fieldSelector=spec.other=high").code == 400


def test_discovery_lists_custom_kind_with_subresources() -> None:
    api = DefinitionApi()
    status = version_of(schema_of(), subresources={"status": {}, "scale": SCALE})
    api.define(definition(status, version_of(schema_of(), "v1beta1"), shortNames=["rk"], categories=["all"]))
    group = api.get("/apis/space.example.com")
    assert [each["version"] for each in group["versions"]] == ["v1", "v1beta1"]
    first, *parts = api.get("/apis/space.example.com/v1")["resources"]
    assert (first["shortNames"], first["categories"]) == (["rk"], ["all"])
    assert [(part["name"], part["kind"]) for part in parts] == [
        ("rockets/status", "Rocket"),
        ("rockets/scale", "Scale"),
    ]


def test_discovery_lists_category_all() -> None:
    resources = DefinitionApi().get("/api/v1")["resources"]
    assert [each["name"] for each in resources if "all" in each.get("categories", ())] == [
        "pods",
        "replicationcontrollers",
        "services",
    ]


def test_openapi_has_schema_of_custom_kind() -> None:
    api = space(schema_of(orbit={**TEXT, "description": "How far up."}))
    schemas = api.get("/openapi/v3/apis/space.example.com/v1")["components"]["schemas"]
    reported = schemas["com.example.space.v1.Rocket"]["properties"]
    assert reported["spec"]["properties"]["orbit"]["description"] == "How far up."
    assert reported["metadata"] == {"allOf": [{"$ref": "#/components/schemas/io.k8s.ObjectMeta"}]}
    assert "ownerReferences" in schemas["io.k8s.ObjectMeta"]["properties"]


def test_apply_merges_list_items_by_key() -> None:
    item = {"type": "object", "required": ["name"], "properties": {"name": TEXT}}
    crew = {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    api, apply = space(schema_of(crew=crew)), {"content-type": "application/apply-patch+yaml"}
    for manager in ("one", "other"):
        api.ask("PATCH", f"{ROCKETS}/a?fieldManager={manager}", rocket("a", crew=[{"name": manager}]), headers=apply)
    assert api.get(f"{ROCKETS}/a")["spec"]["crew"] == [{"name": "one"}, {"name": "other"}]
    api.ask("PATCH", f"{ROCKETS}/a?fieldManager=one", rocket("a", crew=[]), headers=apply)
    assert api.get(f"{ROCKETS}/a")["spec"]["crew"] == [{"name": "other"}]


def test_custom_object_rejects_strategic_merge_patch() -> None:
    api, strategic = space(schema_of()), {"content-type": "application/strategic-merge-patch+json"}
    api.post(ROCKETS, rocket("a"))
    assert api.ask("PATCH", f"{ROCKETS}/a", {}, headers=strategic).code == 415
    assert api.ask("PATCH", f"{DEFINITIONS}/{NAME}", {}, headers=strategic).code == 200


def test_watch_reports_custom_objects() -> None:
    api = space(schema_of(orbit=TEXT))
    watch = api.watch(f"{ROCKETS}?watch=true")
    api.post(ROCKETS, rocket(orbit="low"))
    assert [(event["type"], event["object"]["spec"]) for event in watch.take_buffered_data()] == [
        ("ADDED", {"orbit": "low"})
    ]


def test_discovery_omits_kind_without_served_version() -> None:
    api = DefinitionApi()
    api.define(definition(version_of(schema_of())))
    serve_first_version(api, is_served=False)
    for path in ("/apis", "/apis/batch/v1", "/openapi/v2", "/openapi/v3"):
        assert api.ask("GET", path).code == 200, path
    assert "space.example.com" not in [group["name"] for group in api.get("/apis")["groups"]]
    assert api.ask("GET", "/apis/space.example.com").code == 404
    assert api.ask("GET", ROCKETS).code == 404
    serve_first_version(api, is_served=True)
    assert api.get(ROCKETS)["items"] == []


def serve_first_version(api: DefinitionApi, *, is_served: bool) -> None:
    """Change whether the first version of the rockets' definition is served."""
    stored = api.get(f"{DEFINITIONS}/{NAME}")
    first, *others = stored["spec"]["versions"]
    changed = {**stored, "spec": {**stored["spec"], "versions": [{**first, "served": is_served}, *others]}}
    assert api.ask("PUT", f"{DEFINITIONS}/{NAME}", changed).code == 200
