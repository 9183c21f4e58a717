"""Pagination of long lists, with a bounded page size."""

from typing import Final, NamedTuple

from batchyard.dashboard.data_source import Query, ViewInputs

LIMIT: Final = 100
LIMIT_MAX: Final = 500
#: Beyond the length of any list.
ALL: Final = 1_000_000


class PageWindow(NamedTuple):
    """A page: offset and maximum number of lines."""

    offset: int
    limit: int


def window_of(source: ViewInputs, query: Query) -> PageWindow:
    """Return the requested page; invalid numbers mean the defaults."""
    if source.whole:
        return PageWindow(0, ALL)
    limit = _whole(query.get("limit", "")) or LIMIT
    return PageWindow(_whole(query.get("offset", "")), min(limit, LIMIT_MAX))


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
