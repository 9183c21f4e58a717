"""Structural schemas of CustomResourceDefinitions: access to their keywords.

A schema is the mapping as written. Source: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/structural.go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

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
