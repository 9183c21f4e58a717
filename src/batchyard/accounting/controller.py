"""Cost controller: keeps the cost ledger, and writes the CostRecords of each hour.

Records of the open hour are rewritten every minute (in a simulation every ten minutes), those of closed hours once.

The CostRecord `open` in kube-system is the checkpoint of the ledger. It moves to the next hour only when all records of
the last hour are written. A process that restarts in between writes these records again, with the same content.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from batchyard.accounting import records
from batchyard.accounting.accounts import IDLE, RUNS, AccountKey, CostAccount, CostTotals
from batchyard.accounting.ledger import CostLedger, LedgerDetail
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import is_terminal
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult

# Resuming the ledger after a crash, from the last checkpoint and from the timestamps of the objects.
#
# The checkpoint contains the charges of pods that ended before it. For other pods, the objects contain the begin, so
# their charges are computed again. If the store keeps its history, each later change is replayed. Otherwise, time
# without observed events belongs to no team and counts as idle.


#: Returns all changes after a revision, or None if the store keeps no history.
ChangeHistory: TypeAlias = Callable[[int], Sequence[WatchEvent] | None]

#: The order in which objects are added: machines before their nodes, and nodes before pods.
LEDGER_KINDS: Final = (scheme.CLUSTER, scheme.INSTANCE, scheme.NODE, scheme.POD)
LEDGER_DETAIL: Final = LedgerDetail(is_by_workload=True, includes_bare_nodes=True)


def no_history(_revision: int) -> None:
    """Return None, which means that the store keeps no history of changes."""


def resume_ledger(
    reader: Reader, change_history: ChangeHistory, now: Instant
) -> tuple[CostLedger, Sequence[tuple[WatchEvent, Instant]], int]:
    """Return the cost ledger as of its last checkpoint, the later changes with their times, and the last revision.

    If the store keeps no history, the changes add all existing objects at `now`, and the revision is 0.
    """
    open_record = reader.get(records.CHECKPOINT)
    last_checkpoint = None if open_record is None else records.parse_cost_record(open_record)
    changes = change_history(0 if last_checkpoint is None else last_checkpoint.revision)
    objects_by_key = {key_of(obj): obj for kind in LEDGER_KINDS for obj in reader.list(kind)}
    if changes is None:
        ledger = _new_ledger(reader, last_checkpoint, now)
        if last_checkpoint is not None:
            earlier_objects = [_object_at(obj, last_checkpoint.through) for obj in objects_by_key.values()]
            _restore_ledger(ledger, last_checkpoint, [obj for obj in earlier_objects if obj])
        return ledger, [(_added_event(key, obj), now) for key, obj in _in_observation_order(objects_by_key)], 0
    relevant_changes = [change for change in changes if change.key.kind in LEDGER_KINDS]
    for change in reversed(relevant_changes):
        if change.old is None:
            objects_by_key.pop(change.key, None)
        else:
            objects_by_key[change.key] = change.old
    timed_changes = _with_change_times(relevant_changes, last_checkpoint, now)
    ledger = _new_ledger(reader, last_checkpoint, timed_changes[0][1] if timed_changes else now)
    if last_checkpoint is not None:
        _restore_ledger(ledger, last_checkpoint, objects_by_key.values())
    checkpoint_revision = 0 if last_checkpoint is None else last_checkpoint.revision
    revisions = [checkpoint_revision, *(change.revision for change in changes[-1:])]
    return ledger, timed_changes, max(revisions)


def _new_ledger(reader: Reader, last_checkpoint: records.ParsedCostRecord | None, now: Instant) -> CostLedger:
    return CostLedger(reader, LEDGER_DETAIL, now - now % HOUR if last_checkpoint is None else last_checkpoint.begin)


def _restore_ledger(
    ledger: CostLedger, last_checkpoint: records.ParsedCostRecord, existing_objects: Iterable[Obj]
) -> None:
    objects_by_key = {key_of(obj): obj for obj in existing_objects}
    for key, obj in _in_observation_order(objects_by_key):
        ledger.observe([_added_event(key, obj)], last_checkpoint.through)
    ledger.accounts_until_now(last_checkpoint.through)
    ended_accounts = records.accounts_of(
        {account_key: amount for account_key, amount in last_checkpoint.lines.items() if account_key.use != RUNS}
    )
    idle_accounts = records.accounts_of(
        {AccountKey(*pool, "", IDLE): amount for pool, amount in last_checkpoint.machines.items()}
    )
    for account_key, account in [*ended_accounts.items(), *ledger.running_accounts().items()]:
        idle_accounts.setdefault(AccountKey(*account_key[:2], "", IDLE), CostAccount()).subtract(account)
    for account_key, account in idle_accounts.items():  #  unobserved time and rounding differences
        if account.time or account.cost:
            ended_accounts.setdefault(account_key, CostAccount()).add(account)
    reclassified_usage = {
        account_key: records.accounts_of({account_key[1]: amount})[account_key[1]]
        for account_key, amount in last_checkpoint.reclassified_usage.items()
    }
    ledger.resume(ended_accounts, reclassified_usage)


def _object_at(obj: Obj, at_time: Instant) -> Obj | None:
    """Return an object as it was at `at_time`; None if it is an Instance or pod that did not run then.

    A pod that ended later is returned as Running. If the time of its end is not recorded, None is returned.
    """
    kind = key_of(obj).kind
    started_at = (
        records.billing_start(obj) if kind == scheme.INSTANCE else records.bound_at(obj) if kind == scheme.POD else None
    )
    if started_at is not None and started_at > at_time:
        return None
    if kind != scheme.POD or not is_terminal(obj):
        return obj
    end = records.ended_at(obj)
    return None if end is None or end <= at_time else with_status(obj, {**obj["status"], "phase": "Running"})


def _with_change_times(
    changes: Iterable[WatchEvent], last_checkpoint: records.ParsedCostRecord | None, now: Instant
) -> Sequence[tuple[WatchEvent, Instant]]:
    """Date each change with the latest timestamp in the objects changed so far, because stored changes have no time."""
    timed_changes, latest_time = [], 0 if last_checkpoint is None else last_checkpoint.through
    for change in changes:
        latest_time = min(now, max(latest_time, _latest_timestamp(change.obj)))
        timed_changes.append((change, latest_time))
    return timed_changes


def _latest_timestamp(obj: Obj) -> Instant:
    status = obj.get("status") or {}
    timestamps = [obj["metadata"].get("creationTimestamp"), *(status.get(field) for field in ("since", "stoppedAt"))]
    timestamps += [condition.get("lastTransitionTime") for condition in status.get("conditions") or ()]
    latest_time = max((parse_time(text) for text in timestamps if text), default=0)
    return max(latest_time, records.ended_at(obj) or 0)


def _in_observation_order(objects: Mapping[Key, Obj]) -> Sequence[tuple[Key, Obj]]:
    def sort_key(item: tuple[Key, Obj]) -> tuple[int, Instant, Key]:
        key, obj = item
        return LEDGER_KINDS.index(key.kind), (records.bound_at(obj) or 0) if key.kind == scheme.POD else 0, key

    return sorted(objects.items(), key=sort_key)


def _added_event(key: Key, obj: Obj) -> WatchEvent:
    return WatchEvent(EventType.ADDED, key, obj, None, int(obj["metadata"].get("resourceVersion") or 0))


# CostRecords of hours are kept for a week, those of days for three months, and those of months indefinitely.


DAY: Final = 24 * HOUR
HOUR_RECORD_RETENTION: Final = 7 * DAY
DAY_RECORD_RETENTION: Final = 92 * DAY
#: The maximum number of groups of CostRecords that one reconcile merges.
_MERGED_GROUPS_MAX: Final = 20
#: Merge steps: name prefix of the records, their retention, prefix of the merged record, length of its date text.
_MERGE_STEPS: Final[Sequence[tuple[str, Duration, str, int]]] = (
    ("hour-", HOUR_RECORD_RETENTION, "day", len("2026-11-22")),
    ("day-", DAY_RECORD_RETENTION, "month", len("2026-11")),
)


def retention_writes(reader: Reader, now: Instant) -> list[Write]:
    """Return the writes that merge old CostRecords: those of hours into days, and those of days into months.

    The first call creates a merged record, and a later call deletes the records that it replaces. Each call handles at
    most 20 merged records of days and 20 of months.
    """
    closed_records = [obj for obj in reader.list(scheme.COST_RECORD) if not records.is_checkpoint(obj)]
    writes: list[Write] = []
    for prefix, retention, merged_prefix, date_length in _MERGE_STEPS:
        groups: dict[tuple[str, str], list[Obj]] = {}
        for obj in closed_records:
            metadata = obj["metadata"]
            if metadata["name"].startswith(prefix) and obj["spec"].get("closed"):
                groups.setdefault((metadata["namespace"], obj["spec"]["from"][:date_length]), []).append(obj)
        due_groups = [
            (group, objects) for group, objects in groups.items() if _end_of_period(group[1]) + retention <= now
        ]
        for (namespace, date_text), objects in due_groups[:_MERGED_GROUPS_MAX]:
            writes += _record_merge_writes(
                reader, Key(scheme.COST_RECORD, namespace, f"{merged_prefix}-{date_text}"), date_text, objects
            )
    return writes


def _record_merge_writes(reader: Reader, key: Key, date_text: str, merged_objects: Sequence[Obj]) -> Iterator[Write]:
    merged_record = reader.get(key)
    if merged_record is not None:
        yield from (Delete(key_of(obj)) for obj in merged_objects)
        return
    merged_time_span = _begin_of_period(date_text), _end_of_period(date_text)
    spec = records.combined_spec([records.parse_cost_record(obj) for obj in merged_objects])
    yield Create(records.make_cost_record(key.namespace, key.name, merged_time_span, merged_time_span[1], spec))


def _begin_of_period(date_text: str) -> Instant:
    return parse_time(f"{date_text}-01T00:00:00Z" if date_text.count("-") == 1 else f"{date_text}T00:00:00Z")


def _end_of_period(date_text: str) -> Instant:
    period_begin = _begin_of_period(date_text)
    if date_text.count("-") > 1:
        return period_begin + DAY
    return _begin_of_period(format_time(period_begin + 31 * DAY)[: len("2026-11")])


COSTS_BATCH_KEY: Final = Key("Batch", "", "costs")
#: The period between writes of the open hour's records, and between checks of Budgets, in a live platform.
WRITE_PERIOD: Final = MINUTE
_SIMULATED_WRITE_PERIOD: Final = 10 * MINUTE
_WRITE_RETRY_DELAY: Final = 5 * SECOND
#: The number of attempts after which a record that cannot be written is dropped.
_WRITE_ATTEMPTS_MAX: Final = 20
_TIME_FIELDS: Final = ("through", "revision")


class CostController:
    """The controller that writes CostRecords of closed hours and of the current hour.

    On a live platform (`is_endless`), hours in which all machines are idle are also closed in time. In a simulation,
    that would prevent the end of the run.
    """

    name = "costs"
    rank = 0
    kinds = (*LEDGER_KINDS, scheme.COST_RECORD)

    def __init__(self, history: ChangeHistory, *, is_endless: bool) -> None:
        self._history = history
        self._is_endless = is_endless
        self._write_period = WRITE_PERIOD if is_endless else _SIMULATED_WRITE_PERIOD
        self.ledger: CostLedger | None = None
        #: The revision of the last event that the ledger observed.
        self._revision = 0
        #: CostRecords that are not written yet.
        self.unwritten_records: dict[Key, Obj] = {}
        self._next_write_at: Instant = 0
        self._is_queued = False
        #: Whether CostRecords may be past their retention.
        self._may_need_merge = True
        self._attempts = 0
        #: The accounts of all hours that this process has closed.
        self._totals = CostTotals({}, {})

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Update the cost ledger from a watch event; return the controller's only key if it must be queued."""
        if event.key.kind != scheme.COST_RECORD and self.ledger is not None and event.revision > self._revision:
            self._revision = event.revision
            self._close_ended_hours(now)
            self.ledger.observe((event,), now)
        elif event.key.kind == scheme.COST_RECORD and event.key not in self.unwritten_records:
            return ()
        if self._is_queued and not self.unwritten_records:
            return ()
        self._is_queued = True
        return (COSTS_BATCH_KEY,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return writes of the CostRecords of closed hours that are not stored yet.

        If there are none, return, when due, writes of the open hour's CostRecords and merges of old CostRecords.
        """
        self._is_queued = False
        cost_ledger = self.ledger if self.ledger is not None else self._resume_ledger(reader, now)
        self._close_ended_hours(now)
        self._drop_written_records(reader)
        merges: list[Write] = []
        if not self.unwritten_records:
            if now < self._next_write_at:
                return self._requeue_until_due(self._next_write_at)
            self._next_write_at = now + self._write_period
            merges = retention_writes(reader, now) if self._may_need_merge else []
            self._may_need_merge = bool(merges)
            self.unwritten_records = self._open_hour_records(cost_ledger, reader, now)
        self._attempts += 1
        writes = [
            *(_record_write(reader, record_key, obj) for record_key, obj in self.unwritten_records.items()),
            *merges,
        ]
        return ReconcileResult(writes, independent=True, requeue_at=now + _WRITE_RETRY_DELAY)

    def totals(self, now: Instant) -> CostTotals:
        """Return charges and reclassified usage since the start of the hour at which this process resumed accounting.

        Accounts that differ only in Workload or flavor are summed.
        """
        accounts, reclassified_usage = (
            {key: replace(a) for key, a in totals_by_key.items()} for totals_by_key in self._totals
        )
        ledger = self.ledger
        if ledger is not None:
            _add_to_sums(accounts, ledger.accounts_until_now(now))
            _add_to_sums(reclassified_usage, {key: account for (_, key), account in ledger.reclassified_usage.items()})
        return CostTotals(accounts, reclassified_usage)

    def _drop_written_records(self, reader: Reader) -> None:
        for record_key, obj in list(self.unwritten_records.items()):
            stored_object = reader.get(record_key)
            is_written = stored_object is not None and stored_object["spec"] == obj["spec"]
            if (
                is_written
                or self._attempts > _WRITE_ATTEMPTS_MAX
                or not _is_namespace_active(reader, record_key.namespace)
            ):
                del self.unwritten_records[record_key]
        if not self.unwritten_records:
            self._attempts = 0

    def _requeue_until_due(self, due: Instant) -> ReconcileResult:
        ledger = self.ledger
        if ledger is None or not (ledger.is_busy or (self._is_endless and ledger.machine_count)):
            return ReconcileResult()
        self._is_queued = True
        return ReconcileResult(requeue_at=min(due, ledger.period_start + HOUR))

    def _resume_ledger(self, reader: Reader, now: Instant) -> CostLedger:
        self.ledger, missed_changes, revision = resume_ledger(reader, self._history, now)
        for change, change_time in missed_changes:
            self._close_ended_hours(change_time)
            self.ledger.observe((change,), change_time)
        self._revision = max(self._revision, revision)
        return self.ledger

    def _close_ended_hours(self, now: Instant) -> None:
        ledger = self.ledger
        while ledger is not None and now >= ledger.period_start + HOUR:
            period_start = ledger.period_start
            accounts, reclassified_usage = ledger.close(period_start + HOUR)
            _add_to_sums(self._totals.accounts, accounts)
            for (_, account_key), account in reclassified_usage.items():
                _add_to_sums(self._totals.reclassified_usage, {account_key: account})
            unpriced_pools = ledger.unpriced_pools()
            self._next_write_at, self._may_need_merge = 0, True
            self.unwritten_records.pop(records.CHECKPOINT, None)
            if accounts or reclassified_usage:
                lines, recorded_reclassified_usage = _recorded_amounts(accounts, reclassified_usage)
                for namespace, spec in records.cost_record_specs(
                    lines, recorded_reclassified_usage, unpriced_pools
                ).items():
                    record_key = Key(scheme.COST_RECORD, namespace, records.hour_record_name(period_start))
                    span = period_start, period_start + HOUR
                    self.unwritten_records[record_key] = records.make_cost_record(
                        namespace, record_key.name, span, span[1], spec
                    )

    def _open_hour_records(self, ledger: CostLedger, reader: Reader, now: Instant) -> dict[Key, Obj]:
        ledger.limit_workload_names()
        lines, reclassified_usage = _recorded_amounts(ledger.accounts_until_now(now), ledger.reclassified_usage)
        hour_span, name = (
            (ledger.period_start, ledger.period_start + HOUR),
            records.hour_record_name(ledger.period_start),
        )
        spec_by_namespace = records.cost_record_specs(lines, reclassified_usage, ledger.unpriced_pools())
        changed_records: dict[Key, Obj] = {}
        for namespace, spec in spec_by_namespace.items():
            key = Key(scheme.COST_RECORD, namespace, name)
            obj = records.make_cost_record(namespace, name, hour_span, now, spec)
            if not _has_same_content(reader.get(key), obj):
                changed_records[key] = obj
        checkpoint_spec = {"revision": str(self._revision), **records.checkpoint_spec(spec_by_namespace)}
        changed_records[records.CHECKPOINT] = records.make_cost_record(
            records.PLATFORM_NAMESPACE, records.CHECKPOINT.name, hour_span, now, checkpoint_spec
        )
        return changed_records


def _add_to_sums(account_sums: dict[AccountKey, CostAccount], accounts: Mapping[AccountKey, CostAccount]) -> None:
    for account_key, account in accounts.items():
        account_sums.setdefault(account_key._replace(flavor="", workload=""), CostAccount()).add(account)


def _recorded_amounts(
    accounts: Mapping[AccountKey, CostAccount], reclassified_usage: Mapping[tuple[Instant, AccountKey], CostAccount]
) -> tuple[dict[AccountKey, records.RecordedAmount], dict[tuple[Instant, AccountKey], records.RecordedAmount]]:
    accounts_by_hour: dict[Instant, dict[AccountKey, CostAccount]] = {}
    for (hour, account_key), account in reclassified_usage.items():
        accounts_by_hour.setdefault(hour, {})[account_key] = account
    recorded_reclassified_usage = {
        (hour, account_key): amount
        for hour, hour_accounts in accounts_by_hour.items()
        for account_key, amount in records.amounts_of(records.limit_named_workloads(hour_accounts)).items()
    }
    return records.amounts_of(records.limit_named_workloads(accounts)), recorded_reclassified_usage


def _is_namespace_active(reader: Reader, namespace: str) -> bool:
    namespace_object = reader.get(Key(scheme.NAMESPACE, "", namespace))
    return namespace_object is not None and "deletionTimestamp" not in namespace_object["metadata"]


def _record_write(reader: Reader, key: Key, obj: Mapping[str, Any]) -> Write:
    stored_object = reader.get(key)
    return Create(obj) if stored_object is None else Update({**stored_object, "spec": obj["spec"]})


def _has_same_content(stored_record: Obj | None, record: Obj) -> bool:
    if stored_record is None:
        return False
    old_spec, new_spec = (
        {k: v for k, v in obj["spec"].items() if k not in _TIME_FIELDS} for obj in (stored_record, record)
    )
    return old_spec == new_spec
