"""CustomResourceDefinitions: validation, conditions and deletion."""

from typing import Any

import pytest

from batchyard.api.custom_kinds import DEFINITION, version_priority
from batchyard.api.meta import Key
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

TEXT = {"type": "string"}
AT = "spec.versions[0].schema.openAPIV3Schema"

NOT_STRUCTURAL: list[tuple[Any, str]] = [
    ({}, "properties[at].type: Required value: must not be empty for specified object fields"),
    ({"type": "array"}, "properties[at].items: Required value: must be specified"),
    (
        {"type": "array", "items": {}},
        "properties[at].items.type: Required value: must not be empty for specified array",
    ),
    ({**TEXT, "pattern": "["}, "properties[at].pattern: Invalid value"),
    ({**TEXT, "anyOf": [{"type": "string"}]}, "anyOf[0].type: Forbidden: must be empty to be structural"),
    ({"type": "array", "items": TEXT, "uniqueItems": True}, "properties[at].uniqueItems: Forbidden"),
    ({**TEXT, "default": 3}, 'properties[at].default: Invalid value: "integer"'),
    ({"type": "object", "x-kubernetes-embedded-resource": True}, "properties[at].properties: Required value"),
    ({"type": "array", "items": TEXT, "x-kubernetes-list-type": "map"}, "x-kubernetes-list-map-keys: Required value"),
    (
        {"type": "array", "items": TEXT, "x-kubernetes-map-type": "atomic"},
        'properties[at].type: Invalid value: "array": must be object if x-kubernetes-map-type is specified',
    ),
    ({"type": "object", "additionalProperties": TEXT, "properties": {"a": TEXT}}, "are mutual exclusive"),
]


@pytest.mark.parametrize(("schema", "problem"), NOT_STRUCTURAL)
def test_definition_rejects_schema_that_is_not_structural(schema: Any, problem: str) -> None:
    reported = DefinitionApi().faults(definition(version_of(schema_of(at=schema))), DEFINITIONS)
    assert problem in reported[0]
    assert reported[0].startswith(AT)


def test_int_or_string_schema_allows_any_of_integer_and_string() -> None:
    either = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    api = space(schema_of(at=either))
    api.post(ROCKETS, rocket(at="5%"))
    api.post(ROCKETS, rocket("other", at=5))


def changed_definition(**spec: Any) -> dict[str, Any]:
    """A valid definition with some changed fields."""
    good = definition(version_of(schema_of()))
    return {**good, "spec": {**good["spec"], **spec}}


BAD: list[tuple[dict[str, Any], str]] = [
    (changed_definition(group="other.example.com"), 'metadata.name: Invalid value: "rockets.space.example.com"'),
    (changed_definition(scope="Galaxy"), 'spec.scope: Unsupported value: "Galaxy"'),
    (
        changed_definition(versions=[version_of(schema_of(), "v2")]),
        "must have exactly one version marked as storage version",
    ),
    (changed_definition(versions=[version_of(schema_of())] * 2), "must contain unique version names"),
    (changed_definition(versions=[{"name": "v1", "served": True, "storage": True}]), "openAPIV3Schema: Required value"),
    (
        changed_definition(conversion={"strategy": "Webhook"}),
        "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
    ),
    (changed_definition(names={"plural": "rockets"}), "spec.names.kind: Required value"),
    (changed_definition(names={"plural": "rockets", "kind": ""}), "spec.names.kind: Required value"),
    (changed_definition(names={"plural": "", "kind": "Rocket"}), "spec.names.plural: Required value"),
    (changed_definition(names={"plural": "rockets", "kind": "Rocket", "listKind": "Rocket"}), "may not be the same"),
    (changed_definition(names={"plural": "rockets", "kind": "Big_Rocket"}), "spec.names.kind: Invalid value"),
    (changed_definition(group="batch.k8s.io"), "api-approved.kubernetes.io"),
]


@pytest.mark.parametrize(("wanted", "problem"), BAD)
def test_invalid_definition_is_rejected(wanted: dict[str, Any], problem: str) -> None:
    assert problem in "; ".join(DefinitionApi().faults(wanted, DEFINITIONS))


def test_definition_with_unique_names_is_established() -> None:
    created = DefinitionApi().define(definition(version_of(schema_of()), shortNames=["rk"]))
    status = created["status"]
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [
        ("NamesAccepted", "True"),
        ("Established", "True"),
    ]
    names = {
        "plural": "rockets",
        "singular": "rocket",
        "shortNames": ["rk"],
        "kind": "Rocket",
        "listKind": "RocketList",
    }
    assert (status["acceptedNames"], status["storedVersions"]) == (names, ["v1"])


def test_definition_does_not_accept_names_of_another_definition() -> None:
    api = DefinitionApi()
    api.define(definition(version_of(schema_of()), shortNames=["rk"]))
    other = definition(version_of(schema_of()), plural="rackets", kind="Rocket", shortNames=["rk"])
    conditions = api.define(other)["status"]["conditions"]
    assert [(each["status"], each["reason"]) for each in conditions] == [
        ("False", "ListKindConflict"),
        ("False", "NotAccepted"),
    ]
    assert api.ask("GET", ROCKETS.replace("rockets", "rackets")).code == 404


def test_definition_of_built_in_kind_does_not_replace_it() -> None:
    api = DefinitionApi()
    given = definition(version_of(schema_of()))
    names = {"plural": "jobsets", "kind": "JobSet"}
    version = version_of(schema_of(), "v1alpha2") | {"storage": True}
    spec = {**given["spec"], "group": "jobset.x-k8s.io", "names": names, "versions": [version]}
    expected = {**given, "metadata": {"name": "jobsets.jobset.x-k8s.io"}, "spec": spec}
    assert "serves JobSet.jobset.x-k8s.io itself" in api.ask("POST", DEFINITIONS, expected).warnings[0]
    kept = api.reconcile_definition("jobsets.jobset.x-k8s.io")
    assert [each["type"] for each in kept["status"]["conditions"]] == ["NamesAccepted", "Established", "BuiltIn"]
    columns = api.ask("GET", "/openapi/v3/apis/jobset.x-k8s.io/v1alpha2").body["components"]["schemas"]
    assert "replicatedJobs" in columns["dev.batchyard.jobset.v1alpha2.JobSet.spec"]["properties"]


def test_definition_keeps_scope_and_stored_versions() -> None:
    api = space(schema_of())
    stored = api.get(f"{DEFINITIONS}/{NAME}")
    wider = {**stored, "spec": {**stored["spec"], "scope": "Cluster", "versions": [version_of(schema_of(), "v2")]}}
    wider["spec"]["versions"][0]["storage"] = True
    reported = api.ask("PUT", f"{DEFINITIONS}/{NAME}", wider).body["details"]["causes"]
    assert [cause["field"] for cause in reported] == ["spec.scope", "status.storedVersions[0]"]


def test_definition_is_deleted_after_its_objects() -> None:
    api = space(schema_of())
    held = rocket()
    held["metadata"]["finalizers"] = ["space.example.com/held"]
    api.post(ROCKETS, held)
    api.post(ROCKETS, rocket("other"))
    api.ask("DELETE", f"{DEFINITIONS}/{NAME}")
    api.reconcile_definition()
    assert [each["metadata"]["name"] for each in api.get(ROCKETS)["items"]] == ["ariane"]
    assert api.ask("POST", ROCKETS, rocket("late")).code == 405
    patch = {"metadata": {"finalizers": None}}
    api.ask("PATCH", f"{ROCKETS}/ariane", patch, headers={"content-type": "application/merge-patch+json"})
    assert api.reconcile_definition() is None
    assert api.ask("GET", ROCKETS).code == 404
    assert api.stored.get(Key(DEFINITION, "", NAME)) is None


def test_version_priority_sorts_later_versions_first() -> None:
    names = ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"]
    assert sorted(dict.fromkeys(sorted(names)), key=version_priority, reverse=True) == names


MISREAD: list[tuple[Any, str]] = [
    ({"type": "object", "properties": []}, "properties[at]"),
    ({"type": "array", "items": [TEXT]}, "must be of type object"),
    ({**TEXT, "maxLength": "5"}, "must be of type integer"),
    ({**TEXT, "x-kubernetes-validations": [{"message": "x"}]}, "rule: Required value"),
    ({"type": ["string"]}, "must be of type string"),
    ({"type": "object", "additionalProperties": 3}, "must validate at least one schema (anyOf)"),
]


@pytest.mark.parametrize(("schema", "problem"), MISREAD)
def test_definition_rejects_schema_keywords_of_wrong_type(schema: Any, problem: str) -> None:
    reported = DefinitionApi().faults(definition(version_of(schema_of(at=schema))), DEFINITIONS)
    assert problem.replace("[at]", ".at") in reported[0]


def test_stored_object_is_served_by_current_schema() -> None:
    api = space(schema_of(engines={"type": "integer"}, orbit=TEXT))
    api.post(ROCKETS, rocket(engines=1, orbit="low"))
    stored = api.get(f"{DEFINITIONS}/{NAME}")
    newer = schema_of(orbit=TEXT, stages={"type": "integer", "default": 3})
    api.ask("PUT", f"{DEFINITIONS}/{NAME}", {**stored, "spec": {**stored["spec"], "versions": [version_of(newer)]}})
    assert [api.get(f"{ROCKETS}/ariane")["spec"] for _ in range(2)] == [{"orbit": "low", "stages": 3}] * 2


def test_deprecated_version_returns_warning() -> None:
    api = DefinitionApi()
    older = version_of(schema_of(), "v1beta1", deprecated=True)
    api.define(definition(version_of(schema_of()), older))
    created = api.ask("POST", ROCKETS.replace("v1", "v1beta1"), rocket(version="v1beta1"))
    assert created.warnings == ("space.example.com/v1beta1 Rocket is deprecated",)


def test_definition_reports_invalid_paths_of_columns_and_scale() -> None:
    column = {"name": "At", "type": "text", "jsonPath": ".spec[bad"}
    scale = {"specReplicasPath": ".status.a", "statusReplicasPath": ".status.b", "labelSelectorPath": ".at"}
    version = version_of(schema_of(), additionalPrinterColumns=[column], subresources={"scale": scale})
    fields = [reported.partition(": ")[0] for reported in DefinitionApi().faults(definition(version), DEFINITIONS)]
    assert fields == [
        "spec.versions[0].additionalPrinterColumns[0].type",
        "spec.versions[0].additionalPrinterColumns[0].jsonPath",
        "spec.versions[0].subresources.scale.specReplicasPath",
        "spec.versions[0].subresources.scale.labelSelectorPath",
    ]


def test_definition_rejects_selectable_fields_that_are_not_scalar() -> None:
    paths = [".spec.orbit", ".spec.orbit", ".spec.none", ".spec"]
    version = version_of(schema_of(orbit=TEXT), selectableFields=[{"jsonPath": path} for path in paths])
    fields = [reported.partition(": ")[0] for reported in DefinitionApi().faults(definition(version), DEFINITIONS)]
    assert fields == [f"spec.versions[0].selectableFields[{i}].jsonPath" for i in (1, 2, 3)]
