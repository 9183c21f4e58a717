"""Merge schemas for strategic merge patch, server-side apply and strict decoding.

A shape defines the fields of a mapping and whether it allows others, and the merge keys of a list. It is derived from
the field tables, or from the schema of a CustomResourceDefinition. Unknown structure has the shape FREE.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from batchyard.api.schema.tables import NATIVE, Field, TypeScope, scope, scope_for
from batchyard.api.scheme import ServedKind

_ATOMIC: Final = "atomic"
_SET: Final = "set"


class MergeSchemaMembers(NamedTuple):
    """The shapes of the members of a value."""

    fields: "Mapping[str, MergeSchema]"
    #: The shape of undeclared mapping members; None if they are not allowed.
    rest: "MergeSchema | None" = None
    item: "MergeSchema | None" = None


class MergeSchema:
    """The merge schema of one value."""

    __slots__ = ("_inside", "_make", "default", "is_atomic", "keys", "merge", "retains")

    def __init__(self, facts: Mapping[str, Any], make: Callable[[], MergeSchemaMembers]) -> None:
        owned = facts.get("owned", _SET if facts.get("set") else facts.get("keys"))
        #: Whether a mapping has one owner as a whole.
        self.is_atomic = owned == _ATOMIC
        #: The key fields of list items, () for sets; None if the list is atomic.
        self.keys: tuple[str, ...] | None = None if owned in (None, _ATOMIC) else () if owned == _SET else tuple(owned)
        #: The strategic merge key of a list, '' for plain values; None if a patch replaces the list.
        self.merge: str | None = facts.get("merge")
        self.retains = bool(facts.get("retain"))
        self.default = facts.get("default")
        self._make = make
        self._inside: MergeSchemaMembers | None = None

    @property
    def inside(self) -> MergeSchemaMembers:
        """The shapes of the members, computed on first access."""
        if self._inside is None:
            self._inside = self._make()
        return self._inside

    def below(self, name: str) -> "MergeSchema":
        """Return the shape of a field; FREE if it is unknown."""
        inside = self.inside
        return inside.fields.get(name) or inside.rest or FREE

    @property
    def item(self) -> "MergeSchema":
        """The shape of list items."""
        return self.inside.item or FREE

    def knows(self, name: str) -> bool:
        """Report whether a field is allowed."""
        return name in self.inside.fields or self.inside.rest is not None


def _inside_free() -> MergeSchemaMembers:
    return MergeSchemaMembers({}, FREE, FREE)


#: Unknown structure: mappings are merged, lists are atomic, all fields are allowed.
FREE: Final = MergeSchema({}, _inside_free)


def shape_of_kind(info: ServedKind, version: str) -> MergeSchema:
    """Return the shape of a built-in kind in one of its versions."""
    return _of_type(scope_for(info, version), info.kind)


@cache
def _of_type(scope: TypeScope, name: str) -> MergeSchema:
    home, own_name = scope.scope_of(name)
    return MergeSchema(
        {}, lambda: MergeSchemaMembers({field: _of_field(home, spec) for field, spec in home.fields(own_name).items()})
    )


def _of_field(scope: TypeScope, field: Field) -> MergeSchema:
    return MergeSchema(field.facts, lambda: _inside_field(scope, field))


def _inside_field(scope: TypeScope, field: Field) -> MergeSchemaMembers:
    if field.is_list:
        return MergeSchemaMembers({}, item=_of_field(scope, field.element))
    if field.is_map:
        return MergeSchemaMembers({}, rest=_of_field(scope, field.element))
    return _of_type(scope, field.expression).inside if field.is_object else _inside_free()


def metadata_shape() -> MergeSchema:
    """Return the shape of object metadata."""
    return _of_type(scope(NATIVE), "ObjectMeta")


def shape_of_schema(schema: Mapping[str, Any], metadata: MergeSchema = FREE) -> MergeSchema:
    """Return the shape of a structural schema of a custom kind; `metadata` is the shape of its metadata."""
    return MergeSchema({}, lambda: MergeSchemaMembers({**_fields_of(schema), "metadata": metadata}, _rest_of(schema)))


def _of_schema(schema: Mapping[str, Any]) -> MergeSchema:
    owned: Any = None
    match schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-map-type"):
        case "map", _:
            owned = schema.get("x-kubernetes-list-map-keys", [])
        case "set", _:
            owned = _SET
        case _, "atomic":
            owned = _ATOMIC
    facts = {"owned": owned, "default": schema.get("default")}
    return MergeSchema(
        facts, lambda: MergeSchemaMembers(_fields_of(schema), _rest_of(schema), _of_schema(schema.get("items") or {}))
    )


def _fields_of(schema: Mapping[str, Any]) -> dict[str, MergeSchema]:
    is_object = schema.get("x-kubernetes-embedded-resource")
    root = {"apiVersion": FREE, "kind": FREE, "metadata": metadata_shape()} if is_object else {}
    return root | {name: _of_schema(child) for name, child in (schema.get("properties") or {}).items()}


def _rest_of(schema: Mapping[str, Any]) -> MergeSchema | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        return _of_schema(additional)
    is_open = additional or schema.get("x-kubernetes-preserve-unknown-fields") or "properties" not in schema
    return FREE if is_open else None
