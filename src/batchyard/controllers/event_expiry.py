"""Events go when nothing has been added to them for an hour, as where kube-apiserver keeps them for `--event-ttl`."""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR, Instant
from batchyard.ports.client import Delete, EventType, Reader, WatchEvent
from batchyard.ports.controller import Outcome

KEPT_FOR: Final = HOUR


class EventExpiry:
    """See the module."""

    name = "event-expiry"
    rank = 0
    kinds = (scheme.EVENT,)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Each Event when it is made; what was added to it since is seen when its time is over."""
        return (event.key,) if event.type is EventType.ADDED else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Delete it if its time is over."""
        event = reader.get(key)
        if event is None:
            return Outcome()
        expires_at = _last_told(event) + KEPT_FOR
        return Outcome([Delete(key)]) if expires_at <= now else Outcome(requeue_at=expires_at)


def _last_told(event: Obj) -> Instant:
    last = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return parse_time(last)
