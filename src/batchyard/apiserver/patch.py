"""Merge schemas (how patches and applies merge each value), and patches: JSON, JSON merge and strategic merge patch.

Server-side apply is in `apply.py`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.meta import Obj
from batchyard.api.scheme import NATIVE, Field, ServedKind, TypeScope, load_scope, load_scope_for_kind
from batchyard.apiserver import request
from batchyard.apiserver.json_patch import apply_json_patch

# Merge schemas for strategic merge patch, server-side apply and strict decoding.
#
# A merge schema defines the fields of a mapping and whether it allows others, and the merge keys of a list.
# It is derived from the tables of built-in fields, or from the schema of a CustomResourceDefinition. Fields without
# either have UNSTRUCTURED.


_ATOMIC_OWNERSHIP: Final = "atomic"
_SET_OWNERSHIP: Final = "set"


class MergeSchemaMembers(NamedTuple):
    """The merge schemas of a mapping's fields and of a list's items."""

    fields: "Mapping[str, MergeSchema]"
    #: The merge schema of undeclared mapping members; None if they are not allowed.
    undeclared_schema: "MergeSchema | None" = None
    item_schema: "MergeSchema | None" = None


class MergeSchema:
    """How patches and server-side apply merge one value: as a whole, by field, or by list item."""

    __slots__ = ("_compute_members", "_members", "default", "is_atomic", "keys", "merge", "retains")

    def __init__(self, merge_facts: Mapping[str, Any], compute_members: Callable[[], MergeSchemaMembers]) -> None:
        ownership = merge_facts.get("owned", _SET_OWNERSHIP if merge_facts.get("set") else merge_facts.get("keys"))
        #: Whether a mapping has one owner as a whole.
        self.is_atomic = ownership == _ATOMIC_OWNERSHIP
        #: The key fields of list items, () for sets; None if the list is atomic.
        self.keys: tuple[str, ...] | None = (
            None if ownership in (None, _ATOMIC_OWNERSHIP) else () if ownership == _SET_OWNERSHIP else tuple(ownership)
        )
        #: The strategic merge key of a list, '' for plain values; None if a patch replaces the list.
        self.merge: str | None = merge_facts.get("merge")
        self.retains = bool(merge_facts.get("retain"))
        self.default = merge_facts.get("default")
        self._compute_members = compute_members
        self._members: MergeSchemaMembers | None = None

    @property
    def members(self) -> MergeSchemaMembers:
        """The merge schemas of a value's fields and items, computed on first access."""
        if self._members is None:
            self._members = self._compute_members()
        return self._members

    def field_schema(self, name: str) -> "MergeSchema":
        """Return the merge schema of a field; for an undeclared field, that of undeclared fields, or UNSTRUCTURED."""
        members = self.members
        return members.fields.get(name) or members.undeclared_schema or UNSTRUCTURED

    @property
    def item_schema(self) -> "MergeSchema":
        """The merge schema of list items."""
        return self.members.item_schema or UNSTRUCTURED

    def allows_field(self, name: str) -> bool:
        """Return whether the schema allows a field."""
        return name in self.members.fields or self.members.undeclared_schema is not None


def _unstructured_members() -> MergeSchemaMembers:
    return MergeSchemaMembers({}, UNSTRUCTURED, UNSTRUCTURED)


#: Unknown structure: mappings are merged, lists are atomic, all fields are allowed.
UNSTRUCTURED: Final = MergeSchema({}, _unstructured_members)


def merge_schema_of_kind(served_kind: ServedKind, version: str) -> MergeSchema:
    """Return the merge schema of a built-in kind in one of its versions."""
    return _schema_of_type(load_scope_for_kind(served_kind, version), served_kind.kind)


@cache
def _schema_of_type(scope: TypeScope, name: str) -> MergeSchema:
    defining_scope, local_name = scope.scope_of(name)
    return MergeSchema(
        {},
        lambda: MergeSchemaMembers(
            {field: _schema_of_field(defining_scope, spec) for field, spec in defining_scope.fields(local_name).items()}
        ),
    )


def _schema_of_field(scope: TypeScope, field: Field) -> MergeSchema:
    return MergeSchema(field.constraints, lambda: _members_of_field(scope, field))


def _members_of_field(scope: TypeScope, field: Field) -> MergeSchemaMembers:
    if field.is_list:
        return MergeSchemaMembers({}, item_schema=_schema_of_field(scope, field.element))
    if field.is_map:
        return MergeSchemaMembers({}, undeclared_schema=_schema_of_field(scope, field.element))
    return _schema_of_type(scope, field.expression).members if field.is_object else _unstructured_members()


def metadata_merge_schema() -> MergeSchema:
    """Return the merge schema of object metadata."""
    return _schema_of_type(load_scope(NATIVE), "ObjectMeta")


def merge_schema_of_custom_kind(schema: Mapping[str, Any], metadata: MergeSchema = UNSTRUCTURED) -> MergeSchema:
    """Return the merge schema of a custom kind, from its structural schema and the merge schema of its metadata."""
    return MergeSchema(
        {}, lambda: MergeSchemaMembers({**_field_schemas(schema), "metadata": metadata}, _additional_schema(schema))
    )


def _merge_schema_of(schema: Mapping[str, Any]) -> MergeSchema:
    ownership: Any = None
    match schema.get("x-kubernetes-list-type"), schema.get("x-kubernetes-map-type"):
        case ["map", _]:
            ownership = schema.get("x-kubernetes-list-map-keys", [])
        case ["set", _]:
            ownership = _SET_OWNERSHIP
        case [_, "atomic"]:
            ownership = _ATOMIC_OWNERSHIP
    merge_facts = {"owned": ownership, "default": schema.get("default")}
    return MergeSchema(
        merge_facts,
        lambda: MergeSchemaMembers(
            _field_schemas(schema), _additional_schema(schema), _merge_schema_of(schema.get("items") or {})
        ),
    )


def _field_schemas(schema: Mapping[str, Any]) -> dict[str, MergeSchema]:
    is_object = schema.get("x-kubernetes-embedded-resource")
    root = {"apiVersion": UNSTRUCTURED, "kind": UNSTRUCTURED, "metadata": metadata_merge_schema()} if is_object else {}
    return root | {name: _merge_schema_of(child) for name, child in (schema.get("properties") or {}).items()}


def _additional_schema(schema: Mapping[str, Any]) -> MergeSchema | None:
    additional_properties = schema.get("additionalProperties")
    if isinstance(additional_properties, Mapping):
        return _merge_schema_of(additional_properties)
    is_open = additional_properties or schema.get("x-kubernetes-preserve-unknown-fields") or "properties" not in schema
    return UNSTRUCTURED if is_open else None


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


_DIRECTIVE_KEY: Final = "$patch"
_DELETE_FROM_PREFIX: Final = "$deleteFromPrimitiveList/"
_ORDER_PREFIX: Final = "$setElementOrder/"
_RETAIN_KEYS: Final = "$retainKeys"
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def apply_strategic_merge_patch(value: Obj, patch: Obj, merge_schema: MergeSchema) -> dict[str, Any]:
    """Return a mapping after a strategic merge patch. Raises StatusError if the patch cannot be applied."""
    if _DIRECTIVE_KEY in patch:
        return _apply_directive(patch)
    merged_object = dict(value)
    if _RETAIN_KEYS in patch:
        merged_object = _retain_keys(merged_object, patch)
    for name, new_value in patch.items():
        if name.startswith(_DELETE_FROM_PREFIX):
            _delete_primitive_values(merged_object, name.removeprefix(_DELETE_FROM_PREFIX), new_value)
        elif name.startswith(_ORDER_PREFIX) or name == _RETAIN_KEYS:
            continue
        elif new_value is None:
            merged_object.pop(name, None)
        else:
            merged_object[name] = _merge_field(
                merged_object.get(name), new_value, merge_schema.field_schema(name), patch.get(f"{_ORDER_PREFIX}{name}")
            )
    for name, order in patch.items():
        field = name.removeprefix(_ORDER_PREFIX)
        if field != name and field not in patch and isinstance(merged_object.get(field), list):
            merged_object[field] = _merge_field(merged_object[field], [], merge_schema.field_schema(field), order)
    return merged_object


def _apply_directive(patch: Mapping[str, Any]) -> dict[str, Any]:
    match patch[_DIRECTIVE_KEY]:
        case "replace":
            return {name: new_value for name, new_value in patch.items() if name != _DIRECTIVE_KEY}
        case "delete":
            return {}
    raise request.bad_request(f"unknown patch type: {_go_text(patch[_DIRECTIVE_KEY])} in map: {_go_text(patch)}")


def _retain_keys(value: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    retained_keys = patch[_RETAIN_KEYS]
    changed_fields = [name for name, new_value in patch.items() if new_value is not None and not name.startswith("$")]
    if not isinstance(retained_keys, list):
        raise request.bad_request("invalid patch format of retainKeys")
    names = frozenset(name for name in retained_keys if isinstance(name, str))
    if not names.issuperset(changed_fields):
        raise request.bad_request("invalid patch format of retainKeys")
    return {name: child for name, child in value.items() if name in names}


def _delete_primitive_values(merged_object: dict[str, Any], name: str, removed_values: Any) -> None:
    if not isinstance(removed_values, list):
        raise request.bad_request("invalid patch format of primitive list")
    if isinstance(merged_object.get(name), list):
        encoded_values = frozenset(map(_encode, removed_values))
        merged_object[name] = [item for item in merged_object[name] if _encode(item) not in encoded_values]


def _merge_field(value: Any, new_value: Any, merge_schema: MergeSchema, element_order: Any) -> Any:
    if isinstance(new_value, Mapping):
        return apply_strategic_merge_patch(value if isinstance(value, Mapping) else {}, new_value, merge_schema)
    if isinstance(new_value, list) and merge_schema.merge is not None:
        return _merge_list(value if isinstance(value, list) else [], new_value, merge_schema, element_order)
    return new_value


def _merge_list(list_items: list[Any], patch: list[Any], merge_schema: MergeSchema, element_order: Any) -> list[Any]:
    key = merge_schema.merge
    assert key is not None, "a list without a merge key must be replaced, not merged"
    if any(isinstance(item, list) for item in (*list_items, *patch)):
        raise request.StatusError(422, "Invalid", "lists of lists are not supported")
    if element_order is not None:
        _check_element_order(element_order, patch, key)
    if key:
        patch_items, merged_items = _merge_items(list_items, patch, key, merge_schema.item_schema)
    elif any(isinstance(item, Mapping) for item in patch):
        raise request.bad_request("cannot merge lists without merge key")
    else:
        patch_items, merged_items = patch, list(dict.fromkeys([*list_items, *patch]))
    return _order_items(merged_items, patch_items if element_order is None else element_order, list_items, key)


def _merge_items(
    list_items: list[Any], patch: list[Any], key: str, merge_schema: MergeSchema
) -> tuple[Sequence[Mapping[str, Any]], list[Any]]:
    """Return the patch items that have no `$patch` directive, and the merged list."""
    patch_items = [item for item in patch if _directive_of(item) is None]
    merged_items = [] if any(_directive_of(item) == "replace" for item in patch) else list(list_items)
    deleted_keys = frozenset(_encode_item_key(item, key) for item in patch if _directive_of(item) == "delete")
    merged_items = [item for item in merged_items if _encode(item.get(key)) not in deleted_keys]
    positions = _first_positions(_encode(item.get(key)) for item in merged_items)
    for item in patch_items:
        position = positions.setdefault(_encode_item_key(item, key), len(merged_items))
        old_item = merged_items[position] if position < len(merged_items) else {}
        merged_items[position : position + 1] = [apply_strategic_merge_patch(old_item, item, merge_schema)]
    return patch_items, merged_items


def _go_text(value: Any) -> str:
    """Return a JSON value as Go's verb %v prints it, such as `map[name:a ports:[80]]`."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"map[{' '.join(f'{name}:{_go_text(value[name])}' for name in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(map(_go_text, value))}]"
    return str(value)


def _directive_of(item: Any) -> str | None:
    if not isinstance(item, Mapping):
        raise request.bad_request(f"an item of a list with a merge key is not an object: {_go_text(item)}")
    directive = item.get(_DIRECTIVE_KEY)
    if directive == "merge":
        raise request.bad_request("merging lists cannot yet be specified in the patch")
    if directive not in (None, "replace", "delete"):
        raise request.bad_request(f"unknown patch type: {_go_text(directive)} in map: {_go_text(item)}")
    return directive


def _item_key(item: Any, key: str) -> Any:
    if not key:
        return item
    if not isinstance(item, Mapping) or key not in item:
        raise request.bad_request(f"map: {_go_text(item)} does not contain declared merge key: {key}")
    return item[key]


def _check_element_order(element_order: Any, patch: Sequence[Any], key: str) -> None:
    if not isinstance(element_order, list):
        raise request.bad_request("invalid patch format of setElementOrder list")
    ordered_keys: Iterator[Any] = iter([_item_key(item, key) for item in element_order])
    patch_items = [item for item in patch if not key or _directive_of(item) is None]
    if patch and element_order and not all(_item_key(item, key) in ordered_keys for item in patch_items):
        message = f"doesn't match {_ORDER_PREFIX.rstrip('/')} list:\n{_go_text(element_order)}\n"
        raise request.bad_request(f"The order in patch list:\n{_go_text(patch)}\n {message}")


def _order_items(items: list[Any], element_order: Sequence[Any], previous_items: Sequence[Any], key: str) -> list[Any]:
    """Return the items of a patched list in their final order.

    Items in `element_order` are sorted by it, and the other items keep their order. Another item is placed before the
    next sorted item only if it precedes that item in `previous_items`, the list before the patch.
    """
    positions = _first_positions(_encode_item_key(item, key) for item in element_order)
    previous_positions = _first_positions(_encode_item_key(item, key) for item in previous_items)
    keyed_items = [(_encode_item_key(item, key), item) for item in items]
    listed_items = deque(
        sorted((keyed for keyed in keyed_items if keyed[0] in positions), key=lambda keyed: positions[keyed[0]])
    )
    other_items = deque(keyed for keyed in keyed_items if keyed[0] not in positions)
    ordered_result = []
    while listed_items and other_items:
        listed_position, other_position = (
            previous_positions.get(listed_items[0][0]),
            previous_positions.get(other_items[0][0]),
        )
        takes_other = listed_position is not None and other_position is not None and other_position < listed_position
        ordered_result.append((other_items if takes_other else listed_items).popleft())
    return [item for _, item in (*ordered_result, *listed_items, *other_items)]


def _encode_item_key(item: Any, key: str) -> bytes:
    return _encode(_item_key(item, key))


def _first_positions(names: Iterable[bytes]) -> dict[bytes, int]:
    positions: dict[bytes, int] = {}
    for i, name in enumerate(names):
        positions.setdefault(name, i)
    return positions


# JSON merge patch. Source: RFC 7396.


def apply_merge_patch(value: Any, patch: Any) -> Any:
    """Return a value after a JSON merge patch: objects merge, null removes a field, other values replace."""
    if not isinstance(patch, Mapping):
        return patch
    merged_object = dict(value) if isinstance(value, Mapping) else {}
    for field, new_value in patch.items():
        if new_value is None:
            merged_object.pop(field, None)
        else:
            merged_object[field] = apply_merge_patch(merged_object.get(field), new_value)
    return merged_object


def apply_patch(obj: Obj, content_type: str, patch: Any, merge_schema: MergeSchema) -> Any:
    """Return an object after a JSON, JSON merge or strategic merge patch; `content_type` is the patch's media type.

    Raises StatusError if the patch does not apply.
    """
    if content_type == request.JSON_PATCH:
        return apply_json_patch(obj, patch)
    if not isinstance(patch, Mapping):
        raise request.bad_request("a merge patch must be an object")
    if content_type == request.MERGE_PATCH:
        return apply_merge_patch(obj, patch)
    return apply_strategic_merge_patch(obj, patch, merge_schema)


def patch_media_types(*, allows_strategic: bool) -> list[str]:
    """Return the supported patch media types.

    Set `allows_strategic` only for native kinds: custom resources have no merge keys.
    """
    strategic_types = [request.STRATEGIC_MERGE_PATCH] if allows_strategic else []
    return [request.JSON_PATCH, request.MERGE_PATCH, *strategic_types, request.APPLY_PATCH]


def check_patch_media_type(content_type: str, *, allows_strategic: bool) -> None:
    """Raise StatusError if a media type is not that of a supported patch."""
    accepted_types = patch_media_types(allows_strategic=allows_strategic)
    if content_type not in accepted_types:
        problem = "the body of the request was in an unknown format"
        message = f"{problem} - accepted media types include: {', '.join(accepted_types)}"
        raise request.StatusError(415, "UnsupportedMediaType", message)
