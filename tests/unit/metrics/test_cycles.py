"""Metrics of scheduling cycles."""

from dataclasses import replace

import make
from batchyard.api import well_known
from batchyard.api.meta import with_metadata
from batchyard.api.views.workload import workload_view
from batchyard.metrics.workloads import CycleMetrics
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy, holder_from_admission
from batchyard.scheduling.decisions import DEFAULT_RULES, Head
from unit.metrics.scrape import samples
from yard import SchedulerBench, cohort, head, preemption, queue

RECLAIMS = preemption(within="LowerPriority", reclaim="Any")


class CycleClock:
    """A clock that advances one second per call."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 1
        return self.seconds


def cycle_samples(bench: SchedulerBench, *heads: str, cpu: int = 2) -> dict[str, dict[tuple[str, ...], float]]:
    """The samples after one cycle; a Workload's first letter names its queue, and `a1:4` requests 4 cpu."""
    figures, cycle = CycleMetrics(CycleClock(), "standalone"), Cycle(bench.snapshot, bench.policy, bench.namespaces, 1)
    figures.begin()
    request = [(name.partition(":")[0], int(name.partition(":")[2] or cpu)) for name in heads]
    decisions = cycle.run([Head(workload_view(head(name, cpus)), name[0]) for name, cpus in request])
    figures.end_decisions()
    figures.end(cycle, decisions)
    return samples([*figures.texts(), *figures.own_texts()])


def test_admitting_cycle_is_counted_as_success_with_its_duration() -> None:
    reported = cycle_samples(SchedulerBench(queue("a", 4)), "a1")
    assert reported["kueue_admission_attempts_total"] == {("success", "standalone"): 1}
    assert reported["kueue_admission_attempt_duration_seconds_sum"] == {("success", "standalone"): 2}
    assert reported["batchyard_cycle_phase_seconds_total"] == {("decide",): 1, ("apply",): 1}


def test_cycle_that_only_preempts_is_counted_as_inadmissible() -> None:
    bench = SchedulerBench(queue("a", 4, cohort="c", preemption=RECLAIMS), queue("b", 0, cohort="c"))
    bench.hold("borrower", 4, "b")
    reported = cycle_samples(bench, "a1")
    assert reported["kueue_admission_attempts_total"] == {("inadmissible", "standalone"): 1}
    assert reported["kueue_preempted_workloads_total"] == {("a", "InCohortReclamation", "standalone"): 1}


def test_evicted_workload_is_not_counted_as_preempted_again() -> None:
    bench = SchedulerBench(queue("a", 4, cohort="c", preemption=RECLAIMS), queue("b", 0, cohort="c"))
    bench.hold("borrower", 4, "b", evicted=True)
    assert "kueue_preempted_workloads_total" not in cycle_samples(bench, "a1")


def test_second_preemptor_of_same_victim_is_counted_as_deferred_fit() -> None:
    queues = [queue(name, 2, cohort="c", preemption=RECLAIMS) for name in "ab"]
    bench = SchedulerBench(*queues, queue("d", 0, cohort="c"))
    bench.hold("borrower", 4, "d")
    reported = cycle_samples(bench, "a1", "b1")
    assert reported["kueue_preempted_workloads_total"] == {("a", "InCohortReclamation", "standalone"): 1}
    assert reported["kueue_preemption_target_recomputations_total"] == {("b", "deferred_fit", "standalone"): 1}


def test_target_recomputation_counts_new_targets_and_skips() -> None:
    rivals = [queue(name, 3, cohort="c", preemption=RECLAIMS) for name in "ab"]
    bench = SchedulerBench(*rivals, queue("d", 0, cohort="c"))
    bench.hold("x", 3, "d")
    bench.hold("y", 3, "d", since=-1)
    reported = cycle_samples(bench, "a1", "b1", cpu=3)
    assert reported["kueue_preemption_target_recomputations_total"] == {("b", "new_targets", "standalone"): 1}
    borrows = preemption("Never", "LowerPriority", {"policy": "LowerPriority"})
    bench = SchedulerBench(cohort("c", 4), *(queue(name, 0, cohort="c", preemption=borrows) for name in "abd"))
    bench.hold("x", 4, "d", priority=-1)
    reported = cycle_samples(bench, "a1", "b1", cpu=4)
    assert reported["kueue_preemption_target_recomputations_total"] == {("b", "skipped", "standalone"): 1}


def test_preemption_skip_is_counted_for_its_queue() -> None:
    rivals = [queue(name, 4, cohort="c", preemption=RECLAIMS) for name in "ab"]
    bench = SchedulerBench(*rivals, queue("d", 0, cohort="c"))
    bench.hold("x", 1, "d")
    bench.hold("y", 4, "d", since=-1)
    reported = cycle_samples(bench, "a1:3", "b1:4")
    assert reported["kueue_admission_cycle_preemption_skips"] == {("b", "standalone"): 1}
    assert reported["kueue_admission_attempts_total"] == {("success", "standalone"): 1}
    assert "kueue_preempted_workloads_total" not in reported


def test_deleted_queue_has_no_preemption_samples() -> None:
    bench = SchedulerBench(queue("a", 4, cohort="c", preemption=RECLAIMS), queue("b", 0, cohort="c"))
    bench.hold("borrower", 4, "b")
    figures, cycle = CycleMetrics(CycleClock(), "standalone"), Cycle(bench.snapshot, bench.policy, bench.namespaces, 1)
    figures.end(cycle, cycle.run([Head(workload_view(head("a1", 2)), "a")]))
    figures.forget_queue("a")
    assert "kueue_preempted_workloads_total" not in samples(figures.texts())


def test_preemption_loop_counter_starts_at_zero() -> None:
    figures = CycleMetrics(CycleClock(), "standalone")
    before = samples(figures.own_texts())
    figures.count_preemption_loop(object())
    after = samples(figures.own_texts())
    assert (before["batchyard_preemption_loops_total"], after["batchyard_preemption_loops_total"]) == ({(): 0}, {(): 1})


def test_partial_preemptions_are_counted_apart_from_evictions() -> None:
    bench = SchedulerBench(queue("a", 4, preemption=preemption("LowerPriority")))
    bench.policy = SchedulingPolicy(rules=replace(DEFAULT_RULES, partial_preemption=True))
    pod_set = make.pod_set("main", 4, minCount=1, requests={"cpu": "1"})
    annotations = {well_known.ELASTIC_JOB: "true", well_known.PARTIAL_PREEMPTION: "true"}
    elastic = with_metadata(head("a1", pod_sets=[pod_set]), annotations=annotations)
    bench.snapshot.add_holder(holder_from_admission(bench.admission(elastic), make.at(1), admitted=True))
    figures, cycle = CycleMetrics(CycleClock(), "standalone"), Cycle(bench.snapshot, bench.policy, bench.namespaces, 9)
    figures.end(cycle, cycle.run([Head(workload_view(head("a2", 3, priority=1)), "a")]))
    own = samples(figures.own_texts())["batchyard_partially_preempted_workloads_total"]
    assert own == {("a", "InClusterQueue"): 1}
    assert "kueue_preempted_workloads_total" not in samples(figures.texts())
