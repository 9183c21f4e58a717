"""Validation of structural schemas of CustomResourceDefinitions.

Sources: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/validation.go and
pkg/apis/apiextensions/validation/validation.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.patterns import pattern_fault
from batchyard.api.validation.errors import forbidden, invalid, required, unsupported
from batchyard.apiserver.crd.rules import check_rule
from batchyard.apiserver.crd.schemas import (
    EMBEDDED,
    INT_OR_STRING,
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    PRESERVES,
    RULES,
    Schema,
    additional,
    items,
    properties,
    pruned,
    with_defaults,
)
from batchyard.apiserver.crd.values import value_faults

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
