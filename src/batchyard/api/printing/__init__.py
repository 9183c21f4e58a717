"""Tables as `kubectl get` prints them.

The columns of Kueue's, JobSet's and the autoscaler's kinds are the printer columns of their CRDs. Those of the cloud
kinds are our own, all others those of Kubernetes's pkg/printers. A column of priority 1 is printed only with `-o wide`.
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

# The padding beyond the longest cell of a column, and the minimum width.
_PADDING: Final = 3
_WIDTH_MIN: Final = 6
_LINE_BREAK: Final = re.compile(r"[\f\n\r]")


def columns(kind: str, *, wide: bool) -> list[Column]:
    """Return the columns of a kind; name and age for unknown kinds."""
    return [column for column, _ in _printed(kind, wide)]


def row(obj: Obj, *, now: Instant, wide: bool) -> list[str]:
    """Return the cells of an object, one for each column of its kind."""
    return [cell(obj, now) for cell in _cells(group_kind(obj), wide)]


def table(kind: str, objs: Iterable[Obj], *, now: Instant, wide: bool, namespaces: bool) -> Table:
    """Return the header and a row for each object, in order; with `namespaces`, the first column is the namespace."""
    header = [column.name.upper() for column in columns(kind, wide=wide)]
    rows = [(obj["metadata"].get("namespace") or "", row(obj, now=now, wide=wide)) for obj in objs]
    if not namespaces:
        return [header, *(cells for _, cells in rows)]
    return [["NAMESPACE", *header], *([namespace, *cells] for namespace, cells in rows)]


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Format a table like kubectl: columns left-aligned, the last one not padded, each line with a newline."""
    cells = [[_one_line(cell) for cell in cells] for cells in rows]
    widths = [max(_WIDTH_MIN, *(len(cell) + _PADDING for cell in column)) for column in zip(*cells, strict=True)]
    return "".join(_line(line, widths) for line in cells)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells[:-1], widths, strict=False))
    return "".join((*padded, *cells[-1:], "\n"))


def _one_line(cell: str) -> str:
    """Truncate a cell at its first line break with three dots, and replace control characters."""
    if cell.isprintable():
        return cell
    first, *rest = _LINE_BREAK.split(cell, maxsplit=1)
    printable = "".join(character if character.isprintable() else " " for character in first)
    return f"{printable}..." if rest else printable


@lru_cache(maxsize=256)
def _cells(kind: str, wide: bool) -> Sequence[Cell]:
    return [cell for _, cell in _printed(kind, wide)]


def _printed(kind: str, wide: bool) -> Sequence[tuple[Column, Cell]]:
    return [(column, cell) for column, cell in TABLES.get(kind, NAME_AND_AGE) if wide or column.priority == 0]
