"""The tables of a comparison (sections): their rows hold the figures of both runs; formatting of figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Unit(StrEnum):
    """The unit of a figure, which determines its format."""

    COUNT = "count"
    SECONDS = "seconds"
    HOURS = "hours"
    SHARE = "share"  # of 1
    DOLLARS = "dollars"
    INDEX = "index"


class BetterDirection(StrEnum):
    """Whether a smaller or a larger value of a figure is better."""

    LESS = "less"
    MORE = "more"
    NEITHER = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of a comparison table: its name in JSON, its title, its unit, and whether less or more is better."""

    name: str
    title: str
    unit: Unit
    better: BetterDirection = BetterDirection.NEITHER


#: The values of a figure in both runs; None for an unknown value.
ValuePair: TypeAlias = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class SectionRow:
    """A row of a comparison table, such as a team or a pool: its figures in both runs, by the figure's name."""

    name: str
    figures: Mapping[str, ValuePair]


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a comparison: its title, its columns and its rows."""

    name: str
    title: str
    #: The kind of subject of the rows, such as team.
    row_subject: str
    figures: Sequence[Figure]
    rows: Sequence[SectionRow]
    note: str = ""


def difference(value_pair: ValuePair) -> float | None:
    """Return by how much the second run's value exceeds the first's; None if either is unknown."""
    a, b = value_pair
    return None if a is None or b is None else b - a


def merge_rows(
    a: Mapping[str, Mapping[str, float | None]], b: Mapping[str, Mapping[str, float | None]]
) -> list[SectionRow]:
    """Return the table rows, sorted by name, from the figures of run `a` and of run `b` by row name."""
    section_rows = []
    for name in sorted({**a, **b}):
        first_figures, second_figures = a.get(name, {}), b.get(name, {})
        section_rows.append(
            SectionRow(
                name,
                {
                    figure: (first_figures.get(figure), second_figures.get(figure))
                    for figure in {**first_figures, **second_figures}
                },
            )
        )
    return section_rows


NO_VALUE = "-"


def format_figure(unit: Unit, value: float | None) -> str:
    """Return the value of a figure as text with its unit; `-` for None."""
    if value is None:
        return NO_VALUE
    match unit:
        case Unit.SECONDS:
            return _format_seconds(value)
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


def _format_seconds(seconds: float) -> str:
    """Return seconds as text, with one decimal below ten: `1h4m30s`, `2.5s`."""
    if seconds < 10:
        return f"{round(seconds, 1):g}s"
    minutes, seconds_part = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    amount_by_unit = {f"{hours}h": hours, f"{minutes}m": minutes, f"{seconds_part}s": seconds_part}
    return "".join(text for text, amount in amount_by_unit.items() if amount)


def format_change(figure: Figure, value_pair: ValuePair) -> str:
    """Return a figure's signed change from the first to the second run as text; '' if it rounds to zero."""
    value_change = difference(value_pair)
    if not value_change:
        return ""
    if figure.unit is Unit.SHARE:
        return f"{value_change * 100:+.1f} pp"
    amount_text = format_figure(figure.unit, abs(value_change))
    return "" if amount_text == format_figure(figure.unit, 0) else f"{'+' if value_change > 0 else '-'}{amount_text}"


def change_rating(figure: Figure, value_pair: ValuePair) -> str:
    """Return `better` or `worse` for a figure's second value; '' if equal, unknown, or if no direction is better."""
    value_change = difference(value_pair)
    if not value_change or figure.better is BetterDirection.NEITHER:
        return ""
    return "better" if (value_change > 0) == (figure.better is BetterDirection.MORE) else "worse"
