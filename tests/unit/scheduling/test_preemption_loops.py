"""Workloads that preempt each other for ever within one instant are noticed, and only they."""

import make
from batchyard.scheduling.cycle import CYCLES_UNWATCHED, PreemptionLoop, PreemptionLoopDetector, PreemptionStep
from batchyard.scheduling.decisions import Preempt
from yard import Yard, preemption, queue, workload


def yard() -> Yard:
    """Two queues of one tree, in which each may take from the other."""
    rules = preemption("LowerPriority", "Any")
    return Yard(queue("a", 4, cohort="all", preemption=rules), queue("b", 4, cohort="all", preemption=rules))


def swaps(place: Yard, watch: PreemptionLoopDetector, cycles: int, seconds: float = 0) -> list[PreemptionLoop]:
    """Let x and y take each other's place for so many cycles; the loops seen."""
    found = []
    for number in range(cycles):
        out, back = ("x", "y") if number % 2 else ("y", "x")
        place.hold(out, 8, "b", priority=-1)
        found += watch.look([preempts(place, back)], place.snapshot, make.at(seconds))
        place.snapshot.release(f"team/{out}")
    return found


def preempts(place: Yard, name: str) -> Preempt:
    return place.preemption(workload(name, 2, queue="a"))


def test_a_short_chain_is_no_loop() -> None:
    assert swaps(yard(), PreemptionLoopDetector(), CYCLES_UNWATCHED + 2) == []


def test_the_same_holdings_again_are_a_loop() -> None:
    (loop,) = swaps(yard(), PreemptionLoopDetector(), CYCLES_UNWATCHED + 3)
    assert (loop.at, loop.root) == (make.NOW, "all")
    steps = {
        PreemptionStep("team/x", "team/y", "InCohortReclamation"),
        PreemptionStep("team/y", "team/x", "InCohortReclamation"),
    }
    assert set(loop.steps) == steps
    assert loop.message == (
        "in the cohort of all, without end: team/x preempts team/y (InCohortReclamation);"
        " team/y preempts team/x (InCohortReclamation)"
    )


def test_time_that_passes_ends_a_chain() -> None:
    place, watch = yard(), PreemptionLoopDetector()
    assert swaps(place, watch, CYCLES_UNWATCHED) == []
    assert swaps(place, watch, CYCLES_UNWATCHED, seconds=1) == []


def test_a_chain_that_goes_on_to_others_is_no_loop() -> None:
    place, watch = yard(), PreemptionLoopDetector()
    for number in range(3 * CYCLES_UNWATCHED):
        place.hold(f"x{number}", 8, "b", priority=-1)
        assert watch.look([preempts(place, f"x{number + 1}")], place.snapshot, make.NOW) == []
        place.snapshot.release(f"team/x{number}")


def test_trees_are_watched_apart() -> None:
    place, watch = yard(), PreemptionLoopDetector()
    place.put(queue("far", 4, preemption=preemption("LowerPriority")))
    for number in range(CYCLES_UNWATCHED):
        place.hold(f"x{number}", 4, "far", priority=-1)
        elsewhere = place.preemption(workload("high", queue="far"))
        assert watch.look([elsewhere], place.snapshot, make.NOW) == []
        place.snapshot.release(f"team/x{number}")
    assert swaps(place, watch, CYCLES_UNWATCHED) == []


def test_a_cycle_without_preemptions_closes_no_loop() -> None:
    assert PreemptionLoopDetector().look([], yard().snapshot, make.NOW) == []
