"""Budgets: usage, thresholds, the actions they trigger, and the forecast. All times are UTC.

Amounts are integers: millionths of dollars, or microseconds of accelerators.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.accounting.accounts import RUNS, AccountKey
from batchyard.accounting.controller import EVERY, CostController
from batchyard.accounting.ledger import CostLedger
from batchyard.accounting.records import ParsedCostRecord, RecordedAmount, amounts_of, is_open, latest, read, spent
from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition, key_of, with_condition, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import HOUR, SECOND, Duration, Instant
from batchyard.interfaces.client import EventType, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.scheduling.workload.lifecycle import is_finished

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
        return meta.parse(budget["spec"]["dollars"]) // 1000
    return meta.parse(budget["spec"].get("acceleratorHours") or 0) * HOUR // meta.NANO


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
    """Format an amount in dollars to the cent, or in hours to the hundredth, rounded toward zero."""
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


# --- budget controller ---
#
# Budget controller: updates the status of Budgets, stops the queues of exceeded ones and restores them.
#
# All Budgets of a namespace are reconciled together: every minute while its Workloads incur costs, when a threshold is
# expected to be reached, and when a period ends. Usage comes from the records, and for the open hour from the ledger.


_KIND: Final = "Budgets"


class _Span(NamedTuple):
    """The usage of a namespace's queues in a time span."""

    begin: Instant
    #: The usage by LocalQueue and by whether the pods still run.
    used: Mapping[tuple[str, bool], RecordedAmount]


class Budgets:
    """The budget controller. `is_endless`: time advances without events, so that periods end by themselves."""

    name = "budgets"
    rank = 0
    kinds = (scheme.BUDGET, scheme.LOCAL_QUEUE, scheme.WORKLOAD)

    def __init__(self, costs: CostController, *, is_endless: bool) -> None:
        self._costs = costs
        self._is_endless = is_endless
        #: Budgets by namespace; an empty entry for a namespace that had some.
        self._budgets: dict[str, dict[Key, None]] = {}
        #: The parsed records by key, each with its object.
        self._read: dict[Key, tuple[Obj, ParsedCostRecord]] = {}
        #: The namespaces that are requeued, and those whose Workloads are demoted.
        self._awake: dict[str, None] = {}
        self._demoting: dict[str, bool] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the batch key of the namespace if it has Budgets, or if the object carries an annotation of one."""
        namespace, obj = event.key.namespace, event.obj
        batch = (Key(_KIND, namespace, "budgets"),)
        if event.key.kind == scheme.BUDGET:
            known = self._budgets.setdefault(namespace, {})
            if event.type is EventType.DELETED:
                known.pop(event.key, None)
            else:
                known[event.key] = None
                if event.old is not None and event.old.get("spec") == obj.get("spec"):
                    return ()  #  a status update by this controller
            return batch
        if event.key.kind == scheme.WORKLOAD and not self._may_need_reconcile(event):
            return ()
        note = well_known.HELD_BY if event.key.kind == scheme.LOCAL_QUEUE else well_known.PRIORITY_BOOST
        return batch if self._budgets.get(namespace) or annotation(obj, note) is not None else ()

    def _may_need_reconcile(self, event: WatchEvent) -> bool:
        """Whether a Workload may need a demotion, or may be the first one that incurs costs again."""
        namespace = event.key.namespace
        if event.old is None or annotation(event.obj, well_known.PRIORITY_BOOST) is not None:
            return self._demoting.get(namespace, False) or namespace not in self._awake
        return namespace not in self._awake and _turns(event)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Reconcile all Budgets of a namespace."""
        ledger = self._costs.ledger
        if ledger is None:  #  no machine was billed yet, or the process is starting
            return ReconcileResult(requeue_at=now + SECOND)
        budgets = [obj for name in self._budgets.get(key.namespace, ()) if (obj := reader.get(name)) is not None]
        outcome = ReconcileResult(independent=True)
        spans = self._spans(key.namespace, reader, ledger, now) if budgets else ()
        verdicts, times = [], []
        for budget in budgets:
            period = period_of(budget, now)
            use = self._use(budget, period, spans, reader, now)
            verdict = verdict_of(budget, use.spent)
            verdicts.append(verdict)
            times += [crosses_at(budget, use, now), now + EVERY if use.rate or self._is_endless else None]
            times.append(period.end if verdict.reached or self._is_endless else None)
            outcome.events += _events(budget, verdict, period, use)
            status = status_of(budget, use, period, now)
            if status != budget.get("status"):
                outcome.writes.append(UpdateStatus(with_status(budget, status)))
        self._act(key.namespace, verdicts, reader, outcome)
        outcome.requeue_at = min((each for each in times if each is not None), default=None)
        self._demoting[key.namespace] = any(each.boost for each in verdicts)
        if outcome.requeue_at is None:
            self._awake.pop(key.namespace, None)
        else:
            self._awake[key.namespace] = None
        return outcome

    def _act(self, namespace: str, verdicts: Sequence[BudgetVerdict], reader: Reader, outcome: ReconcileResult) -> None:
        """Stop queues and lower priorities, or restore them."""
        for queue in reader.list(scheme.LOCAL_QUEUE, namespace):
            wanted = with_stop_policy(queue, verdicts)
            if wanted is not queue:
                outcome.writes.append(Update(wanted))
                outcome.events.append(_about(queue, wanted))
        may_differ = any(each.boost for each in verdicts)
        for workload in reader.list(scheme.WORKLOAD, namespace):
            is_marked = annotation(workload, well_known.PRIORITY_BOOST) is not None
            if (may_differ or is_marked) and not is_finished(workload):
                wanted = with_priority_boost(workload, verdicts)
                if wanted is not workload:
                    outcome.writes.append(Update(wanted))

    # --- usage ---

    def _use(
        self, budget: Obj, period: BudgetPeriod, spans: Sequence[_Span], reader: Reader, now: Instant
    ) -> BudgetUse:
        field = 2 if is_in_dollars(budget) else 1
        queues = frozenset(budget["spec"].get("queues") or ())
        total = running = recent = 0
        for span in spans:
            for (queue, runs), amount in span.used.items():
                if span.begin < period.begin or (queues and queue not in queues):
                    continue
                total += amount[field]
                running += amount[field] if runs else 0
                recent += amount[field] if span.begin >= now - DAY else 0
        rate = committed = 0
        ledger = self._costs.ledger
        for owner, (dollars, thousandths) in ({} if ledger is None else ledger.rates()).items():
            if owner.team != budget["metadata"]["namespace"] or (queues and owner.local_queue not in queues):
                continue
            each = dollars if is_in_dollars(budget) else thousandths * HOUR // 1000
            rate += each
            workload = reader.get(Key(scheme.WORKLOAD, owner.team, owner.workload))
            committed += each * max(0, _until(workload, period, now) - now) // HOUR
        return BudgetUse(total, running, recent, rate, committed)

    def _spans(self, namespace: str, reader: Reader, ledger: CostLedger, now: Instant) -> Sequence[_Span]:
        """Return the usage of a namespace's queues, by hour or by longer spans."""
        objects = {key_of(obj): obj for obj in reader.list(scheme.COST_RECORD, namespace) if not is_open(obj)}
        objects |= {key: obj for key, obj in self._costs.unwritten.items() if key.namespace == namespace}
        records = [self._record(key, obj) for key, obj in objects.items()]
        over = [each for each in latest(records) if each.begin < ledger.begun]
        spans = [_Span(each.begin, _by_queue(spent(records, [each]))) for each in over]
        return [*spans, _Span(ledger.begun, amounts_of(ledger.used(namespace, now)))]

    def _record(self, key: Key, obj: Obj) -> ParsedCostRecord:
        known = self._read.get(key)
        if known is None or known[0] is not obj:
            known = self._read[key] = obj, read(obj)
        return known[1]


def _by_queue(lines: Mapping[AccountKey, RecordedAmount]) -> dict[tuple[str, bool], RecordedAmount]:
    used: dict[tuple[str, bool], RecordedAmount] = {}
    for place, amount in lines.items():
        which = place.local_queue, place.use == RUNS
        used[which] = used.get(which, RecordedAmount()).plus(amount)
    return used


def _until(workload: Obj | None, period: BudgetPeriod, now: Instant) -> Instant:
    """Return the latest end of a Workload within a period; one hour from now if neither has an end."""
    end = now + HOUR if period.end is None else period.end
    admitted = None if workload is None else find_condition(workload, "Admitted")
    limit: int | None = None if workload is None else workload["spec"].get("maximumExecutionTimeSeconds")
    if limit is None or admitted is None or admitted["status"] != "True":
        return end
    stops = parse_time(admitted["lastTransitionTime"]) + limit * SECOND
    return stops if period.end is None else min(end, stops)


def _turns(event: WatchEvent) -> bool:
    """Whether a Workload was created or deleted, or its Admitted or Finished condition changed."""
    if event.old is None or event.type is EventType.DELETED:
        return True
    before, after = ([find_condition(obj, kind) for kind in ("Admitted", "Finished")] for obj in (event.old, event.obj))
    return [each and each["status"] for each in before] != [each and each["status"] for each in after]


def _events(budget: Obj, verdict: BudgetVerdict, period: BudgetPeriod, use: BudgetUse) -> list[EventRecord]:
    """Return an Event for each threshold that was just reached."""
    unit = "dollars" if is_in_dollars(budget) else "accelerator hours"
    return [
        EventRecord(
            key_of(budget),
            "Warning",
            "ThresholdReached",
            f"{each['percent']}% is reached: {budget_amount_text(budget, use.spent)} {unit} "
            f"are used ({each['action']})",
        )
        for each in newly_reached(budget, verdict, period)
    ]


def _about(before: Obj, after: Obj) -> EventRecord:
    """Return the Event of a queue that is held or released."""
    names = annotation(after, well_known.HELD_BY)
    if names is not None:
        return EventRecord(key_of(before), "Warning", "HeldByBudget", f"Budget {names} is used up: admits none")
    policy = after["spec"]["stopPolicy"]
    return EventRecord(key_of(before), "Normal", "LetGoByBudget", f"No Budget holds it: stopPolicy is {policy}")
