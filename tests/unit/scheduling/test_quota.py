"""Quota arithmetic in trees of one to four levels. Amounts are in milli-cpu; those below are in cpu."""

import pytest

from batchyard.api.meta import Obj
from batchyard.scheduling.quota import (
    change_usage,
    fits_in_quota,
    is_borrowing_with,
    is_within_nominal,
    local_available,
    lowest_fitting_height,
    request_to_parent,
)
from yard import SchedulerBench, cohort, queue, quota

CPU = 1000


def flat(*members: Obj) -> SchedulerBench:
    return SchedulerBench(*members)


def deep() -> SchedulerBench:
    """Root (1) > left (2) > team (3) > a (4), b (5); root > right (6) > c (7); every quota in brackets."""
    return SchedulerBench(
        cohort("root", 1),
        cohort("left", 2, parent="root"),
        cohort("team", 3, parent="left"),
        cohort("right", 6, parent="root"),
        queue("a", 4, cohort="team"),
        queue("b", 5, cohort="team"),
        queue("c", 7, cohort="right"),
    )


def spot_cpu(bench: SchedulerBench) -> int:
    return bench.snapshot.flavor_resource_id("spot", "cpu")


def potential(bench: SchedulerBench, name: str) -> int:
    return bench.node(name).potential_quota[spot_cpu(bench)] // CPU


def test_queue_without_cohort_has_nominal_quota() -> None:
    bench = flat(queue("a", 4))
    assert (bench.free("a"), potential(bench, "a")) == (4 * CPU, 4)
    bench.hold("x", 3, "a")
    assert bench.free("a") == 1 * CPU


def test_limits_have_no_effect_without_cohort() -> None:
    bench = flat(queue("a", quota(4, borrowing=10, lending=0)))
    assert (bench.free("a"), potential(bench, "a")) == (4 * CPU, 4)


def test_queues_of_cohort_share_quota() -> None:
    bench = flat(queue("a", 4, cohort="all"), queue("b", 5, cohort="all"))
    bench.hold("x", 6, "a")
    assert (bench.free("a"), bench.free("b"), bench.free("all")) == (3 * CPU, 3 * CPU, 3 * CPU)


def test_cohort_adds_its_own_quota() -> None:
    bench = flat(cohort("all", 10), queue("a", 4, cohort="all"), queue("b", cohort="all"))
    assert potential(bench, "b") == 14
    bench.hold("x", 12, "b")
    assert bench.free("a") == 2 * CPU


def test_borrowing_limit_caps_usage() -> None:
    bench = flat(queue("a", quota(4, borrowing=2), cohort="all"), queue("b", 5, cohort="all"))
    assert potential(bench, "a") == 6
    bench.hold("x", 5, "a")
    assert (bench.free("a"), bench.free("b")) == (1 * CPU, 4 * CPU)


def test_zero_borrowing_limit_leaves_nominal_quota() -> None:
    bench = flat(queue("a", quota(4, borrowing=0), cohort="all"), queue("b", 5, cohort="all"))
    bench.hold("x", 8, "b")
    assert bench.free("a") == 1 * CPU


def test_borrowing_limit_adds_no_quota() -> None:
    bench = flat(queue("a", quota(4, borrowing=50), cohort="all"), queue("b", 5, cohort="all"))
    assert (bench.free("a"), potential(bench, "a")) == (9 * CPU, 9)


def test_quota_above_lending_limit_is_guaranteed() -> None:
    bench = flat(queue("a", quota(4, lending=1), cohort="all"), queue("b", 5, cohort="all"))
    assert (potential(bench, "a"), potential(bench, "b"), bench.free("all")) == (9, 6, 6 * CPU)
    bench.hold("x", 6, "b")
    assert (bench.free("a"), local_available(bench.node("a"), spot_cpu(bench))) == (3 * CPU, 3 * CPU)


def test_cohort_usage_excludes_guaranteed_part() -> None:
    bench = flat(queue("a", quota(4, lending=1), cohort="all"), queue("b", 5, cohort="all"))
    bench.hold("small", 3, "a")
    assert bench.used("all") == 0
    bench.hold("large", 2, "a")
    assert (bench.used("a"), bench.used("all")) == (5 * CPU, 2 * CPU)
    bench.snapshot.remove_holder("team/small")
    assert (bench.used("a"), bench.used("all")) == (2 * CPU, 0)


def test_lending_limit_above_nominal_quota_has_no_effect() -> None:
    bench = flat(queue("a", quota(4, lending=9), cohort="all"), queue("b", 5, cohort="all"))
    assert potential(bench, "b") == 9


def test_borrowing_and_lending_limits_apply_together() -> None:
    bench = flat(queue("a", quota(4, borrowing=1, lending=1), cohort="all"), queue("b", 5, cohort="all"))
    assert potential(bench, "a") == 5
    bench.hold("x", 6, "b")
    assert bench.free("a") == 3 * CPU
    bench.hold("y", 3, "a")
    assert bench.free("a") == 0


@pytest.mark.parametrize(("used", "free"), [(0, 5), (2, 3), (3, 2), (4, 1), (5, 0), (6, -1)])
def test_borrowing_limit_is_added_to_nominal_quota(used: int, free: int) -> None:
    bench = flat(queue("a", quota(4, borrowing=1, lending=1), cohort="all"), queue("b", 5, cohort="all"))
    bench.hold("x", used, "a")
    assert bench.free("a") == free * CPU


def test_subtree_quota_is_sum_of_deep_tree() -> None:
    bench = deep()
    fr = spot_cpu(bench)
    assert {n: bench.node(n).subtree_quota[fr] // CPU for n in ("root", "left", "team", "right", "a")} == {
        "root": 28,
        "left": 14,
        "team": 12,
        "right": 13,
        "a": 4,
    }
    assert {n: bench.node(n).height for n in ("a", "team", "left", "right", "root")} == {
        "a": 0,
        "team": 1,
        "left": 2,
        "right": 1,
        "root": 3,
    }


def test_all_queues_can_use_whole_tree_without_limits() -> None:
    bench = deep()
    assert {potential(bench, name) for name in ("a", "b", "c")} == {28}
    bench.hold("x", 20, "c")
    assert {bench.free(name) for name in ("a", "b", "c", "left", "root")} == {8 * CPU}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        pytest.param({"borrowing": 1}, {"a": 15, "b": 15, "c": 28}, id="subtree with small borrowing limit"),
        pytest.param({"lending": 0}, {"a": 28, "b": 28, "c": 14}, id="subtree that lends no quota"),
        pytest.param({"borrowing": 0, "lending": 5}, {"a": 14, "b": 14, "c": 19}, id="subtree that only lends"),
    ],
)
def test_limits_of_cohort_apply_to_all_descendants(limits: dict[str, int], expected: dict[str, int]) -> None:
    bench = deep()
    bench.put(cohort("left", quota(2, **limits), parent="root"))
    assert {name: potential(bench, name) for name in expected} == expected


def test_usage_above_guaranteed_part_propagates_to_ancestors() -> None:
    bench = deep()
    bench.put(cohort("left", quota(2, lending=4), parent="root"))
    bench.hold("x", 13, "a")
    used = {name: bench.used(name) // CPU for name in ("a", "team", "left", "root", "right")}
    assert used == {"a": 13, "team": 13, "left": 13, "root": 3, "right": 0}
    bench.snapshot.remove_holder("team/x")
    assert {bench.used(name) for name in used} == {0}


def test_reduced_quota_makes_available_quota_negative() -> None:
    bench = flat(queue("a", 4, cohort="all"), queue("b", 5, cohort="all"))
    bench.hold("x", 9, "a")
    bench.put(queue("b", 2, cohort="all"))
    assert (bench.free("a"), bench.free("b"), bench.free("all")) == (-3 * CPU, -3 * CPU, -3 * CPU)


def test_usage_above_borrowing_limit_affects_only_its_queue() -> None:
    bench = flat(queue("a", 4, cohort="all"), queue("b", 5, cohort="all"))
    bench.hold("x", 7, "a")
    bench.put(queue("a", quota(4, borrowing=1), cohort="all"))
    assert (bench.free("a"), bench.free("b")) == (-2 * CPU, 2 * CPU)


def test_moved_queue_keeps_usage() -> None:
    bench = flat(queue("a", 4, cohort="old"), queue("b", 5, cohort="new"))
    bench.hold("x", 3, "a")
    bench.put(queue("a", 4, cohort="new"))
    assert (bench.used("new"), bench.free("b"), "old" in bench.snapshot.cohorts) == (3 * CPU, 6 * CPU, False)


def test_borrowing_begins_above_subtree_quota() -> None:
    bench = deep()
    fr = spot_cpu(bench)
    bench.hold("x", 4, "a")
    node, team = bench.node("a"), bench.node("team")
    assert (is_borrowing_with(node, fr, 0), is_borrowing_with(node, fr, 1)) == (False, True)
    assert (is_borrowing_with(team, fr, 8 * CPU), is_borrowing_with(team, fr, 8 * CPU + 1)) == (False, True)
    assert is_within_nominal(node, (fr,))
    bench.hold("y", 1, "a")
    assert not is_within_nominal(node, (fr,))
    assert is_within_nominal(node, ())


def test_left_to_ask_returns_request_above_local_quota() -> None:
    bench = flat(queue("a", quota(4, lending=1), cohort="all"), queue("b", 5, cohort="all"))
    fr = spot_cpu(bench)
    assert request_to_parent(bench.node("a"), ((fr, 4 * CPU),)) == ((fr, 1 * CPU),)
    assert request_to_parent(bench.node("a"), ((fr, 5 * CPU),)) == ((fr, 2 * CPU),)
    assert [fits_in_quota(bench.node("a"), ((fr, cpus * CPU),)) for cpus in (4, 5)] == [True, False]
    bench.hold("x", 2, "a")
    assert request_to_parent(bench.node("a"), ((fr, 1 * CPU),)) == ((fr, 0),)


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [(4, (0, True)), (5, (1, True)), (12, (1, True)), (13, (2, True)), (14, (2, True)), (15, (3, False))],
)
def test_lowest_fitting_height_is_found(cpu: int, expected: tuple[int, bool]) -> None:
    bench = deep()
    assert lowest_fitting_height(bench.node("a"), spot_cpu(bench), cpu * CPU) == expected


def test_height_is_that_of_root_if_request_fits_nowhere() -> None:
    bench = deep()
    assert lowest_fitting_height(bench.node("c"), spot_cpu(bench), 50 * CPU) == (3, False)


def test_height_is_zero_for_queue_without_cohort() -> None:
    bench = flat(queue("a", 4))
    assert lowest_fitting_height(bench.node("a"), spot_cpu(bench), 9 * CPU) == (0, False)


def test_guaranteed_part_below_is_subtracted_from_request_to_parent() -> None:
    bench = SchedulerBench(
        cohort("root", 2),
        cohort("team", quota(3, lending=1), parent="root"),
        queue("a", quota(4, lending=0), cohort="team"),
        queue("b", 1, cohort="team"),
    )
    fr = spot_cpu(bench)
    assert lowest_fitting_height(bench.node("a"), fr, 8 * CPU) == (1, True)
    bench.hold("x", 2, "b")
    assert lowest_fitting_height(bench.node("a"), fr, 8 * CPU) == (2, False)


def test_usage_is_released_in_different_amounts() -> None:
    bench = flat(queue("a", quota(4, lending=1), cohort="all"), queue("b", 5, cohort="all"))
    fr = spot_cpu(bench)
    for delta in (2, 3, -1, -3, 4, -5):
        change_usage(bench.node("a"), ((fr, delta * CPU),), 1)
        assert bench.used("all") == max(0, bench.used("a") - 3 * CPU)
    assert bench.used("a") == 0


def test_cohort_without_children_has_height_zero() -> None:
    bench = SchedulerBench(cohort("empty", 3), cohort("parent", 1, parent="top"))
    assert (bench.node("empty").height, bench.node("top").height) == (0, 1)


def test_usage_is_recomputed_when_tree_changes() -> None:
    bench = flat(queue("a", quota(4, lending=1), cohort="all"), queue("b", 5, cohort="all"))
    bench.hold("x", 5, "a")
    bench.hold("y", 1, "b")
    assert bench.used("all") == 3 * CPU
    bench.put(queue("c", 1, cohort="all"))
    assert (bench.used("a"), bench.used("all"), bench.free("b")) == (5 * CPU, 3 * CPU, 4 * CPU)
