"""The tables of a comparison (sections): their rows hold the figures of both runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from batchyard.sim.summary.figure import BetterDirection, Figure, FigureTable, Unit, format_figure

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


def pair_tables(a: FigureTable, b: FigureTable) -> Section:
    """Return the same table of two runs side by side; the columns are those of `a`, or of `b` if it has more."""
    figures = max(a.figures, b.figures, key=len)
    return Section(a.name, a.title, a.row_subject, figures, merge_rows(a.rows, b.rows), a.note)


def format_change(figure: Figure, value_pair: ValuePair) -> str:
    """Return a figure's signed change from the first to the second run as text, shares in percentage points.

    Return '' if the change is unknown or 0, or if the change of a figure other than a share rounds to 0.
    """
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
