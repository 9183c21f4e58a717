"""Tables of objects as `kubectl get` prints them: their columns, rows and text format.

The columns of Kueue's, JobSet's and the autoscaler's kinds are the printer columns of their CRDs. batchyard defines the
columns of its own kinds; all others come from Kubernetes's pkg/printers. Columns of priority 1 need `-o wide`.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from batchyard.api.meta import Obj, group_kind
from batchyard.api.printing.cells import Cell, Column
from batchyard.api.printing.kinds import NAME_AND_AGE, TABLES
from batchyard.base.instant import Instant

__all__ = ["Column", "Table", "columns", "format_table", "row", "table"]

Table: TypeAlias = list[list[str]]

# The spaces after the longest cell of a column, and the minimum width of a column.
_COLUMN_PADDING: Final = 3
_WIDTH_MIN: Final = 6
_LINE_BREAK: Final = re.compile(r"[\f\n\r]")


def columns(kind: str, *, wide: bool) -> list[Column]:
    """Return the columns that `kubectl get` prints for a kind; name and age for a kind without an entry in TABLES."""
    return [column for column, _ in _printed_columns(kind, wide)]


def row(obj: Obj, *, now: Instant, wide: bool) -> list[str]:
    """Return the cell texts of an object's table row, one for each column of its kind."""
    return [cell(obj, now) for cell in _column_cell_functions(group_kind(obj), wide)]


def table(kind: str, objs: Iterable[Obj], *, now: Instant, wide: bool, namespaces: bool) -> Table:
    """Return a table of objects: a header and one row for each; `namespaces` adds the namespace as first column."""
    header_names = [column.name.upper() for column in columns(kind, wide=wide)]
    namespaces_and_rows = [(obj["metadata"].get("namespace") or "", row(obj, now=now, wide=wide)) for obj in objs]
    if not namespaces:
        return [header_names, *(cells for _, cells in namespaces_and_rows)]
    return [["NAMESPACE", *header_names], *([namespace, *cells] for namespace, cells in namespaces_and_rows)]


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format table rows like kubectl: left-aligned, with all columns but the last padded with spaces.

    A cell is cut at its first line break.
    """
    cells = [[_cell_on_one_line(cell) for cell in cells] for cells in rows]
    widths = [max(_WIDTH_MIN, *(len(cell) + _COLUMN_PADDING for cell in column)) for column in zip(*cells, strict=True)]
    return "".join(_format_line(line, widths) for line in cells)


def _format_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded_cells = (cell.ljust(width) for cell, width in zip(cells[:-1], widths, strict=False))
    return "".join((*padded_cells, *cells[-1:], "\n"))


def _cell_on_one_line(cell: str) -> str:
    if cell.isprintable():
        return cell
    first_line, *lines_after_break = _LINE_BREAK.split(cell, maxsplit=1)
    printable_line = "".join(character if character.isprintable() else " " for character in first_line)
    return f"{printable_line}..." if lines_after_break else printable_line


@lru_cache(maxsize=256)
def _column_cell_functions(kind: str, wide: bool) -> Sequence[Cell]:
    return [cell for _, cell in _printed_columns(kind, wide)]


def _printed_columns(kind: str, wide: bool) -> Sequence[tuple[Column, Cell]]:
    return [(column, cell) for column, cell in TABLES.get(kind, NAME_AND_AGE) if wide or column.priority == 0]
