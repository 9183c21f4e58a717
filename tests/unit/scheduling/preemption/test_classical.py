"""Whom a Workload preempts: candidates, their order, and who is spared in the end."""

from typing import Any

import pytest

import make
from yard import Yard, cohort, group, preemption, queue, quota, workload

SHORT = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor spot, {0} more needed"
BORROW = {"policy": "LowerPriority"}


def alone(within: str = "LowerPriority", cpu: int = 4) -> Yard:
    """One ClusterQueue without a cohort."""
    return Yard(queue("cq", cpu, preemption=preemption(within)))


def shared(own: Any = 4, **rules: Any) -> Yard:
    """A cq with these rules and another queue of 4 cpu in one cohort."""
    return Yard(queue("cq", own, cohort="all", preemption=preemption(**rules)), queue("other", 4, cohort="all"))


# Within the ClusterQueue.


@pytest.mark.parametrize(
    ("policy", "priority", "created", "victims"),
    [
        pytest.param("Never", 9, 0, [], id="never"),
        pytest.param("LowerPriority", 1, 0, ["x"], id="lower priority"),
        pytest.param("LowerPriority", 0, -5, [], id="equal priority is not lower"),
        pytest.param("LowerOrNewerEqualPriority", 0, -5, ["x"], id="equal priority and newer"),
        pytest.param("LowerOrNewerEqualPriority", 0, 0, [], id="equal priority of the same moment"),
        pytest.param("LowerOrNewerEqualPriority", 0, 5, [], id="equal priority and older"),
        pytest.param("LowerOrNewerEqualPriority", 1, 5, ["x"], id="lower priority, whatever its age"),
        pytest.param("LowerOrNewerEqualPriority", -1, -5, [], id="higher priority"),
    ],
)
def test_the_policy_says_who_may_go(policy: str, priority: int, created: int, victims: list[str]) -> None:
    yard = alone(policy)
    yard.hold("x", 4)
    assert yard.victims(workload(cpu=1, priority=priority, created=created)) == victims


def test_a_preemption_tells_what_was_missing_and_how_many_go() -> None:
    yard = alone()
    yard.hold("x", 2, priority=-1)
    yard.hold("y", 2, priority=-2)
    decision = yard.preemption(workload(cpu=3))
    assert decision.why.reason == "WaitingForPreemptedWorkloads"
    assert decision.why.message == SHORT.format(3) + ". Pending the preemption of 2 workload(s)"


def test_without_enough_victims_nobody_goes() -> None:
    yard = alone()
    yard.hold("weak", 2, priority=-1)
    yard.hold("strong", 2, priority=9)
    assert yard.decide(workload(cpu=3)) == ["wl waits (WaitingForQuota): " + SHORT.format(3)]


def test_no_more_go_than_needed() -> None:
    yard = alone()
    for number in range(4):
        yard.hold(f"x{number}", 1, priority=-1, since=number)
    assert yard.victims(workload(cpu=2)) == ["x3", "x2"]


def test_only_users_of_the_flavor_go() -> None:
    groups = [group(one={"cpu": 4}, two={"cpu": 4})]
    yard = Yard(queue("cq", groups=groups, preemption=preemption("LowerPriority")))
    yard.hold("other-flavor", 4, flavor="two", priority=-9)
    yard.hold("same-flavor", 4, flavor="one", priority=-1)
    yard.put(queue("cq", groups=[group(one={"cpu": 4}, two={"cpu": 0})], preemption=preemption("LowerPriority")))
    assert yard.victims(workload(cpu=2)) == ["same-flavor"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param({"evicted": True, "priority": -1}, {"priority": -9}, id="one that goes already"),
        pytest.param({"priority": -2}, {"priority": -1, "since": 9}, id="lower priority"),
        pytest.param({"priority": -1, "since": 9}, {"priority": -1, "since": 5}, id="quota reserved later"),
        pytest.param({"priority": -1}, {"priority": -1}, id="smaller uid"),
    ],
)
def test_candidates_go_in_order(one: dict[str, Any], two: dict[str, Any]) -> None:
    yard = alone()
    yard.hold("b", 2, **two)
    yard.hold("a", 2, **one)
    assert yard.victims(workload(cpu=2)) == ["a"]


def test_those_found_before_the_one_that_makes_room_are_spared() -> None:
    yard = alone()
    yard.hold("small", 1, priority=-9)
    yard.hold("large", 3, priority=-1)
    assert yard.victims(workload(cpu=3)) == ["large"]


def test_who_is_spared_leaves_its_place_to_the_last() -> None:
    yard = alone(cpu=10)
    yard.hold("a", 3, priority=-9)
    yard.hold("b", 1, priority=-8)
    yard.hold("c", 2, priority=-7)
    yard.hold("d", 4, priority=-6)
    assert yard.victims(workload(cpu=7)) == ["a", "d"]
    assert yard.victims(workload(cpu=9)) == ["a", "d", "c"]


def test_all_pod_sets_together_must_fit() -> None:
    yard = Yard(
        queue("cq", groups=[group(spot={"cpu": 4}), group(v100={"gpu": 2})], preemption=preemption("LowerPriority"))
    )
    yard.hold("x", 0, usage={("spot", "cpu"): 4000}, priority=-1)
    yard.hold("y", 0, usage={("v100", "gpu"): 2}, priority=9)
    obj = workload(pod_sets=[make.pod_set(requests={"cpu": "1", "gpu": 1})])
    assert yard.victims(obj) == []
    yard.hold("y", 0, usage={("v100", "gpu"): 2}, priority=-2)
    assert yard.victims(obj) == ["y", "x"]


# Reclaiming in the cohort.


@pytest.mark.parametrize(
    ("policy", "priority", "victims"),
    [
        pytest.param("Never", 9, [], id="never"),
        pytest.param("LowerPriority", 1, ["x"], id="lower priority"),
        pytest.param("LowerPriority", 0, [], id="equal priority"),
        pytest.param("Any", -9, ["x"], id="any priority"),
    ],
)
def test_own_quota_is_reclaimed_from_borrowers(policy: str, priority: int, victims: list[str]) -> None:
    yard = shared(reclaim=policy)
    yard.hold("x", 8, "other")
    assert yard.victims(workload(cpu=4, priority=priority)) == victims


def test_reclaiming_takes_back_only_what_was_lent() -> None:
    yard = shared(reclaim="Any")
    for name in ("a", "b", "c"):
        yard.hold(name, 2, "other")
    assert yard.decide(workload(cpu=4)) == ["wl preempts a (InCohortReclamation)"]
    assert yard.victims(workload(cpu=5)) == []


def test_a_queue_within_its_quota_is_left_alone() -> None:
    yard = shared(reclaim="Any")
    yard.put(queue("third", 0, cohort="all"))
    yard.hold("within", 4, "other", priority=-9)
    yard.hold("borrows", 4, "third", priority=9)
    assert yard.victims(workload(cpu=4)) == ["borrows"]


def test_an_inactive_queue_keeps_its_workloads_though_it_borrows() -> None:
    yard = shared(reclaim="Any")
    yard.put(queue("third", 0, cohort="all"))
    yard.hold("stopped", 4, "other", priority=-9)
    yard.hold("also-stopped", 2, "other", priority=-9)
    yard.hold("borrows", 2, "third", priority=9)
    yard.snapshot.queues["other"].active = False
    assert yard.victims(workload(cpu=2)) == ["borrows"]
    assert yard.victims(workload(cpu=4)) == []


def test_a_queue_that_falls_within_its_quota_keeps_the_rest() -> None:
    yard = shared(reclaim="Any")
    yard.put(queue("third", 0, cohort="all"))
    yard.hold("a", 3, "other", priority=-9)
    yard.hold("b", 3, "other", priority=-8)
    yard.hold("c", 2, "third", priority=5)
    assert yard.victims(workload(cpu=4)) == ["a", "c"]


def test_others_go_before_the_own() -> None:
    yard = shared(within="LowerPriority", reclaim="LowerPriority")
    yard.hold("own", 2, priority=-9)
    yard.hold("theirs", 6, "other", priority=-1)
    assert yard.decide(workload(cpu=2)) == ["wl preempts theirs (InCohortReclamation)"]


def test_the_own_may_go_where_reclaiming_is_not_enough() -> None:
    yard = shared(within="LowerPriority", reclaim="LowerPriority")
    yard.hold("own", 2, priority=-1)
    yard.hold("theirs", 2, "other", priority=-1)
    yard.hold("strong", 4, "other", priority=9)
    assert yard.decide(workload(cpu=3)) == ["wl preempts theirs (InCohortReclamation), own (InClusterQueue)"]


def test_who_borrows_already_reclaims_from_nobody() -> None:
    yard = shared(within="LowerPriority", reclaim="Any")
    yard.hold("own", 4, priority=-1)
    yard.hold("theirs", 4, "other", priority=-9)
    yard.put(queue("third", 0, cohort="all"))
    assert yard.decide(workload(cpu=2)) == ["wl preempts own (InClusterQueue)"]


def test_without_a_cohort_there_is_nobody_else() -> None:
    yard = Yard(queue("cq", 4, preemption=preemption(reclaim="Any")))
    yard.hold("x", 4, priority=-9)
    assert yard.victims(workload()) == []


# Preemption while borrowing.


@pytest.mark.parametrize(
    ("rules", "priority", "victims"),
    [
        pytest.param(None, 5, [], id="not allowed"),
        pytest.param({"policy": "Never"}, 5, [], id="never"),
        pytest.param(BORROW, 5, ["x"], id="lower priority"),
        pytest.param(BORROW, 0, [], id="equal priority"),
        pytest.param({**BORROW, "maxPriorityThreshold": 0}, 5, ["x"], id="at the threshold"),
        pytest.param({**BORROW, "maxPriorityThreshold": -1}, 5, [], id="above the threshold"),
    ],
)
def test_who_borrows_may_preempt_up_to_the_threshold(
    rules: dict[str, Any] | None, priority: int, victims: list[str]
) -> None:
    yard = shared(own=2, reclaim="LowerPriority", borrow=rules)
    yard.put(queue("third", 2, cohort="all"))
    yard.hold("x", 8, "other")
    assert yard.victims(workload(cpu=3, priority=priority)) == victims


def test_a_preemption_while_borrowing_has_a_reason_of_its_own() -> None:
    yard = shared(own=2, reclaim="Any", borrow=BORROW)
    yard.hold("x", 6, "other", priority=-1)
    assert yard.decide(workload(cpu=3)) == ["wl preempts x (InCohortReclaimWhileBorrowing)"]


def test_above_the_threshold_the_own_quota_may_still_be_reclaimed() -> None:
    yard = shared(reclaim="Any", borrow={**BORROW, "maxPriorityThreshold": -5})
    yard.hold("x", 8, "other", priority=-1)
    assert yard.decide(workload(cpu=3)) == ["wl preempts x (InCohortReclamation)"]


def test_with_borrowing_fewer_candidates_come_first() -> None:
    yard = Yard(
        cohort("all"),
        queue("cq", 2, cohort="all", preemption=preemption("Never", "Any", {**BORROW, "maxPriorityThreshold": -5})),
        queue("other", 4, cohort="all"),
        queue("third", 0, cohort="all"),
    )
    yard.hold("above", 3, "third", priority=-1)
    yard.hold("below", 3, "third", priority=-9)
    assert yard.decide(workload(cpu=3)) == ["wl preempts below (InCohortReclaimWhileBorrowing)"]


# Trees.


def tree(**rules: Any) -> Yard:
    """Root (2) > team (2) > cq (2), sibling (2); root > rival (0)."""
    return Yard(
        cohort("root", 2),
        cohort("team", 2, parent="root"),
        queue("cq", 2, cohort="team", preemption=preemption(**rules)),
        queue("sibling", 2, cohort="team"),
        queue("rival", 0, cohort="root"),
    )


def test_the_nearer_quota_may_be_reclaimed_while_borrowing() -> None:
    yard = tree(reclaim="Any")
    yard.hold("x", 8, "rival", priority=9)
    assert yard.decide(workload(cpu=6)) == ["wl preempts x (InCohortReclamation)"]


def test_quota_as_near_to_others_is_not() -> None:
    yard = tree(reclaim="Any")
    yard.hold("x", 8, "rival", priority=9)
    assert yard.victims(workload(cpu=7)) == []


def test_nearer_candidates_come_first_whatever_their_priority() -> None:
    yard = tree(reclaim="LowerPriority", borrow=BORROW)
    yard.hold("near", 3, "sibling", priority=-9)
    yard.hold("far", 5, "rival", priority=-1)
    assert yard.decide(workload(cpu=3)) == ["wl preempts far (InCohortReclamation)"]


def test_a_subtree_within_its_quota_is_not_looked_into() -> None:
    yard = Yard(
        cohort("root", 0),
        cohort("rich", 6, parent="root"),
        queue("cq", 4, cohort="root", preemption=preemption(reclaim="Any")),
        queue("member", 0, cohort="rich"),
        queue("rival", 0, cohort="root"),
    )
    yard.hold("within", 6, "member", priority=-9)
    yard.hold("borrows", 4, "rival", priority=9)
    assert yard.victims(workload(cpu=4)) == ["borrows"]


def test_a_cohort_that_falls_within_its_quota_keeps_the_rest() -> None:
    yard = Yard(
        cohort("root", 0),
        cohort("rich", 4, parent="root"),
        queue("cq", 4, cohort="root", preemption=preemption(reclaim="Any")),
        queue("member", 0, cohort="rich"),
        queue("rival", 0, cohort="root"),
    )
    yard.hold("a", 3, "member", priority=-9)
    yard.hold("b", 3, "member", priority=-8)
    yard.hold("c", 2, "rival", priority=5)
    assert yard.victims(workload(cpu=4)) == ["a", "c"]


def test_nearer_and_farther_candidates_are_tried_with_borrowing_first() -> None:
    yard = tree(within="LowerPriority", reclaim="Any")
    yard.hold("own", 1, priority=-1)
    yard.hold("near", 2, "sibling", priority=-9)
    yard.hold("far", 5, "rival", priority=-1)
    assert yard.decide(workload(cpu=3)) == ["wl preempts far (InCohortReclamation)"]


def test_a_debt_is_paid_by_preemption_too() -> None:
    yard = alone()
    yard.hold("a", 2, priority=-2)
    yard.hold("b", 2, priority=-1)
    yard.put(queue("cq", quota(3), preemption=preemption("LowerPriority")))
    assert yard.victims(workload(cpu=2)) == ["a", "b"]


def test_who_is_at_its_quota_reclaims_nothing_even_in_debt() -> None:
    yard = shared(within="LowerPriority", reclaim="Any")
    yard.put(cohort("all", 2))
    yard.hold("own", 4, priority=-1)
    yard.hold("theirs", 6, "other", priority=-1)
    yard.put(cohort("all", 0))
    assert yard.victims(workload(cpu=3)) == []
    assert yard.victims(workload(cpu=2)) == ["own"]


def test_borrowing_is_tried_before_more_victims() -> None:
    rules = preemption("LowerPriority", "Any", BORROW)
    yard = Yard(cohort("all", 1), queue("cq", 4, cohort="all", preemption=rules), queue("third", 0, cohort="all"))
    yard.hold("own", 2, priority=-9)
    yard.hold("below", 3, "third", priority=-9)
    assert yard.decide(workload(cpu=3)) == ["wl preempts below (InCohortReclaimWhileBorrowing)"]
