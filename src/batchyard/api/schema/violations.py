"""Violations: the result of validating an invalid value, each with its path relative to the value."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api.scheme import Field, TypeScope

_SHOWN_LENGTH_MAX: Final = 80
_WORDS: Final = {True: "true", False: "false", None: "null"}


class MapKey(str):
    """A path step into a mapping with user-defined keys: `limits[cpu]`."""

    __slots__ = ()


Step: TypeAlias = "str | int | MapKey"


class Flaw(NamedTuple):
    """One flaw. `owner` is the type with an unknown field; its remedy needs the whole kind."""

    path: tuple[Step, ...]
    problem: str
    remedy: str
    owner: str = ""


class Flaws(list[Flaw]):
    """The result for an invalid value."""

    __slots__ = ()

    def below(self, step: Step) -> "Flaws":
        """Return the flaws with paths relative to the parent."""
        return Flaws(Flaw((step, *flaw.path), *flaw[1:]) for flaw in self)


def flaw(problem: str, remedy: str) -> Flaws:
    """Return a single flaw of the value itself."""
    return Flaws([Flaw((), problem, remedy)])


def wrong_type(value: Any, wanted: str, remedy: str = "") -> Flaws:
    """Return the flaw of a value of the wrong type."""
    return flaw(f"Invalid value: {shown(value)}: must be {wanted}", remedy or f"write {wanted}")


def shown(value: Any) -> str:
    """Return a value as shown in messages: short, and on one line."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        text = msgspec.json.encode(value.encode(errors="replace").decode()).decode()
    elif isinstance(value, int) and value.bit_length() > _SHOWN_LENGTH_MAX:
        return "a huge number"
    else:
        text = _WORDS[value] if isinstance(value, bool | None) else repr(value)
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}..."


def choice(names: list[str]) -> str:
    """Return `a`, `a or b`, `a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)


def path_text(path: tuple[Step, ...]) -> str:
    """Return a path in Kubernetes's form: `spec.resourceGroups[0].flavors[1].name`, `metadata.labels[a/b]`."""
    text = ""
    for step in path:
        if isinstance(step, int | MapKey):
            text += f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


# --- nearest ---
#
# Suggestions for misspelt names, by edit distance.


LOOSE_SHARE: Final = 0.5
STRICT_SHARE: Final = 0.2


def nearest(written: str, known: Iterable[str], share: float = 0.34) -> str | None:
    """Return the known name with the fewest edits, at most one or the share of the longer name; else None.

    Case, `-` and `_` are ignored; among equally near names, the first is returned. With a share of at least a half, a
    name that is a prefix of the other (`queue`, `queueingStrategy`) also matches.
    """
    plain, best, fewest = _plain(written), None, 1 << 30
    if not plain or len(plain) > 100:
        return None
    for name in known:
        other = _plain(name)
        longer = max(len(plain), len(other))
        edits = edit_distance(plain, other)
        if share >= LOOSE_SHARE and min(len(plain), len(other)) >= 4 and _starts_alike(plain, other):
            edits = min(edits, int(longer * share))
        if edits < fewest and (edits <= longer * share or (edits == 1 and longer >= 3)):
            best, fewest = name, edits
    return best


def edit_distance(one: str, other: str) -> int:
    """Return the number of characters to insert, delete, replace or swap with their neighbour."""
    before_last: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            edits = min(last[j] + 1, row[-1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                edits = min(edits, before_last[j - 2] + 1)
            row.append(edits)
        before_last, last = last, row
    return last[-1]


def _starts_alike(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


# --- places ---
#
# Locations of field names within a kind, for remedies for unknown fields.


#: The fields from the root to an object; those of lists end in `[]`.
Place: TypeAlias = tuple[str, ...]

# --- field locations ---
#
# Semantic equality of values, and remedies for unknown fields.
#
# Clients read an object into their own types and write it back. They drop empty parts and add others, write defaults,
# and format quantities differently. So immutable fields are compared in a normal form: with the defaults of Kubernetes
# in pod templates, without empty parts, and with quantities as numbers. Source: k8s.io/apimachinery's
# equality.Semantic, after defaulting.


_NEAR_STEPS: Final = 2
_FAR_STEPS: Final = 4
_LISTED_MAX: Final = 12
_DEEPEST: Final = 12


def unknown_field_remedy(scope: TypeScope, kind: str, path: tuple[Step, ...], owner: str) -> str:
    """Return the remedy for a field that its object does not have.

    In this order: a name with a likely typo; the same name at a nearby location; a similar name; the same name farther
    away; all known names.
    """
    name = str(path[-1])
    home, type_name = scope.scope_of(owner)
    known = list(home.fields(type_name))
    close = nearest(name, known, STRICT_SHARE)
    if close:
        return f"did you mean {close}?"
    steps, place = _closest_place(scope, kind, _place_of(path), name)
    if place and steps <= _NEAR_STEPS:
        return f"it belongs at {place}"
    similar = nearest(name, known, LOOSE_SHARE)
    if similar:
        return f"did you mean {similar}?"
    if place and steps <= _FAR_STEPS:
        return f"it belongs at {place}"
    return f"known here: {', '.join(known)}" if len(known) <= _LISTED_MAX else "remove it, or check its spelling"


def _closest_place(scope: TypeScope, kind: str, at: Place, name: str) -> tuple[int, str]:
    """Return the distance to the closest object with a field of that name, and the path of that field."""
    best, found = 1 << 30, ""
    for place in _places(scope, kind).get(name, ()):
        shared = 0
        while shared < min(len(at), len(place)) and at[shared] == place[shared]:
            shared += 1
        steps = len(at) + len(place) - 2 * shared
        if 0 < steps < best:
            best, found = steps, ".".join((*place, name))
    return best, found


@lru_cache(maxsize=64)
def _places(scope: TypeScope, kind: str) -> dict[str, list[Place]]:
    """Return all objects within a kind, by the names of their fields."""
    places: dict[str, list[Place]] = {}
    for place, fields in _objects(scope, kind):
        for name in fields:
            places.setdefault(name, []).append(place)
    return places


def _objects(scope: TypeScope, kind: str) -> Iterator[tuple[Place, dict[str, Field]]]:
    """Yield every object within a kind, outermost first, with its fields."""
    waiting: list[tuple[Place, TypeScope, str]] = [((), scope, kind)]
    for place, within, type_name in waiting:
        home, name = within.scope_of(type_name)
        fields = dict(home.fields(name))
        yield place, fields
        if len(place) < _DEEPEST and name != "ObjectMeta":
            inner = [(field, spec) for field, spec in fields.items() if spec.object_type]
            waiting += [((*place, field + "[]" * spec.is_list), home, spec.object_type) for field, spec in inner]


def _place_of(path: tuple[Step, ...]) -> Place:
    """Return the location of the object that a field is in."""
    place: list[str] = []
    for step in path[:-1]:
        if isinstance(step, int):
            place[-1] += "[]"
        else:
            place.append(step)
    return tuple(place)
