"""Partial admission: the largest pod counts that fit for Workloads with minCount."""

from collections.abc import Sequence

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.api.views.workload import workload_view
from batchyard.scheduling.flavor_assigner import search_pod_counts
from yard import SchedulerBench, preemption, queue, workload


def shrinkable(name: str = "main", count: int = 8, least: int | None = 2, cpu: str = "1") -> Obj:
    """A pod set with minCount."""
    return make.pod_set(name, count, requests={"cpu": cpu}, **({} if least is None else {"minCount": least}))


def tried_counts(fits: int, *pod_sets: Obj) -> tuple[Sequence[int] | None, list[Sequence[int]]]:
    """Return the resulting counts if this many pods fit in total, and all tried counts."""
    seen: list[Sequence[int]] = []

    def attempt(counts: Sequence[int]) -> Sequence[int]:
        seen.append(counts)
        return counts

    result = search_pod_counts(
        workload_view(workload(pod_sets=pod_sets)).pod_sets, attempt, lambda counts: sum(counts) <= fits
    )
    return result, seen


@pytest.mark.parametrize("fits", [2, 3, 4, 5, 6, 7, 8])
def test_search_returns_largest_fitting_count(fits: int) -> None:
    assert tried_counts(fits, shrinkable())[0] == [fits]


def test_search_returns_none_below_min_count() -> None:
    result, seen = tried_counts(1, shrinkable())
    assert (result, min(map(sum, seen))) == (None, 2)


def test_search_is_binary() -> None:
    assert len(tried_counts(400, shrinkable(count=1000, least=1))[1]) <= 11


def test_search_tries_nothing_without_shrinkable_pod_set() -> None:
    assert tried_counts(1, shrinkable(least=None)) == (None, [])
    assert tried_counts(1, shrinkable(least=8)) == (None, [])


def test_pod_sets_shrink_proportionally() -> None:
    result, _ = tried_counts(9, shrinkable("driver", 2, None), shrinkable("a", 8, 2), shrinkable("b", 4, 1))
    assert result == [2, 4, 2]


def test_fitting_workload_is_admitted_with_full_count() -> None:
    bench = SchedulerBench(queue("cq", 8))
    assert bench.decide(workload(pod_sets=[shrinkable()])) == ["wl: main 8 cpu=spot"]


def test_workload_is_admitted_with_reduced_count() -> None:
    bench = SchedulerBench(queue("cq", 8))
    bench.hold("x", 3)
    assert bench.decide(workload(pod_sets=[shrinkable()])) == ["wl: main 5 cpu=spot"]


def test_workload_waits_for_full_count_below_min_count() -> None:
    bench = SchedulerBench(queue("cq", 8))
    bench.hold("x", 7)
    assert bench.wait(workload(pod_sets=[shrinkable()])).why.message.endswith("7 more needed")


def test_preemption_for_full_count_precedes_reduced_count() -> None:
    bench = SchedulerBench(queue("cq", 8, preemption=preemption("LowerPriority")))
    bench.hold("x", 3, priority=-1)
    assert bench.decide(workload(pod_sets=[shrinkable()])) == ["wl preempts x (InClusterQueue)"]


def test_reduced_count_can_preempt() -> None:
    bench = SchedulerBench(queue("cq", 8, preemption=preemption("LowerPriority")))
    bench.hold("strong", 4, priority=9)
    bench.hold("weak", 4, priority=-1)
    decision = bench.preemption(workload(pod_sets=[shrinkable()]))
    assert [t.workload.key for t in decision.targets] == ["team/weak"]
    assert decision.why.message.endswith("4 more needed. Pending the preemption of 1 workload(s)")


def test_workload_above_capacity_is_admitted_with_reduced_count() -> None:
    bench = SchedulerBench(queue("cq", 5))
    assert bench.decide(workload(pod_sets=[shrinkable()])) == ["wl: main 5 cpu=spot"]
