"""What the rules of an object cost: bounded from above by their text and by how much they are asked about."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_BEGINNING: Final = 100  # steps that an evaluation takes before its first iteration
_ITERATIONS: Final = 10_000  # what the library lets one evaluation have
_LETTERS: Final = 100  # of the texts, that an iteration may join to others in one step
_BRACKET: Final = re.compile(r"(?:(?<!\w)(\w++)\s*+)?\(|\)")
_ITERATING: Final = frozenset({"all", "exists", "exists_one", "existsOne", "filter", "map"})


class Size(NamedTuple):
    """How many values there are, and letters in their texts."""

    values: int
    letters: int


class Budget:
    """What the rules of one object may cost together, in steps: about a second of a processor's time.

    Steps are what an evaluation may take at most, by its iterations and by how much it is asked about. Upstream
    counts what it does take, with the same second in mind. Source: k8s.io/apiserver, pkg/apis/cel/config.go.
    """

    def __init__(self) -> None:
        self._left = 10_000_000

    def spend(self, depth: int, size: Size) -> bool:
        """Whether there is enough for one evaluation with so many iterations within each other, about so much."""
        steps = min(size.values**depth, _ITERATIONS)
        self._left -= _BEGINNING + (steps * (1 + size.letters // _LETTERS) if depth else 0)
        return self._left >= 0


def depth_of(text: str) -> int:
    """How many iterations of an expression are within each other at most; brackets in its texts count as well."""
    open_: list[bool] = []
    deepest = 0
    for found in _BRACKET.finditer(text):
        if found[0] == ")":
            del open_[-1:]
        else:
            open_.append(found[1] in _ITERATING)
            deepest = max(deepest, sum(open_))
    return deepest


def size_of(value: Any) -> Size:
    """How much is within a value, and itself."""
    values, letters, left = 0, 0, [value]
    while left:
        each = left.pop()
        values += 1
        if isinstance(each, Mapping):
            left += each.values()
        elif isinstance(each, list):
            left += each
        elif isinstance(each, str):
            letters += len(each)
    return Size(values, letters)
