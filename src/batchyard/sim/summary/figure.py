"""Figures of a run: their names, titles and units, and how they are formatted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeAlias


class Unit(StrEnum):
    """The unit of a figure, which determines its format."""

    COUNT = "count"
    SECONDS = "seconds"
    HOURS = "hours"
    SHARE = "share"  # a fraction of 1
    DOLLARS = "dollars"
    INDEX = "index"
    AMOUNT = "amount"  # of the resource that the row names
    BYTES = "bytes"
    GIBIBYTES = "gibibytes"


class BetterDirection(StrEnum):
    """Whether a smaller or a larger value of a figure is better."""

    LESS = "less"
    MORE = "more"
    NEITHER = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of a table: its name in JSON, its title, its unit, and whether less or more is better."""

    name: str
    title: str
    unit: Unit
    better: BetterDirection = BetterDirection.NEITHER

    def with_unit_of_row(self, name: str) -> "Figure":
        """Return the figure for the row `name`: an amount gets the unit of the resource at the end of the name.

        For example, amounts in the row `spot memory` have the unit GiB. Other figures are returned unchanged.
        """
        return replace(self, unit=unit_of(name.rpartition(" ")[2])) if self.unit is Unit.AMOUNT else self


def unit_of(resource: str) -> Unit:
    """Return the unit in which amounts of a resource are reported.

    Memory is reported in GiB, ephemeral storage and huge pages in bytes, and other resources as plain numbers.
    """
    if resource == "memory":
        return Unit.GIBIBYTES
    return Unit.BYTES if resource == "ephemeral-storage" or resource.startswith("hugepages-") else Unit.COUNT


#: The values of figures by name; None for an unknown value.
Figures: TypeAlias = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class FigureTable:
    """A table of figures of one run: its title, its columns and its rows by name."""

    name: str
    title: str
    #: The kind of subject of the rows, such as team.
    row_subject: str
    figures: Sequence[Figure]
    rows: Mapping[str, Figures]
    note: str = ""


def without_zero_columns(table: FigureTable) -> FigureTable:
    """Return a table without the columns that are zero or unknown in all rows; `meanWait` is kept."""
    figures = [
        figure
        for figure in table.figures
        if figure.name == "meanWait" or any(row.get(figure.name) for row in table.rows.values())
    ]
    return replace(table, figures=figures)


NO_VALUE: Final = "-"
GIBIBYTE: Final = 1 << 30
_BYTE_SUFFIXES: Final = (("Ti", 1 << 40), ("Gi", GIBIBYTE), ("Mi", 1 << 20), ("Ki", 1 << 10))


def format_figure(unit: Unit, value: float | None) -> str:
    """Return the value of a figure as text in the format of its unit; `-` for None."""
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
        case Unit.GIBIBYTES:
            return _format_bytes(value * GIBIBYTE)
        case Unit.BYTES:
            return _format_bytes(value)
        case Unit.COUNT | Unit.AMOUNT:
            return _format_number(value)


def _format_number(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _format_bytes(byte_count: float) -> str:
    suffix, size = next((each for each in _BYTE_SUFFIXES if byte_count >= each[1]), ("", 1))
    return f"{_format_number(byte_count / size)}{suffix}"


def _format_seconds(seconds: float) -> str:
    if seconds < 10:
        return f"{round(seconds, 1):g}s"
    minutes, seconds_part = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    amount_by_unit = {f"{hours}h": hours, f"{minutes}m": minutes, f"{seconds_part}s": seconds_part}
    return "".join(text for text, amount in amount_by_unit.items() if amount)
