"""The data model of comparison tables: sections of rows, and in each row the figures of both runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Unit(StrEnum):
    """The unit of a figure."""

    COUNT = "count"
    SECONDS = "seconds"
    HOURS = "hours"
    SHARE = "share"  # of 1
    DOLLARS = "dollars"
    INDEX = "index"


class BetterDirection(StrEnum):
    """Whether a smaller or a larger figure is better."""

    LESS = "less"
    MORE = "more"
    NEITHER = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A column: its name for programs, its title, its unit, and which direction is better."""

    name: str
    title: str
    unit: Unit
    good: BetterDirection = BetterDirection.NEITHER


#: The values of both runs; None for an unknown value.
Both: TypeAlias = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class SectionRow:
    """The figures of one subject, by the name of the figure."""

    name: str
    figures: Mapping[str, Both]


@dataclass(frozen=True, slots=True)
class Section:
    """A table."""

    name: str
    title: str
    #: The subject of its rows.
    about: str
    figures: Sequence[Figure]
    rows: Sequence[SectionRow]
    note: str = ""


def difference(both: Both) -> float | None:
    """Return by how much the second exceeds the first; None if either is unknown."""
    a, b = both
    return None if a is None or b is None else b - a


def joined(
    a: Mapping[str, Mapping[str, float | None]], b: Mapping[str, Mapping[str, float | None]]
) -> list[SectionRow]:
    """Merge the figures of both runs into rows, sorted by name."""
    rows = []
    for name in sorted({**a, **b}):
        one, other = a.get(name, {}), b.get(name, {})
        rows.append(SectionRow(name, {figure: (one.get(figure), other.get(figure)) for figure in {**one, **other}}))
    return rows
