"""Detection of Workloads that preempt each other endlessly within one instant."""

import make
from batchyard.scheduling.cycle import CYCLES_UNCHECKED, PreemptionLoop, PreemptionLoopDetector, PreemptionStep
from batchyard.scheduling.decisions import Preempt
from yard import SchedulerBench, preemption, queue, workload


def bench() -> SchedulerBench:
    """Two queues of one cohort that can preempt each other."""
    rules = preemption("LowerPriority", "Any")
    return SchedulerBench(queue("a", 4, cohort="all", preemption=rules), queue("b", 4, cohort="all", preemption=rules))


def swap_repeatedly(
    env: SchedulerBench, watch: PreemptionLoopDetector, cycles: int, seconds: float = 0
) -> list[PreemptionLoop]:
    """Let x and y preempt each other for this many cycles; return the detected loops."""
    result = []
    for number in range(cycles):
        out, back = ("x", "y") if number % 2 else ("y", "x")
        env.hold(out, 8, "b", priority=-1)
        result += watch.find_loops([preempts(env, back)], env.snapshot, make.at(seconds))
        env.snapshot.remove_holder(f"team/{out}")
    return result


def preempts(env: SchedulerBench, name: str) -> Preempt:
    return env.preemption(workload(name, 2, queue="a"))


def test_short_preemption_chain_is_no_loop() -> None:
    assert swap_repeatedly(bench(), PreemptionLoopDetector(), CYCLES_UNCHECKED + 2) == []


def test_repeated_usage_is_loop() -> None:
    (loop,) = swap_repeatedly(bench(), PreemptionLoopDetector(), CYCLES_UNCHECKED + 3)
    assert (loop.at, loop.root) == (make.NOW, "all")
    steps = {
        PreemptionStep("team/x", "team/y", "InCohortReclamation"),
        PreemptionStep("team/y", "team/x", "InCohortReclamation"),
    }
    assert set(loop.steps) == steps
    assert loop.message == (
        "Workloads in the cohort of all preempt each other endlessly: team/x preempts team/y (InCohortReclamation);"
        " team/y preempts team/x (InCohortReclamation);"
        " change their priorities, or the preemption policies of their ClusterQueues"
    )


def test_elapsed_time_ends_preemption_chain() -> None:
    env, watch = bench(), PreemptionLoopDetector()
    assert swap_repeatedly(env, watch, CYCLES_UNCHECKED) == []
    assert swap_repeatedly(env, watch, CYCLES_UNCHECKED, seconds=1) == []


def test_chain_of_different_workloads_is_no_loop() -> None:
    env, watch = bench(), PreemptionLoopDetector()
    for number in range(3 * CYCLES_UNCHECKED):
        env.hold(f"x{number}", 8, "b", priority=-1)
        assert watch.find_loops([preempts(env, f"x{number + 1}")], env.snapshot, make.NOW) == []
        env.snapshot.remove_holder(f"team/x{number}")


def test_cohort_trees_are_tracked_separately() -> None:
    env, watch = bench(), PreemptionLoopDetector()
    env.put(queue("far", 4, preemption=preemption("LowerPriority")))
    for number in range(CYCLES_UNCHECKED):
        env.hold(f"x{number}", 4, "far", priority=-1)
        elsewhere = env.preemption(workload("high", queue="far"))
        assert watch.find_loops([elsewhere], env.snapshot, make.NOW) == []
        env.snapshot.remove_holder(f"team/x{number}")
    assert swap_repeatedly(env, watch, CYCLES_UNCHECKED) == []


def test_cycle_without_preemptions_reports_no_loop() -> None:
    assert PreemptionLoopDetector().find_loops([], bench().snapshot, make.NOW) == []
