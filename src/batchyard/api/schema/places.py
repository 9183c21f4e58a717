"""Where in a kind there is a field of some name: what to say about a field that is not known where it stands."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, TypeAlias

from batchyard.api.schema.flaws import Step
from batchyard.api.schema.nearest import LOOSE_SHARE, STRICT_SHARE, nearest
from batchyard.api.schema.tables import Field, Scope

#: The fields from the root to an object; those of lists end in `[]`.
Place: TypeAlias = tuple[str, ...]

_NEAR_STEPS: Final = 2
_FAR_STEPS: Final = 4
_LISTED_MAX: Final = 12
_DEEPEST: Final = 12


def unknown_field_remedy(scope: Scope, kind: str, path: tuple[Step, ...], owner: str) -> str:
    """What would be right in place of a field that its object does not have.

    In this order: the same name but for a slip; the very name at another place near by; a similar name; the very name
    farther off; all the names there are.
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


def _closest_place(scope: Scope, kind: str, at: Place, name: str) -> tuple[int, str]:
    """The steps up and down to the closest object with a field of that name, and the path of that field."""
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
def _places(scope: Scope, kind: str) -> dict[str, list[Place]]:
    """All objects within a kind, by the names of their fields."""
    places: dict[str, list[Place]] = {}
    for place, fields in _objects(scope, kind):
        for name in fields:
            places.setdefault(name, []).append(place)
    return places


def _objects(scope: Scope, kind: str) -> Iterator[tuple[Place, dict[str, Field]]]:
    """Every object within a kind, outermost first, with its fields."""
    waiting: list[tuple[Place, Scope, str]] = [((), scope, kind)]
    for place, within, type_name in waiting:
        home, name = within.scope_of(type_name)
        fields = dict(home.fields(name))
        yield place, fields
        if len(place) < _DEEPEST and name != "ObjectMeta":
            inner = [(field, spec) for field, spec in fields.items() if spec.object_type]
            waiting += [((*place, field + "[]" * spec.is_list), home, spec.object_type) for field, spec in inner]


def _place_of(path: tuple[Step, ...]) -> Place:
    """The place of the object that a field is in."""
    place: list[str] = []
    for step in path[:-1]:
        if isinstance(step, int):
            place[-1] += "[]"
        else:
            place.append(step)
    return tuple(place)
