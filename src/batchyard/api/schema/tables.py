"""Field tables: which fields objects have, read from the JSON files of `fields/`.

tools/field_tables.py makes them, but for those of our own kinds (sim, cloud), which are written by hand.

A table maps the name of a type to its fields, and a field to a type expression, or to `[expression, facts]`:

    string bool int int32 int64 quantity int-or-string                              scalars
    time micro-time duration bytes any                                              scalars
    [T] {T}                                      a list of T, a mapping from names to T
    ClusterQueue.spec                            a type of the same table, or else of core.json
    native.ObjectMeta                            a type as Kubernetes itself has it, even within a CRD
    cloud.v1alpha1/Cluster.spec                  a type of another table
    T!                                           required

Facts: `default`, `enum`, `pattern`, `min`, `max`, `minLength`, `maxLength`, `minItems`, `maxItems`, `maxProperties`,
`nullable`; `keys` (the fields by which no two items of a list may be the same); `set` (no two items
are the same); `items` and `values` (facts of what a list or a mapping holds).

How a field is merged: `owned` says what in it can have owners of its own in server-side apply (of a list the items, by
the fields named or, `set`, by their values; without it, what `keys` or `set` say, else the list as a whole; `atomic`: a
mapping as a whole); `merge` is the field by which strategic patches know the items of a list ('' for plain values),
without it they replace it; `retain`: such patches may say which fields stay.

A type is looked up in a scope: that of a CRD version (its table, then core.json) or that of the kinds of Kubernetes
itself (core.json with the fields of native.json put over it).
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
#: The groups of Kubernetes itself that have kinds here, each by the first part of its name.
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
    """One field of a type, or what a list or a mapping holds."""

    expression: str
    required: bool
    facts: Mapping[str, Any]

    @property
    def is_list(self) -> bool:
        """Whether it is a list."""
        return self.expression.startswith("[")

    @property
    def is_map(self) -> bool:
        """Whether it is a mapping from names of the user's own."""
        return self.expression.startswith("{")

    @property
    def is_object(self) -> bool:
        """Whether it is an object with fields of its own."""
        return not (self.is_list or self.is_map) and self.expression not in _SCALARS

    @property
    def element(self) -> "Field":
        """What the list or the mapping holds."""
        return Field(self.expression[1:-1], False, self.facts.get("items" if self.is_list else "values", {}))

    @property
    def object_type(self) -> str:
        """The object type at the bottom: of the field, or of what its list or mapping holds; '' if there is none."""
        if self.is_list or self.is_map:
            return self.element.object_type
        return self.expression if self.is_object else ""


class Scope:
    """Where names of types are looked up."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._types: dict[str, Mapping[str, Field]] = {}

    def fields(self, type_name: str) -> Mapping[str, Field]:
        """The fields of a type, in the order of their names; KeyError if there is no such type."""
        if type_name not in self._types:
            self._types[type_name] = self._read(type_name)
        return self._types[type_name]

    def scope_of(self, type_name: str) -> "tuple[Scope, str]":
        """The scope that a name points to, and the name there."""
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
    """A table as the package has it."""
    content = pkgutil.get_data(__package__, f"fields/{name}.json")
    assert content is not None, f"the package lacks its table {name}"
    return msgspec.json.decode(content, type=Table)


@cache
def scope(name: str) -> Scope:
    """The scope of that name, read once."""
    return Scope(name)


def scope_for(info: ServedKind, version: str) -> Scope:
    """The scope of a version of a kind."""
    return scope(NATIVE if is_native(info) else f"{_first_part(info)}.{version}")


def is_native(info: ServedKind) -> bool:
    """Whether a kind is one of Kubernetes itself."""
    return _first_part(info) in _NATIVE_GROUPS


def _first_part(info: ServedKind) -> str:
    return info.group.partition(".")[0]


def _field(spec: str | tuple[str, dict[str, Any]]) -> Field:
    expression, facts = (spec, {}) if isinstance(spec, str) else spec
    return Field(expression.removesuffix("!"), expression.endswith("!"), facts)


# --- descriptions ---
#
# What kinds and fields are, in words, for those who ask: `descriptions.json`, by type and by `Type.field`.
#
# A text of `*.field` is about any field of that name that has none of its own.


_ANY: Final = "*"


def description(type_name: str, field: str = "") -> str:
    """What a type is, or one of its fields; empty where nobody has said."""
    texts = _texts()
    if not field:
        return texts.get(type_name, "")
    return texts.get(f"{type_name}.{field}") or texts.get(f"{_ANY}.{field}", "")


@cache
def _texts() -> dict[str, str]:
    content = pkgutil.get_data(__package__, "descriptions.json")
    assert content is not None, "the package lacks its descriptions"
    return msgspec.json.decode(content, type=dict[str, str])
