"""Sets of the fields of an object, as in managedFields, and merges of objects by their fields."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from batchyard.apiserver.patch import MergeSchema
from batchyard.apiserver.request import bad_request

FieldSet: TypeAlias = Mapping[str, Any]

SELF_MARK: Final = "."
#: The value of a path that is in the field set, while no path below it is.
LEAF: Final[FieldSet] = {SELF_MARK: {}}
EMPTY: Final[FieldSet] = {}


def from_fields_v1(fields: Mapping[str, Any]) -> FieldSet:
    """Decode `fieldsV1` into a field set, which marks each leaf with `.`; `fieldsV1` omits that mark."""
    field_set: dict[str, Any] = {}
    for step, nested in fields.items():
        if isinstance(nested, Mapping):
            field_set[step] = {} if step == SELF_MARK else from_fields_v1(nested) or LEAF
    return field_set


def to_fields_v1(fields: FieldSet) -> dict[str, Any]:
    """Encode a field set as `fieldsV1`."""
    encoded_fields: dict[str, Any] = {}
    for step in sorted(fields):
        nested_fields = fields[step]
        encoded_fields[step] = {} if nested_fields is LEAF or nested_fields == LEAF else to_fields_v1(nested_fields)
    return encoded_fields


def union(first_set: FieldSet, second_set: FieldSet) -> FieldSet:
    """Return the field set with the paths in either of two sets."""
    if not first_set or not second_set:
        return first_set or second_set
    united_set = dict(first_set)
    for step, nested in second_set.items():
        united_set[step] = union(united_set[step], nested) if step in united_set else nested
    return united_set


def union_of(sets: Sequence[FieldSet]) -> FieldSet:
    """Return the field set with the paths in any of several sets."""
    if len(sets) < 2:
        return sets[0] if sets else EMPTY
    sets_by_step: dict[str, list[FieldSet]] = {}
    for each in sets:
        for step, nested in each.items():
            sets_by_step.setdefault(step, []).append(nested)
    return {step: union_of(nested_sets) for step, nested_sets in sets_by_step.items()}


def difference(minuend: FieldSet, subtrahend: FieldSet) -> FieldSet:
    """Return the field set of the paths in `minuend` but not in `subtrahend`; `minuend` itself if none is removed."""
    remaining_set: dict[str, Any] | None = None
    for step, nested_subtrahend in subtrahend.items():
        nested_fields = minuend.get(step)
        if nested_fields is None:
            continue
        remaining_fields = difference(nested_fields, nested_subtrahend) if step != SELF_MARK else EMPTY
        if remaining_fields is nested_fields and remaining_fields:
            continue
        if remaining_set is None:
            remaining_set = dict(minuend)
        if remaining_fields:
            remaining_set[step] = remaining_fields
        else:
            del remaining_set[step]
    return minuend if remaining_set is None else remaining_set


def intersection(first_set: FieldSet, second_set: FieldSet) -> FieldSet:
    """Return the field set with the paths in both of two sets."""
    common_set: dict[str, Any] = {}
    for step, nested in first_set.items():
        if step == SELF_MARK and step in second_set:
            common_set[step] = nested
        elif step in second_set and (shared := intersection(nested, second_set[step])):
            common_set[step] = shared
    return common_set


def paths(fields: FieldSet, path: str = "") -> Iterator[str]:
    """Yield the paths of a field set as in conflict messages: `.spec.containers[name="a"].image`."""
    if SELF_MARK in fields:
        yield path
    for step, nested in sorted(fields.items()):
        if step != SELF_MARK:
            yield from paths(nested, path + _format_step(step))


def _format_step(step: str) -> str:
    kind, _, text = step.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "k":
        try:
            keys = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.MsgspecError:
            return f"[{text}]"
        return f"[{','.join(f'{name}={_encode_json(value)}' for name, value in keys.items())}]"
    return f"[={text}]" if kind == "v" else f"[{text}]"


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_CACHED_STEPS_MAX: Final = 1024
#: Maximum length in characters of a key value whose path element is cached.
_CACHED_LENGTH_MAX: Final = 256


def merge_applied(live_value: Any, applied_value: Any, schema: MergeSchema) -> Any:
    """Return a live value with an applied value merged into it, as server-side apply does.

    Raises StatusError if a list item lacks a key field, or if two items of an applied list have the same key.
    """
    if isinstance(live_value, dict) and isinstance(applied_value, dict) and not schema.is_atomic:
        changed_fields = {
            name: merge_applied(live_value[name], child, schema.field_schema(name)) if name in live_value else child
            for name, child in applied_value.items()
        }
        return {**live_value, **changed_fields}
    if isinstance(live_value, list) and isinstance(applied_value, list) and schema.keys is not None:
        return _merge_lists(
            items_of(live_value, schema), items_of(applied_value, schema, rejects_duplicates=True), schema.item_schema
        )
    return applied_value


def _merge_lists(live_items: Mapping[str, Any], applied_items: Mapping[str, Any], schema: MergeSchema) -> list[Any]:
    """Merge two lists: shared and new items take the applied order, other live items keep their position.

    Where the live order differs, a shared item comes after the shared items that precede it in the applied list.
    """
    merged_items = []
    remaining_steps, shared_steps = deque(applied_items), deque(step for step in applied_items if step in live_items)
    for step, item in live_items.items():
        if step not in applied_items:
            merged_items.append(item)
        elif shared_steps and step == shared_steps[0]:
            while (step_before := remaining_steps.popleft()) != step:
                merged_items.append(applied_items[step_before])
            merged_items.append(merge_applied(item, applied_items[step], schema))
            shared_steps.popleft()
    remaining_items = (
        merge_applied(live_items[step], applied_items[step], schema) if step in live_items else applied_items[step]
        for step in remaining_steps
    )
    return [*merged_items, *remaining_items]


def without_fields(value: Any, fields: FieldSet, schema: MergeSchema) -> Any:
    """Return a value without the fields of a field set; None if nothing remains."""
    if isinstance(value, dict) and not schema.is_atomic:
        kept_members = {}
        for name, child in value.items():
            nested_fields = fields.get(f"f:{name}", EMPTY)
            if (
                SELF_MARK not in nested_fields
                and (
                    remaining := without_fields(child, nested_fields, schema.field_schema(name))
                    if nested_fields
                    else child
                )
                is not None
            ):
                kept_members[name] = remaining
        return kept_members or None
    if isinstance(value, list) and schema.keys is not None:
        return _remove_item_fields(value, fields, schema) or None
    return value


def _remove_item_fields(value: Sequence[Any], fields: FieldSet, schema: MergeSchema) -> list[Any]:
    kept_items = []
    for item in value:
        nested_fields = fields.get(list_item_step(item, schema), EMPTY)
        if SELF_MARK not in nested_fields:
            kept_items.append(without_fields(item, nested_fields, schema.item_schema) if nested_fields else item)
    return kept_items


def with_named_fields(fields: FieldSet, schema: MergeSchema) -> FieldSet:
    """Return a field set that also contains the parent fields of each of its paths.

    A parent is added only if the schema declares it as a named field, not if it is a key of a map or an item of a list.
    """
    named_fields: dict[str, Any] = {}
    for step, nested in fields.items():
        if step == SELF_MARK:
            named_fields[step] = nested
            continue
        name = step.removeprefix("f:")
        inner_schema = schema.field_schema(name) if name != step else schema.item_schema
        is_struct_field = name != step and name in schema.members.fields
        named_fields[step] = {**with_named_fields(nested, inner_schema), **(LEAF if is_struct_field else EMPTY)}
    return named_fields


def items_of(list_items: Sequence[Any], schema: MergeSchema, *, rejects_duplicates: bool = False) -> dict[str, Any]:
    """Return list items by their path element in a field set, such as `k:{"name":"a"}`.

    Of items with the same path element, the first is returned. Raises StatusError for an item without its key fields,
    and with `rejects_duplicates` for a duplicate.
    """
    items_by_step: dict[str, Any] = {}
    for item in list_items:
        step = list_item_step(item, schema)
        if rejects_duplicates and step in items_by_step:
            raise bad_request(f"duplicate entries for key {step.partition(':')[2]}")
        items_by_step.setdefault(step, item)
    return items_by_step


@lru_cache(maxsize=_CACHED_STEPS_MAX)
def _single_key_step(key: str, name: str) -> str:
    return f"k:{_encode({key: name}).decode()}"


def list_item_step(item: Any, schema: MergeSchema) -> str:
    """Return the field-set path element of a list item: `k:` and its key fields, or in a set `v:` and its value.

    Raises StatusError if key fields are needed and the item has none.
    """
    if not schema.keys:
        return f"v:{_encode(item).decode()}"
    if not isinstance(item, Mapping):
        raise bad_request("associative list with keys may not have non-map elements")
    if len(schema.keys) == 1 and type(value := item.get(schema.keys[0])) is str and len(value) <= _CACHED_LENGTH_MAX:
        return _single_key_step(schema.keys[0], value)
    keys = {}
    for name in schema.keys:
        key_value = item.get(name, schema.item_schema.field_schema(name).default)
        if key_value is not None:
            keys[name] = key_value
    if not keys:
        keys_text = " ".join(_encode(key).decode() for key in schema.keys)
        raise bad_request(f"associative list with keys has an element that omits all key fields [{keys_text}]")
    return f"k:{_encode(keys).decode()}"
