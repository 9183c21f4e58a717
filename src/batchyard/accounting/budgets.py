"""Budgets: usage, thresholds, forecast, the actions of reached thresholds, and the Budget controller.

Amounts are integers: millionths of dollars, or microseconds of accelerators. All times are UTC.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.accounting.accounts import RUNS, AccountKey
from batchyard.accounting.controller import WRITE_PERIOD, CostController
from batchyard.accounting.ledger import CostLedger
from batchyard.accounting.records import (
    ParsedCostRecord,
    RecordedAmount,
    amounts_of,
    is_checkpoint,
    parse_cost_record,
    sum_corrected_records,
    unreplaced_records,
)
from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition, key_of, with_condition, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import HOUR, SECOND, Duration, Instant
from batchyard.interfaces.client import EventType, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.scheduling.workload.lifecycle import is_finished

NOTIFY, DEMOTE, HOLD = "Notify", "Demote", "Hold"
#: The default thresholds of a Budget.
_DEFAULT_THRESHOLDS: Final = ({"percent": 80, "action": NOTIFY}, {"percent": 100, "action": HOLD})
_DEFAULT_BOOST: Final = -1_000_000
DAY: Final = 24 * HOUR
#: 1970-01-05 was a Monday.
_FIRST_MONDAY_SINCE_EPOCH: Final = 4 * DAY
_STOP_POLICIES: Final = ("None", "Hold", "HoldAndDrain")
_REASON_BY_ACTION: Final = {NOTIFY: "Notified", DEMOTE: "Demoted", HOLD: "Held"}


class BudgetUse(NamedTuple):
    """Usage that counts toward a Budget in its current period, the hourly rate, and the maximum further usage.

    All amounts have the unit of the Budget's limit: millionths of dollars, or microseconds of accelerator time.
    """

    spent_amount: int = 0
    #: The part of `spent_amount` that belongs to pods that still run.
    running_amount: int = 0
    #: The usage of the last day, within the period.
    recent_amount: int = 0
    #: The current usage per hour.
    hourly_rate: int = 0
    #: The maximum further usage of the running Workloads until the period ends; without an end, within an hour.
    committed_amount: int = 0


class BudgetPeriod(NamedTuple):
    """The begin and end of the period that a Budget limits; the end is None if it limits the total usage."""

    begin: Instant
    end: Instant | None


class BudgetEvaluation(NamedTuple):
    """The thresholds that a Budget has reached, and what it requires of its LocalQueues and Workloads."""

    name: str
    #: The LocalQueues that the Budget covers; empty for all LocalQueues of the namespace.
    queues: frozenset[str]
    #: The reached thresholds, in order of percent.
    reached_thresholds: Sequence[Mapping[str, Any]] = ()

    @property
    def stop_policy(self) -> str:
        """The stopPolicy (None, Hold or HoldAndDrain) that the Budget requires for its LocalQueues."""
        hold_thresholds = [threshold for threshold in self.reached_thresholds if threshold["action"] == HOLD]
        return _STOP_POLICIES[max((2 if threshold.get("drain") else 1 for threshold in hold_thresholds), default=0)]

    @property
    def priority_boost(self) -> int:
        """The priority boost (zero or negative) that the Budget requires for its Workloads."""
        demote_thresholds = [threshold for threshold in self.reached_thresholds if threshold["action"] == DEMOTE]
        return min((threshold.get("priorityBoost", _DEFAULT_BOOST) for threshold in demote_thresholds), default=0)

    def covers(self, queue: str) -> bool:
        """Return whether the Budget limits the usage of a LocalQueue in the Budget's namespace."""
        return not self.queues or queue in self.queues


def period_of(budget: Obj, now: Instant) -> BudgetPeriod:
    """Return the day, week, month or unlimited period of a Budget that contains `now`."""
    period_kind = budget["spec"].get("period", "Month")
    if period_kind == "Total":
        return BudgetPeriod(0, None)
    if period_kind == "Day":
        return BudgetPeriod(now - now % DAY, now - now % DAY + DAY)
    if period_kind == "Week":
        monday_begin = now - (now - _FIRST_MONDAY_SINCE_EPOCH) % (7 * DAY)
        return BudgetPeriod(monday_begin, monday_begin + 7 * DAY)
    month_begin = _month_begin(now)
    return BudgetPeriod(month_begin, _month_begin(month_begin + 31 * DAY))


def is_in_dollars(budget: Obj) -> bool:
    """Return whether a Budget limits dollars rather than accelerator hours."""
    return budget["spec"].get("dollars") is not None


def limit_of(budget: Obj) -> int:
    """Return a Budget's limit: millionths of dollars if it limits dollars, else microseconds of accelerator time."""
    if is_in_dollars(budget):
        return meta.parse_quantity(budget["spec"]["dollars"]) // 1000
    return meta.parse_quantity(budget["spec"].get("acceleratorHours") or 0) * HOUR // meta.NANO


def evaluate_budget(budget: Obj, spent_amount: int) -> BudgetEvaluation:
    """Return which thresholds a Budget has reached after usage of `spent_amount`."""
    spec, limit_amount = budget["spec"], limit_of(budget)
    reached_thresholds = [
        each for each in thresholds_of(budget) if spent_amount * 100 >= limit_amount * each["percent"]
    ]
    return BudgetEvaluation(budget["metadata"]["name"], frozenset(spec.get("queues") or ()), reached_thresholds)


def next_threshold_at(budget: Obj, use: BudgetUse, now: Instant) -> Instant | None:
    """Return when a Budget reaches its next threshold at the current hourly rate; None if the rate is 0.

    Also return None if all thresholds are reached.
    """
    limit_amount = limit_of(budget)
    missing_by_threshold = [each["percent"] * limit_amount - use.spent_amount * 100 for each in thresholds_of(budget)]
    missing_amounts: list[int] = [amount for amount in missing_by_threshold if amount > 0]
    if not missing_amounts or use.hourly_rate <= 0:
        return None
    return now + -(-min(missing_amounts) * HOUR // (use.hourly_rate * 100))


def status_of(budget: Obj, use: BudgetUse, period: BudgetPeriod, now: Instant) -> dict[str, Any]:
    """Return the new status of a Budget: amounts and conditions, and for a limited period its times and a forecast."""
    limit, evaluation = limit_of(budget), evaluate_budget(budget, use.spent_amount)
    old_status = budget.get("status") or {}
    is_exceeded = use.spent_amount >= limit
    highest_threshold = evaluation.reached_thresholds[-1:]
    reason = _REASON_BY_ACTION[highest_threshold[0]["action"]] if highest_threshold else "WithinBudget"
    unit = "dollars" if is_in_dollars(budget) else "accelerator hours"
    message = f"{budget_amount_text(budget, use.spent_amount)} of {budget_amount_text(budget, limit)} {unit} are used"
    conditions = old_status.get("conditions") or ()
    for kind, is_true in (("Within", not is_exceeded), ("Exceeded", is_exceeded)):
        conditions = with_condition(
            conditions,
            type=kind,
            status=is_true,
            reason=reason,
            message=message,
            now=now,
            generation=budget["metadata"].get("generation"),
        )
    amounts_by_field = {"spent": use.spent_amount, "running": use.running_amount, "committed": use.committed_amount}
    amounts_by_field["remaining"] = limit - use.spent_amount
    status: dict[str, Any] = {field: budget_amount_text(budget, amount) for field, amount in amounts_by_field.items()}
    status["conditions"] = conditions
    if highest_threshold:
        status["reachedPercent"] = highest_threshold[0]["percent"]
    if period.end is not None:
        status["periodStart"], status["periodEnd"] = format_time(period.begin), format_time(period.end)
        are_queues_held = evaluation.stop_policy != "None"
        expected_usage = use.committed_amount if are_queues_held else _forecast_usage(use, period, period.end, now)
        status["forecast"] = budget_amount_text(budget, use.spent_amount + expected_usage)
    return status


def newly_reached_thresholds(
    budget: Obj, evaluation: BudgetEvaluation, period: BudgetPeriod
) -> Sequence[Mapping[str, Any]]:
    """Return the reached thresholds of a Budget that its status does not report yet in this period."""
    status = budget.get("status") or {}
    is_same_period = period.end is None or status.get("periodStart") == format_time(period.begin)
    reported_percent = status.get("reachedPercent", 0) if is_same_period else 0
    return [each for each in evaluation.reached_thresholds if each["percent"] > reported_percent]


def budget_amount_text(budget: Obj, amount: int) -> str:
    """Return an amount of the Budget as text: dollars or hours with two decimal places, rounded toward zero."""
    amount_per_hundredth = 10_000 if is_in_dollars(budget) else HOUR // 100
    hundredths = abs(amount) // amount_per_hundredth
    sign = "-" if amount < 0 and hundredths else ""
    return f"{sign}{hundredths // 100}.{hundredths % 100:02}"


def _with_annotations(metadata: Obj, annotations: Obj) -> dict[str, Any]:
    other_fields = {k: v for k, v in metadata.items() if k != "annotations"}
    return other_fields | ({"annotations": annotations} if annotations else {})


def with_stop_policy(queue: Obj, evaluations: Iterable[BudgetEvaluation]) -> Obj:
    """Return a LocalQueue with the strictest of its own stopPolicy and those that Budgets require.

    An annotation keeps the queue's own stopPolicy, which is restored when no Budget requires another. If nothing
    changes, the same object is returned.
    """
    metadata, current_policy = queue["metadata"], queue["spec"].get("stopPolicy") or "None"
    hold_evaluations = [each for each in evaluations if each.stop_policy != "None" and each.covers(metadata["name"])]
    is_held = annotation(queue, well_known.HELD_BY) is not None
    previous_policy = (annotation(queue, well_known.STOP_POLICY_BEFORE) or "None") if is_held else current_policy
    if not hold_evaluations and not is_held:
        return queue
    required_policy = max([previous_policy, *(each.stop_policy for each in hold_evaluations)], key=_stop_policy_rank)
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in _BUDGET_ANNOTATIONS}
    if hold_evaluations:
        names = ", ".join(sorted(each.name for each in hold_evaluations))
        annotations |= {well_known.HELD_BY: names, well_known.STOP_POLICY_BEFORE: previous_policy}
    if required_policy == current_policy and annotations == (metadata.get("annotations") or {}):
        return queue
    new_metadata = _with_annotations(metadata, annotations)
    return {**queue, "metadata": new_metadata, "spec": {**queue["spec"], "stopPolicy": required_policy}}


def with_priority_boost(workload: Obj, evaluations: Iterable[BudgetEvaluation]) -> Obj:
    """Return a Workload with the priority boost annotation that Budgets require, or without it if they require none.

    If nothing changes, the same object is returned.
    """
    metadata = workload["metadata"]
    queue_name = workload["spec"].get("queueName", "")
    priority_boost_value = min((each.priority_boost for each in evaluations if each.covers(queue_name)), default=0)
    boost_annotation = str(priority_boost_value) if priority_boost_value else None
    if annotation(workload, well_known.PRIORITY_BOOST) == boost_annotation:
        return workload
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != well_known.PRIORITY_BOOST}
    if boost_annotation is not None:
        annotations[well_known.PRIORITY_BOOST] = boost_annotation
    new_metadata = _with_annotations(metadata, annotations)
    return {**workload, "metadata": new_metadata}


_BUDGET_ANNOTATIONS: Final = (well_known.HELD_BY, well_known.STOP_POLICY_BEFORE)


def _stop_policy_rank(policy: str) -> int:
    return _STOP_POLICIES.index(policy) if policy in _STOP_POLICIES else 0


def thresholds_of(budget: Obj) -> list[Mapping[str, Any]]:
    """Return the thresholds of a Budget, or the default thresholds, sorted by percent."""
    thresholds: Iterable[Mapping[str, Any]] = budget["spec"].get("thresholds") or _DEFAULT_THRESHOLDS
    return sorted(thresholds, key=lambda each: each["percent"])


def _forecast_usage(budget_use: BudgetUse, period: BudgetPeriod, end: Instant, now: Instant) -> int:
    elapsed_time: Duration = min(DAY, now - period.begin)
    return budget_use.recent_amount * (end - now) // elapsed_time if elapsed_time else 0


def _month_begin(instant: Instant) -> Instant:
    return parse_time(f"{format_time(instant)[:7]}-01T00:00:00Z")


# Budget controller: updates the status of Budgets, and stops and restarts the LocalQueues that they cover.
#
# All Budgets of a namespace are reconciled together: every minute while its Workloads incur costs, when a threshold is
# expected to be reached, and when a period ends. Usage comes from the records, and for the open hour from the ledger.


_BUDGET_BATCH_KIND: Final = "Budgets"


class _UsageSpan(NamedTuple):
    begin: Instant
    #: The usage by LocalQueue and by whether the pods still run.
    usage: Mapping[tuple[str, bool], RecordedAmount]


class Budgets:
    """The Budget controller: updates the status of Budgets, and stops LocalQueues or demotes Workloads as they require.

    With `is_endless` (a live platform), it also reconciles every minute while no pod runs.
    """

    name = "budgets"
    rank = 0
    kinds = (scheme.BUDGET, scheme.LOCAL_QUEUE, scheme.WORKLOAD)

    def __init__(self, costs: CostController, *, is_endless: bool) -> None:
        self._costs = costs
        self._is_endless = is_endless
        #: Budgets by namespace; the entry is empty for a namespace whose Budgets were deleted.
        self._budgets: dict[str, dict[Key, None]] = {}
        #: Cache of parsed CostRecords by key, each with the parsed object.
        self._parsed_records: dict[Key, tuple[Obj, ParsedCostRecord]] = {}
        #: The namespaces that are requeued, and whether the Workloads of a namespace are demoted.
        self._requeued_namespaces: dict[str, None] = {}
        self._is_demoting_by_namespace: dict[str, bool] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Update the index of Budgets; return the single key for all Budgets of the event's namespace, or nothing.

        The key is returned if the event may affect one of these Budgets.
        """
        namespace, obj = event.key.namespace, event.obj
        namespace_keys = (Key(_BUDGET_BATCH_KIND, namespace, "budgets"),)
        if event.key.kind == scheme.BUDGET:
            budget_keys = self._budgets.setdefault(namespace, {})
            if event.type is EventType.DELETED:
                budget_keys.pop(event.key, None)
            else:
                budget_keys[event.key] = None
                if event.old is not None and event.old.get("spec") == obj.get("spec"):
                    return ()  #  only this controller's status update
            return namespace_keys
        if event.key.kind == scheme.WORKLOAD and not self._may_need_reconcile(event):
            return ()
        annotation_name = well_known.HELD_BY if event.key.kind == scheme.LOCAL_QUEUE else well_known.PRIORITY_BOOST
        return namespace_keys if self._budgets.get(namespace) or annotation(obj, annotation_name) is not None else ()

    def _may_need_reconcile(self, event: WatchEvent) -> bool:
        namespace = event.key.namespace
        if event.old is None or annotation(event.obj, well_known.PRIORITY_BOOST) is not None:
            return self._is_demoting_by_namespace.get(namespace, False) or namespace not in self._requeued_namespaces
        return namespace not in self._requeued_namespaces and _affects_costs(event)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the writes for a namespace's Budgets, and for the LocalQueues and Workloads to which they apply.

        They set the status of Budgets, `stopPolicy` of LocalQueues, and the priority-boost annotation of Workloads.
        Without a cost ledger, only request a retry after a second.
        """
        cost_ledger = self._costs.ledger
        if cost_ledger is None:  #  no machine was billed yet, or the process is starting
            return ReconcileResult(requeue_at=now + SECOND)
        budgets = [obj for name in self._budgets.get(key.namespace, ()) if (obj := reader.get(name)) is not None]
        reconcile_result = ReconcileResult(independent=True)
        usage_spans = self._usage_spans(key.namespace, reader, cost_ledger, now) if budgets else ()
        evaluations, requeue_times = [], []
        for budget in budgets:
            budget_period = period_of(budget, now)
            use = self._compute_use(budget, budget_period, usage_spans, reader, now)
            evaluation = evaluate_budget(budget, use.spent_amount)
            evaluations.append(evaluation)
            write_time = now + WRITE_PERIOD if use.hourly_rate or self._is_endless else None
            period_end = budget_period.end if evaluation.reached_thresholds or self._is_endless else None
            requeue_times += [next_threshold_at(budget, use, now), write_time, period_end]
            reconcile_result.events += _threshold_events(budget, evaluation, budget_period, use)
            status = status_of(budget, use, budget_period, now)
            if status != budget.get("status"):
                reconcile_result.writes.append(UpdateStatus(with_status(budget, status)))
        self._apply_actions(key.namespace, evaluations, reader, reconcile_result)
        reconcile_result.requeue_at = min((each for each in requeue_times if each is not None), default=None)
        self._is_demoting_by_namespace[key.namespace] = any(each.priority_boost for each in evaluations)
        if reconcile_result.requeue_at is None:
            self._requeued_namespaces.pop(key.namespace, None)
        else:
            self._requeued_namespaces[key.namespace] = None
        return reconcile_result

    def _apply_actions(
        self, namespace: str, evaluations: Sequence[BudgetEvaluation], reader: Reader, reconcile_result: ReconcileResult
    ) -> None:
        for queue in reader.list(scheme.LOCAL_QUEUE, namespace):
            updated_object = with_stop_policy(queue, evaluations)
            if updated_object is not queue:
                reconcile_result.writes.append(Update(updated_object))
                reconcile_result.events.append(_stop_policy_event(queue, updated_object))
        has_priority_boost = any(each.priority_boost for each in evaluations)
        for workload in reader.list(scheme.WORKLOAD, namespace):
            has_boost_annotation = annotation(workload, well_known.PRIORITY_BOOST) is not None
            if (has_priority_boost or has_boost_annotation) and not is_finished(workload):
                updated_object = with_priority_boost(workload, evaluations)
                if updated_object is not workload:
                    reconcile_result.writes.append(Update(updated_object))

    def _compute_use(
        self, budget: Obj, period: BudgetPeriod, usage_spans: Sequence[_UsageSpan], reader: Reader, now: Instant
    ) -> BudgetUse:
        amount_field_index = 2 if is_in_dollars(budget) else 1
        queue_names = frozenset(budget["spec"].get("queues") or ())
        spent_amount = running_amount = recent_amount = 0
        for span in usage_spans:
            for (queue, is_running), amount in span.usage.items():
                if span.begin < period.begin or (queue_names and queue not in queue_names):
                    continue
                spent_amount += amount[amount_field_index]
                running_amount += amount[amount_field_index] if is_running else 0
                recent_amount += amount[amount_field_index] if span.begin >= now - DAY else 0
        total_hourly_rate = committed_amount = 0
        ledger = self._costs.ledger
        for owner, (hourly_dollars, thousandths) in ({} if ledger is None else ledger.hourly_rates()).items():
            if owner.team != budget["metadata"]["namespace"] or (queue_names and owner.local_queue not in queue_names):
                continue
            hourly_rate = hourly_dollars if is_in_dollars(budget) else thousandths * HOUR // 1000
            total_hourly_rate += hourly_rate
            workload = reader.get(Key(scheme.WORKLOAD, owner.team, owner.workload))
            committed_amount += hourly_rate * max(0, _latest_workload_end(workload, period, now) - now) // HOUR
        return BudgetUse(spent_amount, running_amount, recent_amount, total_hourly_rate, committed_amount)

    def _usage_spans(self, namespace: str, reader: Reader, ledger: CostLedger, now: Instant) -> Sequence[_UsageSpan]:
        closed_objects = {
            key_of(obj): obj for obj in reader.list(scheme.COST_RECORD, namespace) if not is_checkpoint(obj)
        }
        closed_objects |= {key: obj for key, obj in self._costs.unwritten_records.items() if key.namespace == namespace}
        records = [self._parse_record(key, obj) for key, obj in closed_objects.items()]
        closed_records = [each for each in unreplaced_records(records) if each.begin < ledger.period_start]
        usage_spans = [
            _UsageSpan(each.begin, _sum_by_queue(sum_corrected_records(records, [each]))) for each in closed_records
        ]
        return [*usage_spans, _UsageSpan(ledger.period_start, amounts_of(ledger.usage_of_team(namespace, now)))]

    def _parse_record(self, key: Key, obj: Obj) -> ParsedCostRecord:
        cache_entry = self._parsed_records.get(key)
        if cache_entry is None or cache_entry[0] is not obj:
            cache_entry = self._parsed_records[key] = obj, parse_cost_record(obj)
        return cache_entry[1]


def _sum_by_queue(amounts_by_account: Mapping[AccountKey, RecordedAmount]) -> dict[tuple[str, bool], RecordedAmount]:
    usage_by_queue: dict[tuple[str, bool], RecordedAmount] = {}
    for account_key, amount in amounts_by_account.items():
        queue_and_running = account_key.local_queue, account_key.use == RUNS
        usage_by_queue[queue_and_running] = usage_by_queue.get(queue_and_running, RecordedAmount()).plus(amount)
    return usage_by_queue


def _latest_workload_end(workload: Obj | None, period: BudgetPeriod, now: Instant) -> Instant:
    end = now + HOUR if period.end is None else period.end
    admitted_condition = None if workload is None else find_condition(workload, "Admitted")
    seconds_max: int | None = None if workload is None else workload["spec"].get("maximumExecutionTimeSeconds")
    if seconds_max is None or admitted_condition is None or admitted_condition["status"] != "True":
        return end
    execution_end = parse_time(admitted_condition["lastTransitionTime"]) + seconds_max * SECOND
    return execution_end if period.end is None else min(end, execution_end)


def _affects_costs(event: WatchEvent) -> bool:
    if event.old is None or event.type is EventType.DELETED:
        return True
    old_conditions, new_conditions = (
        [find_condition(obj, kind) for kind in ("Admitted", "Finished")] for obj in (event.old, event.obj)
    )
    return [each and each["status"] for each in old_conditions] != [each and each["status"] for each in new_conditions]


def _threshold_events(budget: Obj, result: BudgetEvaluation, period: BudgetPeriod, use: BudgetUse) -> list[EventRecord]:
    unit = "dollars" if is_in_dollars(budget) else "accelerator hours"
    return [
        EventRecord(
            key_of(budget),
            "Warning",
            "ThresholdReached",
            f"{each['percent']}% is reached: {budget_amount_text(budget, use.spent_amount)} {unit} "
            f"are used ({each['action']})",
        )
        for each in newly_reached_thresholds(budget, result, period)
    ]


def _stop_policy_event(old_queue: Obj, new_queue: Obj) -> EventRecord:
    budget_names = annotation(new_queue, well_known.HELD_BY)
    if budget_names is not None:
        return EventRecord(
            key_of(old_queue),
            "Warning",
            "HeldByBudget",
            f"Budget {budget_names} is used up: the queue admits no Workloads",
        )
    stop_policy = new_queue["spec"]["stopPolicy"]
    return EventRecord(
        key_of(old_queue), "Normal", "LetGoByBudget", f"No Budget holds the queue: stopPolicy is {stop_policy}"
    )
