"""Validation of CustomResourceDefinitions beyond their structural schema.

Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/validation/validation.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.conditions import is_true
from batchyard.api.custom_kinds import ESTABLISHED, built_in_kind
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, annotation
from batchyard.api.validation import names
from batchyard.api.validation.errors import forbidden, immutable, invalid, invalid_here, required, unsupported
from batchyard.apiserver.crd.json_path import BadPath, path_of
from batchyard.apiserver.crd.schemas import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    PRESERVES,
    RULES,
    Schema,
    child,
    root_schema,
)
from batchyard.apiserver.crd.structural import rule_warnings, schema_faults
from batchyard.apiserver.crd.values import value_faults

# --- schema words ---
#
# The recursive schema of JSON schemas, which checks the types of their keywords.
#
# Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/v1/types_jsonschema.go.


_TEXT: Final[Schema] = {"type": "string"}
_TRUTH: Final[Schema] = {"type": "boolean"}
_NUMBER: Final[Schema] = {"type": "number"}
_WHOLE: Final[Schema] = {"type": "integer"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT}
_RULE: Final[Schema] = {
    "type": "object",
    "required": ["rule"],
    "properties": {
        **dict.fromkeys(("rule", "message", "messageExpression", "fieldPath"), _TEXT),
        "reason": {
            "type": "string",
            "enum": ["FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired", "FieldValueDuplicate"],
        },
        "optionalOldSelf": _TRUTH,
    },
}


def _schema_of_schemas() -> Schema:
    itself: dict[str, Any] = {"type": "object"}
    many: Schema = {"type": "array", "items": itself}
    itself["properties"] = {
        **dict.fromkeys(("type", "format", "title", "description", "pattern", LIST_TYPE, MAP_TYPE), _TEXT),
        **dict.fromkeys(("nullable", "uniqueItems", "exclusiveMaximum", "exclusiveMinimum"), _TRUTH),
        **dict.fromkeys((PRESERVES, EMBEDDED, INT_OR_STRING), _TRUTH),
        **dict.fromkeys(("maximum", "minimum", "multipleOf"), _NUMBER),
        **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), _WHOLE),
        **dict.fromkeys(("required", MAP_KEYS), _TEXTS),
        **dict.fromkeys(("items", "not"), itself),
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), many),
        "enum": {"type": "array", "items": {}},
        "properties": {"type": "object", "additionalProperties": itself},
        "additionalProperties": {"anyOf": [itself, _TRUTH]},
        RULES: {"type": "array", "items": _RULE},
    }
    return itself


SCHEMA_OF_SCHEMAS: Final = _schema_of_schemas()


_APPROVAL: Final = "api-approved.kubernetes.io"
_PROTECTED: Final = ("k8s.io", "kubernetes.io")
_COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
_SELECTABLE_MAX: Final = 8


def definition_faults(definition: Obj) -> Iterator[FieldError]:
    """Yield the errors of a structurally valid definition."""
    spec, name = definition["spec"], definition["metadata"].get("name", "")
    if name != f"{spec['names']['plural']}.{spec['group']}":
        yield invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group', "")
    yield from _group_faults(definition)
    yield from _name_faults(spec["names"])
    yield from _version_faults(spec["versions"])
    yield from _conversion_faults(definition)
    for i, version in enumerate(spec["versions"]):
        yield from _faults_of_version(version, f"spec.versions[{i}]")
    if spec.get("preserveUnknownFields"):
        message = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        )
        yield invalid("spec.preserveUnknownFields", True, message, "")


def definition_warnings(definition: Obj) -> list[str]:
    """Return the warnings for the author of a definition."""
    reported = []
    known = built_in_kind(definition)
    if known is not None:
        reported.append(
            f"batchyard serves {known.kind}.{known.group} itself: this definition is stored, but its schema is not used"
        )
        return reported
    for i, version in enumerate(definition["spec"]["versions"]):
        reported += rule_warnings(root_schema(version), f"spec.versions[{i}].schema.openAPIV3Schema")
    return reported


def definition_update_faults(new: Obj, old: Obj) -> Iterator[FieldError]:
    """Yield the errors of an update of a definition."""
    was, wanted = old["spec"], new["spec"]
    if wanted["group"] != was["group"]:
        yield immutable("spec.group", wanted["group"])
    if wanted["names"]["plural"] != was["names"]["plural"]:
        yield immutable("spec.names.plural", wanted["names"]["plural"])
    if is_true(old, ESTABLISHED):
        if wanted["scope"] != was["scope"]:
            yield immutable("spec.scope", wanted["scope"])
        if wanted["names"]["kind"] != was["names"]["kind"]:
            yield immutable("spec.names.kind", wanted["names"]["kind"])
    there = [version["name"] for version in wanted["versions"]]
    for i, stored in enumerate((old.get("status") or {}).get("storedVersions") or ()):
        if stored not in there:
            yield invalid(f"status.storedVersions[{i}]", stored, "must appear in spec.versions", "")


def _group_faults(definition: Obj) -> Iterator[FieldError]:
    group = definition["spec"]["group"]
    for message in names.dns_subdomain(group):
        yield invalid("spec.group", group, message, "")
    if "." not in group:
        yield invalid("spec.group", group, "should be a domain with at least one dot", "")
    is_protected = any(group == each or group.endswith(f".{each}") for each in _PROTECTED)
    if is_protected and not annotation(definition, _APPROVAL):
        text = f'protected groups must have approval annotation "{_APPROVAL}", see https://github.com/kubernetes/enhancements/pull/1111'
        yield required(f"metadata.annotations[{_APPROVAL}]", text, "")


def _name_faults(given: Mapping[str, Any]) -> Iterator[FieldError]:
    for field in ("plural", "singular"):
        for message in names.dns1035_label(given[field]) if given.get(field) else ():
            yield invalid(f"spec.names.{field}", given[field], message, "")
    for field in ("kind", "listKind"):
        for message in names.dns1035_label(given[field].lower()) if given.get(field) else ():
            text = f"may have mixed case, but should otherwise match: {message}"
            yield invalid(f"spec.names.{field}", given[field], text, "")
    for field in ("shortNames", "categories"):
        for i, each in enumerate(given.get(field) or ()):
            for message in names.dns1035_label(each):
                yield invalid(f"spec.names.{field}[{i}]", each, message, "")
    for field in ("plural", "singular", "kind", "listKind"):
        if not given.get(field):
            yield required(f"spec.names.{field}", "", "")
    if given["kind"] and given["kind"] == given["listKind"]:
        yield invalid("spec.names.listKind", given["kind"], "kind and listKind may not be the same", "")


def _version_faults(versions: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    reported = [version["name"] for version in versions]
    for i, name in enumerate(reported):
        for message in names.dns1035_label(name):
            yield invalid(f"spec.versions[{i}].name", name, message, "")
    if len(dict.fromkeys(reported)) != len(reported):
        yield invalid_here("spec.versions", "must contain unique version names", "")
    if sum(version["storage"] for version in versions) != 1:
        yield invalid_here("spec.versions", "must have exactly one version marked as storage version", "")


def _conversion_faults(definition: Obj) -> Iterator[FieldError]:
    conversion = definition["spec"].get("conversion") or {}
    strategy = conversion.get("strategy", "None")
    if strategy not in ("None", "Webhook"):
        yield unsupported("spec.conversion.strategy", strategy, ("None", "Webhook"))
    elif strategy == "Webhook" and built_in_kind(definition) is None:
        message = "conversion webhooks are not supported: use strategy None, which changes only apiVersion"
        yield forbidden("spec.conversion.strategy", message, "")


def _faults_of_version(version: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    schema = root_schema(version)
    if not schema:
        yield required(f"{path}.schema.openAPIV3Schema", "schemas are required", "")
        return
    misread = list(value_faults(schema, SCHEMA_OF_SCHEMAS, f"{path}.schema.openAPIV3Schema"))
    if misread:
        yield from misread
        return
    yield from schema_faults(schema, f"{path}.schema.openAPIV3Schema")
    for i, column in enumerate(version.get("additionalPrinterColumns") or ()):
        yield from _column_faults(column, f"{path}.additionalPrinterColumns[{i}]")
    yield from _scale_faults((version.get("subresources") or {}).get("scale"), f"{path}.subresources.scale")
    yield from _selectable_faults(version, schema, f"{path}.selectableFields")


def _column_faults(column: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    if column["type"] not in _COLUMN_TYPES:
        message = f"must be one of {','.join(_COLUMN_TYPES)}"
        yield invalid(f"{path}.type", column["type"], message, "")
    try:
        path_of(column["jsonPath"])
    except BadPath as error:
        yield invalid(f"{path}.jsonPath", column["jsonPath"], f"is an invalid JSON path: {error}", "")


def _scale_faults(scale: Mapping[str, Any] | None, path: str) -> Iterator[FieldError]:
    if scale is None:
        return
    for field, below in (("specReplicasPath", (".spec.",)), ("statusReplicasPath", (".status.",))):
        if not scale.get(field):
            yield required(f"{path}.{field}", "", "")
        elif not scale[field].startswith(below):
            yield invalid(f"{path}.{field}", scale[field], f"should be a json path under {below[0][:-1]}", "")
    selector = scale.get("labelSelectorPath")
    if selector and not selector.startswith((".spec.", ".status.")):
        message = "should be a json path under either .status or .spec"
        yield invalid(f"{path}.labelSelectorPath", selector, message, "")


def _selectable_faults(version: Mapping[str, Any], schema: Schema, path: str) -> Iterator[FieldError]:
    fields = version.get("selectableFields") or ()
    if len(fields) > _SELECTABLE_MAX:
        yield FieldError(path, f"Too many: {len(fields)}: must have at most {_SELECTABLE_MAX} items")
    seen: list[str] = []
    for i, field in enumerate(fields):
        written = field["jsonPath"]
        of: Schema = schema
        for name in written.strip(".").split("."):
            of = child(of, name)
        if written in seen:
            yield FieldError(f"{path}[{i}].jsonPath", f'Duplicate value: "{written}"')
        elif not of:
            yield invalid(f"{path}[{i}].jsonPath", written, "does not refer to a valid field", "")
        elif of.get("type") not in ("boolean", "integer", "string"):
            message = "must point to a field of type string, boolean or integer"
            yield invalid(f"{path}[{i}].jsonPath", written, message, "")
        seen.append(written)
