"""Sets of completion indexes, as the status of an Indexed Job writes them: `0-2,5`.

Source: pkg/controller/job/indexed_job_utils.go of Kubernetes.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, TypeAlias

from batchyard.api.annotations import whole_number

#: First and last index of each run, in order and apart.
Spans: TypeAlias = tuple[tuple[int, int], ...]

NONE: Final[Spans] = ()


def parsed(text: str | None, completions: int) -> Spans:
    """The indexes that a text lists, less what lies beyond the completions; parts that say nothing are left out."""
    spans = []
    for part in text.split(",") if text else ():
        start, dash, end = part.partition("-")
        first, last = whole_number(start), whole_number(end if dash else start)
        if first is not None and last is not None and first <= last and first < completions:
            spans.append((first, min(last, completions - 1)))
    return _joined(spans)


def written(spans: Spans) -> str:
    """The indexes as a text; two in a row are not a range yet."""
    parts = []
    for first, last in spans:
        if last - first > 1:
            parts.append(f"{first}-{last}")
        else:
            parts += map(str, range(first, last + 1))
    return ",".join(parts)


def with_indexes(spans: Spans, indexes: Iterable[int]) -> Spans:
    """The spans with more indexes."""
    added = [(index, index) for index in indexes]
    return _joined([*spans, *added]) if added else spans


def union(one: Spans, other: Spans) -> Spans:
    """The indexes that are in one or the other."""
    return _joined([*one, *other])


def total(spans: Spans) -> int:
    """How many indexes there are."""
    return sum(last - first + 1 for first, last in spans)


def contains(spans: Spans, index: int) -> bool:
    """Whether an index is among them."""
    at = bisect_right(spans, (index, index))
    return (at > 0 and spans[at - 1][1] >= index) or (at < len(spans) and spans[at][0] == index)


def in_common(one: Spans, other: Spans) -> int:
    """How many indexes are in both."""
    return total(one) + total(other) - total(union(one, other))


def first_missing(spans: Spans, count: int, completions: int) -> list[int]:
    """The first so many indexes below the completions that are not among them."""
    missing: list[int] = []
    candidate = 0
    for first, last in (*spans, (completions, completions)):
        missing += range(candidate, min(first, candidate + count - len(missing)))
        if len(missing) == count:
            break
        candidate = max(candidate, last + 1)
    return missing


def _joined(spans: list[tuple[int, int]]) -> Spans:
    """Spans in order, those that touch or overlap made one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)
