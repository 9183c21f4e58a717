"""Simulated checkpoints: the work that stopped pods lose, and the work that their successors resume with.

A job saves its work periodically if its annotation `batchyard.dev/checkpoint-every` is set. The saved work is stored by
place on the Job, or on its JobSet. A pod that resumes saved work has the condition Resumed.
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

#: The condition of a pod that resumes the work of an earlier pod, or its own after its containers failed.
RESUMED: Final = "batchyard.dev/Resumed"
_REASON: Final = "FromCheckpoint"
_BETWEEN: Final = " of work were done at "
_NOTHING: Final[Mapping[str, str]] = {}


class Resumption(NamedTuple):
    """The work that a pod resumes with, and its place."""

    place: str
    work: Duration


def checkpoint_interval(objects: Iterable[Obj | None]) -> Duration | None:
    """Return the checkpoint interval from the first object that has one: the pod, its Job, its JobSet."""
    intervals = (duration(obj, well_known.CHECKPOINT_EVERY) for obj in objects if obj is not None)
    return next((interval for interval in intervals if interval), None)


def running_since(pod: Obj) -> Instant | None:
    """Return the time since when the containers of a pod run; None if they do not."""
    if phase(pod) != RUNNING:
        return None
    for container in pod["status"].get("containerStatuses") or ():
        started = ((container.get("state") or {}).get("running") or {}).get("startedAt")
        if started is not None:
            return parse_time(started)
    return None


def lost_work(started: Instant | None, interval: Duration | None, now: Instant) -> Duration:
    """Return the work that a running pod would lose: the time since its last checkpoint, or since its start."""
    done = 0 if started is None else max(0, now - started)
    return done % interval if interval else done


def kept_work(started: Instant | None, interval: Duration | None, now: Instant) -> Duration:
    """Return the work that a running pod would keep: the time up to its last checkpoint."""
    done = 0 if started is None else max(0, now - started)
    return done - lost_work(started, interval, now)


# --- places ---


def is_interchangeable(pod: Obj) -> bool:
    """Report whether any other pod of the Job could do its work: it has no completion index."""
    return annotation(pod, well_known.COMPLETION_INDEX) is None


def place_of(pod: Obj) -> str:
    """Return the place of a pod: that of a predecessor, its completion index, or its name.

    In a JobSet, whose Jobs are recreated, the place includes the replicated job and the index of the Job.
    """
    resumed = resumption(pod)
    if resumed is not None:
        return resumed.place
    own = annotation(pod, well_known.COMPLETION_INDEX) or pod["metadata"]["name"]
    replicated, job = label(pod, well_known.REPLICATED_JOB_NAME), label(pod, well_known.JOB_INDEX)
    return own if replicated is None or job is None else f"{replicated}/{job}/{own}"


def resumption(pod: Obj) -> Resumption | None:
    """Return the work that a pod resumes with; None if it starts from the beginning."""
    found = find_condition(pod, RESUMED)
    if found is None:
        return None
    work, _, place = found["message"].partition(_BETWEEN)
    return Resumption(place, parse_duration(work))


def resumed_work(pod: Obj) -> Duration:
    """Return the work that was done before the containers of a pod started."""
    resumed = resumption(pod)
    return 0 if resumed is None else resumed.work


def with_resumption(pod: Obj, resumed: Resumption | None, now: Instant) -> Obj:
    """Return the pod with this resumption, or without one; the pod itself if nothing changes."""
    if resumption(pod) == resumed:
        return pod
    conditions = [c for c in pod["status"].get("conditions") or () if c["type"] != RESUMED]
    if resumed is not None and resumed.work:
        why = (_REASON, f"{duration_text(resumed.work)}{_BETWEEN}{resumed.place}")
        conditions.insert(0, condition(RESUMED, True, why, None, now))
    return with_status(pod, {**pod["status"], "conditions": conditions})


# --- saved work ---


def saved_work(job: Obj, place: str) -> Duration:
    """Return the work that a Job or JobSet has saved for a place."""
    return _read(saved_places(job).get(place))


def most_saved(job: Obj, places: Iterable[str]) -> Resumption | None:
    """Return the most work saved for any of these places; None if there is none."""
    saved = saved_places(job)
    found = [Resumption(place, work) for place in places if (work := _read(saved.get(place)))]
    return min(found, key=lambda each: (-each.work, each.place), default=None)


def saved_places(job: Obj) -> Mapping[str, str]:
    """Return the saved work of a Job or JobSet by place, from its annotation."""
    text = annotation(job, well_known.WORK_DONE)
    return _NOTHING if text is None else _decoded(text)


def with_saved_work(job: Obj, place: str, work: Duration) -> Obj:
    """Return the Job or JobSet with this work saved for a place; itself if nothing changes."""
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
    """Parse the annotation; cached, because many pods of a job need it at the same time."""
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError):
        return _NOTHING  # another client wrote it


def _read(text: str | None) -> Duration:
    try:
        return 0 if text is None else parse_duration(text)
    except ValueError:
        return 0
