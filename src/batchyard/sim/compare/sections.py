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


# --- formatting ---
#
# Formatting of figures for display.


NOTHING = "-"


def format_figure(unit: Unit, value: float | None) -> str:
    """Format a figure with its unit; `-` for None."""
    if value is None:
        return NOTHING
    match unit:
        case Unit.SECONDS:
            return _time(value)
        case Unit.SHARE:
            return f"{value:.1%}"
        case Unit.DOLLARS:
            return f"${value:,.2f}"
        case Unit.HOURS:
            return f"{value:,.2f}h"
        case Unit.INDEX:
            return f"{value:.3f}"
        case Unit.COUNT:
            return f"{value:,.2f}".rstrip("0").rstrip(".")


def _time(seconds: float) -> str:
    """Format seconds, below ten with one decimal: `1h4m30s`, `2.5s`."""
    if seconds < 10:
        return f"{round(seconds, 1):g}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{rest}s" if rest else ""]
    return "".join(parts)


def format_change(figure: Figure, both: Both) -> str:
    """Format the change from the first to the second, with its sign; empty if it is zero or rounds to zero."""
    change = difference(both)
    if not change:
        return ""
    if figure.unit is Unit.SHARE:
        return f"{change * 100:+.1f} pp"
    amount = format_figure(figure.unit, abs(change))
    return "" if amount == format_figure(figure.unit, 0) else f"{'+' if change > 0 else '-'}{amount}"


def verdict(figure: Figure, both: Both) -> str:
    """Return whether the second figure is `better` or `worse`; '' for equal, unknown and neutral ones."""
    change = difference(both)
    if not change or figure.good is BetterDirection.NEITHER:
        return ""
    return "better" if (change > 0) == (figure.good is BetterDirection.MORE) else "worse"
