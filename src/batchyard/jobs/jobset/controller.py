"""JobSet controller: creates the Jobs of JobSets, and reacts to their completion and failure.

Each reconcile follows upstream's (pkg/controllers/jobset_controller.go of JobSet) in its order, and writes the status
once, at the end. Decisions are in the other modules of batchyard.jobs.jobset.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from batchyard.api import scheme
from batchyard.api.errors import ApiError, Forbidden, InvalidObject
from batchyard.api.meta import Key, Obj, controller_of, group_kind, key_of, with_path
from batchyard.base.instant import Instant
from batchyard.interfaces.client import (
    Create,
    Delete,
    EventType,
    Propagation,
    Reader,
    Update,
    UpdateStatus,
    WatchEvent,
    Write,
)
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.job.parallelism import CREATED_MAX
from batchyard.jobs.jobset import spec
from batchyard.jobs.jobset import spec as r
from batchyard.jobs.jobset.child_job import child_jobs, headless_service
from batchyard.jobs.jobset.policies import (
    StartupDecision,
    apply_failure_policy,
    has_start_time,
    has_succeeded,
    resumed_job,
    startup_decision,
    without_start_time,
)
from batchyard.jobs.jobset.spec import Children, replicated_job_name, sort_children
from batchyard.jobs.jobset.status import JobSetStatusDraft, are_all_ready, replicated_statuses


class _JobSetPass(NamedTuple):
    """A JobSet with its Jobs, the status draft, and the writes so far."""

    key: Key
    jobset: Obj
    children: Children
    draft: JobSetStatusDraft
    writes: list[Write]

    def outcome(self) -> ReconcileResult:
        """Return the writes so far, then the status if it changed, and its Events."""
        if self.draft.is_changed:
            self.writes.append(UpdateStatus(self.draft.result()))
        events = [EventRecord(self.key, *note) for note in self.draft.notes]
        return ReconcileResult(self.writes, events, if_refused=partial(_rejection_event, self.key))


class JobSetController:
    """Maintains the Jobs, Services and status of JobSets."""

    name = "jobset-controller"
    rank = 0
    kinds = (scheme.JOB_SET, scheme.JOB, scheme.SERVICE)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return a JobSet, the owner of a Job or Service, or JobSets that may have waited for a deleted Job's name."""
        key = event.key
        if key.kind == scheme.JOB_SET:
            return (key,) if _is_relevant(event, _of_jobset) else ()
        owner = controller_of(event.obj)
        if owner is not None and owner["kind"] == "JobSet":
            is_news = key.kind == scheme.SERVICE or _is_relevant(event, _of_job)
            return (Key(scheme.JOB_SET, key.namespace, owner["name"]),) if is_news else ()
        is_free = event.type is EventType.DELETED and key.kind == scheme.JOB
        return _jobsets_named_in(key) if is_free else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Bring the Jobs into the state that the JobSet requests, and update its status."""
        jobset = reader.get(key)
        if jobset is None or "deletionTimestamp" in jobset["metadata"] or spec.is_managed_elsewhere(jobset):
            return ReconcileResult()
        children = sort_children(jobset, _jobs_of(jobset, reader))
        if children is None:
            return ReconcileResult()
        look = _JobSetPass(key, jobset, children, JobSetStatusDraft(jobset, now), [])
        statuses = replicated_statuses(jobset, children)
        look.draft.count(statuses)
        if spec.is_finished(jobset):
            look.writes.extend(_deletions(children.active))
            return look.outcome()
        look.writes.extend(_deletions(children.previous))
        if not spec.is_suspended(jobset) and are_all_ready(jobset, statuses):
            look.draft.end_restart()
        if children.failed:
            apply_failure_policy(look.draft, jobset, children.failed)
            return look.outcome()
        if children.successful and has_succeeded(jobset, children.successful):
            look.draft.complete()
            return look.outcome()
        return _create_and_resume(look, startup_decision(jobset, statuses), reader)


def _create_and_resume(look: _JobSetPass, turn: StartupDecision, reader: Reader) -> ReconcileResult:
    """Create missing objects, then suspend or resume the Jobs."""
    jobset, draft, writes = look.jobset, look.draft, look.writes
    writes.extend(_missing_service(jobset, reader))
    for jobs in _missing_jobs(look, turn):
        taken = [key for key in map(key_of, jobs) if reader.get(key) is not None]
        writes.extend(Create(job) for job in jobs if key_of(job) not in taken)
        if taken:  # the following replicated jobs have to wait as well
            return ReconcileResult(writes, [_creation_failed(look.key, taken)])
    if spec.is_suspended(jobset):
        writes.extend(_suspensions(look.children.active))
        draft.suspend()
        return look.outcome()
    writes.extend(_resumptions(look.children.active, turn))
    if turn.others_wait:
        draft.start_in_order()
        return look.outcome()
    if spec.starts_in_order(jobset):
        draft.end_start_in_order()
    draft.resume()
    return look.outcome()


# --- owned objects ---


def _jobs_of(jobset: Obj, reader: Reader) -> Iterable[Obj]:
    """Return the Jobs that a JobSet controls."""
    uid = jobset["metadata"]["uid"]
    for obj in reader.owned_by(uid, jobset["metadata"].get("namespace", "")):
        if group_kind(obj) == scheme.JOB and (controller_of(obj) or {}).get("uid") == uid:
            yield obj


def _deletions(jobs: Sequence[Obj]) -> list[Write]:
    """Delete Jobs in the foreground, so that a Job of the same name never meets the pods of the previous one."""
    return [
        Delete(key_of(job), propagation=Propagation.FOREGROUND, uid=job["metadata"]["uid"])
        for job in jobs
        if "deletionTimestamp" not in job["metadata"]
    ]


def _missing_service(jobset: Obj, reader: Reader) -> list[Write]:
    """Return the creation of the Service; an existing one of that name suffices."""
    if not spec.has_host_names(jobset):
        return []
    there = reader.get(Key(scheme.SERVICE, jobset["metadata"].get("namespace", ""), spec.subdomain(jobset)))
    return [] if there is not None else [Create(headless_service(jobset))]


def _missing_jobs(look: _JobSetPass, turn: StartupDecision) -> list[list[dict[str, Any]]]:
    """Return the Jobs to create for each startable replicated job; a name is free only after its last Job is gone.

    The limit is that for pods of a Job; the events of the created Jobs trigger the next reconcile.
    """
    jobset, children = look.jobset, look.children
    if children.previous and spec.blocks_recreation(jobset):
        return []
    names, room = children.names(), CREATED_MAX
    missing: list[list[dict[str, Any]]] = []
    for replicated in turn.replicated_jobs:
        places = range(spec.replicas_of(replicated))
        free = list(islice((i for i in places if spec.job_name(jobset, replicated, i) not in names), room))
        if free:
            missing.append(child_jobs(jobset, replicated, free))
            room -= len(free)
    return missing


def _suspensions(active: Sequence[Obj]) -> list[Write]:
    return [Update(with_path(job, ("spec", "suspend"), True)) for job in active if not job["spec"].get("suspend")]


def _resumptions(active: Sequence[Obj], turn: StartupDecision) -> list[Write]:
    """Resume the suspended Jobs that may start; clear the start time of a Job that ran before first."""
    templates = {each["name"]: each["template"]["spec"]["template"] for each in turn.replicated_jobs}
    writes: list[Write] = []
    for job in active:
        template = templates.get(replicated_job_name(job)) if job["spec"].get("suspend") else None
        if template is None:
            continue
        fresh = not has_start_time(job)
        writes.append(Update(resumed_job(job, template)) if fresh else UpdateStatus(without_start_time(job)))
    return writes


def _creation_failed(key: Key, taken: Sequence[Key]) -> EventRecord:
    """Return an Event: the names are taken by other Jobs, and the JobSet waits until these are gone."""
    texts = [f'job "{k.name}" creation failed with error: jobs.batch "{k.name}" already exists' for k in taken]
    return EventRecord(key, "Warning", r.JOB_CREATION_FAILED, "\n".join(texts))


def _rejection_event(key: Key, write: Write, error: ApiError) -> EventRecord | None:
    """Return an Event for a rejected creation, which only a change of the JobSet can fix."""
    if not isinstance(write, Create) or not isinstance(error, Forbidden | InvalidObject):
        return None
    name, why = write.obj["metadata"]["name"], str(error)
    if isinstance(error, InvalidObject):
        kind = "Job.batch" if write.obj["kind"] == "Job" else "Service"
        listed = ", ".join(map(str, error.faults))
        why = f'{kind} "{name}" is invalid: {listed if len(error.faults) == 1 else f"[{listed}]"}'
    if write.obj["kind"] == "Job":
        return EventRecord(key, "Warning", r.JOB_CREATION_FAILED, f'job "{name}" creation failed with error: {why}')
    return EventRecord(key, "Warning", r.SERVICE_CREATION_FAILED, why)


# --- relevant changes ---


def _is_relevant(event: WatchEvent, read: Callable[[Obj], tuple[Any, ...]]) -> bool:
    """Report whether a change affects fields that are read here. Most changes are counts and statuses."""
    return event.type is not EventType.MODIFIED or event.old is None or read(event.old) != read(event.obj)


def _of_jobset(jobset: Obj) -> tuple[Any, ...]:
    """Return the parts of a JobSet that are read; its counts are only written."""
    metadata, status = jobset["metadata"], jobset.get("status") or {}
    own = (jobset["spec"], metadata.get("annotations"), "deletionTimestamp" in metadata)
    return (*own, status.get("restarts", 0), status.get("conditions"))


def _of_job(job: Obj) -> tuple[Any, ...]:
    """Return the parts of a Job that are read."""
    metadata, status = job["metadata"], job.get("status") or {}
    own = (job["spec"], metadata.get("labels"), metadata.get("ownerReferences"), "deletionTimestamp" in metadata)
    counts = (status.get("ready", 0), status.get("succeeded", 0), status.get("active", 0) > 0)
    return (*own, *counts, status.get("startTime") is None, status.get("conditions"))


def _jobsets_named_in(job: Key) -> Iterable[Key]:
    """Return the JobSets that could have a Job of this name: `<JobSet>-<replicated job>-<index>`."""
    parts = job.name.split("-")
    if parts[-1].isdecimal():
        for end in range(1, len(parts) - 1):
            yield Key(scheme.JOB_SET, job.namespace, "-".join(parts[:end]))
