"""Structural schemas, as CustomResourceDefinitions have them: reading their words.

A schema is the mapping as it was written. Source: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/structural.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

PRESERVES: Final = "x-kubernetes-preserve-unknown-fields"
EMBEDDED: Final = "x-kubernetes-embedded-resource"
INT_OR_STRING: Final = "x-kubernetes-int-or-string"
LIST_TYPE: Final = "x-kubernetes-list-type"
MAP_KEYS: Final = "x-kubernetes-list-map-keys"
MAP_TYPE: Final = "x-kubernetes-map-type"
RULES: Final = "x-kubernetes-validations"
#: Of objects within objects, what is not for their schema to say.
ROOT_FIELDS: Final = ("apiVersion", "kind", "metadata")
EMPTY: Final[Schema] = {}


def properties(schema: Schema) -> Mapping[str, Schema]:
    """The schemas of the fields."""
    found: Mapping[str, Schema] = schema.get("properties") or {}
    return found


def additional(schema: Schema) -> Schema | None:
    """The schema of what stands under other names than those of fields; None if there is none."""
    found = schema.get("additionalProperties")
    return found if isinstance(found, Mapping) else EMPTY if found is True else None


def items(schema: Schema) -> Schema:
    """The schema of the items of a list."""
    found: Schema = schema.get("items") or EMPTY
    return found


def child(schema: Schema, name: str) -> Schema:
    """The schema of what stands under a name; EMPTY where none is known."""
    found = properties(schema).get(name)
    return (additional(schema) or EMPTY) if found is None else found


def within(schema: Schema) -> Iterator[Schema]:
    """The schemas of all that is directly within a value."""
    yield from properties(schema).values()
    for found in (additional(schema), items(schema)):
        if found:
            yield found


def root_schema(version: Mapping[str, Any]) -> Schema:
    """The schema of one version of a definition."""
    found: Schema = (version.get("schema") or {}).get("openAPIV3Schema") or EMPTY
    return found


def has_somewhere(schema: Schema, word: str) -> bool:
    """Whether a word is said of a value or of anything within."""
    return bool(schema.get(word)) or any(has_somewhere(each, word) for each in within(schema))


def identity(item: Any, keys: Sequence[str], of: Schema) -> Any:
    """What tells an item of a list of mappings apart: the values of its keys, or their defaults."""
    if not isinstance(item, Mapping):
        return None
    return tuple(repr(item.get(key, child(of, key).get("default"))) for key in keys)
