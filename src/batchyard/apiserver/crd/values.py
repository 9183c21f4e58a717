"""Structural schemas and values: keywords, pruning, defaulting, and validation with the API server's messages.

Sources: k8s.io/kube-openapi, pkg/validation/validate and pkg/validation/errors; k8s.io/apiextensions-apiserver,
pkg/apiserver/validation/validation.go; for lists, pkg/apiserver/schema/listtype.
"""

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api.errors import FieldError
from batchyard.api.meta import INT64_MAX
from batchyard.api.patterns import matches_anywhere
from batchyard.api.times import parse_time
from batchyard.api.validation.rules import format_json
from batchyard.base.instant import parse_duration

# Structural schemas of CustomResourceDefinitions: access to their keywords.
#
# A schema is the mapping as written. Source: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/structural.go.


Schema: TypeAlias = Mapping[str, Any]

PRESERVE_UNKNOWN_FIELDS: Final = "x-kubernetes-preserve-unknown-fields"
EMBEDDED_RESOURCE: Final = "x-kubernetes-embedded-resource"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"
LIST_TYPE: Final = "x-kubernetes-list-type"
MAP_KEYS: Final = "x-kubernetes-list-map-keys"
MAP_TYPE: Final = "x-kubernetes-map-type"
VALIDATION_RULES: Final = "x-kubernetes-validations"
#: Fields of embedded objects that their schema does not control.
ROOT_FIELDS: Final = ("apiVersion", "kind", "metadata")
EMPTY: Final[Schema] = {}


def properties(schema: Schema) -> Mapping[str, Schema]:
    """Return the schemas of the fields that an object schema declares."""
    schemas: Mapping[str, Schema] = schema.get("properties") or {}
    return schemas


def additional_properties_schema(schema: Schema) -> Schema | None:
    """Return the schema in `additionalProperties`; EMPTY if it is true, None if it is false or absent."""
    schema_or_flag = schema.get("additionalProperties")
    return schema_or_flag if isinstance(schema_or_flag, Mapping) else EMPTY if schema_or_flag is True else None


def items_schema(schema: Schema) -> Schema:
    """Return the schema of the items of a list schema; EMPTY if it has none."""
    item_schema: Schema = schema.get("items") or EMPTY
    return item_schema


def schema_of_field(schema: Schema, name: str) -> Schema:
    """Return the schema of a field of an object schema; for an undeclared field that of additional fields, or EMPTY."""
    field_schema = properties(schema).get(name)
    return (additional_properties_schema(schema) or EMPTY) if field_schema is None else field_schema


def direct_subschemas(schema: Schema) -> Iterator[Schema]:
    """Yield the schemas of a schema's fields, additional properties and items."""
    yield from properties(schema).values()
    for subschema in (additional_properties_schema(schema), items_schema(schema)):
        if subschema:
            yield subschema


def root_schema(version: Mapping[str, Any]) -> Schema:
    """Return the schema of one version of a CustomResourceDefinition; EMPTY if it has none."""
    schema: Schema = (version.get("schema") or {}).get("openAPIV3Schema") or EMPTY
    return schema


def uses_keyword(schema: Schema, keyword: str) -> bool:
    """Return whether a keyword is set in a schema or in that of a field or item at any depth."""
    return bool(schema.get(keyword)) or any(uses_keyword(each, keyword) for each in direct_subschemas(schema))


def list_item_identity(item: Any, keys: Sequence[str], item_schema: Schema) -> Any:
    """Return a hashable identity of a list item: the `repr` of each key field's value, or of the field's default.

    `keys` are those of `x-kubernetes-list-map-keys`. Return None if the item is not an object.
    """
    if not isinstance(item, Mapping):
        return None
    return tuple(repr(item.get(key, schema_of_field(item_schema, key).get("default"))) for key in keys)


# Pruning of unknown fields, and defaulting.
#
# Both return the same object if nothing changes. Sources: k8s.io/apiextensions-apiserver,
# pkg/apiserver/schema/{pruning,defaulting}/algorithm.go.


_ItemTransform = Callable[[Any, Schema], Any]


def prune_unknown_fields(obj: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return an object without the fields that its schema neither declares nor preserves.

    `apiVersion`, `kind` and `metadata` are kept unchanged.
    """
    known_fields = _prune_fields(obj, schema, is_api_object=True)
    return known_fields if isinstance(known_fields, dict) else dict(known_fields)


def _prune_value(value: Any, schema: Schema) -> Any:
    if isinstance(value, Mapping):
        return _prune_fields(value, schema, is_api_object=bool(schema.get(EMBEDDED_RESOURCE)))
    if isinstance(value, list) and schema.get("items"):
        return _change_items(value, items_schema(schema), _prune_value)
    return value


def _prune_fields(value: Mapping[str, Any], schema: Schema, *, is_api_object: bool) -> Mapping[str, Any]:
    field_schemas, additional_schema = properties(schema), additional_properties_schema(schema)
    keeps_unknown = bool(schema.get(PRESERVE_UNKNOWN_FIELDS))
    known_fields: dict[str, Any] = {}
    for name, each in value.items():
        if is_api_object and name in ROOT_FIELDS:
            known_fields[name] = each
        elif name in field_schemas:
            known_fields[name] = _prune_value(each, field_schemas[name])
        elif additional_schema is not None:
            known_fields[name] = _prune_value(each, additional_schema) if additional_schema else each
        elif keeps_unknown:
            known_fields[name] = each
    return _old_if_unchanged(value, known_fields)


def with_defaults(value: Any, schema: Schema) -> Any:
    """Return a value with the defaults of its schema, and without nulls in fields that are not nullable."""
    if isinstance(value, Mapping):
        return _complete_fields(value, schema)
    if isinstance(value, list) and schema.get("items"):
        return _change_items(value, items_schema(schema), with_defaults)
    return value


def _complete_fields(value: Mapping[str, Any], schema: Schema) -> Mapping[str, Any]:
    field_schemas, additional_schema = properties(schema), additional_properties_schema(schema)
    new: dict[str, Any] = {}
    for name, each in value.items():
        subschema = field_schemas.get(name, additional_schema)
        if each is None and subschema and not (subschema.get("nullable") or subschema.get(PRESERVE_UNKNOWN_FIELDS)):
            continue
        new[name] = with_defaults(each, subschema) if subschema else each
    for name, subschema in field_schemas.items():
        if name not in new and "default" in subschema:
            new[name] = with_defaults(subschema["default"], subschema)
    return _old_if_unchanged(value, new)


def _change_items(value: list[Any], schema: Schema, change_item: _ItemTransform) -> list[Any]:
    new = [change_item(each, schema) for each in value]
    return value if all(a is b for a, b in zip(new, value, strict=True)) else new


def _old_if_unchanged(old: Mapping[str, Any], new: dict[str, Any]) -> Mapping[str, Any]:
    is_same = len(old) == len(new) and all(name in new and new[name] is each for name, each in old.items())
    return old if is_same else new


# String formats in schemas; unknown formats are ignored.
#
# Source: k8s.io/kube-openapi, pkg/validation/strfmt, and k8s.io/apiextensions-apiserver, pkg/apiserver/validation.


_UUID_PATTERN: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)
_EMAIL_PATTERN: Final = re.compile(r"[^@\s<>]+@[^@\s<>]+")
_HOSTNAME: Final = re.compile(r"(?=.{1,255}$)[a-z0-9]([-a-z0-9]{0,62})?(\.[a-z0-9][-a-z0-9]{0,62})*\.?", re.IGNORECASE)
_MAC_PATTERN: Final = re.compile(r"([0-9a-f]{2}[:-]){5}[0-9a-f]{2}", re.IGNORECASE)
_URI_PATTERN: Final = re.compile(r"[a-z][a-z0-9+.-]*:\S+|/\S*", re.IGNORECASE)
_DATE_PATTERN: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def is_of_format(text: str, name: str) -> bool:
    """Return whether a string has the format `name`, such as `date-time`; True for unknown formats."""
    check = _FORMAT_CHECKS.get(name)
    return check is None or check(text)


def _matches_pattern(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _make_parse_check(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return check


def _parse_date(text: str) -> object:
    if not _DATE_PATTERN.fullmatch(text):
        raise ValueError(text)
    return parse_time(f"{text}T00:00:00Z")


_FORMAT_CHECKS: Final[Mapping[str, Callable[[str], bool]]] = {
    "byte": _make_parse_check(lambda text: base64.b64decode(text, validate=True)),
    "cidr": _make_parse_check(lambda text: ipaddress.ip_network(text, strict=False)),
    "date": _make_parse_check(_parse_date),
    "date-time": _make_parse_check(parse_time),
    "datetime": _make_parse_check(parse_time),
    "duration": _make_parse_check(parse_duration),
    "email": _matches_pattern(_EMAIL_PATTERN),
    "hostname": _matches_pattern(_HOSTNAME),
    "ipv4": _make_parse_check(ipaddress.IPv4Address),
    "ipv6": _make_parse_check(ipaddress.IPv6Address),
    "mac": _matches_pattern(_MAC_PATTERN),
    "uri": _matches_pattern(_URI_PATTERN),
    "uuid": _matches_pattern(_UUID_PATTERN),
}


_NUMBER_TYPES: Final = ("integer", "number")


def value_errors(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    """Yield the errors of a value that does not conform to its schema."""
    if value is None and (schema.get("nullable") or _allows_any_value(schema)):
        return
    value_type, schema_type = _json_type_of(value), schema.get("type", "")
    if not _is_of_type(value, schema):
        yield _invalid_error(path, value_type, f'must be of type {schema_type or "integer,string"}: "{value_type}"')
        return
    yield from _enum_errors(value, schema, path)
    yield from _CHECKS_BY_TYPE[value_type](value, schema, path)
    yield from _combined_errors(value, schema, path)


def _allows_any_value(schema: Schema) -> bool:
    return "type" not in schema and not schema.get(INT_OR_STRING)


def _is_of_type(value: Any, schema: Schema) -> bool:
    value_type, schema_type = _json_type_of(value), schema.get("type")
    if schema.get(INT_OR_STRING):
        return value_type in ("integer", "string")
    if value_type == "number" and isinstance(value, int):
        return False  # exceeds int64
    if schema_type in _NUMBER_TYPES and value_type in _NUMBER_TYPES:
        return schema_type == "number" or value_type == "integer" or value.is_integer()
    return schema_type is None or value_type == schema_type


def _json_type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer" if -INT64_MAX <= value <= INT64_MAX else "number"
        case float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
    return "array"


def _enum_errors(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    values = schema.get("enum")
    if values and not any(value == each and type(value) is type(each) for each in values):
        allowed_texts = ", ".join(format_json(each if isinstance(each, str) else format_json(each)) for each in values)
        yield FieldError(path, f"Unsupported value: {format_json(value)}: supported values: {allowed_texts}")


def _string_errors(value: str, schema: Schema, path: str) -> Iterator[FieldError]:
    length_max, length_min, pattern = schema.get("maxLength"), schema.get("minLength", 0), schema.get("pattern")
    if length_max is not None and len(value) > length_max:
        yield FieldError(path, f"Too long: may not be more than {length_max} {'byte' if length_max == 1 else 'bytes'}")
    if len(value) < length_min:
        yield _invalid_error(path, value, f"should be at least {length_min} chars long")
    if pattern and not matches_anywhere(pattern, value):
        yield _invalid_error(path, value, f"should match '{pattern}'")
    format_name = schema.get("format", "")
    if format_name and not is_of_format(value, format_name):
        yield _invalid_error(path, value, f"must be of type {format_name}: {format_json(value)}")


def _number_errors(value: float, schema: Schema, path: str) -> Iterator[FieldError]:
    maximum, minimum, divisor = schema.get("maximum"), schema.get("minimum"), schema.get("multipleOf")
    if maximum is not None:
        if schema.get("exclusiveMaximum") and value >= maximum:
            yield _invalid_error(path, value, f"should be less than {maximum}")
        elif value > maximum:
            yield _invalid_error(path, value, f"should be less than or equal to {maximum}")
    if minimum is not None:
        if schema.get("exclusiveMinimum") and value <= minimum:
            yield _invalid_error(path, value, f"should be greater than {minimum}")
        elif value < minimum:
            yield _invalid_error(path, value, f"should be greater than or equal to {minimum}")
    if divisor and not float(value / divisor).is_integer():
        yield _invalid_error(path, value, f"should be a multiple of {divisor}")


def _list_errors(value: Sequence[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    maximum, minimum, item_schema = schema.get("maxItems"), schema.get("minItems", 0), items_schema(schema)
    if maximum is not None and len(value) > maximum:
        yield FieldError(path, f"Too many: {len(value)}: must have at most {_format_count(maximum)}")
    if len(value) < minimum:
        yield _invalid_error(path, len(value), f"should have at least {minimum} items")
    for i, each in enumerate(value if item_schema else ()):
        yield from value_errors(each, item_schema, f"{path}[{i}]")
    yield from _duplicate_errors(value, schema, path)


def _format_count(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _duplicate_errors(value: Sequence[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    list_type, item_schema = schema.get(LIST_TYPE), items_schema(schema)
    if list_type not in ("set", "map"):
        return
    keys: Sequence[str] = schema.get(MAP_KEYS) or ()
    item_identities: dict[Any, None] = {}
    for i, each in enumerate(value):
        item_identity = list_item_identity(each, keys, item_schema) if list_type == "map" else format_json(each)
        if item_identity is not None and item_identity in item_identities:
            reported_value = {key: each.get(key) for key in keys if key in each} if list_type == "map" else each
            yield FieldError(f"{path}[{i}]", f"Duplicate value: {format_json(reported_value)}")
        item_identities[item_identity] = None


def _object_errors(value: Mapping[str, Any], schema: Schema, path: str) -> Iterator[FieldError]:
    maximum, minimum = schema.get("maxProperties"), schema.get("minProperties", 0)
    additional_schema = additional_properties_schema(schema)
    if maximum is not None and len(value) > maximum:
        yield FieldError(path, f"Too many: {len(value)}: must have at most {_format_count(maximum)}")
    if len(value) < minimum:
        yield _invalid_error(path, len(value), f"should have at least {minimum} properties")
    for name in schema.get("required") or ():
        if name not in value:
            yield FieldError(_child_path(path, name), "Required value")
    field_schemas = properties(schema)
    for name, each in value.items():
        field_schema = field_schemas.get(name, additional_schema)
        if field_schema is not None:
            yield from value_errors(each, field_schema, _child_path(path, name))


def _no_errors(_value: Any, _schema: Schema, _path: str) -> Iterator[FieldError]:
    return iter(())


_CHECKS_BY_TYPE: Final[Mapping[str, Callable[[Any, Schema, str], Iterator[FieldError]]]] = {
    "null": _no_errors,
    "boolean": _no_errors,
    "integer": _number_errors,
    "number": _number_errors,
    "string": _string_errors,
    "object": _object_errors,
    "array": _list_errors,
}


def _combined_errors(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    for each in schema.get("allOf") or ():
        yield from value_errors(value, each, path)
    if (any_of := schema.get("anyOf")) and not any(_is_valid(value, each) for each in any_of):
        yield FieldError(path, f'Invalid value: "": "{path}" must validate at least one schema (anyOf)')
        yield from value_errors(value, any_of[0], path)
    if one_of := schema.get("oneOf"):
        valid_count = sum(_is_valid(value, each) for each in one_of)
        if valid_count != 1:
            count_text = f"Found {valid_count} valid alternatives" if valid_count else "Found none valid"
            message = f'"{path}" must validate one and only one schema (oneOf). {count_text}'
            yield FieldError(path, f'Invalid value: "": {message}')
    negated_schema = schema.get("not")
    if negated_schema is not None and _is_valid(value, negated_schema):
        yield FieldError(path, f'Invalid value: "": "{path}" must not validate the schema (not)')


def _is_valid(value: Any, schema: Schema) -> bool:
    return next(value_errors(value, schema, ""), None) is None


def _child_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _invalid_error(path: str, value: Any, message: str) -> FieldError:
    return FieldError(path or "<nil>", f"Invalid value: {format_json(value)}: {path} in body {message}")
