"""The field tables are up to date with their sources, and agree with the CRDs in every field."""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from batchyard.api.scheme import Field, TypeScope, field_table, load_scope

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
CRDS = ROOT.parent / "shared" / "crds"
CRD_FILES = sorted(CRDS.glob("*.yaml"))
BOUNDS = {
    "minimum": "min",
    "maximum": "max",
    "minLength": "minLength",
    "maxLength": "maxLength",
    "minItems": "minItems",
    "maxItems": "maxItems",
    "maxProperties": "maxProperties",
    "enum": "enum",
    "default": "default",
    "x-kubernetes-list-map-keys": "keys",
}
TYPES = {"string": "string", "boolean": "bool", "integer": "int", "array": "list", "object": "object"}


def field_tables() -> ModuleType:
    """Load the tool that generates the field tables."""
    spec = importlib.util.spec_from_file_location("field_tables", ROOT / "tools" / "field_tables.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def type_of(schema: Mapping[str, Any]) -> str:
    """Return the type of a field in a CRD, as written in the tables; only `list` or `object` for these."""
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity" if "[KMGTPE]i" in schema.get("pattern", "") else "int-or-string"
    if schema.get("format") == "date-time":
        return "time"
    if "additionalProperties" in schema:
        return "map"
    return str(schema.get("format") or TYPES[schema["type"]])


def type_in_table(field: Field) -> str:
    """Return the type of a field in the tables."""
    if field.is_list:
        return "list"
    if field.is_map:
        return "map"
    return "object" if field.is_object or field.expression == "any" else field.expression


def differences(schema: Mapping[str, Any], field: Field, within: TypeScope, path: str) -> Iterator[str]:
    """Yield differences between a CRD and the tables, for a field and its children."""
    if type_of(schema) != type_in_table(field):
        yield f"{path}: {type_of(schema)} in the CRD, {field.expression} in the table"
    later = field_tables().LATER.get(path.replace("[]", ""), {})
    for key, word in BOUNDS.items():
        expected = later.get(word, schema.get(key))
        if expected != field.constraints.get(word):
            yield f"{path}: {key} is {expected} in the CRD, {field.constraints.get(word)} in the table"
    if type_in_table(field) != "quantity" and schema.get("pattern") != field.constraints.get("pattern"):
        yield f"{path}: pattern"
    if (schema.get("x-kubernetes-list-type") == "set") != field.constraints.get("set", False):
        yield f"{path}: set"
    if (schema.get("x-kubernetes-map-type") == "atomic") != (field.constraints.get("owned") == "atomic"):
        yield f"{path}: owned"
    if field.is_list:
        yield from differences(schema["items"], field.element, within, f"{path}[]")
    elif field.is_map:
        yield from differences(schema["additionalProperties"], field.element, within, f"{path}{{}}")
    elif field.is_object and field.expression != "native.ObjectMeta":
        yield from object_differences(schema, within, field.expression, path)


def object_differences(schema: Mapping[str, Any], within: TypeScope, type_name: str, path: str) -> Iterator[str]:
    """Yield differences between the fields of an object in the CRD and in the table."""
    fields, properties = within.fields(type_name), schema["properties"]
    if list(fields) != sorted(properties):
        yield f"{path}: fields {sorted(properties)} in the CRD, {list(fields)} in the table"
    filled_in = [name for name in fields if f"{type_name}.{name}" in field_tables().FILLED_IN]
    required = sorted(filled_in + [name for name, field in fields.items() if field.required])
    if required != sorted(schema.get("required", [])):
        yield f"{path}: required {schema.get('required')} in the CRD, {required} in the table"
    for name, field in fields.items():
        yield from differences(properties[name], field, within, f"{path}.{name}")


@pytest.mark.parametrize("path", CRD_FILES or [CRDS], ids=lambda path: path.stem)
def test_field_tables_match_crds(path: Path) -> None:
    if not CRD_FILES:
        pytest.skip("the CRDs are not in ../shared/crds")
    crd = yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)["spec"]
    group, kind = crd["group"].partition(".")[0], crd["names"]["kind"]
    for version in crd["versions"]:
        within = load_scope(f"{group}.{version['name']}")
        result = object_differences(version["schema"]["openAPIV3Schema"], within, kind, kind)
        assert list(result) == []


def test_native_table_equals_output_of_tool() -> None:
    tool = field_tables()
    created = tool.native_table(tool.read_table("core"), tool.StoredMergeStrategies())
    assert created == tool.read_table("native")


def test_crd_tables_equal_output_of_tool() -> None:
    if not CRD_FILES:
        pytest.skip("the CRDs are not in ../shared/crds")
    tool = field_tables()
    for name, created in tool.crd_tables(tool.read_crds(CRDS)).items():
        assert tool.format_table(created) == (tool.FIELDS / f"{name}.json").read_text("utf-8"), name


def test_provisioning_request_versions_have_equal_fields() -> None:
    assert field_table("autoscaling.v1beta1") == field_table("autoscaling.v1")


def test_manual_rules_refer_to_existing_fields() -> None:
    tool, native = field_tables(), load_scope("native")
    for place in [*tool.REQUIRED, *tool.CHECKED, *tool.DUPLICATE_KEYS_ALLOWED]:
        type_name, _, field = place.partition(".")
        assert field in native.fields(type_name), place


def test_every_referenced_type_exists() -> None:
    tool = field_tables()
    for path in sorted(tool.FIELDS.glob("*.json")):
        within = load_scope(path.stem)
        for type_name in field_table(path.stem):
            for field in within.fields(type_name).values():
                if field.object_type:
                    home, name = within.scope_of(field.object_type)
                    assert home.fields(name)


def test_cluster_node_pool_has_fields_of_node_pool_spec_and_name() -> None:
    tables = field_table("cloud.v1alpha1")
    within = tables["Cluster.spec.nodePools"]
    assert {field: spec for field, spec in within.items() if field != "name"} == tables["NodePool.spec"]
    assert tables["Cluster.spec.times.byMachine"].items() < tables["Cluster.spec.times"].items()


def test_field_tables_contain_no_prose() -> None:
    tool = field_tables()
    for path in sorted(tool.FIELDS.glob("*.json")):
        assert re.search(r"[a-z]+ [a-z]+ [a-z]+", path.read_text("utf-8")) is None, path


def test_unknown_crd_schema_keyword_raises_error() -> None:
    tool = field_tables()
    schema = {"type": "object", "properties": {"a": {"type": "string", "oneOf": []}}}
    with pytest.raises(tool.UnknownSchemaError, match=r"Kind\.a: oneOf"):
        tool.CrdTable({}).add(schema, "Kind")
