"""Field sets: the fields of an object that a manager owns.

A set is a tree of path elements as in `fieldsV1`: `f:replicas` is a field, `k:{"name":"a"}` the list item with that
key, `v:"a"` the list item with that value. A path is in the set if its node has the mark `.`. Members below a path do
not make the path itself a member. Sets are immutable.
Source: sigs.k8s.io/structured-merge-diff, fieldpath/set.go and serialize.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

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
