"""JobSet controller: creates the Jobs of JobSets, and reacts to their completion and failure.

Each reconcile follows upstream's (pkg/controllers/jobset_controller.go of JobSet) in its order, and writes the status
once, at the end. Decisions are in the other modules of batchyard.jobs.jobset.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.defaults import with_defaults
from batchyard.api.errors import ApiError, Forbidden, InvalidObject
from batchyard.api.meta import Key, Obj, controller_of, controller_reference, group_kind, key_of, with_path
from batchyard.api.schema import completed
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
from batchyard.jobs.job.plan import CREATED_MAX
from batchyard.jobs.jobset import spec
from batchyard.jobs.jobset import spec as r
from batchyard.jobs.jobset.policies import (
    JobSetStatusDraft,
    StartupDecision,
    apply_failure_policy,
    are_all_ready,
    has_start_time,
    has_succeeded,
    replicated_statuses,
    resumed_job,
    startup_decision,
    without_start_time,
)
from batchyard.jobs.jobset.spec import (
    Children,
    group_of,
    has_host_names,
    is_suspended,
    job_name,
    replicas_of,
    replicated_job_name,
    replicated_jobs,
    sort_children,
    subdomain,
)

"""One entry of status.replicatedJobsStatus: its name, and counts of Jobs."""


# --- child job ---
#
# Child Jobs of a JobSet, and the headless Service for their pods.
#
# Labels and annotations of the same names give the position of a Job and its pods in the JobSet.


#: Tolerates the taint of nodes that are manually reserved for one Job each.
_TOLERATION: Final = {"key": well_known.NO_SCHEDULE, "operator": "Exists", "effect": "NoSchedule"}


def child_jobs(jobset: Obj, replicated: Mapping[str, Any], indexes: Iterable[int]) -> list[dict[str, Any]]:
    """Return the Jobs of a replicated job with these indexes."""
    template = replicated["template"]
    exclusive = _exclusive_annotations(jobset, template)
    shared = _shared_marks(jobset, replicated)
    jobs = []
    for index in indexes:
        marks = {**shared, **_own_marks(jobset, replicated, index)}
        metadata = {
            "name": job_name(jobset, replicated, index),
            "namespace": jobset["metadata"].get("namespace", ""),
            "ownerReferences": [controller_reference(jobset)],
            **_marked(template.get("metadata") or {}, marks, exclusive),
        }
        pod_template = _set_apart(metadata, _pod_template(jobset, template, marks, exclusive))
        spec = {**template["spec"], "template": pod_template, "suspend": is_suspended(jobset)}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
        jobs.append(with_defaults(job))
    return jobs


def headless_service(jobset: Obj) -> dict[str, Any]:
    """Return the headless Service for the host names of the pods."""
    metadata = jobset["metadata"]
    not_ready = jobset["spec"]["network"].get("publishNotReadyAddresses")
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": subdomain(jobset),
            "namespace": metadata.get("namespace", ""),
            "ownerReferences": [controller_reference(jobset)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {well_known.JOB_SET_NAME: metadata["name"]},
            "publishNotReadyAddresses": True if not_ready is None else not_ready,
        },
    }


# --- the pods of a Job ---


def _pod_template(jobset: Obj, template: Obj, marks: Mapping[str, str], exclusive: Mapping[str, str]) -> dict[str, Any]:
    """Return the pod template with the Job's marks and the subdomain for host names."""
    own = completed("PodTemplateSpec", template["spec"]["template"])
    metadata, spec = own.get("metadata") or {}, dict(own.get("spec") or ())
    if has_host_names(jobset):
        spec["subdomain"] = subdomain(jobset)
    return {**own, "metadata": {**metadata, **_marked(metadata, marks, exclusive)}, "spec": spec}


def _set_apart(metadata: Obj, pod_template: dict[str, Any]) -> dict[str, Any]:
    """Return the pod template with selector and toleration of nodes reserved for the Job, if it requests such nodes."""
    annotations = metadata["annotations"]
    if well_known.EXCLUSIVE_TOPOLOGY not in annotations or well_known.NODE_SELECTOR_STRATEGY not in annotations:
        return pod_template
    spec = pod_template["spec"]
    node = {well_known.NAMESPACED_JOB: f"{metadata['namespace']}_{metadata['name']}"}
    selector = {**(spec.get("nodeSelector") or {}), **node}
    tolerations = [*(spec.get("tolerations") or ()), _TOLERATION]
    return {**pod_template, "spec": {**spec, "nodeSelector": selector, "tolerations": tolerations}}


# --- position labels ---


def _marked(metadata: Obj, marks: Mapping[str, str], exclusive: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the labels and annotations of a Job or its pods: their own, and those of their position."""
    return {
        "labels": {**(metadata.get("labels") or {}), **marks},
        "annotations": {**(metadata.get("annotations") or {}), **marks, **exclusive},
    }


def _shared_marks(jobset: Obj, replicated: Mapping[str, Any]) -> dict[str, str]:
    """Return the marks shared by the Jobs of a replicated job."""
    metadata, everybody = jobset["metadata"], replicated_jobs(jobset)
    marks = {
        well_known.JOB_SET_NAME: metadata["name"],
        well_known.JOB_SET_UID: metadata["uid"],
        well_known.REPLICATED_JOB_NAME: replicated["name"],
        well_known.RESTART_ATTEMPT: str((jobset.get("status") or {}).get("restarts", 0)),
        well_known.REPLICATED_JOB_REPLICAS: str(replicas_of(replicated)),
        well_known.GLOBAL_REPLICAS: str(sum(map(replicas_of, everybody))),
        well_known.JOB_GROUP_NAME: group_of(replicated),
        well_known.JOB_GROUP_REPLICAS: str(sum(map(replicas_of, _group(jobset, replicated)))),
    }
    coordinator = jobset["spec"].get("coordinator")
    if coordinator is not None:
        marks[well_known.COORDINATOR] = _endpoint(jobset, coordinator)
    return marks


def _own_marks(jobset: Obj, replicated: Mapping[str, Any], index: int) -> dict[str, str]:
    """Return the marks of the Job with this index."""
    full_name = f"{jobset['metadata'].get('namespace', '')}/{job_name(jobset, replicated, index)}"
    return {
        well_known.JOB_INDEX: str(index),
        well_known.JOB_KEY: hashlib.sha1(full_name.encode(), usedforsecurity=False).hexdigest(),
        well_known.JOB_GLOBAL_INDEX: str(_jobs_before(replicated, replicated_jobs(jobset)) + index),
        well_known.JOB_GROUP_INDEX: str(_jobs_before(replicated, _group(jobset, replicated)) + index),
    }


def _group(jobset: Obj, replicated: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the replicated jobs of the same group."""
    group = group_of(replicated)
    return [each for each in replicated_jobs(jobset) if group_of(each) == group]


def _jobs_before(replicated: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of Jobs of the replicated jobs before this one."""
    names = [each["name"] for each in among]
    return sum(map(replicas_of, among[: names.index(replicated["name"])]))


def _endpoint(jobset: Obj, coordinator: Mapping[str, Any]) -> str:
    """Return the host name of the coordinator pod."""
    job = f"{jobset['metadata']['name']}-{coordinator['replicatedJob']}-{coordinator.get('jobIndex', 0)}"
    return f"{job}-{coordinator.get('podIndex', 0)}.{subdomain(jobset)}"


def _exclusive_annotations(jobset: Obj, template: Obj) -> dict[str, str]:
    """Return the annotations for exclusive topology placement; the template takes precedence over the JobSet."""
    found: dict[str, str] = {}
    for metadata in (jobset["metadata"], template.get("metadata") or {}):
        annotations = metadata.get("annotations") or {}
        if well_known.EXCLUSIVE_TOPOLOGY in annotations:
            asked = (well_known.EXCLUSIVE_TOPOLOGY, well_known.NODE_SELECTOR_STRATEGY)
            found.update({name: annotations[name] for name in asked if name in annotations})
    return found


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
