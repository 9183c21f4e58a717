"""The share of a queue or Cohort: borrowed quota relative to lendable quota."""

import math
from typing import Any

import pytest

from batchyard.api.meta import INT64_MAX
from batchyard.scheduling.quota import LOWEST_SHARE, Share, compare_shares, weighted_share
from yard import SchedulerBench, cohort, group, queue, quota


def share(yard: SchedulerBench, name: str) -> Share:
    return weighted_share(yard.node(name), yard.snapshot.names)


def lending(**fields: Any) -> SchedulerBench:
    """A ClusterQueue `cq` of 2 cpu, with 8 more in its cohort."""
    return SchedulerBench(queue("cq", 2, cohort="all", **fields), queue("lender", 8, cohort="all"))


@pytest.mark.parametrize(("cpu", "expected"), [(0, 0), (2, 0), (3, 100), (5, 300), (10, 800)])
def test_share_is_borrowed_quota_relative_to_lendable_quota(cpu: int, expected: int) -> None:
    yard = lending()
    yard.hold("x", cpu)
    assert share(yard, "cq").rounded_value == expected


def test_queue_without_cohort_has_no_share() -> None:
    yard = SchedulerBench(queue("cq", 2))
    yard.hold("x", 5)
    assert (share(yard, "cq").rounded_value, share(yard, "cq").is_borrowing) == (0, False)


def test_root_cohort_has_no_share() -> None:
    yard = lending()
    yard.hold("x", 20)
    assert share(yard, "all").rounded_value == 0


def test_share_in_status_is_rounded_up() -> None:
    yard = SchedulerBench(queue("cq", 0, cohort="all"), queue("lender", 3, cohort="all"))
    yard.hold("x", 1)
    found = share(yard, "cq")
    assert (found.weighted_value, found.rounded_value) == (1000 / 3, 334)


@pytest.mark.parametrize(
    ("weight", "expected"), [(1, 300), ("2", 150), ("500m", 600), ("0.1", 3000), ("3", 100), (0, INT64_MAX)]
)
def test_weight_divides_share(weight: Any, expected: int) -> None:
    yard = lending(weight=weight)
    yard.hold("x", 5)
    assert share(yard, "cq").rounded_value == expected


def test_queue_with_zero_weight_has_no_share_without_borrowing() -> None:
    yard = lending(weight=0)
    yard.hold("x", 2)
    assert (share(yard, "cq").weighted_value, share(yard, "cq").rounded_value) == (0.0, 0)


def test_share_is_that_of_dominant_resource() -> None:
    amounts = {"cpu": 10, "gpu": 4}
    yard = SchedulerBench(
        queue("cq", groups=[group(spot={"cpu": 0, "gpu": 0})], cohort="all"),
        queue("lender", groups=[group(spot=amounts)], cohort="all"),
    )
    yard.hold("x", 0, usage={("spot", "cpu"): 5000, ("spot", "gpu"): 1})
    assert (share(yard, "cq").resource, share(yard, "cq").rounded_value) == ("cpu", 500)
    yard.hold("y", 0, usage={("spot", "gpu"): 2})
    assert (share(yard, "cq").resource, share(yard, "cq").rounded_value) == ("gpu", 750)


def test_first_resource_by_name_is_dominant_at_equal_shares() -> None:
    yard = SchedulerBench(
        queue("cq", groups=[group(spot={"gpu": 0, "cpu": 0})], cohort="all"),
        queue("lender", groups=[group(spot={"gpu": 4, "cpu": 4})], cohort="all"),
    )
    yard.hold("x", 0, usage={("spot", "gpu"): 2, ("spot", "cpu"): 2000})
    assert share(yard, "cq").resource == "cpu"


def test_share_sums_all_flavors_of_resource() -> None:
    groups = [group(one={"cpu": 2}, two={"cpu": 2})]
    lenders = [group(one={"cpu": 4}, two={"cpu": 2})]
    yard = SchedulerBench(queue("cq", groups=groups, cohort="all"), queue("lender", groups=lenders, cohort="all"))
    yard.hold("x", 0, usage={("one", "cpu"): 4000, ("two", "cpu"): 3000})
    assert (share(yard, "cq").rounded_value, len(share(yard, "cq").borrowed_frs)) == (300, 2)


def test_unused_quota_of_flavor_does_not_offset_borrowing_in_other_flavor() -> None:
    groups = [group(one={"cpu": 5}, two={"cpu": 0})]
    yard = SchedulerBench(queue("cq", groups=groups, cohort="all"), queue("lender", groups=groups, cohort="all"))
    yard.hold("x", 1, flavor="two")
    assert share(yard, "cq").rounded_value == 100


def test_share_excludes_quota_above_lending_limit() -> None:
    yard = SchedulerBench(queue("cq", 2, cohort="all"), queue("lender", quota(8, lending=2), cohort="all"))
    yard.hold("x", 3)
    assert share(yard, "cq").rounded_value == 250


def test_share_is_zero_without_lendable_quota() -> None:
    yard = SchedulerBench(queue("cq", 0, cohort="all"), queue("lender", 0, cohort="all"))
    yard.hold("x", 1)
    found = share(yard, "cq")
    assert (found.rounded_value, found.is_borrowing) == (0, True)


def test_share_of_cohort_is_that_of_its_subtree() -> None:
    yard = SchedulerBench(
        cohort("root", 4),
        cohort("team", 2, parent="root", weight=2),
        queue("a", 2, cohort="team"),
        queue("b", 2, cohort="team"),
    )
    yard.hold("x", 6, "a")
    assert (share(yard, "team").rounded_value, share(yard, "a").rounded_value) == (0, 400)
    yard.hold("y", 2, "b")
    assert (share(yard, "team").rounded_value, share(yard, "b").rounded_value) == (100, 0)


def test_borrowing_limit_of_cohort_reduces_lendable_quota_of_its_queues() -> None:
    yard = SchedulerBench(
        cohort("root", 4), cohort("team", quota(6, borrowing=2), parent="root"), queue("a", 2, cohort="team")
    )
    yard.hold("x", 7, "a")
    assert share(yard, "a").rounded_value == 500


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
    found = Share(1, 100, "cpu", (3, 5))
    assert found.is_borrowing_on(((1, 9), (5, 1)))
    assert not found.is_borrowing_on(((1, 9), (5, 0)))
    assert math.isinf(Share(0, 1, "cpu", (3,)).weighted_value)
