"""Field tables: the fields of each type, read from the JSON files of `fields/`.

tools/field_tables.py generates them, except those of our own kinds (sim, cloud), which are written by hand.

A table maps the name of a type to its fields, and a field to a type expression, or to `[expression, facts]`:

    string bool int int32 int64 quantity int-or-string                              scalars
    time micro-time duration bytes any                                              scalars
    [T] {T}                                      a list of T, a mapping from names to T
    ClusterQueue.spec                            a type of the same table, or else of core.json
    native.ObjectMeta                            a type as in Kubernetes itself, even within a CRD
    cloud.v1alpha1/Cluster.spec                  a type of another table
    T!                                           required

Facts: `default`, `enum`, `pattern`, `min`, `max`, `minLength`, `maxLength`, `minItems`, `maxItems`, `maxProperties`,
`nullable`; `keys` (the fields that identify the items of a list); `set` (items are unique); `items` and `values` (facts
of the elements of a list or a mapping).

Merging: `owned` is the granularity of field ownership in server-side apply. For a list, it names the key fields of
items, or `set` for items by value; without it, `keys` or `set` apply, else the list is atomic. `atomic` makes a mapping
atomic. `merge` is the merge key of a list in strategic merge patches ('' for plain values); without it, the patch
replaces the list. `retain`: such patches may name the fields to keep.

A type is looked up in a scope: that of a CRD version (its table, then core.json) or that of the kinds of Kubernetes
itself (core.json overlaid with native.json).
"""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec

from batchyard.api.scheme import ServedKind

NATIVE: Final = "native"
NATIVE_PREFIX: Final = "native."
#: The groups of Kubernetes itself with kinds here, each by the first part of its name.
_NATIVE_GROUPS: Final = frozenset(
    {
        "admissionregistration",
        *("", "apps", "batch", "coordination", "discovery", "networking", "node", "policy", "rbac", "scheduling"),
    }
)
_SCALARS: Final = frozenset(
    {
        *("string", "bool", "int", "int32", "int64", "quantity", "int-or-string"),
        *("time", "micro-time", "duration", "bytes", "any"),
    }
)

Table: TypeAlias = dict[str, dict[str, str | tuple[str, dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a type, or the element of a list or a mapping."""

    expression: str
    required: bool
    facts: Mapping[str, Any]

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return self.expression.startswith("[")

    @property
    def is_map(self) -> bool:
        """Whether it is a mapping with user-defined keys."""
        return self.expression.startswith("{")

    @property
    def is_object(self) -> bool:
        """Whether it is an object with its own fields."""
        return not (self.is_list or self.is_map) and self.expression not in _SCALARS

    @property
    def element(self) -> "Field":
        """The element of the list or the mapping."""
        return Field(self.expression[1:-1], False, self.facts.get("items" if self.is_list else "values", {}))

    @property
    def object_type(self) -> str:
        """The innermost object type, of the field or of its elements; '' if there is none."""
        if self.is_list or self.is_map:
            return self.element.object_type
        return self.expression if self.is_object else ""


class TypeScope:
    """A namespace of type names, with the fields of each type."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._types: dict[str, Mapping[str, Field]] = {}

    def fields(self, type_name: str) -> Mapping[str, Field]:
        """Return the fields of a type, sorted by name; KeyError if the type does not exist."""
        if type_name not in self._types:
            self._types[type_name] = self._read(type_name)
        return self._types[type_name]

    def scope_of(self, type_name: str) -> "tuple[TypeScope, str]":
        """Return the scope that a name refers to, and the name there."""
        if type_name.startswith(NATIVE_PREFIX):
            return scope(NATIVE), type_name.removeprefix(NATIVE_PREFIX)
        elsewhere, slash, name = type_name.rpartition("/")
        if slash:
            return scope(elsewhere), name
        return self, type_name

    def _read(self, type_name: str) -> Mapping[str, Field]:
        own, core = table(self.name).get(type_name), table("core").get(type_name)
        if own is None and core is None:
            raise KeyError(f"no type {type_name} in {self.name}")
        merged = {**(core or {}), **(own or {})}
        return {name: _field(merged[name]) for name in sorted(merged)}


@cache
def table(name: str) -> Table:
    """Return a table of the package."""
    content = pkgutil.get_data(__package__, f"fields/{name}.json")
    assert content is not None, f"the package lacks its table {name}"
    return msgspec.json.decode(content, type=Table)


@cache
def scope(name: str) -> TypeScope:
    """Return the scope of that name; it is read once."""
    return TypeScope(name)


def scope_for(info: ServedKind, version: str) -> TypeScope:
    """Return the scope of a version of a kind."""
    return scope(NATIVE if is_native(info) else f"{_first_part(info)}.{version}")


def is_native(info: ServedKind) -> bool:
    """Report whether a kind belongs to Kubernetes itself."""
    return _first_part(info) in _NATIVE_GROUPS


def _first_part(info: ServedKind) -> str:
    return info.group.partition(".")[0]


def _field(spec: str | tuple[str, dict[str, Any]]) -> Field:
    expression, facts = (spec, {}) if isinstance(spec, str) else spec
    return Field(expression.removesuffix("!"), expression.endswith("!"), facts)


# --- descriptions ---
#
# Descriptions of types and fields: `descriptions.json`, by type and by `Type.field`.
#
# The text of `*.field` applies to any field of that name without its own text.


_ANY: Final = "*"


def description(type_name: str, field: str = "") -> str:
    """Return the description of a type or of one of its fields; empty if there is none."""
    texts = _texts()
    if not field:
        return texts.get(type_name, "")
    return texts.get(f"{type_name}.{field}") or texts.get(f"{_ANY}.{field}", "")


@cache
def _texts() -> dict[str, str]:
    content = pkgutil.get_data(__package__, "descriptions.json")
    assert content is not None, "the package lacks its descriptions"
    return msgspec.json.decode(content, type=dict[str, str])
