"""Figures of runs as tables of text: of one run, and of two runs side by side."""

from collections.abc import Sequence
from typing import Final

from batchyard.api.printing import Table, format_table
from batchyard.base.counts import count_with_noun
from batchyard.sim.compare.sections import Section, format_change
from batchyard.sim.summary.figure import FigureTable, format_figure, without_zero_columns

#: The maximum number of rows of a table without `-o wide`.
ROWS_SHOWN_MAX: Final = 20


def format_bounded_table(rows: Table, *, wide: bool, noun: str = "row") -> str:
    """Format a table; without `wide`, only its first rows, and how many of the rows are shown.

    `noun` names what a row describes, such as pod.
    """
    header, *body = rows
    if wide or len(body) <= ROWS_SHOWN_MAX:
        return format_table(rows)
    return format_table([header, *body[:ROWS_SHOWN_MAX]]) + omission_line(len(body), noun)


def omission_line(row_count: int, noun: str) -> str:
    """Return the line that replaces the omitted rows of a table of `row_count` rows."""
    return f"{ROWS_SHOWN_MAX} of {count_with_noun(row_count, noun)} shown; all: -o wide\n"


def figure_table_text(table: FigureTable, *, wide: bool) -> str:
    """Format the figures of one run with a title; without `wide`, only the first rows, and no columns of zeros."""
    figures = table.figures if wide else without_zero_columns(table).figures
    header = [table.row_subject.upper(), *(figure.title.upper() for figure in figures)]
    rows = [
        [name, *(format_figure(figure.with_unit_of_row(name).unit, row.get(figure.name)) for figure in figures)]
        for name, row in table.rows.items()
    ]
    note = f" ({table.note})" if table.note and wide else ""
    return f"# {table.title}{note}\n{format_bounded_table([header, *rows], wide=wide)}"


def two_run_totals(names: Sequence[str], section: Section) -> Table:
    """Return the totals of two runs as a table, without figures that are zero in both."""
    rows = [["", *(name.upper() for name in names), "CHANGE"]]
    (row,) = section.rows
    for figure in section.figures:
        value_pair = row.figures.get(figure.name, (None, None))
        if any(value_pair):
            cells = [format_figure(figure.unit, value) for value in value_pair]
            rows.append([figure.title, *cells, format_change(figure, value_pair)])
    return rows
