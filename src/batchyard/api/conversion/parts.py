"""Conversion framework: converts an object part by part without loss.

A part is a set of fields that two versions represent differently. If a version cannot represent the other's value, the
original is kept as JSON in an annotation, under the name of the part. The conversion back restores the original, unless
the part was changed meanwhile: then the current value counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from batchyard.api.meta import Obj, with_metadata, with_path

#: The fields of a part in one version; empty if none is set.
Fragment: TypeAlias = Mapping[str, Any]
Change: TypeAlias = Callable[[Fragment], Fragment]

#: Decoding an original may raise any of these, because anyone can write annotations.
_MALFORMED: Final = (TypeError, ValueError, KeyError, IndexError, AttributeError)


class PartLocation(Protocol):
    """The location of a part in a version."""

    def read(self, obj: Obj) -> Fragment:
        """Return the fields of the part."""

    def write(self, obj: Obj, fragment: Fragment) -> Obj:
        """Return the object with only these fields in the part."""


@dataclass(frozen=True, slots=True)
class FieldsAt:
    """Some fields of the mapping at a path."""

    path: tuple[str, ...]
    names: tuple[str, ...]
    #: Default values, which are equivalent to absence and need not be kept.
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, obj: Obj) -> Fragment:
        """Return the fields that are set to other values than their defaults."""
        holder = self._holder(obj)
        given = {name: holder[name] for name in self.names if name in holder} if holder is not None else {}
        return {name: value for name, value in given.items() if self.defaults.get(name) != value or value is None}

    def write(self, obj: Obj, fragment: Fragment) -> Obj:
        """Return the object with only these of the fields; unchanged if the mapping itself is missing."""
        holder = self._holder(obj)
        if holder is None:
            return obj
        others = {name: value for name, value in holder.items() if name not in self.names}
        mine = {name: fragment[name] for name in self.names if name in fragment}
        return obj if not mine and len(others) == len(holder) else with_path(obj, self.path, {**others, **mine})

    def _holder(self, obj: Obj) -> Mapping[str, Any] | None:
        """Return the mapping with the fields."""
        holder: Any = obj
        for name in self.path:
            holder = holder.get(name) if isinstance(holder, Mapping) else None
        return holder if isinstance(holder, Mapping) else None


@dataclass(frozen=True, slots=True)
class ConversionPart:
    """A part of a kind in its two versions."""

    name: str
    old: PartLocation
    new: PartLocation
    upgrade: Change
    downgrade: Change


def renamed(path: tuple[str, ...], old: str, new: str) -> ConversionPart:
    """Return the part for a field that was renamed."""
    return ConversionPart(
        ".".join((*path, new)),
        FieldsAt(path, (old,)),
        FieldsAt(path, (new,)),
        lambda current: {new: current[old]} if current else {},
        lambda current: {old: current[new]} if current else {},
    )


def old_only(path: tuple[str, ...], name: str, **defaults: Any) -> ConversionPart:
    """Return the part for a field that the newer version lacks."""
    return ConversionPart(
        ".".join((*path, name)), FieldsAt(path, (name,), defaults), FieldsAt(path, ()), _nothing, _nothing
    )


def new_only(path: tuple[str, ...], name: str) -> ConversionPart:
    """Return the part for a field that the older version lacks."""
    return ConversionPart(".".join((*path, name)), FieldsAt(path, ()), FieldsAt(path, (name,)), _nothing, _nothing)


def _nothing(_: Fragment) -> Fragment:
    """Return the empty fragment of a version without the field."""
    return {}


def flipped(part: ConversionPart) -> ConversionPart:
    """Return the part with both versions swapped."""
    return ConversionPart(part.name, part.new, part.old, part.downgrade, part.upgrade)


def converted(obj: Obj, parts: Sequence[ConversionPart], *, taken: str, kept: str) -> Obj:
    """Return the object with its parts in the form of the newer version.

    Originals of the newer version are restored from the annotation `taken`; originals that it cannot represent are
    stored in `kept`.
    """
    originals, left = _originals(obj, taken), {}
    for part in parts:
        current = part.old.read(obj)
        now = _taken_up(originals.get(part.name), part, current)
        if now is None:
            now = part.upgrade(current)
        if part.downgrade(now) != current:
            left[part.name] = current
        obj = part.new.write(part.old.write(obj, {}), now)
    return _annotated(obj, taken, kept, left)


def _taken_up(original: Any, part: ConversionPart, current: Fragment) -> Fragment | None:
    """Return the original if it still matches the part, else None."""
    if not isinstance(original, Mapping):
        return None
    try:
        return original if part.downgrade(original) == current else None
    except _MALFORMED:
        return None


def _originals(obj: Obj, annotation: str) -> Mapping[str, Any]:
    """Return the originals in an annotation."""
    text = (obj["metadata"].get("annotations") or {}).get(annotation)
    try:
        originals = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return originals if isinstance(originals, Mapping) else {}


def _annotated(obj: Obj, taken: str, kept: str, left: Mapping[str, Any]) -> Obj:
    """Return the object with its originals in `kept`, and without `taken`."""
    before = obj["metadata"].get("annotations") or {}
    annotations = {name: value for name, value in before.items() if name not in {taken, kept}}
    if left:
        annotations[kept] = msgspec.json.encode(left, order="sorted").decode()
    if annotations == before:
        return obj
    return with_metadata(obj, annotations=annotations or None)
