"""Sets of the fields of an object, as in managedFields, and merges of objects by their fields."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from batchyard.apiserver.patch import MergeSchema
from batchyard.apiserver.request import bad_request

FieldSet: TypeAlias = Mapping[str, Any]

MARK: Final = "."
#: The node of a path that is in the set without members below it.
LEAF: Final[FieldSet] = {MARK: {}}
EMPTY: Final[FieldSet] = {}


def of_fields_v1(fields: Mapping[str, Any]) -> FieldSet:
    """Return the set that `fieldsV1` encodes. In `fieldsV1`, a member without members below it has no mark."""
    found: dict[str, Any] = {}
    for step, within in fields.items():
        if isinstance(within, Mapping):
            found[step] = {} if step == MARK else of_fields_v1(within) or LEAF
    return found


def to_fields_v1(fields: FieldSet) -> dict[str, Any]:
    """Encode a set as `fieldsV1`."""
    written: dict[str, Any] = {}
    for step in sorted(fields):
        within = fields[step]
        written[step] = {} if within is LEAF or within == LEAF else to_fields_v1(within)
    return written


def union(some: FieldSet, others: FieldSet) -> FieldSet:
    """Return the paths in either set."""
    if not some or not others:
        return some or others
    result = dict(some)
    for step, within in others.items():
        result[step] = union(result[step], within) if step in result else within
    return result


def union_of(sets: Sequence[FieldSet]) -> FieldSet:
    """Return the paths in any of the sets."""
    if len(sets) < 2:
        return sets[0] if sets else EMPTY
    by_step: dict[str, list[FieldSet]] = {}
    for each in sets:
        for step, within in each.items():
            by_step.setdefault(step, []).append(within)
    return {step: union_of(all_within) for step, all_within in by_step.items()}


def difference(some: FieldSet, others: FieldSet) -> FieldSet:
    """Return the paths in the first set only; the same object if nothing was removed."""
    result: dict[str, Any] | None = None
    for step, without in others.items():
        within = some.get(step)
        if within is None:
            continue
        left = difference(within, without) if step != MARK else EMPTY
        if left is within and left:
            continue
        if result is None:
            result = dict(some)
        if left:
            result[step] = left
        else:
            del result[step]
    return some if result is None else result


def intersection(some: FieldSet, others: FieldSet) -> FieldSet:
    """Return the paths in both sets."""
    result: dict[str, Any] = {}
    for step, within in some.items():
        if step == MARK and step in others:
            result[step] = within
        elif step in others and (shared := intersection(within, others[step])):
            result[step] = shared
    return result


def paths(fields: FieldSet, path: str = "") -> Iterator[str]:
    """Yield the paths of a set in the notation of messages: `.spec.containers[name="a"].image`."""
    if MARK in fields:
        yield path
    for step, within in sorted(fields.items()):
        if step != MARK:
            yield from paths(within, path + _step_text(step))


def _step_text(step: str) -> str:
    kind, _, text = step.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "k":
        try:
            keys = msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.MsgspecError:
            return f"[{text}]"
        return f"[{','.join(f'{name}={_json(value)}' for name, value in keys.items())}]"
    return f"[={text}]" if kind == "v" else f"[{text}]"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_REMEMBERED_MAX: Final = 1024
#: Maximum length in characters of a key value whose path element is cached.
_NAME_MAX: Final = 256


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
