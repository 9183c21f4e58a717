"""Classical preemption: candidates, their order, and the candidates that are dropped in the end."""

from typing import Any

import pytest

import make
from yard import SchedulerBench, cohort, group, preemption, queue, quota, workload

SHORT = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor spot, {0} more needed"
BORROW = {"policy": "LowerPriority"}


def single_queue(within: str = "LowerPriority", cpu: int = 4) -> SchedulerBench:
    """One ClusterQueue without a cohort."""
    return SchedulerBench(queue("cq", cpu, preemption=preemption(within)))


def shared_cohort(own: Any = 4, **rules: Any) -> SchedulerBench:
    """A ClusterQueue `cq` with these rules and another queue of 4 cpu in one cohort."""
    return SchedulerBench(
        queue("cq", own, cohort="all", preemption=preemption(**rules)), queue("other", 4, cohort="all")
    )


# Within the ClusterQueue.


@pytest.mark.parametrize(
    ("policy", "priority", "created", "victims"),
    [
        pytest.param("Never", 9, 0, [], id="never"),
        pytest.param("LowerPriority", 1, 0, ["x"], id="lower priority"),
        pytest.param("LowerPriority", 0, -5, [], id="equal priority is not lower"),
        pytest.param("LowerOrNewerEqualPriority", 0, -5, ["x"], id="equal priority and newer"),
        pytest.param("LowerOrNewerEqualPriority", 0, 0, [], id="equal priority and same age"),
        pytest.param("LowerOrNewerEqualPriority", 0, 5, [], id="equal priority and older"),
        pytest.param("LowerOrNewerEqualPriority", 1, 5, ["x"], id="lower priority, any age"),
        pytest.param("LowerOrNewerEqualPriority", -1, -5, [], id="higher priority"),
    ],
)
def test_within_cluster_queue_policy_selects_victims(
    policy: str, priority: int, created: int, victims: list[str]
) -> None:
    bench = single_queue(policy)
    bench.hold("x", 4)
    assert bench.victims(workload(cpu=1, priority=priority, created=created)) == victims


def test_preemption_message_reports_missing_quota_and_victim_count() -> None:
    bench = single_queue()
    bench.hold("x", 2, priority=-1)
    bench.hold("y", 2, priority=-2)
    decision = bench.preemption(workload(cpu=3))
    assert decision.why.reason == "WaitingForPreemptedWorkloads"
    assert decision.why.message == SHORT.format(3) + ". Pending the preemption of 2 workload(s)"


def test_workload_waits_without_enough_victims() -> None:
    bench = single_queue()
    bench.hold("weak", 2, priority=-1)
    bench.hold("strong", 2, priority=9)
    assert bench.decide(workload(cpu=3)) == ["wl waits (WaitingForQuota): " + SHORT.format(3)]


def test_preemption_evicts_no_more_workloads_than_needed() -> None:
    bench = single_queue()
    for number in range(4):
        bench.hold(f"x{number}", 1, priority=-1, since=number)
    assert bench.victims(workload(cpu=2)) == ["x3", "x2"]


def test_only_workloads_on_same_flavor_are_preempted() -> None:
    groups = [group(one={"cpu": 4}, two={"cpu": 4})]
    bench = SchedulerBench(queue("cq", groups=groups, preemption=preemption("LowerPriority")))
    bench.hold("other-flavor", 4, flavor="two", priority=-9)
    bench.hold("same-flavor", 4, flavor="one", priority=-1)
    bench.put(queue("cq", groups=[group(one={"cpu": 4}, two={"cpu": 0})], preemption=preemption("LowerPriority")))
    assert bench.victims(workload(cpu=2)) == ["same-flavor"]


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param({"evicted": True, "priority": -1}, {"priority": -9}, id="already evicted"),
        pytest.param({"priority": -2}, {"priority": -1, "since": 9}, id="lower priority"),
        pytest.param({"priority": -1, "since": 9}, {"priority": -1, "since": 5}, id="quota reserved later"),
        pytest.param({"priority": -1}, {"priority": -1}, id="smaller uid"),
    ],
)
def test_candidates_are_sorted_by_eviction_priority_reservation_and_uid(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    bench = single_queue()
    bench.hold("b", 2, **two)
    bench.hold("a", 2, **one)
    assert bench.victims(workload(cpu=2)) == ["a"]


def test_superfluous_earlier_candidates_are_dropped() -> None:
    bench = single_queue()
    bench.hold("small", 1, priority=-9)
    bench.hold("large", 3, priority=-1)
    assert bench.victims(workload(cpu=3)) == ["large"]


def test_last_candidate_replaces_dropped_candidate() -> None:
    bench = single_queue(cpu=10)
    bench.hold("a", 3, priority=-9)
    bench.hold("b", 1, priority=-8)
    bench.hold("c", 2, priority=-7)
    bench.hold("d", 4, priority=-6)
    assert bench.victims(workload(cpu=7)) == ["a", "d"]
    assert bench.victims(workload(cpu=9)) == ["a", "d", "c"]


def test_preemption_frees_all_resources_of_pod_set() -> None:
    bench = SchedulerBench(
        queue("cq", groups=[group(spot={"cpu": 4}), group(v100={"gpu": 2})], preemption=preemption("LowerPriority"))
    )
    bench.hold("x", 0, usage={("spot", "cpu"): 4000}, priority=-1)
    bench.hold("y", 0, usage={("v100", "gpu"): 2}, priority=9)
    obj = workload(pod_sets=[make.pod_set(requests={"cpu": "1", "gpu": 1})])
    assert bench.victims(obj) == []
    bench.hold("y", 0, usage={("v100", "gpu"): 2}, priority=-2)
    assert bench.victims(obj) == ["y", "x"]


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
def test_reclaim_policy_selects_victims_in_borrowing_queue(policy: str, priority: int, victims: list[str]) -> None:
    bench = shared_cohort(reclaim=policy)
    bench.hold("x", 8, "other")
    assert bench.victims(workload(cpu=4, priority=priority)) == victims


def test_reclamation_preempts_only_borrowed_quota() -> None:
    bench = shared_cohort(reclaim="Any")
    for name in ("a", "b", "c"):
        bench.hold(name, 2, "other")
    assert bench.decide(workload(cpu=4)) == ["wl preempts a (InCohortReclamation)"]
    assert bench.victims(workload(cpu=5)) == []


def test_reclamation_skips_queue_within_nominal_quota() -> None:
    bench = shared_cohort(reclaim="Any")
    bench.put(queue("third", 0, cohort="all"))
    bench.hold("within", 4, "other", priority=-9)
    bench.hold("borrows", 4, "third", priority=9)
    assert bench.victims(workload(cpu=4)) == ["borrows"]


def test_reclamation_skips_inactive_borrowing_queue() -> None:
    bench = shared_cohort(reclaim="Any")
    bench.put(queue("third", 0, cohort="all"))
    bench.hold("stopped", 4, "other", priority=-9)
    bench.hold("also-stopped", 2, "other", priority=-9)
    bench.hold("borrows", 2, "third", priority=9)
    bench.snapshot.queues["other"].active = False
    assert bench.victims(workload(cpu=2)) == ["borrows"]
    assert bench.victims(workload(cpu=4)) == []


def test_reclamation_stops_when_queue_is_within_quota() -> None:
    bench = shared_cohort(reclaim="Any")
    bench.put(queue("third", 0, cohort="all"))
    bench.hold("a", 3, "other", priority=-9)
    bench.hold("b", 3, "other", priority=-8)
    bench.hold("c", 2, "third", priority=5)
    assert bench.victims(workload(cpu=4)) == ["a", "c"]


def test_workloads_of_other_queues_are_preempted_first() -> None:
    bench = shared_cohort(within="LowerPriority", reclaim="LowerPriority")
    bench.hold("own", 2, priority=-9)
    bench.hold("theirs", 6, "other", priority=-1)
    assert bench.decide(workload(cpu=2)) == ["wl preempts theirs (InCohortReclamation)"]


def test_own_workloads_are_preempted_if_reclamation_is_insufficient() -> None:
    bench = shared_cohort(within="LowerPriority", reclaim="LowerPriority")
    bench.hold("own", 2, priority=-1)
    bench.hold("theirs", 2, "other", priority=-1)
    bench.hold("strong", 4, "other", priority=9)
    assert bench.decide(workload(cpu=3)) == ["wl preempts theirs (InCohortReclamation), own (InClusterQueue)"]


def test_borrowing_queue_does_not_reclaim() -> None:
    bench = shared_cohort(within="LowerPriority", reclaim="Any")
    bench.hold("own", 4, priority=-1)
    bench.hold("theirs", 4, "other", priority=-9)
    bench.put(queue("third", 0, cohort="all"))
    assert bench.decide(workload(cpu=2)) == ["wl preempts own (InClusterQueue)"]


def test_queue_without_cohort_does_not_reclaim() -> None:
    bench = SchedulerBench(queue("cq", 4, preemption=preemption(reclaim="Any")))
    bench.hold("x", 4, priority=-9)
    assert bench.victims(workload()) == []


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
def test_borrower_preempts_up_to_max_priority_threshold(
    rules: dict[str, Any] | None, priority: int, victims: list[str]
) -> None:
    bench = shared_cohort(own=2, reclaim="LowerPriority", borrow=rules)
    bench.put(queue("third", 2, cohort="all"))
    bench.hold("x", 8, "other")
    assert bench.victims(workload(cpu=3, priority=priority)) == victims


def test_preemption_while_borrowing_reports_separate_reason() -> None:
    bench = shared_cohort(own=2, reclaim="Any", borrow=BORROW)
    bench.hold("x", 6, "other", priority=-1)
    assert bench.decide(workload(cpu=3)) == ["wl preempts x (InCohortReclaimWhileBorrowing)"]


def test_nominal_quota_is_reclaimed_above_priority_threshold() -> None:
    bench = shared_cohort(reclaim="Any", borrow={**BORROW, "maxPriorityThreshold": -5})
    bench.hold("x", 8, "other", priority=-1)
    assert bench.decide(workload(cpu=3)) == ["wl preempts x (InCohortReclamation)"]


def test_candidates_below_threshold_come_first_while_borrowing() -> None:
    bench = SchedulerBench(
        cohort("all"),
        queue("cq", 2, cohort="all", preemption=preemption("Never", "Any", {**BORROW, "maxPriorityThreshold": -5})),
        queue("other", 4, cohort="all"),
        queue("third", 0, cohort="all"),
    )
    bench.hold("above", 3, "third", priority=-1)
    bench.hold("below", 3, "third", priority=-9)
    assert bench.decide(workload(cpu=3)) == ["wl preempts below (InCohortReclaimWhileBorrowing)"]


# Cohort trees.


def tree(**rules: Any) -> SchedulerBench:
    """Root (2) > team (2) > cq (2), sibling (2); root > rival (0)."""
    return SchedulerBench(
        cohort("root", 2),
        cohort("team", 2, parent="root"),
        queue("cq", 2, cohort="team", preemption=preemption(**rules)),
        queue("sibling", 2, cohort="team"),
        queue("rival", 0, cohort="root"),
    )


def test_quota_of_nearest_cohort_is_reclaimed_while_borrowing() -> None:
    bench = tree(reclaim="Any")
    bench.hold("x", 8, "rival", priority=9)
    assert bench.decide(workload(cpu=6)) == ["wl preempts x (InCohortReclamation)"]


def test_quota_of_shared_root_is_not_reclaimed() -> None:
    bench = tree(reclaim="Any")
    bench.hold("x", 8, "rival", priority=9)
    assert bench.victims(workload(cpu=7)) == []


def test_farther_candidate_is_preempted_before_nearer_lower_priority() -> None:
    bench = tree(reclaim="LowerPriority", borrow=BORROW)
    bench.hold("near", 3, "sibling", priority=-9)
    bench.hold("far", 5, "rival", priority=-1)
    assert bench.decide(workload(cpu=3)) == ["wl preempts far (InCohortReclamation)"]


def test_reclamation_skips_subtree_within_quota() -> None:
    bench = SchedulerBench(
        cohort("root", 0),
        cohort("rich", 6, parent="root"),
        queue("cq", 4, cohort="root", preemption=preemption(reclaim="Any")),
        queue("member", 0, cohort="rich"),
        queue("rival", 0, cohort="root"),
    )
    bench.hold("within", 6, "member", priority=-9)
    bench.hold("borrows", 4, "rival", priority=9)
    assert bench.victims(workload(cpu=4)) == ["borrows"]


def test_reclamation_stops_when_cohort_is_within_quota() -> None:
    bench = SchedulerBench(
        cohort("root", 0),
        cohort("rich", 4, parent="root"),
        queue("cq", 4, cohort="root", preemption=preemption(reclaim="Any")),
        queue("member", 0, cohort="rich"),
        queue("rival", 0, cohort="root"),
    )
    bench.hold("a", 3, "member", priority=-9)
    bench.hold("b", 3, "member", priority=-8)
    bench.hold("c", 2, "rival", priority=5)
    assert bench.victims(workload(cpu=4)) == ["a", "c"]


def test_candidates_of_all_distances_are_tried_with_borrowing_first() -> None:
    bench = tree(within="LowerPriority", reclaim="Any")
    bench.hold("own", 1, priority=-1)
    bench.hold("near", 2, "sibling", priority=-9)
    bench.hold("far", 5, "rival", priority=-1)
    assert bench.decide(workload(cpu=3)) == ["wl preempts far (InCohortReclamation)"]


def test_preemption_also_covers_exceeded_quota() -> None:
    bench = single_queue()
    bench.hold("a", 2, priority=-2)
    bench.hold("b", 2, priority=-1)
    bench.put(queue("cq", quota(3), preemption=preemption("LowerPriority")))
    assert bench.victims(workload(cpu=2)) == ["a", "b"]


def test_queue_at_nominal_quota_does_not_reclaim_exceeded_cohort_quota() -> None:
    bench = shared_cohort(within="LowerPriority", reclaim="Any")
    bench.put(cohort("all", 2))
    bench.hold("own", 4, priority=-1)
    bench.hold("theirs", 6, "other", priority=-1)
    bench.put(cohort("all", 0))
    assert bench.victims(workload(cpu=3)) == []
    assert bench.victims(workload(cpu=2)) == ["own"]


def test_borrowing_is_tried_before_preempting_more_workloads() -> None:
    rules = preemption("LowerPriority", "Any", BORROW)
    bench = SchedulerBench(
        cohort("all", 1), queue("cq", 4, cohort="all", preemption=rules), queue("third", 0, cohort="all")
    )
    bench.hold("own", 2, priority=-9)
    bench.hold("below", 3, "third", priority=-9)
    assert bench.decide(workload(cpu=3)) == ["wl preempts below (InCohortReclaimWhileBorrowing)"]
