"""The shadow scheduler accepts equivalent victims in place of each other, and no others."""

import pytest

from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.decisions import Head, InadmissibleReason, Preempt
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.shadow.observed import ObservedPreemption, are_equivalent_victims, match_equivalent_victims
from yard import SchedulerBench, head_of, queue, workload

REASON = "InClusterQueue"


@pytest.fixture
def bench() -> SchedulerBench:
    return SchedulerBench(queue("cq", 10))


def hold(bench: SchedulerBench, name: str, since: float, cpu: int = 2) -> AdmittedWorkload:
    return bench.hold(name, cpu, since=since)


def preempting(bench: SchedulerBench, victim: AdmittedWorkload) -> Preempt:
    view = head_of(workload("p", 2)).workload
    return Preempt(
        Head(view, "cq"),
        bench.snapshot.queues["cq"],
        (PreemptionTarget(victim, REASON),),
        InadmissibleReason("", text="x"),
    )


@pytest.mark.parametrize(("at", "cpu", "is_alike"), [(5.9, 2, True), (7, 2, False), (5, 3, False)])
def test_workloads_reserved_within_one_second_with_same_usage_are_alike(
    bench: SchedulerBench, at: float, cpu: int, is_alike: bool
) -> None:
    assert are_equivalent_victims(hold(bench, "a", 5), hold(bench, "b", at, cpu)) is is_alike


def test_swapped_victim_requires_same_reason(bench: SchedulerBench) -> None:
    a, b = hold(bench, "a", 5), hold(bench, "b", 5.5)
    assert match_equivalent_victims(
        preempting(bench, a), {7: ObservedPreemption(b.key, REASON, "p")}, bench.snapshot
    ) == (7,)
    assert (
        match_equivalent_victims(
            preempting(bench, a), {7: ObservedPreemption(b.key, "InCohortReclamation", "p")}, bench.snapshot
        )
        is None
    )


def test_additional_victim_is_rejected(bench: SchedulerBench) -> None:
    a, b = hold(bench, "a", 5), hold(bench, "b", 5.5)
    seen = {7: ObservedPreemption(a.key, REASON, "p"), 8: ObservedPreemption(b.key, REASON, "p")}
    assert match_equivalent_victims(preempting(bench, a), seen, bench.snapshot) is None
