"""The time line: quota intervals of Workloads by flavor or node, and preemptions between them."""

import heapq
from collections.abc import Iterable
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.base.instant import HOUR, MINUTE, SECOND, Instant, seconds
from batchyard.dashboard.data_source import Model, NamespaceAccess, Query, ViewInputs
from batchyard.dashboard.history import PREEMPTED, WorkloadHistory
from batchyard.dashboard.models.rows import time_of

#: Maximum number of spans shown; the oldest are dropped.
SPANS_MAX: Final = 3000
WHOLE_SPANS_MAX: Final = 30_000
_DEFAULT: Final = HOUR
_SHORTEST: Final = MINUTE


class _Span(NamedTuple):
    """A bar of the time line."""

    start: Instant
    end: Instant | None
    lane: str
    #: The key of the Workload.
    workload: str
    outcome: str


def timeline(source: ViewInputs, scope: NamespaceAccess, query: Query) -> Model:
    """Return the time line. Times are seconds since `origin`; a bar without end is still running."""
    by = "node" if query.get("by") == "node" and scope.all_of(scheme.NODE) else "flavor"
    since = _since(source, query)
    begun = (life for life in source.history.lives.values() if life.quota_intervals)
    lives = {life.key: life for life in begun if scope.sees(scheme.WORKLOAD, life.namespace)}
    found = _on_nodes(source, scope) if by == "node" else _in_flavors(lives.values())
    spans = [span for span in found if span.end is None or span.end >= since]
    most = WHOLE_SPANS_MAX if source.whole else SPANS_MAX
    dropped = max(0, len(spans) - most)
    if dropped:
        spans = heapq.nlargest(most, spans, key=lambda span: (span.start, span.workload))
    numbers = {key: number for number, key in enumerate(dict.fromkeys(span.workload for span in spans))}
    queues = sorted({lives[key].queue for key in numbers if key in lives})
    return {
        "by": by,
        "origin": time_of(since),
        "to": float(seconds(source.now - since)),
        "lanes": _lanes(spans, numbers, since),
        "workloads": [_named(lives.get(key), key, queues) for key in numbers],
        "queues": queues,
        "preemptions": _preemptions(source, lives, numbers, since),
        "dropped": dropped,
    }


def _since(source: ViewInputs, query: Query) -> Instant:
    """Return the start of the shown interval, from `last` in seconds or `all`."""
    text = query.get("last", "")
    if text == "all":
        return min((life.marks[0].at for life in source.history.lives.values()), default=source.now) // SECOND * SECOND
    last = int(text) * SECOND if text.isascii() and text.isdecimal() and len(text) < 10 else _DEFAULT
    return (source.now - max(last, _SHORTEST)) // SECOND * SECOND


def _in_flavors(lives: Iterable[WorkloadHistory]) -> list[_Span]:
    return [
        _Span(stint.start, stint.end, flavor, life.key, stint.outcome)
        for life in lives
        for stint in life.quota_intervals
        for flavor in stint.flavors
    ]


def _on_nodes(source: ViewInputs, scope: NamespaceAccess) -> list[_Span]:
    """Return spans by node; pods of a Workload that start together on a node share a span."""
    together: dict[tuple[str, str, Instant], Instant | None] = {}
    for stay in source.history.stays():
        if not stay.workload or not scope.sees(scheme.POD, stay.namespace):
            continue
        place = (stay.node, stay.workload, stay.start)
        known = together.get(place, 0)
        together[place] = None if known is None or stay.end is None else max(known, stay.end)
    return [_Span(start, end, node, workload, "") for (node, workload, start), end in together.items()]


def _lanes(spans: list[_Span], numbers: dict[str, int], since: Instant) -> list[Model]:
    by_lane: dict[str, list[_Span]] = {}
    for span in spans:
        by_lane.setdefault(span.lane, []).append(span)
    lanes = []
    for name in sorted(by_lane):
        bars, height = _in_rows(by_lane[name], numbers, since)
        lanes.append({"name": name, "rows": height, "bars": bars})
    return lanes


def _in_rows(spans: list[_Span], numbers: dict[str, int], since: Instant) -> tuple[list[list[object]], int]:
    """Return bars [start, end, row, Workload number, outcome], each in the first row that is free."""
    free: list[int] = []
    busy: list[tuple[Instant, int]] = []
    height, bars = 0, list[list[object]]()
    for span in sorted(spans, key=lambda span: (span.start, span.workload)):
        while busy and busy[0][0] <= span.start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, height = height, height + 1
        if span.end is not None:
            heapq.heappush(busy, (span.end, row))
        end = None if span.end is None else seconds(span.end - since)
        bars.append([seconds(span.start - since), end, row, numbers[span.workload], span.outcome])
    return bars, height


def _named(life: WorkloadHistory | None, key: str, queues: list[str]) -> list[object]:
    """Return a Workload as [key, queue number, priority]; queue and priority are unknown if it was dropped."""
    return [key, -1, 0] if life is None else [key, queues.index(life.queue), life.priority]


def _preemptions(
    source: ViewInputs, lives: dict[str, WorkloadHistory], numbers: dict[str, int], since: Instant
) -> list[Model]:
    """Return the preemptions between shown Workloads."""
    found = []
    for key, number in numbers.items():
        for mark in lives[key].marks if key in lives else ():
            other = source.history.lives.get(mark.by) if mark.what == PREEMPTED else None
            if other is not None and other.key in numbers and mark.at >= since:
                found.append({"at": seconds(mark.at - since), "victim": number, "by": numbers[other.key]})
    return sorted(found, key=lambda each: (each["at"], each["victim"]))
