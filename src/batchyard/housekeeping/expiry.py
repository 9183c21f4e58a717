"""Expiry: deletes Events an hour after they last occurred, like `--event-ttl` of kube-apiserver, and surplus Events.

Each Job leaves about nine Events of 2 to 3 KB of memory each. The limit on their number bounds the cost of ended Jobs.
All Events share one wake-up, that of the first to expire.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

from batchyard.api import scheme
from batchyard.api.conditions import event_last_time, find_condition
from batchyard.api.meta import Key, Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR, MINUTE, SECOND, Instant
from batchyard.interfaces.client import Delete, EventType, Propagation, Reader, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult

# --- ttl after finished ---
#
# Deletes Jobs and JobSets some time after they have ended, as set by `ttlSecondsAfterFinished`.
#
# Their pods and Jobs are deleted before them. Sources: pkg/controller/ttlafterfinished of Kubernetes and
# pkg/controllers/ttl_after_finished.go of JobSet.


_JOB_SET_MANAGERS: Final = (None, "jobset.sigs.k8s.io/jobset-controller")
_ENDS: Final = {scheme.JOB: ("Complete", "Failed"), scheme.JOB_SET: ("Completed", "Failed")}


class TtlAfterFinished:
    """Deletes ended Jobs and JobSets after their TTL."""

    name = "ttl-after-finished"
    rank = 0

    def __init__(self, kinds: Sequence[str] = (scheme.JOB, scheme.JOB_SET)) -> None:
        self.kinds = kinds

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return an ended object with a TTL."""
        return (event.key,) if _expires_at(event.key, event.obj) is not None else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Delete the object if its TTL has expired."""
        obj = reader.get(key)
        expires_at = None if obj is None else _expires_at(key, obj)
        if obj is None or expires_at is None:
            return ReconcileResult()
        if expires_at > now:
            return ReconcileResult(requeue_at=expires_at)
        return ReconcileResult([Delete(key, propagation=Propagation.FOREGROUND, uid=obj["metadata"]["uid"])])


def _expires_at(key: Key, obj: Obj) -> Instant | None:
    """Return when it expires; None if it has not ended, is being deleted, or has no TTL."""
    seconds: int | None = obj["spec"].get("ttlSecondsAfterFinished")
    if seconds is None or "deletionTimestamp" in obj["metadata"] or _is_left_to_others(key, obj):
        return None
    ended = [find_condition(obj, kind) for kind in _ENDS[key.kind]]
    at = [parse_time(c["lastTransitionTime"]) for c in ended if c is not None and c["status"] == "True"]
    return at[0] + seconds * SECOND if at else None


def _is_left_to_others(key: Key, obj: Obj) -> bool:
    """Report whether another controller deletes it: that of a JobSet's `managedBy`; Jobs are always deleted here."""
    return key.kind == scheme.JOB_SET and obj["spec"].get("managedBy") not in _JOB_SET_MANAGERS


KEPT_FOR: Final = HOUR
#: The controller keeps this many Events; under a steady load the number exceeds it by two batches.
KEPT_MAX: Final = 5_000
#: The only key of this controller.
FIRST: Final = Key("Batch", "", "event-expiry")
#: The maximum number of deletions in one batch.
AT_ONCE_MAX: Final = 500
#: When to check whether a deleted Event is gone.
_LOOK_AGAIN: Final = MINUTE
#: The time between batches of surplus Events, so that a burst of Events leaves time for other work.
_SURPLUS_EVERY: Final = SECOND


class EventExpiry:
    """Deletes expired and surplus Events, from a heap of their expiry times."""

    name = "event-expiry"
    rank = 0
    kinds = (scheme.EVENT,)

    def __init__(self) -> None:
        #: The known expiry times as a heap; later updates are read when they are due.
        self._ends: list[tuple[Instant, Key]] = []

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key if a new Event expires first or fills a batch; later occurrences are read at its expiry."""
        if event.type is not EventType.ADDED:
            return ()
        heappush(self._ends, (_end_of(event.obj, now), event.key))
        is_batch = len(self._ends) == KEPT_MAX + AT_ONCE_MAX
        return (FIRST,) if is_batch or self._ends[0][1] is event.key else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Delete the expired Events, and of a surplus those that expire first."""
        ends, gone, kept = self._ends, list[Write](), list[tuple[Instant, Key]]()
        surplus = len(ends) - KEPT_MAX
        while ends and len(gone) < AT_ONCE_MAX and (ends[0][0] <= now or surplus > 0):
            known, first = heappop(ends)
            event = reader.get(first)
            if event is None:
                surplus -= 1
                continue
            end = _end_of(event, now)
            if end > now and (surplus <= 0 or end > known):
                heappush(ends, (end, first))
                continue
            gone.append(Delete(first))
            surplus -= 1
            kept.append((now + (_LOOK_AGAIN if end <= now else _SURPLUS_EVERY), first))
        for each in kept:
            heappush(ends, each)
        return ReconcileResult(gone, requeue_at=ends[0][0] if ends else None, independent=True)


def _end_of(event: Obj, now: Instant) -> Instant:
    """Return when an Event expires. Its own time of occurrence is limited to between creation and an hour from now."""
    made = parse_time(event["metadata"]["creationTimestamp"])
    occurred = parse_time(event_last_time(event) or event["metadata"]["creationTimestamp"])
    return (occurred if made <= occurred <= now + KEPT_FOR else made) + KEPT_FOR
