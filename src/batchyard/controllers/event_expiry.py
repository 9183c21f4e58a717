"""Events go when nothing has been added to them for an hour, as where kube-apiserver keeps them for `--event-ttl`.

There are many, and they come and go in order of time: so all of them wait for one wake-up, that of the first to go.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

from batchyard.api import scheme
from batchyard.api.events import last_told
from batchyard.api.meta import Key, Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR, MINUTE, Instant
from batchyard.ports.client import Delete, EventType, Reader, WatchEvent, Write
from batchyard.ports.controller import Outcome

KEPT_FOR: Final = HOUR
#: The one key that is looked at.
FIRST: Final = Key("Batch", "", "event-expiry")
#: No more go at once.
AT_ONCE_MAX: Final = 500
#: When it is seen whether one that was to go has gone.
_LOOK_AGAIN: Final = MINUTE


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
        return (FIRST,) if self._ends[0][1] is event.key else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Delete those whose time is over."""
        ends, gone = self._ends, list[Write]()
        while ends and ends[0][0] <= now and len(gone) < AT_ONCE_MAX:
            _, first = heappop(ends)
            event = reader.get(first)
            if event is None:
                continue
            end = _end_of(event, now)
            if end <= now:
                gone.append(Delete(first))
                end = now + _LOOK_AGAIN
            heappush(ends, (end, first))
        return Outcome(gone, requeue_at=ends[0][0] if ends else None, independent=True)


def _end_of(event: Obj, now: Instant) -> Instant:
    """When it is to go. When it was told its author says: neither before it was made, nor long after the present."""
    made = parse_time(event["metadata"]["creationTimestamp"])
    told = parse_time(last_told(event) or event["metadata"]["creationTimestamp"])
    return (told if made <= told <= now + KEPT_FOR else made) + KEPT_FOR
