"""Deletes Jobs and JobSets some time after they have ended, as their `ttlSecondsAfterFinished` says.

Their pods and Jobs go before them. Sources: pkg/controller/ttlafterfinished of Kubernetes and
pkg/controllers/ttl_after_finished.go of JobSet.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND, Instant
from batchyard.ports.client import Delete, Propagation, Reader, WatchEvent
from batchyard.ports.controller import Outcome

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
