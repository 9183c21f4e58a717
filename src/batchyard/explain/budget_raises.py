"""Computes the smallest raise of a Budget after which the Budget no longer holds its LocalQueues."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from batchyard.accounting.budgets import (
    HOLD,
    budget_amount_text,
    evaluate_budget,
    is_in_dollars,
    limit_of,
    period_of,
    thresholds_of,
)
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, parse_quantity, with_path
from batchyard.base.instant import HOUR, Instant
from batchyard.explain.proposals import merge_patch
from batchyard.explain.searches import Patch
from batchyard.interfaces.client import Reader

_NANO_PER_HUNDREDTH: Final = 10_000_000


class BudgetRaise(NamedTuple):
    """The smallest sufficient raise of a Budget as text and as a patch; the amount is rounded up to hundredths."""

    text: str
    patch: Patch


def holding_budgets(local_queue: Obj | None, reader: Reader) -> Sequence[Obj]:
    """Return the exceeded Budgets that hold a LocalQueue, as its annotation names them.

    The result is () if the LocalQueue is None or not held, if any of these Budgets does not exist, or if the queue was
    already stopped before the Budgets held it.
    """
    names = None if local_queue is None else annotation(local_queue, well_known.HELD_BY)
    if local_queue is None or names is None:
        return ()
    if (annotation(local_queue, well_known.STOP_POLICY_BEFORE) or "None") != "None":
        return ()
    namespace = local_queue["metadata"].get("namespace", "")
    budgets = [reader.get(Key(scheme.BUDGET, namespace, name.strip())) for name in names.split(",")]
    existing_budgets = [each for each in budgets if each is not None]
    return existing_budgets if len(existing_budgets) == len(budgets) else ()


def end_of_hold(budgets: Sequence[Obj], now: Instant) -> Instant | None:
    """Return when the last of the Budgets' current periods ends; None if there is no Budget or a period has no end."""
    ends = [period_of(budget, now).end for budget in budgets]
    known_ends = [end for end in ends if end is not None]
    return max(known_ends) if known_ends and len(known_ends) == len(ends) else None


def raise_of_budget(budget: Obj) -> BudgetRaise:
    """Return the smallest raise after which a Budget's reported usage reaches no threshold with the action Hold.

    The reported usage is rounded down to hundredths, so the actual usage is assumed to be up to one hundredth higher.
    """
    field = "dollars" if is_in_dollars(budget) else "acceleratorHours"
    spent_hundredths = parse_quantity((budget.get("status") or {}).get("spent") or 0) // _NANO_PER_HUNDREDTH
    units_per_hundredth = 10_000 if is_in_dollars(budget) else HOUR // 100
    percent = min(each["percent"] for each in thresholds_of(budget) if each["action"] == HOLD)
    hundredths = -(-(spent_hundredths + 1) * 100 // percent)
    new_budget = _with_amount(budget, field, hundredths)
    highest_usage = (spent_hundredths + 1) * units_per_hundredth - 1
    assert evaluate_budget(new_budget, highest_usage).stop_policy == "None", (
        "the Budget still holds its LocalQueues after the proposed raise"
    )
    name, new_amount = budget["metadata"]["name"], new_budget["spec"][field]
    unit = "dollars" if is_in_dollars(budget) else "accelerator hours"
    text = f"Budget {name}: raise {field} from {budget_amount_text(budget, limit_of(budget))} to {new_amount}"
    used_text = budget_amount_text(budget, spent_hundredths * units_per_hundredth)
    patch = merge_patch("Budget", name, {"spec": {field: new_amount}}, budget["metadata"].get("namespace", ""))
    return BudgetRaise(f"{text} ({used_text} {unit} are used)", patch)


def _with_amount(budget: Obj, field: str, hundredths: int) -> Obj:
    return with_path(budget, ("spec", field), f"{hundredths // 100}.{hundredths % 100:02}")
