"""Partial admission: the largest pod counts, between the minimum and what was asked for, that can be had.

All pod sets shrink in step; a binary search finds the smallest reduction that works.
Source: Kueue's pkg/scheduler/flavorassigner/podset_reducer.go.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from batchyard.api.views.workload import PodSet

T = TypeVar("T")


def search_counts(
    pod_sets: Sequence[PodSet], attempt: Callable[[Sequence[int]], T], is_good: Callable[[T], bool]
) -> T | None:
    """The result of `attempt` for the smallest reduction with which it is good; None if there is none."""
    deltas = [p.count - (p.count if p.min_count is None else p.min_count) for p in pod_sets]
    total = sum(deltas)
    if total == 0:
        return None
    low, high = 0, total + 1
    good: tuple[int, T] | None = None
    while low < high:
        middle = (low + high) // 2
        found = attempt([p.count - delta * middle // total for p, delta in zip(pod_sets, deltas, strict=True)])
        if is_good(found):
            good, high = (middle, found), middle
        else:
            low = middle + 1
    return good[1] if good is not None and good[0] == low else None
