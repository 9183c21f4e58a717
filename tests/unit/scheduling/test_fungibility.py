"""Flavor fungibility: when the search stops at a flavor, and where the next search starts."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.api.views.workload import workload_view
from batchyard.scheduling.decisions import Admit, Decision, Preempt, StayPending
from batchyard.scheduling.flavor_assigner import LastAssignment
from yard import SchedulerBench, flavors_of, group, head_of, preemption, queue, workload

SHORT = "insufficient unused quota for cpu in flavor {0}, {1} more needed"


def fungibility(borrow: str = "MayStopSearch", preempt: str = "TryNextFlavor", preference: str = "") -> Obj:
    rules = {"whenCanBorrow": borrow, "whenCanPreempt": preempt}
    return {**rules, **({"preference": preference} if preference else {})}


def lending_bench(**fields: Any) -> SchedulerBench:
    """`one` needs borrowing (nominal 4, 8 in the cohort), `two` does not (nominal 4)."""
    groups = [group(one={"cpu": 4}, two={"cpu": 4})]
    lender = queue("lender", groups=[group(one={"cpu": 4})], cohort="all")
    return SchedulerBench(queue("cq", groups=groups, cohort="all", **fields), lender)


def last_of(decision: Decision) -> LastAssignment:
    """Return the last assignment of a search without admission."""
    assert isinstance(decision, StayPending | Preempt)
    assert decision.last_assignment is not None
    return decision.last_assignment


@pytest.mark.parametrize(
    ("rules", "flavor"),
    [
        pytest.param({}, "one", id="first fitting flavor by default, with borrowing"),
        pytest.param(
            {"flavorFungibility": fungibility("TryNextFlavor")}, "two", id="flavor without borrowing is preferred"
        ),
    ],
)
def test_when_can_borrow_controls_end_of_search(rules: dict[str, Any], flavor: str) -> None:
    bench = lending_bench(**rules)
    bench.hold("x", 2, flavor="one")
    assert flavors_of(bench.admission(workload(cpu=3))) == f"main 1 cpu={flavor}"


def test_borrowing_flavor_is_assigned_without_better_flavor() -> None:
    bench = lending_bench(flavorFungibility=fungibility("TryNextFlavor"))
    bench.hold("x", 2, flavor="one")
    bench.hold("y", 2, flavor="two")
    assert flavors_of(bench.admission(workload(cpu=3))) == "main 1 cpu=one"


@pytest.mark.parametrize(
    ("preempt", "expected"),
    [
        pytest.param("TryNextFlavor", "wl: main 1 cpu=two", id="later free flavor is preferred"),
        pytest.param("MayStopSearch", "wl preempts x (InClusterQueue)", id="first flavor with victims ends search"),
        pytest.param("Preempt", "wl preempts x (InClusterQueue)", id="legacy value"),
    ],
)
def test_when_can_preempt_controls_end_of_search(preempt: str, expected: str) -> None:
    rules = preemption("LowerPriority")
    bench = lending_bench(preemption=rules, flavorFungibility=fungibility(preempt=preempt))
    bench.put(queue("lender", groups=[group(one={"cpu": 0})], cohort="all"))
    bench.hold("x", 4, flavor="one", priority=-1)
    assert bench.decide(workload(cpu=3)) == [expected]


def test_flavor_without_victims_never_ends_search() -> None:
    bench = lending_bench(
        flavorFungibility=fungibility(preempt="MayStopSearch"), preemption=preemption("LowerPriority")
    )
    bench.put(queue("lender", groups=[group(one={"cpu": 0})], cohort="all"))
    bench.hold("x", 4, flavor="one", priority=9)
    assert bench.decide(workload(cpu=3)) == ["wl: main 1 cpu=two"]


def preempting_bench(preference: str) -> SchedulerBench:
    """`one` offers 3 cpu by borrowing; `two` offers 4 by preemption of x in the same queue."""
    rules = fungibility("TryNextFlavor", preference=preference)
    bench = lending_bench(flavorFungibility=rules, preemption=preemption("LowerPriority"))
    bench.hold("y", 2, flavor="one", priority=5)
    bench.hold("x", 4, flavor="two", priority=-1)
    return bench


@pytest.mark.parametrize(
    ("preference", "expected"),
    [
        ("", "wl: main 1 cpu=one"),
        ("BorrowingOverPreemption", "wl: main 1 cpu=one"),
        ("PreemptionOverBorrowing", "wl preempts x (InClusterQueue)"),
    ],
)
def test_preference_selects_borrowing_or_preemption(preference: str, expected: str) -> None:
    assert preempting_bench(preference).decide(workload(cpu=3)) == [expected]


def test_preemption_without_victims_is_never_preferred() -> None:
    bench = preempting_bench("PreemptionOverBorrowing")
    assert bench.decide(workload(cpu=3, priority=-1)) == ["wl: main 1 cpu=one"]


def test_reclamation_is_preferred_to_preemption_in_own_queue() -> None:
    groups = [group(one={"cpu": 4}, two={"cpu": 4})]
    bench = SchedulerBench(
        queue("cq", groups=groups, cohort="all", preemption=preemption("LowerPriority", "Any")),
        queue("other", groups=[group(one={"cpu": 0}, two={"cpu": 0})], cohort="all"),
    )
    bench.hold("mine", 4, flavor="one", priority=-1)
    bench.hold("theirs", 4, "other", flavor="two", priority=9)
    assert bench.decide(workload(cpu=3)) == ["wl preempts theirs (InCohortReclamation)"]


def test_flavor_with_victims_is_preferred() -> None:
    bench = lending_bench(preemption=preemption("LowerPriority"))
    bench.put(queue("lender", groups=[group(one={"cpu": 0})], cohort="all"))
    bench.hold("strong", 4, flavor="one", priority=9)
    bench.hold("weak", 4, flavor="two", priority=-1)
    decision = bench.preemption(workload(cpu=3))
    assert [t.workload.key for t in decision.targets] == ["team/weak"]
    assert decision.why.message == (
        f"couldn't assign flavors to pod set main: {SHORT.format('one', 3)}, {SHORT.format('two', 3)}."
        " Pending the preemption of 1 workload(s)"
    )


def test_stopped_search_resumes_after_last_tried_flavor() -> None:
    bench = stopped_bench()
    obj = workload(cpu=3)
    first, _ = bench.cycle(workload("first", 3, queue="lender", priority=1), obj)[::-1]
    last = last_of(first)
    assert last.tried == ({"cpu": 0},)
    (second,) = bench.cycle(head_of(obj, last))
    assert isinstance(second, Admit)
    assert flavors_of(second) == "main 1 cpu=two"


def stopped_bench() -> SchedulerBench:
    """The search of cq stops at `one`, which needs borrowing."""
    bench = lending_bench()
    bench.put(queue("cq", groups=[group(one={"cpu": 0}, two={"cpu": 4})], cohort="all"))
    return bench


def test_complete_search_restarts_at_first_flavor() -> None:
    bench = lending_bench()
    assert bench.wait(workload(cpu=9)).last_assignment is None


def test_last_assignment_of_previous_cycle_is_used_after_release() -> None:
    bench = stopped_bench()
    bench.number = 7
    last = assignment_until(bench, workload(cpu=3))
    bench.hold("x", 1, "lender", flavor="one")
    bench.snapshot.remove_holder("team/x")
    assert flavors_of(bench.admission(head_of(workload(cpu=3), last))) == "main 1 cpu=two"


def assignment_until(bench: SchedulerBench, obj: Obj, tried: int = 0) -> LastAssignment:
    """The last assignment of a search in the current cycle that stopped at a flavor."""
    generation = bench.snapshot.queues["cq"].generation
    return LastAssignment(({"cpu": tried},), generation, bench.number, workload_view(obj).shape)


def test_older_last_assignment_is_used_without_release() -> None:
    bench = stopped_bench()
    last = assignment_until(bench, workload(cpu=3))
    bench.number += 5
    assert flavors_of(bench.admission(head_of(workload(cpu=3), last))) == "main 1 cpu=two"


def test_older_last_assignment_is_discarded_after_release() -> None:
    bench = stopped_bench()
    last = assignment_until(bench, workload(cpu=3))
    bench.hold("x", 1, flavor="one")
    bench.snapshot.remove_holder("team/x")
    bench.number += 1
    assert flavors_of(bench.admission(head_of(workload(cpu=3), last))) == "main 1 cpu=one"


def test_last_assignment_of_other_shape_is_discarded() -> None:
    bench = stopped_bench()
    last = assignment_until(bench, workload(cpu=2))
    assert flavors_of(bench.admission(head_of(workload(cpu=3), last))) == "main 1 cpu=one"


def test_pod_sets_without_last_assignment_start_at_first_flavor() -> None:
    bench = stopped_bench()
    sets = [make.pod_set(name, requests={"cpu": "1"}) for name in ("driver", "worker")]
    obj = workload(pod_sets=sets)
    assert (
        flavors_of(bench.admission(head_of(obj, assignment_until(bench, obj)))) == "driver 1 cpu=two; worker 1 cpu=one"
    )


@pytest.mark.parametrize("preference", ["BorrowingOverPreemption", "PreemptionOverBorrowing"])
def test_first_of_equal_flavors_is_assigned(preference: str) -> None:
    groups = [group(one={"cpu": 4}, two={"cpu": 4})]
    rules = fungibility("TryNextFlavor", preference=preference)
    bench = SchedulerBench(queue("cq", groups=groups, flavorFungibility=rules, preemption=preemption("LowerPriority")))
    bench.hold("x", 4, flavor="one", priority=-1)
    bench.hold("y", 4, flavor="two", priority=-1)
    assert bench.victims(workload(cpu=3)) == ["x"]
