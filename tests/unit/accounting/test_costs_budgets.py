"""Budgets: periods, reached thresholds, and their effect on queues and Workloads."""

from typing import Any

import pytest

from batchyard.accounting.budgets import (
    BudgetEvaluation,
    BudgetPeriod,
    BudgetUse,
    evaluate_budget,
    newly_reached_thresholds,
    next_threshold_at,
    period_of,
    status_of,
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


def verdict(spent: int, **spec: Any) -> BudgetEvaluation:
    return evaluate_budget(budget(**spec), spent)


@pytest.mark.parametrize(
    ("kind", "begin", "end"),
    [
        ("Day", "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"),
        ("Week", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"),
        ("Month", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
    ],
)
def test_budget_periods_follow_utc_calendar(kind: str, begin: str, end: str) -> None:
    period = period_of(budget(period=kind), NOW)
    assert (format_time(period.begin), format_time(period.end or 0)) == (begin, end)


@pytest.mark.parametrize("month", ["2026-01-31T23:59:59Z", "2028-02-29T12:00:00Z", "2026-12-31T00:00:00Z"])
def test_month_period_ends_where_next_month_begins(month: str) -> None:
    period = period_of(budget(), parse_time(month))
    assert period.end is not None
    assert period_of(budget(), period.end).begin == period.end


def test_total_budget_period_has_no_end() -> None:
    assert period_of(budget(period="Total"), NOW) == BudgetPeriod(0, None)


def test_verdict_applies_only_reached_thresholds() -> None:
    boosts = [verdict(spent, thresholds=LADDER).priority_boost for spent in (5 * DOLLAR - 1, 5 * DOLLAR)]
    assert boosts == [0, -5]
    policies = [verdict(spent, thresholds=LADDER).stop_policy for spent in (10 * DOLLAR - 1, 10 * DOLLAR)]
    assert policies == ["None", "Hold"]


def test_budget_without_thresholds_notifies_at_80_and_holds_at_100_percent() -> None:
    assert [each["action"] for each in verdict(8 * DOLLAR).reached_thresholds] == ["Notify"]
    assert verdict(10 * DOLLAR).stop_policy == "Hold"


def test_crosses_at_returns_exact_time_of_next_threshold() -> None:
    at = next_threshold_at(budget(thresholds=LADDER), BudgetUse(spent_amount=4 * DOLLAR, hourly_rate=3 * DOLLAR), NOW)
    assert at == NOW + 20 * MINUTE
    assert next_threshold_at(budget(), BudgetUse(spent_amount=4 * DOLLAR), NOW) is None


def test_budget_holds_queue_and_restores_it_on_release() -> None:
    holding = verdict(10 * DOLLAR)
    stopped = with_stop_policy(queue(), [holding])
    assert stopped["spec"]["stopPolicy"] == "Hold"
    assert stopped["metadata"]["annotations"]["cost.batchyard.dev/held-by"] == "b"
    assert with_stop_policy(stopped, [holding]) is stopped
    free = with_stop_policy(stopped, [verdict(0)])
    assert free["spec"]["stopPolicy"] == "None"
    assert "annotations" not in free["metadata"]


@pytest.mark.parametrize("before", ["Hold", "HoldAndDrain"])
def test_budget_keeps_stop_policy_set_by_user(before: str) -> None:
    stopped = with_stop_policy(queue(stop=before), [verdict(10 * DOLLAR)])
    assert stopped["spec"]["stopPolicy"] == before
    assert with_stop_policy(stopped, [])["spec"]["stopPolicy"] == before


def test_budget_with_drain_sets_hold_and_drain() -> None:
    drains = [{"percent": 100, "action": "Hold", "drain": True}]
    assert with_stop_policy(queue(), [verdict(10 * DOLLAR, thresholds=drains)])["spec"]["stopPolicy"] == "HoldAndDrain"


def test_budget_leaves_unlisted_queue_unchanged() -> None:
    other = queue("other")
    assert with_stop_policy(other, [verdict(10 * DOLLAR, queues=["main"])]) is other


def test_priority_boost_is_added_and_removed_with_spending() -> None:
    workload = {"metadata": {"name": "w"}, "spec": {"queueName": "main"}}
    lower = with_priority_boost(workload, [verdict(6 * DOLLAR, thresholds=LADDER)])
    assert lower["metadata"]["annotations"] == {"cost.batchyard.dev/priority-boost": "-5"}
    assert with_priority_boost(lower, [verdict(0, thresholds=LADDER)]) == workload


def test_status_reports_remaining_amount_and_forecast() -> None:
    period = period_of(budget(period="Day"), NOW)
    use = BudgetUse(4 * DOLLAR, DOLLAR, recent_amount=4 * DOLLAR, hourly_rate=DOLLAR, committed_amount=2 * DOLLAR)
    status = status_of(budget(period="Day"), use, period, NOW)
    reported = [status[field] for field in ("spent", "running", "committed", "remaining", "forecast")]
    assert reported == ["4.00", "1.00", "2.00", "6.00", "9.14"]  # 10.5 hours elapsed, 13.5 remain
    conditions = {each["type"]: (each["status"], each["reason"]) for each in status["conditions"]}
    assert conditions == {"Within": ("True", "WithinBudget"), "Exceeded": ("False", "WithinBudget")}


@pytest.mark.parametrize(("spent", "remaining"), [(10 * DOLLAR + 9_999, "0.00"), (10 * DOLLAR + 10_000, "-0.01")])
def test_remaining_amount_of_zero_has_no_sign(spent: int, remaining: str) -> None:
    period = period_of(budget(), NOW)
    assert status_of(budget(), BudgetUse(spent_amount=spent), period, NOW)["remaining"] == remaining


def test_forecast_of_exceeded_budget_adds_only_committed_cost() -> None:
    period = period_of(budget(period="Day"), NOW)
    use = BudgetUse(11 * DOLLAR, recent_amount=11 * DOLLAR, hourly_rate=DOLLAR, committed_amount=2 * DOLLAR)
    assert status_of(budget(period="Day"), use, period, NOW)["forecast"] == "13.00"


def test_threshold_is_newly_reached_once_per_period() -> None:
    period = period_of(budget(), NOW)
    before = {**budget(), "status": status_of(budget(), BudgetUse(spent_amount=8 * DOLLAR), period, NOW)}
    assert [each["percent"] for each in newly_reached_thresholds(before, verdict(10 * DOLLAR), period)] == [100]
    later = period_of(budget(), NOW + 31 * 24 * HOUR)
    assert [each["percent"] for each in newly_reached_thresholds(before, verdict(8 * DOLLAR), later)] == [80]
