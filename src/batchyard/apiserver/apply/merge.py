"""What server-side apply asks of objects: which fields one has, how two differ, one merged into another, less some.

Nothing given is changed. Source: sigs.k8s.io/structured-merge-diff, typed/{tofieldset,compare,merge,remove}.go.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.apiserver.apply.field_set import EMPTY, LEAF, MARK, FieldSet
from batchyard.apiserver.merge_schema import FREE, Shape
from batchyard.apiserver.request import bad_request

_encode: Final = msgspec.json.Encoder(order="sorted").encode


class Differences(NamedTuple):
    """The places in which an object differs from the one before it."""

    removed: FieldSet = EMPTY
    modified: FieldSet = EMPTY
    added: FieldSet = EMPTY


_NONE: Final = Differences()
_ABSENT: Final = object()
_REMEMBERED_MAX: Final = 1024
#: Letters of a name whose step is remembered.
_NAME_MAX: Final = 256


def fields_of(value: Any, shape: Shape) -> FieldSet:
    """The fields that an applied value is about: all its leaves, the items of its lists, and what it leaves empty."""
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


def all_fields_of(value: Any, shape: Shape) -> FieldSet:
    """The same with the mappings and lists on the way: what is there where nothing was before."""
    if isinstance(value, dict) and value and not shape.is_atomic:
        fields: dict[str, Any] = {MARK: {}}
        inside = shape.inside
        known, rest = inside.fields.get, inside.rest or FREE
        for name, child in value.items():
            # Most of an object is plain: a call for each would be most of the time.
            is_plain = not isinstance(child, dict | list)
            fields[f"f:{name}"] = LEAF if is_plain else all_fields_of(child, known(name) or rest)
        return fields
    if isinstance(value, list) and shape.keys is not None:
        within = {step: all_fields_of(item, shape.item) for step, item in items_of(value, shape).items()}
        return {MARK: {}, **within}
    return LEAF


def differences(old: Any, new: Any, shape: Shape) -> Differences:
    """In which places a new value differs from an old one."""
    if old is new or old == new:
        return _NONE
    if isinstance(old, dict) and isinstance(new, dict) and not shape.is_atomic:
        return _gathered(old, new, shape, "f:")
    if isinstance(old, list) and isinstance(new, list) and shape.keys is not None:
        return _gathered(items_of(old, shape), items_of(new, shape), shape, "")
    return Differences(modified=LEAF)


def _gathered(old: Mapping[str, Any], new: Mapping[str, Any], shape: Shape, prefix: str) -> Differences:
    removed: dict[str, Any] = {}
    modified: dict[str, Any] = {}
    added: dict[str, Any] = {}
    for name, child in new.items():
        was = old.get(name, _ABSENT)
        if was is child:  # as most of an object
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


def merged(live: Any, applied: Any, shape: Shape) -> Any:
    """A live value with an applied one merged into it."""
    if isinstance(live, dict) and isinstance(applied, dict) and not shape.is_atomic:
        changed = {
            name: merged(live[name], child, shape.below(name)) if name in live else child
            for name, child in applied.items()
        }
        return {**live, **changed}
    if isinstance(live, list) and isinstance(applied, list) and shape.keys is not None:
        return _list_merged(items_of(live, shape), items_of(applied, shape, unique=True), shape.item)
    return applied


def _list_merged(live: Mapping[str, Any], applied: Mapping[str, Any], shape: Shape) -> list[Any]:
    """The items of two lists: what both have comes in the applied order, what only the live one has stays in its place.

    Where the live list is in another order, an item of it comes after the last before it that it shares.
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


def less(value: Any, fields: FieldSet, shape: Shape) -> Any:
    """A value without the places of a set; None where nothing is left of it."""
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


def _items_less(value: Sequence[Any], fields: FieldSet, shape: Shape) -> list[Any]:
    kept = []
    for item in value:
        within = fields.get(step_of(item, shape), EMPTY)
        if MARK not in within:
            kept.append(less(item, within, shape.item) if within else item)
    return kept


def with_named(fields: FieldSet, shape: Shape) -> FieldSet:
    """A set with the fields of known name on the way to its places."""
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


def items_of(items: Sequence[Any], shape: Shape, *, unique: bool = False) -> dict[str, Any]:
    """The items of a list by what tells them apart; of several alike the first, or none of them may be."""
    found: dict[str, Any] = {}
    for item in items:
        step = step_of(item, shape)
        if unique and step in found:
            raise bad_request(f"duplicate entries for key {step.partition(':')[2]}")
        found.setdefault(step, item)
    return found


@lru_cache(maxsize=_REMEMBERED_MAX)
def _step_named(key: str, name: str) -> str:
    """The step to an item of that name, such as the type of a condition: there are few."""
    return f"k:{_encode({key: name}).decode()}"


def step_of(item: Any, shape: Shape) -> str:
    """The step to an item of a list."""
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
