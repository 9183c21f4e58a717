"""A part of a long list: as much as is asked for, and never more than is cheap to make and to show."""

from typing import Final, NamedTuple

from batchyard.dashboard.data_source import Query, Source

LIMIT: Final = 100
LIMIT_MAX: Final = 500
#: More than any list is long.
ALL: Final = 1_000_000


class Window(NamedTuple):
    """So many lines after so many others."""

    offset: int
    limit: int


def window_of(source: Source, query: Query) -> Window:
    """What a query asks for; the usual where it says nothing that is a number."""
    if source.whole:
        return Window(0, ALL)
    limit = _whole(query.get("limit", "")) or LIMIT
    return Window(_whole(query.get("offset", "")), min(limit, LIMIT_MAX))


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
