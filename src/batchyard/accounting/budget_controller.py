"""Budget controller: updates the status of Budgets, stops the queues of exceeded ones and restores them.

All Budgets of a namespace are reconciled together: every minute while its Workloads incur costs, when a threshold is
expected to be reached, and when a period ends. Usage comes from the records, and for the open hour from the ledger.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.accounting.accounts import RUNS, AccountKey
from batchyard.accounting.budgets import (
    DAY,
    BudgetPeriod,
    BudgetUse,
    BudgetVerdict,
    budget_amount_text,
    crosses_at,
    is_in_dollars,
    newly_reached,
    period_of,
    status_of,
    verdict_of,
    with_priority_boost,
    with_stop_policy,
)
from batchyard.accounting.controller import EVERY, CostController
from batchyard.accounting.ledger import CostLedger
from batchyard.accounting.records import ParsedCostRecord, RecordedAmount, amounts_of, is_open, read
from batchyard.accounting.report import latest, spent
from batchyard.api import scheme, well_known
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj, annotation, key_of, with_status
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR, SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.scheduling.workload.lifecycle import is_finished

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
