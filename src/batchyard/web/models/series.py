"""How many waited and ran in a ClusterQueue, and how much they held, over time: told from what happened."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from batchyard.base.instant import SECOND, Instant
from batchyard.web.amounts import in_words
from batchyard.web.history import CREATED, DELETED, EVICTED, FINISHED, PREEMPTED, RESERVED, Life
from batchyard.web.models.rows import time_of
from batchyard.web.source import Model, Source

POINTS: Final = 120
_BEGIN_TO_WAIT: Final = (CREATED, EVICTED, PREEMPTED)
_WAIT_NO_MORE: Final = (RESERVED, FINISHED, DELETED)

_Changes: TypeAlias = Iterator[tuple[Instant, int]]


def series_of(source: Source, queue: str) -> Model | None:
    """Step functions at so many points; None where nothing has happened yet."""
    lives = [life for life in source.history.lives.values() if life.queue == queue]
    if not lives:
        return None
    start = min(life.marks[0].at for life in lives)
    step = max(SECOND, -(-(source.now - start) // POINTS))
    times = range(start, max(source.now, start + step), step)
    usage: dict[tuple[str, str], list[tuple[Instant, int]]] = {}
    for life in lives:
        for at, flavor, resource, amount in _used(life):
            usage.setdefault((flavor, resource), []).append((at, amount))
    return {
        "from": time_of(start),
        "to": time_of(source.now),
        "pending": _sums(_changes(lives, _waiting), start, step, len(times)),
        "running": _sums(_changes(lives, _running), start, step, len(times)),
        "usage": [
            {"flavor": flavor, "resource": resource, **_amounts(resource, _sums(changes, start, step, len(times)))}
            for (flavor, resource), changes in sorted(usage.items())
        ],
    }


def _amounts(resource: str, values: list[int]) -> Model:
    return {"values": values, "most": in_words(resource, max(values))}


def _changes(lives: Iterable[Life], of: Callable[[Life], _Changes]) -> list[tuple[Instant, int]]:
    return [change for life in lives for change in of(life)]


def _waiting(life: Life) -> _Changes:
    """When a Workload began to wait, and when it waited no more."""
    waits = False
    for mark in life.marks:
        if mark.what in _BEGIN_TO_WAIT and not waits:
            waits = True
            yield mark.at, 1
        elif mark.what in _WAIT_NO_MORE and waits:
            waits = False
            yield mark.at, -1


def _running(life: Life) -> _Changes:
    for stint in life.stints:
        yield stint.start, 1
        if stint.end is not None:
            yield stint.end, -1


def _used(life: Life) -> Iterator[tuple[Instant, str, str, int]]:
    for stint in life.stints:
        for flavor, resource, amount in stint.usage:
            yield stint.start, flavor, resource, amount
            if stint.end is not None:
                yield stint.end, flavor, resource, -amount


def _sums(changes: Iterable[tuple[Instant, int]], start: Instant, step: int, count: int) -> list[int]:
    """The sum of all changes up to the end of each step."""
    steps = [0] * count
    for at, change in changes:
        steps[min(count - 1, max(0, (at - start) // step))] += change
    for place in range(1, count):
        steps[place] += steps[place - 1]
    return steps
