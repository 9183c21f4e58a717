"""What is told of two runs side by side: sections of rows, and in each row figures of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Unit(StrEnum):
    """What a figure counts."""

    COUNT = "count"
    SECONDS = "seconds"
    HOURS = "hours"
    SHARE = "share"  # of 1
    DOLLARS = "dollars"
    INDEX = "index"


class Good(StrEnum):
    """Which of two figures is the better one."""

    LESS = "less"
    MORE = "more"
    NEITHER = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A column: its name for programs, its title, what it counts, and which is better."""

    name: str
    title: str
    unit: Unit
    good: Good = Good.NEITHER


#: What both runs came to; None where there is nothing to tell.
Both: TypeAlias = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Row:
    """What is told of one thing, by the name of the figure."""

    name: str
    figures: Mapping[str, Both]


@dataclass(frozen=True, slots=True)
class Section:
    """A table."""

    name: str
    title: str
    #: What its rows are about.
    about: str
    figures: Sequence[Figure]
    rows: Sequence[Row]
    note: str = ""


def difference(both: Both) -> float | None:
    """By how much the second is more; None where either has nothing to tell."""
    a, b = both
    return None if a is None or b is None else b - a


def joined(a: Mapping[str, Mapping[str, float | None]], b: Mapping[str, Mapping[str, float | None]]) -> list[Row]:
    """Rows of figures by name, of both: in order of the names, whichever is the first."""
    rows = []
    for name in sorted({**a, **b}):
        one, other = a.get(name, {}), b.get(name, {})
        rows.append(Row(name, {figure: (one.get(figure), other.get(figure)) for figure in {**one, **other}}))
    return rows
