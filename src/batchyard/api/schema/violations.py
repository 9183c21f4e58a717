"""Flaws: the result of validating an invalid value, each with its path relative to the value."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

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
