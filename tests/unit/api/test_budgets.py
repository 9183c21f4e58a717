"""Validation of Budgets, and table rows of Budgets and CostRecords."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import decode
from batchyard.api.meta import Obj
from batchyard.api.printing import table
from batchyard.base.instant import HOUR

COST = "cost.batchyard.dev/v1alpha1"


def budget(**spec: Any) -> Obj:
    return {"apiVersion": COST, "kind": "Budget", "metadata": {"name": "b", "namespace": "team"}, "spec": spec}


def faults(**spec: Any) -> list[str]:
    return [str(fault) for fault in decode(budget(**spec)).faults]


def test_budget_period_defaults_to_month() -> None:
    decoded = decode(budget(dollars="5000"))
    assert decoded.faults == []
    assert decoded.obj is not None
    assert decoded.obj["spec"]["period"] == "Month"


@pytest.mark.parametrize(
    ("spec", "reported"),
    [
        ({}, "spec.dollars: Required value: a Budget needs an amount"),
        (
            {"dollars": 1, "acceleratorHours": 1},
            "spec.acceleratorHours: Forbidden: must not be set together with dollars",
        ),
        ({"dollars": -1}, "spec.dollars: Invalid value"),
        ({"dollars": 1, "period": "Year"}, 'spec.period: Unsupported value: "Year"'),
        ({"dollars": 1, "thresholds": [{"percent": 0, "action": "Hold"}]}, "spec.thresholds[0].percent: Invalid value"),
        ({"dollars": 1, "thresholds": [{"percent": 1, "action": "Stop"}]}, "spec.thresholds[0].action: Unsupported"),
        ({"dollars": 1, "thresholds": [{"percent": 1, "action": "Notify", "drain": True}]}, "spec.thresholds[0].drain"),
        (
            {"dollars": 1, "thresholds": [{"percent": 1, "action": "Hold", "priorityBoost": -1}]},
            "spec.thresholds[0].priorityBoost: Forbidden: only action Demote can have a priorityBoost",
        ),
    ],
)
def test_invalid_budget_is_rejected(spec: dict[str, Any], reported: str) -> None:
    assert any(fault.startswith(reported) for fault in faults(**spec)), faults(**spec)


def test_thresholds_of_same_action_must_differ_in_percent() -> None:
    notify = [{"percent": percent, "action": "Notify"} for percent in (50, 80)]
    assert faults(dollars=1, thresholds=notify) == []
    assert faults(dollars=1, thresholds=[*notify, notify[0]]) != []


def test_budget_row_shows_spent_and_remaining_amounts() -> None:
    status = {"spent": "12.00", "remaining": "8.00", "forecast": "31.50"}
    conditions = [{"type": "Exceeded", "status": "False", "reason": "Notified"}]
    obj = {**budget(dollars="20", period="Day"), "status": {**status, "conditions": conditions}}
    header, row = table(scheme.BUDGET, [obj], now=0, wide=False, namespaces=False)
    assert header[:7] == ["NAME", "PERIOD", "AMOUNT", "SPENT", "REMAINING", "FORECAST", "STATE"]
    assert row[:7] == ["b", "Day", "$20", "12.00", "8.00", "31.50", "Notified"]


def test_cost_record_row_shows_hours_and_dollars() -> None:
    line = {"pool": "p", "provisioning": "spot", "use": "done", "nodeMicroseconds": HOUR, "microdollars": 1_230_000}
    spec = {"from": "a", "to": "c", "through": "b", "lines": [line, line]}
    obj = {"apiVersion": COST, "kind": "CostRecord", "metadata": {"name": "r", "namespace": "team"}, "spec": spec}
    assert decode(obj).faults == []
    _, row = table(scheme.COST_RECORD, [obj], now=0, wide=False, namespaces=False)
    assert row == ["r", "a", "b", "2.00", "2.46"]
