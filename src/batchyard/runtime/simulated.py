"""Work that runs without pods: a Job, or a bare Workload, simply takes its time and is done.

How long is told by the annotation `batchyard.dev/runtime`. Without it

a Job           takes 60 seconds
a JobSet's Job  takes what the annotation of the JobSet says, else 60 seconds; the JobSet ends with its Jobs
a Workload      that nobody owns runs for ever

One that is stopped and let go again starts over. A Job's status is what the Job controller of Kubernetes would write
(pkg/controller/job); nothing that looks at Jobs can tell the difference, so pods can take this one's place.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Key, Obj, controller_of
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.job import pods_at_once
from batchyard.base.instant import Duration, Instant
from batchyard.core.lifecycle import reasons as r
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.ports.client import Reader, UpdateStatus, WatchEvent
from batchyard.ports.controller import Controller, EventRecord, Outcome
from batchyard.runtime.durations import UNTOLD, annotated_runtime
from batchyard.runtime.jobs import has_ended
from batchyard.runtime.jobsets import JobSetPlayback

_COMPLETED: Final = ("CompletionsReached", "Reached expected number of succeeded pods")

Conditions = list[Mapping[str, Any]]


def simulated_runtime() -> tuple[Controller, ...]:
    """The controllers that run everything without pods."""
    return WorkloadPlayback(), JobPlayback(), JobSetPlayback()


class WorkloadPlayback:
    """Runs bare Workloads, and gives back the quota of evicted ones, as their jobs would if they had any."""

    name = "workload-playback"
    rank = 0
    kinds = (scheme.WORKLOAD,)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """A Workload nobody owns that holds quota."""
        obj = event.obj
        holds = "admission" in (obj.get("status") or ()) and controller_of(obj) is None
        return (event.key,) if holds and not lifecycle.is_finished(obj) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Release an evicted one; finish one whose time is over."""
        workload = reader.get(key)
        if workload is None or lifecycle.is_finished(workload) or controller_of(workload) is not None:
            return Outcome()
        released = lifecycle.release_after_eviction(workload, now)
        if released is not workload:
            return Outcome([UpdateStatus(released)])
        admitted, runtime = find_condition(workload, r.ADMITTED), annotated_runtime(workload)
        if admitted is None or admitted["status"] != "True" or runtime is None:
            return Outcome()
        due = parse_time(admitted["lastTransitionTime"]) + runtime
        if due > now:
            return Outcome(requeue_at=due)
        finished = lifecycle.finish(workload, r.SUCCEEDED, "Job finished successfully", now)
        return Outcome([UpdateStatus(finished)])


class JobPlayback:
    """Runs Jobs, those of JobSets included."""

    name = "job-playback"
    rank = 0
    kinds = (scheme.JOB,)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The Job."""
        return (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Start, suspend or complete the Job, or wait for its time."""
        job = reader.get(key)
        if job is None or "deletionTimestamp" in job["metadata"] or has_ended(job):
            return Outcome()
        if job["spec"].get("suspend"):
            return _suspend(key, job, now)
        started = (job.get("status") or {}).get("startTime")
        if started is None or is_true(job, "Suspended"):
            return _start(key, job, now)
        due = parse_time(started) + _job_runtime(job, reader)
        return Outcome(requeue_at=due) if due > now else _complete(key, job, now)


def _job_runtime(job: Obj, reader: Reader) -> Duration:
    """A Job's time is its own, else that of the JobSet it belongs to, else a minute."""
    runtime, owner = annotated_runtime(job), controller_of(job)
    if runtime is None and owner is not None and owner["kind"] == "JobSet":
        jobset = reader.get(Key(scheme.JOB_SET, job["metadata"].get("namespace", ""), owner["name"]))
        runtime = None if jobset is None else annotated_runtime(jobset)
    return UNTOLD if runtime is None else runtime


# --- the status of a Job ---


def _suspend(key: Key, job: Obj, now: Instant) -> Outcome:
    """No pods any more; a Job that never ran is told to be suspended as well."""
    status = dict(job.get("status") or ())
    conditions = _with_condition(status, "Suspended", True, ("JobSuspended", "Job suspended"), now)
    if conditions is status.get("conditions") and "active" not in status:
        return Outcome()
    status.pop("active", None)
    status |= {"conditions": conditions, "ready": 0, "terminating": 0}
    event = EventRecord(key, "Normal", "Suspended", "Job suspended")
    return Outcome([UpdateStatus({**job, "status": status})], [] if is_true(job, "Suspended") else [event])


def _start(key: Key, job: Obj, now: Instant) -> Outcome:
    """All pods at once, and at once ready; the time of a resumed Job counts from now."""
    status = dict(job.get("status") or ())
    pods = pods_at_once(job["spec"])
    events = []
    if is_true(job, "Suspended"):
        status["conditions"] = _with_condition(status, "Suspended", False, ("JobResumed", "Job resumed"), now)
        events.append(EventRecord(key, "Normal", "Resumed", "Job resumed"))
    status |= {"startTime": format_time(now), "active": pods, "ready": pods, "terminating": 0}
    return Outcome([UpdateStatus({**job, "status": status})], events)


def _complete(key: Key, job: Obj, now: Instant) -> Outcome:
    status = dict(job["status"])
    status.pop("active", None)
    for kind in ("SuccessCriteriaMet", "Complete"):
        status["conditions"] = _with_condition(status, kind, True, _COMPLETED, now)
    spec = job["spec"]
    succeeded = spec.get("completions", spec.get("parallelism", 1))
    status |= {"succeeded": succeeded, "ready": 0, "terminating": 0, "completionTime": format_time(now)}
    if spec.get("completionMode") == "Indexed" and succeeded:
        status["completedIndexes"] = _all_indexes(succeeded)
    event = EventRecord(key, "Normal", "Completed", "Job completed")
    return Outcome([UpdateStatus({**job, "status": status})], [event])


def _all_indexes(completions: int) -> str:
    """The indexes of a Job that is done, as its status writes them: only three or more in a row become a range."""
    return f"0-{completions - 1}" if completions > 2 else ",".join(map(str, range(completions)))


def _with_condition(
    status: Mapping[str, Any], kind: str, holds: bool, why: tuple[str, str], now: Instant
) -> Conditions:
    """The conditions with this one set, in the form Jobs have; the very list there is when nothing changes."""
    conditions: Conditions = status.get("conditions") or []
    wanted = {"type": kind, "status": "True" if holds else "False", "reason": why[0], "message": why[1]}
    old = next((c for c in conditions if c["type"] == kind), None)
    if old is not None and all(old.get(name) == value for name, value in wanted.items()):
        return conditions
    new = {**wanted, "lastProbeTime": format_time(now), "lastTransitionTime": format_time(now)}
    return [*conditions, new] if old is None else [new if c is old else c for c in conditions]
