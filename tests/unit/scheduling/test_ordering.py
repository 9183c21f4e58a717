"""The order of entries in a cycle."""

from typing import Any

import pytest

from batchyard.scheduling.decisions import Decision
from yard import SchedulerBench, cohort, group, head, preemption, queue


def names(decisions: list[Decision]) -> list[str]:
    return [decision.head.workload.name for decision in decisions]


def flat(*, fair_sharing: bool = False, **weights: Any) -> SchedulerBench:
    """Queues a, b and c of 2 cpu each and 12 more in one cohort."""
    members = [queue(n, 2, cohort="all", **({"weight": weights[n]} if n in weights else {})) for n in ("a", "b", "c")]
    return SchedulerBench(cohort("all", 12), *members, fair_sharing=fair_sharing)


# Classical.


def test_entry_with_less_borrowing_is_first() -> None:
    bench = flat()
    assert names(bench.cycle(head("a", 5, priority=9), head("b", 2))) == ["b", "a"]


def test_entry_with_higher_priority_is_first() -> None:
    assert names(flat().cycle(head("a"), head("b", priority=5), head("c", priority=3))) == ["b", "c", "a"]


def test_older_entry_is_first_at_equal_priority() -> None:
    assert names(flat().cycle(head("a", created=2), head("b", created=1), head("c", created=3))) == ["b", "a", "c"]


def test_uid_breaks_ties() -> None:
    assert names(flat().cycle(head("c"), head("b"), head("a"))) == ["a", "b", "c"]


def test_entry_that_borrows_from_nearer_cohort_is_first() -> None:
    bench = SchedulerBench(
        cohort("root", 9), cohort("team", 3, parent="root"), queue("a", 1, cohort="root"), queue("b", 1, cohort="team")
    )
    assert names(bench.cycle(head("a", 3, priority=9), head("b", 3))) == ["b", "a"]


def test_later_entry_waits_if_earlier_entry_used_quota() -> None:
    bench = flat()
    bench.hold("x", 12, "c")
    assert bench.decide(head("a", 4), head("b", 4, created=1)) == [
        "a: main 1 cpu=spot",
        "b waits (WaitingForQuota): Workload no longer fits after processing another workload",
    ]


def test_inadmissible_entry_is_first() -> None:
    decisions = flat().cycle(head("a"), head("x", queue="nowhere", created=9))
    assert names(decisions) == ["x", "a"]


# Fair sharing.


def fair(**weights: Any) -> SchedulerBench:
    return flat(fair_sharing=True, **weights)


def test_branch_with_smallest_share_is_first() -> None:
    bench = fair()
    bench.hold("x", 4, "a")
    bench.hold("y", 3, "b")
    assert names(bench.cycle(head("a", created=1), head("b", created=3), head("c", 9, created=2))) == ["b", "a", "c"]


def test_entry_without_borrowing_precedes_any_share() -> None:
    bench = fair()
    assert names(bench.cycle(head("a", 3, priority=9), head("b", 2))) == ["b", "a"]


def test_borrowing_of_unrequested_resource_is_ignored() -> None:
    groups = [group(spot={"cpu": 2}), group(v100={"gpu": 2})]
    bench = SchedulerBench(
        cohort("all", groups=[group(spot={"cpu": 10}, v100={"gpu": 100})]),
        queue("a", groups=groups, cohort="all"),
        queue("b", groups=groups, cohort="all"),
        fair_sharing=True,
    )
    bench.hold("x", 0, "a", usage={("v100", "gpu"): 90})
    assert names(bench.cycle(head("a", 1), head("b", 3))) == ["a", "b"]


def test_fair_sharing_weights_affect_order() -> None:
    bench = fair(a=4)
    assert names(bench.cycle(head("a", 5, created=9), head("b", 4))) == ["a", "b"]
    assert names(fair(b=0).cycle(head("a", 9, created=9), head("b", 3))) == ["a", "b"]


def test_equal_shares_are_sorted_by_priority_age_and_uid() -> None:
    assert names(fair().cycle(head("a", 3), head("b", 3, priority=1))) == ["b", "a"]
    assert names(fair().cycle(head("a", 3, created=2), head("b", 3, created=1))) == ["b", "a"]
    assert names(fair().cycle(head("b", 3), head("a", 3))) == ["a", "b"]


def test_order_accounts_for_usage_of_earlier_entries() -> None:
    bench = SchedulerBench(
        cohort("root", 12),
        cohort("left", 0, parent="root"),
        queue("a", 0, cohort="left"),
        queue("b", 0, cohort="left"),
        queue("c", 0, cohort="root"),
        fair_sharing=True,
    )
    entries = (head("a", 2, created=1), head("b", 1, created=2), head("c", 2, created=3))
    assert names(bench.cycle(*entries)) == ["b", "c", "a"]


def test_tournament_winner_represents_cohort_in_parent() -> None:
    bench = SchedulerBench(
        cohort("root", 20),
        cohort("left", 4, parent="root"),
        cohort("team", 0, parent="left"),
        cohort("right", 0, parent="root"),
        queue("a", 0, cohort="team"),
        queue("b", 0, cohort="left"),
        queue("c", 0, cohort="right"),
        fair_sharing=True,
    )
    entries = (head("a", 6, created=1), head("b", 5, created=2), head("c", 1, created=3))
    assert names(bench.cycle(*entries)) == ["b", "c", "a"]


def test_cohort_trees_are_processed_one_after_another() -> None:
    bench = SchedulerBench(queue("b", 2), queue("a", 2, cohort="all"), queue("c", 2, cohort="all"), fair_sharing=True)
    assert names(bench.cycle(head("c", priority=3), head("b", priority=9), head("a"))) == ["c", "a", "b"]


@pytest.mark.parametrize("fair_sharing", [False, True])
def test_decisions_do_not_depend_on_order_of_heads(*, fair_sharing: bool) -> None:
    heads = [head("a", 3, created=1), head("b", 1, created=2), head("c", 2, priority=1)]
    there, back = (flat(fair_sharing=fair_sharing).decide(*order) for order in (heads, heads[::-1]))
    assert there == back


def test_preemptor_is_ordered_like_other_entries() -> None:
    bench = fair()
    bench.put(queue("a", 2, cohort="all", preemption=preemption("LowerPriority")))
    bench.hold("x", 14, "a", priority=-1)
    bench.hold("y", 3, "b")
    assert bench.decide(head("a", 2), head("c", 1)) == ["c: main 1 cpu=spot", "a preempts x (InClusterQueue)"]
