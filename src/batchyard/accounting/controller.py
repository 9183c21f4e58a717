"""Cost controller: keeps the ledger and writes CostRecords, every minute for the open hour and once for closed hours.

The record `open` of the platform is the checkpoint of the ledger. It moves to the next hour only when all records of
the last hour are written. A process that restarts in between writes these records again, with the same content.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from batchyard.accounting.accounts import IDLE, RUNS, AccountKey, CostAccount, CostTotals
from batchyard.accounting.ledger import CostLedger, LedgerDetail
from batchyard.accounting.records import (
    OPEN,
    PLATFORM,
    ParsedCostRecord,
    RecordedAmount,
    accounts_of,
    amounts_of,
    bound_at,
    checkpoint,
    combined,
    ended_at,
    hour_name,
    is_open,
    limit_named_workloads,
    paid_from,
    read,
    record,
    specs_of,
)
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import is_terminal
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult

# --- resuming ---
#
# Resuming the ledger after a crash, from the last checkpoint and from the timestamps of the objects.
#
# Pods that ended before the checkpoint are in its record. For all others the objects record the begin, so their charges
# are computed again. If the store keeps its history, each change is replayed. Otherwise unobserved time belongs to no
# team and counts as idle.


#: Returns all changes after a revision, or None if the store keeps no history.
History: TypeAlias = Callable[[int], Sequence[WatchEvent] | None]

#: The order in which objects are added: machines before their nodes, and nodes before pods.
KINDS: Final = (scheme.CLUSTER, scheme.INSTANCE, scheme.NODE, scheme.POD)
DETAIL: Final = LedgerDetail(by_workload=True, all_nodes=True)


def nothing_remembered(_revision: int) -> None:
    """The history of a store that keeps none."""


def resume_ledger(
    reader: Reader, history: History, now: Instant
) -> tuple[CostLedger, Sequence[tuple[WatchEvent, Instant]], int]:
    """Return the ledger of the last checkpoint, the changes to apply to it with their times, and the last revision."""
    found = reader.get(OPEN)
    before = None if found is None else read(found)
    changes = history(0 if before is None else before.revision)
    there = {key_of(obj): obj for kind in KINDS for obj in reader.list(kind)}
    if changes is None:
        ledger = _begun(reader, before, now)
        if before is not None:
            _rebuild(ledger, before, [each for obj in there.values() if (each := _as_of(obj, before.through))])
        return ledger, [(_added(key, obj), now) for key, obj in _ordered(there)], 0
    own = [change for change in changes if change.key.kind in KINDS]
    for change in reversed(own):
        if change.old is None:
            there.pop(change.key, None)
        else:
            there[change.key] = change.old
    dated = _dated(own, before, now)
    ledger = _begun(reader, before, dated[0][1] if dated else now)
    if before is not None:
        _rebuild(ledger, before, there.values())
    return ledger, dated, max([0 if before is None else before.revision, *(change.revision for change in changes[-1:])])


def _begun(reader: Reader, before: ParsedCostRecord | None, now: Instant) -> CostLedger:
    return CostLedger(reader, DETAIL, now - now % HOUR if before is None else before.begin)


def _rebuild(ledger: CostLedger, before: ParsedCostRecord, there: Iterable[Obj]) -> None:
    """Add the objects that existed at the checkpoint to a ledger, and restore its accounts."""
    objects = {key_of(obj): obj for obj in there}
    for key, obj in _ordered(objects):
        ledger.observe([_added(key, obj)], before.through)
    ledger.accounts(before.through)
    spent = accounts_of({place: amount for place, amount in before.lines.items() if place.use != RUNS})
    missing = accounts_of({AccountKey(*pool, "", IDLE): amount for pool, amount in before.machines.items()})
    for place, account in [*spent.items(), *ledger.running().items()]:
        missing.setdefault(AccountKey(*place[:2], "", IDLE), CostAccount()).take(account)
    for place, account in missing.items():  #  unobserved time and rounding differences
        if account.time or account.cost:
            spent.setdefault(place, CostAccount()).add(account)
    settled = {place: accounts_of({place[1]: amount})[place[1]] for place, amount in before.settled.items()}
    ledger.resume(spent, settled)


def _as_of(obj: Obj, then: Instant) -> Obj | None:
    """Return an object as it was at a time, as far as it is recorded; None if it did not exist or had ended."""
    kind = key_of(obj).kind
    begun = paid_from(obj) if kind == scheme.INSTANCE else bound_at(obj) if kind == scheme.POD else None
    if begun is not None and begun > then:
        return None
    if kind != scheme.POD or not is_terminal(obj):
        return obj
    ended = ended_at(obj)
    return None if ended is None or ended <= then else with_status(obj, {**obj["status"], "phase": "Running"})


def _dated(
    changes: Iterable[WatchEvent], before: ParsedCostRecord | None, now: Instant
) -> Sequence[tuple[WatchEvent, Instant]]:
    """Return changes with the time of each: the latest timestamp in any object up to that change."""
    dated, then = [], 0 if before is None else before.through
    for change in changes:
        then = min(now, max(then, _latest(change.obj)))
        dated.append((change, then))
    return dated


def _latest(obj: Obj) -> Instant:
    """Return the latest timestamp in an object."""
    status = obj.get("status") or {}
    times = [obj["metadata"].get("creationTimestamp"), *(status.get(field) for field in ("since", "stoppedAt"))]
    times += [condition.get("lastTransitionTime") for condition in status.get("conditions") or ()]
    latest = max((parse_time(text) for text in times if text), default=0)
    return max(latest, ended_at(obj) or 0)


def _ordered(objects: Mapping[Key, Obj]) -> Sequence[tuple[Key, Obj]]:
    """Return objects in the order in which they are added."""

    def order(item: tuple[Key, Obj]) -> tuple[int, Instant, Key]:
        key, obj = item
        return KINDS.index(key.kind), (bound_at(obj) or 0) if key.kind == scheme.POD else 0, key

    return sorted(objects.items(), key=order)


def _added(key: Key, obj: Obj) -> WatchEvent:
    return WatchEvent(EventType.ADDED, key, obj, None, int(obj["metadata"].get("resourceVersion") or 0))


# --- retention ---
#
# Records of hours are kept for a week, those of days for three months, and those of months indefinitely.


DAY: Final = 24 * HOUR
HOURS_KEPT: Final = 7 * DAY
DAYS_KEPT: Final = 92 * DAY
#: The number of groups of records that are merged in one pass.
_AT_ONCE: Final = 20
#: For each kind of record: its prefix, its retention, the prefix of the longer record, and the length of its date.
_STEPS: Final[Sequence[tuple[str, Duration, str, int]]] = (
    ("hour-", HOURS_KEPT, "day", len("2026-11-22")),
    ("day-", DAYS_KEPT, "month", len("2026-11")),
)


def retention_writes(reader: Reader, now: Instant) -> list[Write]:
    """Return the writes that replace records past their retention by records of longer periods."""
    records = [obj for obj in reader.list(scheme.COST_RECORD) if not is_open(obj)]
    writes: list[Write] = []
    for prefix, kept, longer, length in _STEPS:
        groups: dict[tuple[str, str], list[Obj]] = {}
        for obj in records:
            metadata = obj["metadata"]
            if metadata["name"].startswith(prefix) and obj["spec"].get("closed"):
                groups.setdefault((metadata["namespace"], obj["spec"]["from"][:length]), []).append(obj)
        due = [(group, some) for group, some in groups.items() if _end(group[1]) + kept <= now]
        for (namespace, text), some in due[:_AT_ONCE]:
            writes += _merge_records(reader, Key(scheme.COST_RECORD, namespace, f"{longer}-{text}"), text, some)
    return writes


def _merge_records(reader: Reader, key: Key, text: str, some: Sequence[Obj]) -> Iterator[Write]:
    """Create the longer record; once it exists, delete the records that it replaces."""
    found = reader.get(key)
    if found is not None:
        yield from (Delete(key_of(obj)) for obj in some)
        return
    span = _begin(text), _end(text)
    yield Create(record(key.namespace, key.name, span, span[1], combined([read(obj) for obj in some])))


def _begin(text: str) -> Instant:
    """Return the begin of a day such as 2026-11-22, or of a month such as 2026-11."""
    return parse_time(f"{text}-01T00:00:00Z" if text.count("-") == 1 else f"{text}T00:00:00Z")


def _end(text: str) -> Instant:
    """Return the end of a day or month."""
    begin = _begin(text)
    if text.count("-") > 1:
        return begin + DAY
    return _begin(format_time(begin + 31 * DAY)[: len("2026-11")])


BATCH: Final = Key("Batch", "", "costs")
#: How often the records of the open hour are written, and budgets are checked, in a live platform.
EVERY: Final = MINUTE
_SELDOM: Final = 10 * MINUTE
_AGAIN: Final = 5 * SECOND
#: After this many attempts a record that cannot be written is dropped.
_TRIES_MAX: Final = 20
_TIMES: Final = ("through", "revision")


class CostController:
    """The cost controller. `is_endless`: time advances without events, so that hours end by themselves."""

    name = "costs"
    rank = 0
    kinds = (*KINDS, scheme.COST_RECORD)

    def __init__(self, history: History, *, is_endless: bool) -> None:
        self._history = history
        self._is_endless = is_endless
        self._every = EVERY if is_endless else _SELDOM
        self.ledger: CostLedger | None = None
        #: The revision of the last event that the ledger has seen.
        self._revision = 0
        #: Records that are not written yet.
        self.unwritten: dict[Key, Obj] = {}
        self._due: Instant = 0
        self._is_awake = False
        #: Whether records may be due for merging.
        self._is_untidy = True
        self._tries = 0
        #: The accounts of all hours that this process has closed.
        self._totals = CostTotals({}, {})

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Feed the event to the ledger; return the batch key unless it is already queued."""
        if event.key.kind != scheme.COST_RECORD and self.ledger is not None and event.revision > self._revision:
            self._revision = event.revision
            self._end_hours(now)
            self.ledger.observe((event,), now)
        elif event.key.kind == scheme.COST_RECORD and event.key not in self.unwritten:
            return ()
        if self._is_awake and not self.unwritten:
            return ()
        self._is_awake = True
        return (BATCH,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Write the records that are due."""
        self._is_awake = False
        ledger = self.ledger if self.ledger is not None else self._resume(reader, now)
        self._end_hours(now)
        self._note_written(reader)
        together: list[Write] = []
        if not self.unwritten:
            if now < self._due:
                return self._wake_at(self._due)
            self._due = now + self._every
            together = retention_writes(reader, now) if self._is_untidy else []
            self._is_untidy = bool(together)
            self.unwritten = self._open_hour(ledger, reader, now)
        self._tries += 1
        writes = [*(_write(reader, name, obj) for name, obj in self.unwritten.items()), *together]
        return ReconcileResult(writes, independent=True, requeue_at=now + _AGAIN)

    def totals(self, now: Instant) -> CostTotals:
        """Return all charges since this process started, summed over Workloads and flavors."""
        accounts, settled = ({place: replace(a) for place, a in some.items()} for some in self._totals)
        ledger = self.ledger
        if ledger is not None:
            _add_up(accounts, ledger.accounts(now))
            _add_up(settled, {place: account for (_, place), account in ledger.settled.items()})
        return CostTotals(accounts, settled)

    def _note_written(self, reader: Reader) -> None:
        """Drop records that are written, and records that cannot be written."""
        for name, obj in list(self.unwritten.items()):
            found = reader.get(name)
            is_there = found is not None and found["spec"] == obj["spec"]
            if is_there or self._tries > _TRIES_MAX or not _has_room(reader, name.namespace):
                del self.unwritten[name]
        if not self.unwritten:
            self._tries = 0

    def _wake_at(self, due: Instant) -> ReconcileResult:
        ledger = self.ledger
        if ledger is None or not (ledger.is_busy or (self._is_endless and ledger.machines)):
            return ReconcileResult()
        self._is_awake = True
        return ReconcileResult(requeue_at=min(due, ledger.begun + HOUR))

    def _resume(self, reader: Reader, now: Instant) -> CostLedger:
        self.ledger, missed, revision = resume_ledger(reader, self._history, now)
        for change, then in missed:
            self._end_hours(then)
            self.ledger.observe((change,), then)
        self._revision = max(self._revision, revision)
        return self.ledger

    def _end_hours(self, now: Instant) -> None:
        """Close all hours that are over."""
        ledger = self.ledger
        while ledger is not None and now >= ledger.begun + HOUR:
            begun = ledger.begun
            accounts, settled = ledger.close(begun + HOUR)
            _add_up(self._totals.accounts, accounts)
            for (_, place), account in settled.items():
                _add_up(self._totals.settled, {place: account})
            unpriced = ledger.unpriced()
            self._due, self._is_untidy = 0, True
            self.unwritten.pop(OPEN, None)
            if accounts or settled:
                lines, parts = _recorded_amounts(accounts, settled)
                for namespace, spec in specs_of(lines, parts, unpriced).items():
                    name = Key(scheme.COST_RECORD, namespace, hour_name(begun))
                    span = begun, begun + HOUR
                    self.unwritten[name] = record(namespace, name.name, span, span[1], spec)

    def _open_hour(self, ledger: CostLedger, reader: Reader, now: Instant) -> dict[Key, Obj]:
        """Return the changed records of the open hour, and the checkpoint."""
        ledger.fold()
        lines, settled = _recorded_amounts(ledger.accounts(now), ledger.settled)
        span, name = (ledger.begun, ledger.begun + HOUR), hour_name(ledger.begun)
        specs = specs_of(lines, settled, ledger.unpriced())
        found: dict[Key, Obj] = {}
        for namespace, spec in specs.items():
            key = Key(scheme.COST_RECORD, namespace, name)
            obj = record(namespace, name, span, now, spec)
            if not _is_same(reader.get(key), obj):
                found[key] = obj
        whole = {"revision": str(self._revision), **checkpoint(specs)}
        found[OPEN] = record(PLATFORM, OPEN.name, span, now, whole)
        return found


def _add_up(sums: dict[AccountKey, CostAccount], accounts: Mapping[AccountKey, CostAccount]) -> None:
    """Add accounts to sums, without the Workload and the flavor."""
    for place, account in accounts.items():
        sums.setdefault(place._replace(flavor="", workload=""), CostAccount()).add(account)


def _recorded_amounts(
    accounts: Mapping[AccountKey, CostAccount], settled: Mapping[tuple[Instant, AccountKey], CostAccount]
) -> tuple[dict[AccountKey, RecordedAmount], dict[tuple[Instant, AccountKey], RecordedAmount]]:
    """Convert accounts and settlements to the amounts that records hold."""
    by_hour: dict[Instant, dict[AccountKey, CostAccount]] = {}
    for (hour, place), account in settled.items():
        by_hour.setdefault(hour, {})[place] = account
    parts = {
        (hour, place): amount
        for hour, some in by_hour.items()
        for place, amount in amounts_of(limit_named_workloads(some)).items()
    }
    return amounts_of(limit_named_workloads(accounts)), parts


def _has_room(reader: Reader, namespace: str) -> bool:
    """Whether objects can be created in a Namespace."""
    found = reader.get(Key(scheme.NAMESPACE, "", namespace))
    return found is not None and "deletionTimestamp" not in found["metadata"]


def _write(reader: Reader, key: Key, obj: Mapping[str, Any]) -> Write:
    found = reader.get(key)
    return Create(obj) if found is None else Update({**found, "spec": obj["spec"]})


def _is_same(found: Obj | None, wanted: Obj) -> bool:
    """Whether a record has the same content already, apart from its timestamps."""
    if found is None:
        return False
    had, has = ({k: v for k, v in obj["spec"].items() if k not in _TIMES} for obj in (found, wanted))
    return had == has
