"""Preemption under fair sharing: whom it takes from, by which rule, and when fairness forbids it."""

from collections.abc import Sequence
from typing import Any

import pytest

from batchyard.api.meta import Obj
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.preemption.fair import FairSharingStrategy
from yard import Yard, cohort, preemption, queue, workload

ANY = preemption("LowerPriority", "Any")


def fair(*objects: Obj) -> Yard:
    return Yard(*objects, fair_sharing=True)


def three(**weights: Any) -> Yard:
    """Queues a, b and c of 3 cpu each in one cohort; a may preempt."""
    given = {name: {"weight": weight} for name, weight in weights.items()}
    return fair(
        queue("a", 3, cohort="all", preemption=ANY, **given.get("a", {})),
        queue("b", 3, cohort="all", **given.get("b", {})),
        queue("c", 3, cohort="all", **given.get("c", {})),
    )


def holds(yard: Yard, queue: str, *cpus: int, priority: int = 0) -> None:
    """Workloads of a queue, named b0, b1 and so on."""
    for number, cpu in enumerate(cpus):
        yard.hold(f"{queue}{number}", cpu, queue, priority=priority, since=-number)


def asks(cpu: int, **fields: Any) -> Obj:
    return workload(cpu=cpu, queue="a", **fields)


def test_own_quota_is_reclaimed_whatever_the_shares() -> None:
    yard = three()
    holds(yard, "b", 5)
    holds(yard, "c", 4)
    assert yard.decide(asks(3)) == ["wl preempts b0 (InCohortReclamation)"]


def test_the_queue_with_the_largest_share_gives_first() -> None:
    yard = three()
    holds(yard, "b", 1, 1, 1, 1)
    holds(yard, "c", 1, 1, 1, 1, 1)
    assert yard.victims(asks(1)) == ["c0"]
    assert yard.victims(asks(2)) == ["c0", "b0"]


def test_an_inactive_queue_keeps_its_workloads() -> None:
    yard = three()
    holds(yard, "b", 1, 1, 1, 1)
    holds(yard, "c", 1, 1, 1, 1, 1)
    yard.snapshot.queues["c"].active = False
    assert yard.victims(asks(1)) == ["b0"]


def test_who_borrows_takes_only_from_the_less_fair() -> None:
    yard = three()
    holds(yard, "a", 3)
    holds(yard, "b", 1, 1, 1, 1, 1, 1)
    assert yard.decide(asks(1)) == ["wl preempts b0 (InCohortFairSharing)"]
    assert yard.victims(asks(2)) == []


def test_a_share_after_is_compared_with_the_share_left() -> None:
    yard = three()
    holds(yard, "a", 3)
    holds(yard, "b", 2, 2, 2)
    assert yard.victims(asks(1)) == ["b0"]
    assert yard.victims(asks(3)) == []


def test_by_the_second_rule_the_share_before_counts() -> None:
    yard = three()
    holds(yard, "a", 3)
    holds(yard, "b", 6)
    assert yard.decide(asks(2)) == ["wl preempts b0 (InCohortFairSharing)"]
    assert yard.victims(asks(3)) == []


def test_the_second_rule_takes_one_of_a_queue() -> None:
    yard = fair(
        queue("a", 0, cohort="all", preemption=ANY),
        queue("b", 0, cohort="all"),
        queue("lender", 10, cohort="all"),
    )
    holds(yard, "b", 5, 5)
    assert yard.victims(asks(5)) == ["b0"]
    assert yard.victims(asks(6)) == []


def by(strategy: FairSharingStrategy, cpus: Sequence[int], own: int = 3) -> Yard:
    """Queue a has so much and b has the rest; one rule alone counts."""
    yard = three()
    yard.policy = SchedulingPolicy(fair_sharing=True, strategies=(strategy,))
    holds(yard, "a", own)
    holds(yard, "b", *cpus)
    return yard


def test_either_rule_may_be_the_only_one() -> None:
    assert by(FairSharingStrategy.FINAL_SHARE, [6]).victims(asks(2)) == []
    assert by(FairSharingStrategy.INITIAL_SHARE, [6]).decide(asks(2)) == ["wl preempts b0 (InCohortFairSharing)"]
    assert by(FairSharingStrategy.FINAL_SHARE, [5, 1]).victims(asks(1)) == ["b1"]
    assert by(FairSharingStrategy.INITIAL_SHARE, [5, 1]).victims(asks(1)) == ["b0"]


def test_the_share_before_as_the_only_rule_takes_several_of_a_queue() -> None:
    assert by(FairSharingStrategy.INITIAL_SHARE, [1] * 7, own=2).victims(asks(2)) == ["b0", "b1"]
    assert by(FairSharingStrategy.INITIAL_SHARE, [1] * 6).victims(asks(2)) == []


def test_the_first_rule_goes_on_to_a_smaller_candidate() -> None:
    yard = three()
    holds(yard, "a", 3)
    holds(yard, "b", 4, 1, 1)
    assert yard.victims(asks(1)) == ["b1"]


def test_own_candidates_go_when_their_queue_is_the_least_fair() -> None:
    yard = three()
    holds(yard, "a", 5, priority=-1)
    holds(yard, "b", 4)
    assert yard.decide(asks(1)) == ["wl preempts a0 (InClusterQueue)"]


def test_within_the_own_queue_only_its_policy_counts() -> None:
    yard = fair(queue("a", 3, preemption=preemption("LowerPriority", "Never")))
    holds(yard, "a", 2, 1, priority=-1)
    assert yard.decide(asks(3)) == ["wl preempts a0 (InClusterQueue), a1 (InClusterQueue)"]
    assert yard.victims(asks(4)) == []


def test_without_reclaiming_nobody_else_goes() -> None:
    yard = three()
    yard.put(queue("a", 3, cohort="all", preemption=preemption("LowerPriority", "Never")))
    holds(yard, "b", 9)
    assert yard.victims(asks(1)) == []


def test_lower_priority_bounds_whom_fairness_may_take() -> None:
    yard = three()
    yard.put(queue("a", 3, cohort="all", preemption=preemption("Never", "LowerPriority")))
    holds(yard, "b", 9)
    assert yard.victims(asks(1)) == []
    assert yard.victims(asks(1, priority=1)) == ["b0"]


def test_a_larger_weight_may_have_more() -> None:
    yard = three(a=2)
    holds(yard, "a", 3)
    holds(yard, "b", 1, 1, 1, 1, 1, 1)
    assert yard.victims(asks(2)) == ["b0", "b1"]
    assert yard.victims(asks(3)) == []


def test_no_weight_may_only_have_what_is_its_own() -> None:
    yard = three(a=0)
    holds(yard, "b", 1, 1, 1, 1, 1, 1)
    holds(yard, "c", 3)
    assert yard.victims(asks(3)) == ["b0", "b1", "b2"]
    assert yard.victims(asks(4)) == []


def test_no_weight_gives_before_all_others() -> None:
    yard = three(b=0)
    holds(yard, "b", 1, 1, 1, 1)
    holds(yard, "c", 1, 1, 1, 1, 1)
    assert yard.victims(asks(1)) == ["b0"]


def test_among_those_without_weight_ratios_count() -> None:
    yard = three(a=0, b=0)
    holds(yard, "a", 3)
    holds(yard, "b", 1, 1, 1, 1, 1, 1)
    assert yard.victims(asks(1)) == ["b0"]
    assert yard.victims(asks(3)) == []


@pytest.mark.parametrize(("b", "c", "victim"), [(5, -5, "c0"), (-5, 5, "b0"), (0, 0, "b0")])
def test_of_equal_shares_the_better_candidate_goes(b: int, c: int, victim: str) -> None:
    yard = three()
    holds(yard, "a", 1)
    holds(yard, "c", 3, 1, priority=c)
    holds(yard, "b", 3, 1, priority=b)
    assert yard.victims(asks(1)) == [victim]


def test_who_is_found_and_not_needed_is_spared() -> None:
    yard = three()
    yard.hold("small", 1, "b", priority=-9)
    yard.hold("large", 4, "b", priority=-1)
    holds(yard, "c", 4)
    assert yard.victims(asks(3)) == ["large"]


def nested() -> Yard:
    """Root (4) > left (2) > a, b (0 each); root > right (2) > c, d (0 each)."""
    return fair(
        cohort("root", 4),
        cohort("left", 2, parent="root"),
        cohort("right", 2, parent="root"),
        queue("a", 0, cohort="left", preemption=ANY),
        queue("b", 0, cohort="left"),
        queue("c", 0, cohort="right"),
        queue("d", 0, cohort="right"),
    )


def test_shares_are_compared_where_the_branches_part() -> None:
    yard = nested()
    holds(yard, "b", 2)
    holds(yard, "c", 1, 1, 1)
    holds(yard, "d", 1, 1, 1)
    assert yard.decide(asks(1)) == ["wl preempts c0 (InCohortFairSharing)"]


def test_in_the_branch_that_gives_the_queue_of_largest_share_is_taken_from() -> None:
    yard = nested()
    holds(yard, "b", 2)
    holds(yard, "c", 1, 1)
    holds(yard, "d", 1, 1, 1, 1)
    assert yard.victims(asks(1)) == ["d0"]


def test_a_branch_within_its_quota_is_left_alone() -> None:
    yard = nested()
    holds(yard, "c", 2)
    holds(yard, "b", 3, 3)
    assert yard.victims(asks(2)) == ["b0"]


@pytest.mark.parametrize(("cpu", "victims"), [(1, ["b0"]), (2, ["b0", "b1"]), (3, [])])
def test_within_the_own_branch_siblings_balance(cpu: int, victims: list[str]) -> None:
    yard = nested()
    holds(yard, "b", 1, 1, 1, 1, 1)
    holds(yard, "c", 3)
    assert yard.victims(asks(cpu)) == victims


def beside_a_cohort(cpu: int) -> Yard:
    """A queue that reclaims, beside another one and a Cohort that both borrow from so much cpu."""
    return fair(
        cohort("all", cpu),
        cohort("team", 0, parent="all"),
        queue("a", 2, cohort="all", preemption=ANY),
        queue("b", 0, cohort="all"),
        queue("member", 0, cohort="team"),
    )


def test_of_a_cohort_and_a_queue_of_equal_share_the_cohort_gives() -> None:
    yard = beside_a_cohort(6)
    yard.hold("theirs", 4, "b", priority=-9)
    yard.hold("members", 4, "member", priority=9)
    assert yard.victims(asks(2)) == ["members"]


def test_reclaiming_does_not_reach_the_own_queue() -> None:
    yard = three()
    yard.put(queue("a", 3, cohort="all", preemption=preemption("Never", "Any")))
    holds(yard, "a", 5, priority=-1)
    holds(yard, "b", 4)
    assert yard.victims(asks(1)) == []


def test_a_queue_of_larger_share_gives_before_a_cohort() -> None:
    yard = beside_a_cohort(7)
    yard.hold("theirs", 5, "b", priority=9)
    yard.hold("members", 4, "member", priority=-9)
    assert yard.victims(asks(2)) == ["theirs"]


def test_the_own_branch_is_searched_though_it_borrows_nothing() -> None:
    yard = fair(
        cohort("root", 0),
        cohort("left", 4, parent="root"),
        cohort("right", 2, parent="root"),
        queue("a", 0, cohort="left", preemption=preemption("Never", "LowerPriority")),
        queue("b", 0, cohort="left"),
        queue("c", 0, cohort="right"),
    )
    holds(yard, "b", 1, 1)
    holds(yard, "c", 4, priority=9)
    assert yard.victims(asks(1, priority=5)) == ["b0"]
