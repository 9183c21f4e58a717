"""Budgets: usage, thresholds, the actions they trigger, and the forecast. All times are UTC.

Amounts are integers: millionths of dollars, or microseconds of accelerators.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import quantity, well_known
from batchyard.api.conditions import with_condition
from batchyard.api.meta import Obj, annotation
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import HOUR, Duration, Instant

NOTIFY, DEMOTE, HOLD = "Notify", "Demote", "Hold"
#: The defaults of a Budget.
_THRESHOLDS: Final = ({"percent": 80, "action": NOTIFY}, {"percent": 100, "action": HOLD})
_BOOST: Final = -1_000_000
DAY: Final = 24 * HOUR
#: 1970-01-05 was a Monday.
_MONDAY: Final = 4 * DAY
_STOPS: Final = ("None", "Hold", "HoldAndDrain")
_REASONS: Final = {NOTIFY: "Notified", DEMOTE: "Demoted", HOLD: "Held"}


class BudgetUse(NamedTuple):
    """The usage of a Budget's Workloads in the period."""

    spent: int = 0
    #: The part of it of pods that still run.
    running: int = 0
    #: The usage of the last day, within the period.
    recent: int = 0
    #: The current usage per hour.
    rate: int = 0
    #: The most that running Workloads can still use before the period ends.
    committed: int = 0


class BudgetPeriod(NamedTuple):
    """The period of a Budget; no end if the Budget counts in total."""

    begin: Instant
    end: Instant | None


class BudgetVerdict(NamedTuple):
    """The thresholds that a Budget has reached, and the resulting actions."""

    name: str
    #: The LocalQueues that it covers; empty: all.
    queues: frozenset[str]
    #: The thresholds that are reached, by percent.
    reached: Sequence[Mapping[str, Any]] = ()

    @property
    def stop_policy(self) -> str:
        """Return the stopPolicy for its queues."""
        holds = [threshold for threshold in self.reached if threshold["action"] == HOLD]
        return _STOPS[max((2 if threshold.get("drain") else 1 for threshold in holds), default=0)]

    @property
    def boost(self) -> int:
        """Return the change to the priority of its Workloads."""
        return min((each.get("priorityBoost", _BOOST) for each in self.reached if each["action"] == DEMOTE), default=0)

    def covers(self, queue: str) -> bool:
        """Whether it covers a LocalQueue."""
        return not self.queues or queue in self.queues


def period_of(budget: Obj, now: Instant) -> BudgetPeriod:
    """Return the current period of a Budget."""
    kind = budget["spec"].get("period", "Month")
    if kind == "Total":
        return BudgetPeriod(0, None)
    if kind == "Day":
        return BudgetPeriod(now - now % DAY, now - now % DAY + DAY)
    if kind == "Week":
        monday = now - (now - _MONDAY) % (7 * DAY)
        return BudgetPeriod(monday, monday + 7 * DAY)
    month = _month(now)
    return BudgetPeriod(month, _month(month + 31 * DAY))


def is_in_dollars(budget: Obj) -> bool:
    """Whether it counts dollars rather than accelerator hours."""
    return budget["spec"].get("dollars") is not None


def amount_of(budget: Obj) -> int:
    """Return the amount that it allows."""
    if is_in_dollars(budget):
        return quantity.parse(budget["spec"]["dollars"]) // 1000
    return quantity.parse(budget["spec"].get("acceleratorHours") or 0) * HOUR // quantity.NANO


def verdict_of(budget: Obj, spent: int) -> BudgetVerdict:
    """Return the thresholds that a Budget has reached at a usage of `spent`."""
    spec, whole = budget["spec"], amount_of(budget)
    reached = [each for each in _thresholds(budget) if spent * 100 >= whole * each["percent"]]
    return BudgetVerdict(budget["metadata"]["name"], frozenset(spec.get("queues") or ()), reached)


def crosses_at(budget: Obj, use: BudgetUse, now: Instant) -> Instant | None:
    """Return the time at which the next threshold is reached at the current rate; None if none will be."""
    whole = amount_of(budget)
    left = [each["percent"] * whole - use.spent * 100 for each in _thresholds(budget)]
    ahead = [amount for amount in left if amount > 0]
    return now + -(-min(ahead) * HOUR // (use.rate * 100)) if ahead and use.rate > 0 else None


def status_of(budget: Obj, use: BudgetUse, period: BudgetPeriod, now: Instant) -> dict[str, Any]:
    """Return the status of a Budget."""
    whole, verdict = amount_of(budget), verdict_of(budget, use.spent)
    before = budget.get("status") or {}
    is_exceeded = use.spent >= whole
    reached = verdict.reached[-1:]
    reason = _REASONS[reached[0]["action"]] if reached else "WithinBudget"
    unit = "dollars" if is_in_dollars(budget) else "accelerator hours"
    message = f"{budget_amount_text(budget, use.spent)} of {budget_amount_text(budget, whole)} {unit} are used"
    conditions = before.get("conditions") or ()
    for kind, holds in (("Within", not is_exceeded), ("Exceeded", is_exceeded)):
        conditions = with_condition(
            conditions,
            type=kind,
            status=holds,
            reason=reason,
            message=message,
            now=now,
            generation=budget["metadata"].get("generation"),
        )
    amounts = {"spent": use.spent, "running": use.running, "committed": use.committed, "remaining": whole - use.spent}
    status: dict[str, Any] = {field: budget_amount_text(budget, amount) for field, amount in amounts.items()}
    status["conditions"] = conditions
    if reached:
        status["reachedPercent"] = reached[0]["percent"]
    if period.end is not None:
        status["periodStart"], status["periodEnd"] = format_time(period.begin), format_time(period.end)
        is_held = verdict.stop_policy != "None"
        ahead = use.committed if is_held else _ahead(use, period, period.end, now)
        status["forecast"] = budget_amount_text(budget, use.spent + ahead)
    return status


def newly_reached(budget: Obj, verdict: BudgetVerdict, period: BudgetPeriod) -> Sequence[Mapping[str, Any]]:
    """Return the thresholds reached since the status was written, or in a new period."""
    status = budget.get("status") or {}
    same = period.end is None or status.get("periodStart") == format_time(period.begin)
    before = status.get("reachedPercent", 0) if same else 0
    return [each for each in verdict.reached if each["percent"] > before]


def budget_amount_text(budget: Obj, amount: int) -> str:
    """Format an amount in dollars to the cent, or in hours to the hundredth, rounded down."""
    unit = 10_000 if is_in_dollars(budget) else HOUR // 100
    sign, parts = ("-", -amount // unit) if amount < 0 else ("", amount // unit)
    return f"{sign}{parts // 100}.{parts % 100:02}"


# --- actions ---


def with_stop_policy(queue: Obj, verdicts: Iterable[BudgetVerdict]) -> Obj:
    """Return a LocalQueue with the stopPolicy that Budgets require, or with its own one restored.

    The previous stopPolicy is kept in an annotation. If nothing changes, the queue itself is returned.
    """
    metadata, now = queue["metadata"], queue["spec"].get("stopPolicy") or "None"
    holding = [each for each in verdicts if each.stop_policy != "None" and each.covers(metadata["name"])]
    is_held = annotation(queue, well_known.HELD_BY) is not None
    before = (annotation(queue, well_known.STOP_POLICY_BEFORE) or "None") if is_held else now
    if not holding and not is_held:
        return queue
    wanted = max([before, *(each.stop_policy for each in holding)], key=_order)
    notes = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in _NOTES}
    if holding:
        names = ", ".join(sorted(each.name for each in holding))
        notes |= {well_known.HELD_BY: names, well_known.STOP_POLICY_BEFORE: before}
    if wanted == now and notes == (metadata.get("annotations") or {}):
        return queue
    changed = {k: v for k, v in metadata.items() if k != "annotations"} | ({"annotations": notes} if notes else {})
    return {**queue, "metadata": changed, "spec": {**queue["spec"], "stopPolicy": wanted}}


def with_priority_boost(workload: Obj, verdicts: Iterable[BudgetVerdict]) -> Obj:
    """Return a Workload with the priority boost that Budgets require; itself if nothing changes."""
    metadata = workload["metadata"]
    queue = workload["spec"].get("queueName", "")
    boost = min((each.boost for each in verdicts if each.covers(queue)), default=0)
    wanted = str(boost) if boost else None
    if annotation(workload, well_known.PRIORITY_BOOST) == wanted:
        return workload
    notes = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != well_known.PRIORITY_BOOST}
    if wanted is not None:
        notes[well_known.PRIORITY_BOOST] = wanted
    changed = {k: v for k, v in metadata.items() if k != "annotations"} | ({"annotations": notes} if notes else {})
    return {**workload, "metadata": changed}


_NOTES: Final = (well_known.HELD_BY, well_known.STOP_POLICY_BEFORE)


def _order(policy: str) -> int:
    return _STOPS.index(policy) if policy in _STOPS else 0


def _thresholds(budget: Obj) -> list[Mapping[str, Any]]:
    given: Iterable[Mapping[str, Any]] = budget["spec"].get("thresholds") or _THRESHOLDS
    return sorted(given, key=lambda each: each["percent"])


def _ahead(use: BudgetUse, period: BudgetPeriod, end: Instant, now: Instant) -> int:
    """Return the expected usage until the end of the period, at the rate of the last day."""
    elapsed: Duration = min(DAY, now - period.begin)
    return use.recent * (end - now) // elapsed if elapsed else 0


def _month(instant: Instant) -> Instant:
    """Return the begin of its month."""
    return parse_time(f"{format_time(instant)[:7]}-01T00:00:00Z")
