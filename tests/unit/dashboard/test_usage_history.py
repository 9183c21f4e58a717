"""The recorded totals of the charts: exact at all times, and bounded."""

from hypothesis import given
from hypothesis import strategies as st

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.base.instant import SECOND
from batchyard.dashboard.usage_history import CAPACITY, POINTS_MAX, QUOTA, REQUESTED, RESOURCES_MAX, UsageHistory
from unit.dashboard.test_history import ObservedHistory, admitted, evicted

CHANGES = st.lists(st.tuples(st.integers(0, 3000), st.integers(-5, 9)), max_size=60)


@given(CHANGES)
def test_series_ends_with_current_total_and_never_exceeds_its_bound(changes: list[tuple[int, int]]) -> None:
    usage, now, total = UsageHistory(0), 0, 0
    for later, amount in changes:
        now, total = now + later * SECOND, total + amount
        usage.add(now, QUOTA, [("gpu", amount)])
        recorded = usage.series(now)
        assert len(recorded.instants) <= POINTS_MAX
        assert list(recorded.instants) == sorted(recorded.instants)
        assert all(len(values) == len(recorded.instants) for values in recorded.values.values())
        assert recorded.values.get((QUOTA, "gpu"), [0])[-1] == total


def test_each_point_has_the_total_at_the_end_of_its_interval() -> None:
    usage = UsageHistory(0)
    for seconds, amount in ((1, 2), (4, 3), (12, -5)):
        usage.add(seconds * SECOND, QUOTA, [("gpu", amount)])
    recorded = usage.series(16 * SECOND)
    assert [instant // SECOND for instant in recorded.instants] == [5, 10, 15, 16]
    assert recorded.values[QUOTA, "gpu"] == [5, 5, 0, 0]


def test_resources_beyond_the_bound_are_ignored() -> None:
    usage = UsageHistory(0)
    usage.add(0, QUOTA, [(f"r{number:03}", 1) for number in range(RESOURCES_MAX + 10)])
    assert len(usage.series(0).values) == RESOURCES_MAX


def test_history_counts_workloads_quota_and_nodes() -> None:
    observed = ObservedHistory()
    new, running = make.workload("w"), admitted()
    allocatable = {"cpu": "8", "nvidia.com/gpu": "4"}
    node = {"metadata": make.metadata("n", None), "spec": {}, "status": {"allocatable": allocatable}}
    pod: Obj = {"metadata": make.metadata("p"), "spec": {**make.pod_template()["spec"], "nodeName": "n"}}

    def last(what: str, name: str) -> int:
        return observed.history.usage.series(observed.now).values.get((what, name), [0])[-1]

    observed.observe(0, node, None, kind=scheme.NODE)
    observed.observe(0, new, None)
    assert (last("workloads", "pending"), last("workloads", "running")) == (1, 0)
    observed.observe(6, running, new)
    observed.observe(7, pod, None, kind=scheme.POD)
    assert (last("workloads", "pending"), last("workloads", "running"), last(QUOTA, "cpu")) == (0, 1, 1000)
    assert (last(CAPACITY, "cpu"), last(CAPACITY, "nvidia.com/gpu"), last(REQUESTED, "cpu")) == (8000, 4, 1000)
    observed.observe(20, evicted(running), running)
    assert (last("workloads", "pending"), last("workloads", "running"), last(QUOTA, "cpu")) == (1, 0, 0)
    observed.observe(21, evicted(running), running, deleted=True)
    observed.observe(22, pod, pod, deleted=True, kind=scheme.POD)
    observed.observe(23, node, node, deleted=True, kind=scheme.NODE)
    assert last("workloads", "pending") == last(CAPACITY, "cpu") == last(REQUESTED, "cpu") == 0
