"""When the search stops at a flavor, when it goes on, and where the next one starts."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Obj
from batchyard.api.views.workload import workload_view
from batchyard.scheduling.decisions import Admit, Decision, Preempt, StayPending
from batchyard.scheduling.flavor_assigner import LastAssignment
from yard import Yard, flavors_of, group, head_of, preemption, queue, workload

SHORT = "insufficient unused quota for cpu in flavor {0}, {1} more needed"


def fungibility(borrow: str = "MayStopSearch", preempt: str = "TryNextFlavor", preference: str = "") -> Obj:
    rules = {"whenCanBorrow": borrow, "whenCanPreempt": preempt}
    return {**rules, **({"preference": preference} if preference else {})}


def lending_yard(**fields: Any) -> Yard:
    """`one` can be had by borrowing (4 own, 8 in all), `two` is all its own (4)."""
    groups = [group(one={"cpu": 4}, two={"cpu": 4})]
    lender = queue("lender", groups=[group(one={"cpu": 4})], cohort="all")
    return Yard(queue("cq", groups=groups, cohort="all", **fields), lender)


def last_of(decision: Decision) -> LastAssignment:
    """How far a search came that did not lead to an admission."""
    assert isinstance(decision, StayPending | Preempt)
    assert decision.last is not None
    return decision.last


@pytest.mark.parametrize(
    ("rules", "flavor"),
    [
        pytest.param({}, "one", id="by default the first that fits is taken, borrowing or not"),
        pytest.param({"flavorFungibility": fungibility("TryNextFlavor")}, "two", id="not borrowing is better"),
    ],
)
def test_borrowing_may_end_the_search(rules: dict[str, Any], flavor: str) -> None:
    yard = lending_yard(**rules)
    yard.hold("x", 2, flavor="one")
    assert flavors_of(yard.admission(workload(cpu=3))) == f"main 1 cpu={flavor}"


def test_borrowing_is_taken_where_nothing_better_comes() -> None:
    yard = lending_yard(flavorFungibility=fungibility("TryNextFlavor"))
    yard.hold("x", 2, flavor="one")
    yard.hold("y", 2, flavor="two")
    assert flavors_of(yard.admission(workload(cpu=3))) == "main 1 cpu=one"


@pytest.mark.parametrize(
    ("preempt", "expected"),
    [
        pytest.param("TryNextFlavor", "wl: main 1 cpu=two", id="a later flavor that is free is better"),
        pytest.param("MayStopSearch", "wl preempts x (InClusterQueue)", id="the first with victims ends the search"),
        pytest.param("Preempt", "wl preempts x (InClusterQueue)", id="an older word for the same"),
    ],
)
def test_preemption_may_end_the_search(preempt: str, expected: str) -> None:
    rules = preemption("LowerPriority")
    yard = lending_yard(preemption=rules, flavorFungibility=fungibility(preempt=preempt))
    yard.put(queue("lender", groups=[group(one={"cpu": 0})], cohort="all"))
    yard.hold("x", 4, flavor="one", priority=-1)
    assert yard.decide(workload(cpu=3)) == [expected]


def test_a_flavor_without_victims_never_ends_the_search() -> None:
    yard = lending_yard(flavorFungibility=fungibility(preempt="MayStopSearch"), preemption=preemption("LowerPriority"))
    yard.put(queue("lender", groups=[group(one={"cpu": 0})], cohort="all"))
    yard.hold("x", 4, flavor="one", priority=9)
    assert yard.decide(workload(cpu=3)) == ["wl: main 1 cpu=two"]


def reclaiming_yard(preference: str) -> Yard:
    """Of `one` 3 can be had by borrowing; of `two` 4 by preempting the own x."""
    rules = fungibility("TryNextFlavor", preference=preference)
    yard = lending_yard(flavorFungibility=rules, preemption=preemption("LowerPriority"))
    yard.hold("y", 2, flavor="one", priority=5)
    yard.hold("x", 4, flavor="two", priority=-1)
    return yard


@pytest.mark.parametrize(
    ("preference", "expected"),
    [
        ("", "wl: main 1 cpu=one"),
        ("BorrowingOverPreemption", "wl: main 1 cpu=one"),
        ("PreemptionOverBorrowing", "wl preempts x (InClusterQueue)"),
    ],
)
def test_the_preference_weighs_borrowing_against_preemption(preference: str, expected: str) -> None:
    assert reclaiming_yard(preference).decide(workload(cpu=3)) == [expected]


def test_no_preference_is_for_preemption_without_victims() -> None:
    yard = reclaiming_yard("PreemptionOverBorrowing")
    assert yard.decide(workload(cpu=3, priority=-1)) == ["wl: main 1 cpu=one"]


def test_reclaiming_is_better_than_preempting_at_home() -> None:
    groups = [group(one={"cpu": 4}, two={"cpu": 4})]
    yard = Yard(
        queue("cq", groups=groups, cohort="all", preemption=preemption("LowerPriority", "Any")),
        queue("other", groups=[group(one={"cpu": 0}, two={"cpu": 0})], cohort="all"),
    )
    yard.hold("mine", 4, flavor="one", priority=-1)
    yard.hold("theirs", 4, "other", flavor="two", priority=9)
    assert yard.decide(workload(cpu=3)) == ["wl preempts theirs (InCohortReclamation)"]


def test_the_flavor_with_victims_is_chosen_before_one_without() -> None:
    yard = lending_yard(preemption=preemption("LowerPriority"))
    yard.put(queue("lender", groups=[group(one={"cpu": 0})], cohort="all"))
    yard.hold("strong", 4, flavor="one", priority=9)
    yard.hold("weak", 4, flavor="two", priority=-1)
    decision = yard.preemption(workload(cpu=3))
    assert [t.workload.key for t in decision.targets] == ["team/weak"]
    assert decision.why.message == (
        f"couldn't assign flavors to pod set main: {SHORT.format('one', 3)}, {SHORT.format('two', 3)}."
        " Pending the preemption of 1 workload(s)"
    )


def test_a_search_that_stopped_goes_on_after_the_last_flavor_tried() -> None:
    yard = stopped_yard()
    obj = workload(cpu=3)
    first, _ = yard.cycle(workload("first", 3, queue="lender", priority=1), obj)[::-1]
    last = last_of(first)
    assert last.tried == ({"cpu": 0},)
    (second,) = yard.cycle(head_of(obj, last))
    assert isinstance(second, Admit)
    assert flavors_of(second) == "main 1 cpu=two"


def stopped_yard() -> Yard:
    """The search of cq stops at `one`, which it would have to borrow."""
    yard = lending_yard()
    yard.put(queue("cq", groups=[group(one={"cpu": 0}, two={"cpu": 4})], cohort="all"))
    return yard


def test_a_search_through_all_flavors_starts_over() -> None:
    yard = lending_yard()
    assert yard.wait(workload(cpu=9)).last is None


def test_progress_of_the_cycle_before_counts_whatever_happened() -> None:
    yard = stopped_yard()
    yard.number = 7
    last = progress(yard, workload(cpu=3))
    yard.hold("x", 1, "lender", flavor="one")
    yard.snapshot.release("team/x")
    assert flavors_of(yard.admission(head_of(workload(cpu=3), last))) == "main 1 cpu=two"


def progress(yard: Yard, obj: Obj, tried: int = 0) -> LastAssignment:
    """The memory of a search in the present cycle that stopped at a flavor."""
    generation = yard.snapshot.queues["cq"].generation
    return LastAssignment(({"cpu": tried},), generation, yard.number, workload_view(obj).shape)


def test_older_progress_counts_as_long_as_nothing_was_released() -> None:
    yard = stopped_yard()
    last = progress(yard, workload(cpu=3))
    yard.number += 5
    assert flavors_of(yard.admission(head_of(workload(cpu=3), last))) == "main 1 cpu=two"


def test_older_progress_is_forgotten_once_quota_was_released() -> None:
    yard = stopped_yard()
    last = progress(yard, workload(cpu=3))
    yard.hold("x", 1, flavor="one")
    yard.snapshot.release("team/x")
    yard.number += 1
    assert flavors_of(yard.admission(head_of(workload(cpu=3), last))) == "main 1 cpu=one"


def test_progress_of_another_shape_is_forgotten_at_once() -> None:
    yard = stopped_yard()
    last = progress(yard, workload(cpu=2))
    assert flavors_of(yard.admission(head_of(workload(cpu=3), last))) == "main 1 cpu=one"


def test_progress_of_fewer_pod_sets_leaves_the_others_at_the_first_flavor() -> None:
    yard = stopped_yard()
    sets = [make.pod_set(name, requests={"cpu": "1"}) for name in ("driver", "worker")]
    obj = workload(pod_sets=sets)
    assert flavors_of(yard.admission(head_of(obj, progress(yard, obj)))) == "driver 1 cpu=two; worker 1 cpu=one"


@pytest.mark.parametrize("preference", ["BorrowingOverPreemption", "PreemptionOverBorrowing"])
def test_of_equal_flavors_the_first_is_taken(preference: str) -> None:
    groups = [group(one={"cpu": 4}, two={"cpu": 4})]
    rules = fungibility("TryNextFlavor", preference=preference)
    yard = Yard(queue("cq", groups=groups, flavorFungibility=rules, preemption=preemption("LowerPriority")))
    yard.hold("x", 4, flavor="one", priority=-1)
    yard.hold("y", 4, flavor="two", priority=-1)
    assert yard.victims(workload(cpu=3)) == ["x"]
