"""Resuming the ledger after a crash, from the last checkpoint and from the timestamps of the objects.

Pods that ended before the checkpoint are in its record. For all others the objects record the begin, so their charges
are computed again. If the store keeps its history, each change is replayed. Otherwise unobserved time belongs to no
team and counts as idle.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from batchyard.accounting.accounts import IDLE, RUNS, AccountKey, CostAccount
from batchyard.accounting.ledger import CostLedger, LedgerDetail
from batchyard.accounting.records import OPEN, ParsedCostRecord, accounts_of, bound_at, ended_at, paid_from, read
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of, with_status
from batchyard.api.times import parse_time
from batchyard.api.views.pod_lifecycle import is_terminal
from batchyard.base.instant import HOUR, Instant
from batchyard.interfaces.client import EventType, Reader, WatchEvent

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
