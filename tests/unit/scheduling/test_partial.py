"""The largest pod counts that can be had, for Workloads that may run with fewer."""

from collections.abc import Sequence

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.api.views.workload import workload_view
from batchyard.scheduling.flavor_assigner import search_counts
from yard import Yard, preemption, queue, workload


def may_shrink(name: str = "main", count: int = 8, least: int | None = 2, cpu: str = "1") -> Obj:
    """A pod set that may run with fewer pods."""
    return make.pod_set(name, count, requests={"cpu": cpu}, **({} if least is None else {"minCount": least}))


def tried(fits: int, *pod_sets: Obj) -> tuple[Sequence[int] | None, list[Sequence[int]]]:
    """The counts found where so many pods fit in all, and all counts tried."""
    seen: list[Sequence[int]] = []

    def attempt(counts: Sequence[int]) -> Sequence[int]:
        seen.append(counts)
        return counts

    found = search_counts(
        workload_view(workload(pod_sets=pod_sets)).pod_sets, attempt, lambda counts: sum(counts) <= fits
    )
    return found, seen


@pytest.mark.parametrize("fits", [2, 3, 4, 5, 6, 7, 8])
def test_the_largest_count_that_fits_is_found(fits: int) -> None:
    assert tried(fits, may_shrink())[0] == [fits]


def test_below_the_least_nothing_is_found() -> None:
    found, seen = tried(1, may_shrink())
    assert (found, min(map(sum, seen))) == (None, 2)


def test_the_search_halves_what_is_left() -> None:
    assert len(tried(400, may_shrink(count=1000, least=1))[1]) <= 11


def test_nothing_is_tried_where_nothing_can_shrink() -> None:
    assert tried(1, may_shrink(least=None)) == (None, [])
    assert tried(1, may_shrink(least=8)) == (None, [])


def test_pod_sets_shrink_in_step() -> None:
    found, _ = tried(9, may_shrink("driver", 2, None), may_shrink("a", 8, 2), may_shrink("b", 4, 1))
    assert found == [2, 4, 2]


def test_who_fits_in_full_is_not_cut() -> None:
    yard = Yard(queue("cq", 8))
    assert yard.decide(workload(pod_sets=[may_shrink()])) == ["wl: main 8 cpu=spot"]


def test_who_does_not_fit_in_full_runs_with_fewer() -> None:
    yard = Yard(queue("cq", 8))
    yard.hold("x", 3)
    assert yard.decide(workload(pod_sets=[may_shrink()])) == ["wl: main 5 cpu=spot"]


def test_who_cannot_shrink_enough_waits_for_all() -> None:
    yard = Yard(queue("cq", 8))
    yard.hold("x", 7)
    assert yard.wait(workload(pod_sets=[may_shrink()])).why.message.endswith("7 more needed")


def test_all_pods_by_preemption_come_before_fewer_without() -> None:
    yard = Yard(queue("cq", 8, preemption=preemption("LowerPriority")))
    yard.hold("x", 3, priority=-1)
    assert yard.decide(workload(pod_sets=[may_shrink()])) == ["wl preempts x (InClusterQueue)"]


def test_fewer_pods_may_come_by_preemption_too() -> None:
    yard = Yard(queue("cq", 8, preemption=preemption("LowerPriority")))
    yard.hold("strong", 4, priority=9)
    yard.hold("weak", 4, priority=-1)
    decision = yard.preemption(workload(pod_sets=[may_shrink()]))
    assert [t.workload.key for t in decision.targets] == ["team/weak"]
    assert decision.why.message.endswith("4 more needed. Pending the preemption of 1 workload(s)")


def test_more_than_there_could_ever_be_runs_with_fewer() -> None:
    yard = Yard(queue("cq", 5))
    assert yard.decide(workload(pod_sets=[may_shrink()])) == ["wl: main 5 cpu=spot"]
