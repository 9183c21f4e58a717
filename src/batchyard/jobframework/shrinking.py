"""Partial preemption of elastic jobs: a job shrinks to its minimum when preempted, and later requests its full size.

The scheduler marks the slice with quota with the condition PartiallyPreempted. The job then gets its minimum as
parallelism, so that the Job controller deletes the surplus pods, which do not count as failed. The slice releases the
quota of each pod that has stopped. After a backoff, the job requests its full parallelism again. The backoff doubles
with each partial preemption of the job, up to an hour. It bounds how often jobs can shrink each other.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from batchyard.api import meta, well_known
from batchyard.api.meta import Obj
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import HOUR, MINUTE, Duration, Instant, exponential_backoff
from batchyard.interfaces.client import Update, UpdateStatus
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobframework.workloads import minimum_parallelism
from batchyard.scheduling.preemption.shrinking import PARTIALLY_PREEMPTED
from batchyard.scheduling.workload import evictions, lifecycle

_BACKOFF_BASE: Final = MINUTE
_BACKOFF_MAX: Final = HOUR
OUT_OF_SYNC_MESSAGE: Final = "The workload slice is out of sync with its parent job"
_ANNOTATIONS: Final = (well_known.FULL_PARALLELISM, well_known.PARTIALLY_PREEMPTED_AT, well_known.PARTIAL_PREEMPTIONS)


class ShrinkStep(NamedTuple):
    """The result of a step of a partial preemption, and when the next step is due."""

    #: The writes of the step; None if other steps of the reconcile may follow.
    result: ReconcileResult | None
    due: Instant | None = None


_NO_STEP: Final = ShrinkStep(None)


def allows_partial_preemption(job: Obj) -> bool:
    """Return whether a job may be preempted down to its minimum, according to its annotations."""
    return meta.annotation(job, well_known.PARTIAL_PREEMPTION) == "true" and minimum_parallelism(job) is not None


def is_shrinking(workload: Obj | None) -> bool:
    """Return whether a slice has to shrink, because it was preempted in part."""
    return workload is not None and meta.is_true(workload, PARTIALLY_PREEMPTED) and not lifecycle.is_evicted(workload)


def backoff_after(preemption_count: int) -> Duration:
    """Return how long a job keeps its minimum after this many partial preemptions, in microseconds."""
    return exponential_backoff(_BACKOFF_BASE, _BACKOFF_MAX, max(preemption_count, 1))


def next_step(job: Obj, reserved: Obj | None, waiting: Obj | None, now: Instant) -> ShrinkStep:
    """Return the next step of a partial preemption of a job; one without effect if there is none.

    `reserved` is the slice with quota, and `waiting` the slice without quota that is to replace it.
    """
    if reserved is not None and is_shrinking(reserved):
        return _shrink(job, reserved, waiting, now)
    full_parallelism = meta.parse_integer(meta.annotation(job, well_known.FULL_PARALLELISM) or "")
    if full_parallelism is None:
        return _NO_STEP
    if job["spec"].get("parallelism", 1) != minimum_parallelism(job):
        return ShrinkStep(ReconcileResult([Update(_without_state(job))]))  # the user has changed the number of pods
    due = _due_time(job)
    if reserved is not None and due > now:
        return ShrinkStep(None, due)
    message = f"Requests {full_parallelism} pods again after a partial preemption"
    grown_job = meta.with_path(_without_state(job), ("spec", "parallelism"), full_parallelism)
    event = EventRecord(meta.key_of(job), "Normal", "FullSizeRequested", message)
    return ShrinkStep(ReconcileResult([Update(grown_job)], [event]))


def _shrink(job: Obj, reserved: Obj, waiting: Obj | None, now: Instant) -> ShrinkStep:
    if waiting is not None:
        finished = lifecycle.finish(waiting, lifecycle.OUT_OF_SYNC, OUT_OF_SYNC_MESSAGE, now)
        return ShrinkStep(ReconcileResult([UpdateStatus(finished)]))
    parallelism, minimum = job["spec"].get("parallelism", 1), minimum_parallelism(job)
    least = parallelism if minimum is None else min(parallelism, minimum)
    if least > _count_to_keep(reserved):
        return _evict(reserved, now)
    if minimum is not None and parallelism > minimum:
        event = EventRecord(
            meta.key_of(job), "Normal", PARTIALLY_PREEMPTED, f"Shrinks from {parallelism} to {minimum} pods"
        )
        return ShrinkStep(ReconcileResult([Update(_shrunk_job(job, minimum, now))], [event]))
    counts = {each["name"]: each["count"] for each in reserved["spec"]["podSets"]}
    if minimum is None or sum(counts.values()) <= max(minimum, parallelism):
        return ShrinkStep(ReconcileResult([UpdateStatus(evictions.finish_shrinking(reserved, now))]))
    return _NO_STEP  # the pods are still stopping


def _count_to_keep(reserved: Obj) -> int:
    """Return how many pods a slice keeps by the decision of the scheduler, which reads the minimum from the slice."""
    return sum([each.get("minCount", each["count"]) for each in reserved["spec"]["podSets"]])


def _evict(reserved: Obj, now: Instant) -> ShrinkStep:
    """Evict a slice as a whole: the user has raised or removed the minimum of its job, so the job cannot shrink enough.

    Otherwise the preemptor would never fit, and the scheduler would preempt the job in part again and again.
    """
    condition = meta.find_condition(reserved, PARTIALLY_PREEMPTED)
    assert condition is not None
    reason, message = evictions.EVICTED_BY_PREEMPTION, condition["message"]
    shrunk = evictions.finish_shrinking(reserved, now, "Evicted")
    evicted = evictions.evict(shrunk, reason=reason, message=message, now=now, preemption=condition["reason"])
    event = EventRecord(meta.key_of(reserved), "Normal", f"EvictedDueTo{reason}", message)
    return ShrinkStep(ReconcileResult([UpdateStatus(evicted)], [event]))


def _shrunk_job(job: Obj, minimum: int, now: Instant) -> Obj:
    count = _preemption_count(job)
    if meta.annotation(job, well_known.FULL_PARALLELISM) is None:
        count += 1
    state = {
        well_known.FULL_PARALLELISM: str(job["spec"].get("parallelism", 1)),
        well_known.PARTIALLY_PREEMPTED_AT: format_time(now),
        well_known.PARTIAL_PREEMPTIONS: str(count),
    }
    annotations: Mapping[str, str] = {**(job["metadata"].get("annotations") or {}), **state}
    return meta.with_metadata(meta.with_path(job, ("spec", "parallelism"), minimum), annotations=annotations)


def _without_state(job: Obj) -> Obj:
    """Return the job without the annotations of its partial preemption, except the number of preemptions."""
    annotations = {
        name: value
        for name, value in job["metadata"]["annotations"].items()
        if name not in _ANNOTATIONS or name == well_known.PARTIAL_PREEMPTIONS
    }
    return meta.with_metadata(job, annotations=annotations)


def full_size_due(job: Obj) -> Instant | None:
    """Return when a job requests its full size again after a partial preemption; None if it has it or requests it."""
    return None if meta.annotation(job, well_known.FULL_PARALLELISM) is None else _due_time(job)


def _due_time(job: Obj) -> Instant:
    preempted_at = meta.annotation(job, well_known.PARTIALLY_PREEMPTED_AT)
    try:
        start = parse_time(preempted_at) if preempted_at else 0
    except ValueError:
        start = 0
    return start + backoff_after(_preemption_count(job))


def _preemption_count(job: Obj) -> int:
    return meta.parse_integer(meta.annotation(job, well_known.PARTIAL_PREEMPTIONS) or "") or 0
