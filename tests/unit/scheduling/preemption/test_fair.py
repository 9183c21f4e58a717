"""Preemption under fair sharing: selection of victims, strategies, and refused preemptions."""

from collections.abc import Sequence
from typing import Any

import pytest

from batchyard.api.meta import Obj
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.preemption import fair as fair_preemption
from batchyard.scheduling.preemption.fair import BOTH_STRATEGIES, FairSharingStrategy
from batchyard.scheduling.quota import Share
from yard import SchedulerBench, cohort, group, preemption, queue, workload

ANY = preemption("LowerPriority", "Any")


def fair(*objects: Obj) -> SchedulerBench:
    return SchedulerBench(*objects, fair_sharing=True)


def three(**weights: Any) -> SchedulerBench:
    """Queues a, b and c of 3 cpu each in one cohort; a may preempt."""
    given = {name: {"weight": weight} for name, weight in weights.items()}
    return fair(
        queue("a", 3, cohort="all", preemption=ANY, **given.get("a", {})),
        queue("b", 3, cohort="all", **given.get("b", {})),
        queue("c", 3, cohort="all", **given.get("c", {})),
    )


def hold_each(bench: SchedulerBench, queue: str, *cpus: int, priority: int = 0) -> None:
    """Admit workloads named b0, b1 and so on in a queue."""
    for number, cpu in enumerate(cpus):
        bench.hold(f"{queue}{number}", cpu, queue, priority=priority, since=-number)


def pending(cpu: int, **fields: Any) -> Obj:
    return workload(cpu=cpu, queue="a", **fields)


def test_nominal_quota_is_reclaimed_regardless_of_shares() -> None:
    bench = three()
    hold_each(bench, "b", 5)
    hold_each(bench, "c", 4)
    assert bench.decide(pending(3)) == ["wl preempts b0 (InCohortReclamation)"]


def test_queue_with_largest_share_is_preempted_first() -> None:
    bench = three()
    hold_each(bench, "b", 1, 1, 1, 1)
    hold_each(bench, "c", 1, 1, 1, 1, 1)
    assert bench.victims(pending(1)) == ["c0"]
    assert bench.victims(pending(2)) == ["c0", "b0"]


def test_inactive_queue_is_not_preempted() -> None:
    bench = three()
    hold_each(bench, "b", 1, 1, 1, 1)
    hold_each(bench, "c", 1, 1, 1, 1, 1)
    bench.snapshot.queues["c"].active = False
    assert bench.victims(pending(1)) == ["b0"]


def test_borrower_preempts_only_queue_with_larger_share() -> None:
    bench = three()
    hold_each(bench, "a", 3)
    hold_each(bench, "b", 1, 1, 1, 1, 1, 1)
    assert bench.decide(pending(1)) == ["wl preempts b0 (InCohortFairSharing)"]
    assert bench.victims(pending(2)) == []


def test_final_share_strategy_compares_shares_after_preemption() -> None:
    bench = three()
    hold_each(bench, "a", 3)
    hold_each(bench, "b", 2, 2, 2)
    assert bench.victims(pending(1)) == ["b0"]
    assert bench.victims(pending(3)) == []


def test_initial_share_strategy_compares_share_before_preemption() -> None:
    bench = three()
    hold_each(bench, "a", 3)
    hold_each(bench, "b", 6)
    assert bench.decide(pending(2)) == ["wl preempts b0 (InCohortFairSharing)"]
    assert bench.victims(pending(3)) == []


def test_initial_share_strategy_preempts_at_most_one_workload_of_queue() -> None:
    bench = fair(
        queue("a", 0, cohort="all", preemption=ANY), queue("b", 0, cohort="all"), queue("lender", 10, cohort="all")
    )
    hold_each(bench, "b", 5, 5)
    assert bench.victims(pending(5)) == ["b0"]
    assert bench.victims(pending(6)) == []


def with_strategy(strategy: FairSharingStrategy, cpus: Sequence[int], own: int = 3) -> SchedulerBench:
    """Queue a uses `own` cpu and b the rest; only one strategy is configured."""
    bench = three()
    bench.policy = SchedulingPolicy(fair_sharing=True, preemption_strategies=(strategy,))
    hold_each(bench, "a", own)
    hold_each(bench, "b", *cpus)
    return bench


def test_each_strategy_works_alone() -> None:
    assert with_strategy(FairSharingStrategy.FINAL_SHARE, [6]).victims(pending(2)) == []
    assert with_strategy(FairSharingStrategy.INITIAL_SHARE, [6]).decide(pending(2)) == [
        "wl preempts b0 (InCohortFairSharing)"
    ]
    assert with_strategy(FairSharingStrategy.FINAL_SHARE, [5, 1]).victims(pending(1)) == ["b1"]
    assert with_strategy(FairSharingStrategy.INITIAL_SHARE, [5, 1]).victims(pending(1)) == ["b0"]


def test_initial_share_strategy_alone_preempts_several_workloads_of_queue() -> None:
    assert with_strategy(FairSharingStrategy.INITIAL_SHARE, [1] * 7, own=2).victims(pending(2)) == ["b0", "b1"]
    assert with_strategy(FairSharingStrategy.INITIAL_SHARE, [1] * 6).victims(pending(2)) == []


def test_final_share_strategy_continues_with_smaller_candidate() -> None:
    bench = three()
    hold_each(bench, "a", 3)
    hold_each(bench, "b", 4, 1, 1)
    assert bench.victims(pending(1)) == ["b1"]


def test_own_workload_is_preempted_if_own_queue_has_largest_share() -> None:
    bench = three()
    hold_each(bench, "a", 5, priority=-1)
    hold_each(bench, "b", 4)
    assert bench.decide(pending(1)) == ["wl preempts a0 (InClusterQueue)"]


def test_preemption_in_own_queue_follows_only_its_policy() -> None:
    bench = fair(queue("a", 3, preemption=preemption("LowerPriority", "Never")))
    hold_each(bench, "a", 2, 1, priority=-1)
    assert bench.decide(pending(3)) == ["wl preempts a0 (InClusterQueue), a1 (InClusterQueue)"]
    assert bench.victims(pending(4)) == []


def test_reclaim_policy_never_protects_other_queues() -> None:
    bench = three()
    bench.put(queue("a", 3, cohort="all", preemption=preemption("LowerPriority", "Never")))
    hold_each(bench, "b", 9)
    assert bench.victims(pending(1)) == []


def test_lower_priority_policy_limits_fair_sharing_victims() -> None:
    bench = three()
    bench.put(queue("a", 3, cohort="all", preemption=preemption("Never", "LowerPriority")))
    hold_each(bench, "b", 9)
    assert bench.victims(pending(1)) == []
    assert bench.victims(pending(1, priority=1)) == ["b0"]


def test_queue_with_larger_weight_preempts_more() -> None:
    bench = three(a=2)
    hold_each(bench, "a", 3)
    hold_each(bench, "b", 1, 1, 1, 1, 1, 1)
    assert bench.victims(pending(2)) == ["b0", "b1"]
    assert bench.victims(pending(3)) == []


def test_queue_with_zero_weight_reclaims_only_nominal_quota() -> None:
    bench = three(a=0)
    hold_each(bench, "b", 1, 1, 1, 1, 1, 1)
    hold_each(bench, "c", 3)
    assert bench.victims(pending(3)) == ["b0", "b1", "b2"]
    assert bench.victims(pending(4)) == []


def test_queue_with_zero_weight_is_preempted_first() -> None:
    bench = three(b=0)
    hold_each(bench, "b", 1, 1, 1, 1)
    hold_each(bench, "c", 1, 1, 1, 1, 1)
    assert bench.victims(pending(1)) == ["b0"]


def test_queues_with_zero_weight_are_compared_by_unweighted_share() -> None:
    bench = three(a=0, b=0)
    hold_each(bench, "a", 3)
    hold_each(bench, "b", 1, 1, 1, 1, 1, 1)
    assert bench.victims(pending(1)) == ["b0"]
    assert bench.victims(pending(3)) == []


@pytest.mark.parametrize(("b", "c", "victim"), [(5, -5, "c0"), (-5, 5, "b0"), (0, 0, "b0")])
def test_better_candidate_is_preempted_at_equal_shares(b: int, c: int, victim: str) -> None:
    bench = three()
    hold_each(bench, "a", 1)
    hold_each(bench, "c", 3, 1, priority=c)
    hold_each(bench, "b", 3, 1, priority=b)
    assert bench.victims(pending(1)) == [victim]


def test_superfluous_candidate_is_dropped() -> None:
    bench = three()
    bench.hold("small", 1, "b", priority=-9)
    bench.hold("large", 4, "b", priority=-1)
    hold_each(bench, "c", 4)
    assert bench.victims(pending(3)) == ["large"]


def nested() -> SchedulerBench:
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


def test_shares_are_compared_below_lowest_common_ancestor() -> None:
    bench = nested()
    hold_each(bench, "b", 2)
    hold_each(bench, "c", 1, 1, 1)
    hold_each(bench, "d", 1, 1, 1)
    assert bench.decide(pending(1)) == ["wl preempts c0 (InCohortFairSharing)"]


def test_queue_with_largest_share_in_branch_is_preempted() -> None:
    bench = nested()
    hold_each(bench, "b", 2)
    hold_each(bench, "c", 1, 1)
    hold_each(bench, "d", 1, 1, 1, 1)
    assert bench.victims(pending(1)) == ["d0"]


def test_branch_within_quota_is_not_preempted() -> None:
    bench = nested()
    hold_each(bench, "c", 2)
    hold_each(bench, "b", 3, 3)
    assert bench.victims(pending(2)) == ["b0"]


@pytest.mark.parametrize(("cpu", "victims"), [(1, ["b0"]), (2, ["b0", "b1"]), (3, [])])
def test_sibling_queues_share_their_branch_fairly(cpu: int, victims: list[str]) -> None:
    bench = nested()
    hold_each(bench, "b", 1, 1, 1, 1, 1)
    hold_each(bench, "c", 3)
    assert bench.victims(pending(cpu)) == victims


def queue_and_cohort(cpu: int) -> SchedulerBench:
    """A queue that reclaims from another queue and a Cohort; both borrow from this much CPU."""
    return fair(
        cohort("all", cpu),
        cohort("team", 0, parent="all"),
        queue("a", 2, cohort="all", preemption=ANY),
        queue("b", 0, cohort="all"),
        queue("member", 0, cohort="team"),
    )


def test_cohort_is_preempted_before_queue_with_equal_share() -> None:
    bench = queue_and_cohort(6)
    bench.hold("theirs", 4, "b", priority=-9)
    bench.hold("members", 4, "member", priority=9)
    assert bench.victims(pending(2)) == ["members"]


def test_reclamation_does_not_preempt_own_queue() -> None:
    bench = three()
    bench.put(queue("a", 3, cohort="all", preemption=preemption("Never", "Any")))
    hold_each(bench, "a", 5, priority=-1)
    hold_each(bench, "b", 4)
    assert bench.victims(pending(1)) == []


def test_queue_with_larger_share_is_preempted_before_cohort() -> None:
    bench = queue_and_cohort(7)
    bench.hold("theirs", 5, "b", priority=9)
    bench.hold("members", 4, "member", priority=-9)
    assert bench.victims(pending(2)) == ["theirs"]


def test_own_branch_is_searched_even_without_borrowing() -> None:
    bench = fair(
        cohort("root", 0),
        cohort("left", 4, parent="root"),
        cohort("right", 2, parent="root"),
        queue("a", 0, cohort="left", preemption=preemption("Never", "LowerPriority")),
        queue("b", 0, cohort="left"),
        queue("c", 0, cohort="right"),
    )
    hold_each(bench, "b", 1, 1)
    hold_each(bench, "c", 4, priority=9)
    assert bench.victims(pending(1, priority=5)) == ["b0"]


# Infinite shares: those of borrowers with weight zero.


@pytest.mark.parametrize("strategies", [BOTH_STRATEGIES, (FairSharingStrategy.FINAL_SHARE,)], ids=["both", "final"])
def test_infinite_share_of_the_preemptor_is_compared_with_no_candidate(
    strategies: tuple[FairSharingStrategy, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No candidate of a queue with a finite share can make the preemption fair, so none is simulated."""
    simulated: list[str] = []
    share_without = fair_preemption._share_without_candidate

    def count_simulation(context: Any, order: Any, branch: Any, candidate: AdmittedWorkload) -> Share:
        simulated.append(candidate.key)
        return share_without(context, order, branch, candidate)

    monkeypatch.setattr(fair_preemption, "_share_without_candidate", count_simulation)
    for weight, count in ((0, 0), (1, 6)):
        bench = three(a=weight)
        bench.policy = SchedulingPolicy(fair_sharing=True, preemption_strategies=strategies)
        hold_each(bench, "a", 3)
        hold_each(bench, "b", *[1] * 6)
        simulated.clear()
        assert bench.victims(pending(3)) == []
        assert (weight, len(simulated)) == (weight, count)


def test_candidates_that_an_infinite_share_excludes_remain_for_the_second_strategy() -> None:
    """The first victim ends the borrowing of the Cohort with weight zero, whose share is then finite."""
    bench = fair(
        cohort("light", parent="root", groups=[group(spot={"cpu": 1})], weight="0"),
        cohort("root"),
        queue("p", 2, cohort="light", preemption=ANY),
        queue("y", 2, cohort="light"),
        queue("x", 1, cohort="root"),
    )
    bench.hold("p1", 2, "p")
    bench.hold("y1", 2, "y", since=2)
    bench.hold("y2", 2, "y", since=1)
    bench.hold("x1", 1, "x", since=2)
    bench.hold("x2", 1, "x", since=1)
    assert sorted(bench.victims(workload("new", 1, queue="p"))) == ["x1", "y1"]
