"""The admitted Workloads that a preemption spares, and why."""

from batchyard.api.meta import Obj
from batchyard.scheduling.preemption.alternatives import (
    BORROWING_RULE,
    FAIRNESS_RULE,
    INACTIVE_RULE,
    NEEDLESS_REASON,
    ProtectionReason,
    find_spared_workloads,
)
from yard import SchedulerBench, cohort, preemption, queue, workload

ANY = preemption("LowerPriority", "Any")


def spared_reasons(bench: SchedulerBench, head: Obj) -> dict[str, ProtectionReason]:
    """By name, the reason for which each Workload that a head could have preempted is spared."""
    alternatives = find_spared_workloads(bench.preemption(head), bench.snapshot, bench.policy.fair_strategies)
    return {each.holder.workload.key.removeprefix("team/"): each.reason for each in alternatives.spared_workloads}


def test_workload_of_inactive_queue_is_spared() -> None:
    bench = SchedulerBench(
        queue("a", 4, cohort="all", preemption=ANY), *[queue(name, 0, cohort="all") for name in "bc"]
    )
    bench.hold("b1", 2, "b")
    bench.hold("c1", 2, "c", priority=-9)
    bench.snapshot.queues["c"].active = False
    pending = workload(cpu=2, queue="a")
    assert bench.victims(pending) == ["b1"]
    text = "c is inactive; Kueue does not preempt in inactive queues"
    assert spared_reasons(bench, pending) == {"c1": ProtectionReason(INACTIVE_RULE, text)}


def test_workload_above_priority_threshold_of_borrower_is_spared() -> None:
    borrow = {"policy": "LowerPriority", "maxPriorityThreshold": 1}
    rules = preemption("Never", "Any", borrow)
    queues = [queue("a", 1, cohort="all", preemption=rules), *[queue(name, 1, cohort="all") for name in "bc"]]
    bench = SchedulerBench(cohort("all", 1), *queues)
    bench.hold("b1", 2, "b", priority=1)
    bench.hold("c1", 2, "c", priority=2)
    pending = workload(cpu=2, queue="a", priority=5)
    assert bench.victims(pending) == ["b1"]
    text = "its priority 2 is above maxPriorityThreshold 1"
    assert spared_reasons(bench, pending) == {"c1": ProtectionReason(BORROWING_RULE, text)}


def bench_with_borrowers() -> SchedulerBench:
    """Three queues with fair sharing; `b` borrows little and `c` borrows more."""
    queues = [queue("a", 3, cohort="all", preemption=ANY), *[queue(name, 3, cohort="all") for name in "bc"]]
    bench = SchedulerBench(*queues, fair_sharing=True)
    bench.hold("b1", 4, "b")
    bench.hold("c1", 5, "c")
    return bench


def test_workload_is_spared_if_other_victims_free_enough_quota() -> None:
    bench, pending = bench_with_borrowers(), workload(cpu=1, queue="a")
    assert bench.victims(pending) == ["c1"]
    assert spared_reasons(bench, pending) == {"b1": NEEDLESS_REASON}


def test_workload_is_spared_if_its_preemption_makes_shares_no_fairer() -> None:
    bench, pending = bench_with_borrowers(), workload(cpu=4, queue="a")
    assert bench.victims(pending) == ["c1"]
    text = "the preemption would not make the shares fairer"
    assert spared_reasons(bench, pending) == {"b1": ProtectionReason(FAIRNESS_RULE, text)}
