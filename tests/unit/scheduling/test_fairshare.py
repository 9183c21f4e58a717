"""The share of a queue or Cohort: borrowed quota relative to lendable quota."""

import math
from typing import Any

import pytest

from batchyard.api.meta import INT64_MAX
from batchyard.scheduling.quota import LOWEST_SHARE, Share, compare_shares, weighted_share
from yard import SchedulerBench, cohort, group, queue, quota


def share(bench: SchedulerBench, name: str) -> Share:
    return weighted_share(bench.node(name), bench.snapshot.flavor_resource_names)


def lending(**fields: Any) -> SchedulerBench:
    """A ClusterQueue `cq` of 2 cpu, with 8 more in its cohort."""
    return SchedulerBench(queue("cq", 2, cohort="all", **fields), queue("lender", 8, cohort="all"))


@pytest.mark.parametrize(("cpu", "expected"), [(0, 0), (2, 0), (3, 100), (5, 300), (10, 800)])
def test_share_is_borrowed_quota_relative_to_lendable_quota(cpu: int, expected: int) -> None:
    bench = lending()
    bench.hold("x", cpu)
    assert share(bench, "cq").rounded_value == expected


def test_queue_without_cohort_has_no_share() -> None:
    bench = SchedulerBench(queue("cq", 2))
    bench.hold("x", 5)
    assert (share(bench, "cq").rounded_value, share(bench, "cq").is_borrowing) == (0, False)


def test_root_cohort_has_no_share() -> None:
    bench = lending()
    bench.hold("x", 20)
    assert share(bench, "all").rounded_value == 0


def test_share_in_status_is_rounded_up() -> None:
    bench = SchedulerBench(queue("cq", 0, cohort="all"), queue("lender", 3, cohort="all"))
    bench.hold("x", 1)
    result = share(bench, "cq")
    assert (result.weighted_value, result.rounded_value) == (1000 / 3, 334)


@pytest.mark.parametrize(
    ("weight", "expected"), [(1, 300), ("2", 150), ("500m", 600), ("0.1", 3000), ("3", 100), (0, INT64_MAX)]
)
def test_weight_divides_share(weight: Any, expected: int) -> None:
    bench = lending(weight=weight)
    bench.hold("x", 5)
    assert share(bench, "cq").rounded_value == expected


def test_queue_with_zero_weight_has_no_share_without_borrowing() -> None:
    bench = lending(weight=0)
    bench.hold("x", 2)
    assert (share(bench, "cq").weighted_value, share(bench, "cq").rounded_value) == (0.0, 0)


def test_share_is_that_of_dominant_resource() -> None:
    amounts = {"cpu": 10, "gpu": 4}
    bench = SchedulerBench(
        queue("cq", groups=[group(spot={"cpu": 0, "gpu": 0})], cohort="all"),
        queue("lender", groups=[group(spot=amounts)], cohort="all"),
    )
    bench.hold("x", 0, usage={("spot", "cpu"): 5000, ("spot", "gpu"): 1})
    assert (share(bench, "cq").resource, share(bench, "cq").rounded_value) == ("cpu", 500)
    bench.hold("y", 0, usage={("spot", "gpu"): 2})
    assert (share(bench, "cq").resource, share(bench, "cq").rounded_value) == ("gpu", 750)


def test_first_resource_by_name_is_dominant_at_equal_shares() -> None:
    bench = SchedulerBench(
        queue("cq", groups=[group(spot={"gpu": 0, "cpu": 0})], cohort="all"),
        queue("lender", groups=[group(spot={"gpu": 4, "cpu": 4})], cohort="all"),
    )
    bench.hold("x", 0, usage={("spot", "gpu"): 2, ("spot", "cpu"): 2000})
    assert share(bench, "cq").resource == "cpu"


def test_share_sums_all_flavors_of_resource() -> None:
    groups = [group(one={"cpu": 2}, two={"cpu": 2})]
    lenders = [group(one={"cpu": 4}, two={"cpu": 2})]
    bench = SchedulerBench(queue("cq", groups=groups, cohort="all"), queue("lender", groups=lenders, cohort="all"))
    bench.hold("x", 0, usage={("one", "cpu"): 4000, ("two", "cpu"): 3000})
    assert (share(bench, "cq").rounded_value, len(share(bench, "cq").borrowed_frs)) == (300, 2)


def test_unused_quota_of_flavor_does_not_offset_borrowing_in_other_flavor() -> None:
    groups = [group(one={"cpu": 5}, two={"cpu": 0})]
    bench = SchedulerBench(queue("cq", groups=groups, cohort="all"), queue("lender", groups=groups, cohort="all"))
    bench.hold("x", 1, flavor="two")
    assert share(bench, "cq").rounded_value == 100


def test_share_excludes_quota_above_lending_limit() -> None:
    bench = SchedulerBench(queue("cq", 2, cohort="all"), queue("lender", quota(8, lending=2), cohort="all"))
    bench.hold("x", 3)
    assert share(bench, "cq").rounded_value == 250


def test_share_is_zero_without_lendable_quota() -> None:
    bench = SchedulerBench(queue("cq", 0, cohort="all"), queue("lender", 0, cohort="all"))
    bench.hold("x", 1)
    result = share(bench, "cq")
    assert (result.rounded_value, result.is_borrowing) == (0, True)


def test_share_of_cohort_counts_its_subtree() -> None:
    bench = SchedulerBench(
        cohort("root", 4),
        cohort("team", 2, parent="root", weight=2),
        queue("a", 2, cohort="team"),
        queue("b", 2, cohort="team"),
    )
    bench.hold("x", 6, "a")
    assert (share(bench, "team").rounded_value, share(bench, "a").rounded_value) == (0, 400)
    bench.hold("y", 2, "b")
    assert (share(bench, "team").rounded_value, share(bench, "b").rounded_value) == (100, 0)


def test_borrowing_limit_of_cohort_reduces_lendable_quota_of_its_queues() -> None:
    bench = SchedulerBench(
        cohort("root", 4), cohort("team", quota(6, borrowing=2), parent="root"), queue("a", 2, cohort="team")
    )
    bench.hold("x", 7, "a")
    assert share(bench, "a").rounded_value == 500


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param(Share(1, 100, "", ()), Share(1, 200, "", ()), -1, id="lower"),
        pytest.param(Share(1, 100, "", ()), Share(2, 200, "", ()), 0, id="equal by weight"),
        pytest.param(Share(0, 1, "", ()), Share(1, 900, "", ()), 1, id="zero weight is above any share"),
        pytest.param(Share(1, 900, "", ()), Share(0, 1, "", ()), -1, id="any share is below zero weight"),
        pytest.param(Share(0, 2, "", ()), Share(0, 1, "", ()), 1, id="unweighted shares of zero weights are compared"),
        pytest.param(Share(0, 0, "", ()), Share(1, 1, "", ()), -1, id="zero weight without borrowing is zero"),
        pytest.param(LOWEST_SHARE, Share(1, 0, "", ()), -1, id="lowest is below zero"),
    ],
)
def test_shares_are_compared_by_weight(a: Share, b: Share, expected: int) -> None:
    assert (compare_shares(a, b), compare_shares(b, a)) == (expected, -expected)


def test_is_borrowing_on_checks_only_requested_resources() -> None:
    result = Share(1, 100, "cpu", (3, 5))
    assert result.is_borrowing_on(((1, 9), (5, 1)))
    assert not result.is_borrowing_on(((1, 9), (5, 0)))
    assert math.isinf(Share(0, 1, "cpu", (3,)).weighted_value)
