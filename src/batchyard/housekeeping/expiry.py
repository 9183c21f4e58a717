"""Deletes Events an hour after they last occurred, as kube-apiserver does by `--event-ttl`, and the oldest of too many.

Each Job leaves about nine Events, each of them 2 to 3 KB of memory. The bound on their number bounds what ended Jobs
cost. All Events share one wake-up, that of the first to expire.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

from batchyard.api import scheme
from batchyard.api.conditions import find_condition, last_told
from batchyard.api.meta import Key, Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR, MINUTE, SECOND, Instant
from batchyard.interfaces.client import Delete, EventType, Propagation, Reader, WatchEvent, Write
from batchyard.interfaces.controller import Outcome

# --- ttl ---
#
# Deletes Jobs and JobSets some time after they have ended, as their `ttlSecondsAfterFinished` says.
#
# Their pods and Jobs go before them. Sources: pkg/controller/ttlafterfinished of Kubernetes and
# pkg/controllers/ttl_after_finished.go of JobSet.


_JOB_SET_MANAGERS: Final = (None, "jobset.sigs.k8s.io/jobset-controller")
_ENDS: Final = {scheme.JOB: ("Complete", "Failed"), scheme.JOB_SET: ("Completed", "Failed")}


class TtlAfterFinished:
    """See the module."""

    name = "ttl-after-finished"
    rank = 0

    def __init__(self, kinds: Sequence[str] = (scheme.JOB, scheme.JOB_SET)) -> None:
        self.kinds = kinds

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """What is to go some time after its end, and has ended."""
        return (event.key,) if _expires_at(event.key, event.obj) is not None else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Delete it if its time is over."""
        obj = reader.get(key)
        expires_at = None if obj is None else _expires_at(key, obj)
        if obj is None or expires_at is None:
            return Outcome()
        if expires_at > now:
            return Outcome(requeue_at=expires_at)
        return Outcome([Delete(key, propagation=Propagation.FOREGROUND, uid=obj["metadata"]["uid"])])


def _expires_at(key: Key, obj: Obj) -> Instant | None:
    """When it is to go; None while it has not ended, goes already, or stays."""
    seconds: int | None = obj["spec"].get("ttlSecondsAfterFinished")
    if seconds is None or "deletionTimestamp" in obj["metadata"] or _is_left_to_others(key, obj):
        return None
    ended = [find_condition(obj, kind) for kind in _ENDS[key.kind]]
    at = [parse_time(c["lastTransitionTime"]) for c in ended if c is not None and c["status"] == "True"]
    return at[0] + seconds * SECOND if at else None


def _is_left_to_others(key: Key, obj: Obj) -> bool:
    """Whether another controller cares for it: a JobSet is deleted by who manages it, a Job by the platform."""
    return key.kind == scheme.JOB_SET and obj["spec"].get("managedBy") not in _JOB_SET_MANAGERS


KEPT_FOR: Final = HOUR
#: The controller keeps so many Events; the number exceeds this by two batches under a steady load.
KEPT_MAX: Final = 5_000
#: The one key that is looked at.
FIRST: Final = Key("Batch", "", "event-expiry")
#: No more go at once.
AT_ONCE_MAX: Final = 500
#: When it is seen whether one that was to go has gone.
_LOOK_AGAIN: Final = MINUTE
#: The time from one batch of surplus Events to the next, so that a burst of Events leaves time for other work.
_SURPLUS_EVERY: Final = SECOND


class EventExpiry:
    """See the module."""

    name = "event-expiry"
    rank = 0
    kinds = (scheme.EVENT,)

    def __init__(self) -> None:
        #: When each is to go, as far as is known, the first first.
        self._ends: list[tuple[Instant, Key]] = []

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """To be looked at when a new Event goes first; what was added to it since is seen when its time is over."""
        if event.type is not EventType.ADDED:
            return ()
        heappush(self._ends, (_end_of(event.obj, now), event.key))
        is_batch = len(self._ends) == KEPT_MAX + AT_ONCE_MAX
        return (FIRST,) if is_batch or self._ends[0][1] is event.key else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Delete the expired Events, and the first to expire of a surplus."""
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
        return Outcome(gone, requeue_at=ends[0][0] if ends else None, independent=True)


def _end_of(event: Obj, now: Instant) -> Instant:
    """When it is to go. When it was told its author says: neither before it was made, nor long after the present."""
    made = parse_time(event["metadata"]["creationTimestamp"])
    told = parse_time(last_told(event) or event["metadata"]["creationTimestamp"])
    return (told if made <= told <= now + KEPT_FOR else made) + KEPT_FOR
