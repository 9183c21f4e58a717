"""Each field of each kind, as a place in an object, from the field tables."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from batchyard.api.scheme import KINDS, Field, ServedKind, TypeScope, load_scope_for_kind

#: The maximum depth of a place; nested schemas are endless.
_DEPTH_MAX = 16
Step = str | int


class FieldLocation(NamedTuple):
    """A place in the objects of a kind, and its field."""

    info: ServedKind
    version: str
    steps: tuple[Step, ...]
    field: Field

    @property
    def named(self) -> str:
        """The place as one word."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)
        return f"{self.info.kind}.{self.version}{''.join(steps)}"


def places() -> Iterator[FieldLocation]:
    """Yield all fields of all kinds; fields of shared types occur once."""
    known: set[tuple[str, str, str]] = set()
    for info in KINDS:
        for version in info.versions:
            yield from _within(info, version, load_scope_for_kind(info, version), info.kind, (), known)


def _within(
    info: ServedKind,
    version: str,
    of: TypeScope,
    type_name: str,
    above: tuple[Step, ...],
    known: set[tuple[str, str, str]],
) -> Iterator[FieldLocation]:
    if len(above) > _DEPTH_MAX:
        return
    for name, field in of.fields(type_name).items():
        key = (of.name, type_name, name)
        if key in known or (not above and name in {"apiVersion", "kind"}):
            continue
        known.add(key)
        steps = (*above, name)
        yield FieldLocation(info, version, steps, field)
        inside = field
        while inside.is_list or inside.is_map:
            steps, inside = (*steps, 0 if inside.is_list else "key"), inside.element
            yield FieldLocation(info, version, steps, inside)
        if inside.is_object:
            within, inner = of.scope_of(inside.expression)
            yield from _within(info, version, within, inner, steps, known)


def with_value(obj: Mapping[str, Any], steps: tuple[Step, ...], value: Any) -> Any:
    """Return an object with a value at a place, and the required parents."""
    return _set_value(obj, steps, value)


def _set_value(holder: Any, steps: tuple[Step, ...], value: Any) -> Any:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        items = list(holder) if isinstance(holder, list) and holder else [None]
        return [_set_value(items[0], rest, value), *items[1:]]
    fields = dict(holder) if isinstance(holder, Mapping) else {}
    return {**fields, step: _set_value(fields.get(step), rest, value)}
