"""The machinery of conversion: an object is converted part by part, and no part loses anything.

A part is what one version writes in one way and another in another way. Where a version cannot hold what the other
said, the original is kept in an annotation, as JSON, under the name of the part. On the way back the original is taken
up again, unless the part was changed meanwhile: then what it says now counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from batchyard.api.meta import Obj, with_metadata, with_path

#: What one version says in a part; empty where it says nothing.
Fragment: TypeAlias = Mapping[str, Any]
Change: TypeAlias = Callable[[Fragment], Fragment]

#: An original from an annotation can be anything, for anyone can write annotations.
_MALFORMED: Final = (TypeError, ValueError, KeyError, IndexError, AttributeError)


class Place(Protocol):
    """Where a version keeps a part."""

    def read(self, obj: Obj) -> Fragment:
        """What the object says there."""

    def write(self, obj: Obj, fragment: Fragment) -> Obj:
        """The object that says this there, and nothing else."""


@dataclass(frozen=True, slots=True)
class Fields:
    """Some fields of the mapping at a path."""

    path: tuple[str, ...]
    names: tuple[str, ...]
    #: Values that need not be kept, for absence means the same.
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def read(self, obj: Obj) -> Fragment:
        """The fields that are there and are not at their defaults."""
        holder = self._holder(obj)
        given = {name: holder[name] for name in self.names if name in holder} if holder is not None else {}
        return {name: value for name, value in given.items() if self.defaults.get(name) != value or value is None}

    def write(self, obj: Obj, fragment: Fragment) -> Obj:
        """The object with these fields only; where the mapping itself is missing there is nothing to write to."""
        holder = self._holder(obj)
        if holder is None:
            return obj
        others = {name: value for name, value in holder.items() if name not in self.names}
        mine = {name: fragment[name] for name in self.names if name in fragment}
        return obj if not mine and len(others) == len(holder) else with_path(obj, self.path, {**others, **mine})

    def _holder(self, obj: Obj) -> Mapping[str, Any] | None:
        """The mapping that has the fields."""
        holder: Any = obj
        for name in self.path:
            holder = holder.get(name) if isinstance(holder, Mapping) else None
        return holder if isinstance(holder, Mapping) else None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a kind in its two versions."""

    name: str
    old: Place
    new: Place
    upgrade: Change
    downgrade: Change


def renamed(path: tuple[str, ...], old: str, new: str) -> Part:
    """A field that only changed its name."""
    return Part(
        ".".join((*path, new)),
        Fields(path, (old,)),
        Fields(path, (new,)),
        lambda said: {new: said[old]} if said else {},
        lambda said: {old: said[new]} if said else {},
    )


def old_only(path: tuple[str, ...], name: str, **defaults: Any) -> Part:
    """A field that the newer version does not have."""
    return Part(".".join((*path, name)), Fields(path, (name,), defaults), Fields(path, ()), _nothing, _nothing)


def new_only(path: tuple[str, ...], name: str) -> Part:
    """A field that the older version does not have."""
    return Part(".".join((*path, name)), Fields(path, ()), Fields(path, (name,)), _nothing, _nothing)


def _nothing(_: Fragment) -> Fragment:
    """What a version says that has no field for it."""
    return {}


def flipped(part: Part) -> Part:
    """The part seen from the other version."""
    return Part(part.name, part.new, part.old, part.downgrade, part.upgrade)


def converted(obj: Obj, parts: Sequence[Part], *, taken: str, kept: str) -> Obj:
    """The object with its parts as the newer version writes them.

    Originals that the newer version had are taken from the annotation `taken`; what it cannot hold goes to `kept`.
    """
    originals, left = _originals(obj, taken), {}
    for part in parts:
        said = part.old.read(obj)
        now = _taken_up(originals.get(part.name), part, said)
        if now is None:
            now = part.upgrade(said)
        if part.downgrade(now) != said:
            left[part.name] = said
        obj = part.new.write(part.old.write(obj, {}), now)
    return _annotated(obj, taken, kept, left)


def _taken_up(original: Any, part: Part, said: Fragment) -> Fragment | None:
    """The original if it still says what the part says, else None."""
    if not isinstance(original, Mapping):
        return None
    try:
        return original if part.downgrade(original) == said else None
    except _MALFORMED:
        return None


def _originals(obj: Obj, annotation: str) -> Mapping[str, Any]:
    """The originals kept in an annotation."""
    text = (obj["metadata"].get("annotations") or {}).get(annotation)
    try:
        originals = msgspec.json.decode(text) if text else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return originals if isinstance(originals, Mapping) else {}


def _annotated(obj: Obj, taken: str, kept: str, left: Mapping[str, Any]) -> Obj:
    """The object with its originals in `kept`, none in `taken`."""
    before = obj["metadata"].get("annotations") or {}
    annotations = {name: value for name, value in before.items() if name not in {taken, kept}}
    if left:
        annotations[kept] = msgspec.json.encode(left, order="sorted").decode()
    if annotations == before:
        return obj
    return with_metadata(obj, annotations=annotations or None)
