"""Budgets: their periods, what is reached of them, and what they make of queues and Workloads."""

from typing import Any

import pytest

from batchyard.accounting.budgets import (
    BudgetPeriod,
    BudgetUse,
    BudgetVerdict,
    crosses_at,
    newly_reached,
    period_of,
    status_of,
    verdict_of,
    with_priority_boost,
    with_stop_policy,
)
from batchyard.api.meta import Obj
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import HOUR, MINUTE

NOW = parse_time("2026-11-22T10:30:00Z")  # a Sunday
DOLLAR = 1_000_000
LADDER = [
    {"percent": 50, "action": "Demote", "priorityBoost": -5},
    {"percent": 80, "action": "Notify"},
    {"percent": 100, "action": "Hold"},
]


def budget(**spec: Any) -> Obj:
    return {"kind": "Budget", "metadata": {"name": "b", "namespace": "team"}, "spec": {"dollars": "10", **spec}}


def queue(name: str = "main", stop: str = "None", **notes: str) -> Obj:
    annotations = {f"cost.batchyard.dev/{note.replace('_', '-')}": text for note, text in notes.items()}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": {"clusterQueue": "cq", "stopPolicy": stop}}


def verdict(spent: int, **spec: Any) -> BudgetVerdict:
    return verdict_of(budget(**spec), spent)


@pytest.mark.parametrize(
    ("kind", "begin", "end"),
    [
        ("Day", "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"),
        ("Week", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"),
        ("Month", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
    ],
)
def test_periods_are_those_of_the_calendar_in_utc(kind: str, begin: str, end: str) -> None:
    period = period_of(budget(period=kind), NOW)
    assert (format_time(period.begin), format_time(period.end or 0)) == (begin, end)


@pytest.mark.parametrize("month", ["2026-01-31T23:59:59Z", "2028-02-29T12:00:00Z", "2026-12-31T00:00:00Z"])
def test_each_month_ends_where_the_next_begins(month: str) -> None:
    period = period_of(budget(), parse_time(month))
    assert period.end is not None
    assert period_of(budget(), period.end).begin == period.end


def test_a_budget_in_total_has_no_end() -> None:
    assert period_of(budget(period="Total"), NOW) == BudgetPeriod(0, None)


def test_what_is_reached_is_done_and_no_more() -> None:
    assert (verdict(5 * DOLLAR - 1, thresholds=LADDER).boost, verdict(5 * DOLLAR, thresholds=LADDER).boost) == (0, -5)
    policies = [verdict(spent, thresholds=LADDER).stop_policy for spent in (10 * DOLLAR - 1, 10 * DOLLAR)]
    assert policies == ["None", "Hold"]


def test_without_thresholds_it_notifies_and_holds() -> None:
    assert [each["action"] for each in verdict(8 * DOLLAR).reached] == ["Notify"]
    assert verdict(10 * DOLLAR).stop_policy == "Hold"


def test_the_next_threshold_is_foreseen_to_the_microsecond() -> None:
    at = crosses_at(budget(thresholds=LADDER), BudgetUse(spent=4 * DOLLAR, rate=3 * DOLLAR), NOW)
    assert at == NOW + 20 * MINUTE
    assert crosses_at(budget(), BudgetUse(spent=4 * DOLLAR), NOW) is None


def test_a_queue_is_held_and_is_as_it_was_after() -> None:
    holding = verdict(10 * DOLLAR)
    stopped = with_stop_policy(queue(), [holding])
    assert stopped["spec"]["stopPolicy"] == "Hold"
    assert stopped["metadata"]["annotations"]["cost.batchyard.dev/held-by"] == "b"
    assert with_stop_policy(stopped, [holding]) is stopped
    free = with_stop_policy(stopped, [verdict(0)])
    assert free["spec"]["stopPolicy"] == "None"
    assert "annotations" not in free["metadata"]


@pytest.mark.parametrize("before", ["Hold", "HoldAndDrain"])
def test_what_somebody_stopped_stays_stopped(before: str) -> None:
    stopped = with_stop_policy(queue(stop=before), [verdict(10 * DOLLAR)])
    assert stopped["spec"]["stopPolicy"] == before
    assert with_stop_policy(stopped, [])["spec"]["stopPolicy"] == before


def test_only_a_budget_that_says_so_drains() -> None:
    drains = [{"percent": 100, "action": "Hold", "drain": True}]
    assert with_stop_policy(queue(), [verdict(10 * DOLLAR, thresholds=drains)])["spec"]["stopPolicy"] == "HoldAndDrain"


def test_other_queues_are_let_be() -> None:
    other = queue("other")
    assert with_stop_policy(other, [verdict(10 * DOLLAR, queues=["main"])]) is other


def test_workloads_are_demoted_and_promoted_again() -> None:
    workload = {"metadata": {"name": "w"}, "spec": {"queueName": "main"}}
    lower = with_priority_boost(workload, [verdict(6 * DOLLAR, thresholds=LADDER)])
    assert lower["metadata"]["annotations"] == {"cost.batchyard.dev/priority-boost": "-5"}
    assert with_priority_boost(lower, [verdict(0, thresholds=LADDER)]) == workload


def test_a_status_tells_what_is_left_and_how_it_will_end() -> None:
    period = period_of(budget(period="Day"), NOW)
    use = BudgetUse(spent=4 * DOLLAR, running=DOLLAR, recent=4 * DOLLAR, rate=DOLLAR, committed=2 * DOLLAR)
    status = status_of(budget(period="Day"), use, period, NOW)
    reported = [status[field] for field in ("spent", "running", "committed", "remaining", "forecast")]
    assert reported == ["4.00", "1.00", "2.00", "6.00", "9.14"]  # 10.5 hours have gone, 13.5 are left
    conditions = {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}
    assert conditions == {"Within": ("True", "WithinBudget"), "Exceeded": ("False", "WithinBudget")}


def test_who_is_held_spends_no_more_than_what_runs() -> None:
    period = period_of(budget(period="Day"), NOW)
    use = BudgetUse(spent=11 * DOLLAR, recent=11 * DOLLAR, rate=DOLLAR, committed=2 * DOLLAR)
    assert status_of(budget(period="Day"), use, period, NOW)["forecast"] == "13.00"


def test_a_threshold_is_new_once_in_a_period() -> None:
    period = period_of(budget(), NOW)
    before = {**budget(), "status": status_of(budget(), BudgetUse(spent=8 * DOLLAR), period, NOW)}
    assert [each["percent"] for each in newly_reached(before, verdict(10 * DOLLAR), period)] == [100]
    later = period_of(budget(), NOW + 31 * 24 * HOUR)
    assert [each["percent"] for each in newly_reached(before, verdict(8 * DOLLAR), later)] == [80]
