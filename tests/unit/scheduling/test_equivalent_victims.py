"""The shadow scheduler accepts equivalent victims in place of each other, and no others."""

import pytest

from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.decisions import Head, InadmissibleReason, Preempt
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.shadow.observed import ObservedPreemption, are_equivalent_victims, match_equivalent_victims
from yard import SchedulerBench, head_of, queue, workload

REASON = "InClusterQueue"


@pytest.fixture
def yard() -> SchedulerBench:
    return SchedulerBench(queue("cq", 10))


def hold(yard: SchedulerBench, name: str, since: float, cpu: int = 2) -> AdmittedWorkload:
    return yard.hold(name, cpu, since=since)


def preempting(yard: SchedulerBench, victim: AdmittedWorkload) -> Preempt:
    view = head_of(workload("p", 2)).workload
    return Preempt(
        Head(view, "cq"),
        yard.snapshot.queues["cq"],
        (PreemptionTarget(victim, REASON),),
        InadmissibleReason("", text="x"),
    )


@pytest.mark.parametrize(("at", "cpu", "is_alike"), [(5.9, 2, True), (7, 2, False), (5, 3, False)])
def test_workloads_reserved_within_one_second_with_same_usage_are_alike(
    yard: SchedulerBench, at: float, cpu: int, is_alike: bool
) -> None:
    assert are_equivalent_victims(hold(yard, "a", 5), hold(yard, "b", at, cpu)) is is_alike


def test_swapped_victim_requires_same_reason(yard: SchedulerBench) -> None:
    a, b = hold(yard, "a", 5), hold(yard, "b", 5.5)
    assert match_equivalent_victims(
        preempting(yard, a), {7: ObservedPreemption(b.key, REASON, "p")}, yard.snapshot
    ) == (7,)
    assert (
        match_equivalent_victims(
            preempting(yard, a), {7: ObservedPreemption(b.key, "InCohortReclamation", "p")}, yard.snapshot
        )
        is None
    )


def test_additional_victim_is_rejected(yard: SchedulerBench) -> None:
    a, b = hold(yard, "a", 5), hold(yard, "b", 5.5)
    seen = {7: ObservedPreemption(a.key, REASON, "p"), 8: ObservedPreemption(b.key, REASON, "p")}
    assert match_equivalent_victims(preempting(yard, a), seen, yard.snapshot) is None
