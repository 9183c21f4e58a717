"""Validation of CustomResourceDefinitions beyond their structural schema.

Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/validation/validation.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.custom_kinds import ESTABLISHED, built_in_kind
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, annotation, is_true
from batchyard.api.patterns import pattern_fault
from batchyard.api.validation import rules
from batchyard.api.validation.rules import forbidden, immutable, invalid, invalid_here, required, unsupported
from batchyard.apiserver.crd.json_path import BadPath, path_of
from batchyard.apiserver.crd.rules import check_rule
from batchyard.apiserver.crd.values import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    PRESERVES,
    RULES,
    Schema,
    additional,
    child,
    items,
    properties,
    pruned,
    root_schema,
    value_faults,
    with_defaults,
)

_TEXT: Final[Schema] = {"type": "string"}
_TRUTH: Final[Schema] = {"type": "boolean"}
_TYPES: Final = ("array", "boolean", "integer", "number", "object", "string")
_JUNCTORS: Final = ("allOf", "anyOf", "oneOf")
_NOT_NESTED: Final = {
    "type": "must be empty to be structural",
    "additionalProperties": "must be undefined to be structural",
    "default": "must be undefined to be structural",
    "title": "must be empty to be structural",
    "description": "must be empty to be structural",
    "nullable": "must be false to be structural",
    PRESERVES: "must be false to be structural",
    EMBEDDED: "must be false to be structural",
    INT_OR_STRING: "must be false to be structural",
    MAP_KEYS: "must be empty to be structural",
    LIST_TYPE: "must be undefined to be structural",
    MAP_TYPE: "must be undefined to be structural",
    RULES: "must be empty to be structural",
}
_EITHER: Final = [{"type": "integer"}, {"type": "string"}]
_IN_METADATA: Final = frozenset({"name", "generateName"})


def schema_faults(schema: Schema, path: str) -> Iterator[FieldError]:
    """Yield the errors of an object's root schema."""
    if additional(schema) is not None:
        yield forbidden(f"{path}.additionalProperties", "must not be used at the root", "")
    if schema.get("type", "object") != "object":
        yield invalid(f"{path}.type", schema["type"], "must be object at the root", "")
    yield from _faults(schema, path, "must not be empty at the root")
    metadata = properties(schema).get("metadata", {})
    if not _IN_METADATA.issuperset(properties(metadata)) or set(metadata) - {"type", "properties", "description"}:
        message = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield forbidden(f"{path}.properties[metadata]", message, "")


def _faults(schema: Schema, path: str, must_have_type: str) -> Iterator[FieldError]:
    yield from _type_faults(schema, path, must_have_type)
    yield from _extension_faults(schema, path)
    yield from _list_and_map_faults(schema, path)
    yield from _word_faults(schema, path)
    yield from _rule_faults(schema, path)
    yield from _junctor_faults(schema, path, has_either=bool(schema.get(INT_OR_STRING)))
    for name, of in properties(schema).items():
        yield from _faults(of, f"{path}.properties[{name}]", "must not be empty for specified object fields")
    if rest := additional(schema):
        yield from _faults(rest, f"{path}.additionalProperties", "must not be empty for specified object fields")
    if isinstance(schema.get("items"), Mapping):
        yield from _faults(items(schema), f"{path}.items", "must not be empty for specified array items")
    if "default" in schema:
        yield from _default_faults(schema, path)


def _type_faults(schema: Schema, path: str, must_have: str) -> Iterator[FieldError]:
    found = schema.get("type", "")
    if found and found not in _TYPES:
        yield unsupported(f"{path}.type", found, _TYPES)
    if schema.get(EMBEDDED) and found != "object":
        message = f"must be object if {EMBEDDED} is true"
        yield invalid(f"{path}.type", found, message, "") if found else required(f"{path}.type", message, "")
    elif not found and not schema.get(INT_OR_STRING) and not schema.get(PRESERVES):
        yield required(f"{path}.type", must_have, "")
    if found == "array" and not isinstance(schema.get("items"), Mapping):
        yield required(f"{path}.items", "must be specified", "")


def _extension_faults(schema: Schema, path: str) -> Iterator[FieldError]:
    if schema.get(INT_OR_STRING):
        for word in (PRESERVES, EMBEDDED):
            if schema.get(word):
                yield invalid(f"{path}.{word}", True, f"must be false if {INT_OR_STRING} is true", "")
    if schema.get(EMBEDDED) and additional(schema) is not None:
        yield forbidden(f"{path}.additionalProperties", f"must not be used if {EMBEDDED} is set", "")
    if schema.get(EMBEDDED) and not schema.get(PRESERVES) and not properties(schema):
        message = f"must not be empty if {EMBEDDED} is true without {PRESERVES}"
        yield required(f"{path}.properties", message, "")
    if schema.get(PRESERVES) is False:
        yield invalid(f"{path}.{PRESERVES}", False, "must be true or undefined", "")
    if properties(schema) and additional(schema) is not None:
        yield forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive", "")


def _list_and_map_faults(schema: Schema, path: str) -> Iterator[FieldError]:
    kind, keys = schema.get(LIST_TYPE), schema.get(MAP_KEYS) or ()
    if kind is not None:
        if schema.get("type") != "array":
            yield invalid(f"{path}.type", schema.get("type", ""), f"must be array if {LIST_TYPE} is specified", "")
        if kind not in ("atomic", "set", "map"):
            yield unsupported(f"{path}.{LIST_TYPE}", kind, ("atomic", "set", "map"))
    if kind == "map":
        yield from _map_key_faults(schema, keys, path)
    elif keys:
        yield invalid(f"{path}.{LIST_TYPE}", kind or "", f"must be map if {MAP_KEYS} is non-empty", "")
    if (of := schema.get(MAP_TYPE)) is not None and of not in ("atomic", "granular"):
        yield unsupported(f"{path}.{MAP_TYPE}", of, ("atomic", "granular"))


def _map_key_faults(schema: Schema, keys: Sequence[str], path: str) -> Iterator[FieldError]:
    of = items(schema)
    if not keys:
        yield required(f"{path}.{MAP_KEYS}", "must not be empty if x-kubernetes-list-type is map", "")
    if of.get("type") != "object":
        message = f"must be object if parent array's {LIST_TYPE} is map"
        yield invalid(f"{path}.items.type", of.get("type", ""), message, "")
    for i, key in enumerate(keys):
        if key not in properties(of):
            yield invalid(f"{path}.{MAP_KEYS}[{i}]", key, "entries must all be names of item properties", "")
        elif key not in (of.get("required") or ()) and "default" not in properties(of)[key]:
            message = (
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"
            )
            yield required(f"{path}.items.properties[{key}].default", message, "")


def _word_faults(schema: Schema, path: str) -> Iterator[FieldError]:
    for word in ("$ref", "id", "patternProperties", "definitions", "dependencies", "additionalItems"):
        if word in schema:
            yield forbidden(f"{path}.{word}", f"{word} is not supported", "")
    if schema.get("uniqueItems"):
        message = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        yield forbidden(f"{path}.uniqueItems", message, "")
    if (pattern := schema.get("pattern")) and (wrong := pattern_fault(pattern)):
        message = f"must be a valid regular expression, but isn't: {wrong}"
        yield invalid(f"{path}.pattern", pattern, message, "")


def _rule_faults(schema: Schema, path: str) -> Iterator[FieldError]:
    for i, written in enumerate(schema.get(RULES) or ()):
        at = f"{path}.{RULES}[{i}]"
        if not str(written.get("rule", "")).strip():
            yield required(f"{at}.rule", "rule is not specified", "")
        elif wrong := check_rule(written)[0]:
            yield invalid(f"{at}.rule", written["rule"], wrong, "")


def rule_warnings(schema: Schema, path: str) -> Iterator[str]:
    """Yield a warning for each rule that is not checked because it uses unimplemented functions."""
    for i, written in enumerate(schema.get(RULES) or ()):
        if lacking := check_rule(written)[1]:
            yield f"{path}.{RULES}[{i}]: the rule is not checked: unsupported functions: {lacking}"
    for name, of in properties(schema).items():
        yield from rule_warnings(of, f"{path}.properties[{name}]")
    for word, inner in (("additionalProperties", additional(schema)), ("items", items(schema))):
        if inner:
            yield from rule_warnings(inner, f"{path}.{word}")


def _junctor_faults(schema: Schema, path: str, *, has_either: bool) -> Iterator[FieldError]:
    for word in _JUNCTORS:
        for i, each in enumerate(schema.get(word) or ()):
            is_either = has_either and (
                (word == "anyOf" and schema["anyOf"] == _EITHER)
                or (word == "allOf" and i == 0 and each.get("anyOf") == _EITHER)
            )
            if not is_either:
                yield from _nested_faults(each, f"{path}.{word}[{i}]")
    if isinstance(schema.get("not"), Mapping):
        yield from _nested_faults(schema["not"], f"{path}.not")


def _nested_faults(schema: Schema, path: str) -> Iterator[FieldError]:
    """Check schemas below allOf, anyOf, oneOf and not, which may validate values but not declare structure."""
    for word, reported in _NOT_NESTED.items():
        if schema.get(word):
            yield forbidden(f"{path}.{word}", reported, "")
    if "metadata" in properties(schema):
        yield forbidden(f"{path}.properties[metadata]", "must not be specified in a nested context", "")
    yield from _junctor_faults(schema, path, has_either=False)
    for name, of in properties(schema).items():
        yield from _nested_faults(of, f"{path}.properties[{name}]")
    if isinstance(schema.get("items"), Mapping):
        yield from _nested_faults(items(schema), f"{path}.items")


def _default_faults(schema: Schema, path: str) -> Iterator[FieldError]:
    """Check that a default is valid by its schema and has no unknown fields."""
    default: Any = schema["default"]
    if isinstance(default, Mapping) and not schema.get(EMBEDDED) and pruned(default, schema) != default:
        yield invalid(f"{path}.default", default, "must not have unknown fields", "")
    yield from value_faults(with_defaults(default, schema), schema, f"{path}.default")


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
    for message in rules.dns_subdomain(group):
        yield invalid("spec.group", group, message, "")
    if "." not in group:
        yield invalid("spec.group", group, "should be a domain with at least one dot", "")
    is_protected = any(group == each or group.endswith(f".{each}") for each in _PROTECTED)
    if is_protected and not annotation(definition, _APPROVAL):
        text = f'protected groups must have approval annotation "{_APPROVAL}", see https://github.com/kubernetes/enhancements/pull/1111'
        yield required(f"metadata.annotations[{_APPROVAL}]", text, "")


def _name_faults(given: Mapping[str, Any]) -> Iterator[FieldError]:
    for field in ("plural", "singular"):
        for message in rules.dns1035_label(given[field]) if given.get(field) else ():
            yield invalid(f"spec.names.{field}", given[field], message, "")
    for field in ("kind", "listKind"):
        for message in rules.dns1035_label(given[field].lower()) if given.get(field) else ():
            text = f"may have mixed case, but should otherwise match: {message}"
            yield invalid(f"spec.names.{field}", given[field], text, "")
    for field in ("shortNames", "categories"):
        for i, each in enumerate(given.get(field) or ()):
            for message in rules.dns1035_label(each):
                yield invalid(f"spec.names.{field}[{i}]", each, message, "")
    for field in ("plural", "singular", "kind", "listKind"):
        if not given.get(field):
            yield required(f"spec.names.{field}", "", "")
    if given["kind"] and given["kind"] == given["listKind"]:
        yield invalid("spec.names.listKind", given["kind"], "kind and listKind may not be the same", "")


def _version_faults(versions: Sequence[Mapping[str, Any]]) -> Iterator[FieldError]:
    reported = [version["name"] for version in versions]
    for i, name in enumerate(reported):
        for message in rules.dns1035_label(name):
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
