"""Checkpoints: what work pods lose that are stopped, and what others go on with, told from when their containers ran.

A job saves its work every so often, as its annotation `batchyard.dev/checkpoint-every` says; without it, it never does.
What pods saved is kept by their places on the Job, or on the JobSet above; who goes on with it says so in a condition.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from batchyard.api import well_known
from batchyard.api.annotations import duration
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj, annotation, label, with_metadata, with_status
from batchyard.api.times import parse_time
from batchyard.api.views.pod_lifecycle import RUNNING, condition, phase
from batchyard.base.instant import Duration, Instant, duration_text, parse_duration

#: Of a pod that goes on with the work of an earlier one, or with its own after its containers failed.
RESUMED: Final = "batchyard.dev/Resumed"
_REASON: Final = "FromCheckpoint"
_BETWEEN: Final = " of work were done at "
_NOTHING: Final[Mapping[str, str]] = {}


class Resumption(NamedTuple):
    """The work a pod goes on with."""

    place: str
    work: Duration


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


def kept_work(started: Instant | None, interval: Duration | None, now: Instant) -> Duration:
    """The work that is kept of a pod that runs since then: what it did up to its last checkpoint."""
    done = 0 if started is None else max(0, now - started)
    return done - lost_work(started, interval, now)


# --- whose work it is ---


def is_interchangeable(pod: Obj) -> bool:
    """Whether any other pod of its Job could do its work: it has no completion index."""
    return annotation(pod, well_known.COMPLETION_INDEX) is None


def place_of(pod: Obj) -> str:
    """Whose work a pod does: that of its completion index, or of a pod that did it before, or its own.

    In a JobSet, whose Jobs are made anew, with the replicated job and the index of the Job.
    """
    resumed = resumption(pod)
    if resumed is not None:
        return resumed.place
    own = annotation(pod, well_known.COMPLETION_INDEX) or pod["metadata"]["name"]
    replicated, job = label(pod, well_known.REPLICATED_JOB_NAME), label(pod, well_known.JOB_INDEX)
    return own if replicated is None or job is None else f"{replicated}/{job}/{own}"


def resumption(pod: Obj) -> Resumption | None:
    """What a pod goes on with; None if it starts from the beginning."""
    found = find_condition(pod, RESUMED)
    if found is None:
        return None
    work, _, place = found["message"].partition(_BETWEEN)
    return Resumption(place, parse_duration(work))


def resumed_work(pod: Obj) -> Duration:
    """The work that was done before the containers of a pod started."""
    resumed = resumption(pod)
    return 0 if resumed is None else resumed.work


def with_resumption(pod: Obj, resumed: Resumption | None, now: Instant) -> Obj:
    """The pod, which goes on with that, or from the beginning; the pod itself if it does so already."""
    if resumption(pod) == resumed:
        return pod
    conditions = [c for c in pod["status"].get("conditions") or () if c["type"] != RESUMED]
    if resumed is not None and resumed.work:
        told = (_REASON, f"{duration_text(resumed.work)}{_BETWEEN}{resumed.place}")
        conditions.insert(0, condition(RESUMED, True, told, None, now))
    return with_status(pod, {**pod["status"], "conditions": conditions})


# --- what is kept of it ---


def saved_work(job: Obj, place: str) -> Duration:
    """The work that a Job or JobSet keeps for a place."""
    return _read(saved_places(job).get(place))


def most_saved(job: Obj, places: Iterable[str]) -> Resumption | None:
    """The most work that is kept for one of these places; None if none has any."""
    saved = saved_places(job)
    found = [Resumption(place, work) for place in places if (work := _read(saved.get(place)))]
    return min(found, key=lambda each: (-each.work, each.place), default=None)


def saved_places(job: Obj) -> Mapping[str, str]:
    """By place, the work that a Job or JobSet keeps, as its annotation says it."""
    text = annotation(job, well_known.WORK_DONE)
    return _NOTHING if text is None else _decoded(text)


def with_saved_work(job: Obj, place: str, work: Duration) -> Obj:
    """The Job or JobSet that keeps so much for a place; itself if it does so already."""
    saved = saved_places(job)
    if _read(saved.get(place)) == work:
        return job
    kept = dict(saved)
    if work:
        kept[place] = duration_text(work)
    else:
        del kept[place]
    annotations = dict(job["metadata"].get("annotations") or ())
    if kept:
        annotations[well_known.WORK_DONE] = msgspec.json.encode(kept).decode()
    else:
        del annotations[well_known.WORK_DONE]
    return with_metadata(job, annotations=annotations)


@lru_cache(maxsize=64)
def _decoded(text: str) -> Mapping[str, str]:
    """What such an annotation says; many pods of a job ask at the same time."""
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError):
        return _NOTHING  # somebody else wrote it


def _read(text: str | None) -> Duration:
    try:
        return 0 if text is None else parse_duration(text)
    except ValueError:
        return 0
