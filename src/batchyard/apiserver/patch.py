"""Patches by media type: JSON patch, JSON merge patch, strategic merge patch. Server-side apply is in `apply`."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.meta import Obj
from batchyard.api.scheme import NATIVE, Field, ServedKind, TypeScope, scope, scope_for
from batchyard.apiserver.json_patch import json_patched
from batchyard.apiserver.request import APPLY, JSON_PATCH, MERGE, STRATEGIC, StatusError, bad_request

# --- merge schema ---
#
# Merge schemas for strategic merge patch, server-side apply and strict decoding.
#
# A shape defines the fields of a mapping and whether it allows others, and the merge keys of a list. It is derived from
# the field tables, or from the schema of a CustomResourceDefinition. Unknown structure has the shape FREE.


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


# --- strategic ---
#
# Strategic merge patches: JSON merge patches with merging of lists.
#
# Lists with a merge strategy in their schema are merged item by item; others are replaced. Directives among the fields
# control the merge:
#
#     $patch: replace | delete         on a mapping or list item: replace or remove the existing one
#     $deleteFromPrimitiveList/F       the values to remove from the list F
#     $setElementOrder/F               the order of the items of the list F
#     $retainKeys                      the only fields to keep
#
# Source: k8s.io/apimachinery, pkg/util/strategicpatch/patch.go.


_PATCH: Final = "$patch"
_DELETE_FROM: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"
_RETAIN: Final = "$retainKeys"
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def strategically_merged(value: Mapping[str, Any], patch: Mapping[str, Any], shape: MergeSchema) -> dict[str, Any]:
    """Apply a patch to a mapping. Raises Refused if the patch is malformed."""
    if _PATCH in patch:
        return _directed(patch)
    result = dict(value)
    if _RETAIN in patch:
        result = _retained(result, patch)
    for name, wanted in patch.items():
        if name.startswith(_DELETE_FROM):
            _delete_from(result, name.removeprefix(_DELETE_FROM), wanted)
        elif name.startswith(_ORDER) or name == _RETAIN:
            continue
        elif wanted is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), wanted, shape.below(name), patch.get(f"{_ORDER}{name}"))
    for name, order in patch.items():
        field = name.removeprefix(_ORDER)
        if field != name and field not in patch and isinstance(result.get(field), list):
            result[field] = _merged(result[field], [], shape.below(field), order)
    return result


def _directed(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Apply the `$patch` directive of a mapping."""
    match patch[_PATCH]:
        case "replace":
            return {name: wanted for name, wanted in patch.items() if name != _PATCH}
        case "delete":
            return {}
    raise bad_request(f"unknown patch type: {patch[_PATCH]} in map: {dict(patch)}")


def _retained(value: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Keep only the fields named by `$retainKeys`, which must include all fields that the patch sets."""
    kept = patch[_RETAIN]
    given = [name for name, wanted in patch.items() if wanted is not None and not name.startswith("$")]
    if not isinstance(kept, list):
        raise bad_request("invalid patch format of retainKeys")
    names = frozenset(name for name in kept if isinstance(name, str))
    if not names.issuperset(given):
        raise bad_request("invalid patch format of retainKeys")
    return {name: child for name, child in value.items() if name in names}


def _delete_from(result: dict[str, Any], name: str, gone: Any) -> None:
    if not isinstance(gone, list):
        raise bad_request("invalid patch format of primitive list")
    if isinstance(result.get(name), list):
        named = frozenset(map(_encode, gone))
        result[name] = [item for item in result[name] if _encode(item) not in named]


def _merged(value: Any, wanted: Any, shape: MergeSchema, order: Any) -> Any:
    """Apply a patch to a field."""
    if isinstance(wanted, Mapping):
        return strategically_merged(value if isinstance(value, Mapping) else {}, wanted, shape)
    if isinstance(wanted, list) and shape.merge is not None:
        return _list_merged(value if isinstance(value, list) else [], wanted, shape, order)
    return wanted


def _list_merged(items: list[Any], patch: list[Any], shape: MergeSchema, order: Any) -> list[Any]:
    """Apply a patch to a list, ordered by the patch or by its `$setElementOrder`."""
    key = shape.merge
    assert key is not None, "lists without a merge strategy are replaced"
    if any(isinstance(item, list) for item in (*items, *patch)):
        raise StatusError(422, "Invalid", "lists of lists are not supported")
    if order is not None:
        _check_order(order, patch, key)
    if key:
        given, left = _items_merged(items, patch, key, shape.item)
    elif any(isinstance(item, Mapping) for item in patch):
        raise bad_request("cannot merge lists without merge key")
    else:
        given, left = patch, list(dict.fromkeys([*items, *patch]))
    return _ordered(left, given if order is None else order, items, key)


def _items_merged(
    items: list[Any], patch: list[Any], key: str, shape: MergeSchema
) -> tuple[Sequence[Mapping[str, Any]], list[Any]]:
    """Return the patch items without directives, and all items after the merge."""
    given = [item for item in patch if _directive_of(item) is None]
    left = [] if any(_directive_of(item) == "replace" for item in patch) else list(items)
    gone = frozenset(_name_of(item, key) for item in patch if _directive_of(item) == "delete")
    left = [item for item in left if _encode(item.get(key)) not in gone]
    places = _first_places(_encode(item.get(key)) for item in left)
    for item in given:
        at = places.setdefault(_name_of(item, key), len(left))
        left[at : at + 1] = [strategically_merged(left[at] if at < len(left) else {}, item, shape)]
    return given, left


def _directive_of(item: Any) -> str | None:
    if not isinstance(item, Mapping):
        raise bad_request(f"an item of a list with a merge key is not an object: {item}")
    directive = item.get(_PATCH)
    if directive == "merge":
        raise bad_request("merging lists cannot yet be specified in the patch")
    if directive not in (None, "replace", "delete"):
        raise bad_request(f"unknown patch type: {directive} in map: {dict(item)}")
    return directive


def _key_of(item: Any, key: str) -> Any:
    """Return the identity of a list item: the merge key's value, or the item itself without a merge key."""
    if not key:
        return item
    if not isinstance(item, Mapping) or key not in item:
        raise bad_request(f"map: {item} does not contain declared merge key: {key}")
    return item[key]


def _check_order(order: Any, patch: Sequence[Any], key: str) -> None:
    """Raise Refused unless `$setElementOrder` contains the items of the patch in their order."""
    if not isinstance(order, list):
        raise bad_request("invalid patch format of setElementOrder list")
    stated: Iterator[Any] = iter([_key_of(item, key) for item in order])
    given = [item for item in patch if not key or _directive_of(item) is None]
    if patch and order and not all(_key_of(item, key) in stated for item in given):
        message = f"doesn't match {_ORDER.rstrip('/')} list:\n{order}\n"
        raise bad_request(f"The order in patch list:\n{list(patch)}\n {message}")


def _ordered(items: list[Any], order: Sequence[Any], before: Sequence[Any], key: str) -> list[Any]:
    """Order items: named items in the given order, other items merged between them in their previous order."""
    places = _first_places(_name_of(item, key) for item in order)
    were = _first_places(_name_of(item, key) for item in before)
    tagged = [(_name_of(item, key), item) for item in items]
    named = deque(sorted((pair for pair in tagged if pair[0] in places), key=lambda pair: places[pair[0]]))
    others = deque(pair for pair in tagged if pair[0] not in places)
    result = []
    while named and others:
        first, other = were.get(named[0][0]), were.get(others[0][0])
        comes_first = first is not None and other is not None and other < first
        result.append((others if comes_first else named).popleft())
    return [item for _, item in (*result, *named, *others)]


def _name_of(item: Any, key: str) -> bytes:
    """Return the encoded identity of a list item."""
    return _encode(_key_of(item, key))


def _first_places(names: Iterable[bytes]) -> dict[bytes, int]:
    places: dict[bytes, int] = {}
    for i, name in enumerate(names):
        places.setdefault(name, i)
    return places


# --- merge ---
#
# JSON merge patch. Source: RFC 7396.


def merged(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch: objects are merged, null removes, other values replace."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(value) if isinstance(value, Mapping) else {}
    for field, wanted in patch.items():
        if wanted is None:
            result.pop(field, None)
        else:
            result[field] = merged(result.get(field), wanted)
    return result


def patched(obj: Obj, content_type: str, patch: Any, shape: MergeSchema) -> Any:
    """Apply a patch to an object. Raises Refused if it cannot be applied."""
    if content_type == JSON_PATCH:
        return json_patched(obj, patch)
    if not isinstance(patch, Mapping):
        raise bad_request("a merge patch must be an object")
    return merged(obj, patch) if content_type == MERGE else strategically_merged(obj, patch, shape)


def media_types(*, strategic: bool) -> list[str]:
    """Return the media types of patches; strategic merge patches need the merge keys of native kinds."""
    return [JSON_PATCH, MERGE, *([STRATEGIC] if strategic else []), APPLY]


def check_media_type(content_type: str, *, strategic: bool) -> None:
    """Raise Refused if a media type is not that of a supported patch."""
    accepted = media_types(strategic=strategic)
    if content_type not in accepted:
        message = f"accepted media types include: {', '.join(accepted)}"
        raise StatusError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {message}")
