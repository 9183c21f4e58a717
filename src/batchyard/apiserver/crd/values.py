"""Validation of values against schemas, with the API server's messages.

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
from batchyard.api.patterns import is_found
from batchyard.api.times import parse_time
from batchyard.api.validation.rules import printed
from batchyard.base.instant import parse_duration

# --- schemas ---
#
# Structural schemas of CustomResourceDefinitions: access to their keywords.
#
# A schema is the mapping as written. Source: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/structural.go.


Schema: TypeAlias = Mapping[str, Any]

PRESERVES: Final = "x-kubernetes-preserve-unknown-fields"
EMBEDDED: Final = "x-kubernetes-embedded-resource"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"
LIST_TYPE: Final = "x-kubernetes-list-type"
MAP_KEYS: Final = "x-kubernetes-list-map-keys"
MAP_TYPE: Final = "x-kubernetes-map-type"
RULES: Final = "x-kubernetes-validations"
#: Fields of embedded objects that their schema does not control.
ROOT_FIELDS: Final = ("apiVersion", "kind", "metadata")
EMPTY: Final[Schema] = {}


def properties(schema: Schema) -> Mapping[str, Schema]:
    """Return the schemas of the declared fields."""
    found: Mapping[str, Schema] = schema.get("properties") or {}
    return found


def additional(schema: Schema) -> Schema | None:
    """Return the schema of additional fields; None if they are not allowed."""
    found = schema.get("additionalProperties")
    return found if isinstance(found, Mapping) else EMPTY if found is True else None


def items(schema: Schema) -> Schema:
    """Return the schema of list items."""
    found: Schema = schema.get("items") or EMPTY
    return found


def child(schema: Schema, name: str) -> Schema:
    """Return the schema of a field; EMPTY if it is unknown."""
    found = properties(schema).get(name)
    return (additional(schema) or EMPTY) if found is None else found


def within(schema: Schema) -> Iterator[Schema]:
    """Yield the schemas directly below a schema."""
    yield from properties(schema).values()
    for found in (additional(schema), items(schema)):
        if found:
            yield found


def root_schema(version: Mapping[str, Any]) -> Schema:
    """Return the schema of one version of a definition."""
    found: Schema = (version.get("schema") or {}).get("openAPIV3Schema") or EMPTY
    return found


def has_somewhere(schema: Schema, word: str) -> bool:
    """Report whether a keyword is set in a schema or anywhere below it."""
    return bool(schema.get(word)) or any(has_somewhere(each, word) for each in within(schema))


def identity(item: Any, keys: Sequence[str], of: Schema) -> Any:
    """Return the identity of a list item: the values of its keys, or their defaults."""
    if not isinstance(item, Mapping):
        return None
    return tuple(repr(item.get(key, child(of, key).get("default"))) for key in keys)


# --- pruning ---
#
# Pruning of unknown fields, and defaulting.
#
# Both return the same object if nothing changes. Sources: k8s.io/apiextensions-apiserver,
# pkg/apiserver/schema/{pruning,defaulting}/algorithm.go.


_Each = Callable[[Any, Schema], Any]


def pruned(obj: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Return an object without unknown fields."""
    kept = _fields_pruned(obj, schema, is_object=True)
    return kept if isinstance(kept, dict) else dict(kept)


def _pruned(value: Any, schema: Schema) -> Any:
    if isinstance(value, Mapping):
        return _fields_pruned(value, schema, is_object=bool(schema.get(EMBEDDED)))
    if isinstance(value, list) and schema.get("items"):
        return _each_item(value, items(schema), _pruned)
    return value


def _fields_pruned(value: Mapping[str, Any], schema: Schema, *, is_object: bool) -> Mapping[str, Any]:
    known, rest, keeps = properties(schema), additional(schema), bool(schema.get(PRESERVES))
    kept: dict[str, Any] = {}
    for name, each in value.items():
        if is_object and name in ROOT_FIELDS:
            kept[name] = each
        elif name in known:
            kept[name] = _pruned(each, known[name])
        elif rest is not None:
            kept[name] = _pruned(each, rest) if rest else each
        elif keeps:
            kept[name] = each
    return _same_or_new(value, kept)


def with_defaults(value: Any, schema: Schema) -> Any:
    """Return a value with defaults, and without nulls in fields that are not nullable."""
    if isinstance(value, Mapping):
        return _fields_completed(value, schema)
    if isinstance(value, list) and schema.get("items"):
        return _each_item(value, items(schema), with_defaults)
    return value


def _fields_completed(value: Mapping[str, Any], schema: Schema) -> Mapping[str, Any]:
    known, rest = properties(schema), additional(schema)
    new: dict[str, Any] = {}
    for name, each in value.items():
        of = known.get(name, rest)
        if each is None and of and not of.get("nullable") and not of.get(PRESERVES):
            continue
        new[name] = with_defaults(each, of) if of else each
    for name, of in known.items():
        if name not in new and "default" in of:
            new[name] = with_defaults(of["default"], of)
    return _same_or_new(value, new)


def _each_item(value: list[Any], schema: Schema, change: _Each) -> list[Any]:
    new = [change(each, schema) for each in value]
    return value if all(a is b for a, b in zip(new, value, strict=True)) else new


def _same_or_new(old: Mapping[str, Any], new: dict[str, Any]) -> Mapping[str, Any]:
    is_same = len(old) == len(new) and all(name in new and new[name] is each for name, each in old.items())
    return old if is_same else new


# --- formats ---
#
# String formats in schemas; unknown formats are ignored.
#
# Source: k8s.io/kube-openapi, pkg/validation/strfmt, and k8s.io/apiextensions-apiserver, pkg/apiserver/validation.


_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE)
_EMAIL: Final = re.compile(r"[^@\s<>]+@[^@\s<>]+")
_HOSTNAME: Final = re.compile(r"(?=.{1,255}$)[a-z0-9]([-a-z0-9]{0,62})?(\.[a-z0-9][-a-z0-9]{0,62})*\.?", re.IGNORECASE)
_MAC: Final = re.compile(r"([0-9a-f]{2}[:-]){5}[0-9a-f]{2}", re.IGNORECASE)
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*:\S+|/\S*", re.IGNORECASE)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def is_of_format(text: str, name: str) -> bool:
    """Report whether a string has a format; true for unknown formats."""
    check = _CHECKS.get(name)
    return check is None or check(text)


def _of(pattern: re.Pattern[str]) -> Callable[[str], bool]:
    return lambda text: pattern.fullmatch(text) is not None


def _read_by(read: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            read(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return check


def _date(text: str) -> object:
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    return parse_time(f"{text}T00:00:00Z")


_CHECKS: Final[Mapping[str, Callable[[str], bool]]] = {
    "byte": _read_by(lambda text: base64.b64decode(text, validate=True)),
    "cidr": _read_by(lambda text: ipaddress.ip_network(text, strict=False)),
    "date": _read_by(_date),
    "date-time": _read_by(parse_time),
    "datetime": _read_by(parse_time),
    "duration": _read_by(parse_duration),
    "email": _of(_EMAIL),
    "hostname": _of(_HOSTNAME),
    "ipv4": _read_by(ipaddress.IPv4Address),
    "ipv6": _read_by(ipaddress.IPv6Address),
    "mac": _of(_MAC),
    "uri": _of(_URI),
    "uuid": _of(_UUID),
}


_NUMBERS: Final = ("integer", "number")


def value_faults(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    """Yield the errors of a value."""
    if value is None and (schema.get("nullable") or _may_be_anything(schema)):
        return
    found, wanted = _type_of(value), schema.get("type", "")
    if not _is_of_type(value, schema):
        yield _invalid(path, found, f'must be of type {wanted or "integer,string"}: "{found}"')
        return
    yield from _enum_faults(value, schema, path)
    yield from _VALUES_CHECKS[found](value, schema, path)
    yield from _combined_faults(value, schema, path)


def _may_be_anything(schema: Schema) -> bool:
    return "type" not in schema and not schema.get(INT_OR_STRING)


def _is_of_type(value: Any, schema: Schema) -> bool:
    found, wanted = _type_of(value), schema.get("type")
    if schema.get(INT_OR_STRING):
        return found in ("integer", "string")
    if found == "number" and isinstance(value, int):
        return False  # exceeds int64
    if wanted in _NUMBERS and found in _NUMBERS:
        return wanted == "number" or found == "integer" or value.is_integer()
    return wanted is None or found == wanted


def _type_of(value: Any) -> str:
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


def _enum_faults(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    allowed = schema.get("enum")
    if allowed and not any(value == each and type(value) is type(each) for each in allowed):
        shown = ", ".join(printed(each if isinstance(each, str) else printed(each)) for each in allowed)
        yield FieldError(path, f"Unsupported value: {printed(value)}: supported values: {shown}")


def _string_faults(value: str, schema: Schema, path: str) -> Iterator[FieldError]:
    longest, shortest, pattern = schema.get("maxLength"), schema.get("minLength", 0), schema.get("pattern")
    if longest is not None and len(value) > longest:
        yield FieldError(path, f"Too long: may not be more than {longest} {'byte' if longest == 1 else 'bytes'}")
    if len(value) < shortest:
        yield _invalid(path, value, f"should be at least {shortest} chars long")
    if pattern and not is_found(pattern, value):
        yield _invalid(path, value, f"should match '{pattern}'")
    named = schema.get("format", "")
    if named and not is_of_format(value, named):
        yield _invalid(path, value, f"must be of type {named}: {printed(value)}")


def _number_faults(value: float, schema: Schema, path: str) -> Iterator[FieldError]:
    highest, lowest, step = schema.get("maximum"), schema.get("minimum"), schema.get("multipleOf")
    if highest is not None:
        if schema.get("exclusiveMaximum") and value >= highest:
            yield _invalid(path, value, f"should be less than {highest}")
        elif value > highest:
            yield _invalid(path, value, f"should be less than or equal to {highest}")
    if lowest is not None:
        if schema.get("exclusiveMinimum") and value <= lowest:
            yield _invalid(path, value, f"should be greater than {lowest}")
        elif value < lowest:
            yield _invalid(path, value, f"should be greater than or equal to {lowest}")
    if step and not float(value / step).is_integer():
        yield _invalid(path, value, f"should be a multiple of {step}")


def _list_faults(value: Sequence[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    most, least, of = schema.get("maxItems"), schema.get("minItems", 0), items(schema)
    if most is not None and len(value) > most:
        yield FieldError(path, f"Too many: {len(value)}: must have at most {_counted(most)}")
    if len(value) < least:
        yield _invalid(path, len(value), f"should have at least {least} items")
    for i, each in enumerate(value if of else ()):
        yield from value_faults(each, of, f"{path}[{i}]")
    yield from _duplicate_faults(value, schema, path)


def _counted(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _duplicate_faults(value: Sequence[Any], schema: Schema, path: str) -> Iterator[FieldError]:
    kind, of = schema.get(LIST_TYPE), items(schema)
    if kind not in ("set", "map"):
        return
    keys: Sequence[str] = schema.get(MAP_KEYS) or ()
    known: dict[Any, None] = {}
    for i, each in enumerate(value):
        found = identity(each, keys, of) if kind == "map" else printed(each)
        if found is not None and found in known:
            named = {key: each.get(key) for key in keys if key in each} if kind == "map" else each
            yield FieldError(f"{path}[{i}]", f"Duplicate value: {printed(named)}")
        known[found] = None


def _object_faults(value: Mapping[str, Any], schema: Schema, path: str) -> Iterator[FieldError]:
    most, least, rest = schema.get("maxProperties"), schema.get("minProperties", 0), additional(schema)
    if most is not None and len(value) > most:
        yield FieldError(path, f"Too many: {len(value)}: must have at most {_counted(most)}")
    if len(value) < least:
        yield _invalid(path, len(value), f"should have at least {least} properties")
    for name in schema.get("required") or ():
        if name not in value:
            yield FieldError(_below(path, name), "Required value")
    known = properties(schema)
    for name, each in value.items():
        of = known.get(name, rest)
        if of is not None:
            yield from value_faults(each, of, _below(path, name))


def _nothing_more(_value: Any, _schema: Schema, _path: str) -> Iterator[FieldError]:
    return iter(())


_VALUES_CHECKS: Final[Mapping[str, Callable[[Any, Schema, str], Iterator[FieldError]]]] = {
    "null": _nothing_more,
    "boolean": _nothing_more,
    "integer": _number_faults,
    "number": _number_faults,
    "string": _string_faults,
    "object": _object_faults,
    "array": _list_faults,
}


def _combined_faults(value: Any, schema: Schema, path: str) -> Iterator[FieldError]:
    """Check allOf, anyOf, oneOf and not."""
    for each in schema.get("allOf") or ():
        yield from value_faults(value, each, path)
    if (some := schema.get("anyOf")) and not any(_holds(value, each) for each in some):
        yield FieldError(path, f'Invalid value: "": "{path}" must validate at least one schema (anyOf)')
        yield from value_faults(value, some[0], path)
    if one := schema.get("oneOf"):
        count = sum(_holds(value, each) for each in one)
        if count != 1:
            found = f"Found {count} valid alternatives" if count else "Found none valid"
            message = f'"{path}" must validate one and only one schema (oneOf). {found}'
            yield FieldError(path, f'Invalid value: "": {message}')
    none = schema.get("not")
    if none is not None and _holds(value, none):
        yield FieldError(path, f'Invalid value: "": "{path}" must not validate the schema (not)')


def _holds(value: Any, schema: Schema) -> bool:
    return next(value_faults(value, schema, ""), None) is None


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _invalid(path: str, value: Any, message: str) -> FieldError:
    return FieldError(path or "<nil>", f"Invalid value: {printed(value)}: {path} in body {message}")
