"""JobSet controller: creates the Jobs of JobSets, and reacts to the completion and failure of these Jobs.

Each reconcile takes the same steps as upstream (pkg/controllers/jobset_controller.go of JobSet), and writes the status
at most once, at the end. The module `policies` decides when a JobSet starts its Jobs, restarts, completes or fails.
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
from batchyard.api.schema import fill_defaults
from batchyard.base.instant import Instant
from batchyard.interfaces import client
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.job.plan import CREATED_MAX
from batchyard.jobs.jobset import policies
from batchyard.jobs.jobset import spec as jobset_spec

# The child Jobs of a JobSet, and the headless Service of their pods.
#
# Labels and annotations with the same names give the position of a Job and its pods in the JobSet.


#: Tolerates the taint of nodes that are manually reserved for one Job.
_RESERVED_NODE_TOLERATION: Final = {"key": well_known.NO_SCHEDULE, "operator": "Exists", "effect": "NoSchedule"}


def child_jobs(jobset: Obj, replicated_job: Mapping[str, Any], indexes: Iterable[int]) -> list[dict[str, Any]]:
    """Return new Job manifests for a replicated job of a JobSet, one per index."""
    template = replicated_job["template"]
    placement_annotations = _exclusive_placement_annotations(jobset, template)
    shared_labels = _shared_labels(jobset, replicated_job)
    jobs = []
    for index in indexes:
        position_labels = {**shared_labels, **_index_labels(jobset, replicated_job, index)}
        metadata = {
            "name": jobset_spec.job_name(jobset, replicated_job, index),
            "namespace": jobset["metadata"].get("namespace", ""),
            "ownerReferences": [controller_reference(jobset)],
            **_labels_and_annotations(template.get("metadata") or {}, position_labels, placement_annotations),
        }
        pod_template = _with_node_selector_strategy(
            metadata, _pod_template(jobset, template, position_labels, placement_annotations)
        )
        spec = {**template["spec"], "template": pod_template, "suspend": jobset_spec.is_suspended(jobset)}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
        jobs.append(with_defaults(job))
    return jobs


def headless_service(jobset: Obj) -> dict[str, Any]:
    """Return the manifest of the headless Service that gives the pods of a JobSet DNS host names."""
    metadata = jobset["metadata"]
    publishes_not_ready = jobset["spec"]["network"].get("publishNotReadyAddresses")
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": jobset_spec.subdomain(jobset),
            "namespace": metadata.get("namespace", ""),
            "ownerReferences": [controller_reference(jobset)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {well_known.JOB_SET_NAME: metadata["name"]},
            "publishNotReadyAddresses": True if publishes_not_ready is None else publishes_not_ready,
        },
    }


def _pod_template(
    jobset: Obj, template: Obj, position_labels: Mapping[str, str], placement_annotations: Mapping[str, str]
) -> dict[str, Any]:
    template_with_defaults = fill_defaults("PodTemplateSpec", template["spec"]["template"])
    metadata, spec = template_with_defaults.get("metadata") or {}, dict(template_with_defaults.get("spec") or ())
    if jobset_spec.has_host_names(jobset):
        spec["subdomain"] = jobset_spec.subdomain(jobset)
    return {
        **template_with_defaults,
        "metadata": {**metadata, **_labels_and_annotations(metadata, position_labels, placement_annotations)},
        "spec": spec,
    }


def _with_node_selector_strategy(metadata: Obj, pod_template: dict[str, Any]) -> dict[str, Any]:
    annotations = metadata["annotations"]
    if well_known.EXCLUSIVE_TOPOLOGY not in annotations or well_known.NODE_SELECTOR_STRATEGY not in annotations:
        return pod_template
    spec = pod_template["spec"]
    node_labels = {well_known.NAMESPACED_JOB: f"{metadata['namespace']}_{metadata['name']}"}
    node_selector = {**(spec.get("nodeSelector") or {}), **node_labels}
    tolerations = [*(spec.get("tolerations") or ()), _RESERVED_NODE_TOLERATION]
    return {**pod_template, "spec": {**spec, "nodeSelector": node_selector, "tolerations": tolerations}}


def _labels_and_annotations(
    metadata: Obj, position_labels: Mapping[str, str], placement_annotations: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    return {
        "labels": {**(metadata.get("labels") or {}), **position_labels},
        "annotations": {**(metadata.get("annotations") or {}), **position_labels, **placement_annotations},
    }


def _shared_labels(jobset: Obj, replicated_job: Mapping[str, Any]) -> dict[str, str]:
    metadata, all_replicated_jobs = jobset["metadata"], jobset_spec.replicated_jobs(jobset)
    position_labels = {
        well_known.JOB_SET_NAME: metadata["name"],
        well_known.JOB_SET_UID: metadata["uid"],
        well_known.REPLICATED_JOB_NAME: replicated_job["name"],
        well_known.RESTART_ATTEMPT: str((jobset.get("status") or {}).get("restarts", 0)),
        well_known.REPLICATED_JOB_REPLICAS: str(jobset_spec.replicas_of(replicated_job)),
        well_known.GLOBAL_REPLICAS: str(sum(map(jobset_spec.replicas_of, all_replicated_jobs))),
        well_known.JOB_GROUP_NAME: jobset_spec.group_of(replicated_job),
        well_known.JOB_GROUP_REPLICAS: str(sum(map(jobset_spec.replicas_of, _jobs_in_group(jobset, replicated_job)))),
    }
    coordinator = jobset["spec"].get("coordinator")
    if coordinator is not None:
        position_labels[well_known.COORDINATOR] = _coordinator_host(jobset, coordinator)
    return position_labels


def _index_labels(jobset: Obj, replicated_job: Mapping[str, Any], index: int) -> dict[str, str]:
    namespaced_job_name = (
        f"{jobset['metadata'].get('namespace', '')}/{jobset_spec.job_name(jobset, replicated_job, index)}"
    )
    return {
        well_known.JOB_INDEX: str(index),
        well_known.JOB_KEY: hashlib.sha1(namespaced_job_name.encode(), usedforsecurity=False).hexdigest(),
        well_known.JOB_GLOBAL_INDEX: str(
            _preceding_job_count(replicated_job, jobset_spec.replicated_jobs(jobset)) + index
        ),
        well_known.JOB_GROUP_INDEX: str(
            _preceding_job_count(replicated_job, _jobs_in_group(jobset, replicated_job)) + index
        ),
    }


def _jobs_in_group(jobset: Obj, replicated_job: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    group_name = jobset_spec.group_of(replicated_job)
    return [each for each in jobset_spec.replicated_jobs(jobset) if jobset_spec.group_of(each) == group_name]


def _preceding_job_count(replicated_job: Mapping[str, Any], group_jobs: Sequence[Mapping[str, Any]]) -> int:
    names = [each["name"] for each in group_jobs]
    return sum(map(jobset_spec.replicas_of, group_jobs[: names.index(replicated_job["name"])]))


def _coordinator_host(jobset: Obj, coordinator: Mapping[str, Any]) -> str:
    coordinator_job = f"{jobset['metadata']['name']}-{coordinator['replicatedJob']}-{coordinator.get('jobIndex', 0)}"
    return f"{coordinator_job}-{coordinator.get('podIndex', 0)}.{jobset_spec.subdomain(jobset)}"


def _exclusive_placement_annotations(jobset: Obj, template: Obj) -> dict[str, str]:
    placement_annotations: dict[str, str] = {}
    for metadata in (jobset["metadata"], template.get("metadata") or {}):
        annotations = metadata.get("annotations") or {}
        if well_known.EXCLUSIVE_TOPOLOGY in annotations:
            names = (well_known.EXCLUSIVE_TOPOLOGY, well_known.NODE_SELECTOR_STRATEGY)
            placement_annotations.update({name: annotations[name] for name in names if name in annotations})
    return placement_annotations


class _JobSetReconcilePass(NamedTuple):
    key: Key
    jobset: Obj
    children: jobset_spec.ChildJobs
    status_draft: policies.JobSetStatusDraft
    writes: list[client.Write]

    def reconcile_result(self) -> ReconcileResult:
        if self.status_draft.is_changed:
            self.writes.append(client.UpdateStatus(self.status_draft.result()))
        events = [EventRecord(self.key, *event) for event in self.status_draft.events]
        return ReconcileResult(self.writes, events, event_if_rejected=partial(_rejection_event, self.key))


class JobSetController:
    """Controller that maintains the child Jobs, headless Services and status of JobSets."""

    name = "jobset-controller"
    rank = 0
    kinds = (scheme.JOB_SET, scheme.JOB, scheme.SERVICE)

    def keys_for(self, event: client.WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys of the JobSets that an event of a JobSet, Job or Service affects."""
        key = event.key
        if key.kind == scheme.JOB_SET:
            return (key,) if _changes_fields(event, _jobset_fields) else ()
        owner_reference = controller_of(event.obj)
        if owner_reference is not None and owner_reference["kind"] == "JobSet":
            is_relevant = key.kind == scheme.SERVICE or _changes_fields(event, _job_fields)
            return (Key(scheme.JOB_SET, key.namespace, owner_reference["name"]),) if is_relevant else ()
        may_free_job_name = event.type is client.EventType.DELETED and key.kind == scheme.JOB
        return _possible_jobset_keys(key) if may_free_job_name else ()

    def reconcile(self, key: Key, reader: client.Reader, now: Instant) -> ReconcileResult:
        """Create, delete, suspend and resume Jobs as the JobSet requires, and update the status of the JobSet."""
        jobset = reader.get(key)
        if jobset is None or "deletionTimestamp" in jobset["metadata"] or jobset_spec.is_managed_elsewhere(jobset):
            return ReconcileResult()
        children = jobset_spec.sort_children(jobset, _jobs_of(jobset, reader))
        if children is None:
            return ReconcileResult()
        jobset_pass = _JobSetReconcilePass(key, jobset, children, policies.JobSetStatusDraft(jobset, now), [])
        counts_by_name = policies.replicated_statuses(jobset, children)
        jobset_pass.status_draft.set_counts(counts_by_name)
        if jobset_spec.is_finished(jobset):
            jobset_pass.writes.extend(_job_deletion_writes(children.active_jobs))
            return jobset_pass.reconcile_result()
        jobset_pass.writes.extend(_job_deletion_writes(children.previous_jobs))
        if not jobset_spec.is_suspended(jobset) and policies.are_all_ready(jobset, counts_by_name):
            jobset_pass.status_draft.end_restart()
        if children.failed_jobs:
            policies.apply_failure_policy(jobset_pass.status_draft, jobset, children.failed_jobs)
            return jobset_pass.reconcile_result()
        if children.successful_jobs and policies.has_succeeded(jobset, children.successful_jobs):
            jobset_pass.status_draft.complete()
            return jobset_pass.reconcile_result()
        return _create_and_resume(jobset_pass, policies.startup_decision(jobset, counts_by_name), reader)


def _create_and_resume(
    jobset_pass: _JobSetReconcilePass, startup: policies.StartupDecision, reader: client.Reader
) -> ReconcileResult:
    jobset, status_draft, writes = jobset_pass.jobset, jobset_pass.status_draft, jobset_pass.writes
    active_jobs = [job for job in jobset_pass.children.active_jobs if not _is_queued_alone(job, jobset, reader)]
    writes.extend(_missing_service_writes(jobset, reader))
    for jobs in _missing_jobs(jobset_pass, startup):
        existing_keys = [key for key in map(key_of, jobs) if reader.get(key) is not None]
        writes.extend(client.Create(job) for job in jobs if key_of(job) not in existing_keys)
        if existing_keys:  # later replicated jobs must wait too
            return ReconcileResult(writes, [_creation_failed_event(jobset_pass.key, existing_keys)])
    if jobset_spec.is_suspended(jobset):
        writes.extend(_job_suspend_writes(active_jobs))
        status_draft.suspend()
        return jobset_pass.reconcile_result()
    writes.extend(_job_resume_writes(active_jobs, startup))
    if startup.must_wait:
        status_draft.begin_startup_policy()
        return jobset_pass.reconcile_result()
    if jobset_spec.starts_in_order(jobset):
        status_draft.complete_startup_policy()
    status_draft.resume()
    return jobset_pass.reconcile_result()


def _is_queued_alone(job: Obj, jobset: Obj, reader: client.Reader) -> bool:
    """Return whether a Job of a JobSet without a queue waits in a queue itself, because its template names one.

    The job framework suspends and resumes such a Job. Upstream's JobSet controller does so too: both then undo each
    other's writes until the Workload of the Job is admitted, which takes no time here, so it would never end.
    """
    if well_known.QUEUE_NAME not in (job["metadata"].get("labels") or {}):
        return False
    if well_known.QUEUE_NAME in (jobset["metadata"].get("labels") or {}):
        return False
    dependents = reader.owned_by(job["metadata"]["uid"], job["metadata"].get("namespace", ""))
    return any(group_kind(each) == scheme.WORKLOAD for each in dependents)


def _jobs_of(jobset: Obj, reader: client.Reader) -> Iterable[Obj]:
    uid = jobset["metadata"]["uid"]
    for obj in reader.owned_by(uid, jobset["metadata"].get("namespace", "")):
        if group_kind(obj) == scheme.JOB and (controller_of(obj) or {}).get("uid") == uid:
            yield obj


def _job_deletion_writes(jobs: Sequence[Obj]) -> list[client.Write]:
    """Return foreground deletions, which keep a Job, and so reserve its name, until its pods have ended."""
    return [
        client.Delete(key_of(job), propagation=client.Propagation.FOREGROUND, uid=job["metadata"]["uid"])
        for job in jobs
        if "deletionTimestamp" not in job["metadata"]
    ]


def _missing_service_writes(jobset: Obj, reader: client.Reader) -> list[client.Write]:
    if not jobset_spec.has_host_names(jobset):
        return []
    service = reader.get(Key(scheme.SERVICE, jobset["metadata"].get("namespace", ""), jobset_spec.subdomain(jobset)))
    return [] if service is not None else [client.Create(headless_service(jobset))]


def _missing_jobs(jobset_pass: _JobSetReconcilePass, startup: policies.StartupDecision) -> list[list[dict[str, Any]]]:
    """Return the Jobs to create, one list per replicated job that may start; existing child Jobs are left out.

    At most CREATED_MAX Jobs are created at once; their events trigger the next reconcile. None are created while a
    restart with BlockingRecreate waits for the deletion of earlier Jobs.
    """
    jobset, children = jobset_pass.jobset, jobset_pass.children
    if children.previous_jobs and jobset_spec.blocks_recreation(jobset):
        return []
    names, job_count_max = children.names(), CREATED_MAX
    missing_jobs: list[list[dict[str, Any]]] = []
    for each in startup.replicated_jobs:
        indexes = range(jobset_spec.replicas_of(each))
        new_indexes = list(
            islice((i for i in indexes if jobset_spec.job_name(jobset, each, i) not in names), job_count_max)
        )
        if new_indexes:
            missing_jobs.append(child_jobs(jobset, each, new_indexes))
            job_count_max -= len(new_indexes)
    return missing_jobs


def _job_suspend_writes(jobs: Sequence[Obj]) -> list[client.Write]:
    return [client.Update(with_path(job, ("spec", "suspend"), True)) for job in jobs if not job["spec"].get("suspend")]


def _job_resume_writes(active_jobs: Sequence[Obj], startup: policies.StartupDecision) -> list[client.Write]:
    """Return the writes that resume suspended Jobs which may start.

    For a Job with an old startTime, the write clears startTime; the next reconcile resumes the Job.
    """
    pod_templates = {each["name"]: each["template"]["spec"]["template"] for each in startup.replicated_jobs}
    writes: list[client.Write] = []
    for job in active_jobs:
        template = pod_templates.get(jobset_spec.replicated_job_name(job)) if job["spec"].get("suspend") else None
        if template is None:
            continue
        is_unstarted = not policies.has_start_time(job)
        writes.append(
            client.Update(policies.resume_job(job, template))
            if is_unstarted
            else client.UpdateStatus(policies.without_start_time(job))
        )
    return writes


def _creation_failed_event(key: Key, used_keys: Sequence[Key]) -> EventRecord:
    names = [used_key.name for used_key in used_keys]
    messages = [f'job "{name}" creation failed with error: jobs.batch "{name}" already exists' for name in names]
    return EventRecord(key, "Warning", jobset_spec.JOB_CREATION_FAILED, "\n".join(messages))


def _rejection_event(key: Key, write: client.Write, error: ApiError) -> EventRecord | None:
    if not isinstance(write, client.Create) or not isinstance(error, Forbidden | InvalidObject):
        return None
    name, reason_text = write.obj["metadata"]["name"], str(error)
    if isinstance(error, InvalidObject):
        kind = "Job.batch" if write.obj["kind"] == "Job" else "Service"
        faults_text = ", ".join(map(str, error.faults))
        reason_text = f'{kind} "{name}" is invalid: {faults_text if len(error.faults) == 1 else f"[{faults_text}]"}'
    if write.obj["kind"] == "Job":
        return EventRecord(
            key, "Warning", jobset_spec.JOB_CREATION_FAILED, f'job "{name}" creation failed with error: {reason_text}'
        )
    return EventRecord(key, "Warning", jobset_spec.SERVICE_CREATION_FAILED, reason_text)


def _changes_fields(event: client.WatchEvent, fields_of: Callable[[Obj], tuple[Any, ...]]) -> bool:
    old, new = event.old, event.obj
    return event.type is not client.EventType.MODIFIED or old is None or fields_of(old) != fields_of(new)


def _jobset_fields(jobset: Obj) -> tuple[Any, ...]:
    """Return the fields of a JobSet whose changes require a reconcile."""
    metadata, status = jobset["metadata"], jobset.get("status") or {}
    spec_fields = (jobset["spec"], metadata.get("annotations"), "deletionTimestamp" in metadata)
    return (*spec_fields, status.get("restarts", 0), status.get("conditions"))


def _job_fields(job: Obj) -> tuple[Any, ...]:
    """Return the fields of a child Job whose changes require a reconcile of its JobSet."""
    metadata, status = job["metadata"], job.get("status") or {}
    spec_fields = (
        job["spec"],
        metadata.get("labels"),
        metadata.get("ownerReferences"),
        "deletionTimestamp" in metadata,
    )
    pod_counts = (status.get("ready", 0), status.get("succeeded", 0), status.get("active", 0) > 0)
    return (*spec_fields, *pod_counts, status.get("startTime") is None, status.get("conditions"))


def _possible_jobset_keys(job: Key) -> Iterable[Key]:
    """Return the keys of all JobSets that can have a Job of this name: `<JobSet>-<replicated job>-<index>`."""
    name_parts = job.name.split("-")
    if name_parts[-1].isdecimal():
        for end in range(1, len(name_parts) - 1):
            yield Key(scheme.JOB_SET, job.namespace, "-".join(name_parts[:end]))
