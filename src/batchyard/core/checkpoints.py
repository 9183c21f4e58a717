"""Checkpoints: what work pods lose that are stopped, told from when their containers started.

A job saves its work every so often, as its annotation `batchyard.dev/checkpoint-every` says; without it, it never does.
"""

from collections.abc import Iterable

from batchyard.api import well_known
from batchyard.api.annotations import duration
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import Duration, Instant
from batchyard.core.lifecycle.pod import RUNNING, phase


def checkpoint_interval(told: Iterable[Obj | None]) -> Duration | None:
    """How often a pod saves its work, as the first says that says it: the pod, its Job, the JobSet above."""
    intervals = (duration(obj, well_known.CHECKPOINT_EVERY) for obj in told if obj is not None)
    return next((interval for interval in intervals if interval), None)


def running_since(pod: Obj) -> Instant | None:
    """Since when the containers of a pod run; None if they do not."""
    if phase(pod) != RUNNING:
        return None
    for container in pod["status"].get("containerStatuses") or ():
        started = ((container.get("state") or {}).get("running") or {}).get("startedAt")
        if started is not None:
            return parse_time(started)
    return None


def lost_work(started: Instant | None, interval: Duration | None, now: Instant) -> Duration:
    """The work that is lost of a pod that runs since then: what it did since its last checkpoint, or all."""
    done = 0 if started is None else max(0, now - started)
    return done % interval if interval else done
