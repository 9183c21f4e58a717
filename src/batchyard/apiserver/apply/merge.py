"""Server-side apply on values: field sets, differences, merge, removal.

Arguments are not modified. Source: sigs.k8s.io/structured-merge-diff, typed/{tofieldset,compare,merge,remove}.go.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.apiserver.apply.field_set import EMPTY, LEAF, MARK, FieldSet
from batchyard.apiserver.merge_schema import FREE, MergeSchema
from batchyard.apiserver.request import bad_request

_encode: Final = msgspec.json.Encoder(order="sorted").encode


class Differences(NamedTuple):
    """The fields in which a new object differs from the old one."""

    removed: FieldSet = EMPTY
    modified: FieldSet = EMPTY
    added: FieldSet = EMPTY


_NONE: Final = Differences()
_ABSENT: Final = object()
_REMEMBERED_MAX: Final = 1024
#: Maximum length in characters of a key value whose path element is cached.
_NAME_MAX: Final = 256


def fields_of(value: Any, shape: MergeSchema) -> FieldSet:
    """Return the fields of an applied value: all leaves, list items, and empty values."""
    if isinstance(value, dict) and not shape.is_atomic:
        result = {}
        for name, child in value.items():
            fields = fields_of(child, shape.below(name))
            is_named = name in shape.inside.fields
            if child is None or child == {} or not is_named:
                fields = {MARK: {}, **fields}
            if fields:
                result[f"f:{name}"] = fields
        return result
    if isinstance(value, list) and shape.keys is not None:
        return {step: {MARK: {}, **fields_of(item, shape.item)} for step, item in items_of(value, shape).items()}
    return LEAF


def all_fields_of(value: Any, shape: MergeSchema) -> FieldSet:
    """Return the fields of a new value, including the maps and lists on the path to each leaf."""
    if isinstance(value, dict) and value and not shape.is_atomic:
        fields: dict[str, Any] = {MARK: {}}
        inside = shape.inside
        known, rest = inside.fields.get, inside.rest or FREE
        for name, child in value.items():
            # Most fields are scalars; the inline case avoids one call for each.
            is_plain = not isinstance(child, dict | list)
            fields[f"f:{name}"] = LEAF if is_plain else all_fields_of(child, known(name) or rest)
        return fields
    if isinstance(value, list) and shape.keys is not None:
        within = {step: all_fields_of(item, shape.item) for step, item in items_of(value, shape).items()}
        return {MARK: {}, **within}
    return LEAF


def differences(old: Any, new: Any, shape: MergeSchema) -> Differences:
    """Return the fields in which a new value differs from an old one."""
    if old is new or old == new:
        return _NONE
    if isinstance(old, dict) and isinstance(new, dict) and not shape.is_atomic:
        return _gathered(old, new, shape, "f:")
    if isinstance(old, list) and isinstance(new, list) and shape.keys is not None:
        return _gathered(items_of(old, shape), items_of(new, shape), shape, "")
    return Differences(modified=LEAF)


def _gathered(old: Mapping[str, Any], new: Mapping[str, Any], shape: MergeSchema, prefix: str) -> Differences:
    removed: dict[str, Any] = {}
    modified: dict[str, Any] = {}
    added: dict[str, Any] = {}
    for name, child in new.items():
        was = old.get(name, _ABSENT)
        if was is child:  # identical for most fields
            continue
        step, inner = prefix + name, shape.below(name) if prefix else shape.item
        if was is _ABSENT:
            added[step] = all_fields_of(child, inner)
            continue
        found = differences(was, child, inner)
        for gathered, part in zip((removed, modified, added), found, strict=True):
            if part:
                gathered[step] = part
    for name, child in old.items():
        if name not in new:
            removed[prefix + name] = all_fields_of(child, shape.below(name) if prefix else shape.item)
    return Differences(removed, modified, added)


def merged(live: Any, applied: Any, shape: MergeSchema) -> Any:
    """Merge an applied value into a live one."""
    if isinstance(live, dict) and isinstance(applied, dict) and not shape.is_atomic:
        changed = {
            name: merged(live[name], child, shape.below(name)) if name in live else child
            for name, child in applied.items()
        }
        return {**live, **changed}
    if isinstance(live, list) and isinstance(applied, list) and shape.keys is not None:
        return _list_merged(items_of(live, shape), items_of(applied, shape, unique=True), shape.item)
    return applied


def _list_merged(live: Mapping[str, Any], applied: Mapping[str, Any], shape: MergeSchema) -> list[Any]:
    """Merge two lists: shared and new items take the applied order, other live items keep their position.

    Where the live order differs, a shared item comes after the shared items that precede it in the applied list.
    """
    result = []
    waiting, shared = deque(applied), deque(step for step in applied if step in live)
    for step, item in live.items():
        if step not in applied:
            result.append(item)
        elif shared and step == shared[0]:
            while (first := waiting.popleft()) != step:
                result.append(applied[first])
            result.append(merged(item, applied[step], shape))
            shared.popleft()
    return [*result, *(merged(live[step], applied[step], shape) if step in live else applied[step] for step in waiting)]


def less(value: Any, fields: FieldSet, shape: MergeSchema) -> Any:
    """Return a value without the fields of a set; None if nothing remains."""
    if isinstance(value, dict) and not shape.is_atomic:
        kept = {}
        for name, child in value.items():
            within = fields.get(f"f:{name}", EMPTY)
            if MARK not in within and (left := less(child, within, shape.below(name)) if within else child) is not None:
                kept[name] = left
        return kept or None
    if isinstance(value, list) and shape.keys is not None:
        return _items_less(value, fields, shape) or None
    return value


def _items_less(value: Sequence[Any], fields: FieldSet, shape: MergeSchema) -> list[Any]:
    kept = []
    for item in value:
        within = fields.get(step_of(item, shape), EMPTY)
        if MARK not in within:
            kept.append(less(item, within, shape.item) if within else item)
    return kept


def with_named(fields: FieldSet, shape: MergeSchema) -> FieldSet:
    """Add the declared fields on the path to each member to a set."""
    result: dict[str, Any] = {}
    for step, within in fields.items():
        if step == MARK:
            result[step] = within
            continue
        name = step.removeprefix("f:")
        inner = shape.below(name) if name != step else shape.item
        is_named = name != step and name in shape.inside.fields
        result[step] = {**with_named(within, inner), **(LEAF if is_named else EMPTY)}
    return result


def items_of(items: Sequence[Any], shape: MergeSchema, *, unique: bool = False) -> dict[str, Any]:
    """Return list items by path element. Of duplicates the first is kept; Refused if `unique` is set."""
    found: dict[str, Any] = {}
    for item in items:
        step = step_of(item, shape)
        if unique and step in found:
            raise bad_request(f"duplicate entries for key {step.partition(':')[2]}")
        found.setdefault(step, item)
    return found


@lru_cache(maxsize=_REMEMBERED_MAX)
def _step_named(key: str, name: str) -> str:
    """Return the path element of a list item with a single string key; cached, since few values are common."""
    return f"k:{_encode({key: name}).decode()}"


def step_of(item: Any, shape: MergeSchema) -> str:
    """Return the path element of a list item."""
    if not shape.keys:
        return f"v:{_encode(item).decode()}"
    if not isinstance(item, Mapping):
        raise bad_request("associative list with keys may not have non-map elements")
    if len(shape.keys) == 1 and type(value := item.get(shape.keys[0])) is str and len(value) <= _NAME_MAX:
        return _step_named(shape.keys[0], value)
    keys = {}
    for name in shape.keys:
        given = item.get(name, shape.item.below(name).default)
        if given is not None:
            keys[name] = given
    if not keys:
        raise bad_request(f"associative list with keys has an element that omits all key fields {list(shape.keys)}")
    return f"k:{_encode(keys).decode()}"
