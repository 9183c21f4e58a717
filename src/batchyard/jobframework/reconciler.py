"""Job reconciler for all job kinds: creates a Workload per job, keeps both in sync, and deletes unneeded Workloads.

A reconcile finds the first action that is due, in the order of Kueue's JobReconciler (pkg/controller/jobframework/
reconciler.go), and returns its writes. Their watch events trigger the next reconcile. A job in a managed namespace is
managed if none of its owners is managed, and it names a queue or jobs need none (`ManagedJobs`).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from batchyard.admission_plugins import built_in
from batchyard.admission_plugins.built_in import ALL_QUEUED_JOBS, ManagedJobs
from batchyard.api import meta, scheme, well_known
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobframework import slices, workloads
from batchyard.jobframework.workloads import (
    GenericJob,
    InvalidPodSetInfo,
    PodSetInfo,
    admitted_injections,
    delete_workloads,
    original_injections,
    prebuilt_key,
    release_workload_finalizer,
)
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules
from batchyard.scheduling.workload import adjustments, evictions, lifecycle
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, set_pods_ready
from batchyard.scheduling.workload.retention import RetentionPolicy, job_deletion_time

# Index of the relations between jobs, Workloads, child jobs, and awaited classes and Workloads, from watch events.


_NO_MATCH_MESSAGE: Final = "No matching Workload; restoring pod templates according to existent Workload"
_PRIORITY_CLASS_KINDS: Final = (scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS)


class JobRelations:
    """Index of the jobs of one kind that an event of a Workload, job, priority class or flavor affects."""

    def __init__(self, integration: GenericJob, managed_jobs: ManagedJobs = ALL_QUEUED_JOBS) -> None:
        self._integration = integration
        self._managed_jobs = managed_jobs
        self._workload_keys: dict[meta.Key, dict[meta.Key, None]] = {}
        self._child_jobs_by_owner: dict[str, dict[meta.Key, None]] = {}
        self._jobs_by_class: dict[meta.Key, dict[meta.Key, None]] = {}
        self._jobs_by_prebuilt_workload: dict[meta.Key, dict[meta.Key, None]] = {}
        #: Admitted jobs that wait for a missing flavor of their admission.
        self._jobs_without_flavor: dict[meta.Key, None] = {}
        #: Pods of elastic jobs that no job owns, by Namespace and the name of their slice.
        self._unowned_pods: dict[tuple[str, str], dict[meta.Key, None]] = {}

    def observe(self, event: WatchEvent) -> Iterable[meta.Key]:
        """Update the index from a watch event; return the keys of the jobs that the event affects."""
        kind = event.key.kind
        if kind == self._integration.kind:
            return self._observe_job(event)
        if kind == scheme.WORKLOAD:
            return () if workloads.is_pending_report(event) else self._observe_workload(event)
        if kind in _PRIORITY_CLASS_KINDS and event.type is EventType.ADDED:
            return list(self._jobs_by_class.get(event.key, ()))
        if kind == scheme.RESOURCE_FLAVOR and event.type is EventType.ADDED:
            waiting_jobs, self._jobs_without_flavor = self._jobs_without_flavor, {}
            return list(waiting_jobs)
        return ()

    def record_missing_flavor(self, job: meta.Key) -> None:
        """Record that a job waits for a ResourceFlavor; the creation of any ResourceFlavor reconciles the job again."""
        self._jobs_without_flavor[job] = None

    def workloads_of(self, job: meta.Key, reader: Reader) -> list[meta.Obj]:
        """Return the existing Workloads that a job controls, oldest first."""
        workloads = [workload for key in self._workload_keys.get(job, ()) if (workload := reader.get(key)) is not None]
        return sorted(workloads, key=lambda w: (w["metadata"].get("creationTimestamp", ""), w["metadata"]["name"]))

    def observe_pod(self, event: WatchEvent) -> Iterable[meta.Key]:
        """Return the keys of the jobs of an elastic pod: its owner, or those of its slice if it has no owner."""
        annotations = event.obj["metadata"].get("annotations")
        if not annotations or well_known.SLICE_NAME not in annotations:
            return ()
        owner, namespace = meta.controller_of(event.obj), event.key.namespace
        if owner is not None:
            job = meta.owner_key(owner, namespace)
            return (job,) if job is not None and job.kind == scheme.JOB else ()
        names = [meta.annotation(event.obj, name) or "" for name in (well_known.SLICE_NAME, well_known.WORKLOAD)]
        slice_key = (namespace, names[0])
        if event.type is EventType.DELETED:
            pods = self._unowned_pods.get(slice_key, {})
            pods.pop(event.key, None)
            if not pods:
                self._unowned_pods.pop(slice_key, None)
        else:
            self._unowned_pods.setdefault(slice_key, {})[event.key] = None
        keys = [meta.Key(scheme.WORKLOAD, namespace, name) for name in names]
        return [job for job, workload_keys in self._workload_keys.items() if any(key in workload_keys for key in keys)]

    def unowned_pods(self, namespace: str, workloads: Sequence[meta.Obj]) -> list[meta.Key]:
        """Return the pods of a job's slices that no job owns."""
        slice_keys = dict.fromkeys([(namespace, slices.slice_name(each)) for each in workloads])
        return [pod for key in slice_keys for pod in self._unowned_pods.get(key, ())]

    def _observe_job(self, event: WatchEvent) -> Iterable[meta.Key]:
        if workloads.is_status_change(event):
            return (event.key,)
        _move_index_entry(self._child_jobs_by_owner, event, _owner_uid)
        _move_index_entry(self._jobs_by_class, event, self._priority_class_of)
        _move_index_entry(self._jobs_by_prebuilt_workload, event, prebuilt_key)
        return (event.key,)

    def _priority_class_of(self, job: meta.Obj) -> meta.Key | None:
        if meta.controller_of(job) is not None or not self._managed_jobs.names(job):
            return None
        return adjustments.priority_class_key(job, self._integration.pod_class(job))

    def _observe_workload(self, event: WatchEvent) -> Iterable[meta.Key]:
        prebuilt_jobs = self._jobs_by_prebuilt_workload.get(event.key, ())
        if not event.obj["metadata"].get("ownerReferences"):
            if event.old is not None and event.old["metadata"].get("ownerReferences"):
                _move_index_entry(self._workload_keys, event, self._job_of)  # its job was deleted and orphaned it
            return list(prebuilt_jobs)
        owner_reference = meta.controller_of(event.obj)
        if owner_reference is None:
            return list(prebuilt_jobs)
        _move_index_entry(self._workload_keys, event, self._job_of)
        child_jobs = self._child_jobs_by_owner.get(owner_reference["uid"], ())
        job = self._job_of(event.obj)
        return [*(() if job is None else (job,)), *child_jobs, *prebuilt_jobs]

    def _job_of(self, workload: meta.Obj) -> meta.Key | None:
        owner = meta.controller_of(workload)
        job = None if owner is None else meta.owner_key(owner, workload["metadata"].get("namespace", ""))
        return job if job is not None and job.kind == self._integration.kind else None


EntryT = TypeVar("EntryT", bound=Hashable)


def _move_index_entry(
    jobs_by_entry: dict[EntryT, dict[meta.Key, None]], event: WatchEvent, entry_of: Callable[[meta.Obj], EntryT | None]
) -> None:
    old_entry = None if event.old is None else entry_of(event.old)
    new_entry = None if event.type is EventType.DELETED else entry_of(event.obj)
    if old_entry is not None and old_entry != new_entry and old_entry in jobs_by_entry:
        jobs_by_entry[old_entry].pop(event.key, None)
        if not jobs_by_entry[old_entry]:
            del jobs_by_entry[old_entry]
    if new_entry is not None:
        jobs_by_entry.setdefault(new_entry, {})[event.key] = None


def _owner_uid(obj: meta.Obj) -> str | None:
    owner_reference = meta.controller_of(obj)
    return None if owner_reference is None else owner_reference["uid"]


class JobPass(NamedTuple):
    """One reconcile of a job: the job with its pod sets, and the integration that reads it."""

    key: meta.Key
    job: meta.Obj
    integration: GenericJob
    pod_sets: list[dict[str, Any]]
    suspended: bool
    reader: Reader
    now: Instant

    def event(self, reason: str, message: str, kind: str = "Normal") -> EventRecord:
        """Return the record of an Event about the job."""
        return EventRecord(self.key, kind, reason, message)


_WATCHED_KINDS: Final = (scheme.WORKLOAD, *_PRIORITY_CLASS_KINDS, scheme.RESOURCE_FLAVOR)


class JobReconciler:
    """Controller that manages the Workloads of one kind of job; a job runs only while its Workload is admitted."""

    rank = 0

    def __init__(
        self,
        integration: GenericJob,
        copied_keys: workloads.CopiedKeys = workloads.NO_COPIED_KEYS,
        *,
        pods_ready: PodsReadyPolicy | None = None,
        managed_jobs: ManagedJobs = ALL_QUEUED_JOBS,
        rules: DecisionRules = DEFAULT_RULES,
        retention: RetentionPolicy | None = None,
    ) -> None:
        self._rules = rules
        self.name = integration.kind.partition(".")[0].lower()
        self._integration = integration
        self.kinds: Sequence[str] = (*dict.fromkeys((*meta.JOB_KINDS, integration.kind)), *_WATCHED_KINDS)
        #: If set, PodsReady is set on Workloads from the pods of their jobs.
        self._pods_ready = pods_ready
        #: Whether Workloads get the timeouts for ready pods from the annotation of their jobs.
        self._copies_timeouts = pods_ready is not None and pods_ready.timeout_on_workload_max is not None
        self._copied_keys = copied_keys
        self._relations = JobRelations(integration, managed_jobs)
        self._managed_jobs = managed_jobs
        #: How long jobs are kept after Kueue deactivated their Workload; None for ever.
        self._after_deactivated = None if retention is None else retention.after_deactivated
        #: Whether jobs can be scaled while they run, by slices.
        self._elastic_jobs = rules.elastic_jobs and integration.kind == scheme.JOB
        if self._elastic_jobs:
            self.kinds = (*self.kinds, scheme.POD)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Update the index from an event of a watched object; return the keys of the jobs to reconcile."""
        observe = self._relations.observe_pod if event.key.kind == scheme.POD else self._relations.observe
        return observe(event)

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the writes of the first action that a job or its Workloads need now, such as creating the Workload."""
        job = reader.get(key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            job_workloads = self._relations.workloads_of(key, reader)
            if job is not None and well_known.ORPHAN_FINALIZER in job["metadata"].get("finalizers", ()):
                return _release_orphans(job_workloads)
            if job is not None and self._rules.is_current:
                job_pass = JobPass(key, job, self._integration, [], False, reader, now)
                return self._release_deleted(job_pass, job_workloads)
            return delete_workloads(job_workloads)
        if not built_in.is_managed_namespace(key.namespace, self._managed_jobs.namespaces, reader.get):
            return ReconcileResult()
        job_ancestry = built_in.find_managed_ancestor(job, reader.get, self._managed_jobs)
        if job_ancestry.managed_key is not None:
            return _sync_child_job(self._integration, key, job, _unfinished_workloads(job_ancestry.managed_key, reader))
        if job_ancestry.is_too_deep:
            return ReconcileResult([], [_nesting_event(key)])
        if job_ancestry.problem or not self._managed_jobs.names(job):
            return ReconcileResult()
        integration = self._integration
        suspended = integration.is_suspended(job)
        pod_sets = workloads.allowed_pod_sets(integration.pod_sets(job), allows_layers=self._rules.allows_layers)
        return self._manage_workloads(JobPass(key, job, integration, pod_sets, suspended, reader, now))

    def _release_deleted(self, job_pass: JobPass, workloads: Sequence[meta.Obj]) -> ReconcileResult:
        """Stop a job that is being deleted if a Workload of it is too, then release it; its other Workloads stay."""
        deleted = [each for each in workloads if "deletionTimestamp" in each["metadata"]]
        job_pass = job_pass._replace(suspended=job_pass.integration.is_suspended(job_pass.job))
        stop_result = self._stop_job(job_pass, deleted[0], "Workload is deleted") if deleted else ReconcileResult()
        return stop_result or release_workload_finalizer(deleted[0])

    def _manage_workloads(self, job_pass: JobPass) -> ReconcileResult:
        workload_key = workloads.prebuilt_key(job_pass.job)
        if workload_key is not None:
            return self._manage_prebuilt_workload(job_pass, job_pass.reader.get(workload_key))
        job_workloads = self._relations.workloads_of(job_pass.key, job_pass.reader)
        if self._elastic_jobs and meta.is_elastic(job_pass.job):
            slice_result = slices.reconcile_elastic_job(self._elastic_job(job_pass, job_workloads))
            if slice_result is not None:
                return slice_result
        matching_workload, old_workloads = None, []
        for workload in job_workloads:
            if matching_workload is None and workloads.workload_matches_job(
                workload, job_pass.job, job_pass.pod_sets, job_pass.suspended
            ):
                matching_workload = workload
            else:
                old_workloads.append(workload)
        if matching_workload is None:
            stop_result = self._stop_unmatched_job(job_pass, old_workloads)
            return stop_result or self._replace_unmatched(job_pass, old_workloads) or self._create_workload(job_pass)
        stop_result = delete_unmatched(job_pass, old_workloads) or self._sync_workload(job_pass, matching_workload)
        return stop_result or self._sync_job(job_pass, matching_workload)

    def _elastic_job(self, job_pass: JobPass, job_workloads: Sequence[meta.Obj]) -> slices.ElasticJob:
        actions = slices.SliceActions(
            partial(self._sync_workload, job_pass),
            partial(self._sync_job, job_pass),
            partial(self._write_new_workload, job_pass),
            delete_workloads,
        )
        job, pod_sets, reader, now = job_pass.job, job_pass.pod_sets, job_pass.reader, job_pass.now
        elastic = slices.ElasticJob(
            job, pod_sets, job_workloads, job_pass.integration, reader, now, actions, self._rules
        )
        return elastic._replace(unowned_pods=self._relations.unowned_pods(job_pass.key.namespace, job_workloads))

    def _manage_prebuilt_workload(self, job_pass: JobPass, workload: meta.Obj | None) -> ReconcileResult:
        """Return the writes that keep a job and its prebuilt Workload in sync.
        First the job becomes the owner of a Workload without owner. A Workload that does not match the job is finished;
        a job whose Workload is missing or belongs to another job is stopped.
        """
        if workload is not None and meta.controller_of(workload) is None:
            return ReconcileResult([Update(workloads.with_job_owner(workload, job_pass.job))])
        if workload is not None and workloads.is_created_for(workload, job_pass.job):
            if workloads.workload_matches_job(workload, job_pass.job, job_pass.pod_sets, job_pass.suspended):
                return self._sync_job(job_pass, workload)
            if not lifecycle.is_finished(workload):
                message = "The prebuilt workload is out of sync with its user job"
                finished_workload = lifecycle.finish(workload, lifecycle.OUT_OF_SYNC, message, job_pass.now)
                return ReconcileResult([UpdateStatus(finished_workload)])
        if job_pass.integration.completion(job_pass.job) is not None:
            return ReconcileResult()
        return self._stop_job(job_pass, None, "missing workload") or ReconcileResult()

    def _stop_unmatched_job(self, job_pass: JobPass, old_workloads: Sequence[meta.Obj]) -> ReconcileResult | None:
        if job_pass.suspended or job_pass.integration.completion(job_pass.job) is not None:
            return None
        if len(old_workloads) == 1:
            return self._stop_job(job_pass, old_workloads[0], _NO_MATCH_MESSAGE)
        return self._stop_job(job_pass, None, "Missing Workload; unable to restore pod templates")

    def _replace_unmatched(self, job_pass: JobPass, old_workloads: Sequence[meta.Obj]) -> ReconcileResult | None:
        if not old_workloads:
            return None
        workload = old_workloads[0]
        can_be_updated = (
            job_pass.suspended
            and workloads.is_created_for(workload, job_pass.job)
            and not lifecycle.has_quota_reservation(workload)
        )
        if not can_be_updated or lifecycle.is_finished(workload) or "deletionTimestamp" in workload["metadata"]:
            return delete_unmatched(job_pass, old_workloads)
        if len(old_workloads) > 1:
            return delete_unmatched(job_pass, old_workloads[1:])
        priority = self._priority_of(job_pass)
        if isinstance(priority, adjustments.MissingPriorityClass):
            return report_missing_class(job_pass, priority)
        spec = workloads.workload_spec(job_pass.job, job_pass.pod_sets, priority)
        spec["active"] = lifecycle.is_active(workload)
        message = f"Updated not matching Workload for suspended job: {meta.key_of(workload)}"
        return ReconcileResult([Update({**workload, "spec": spec})], [job_pass.event("UpdatedWorkload", message)])

    def _create_workload(self, job_pass: JobPass) -> ReconcileResult:
        if job_pass.integration.completion(job_pass.job) is not None or job_pass.integration.is_active(job_pass.job):
            return ReconcileResult()  # finished, or its old pods are still stopping
        return self._write_new_workload(job_pass, job_pass.pod_sets)

    def _write_new_workload(
        self, job_pass: JobPass, pod_sets: workloads.PodSets, complete: Callable[[meta.Obj], meta.Obj] | None = None
    ) -> ReconcileResult:
        priority = self._priority_of(job_pass)
        if isinstance(priority, adjustments.MissingPriorityClass):
            return report_missing_class(job_pass, priority)
        workload: meta.Obj = workloads.make_workload(job_pass.job, pod_sets, priority, self._copied_keys)
        if self._copies_timeouts:
            workload = workloads.with_annotation_of(workload, job_pass.job, well_known.WAIT_FOR_PODS_READY)
        if complete is not None:
            workload = complete(workload)
        message = f"Created Workload: {meta.key_of(workload)}"
        return ReconcileResult([Create(workload)], [job_pass.event("CreatedWorkload", message)])

    def _sync_workload(self, job_pass: JobPass, workload: meta.Obj) -> ReconcileResult | None:
        if lifecycle.is_finished(workload):
            return None
        return (
            _sync_admission_gate(job_pass, workload)
            or (_sync_timeouts(job_pass, workload) if self._copies_timeouts else None)
            or self._sync_priority(job_pass, workload)
        )

    def _priority_of(self, job_pass: JobPass) -> adjustments.WorkloadPriority | adjustments.MissingPriorityClass:
        return adjustments.resolve_priority(job_pass.job, job_pass.integration.pod_class(job_pass.job), job_pass.reader)

    def _sync_priority(self, job_pass: JobPass, workload: meta.Obj) -> ReconcileResult | None:
        label_class = meta.label(job_pass.job, well_known.PRIORITY_CLASS) or ""
        has_quota = lifecycle.has_quota_reservation(workload)
        if adjustments.priority_class_name(workload) == label_class or not adjustments.follows_priority_label(
            workload, has_quota
        ):
            return None
        priority = self._priority_of(job_pass)
        if isinstance(priority, adjustments.MissingPriorityClass):
            return report_missing_class(job_pass, priority)
        new_workload = meta.with_path(workload, ("spec", "priority"), priority.value)
        new_workload = meta.with_path(new_workload, ("spec", "priorityClassRef"), priority.class_ref)
        message = f"Updated workload priority class: {meta.key_of(workload)}"
        return ReconcileResult([Update(new_workload)], [job_pass.event("UpdatedWorkload", message)])

    def _sync_job(self, job_pass: JobPass, workload: meta.Obj) -> ReconcileResult:
        if lifecycle.is_finished(workload):
            return release_workload_finalizer(workload)
        if "deletionTimestamp" in workload["metadata"]:
            return self._stop_job(job_pass, workload, "Workload is deleted") or release_workload_finalizer(workload)
        return (
            _finish_workload(job_pass.integration, job_pass, workload)
            or _sync_reclaimable_pods(job_pass.integration, job_pass, workload)
            or (
                _set_pods_ready(job_pass.integration, job_pass, workload, self._pods_ready)
                if self._pods_ready
                else None
            )
            or self._stop_evicted_job(job_pass, workload)
            or self._start_or_stop_job(job_pass, workload)
        )

    def _stop_evicted_job(self, job_pass: JobPass, workload: meta.Obj) -> ReconcileResult | None:
        """Stop the job of an evicted Workload; release the quota when the job's pods are gone.

        Return None if the Workload is not evicted.
        """
        condition = meta.find_condition(workload, lifecycle.EVICTED)
        if condition is None or condition["status"] != "True":
            return None
        stop_result = self._stop_job(job_pass, workload, condition["message"])
        if stop_result is not None:
            return stop_result
        if not lifecycle.has_quota_reservation(workload) or job_pass.integration.is_active(job_pass.job):
            return _delete_after_deactivation(job_pass, workload, self._after_deactivated)
        return release_quota(job_pass, workload, self._rules)

    def _start_or_stop_job(self, job_pass: JobPass, workload: meta.Obj) -> ReconcileResult:
        is_admitted = lifecycle.is_admitted(workload)
        if not job_pass.suspended:
            # The pods of a waiting slice have scheduling gates, so the job need not stop.
            may_run = is_admitted or (self._elastic_jobs and meta.is_elastic(job_pass.job))
            is_kept = may_run and not _is_stopping(job_pass)
            stop_result = None if is_kept else self._stop_job(job_pass, workload, "Not admitted by cluster queue")
            return stop_result or ReconcileResult()
        if is_admitted:
            return self._start_job(job_pass, workload)
        queue_name = meta.label(job_pass.job, well_known.QUEUE_NAME) or ""
        if workload["spec"].get("queueName", "") != queue_name and not lifecycle.has_quota_reservation(workload):
            return ReconcileResult([Update(meta.with_path(workload, ("spec", "queueName"), queue_name or None))])
        return ReconcileResult([], _admission_check_events(job_pass, workload))

    def _start_job(self, job_pass: JobPass, workload: meta.Obj) -> ReconcileResult:
        try:
            injections = _injections_of(job_pass, workload, self._rules)
            if injections is None:
                self._relations.record_missing_flavor(job_pass.key)
                return ReconcileResult()
            message = f"Admitted by clusterQueue {lifecycle.cluster_queue_of(workload)}"
            return self._start_with(job_pass, injections, message)
        except InvalidPodSetInfo as error:
            failed_workload = lifecycle.finish(workload, lifecycle.FAILED_TO_START, str(error), job_pass.now)
            return ReconcileResult([UpdateStatus(failed_workload)])

    def _start_with(self, job_pass: JobPass, injections: Sequence[PodSetInfo], message: str) -> ReconcileResult:
        started_job = job_pass.integration.started_job(job_pass.job, injections)
        return ReconcileResult([Update(started_job)], [job_pass.event("Started", message)])

    def _stop_job(self, job_pass: JobPass, workload: meta.Obj | None, message: str) -> ReconcileResult | None:
        """Return the next write that stops a job and restores its pod templates.

        The result has no write while the job's pods are still terminating, and is None once the job is stopped.
        """
        if _is_stopping(job_pass) and job_pass.integration.is_active(job_pass.job):
            return ReconcileResult()
        original_infos = original_injections(workload) if workload is not None else []
        stop_write = job_pass.integration.stop(job_pass.job, original_infos)
        if stop_write is None:
            return None
        is_first_write = not workloads.is_set(job_pass.job, self._integration.suspend_path)
        return ReconcileResult([stop_write], [job_pass.event("Stopped", message)] if is_first_write else [])


def _injections_of(job_pass: JobPass, workload: meta.Obj, rules: DecisionRules) -> list[PodSetInfo] | None:
    def find_flavor(name: str) -> meta.Obj | None:
        return job_pass.reader.get(meta.Key(scheme.RESOURCE_FLAVOR, "", name))

    return admitted_injections(workload, find_flavor, gates_topology_pods=rules.gates_topology_pods)


def release_quota(job_pass: JobPass, workload: meta.Obj, rules: DecisionRules) -> ReconcileResult:
    """Return the write that releases the quota of an evicted Workload; that of a single pod is not queued again."""
    is_single_pod = job_pass.integration.kind == scheme.POD and meta.controller_of(workload) is not None
    may_requeue = not (is_single_pod and rules.keeps_pod_assignments)
    released_workload = evictions.release_after_eviction(workload, job_pass.now, may_requeue=may_requeue)
    return ReconcileResult([UpdateStatus(released_workload)])


def _sync_child_job(
    integration: GenericJob, key: meta.Key, job: meta.Obj, ancestor_workloads: Sequence[meta.Obj]
) -> ReconcileResult:
    """Suspend a job that a managed job owns, unless a Workload of that owner is admitted."""
    if integration.completion(job) is not None or integration.is_suspended(job):
        return ReconcileResult()
    if any(lifecycle.is_admitted(workload) for workload in ancestor_workloads):
        return ReconcileResult()
    event = EventRecord(key, "Normal", "Suspended", "Kueue managed child job suspended")
    return ReconcileResult([Update(meta.with_path(job, integration.suspend_path, True))], [event])


def _set_pods_ready(
    integration: GenericJob, job_pass: JobPass, workload: meta.Obj, policy: PodsReadyPolicy
) -> ReconcileResult | None:
    job = slices.with_granted_parallelism(job_pass.job, workload) if meta.is_elastic(workload) else job_pass.job
    are_ready, tracks_scheduling = integration.pods_ready(job), policy.unscheduled_timeout > 0
    updated_workload = set_pods_ready(workload, are_ready, job_pass.now, tracks_scheduling)
    return None if updated_workload is workload else ReconcileResult([UpdateStatus(updated_workload)])


def _delete_after_deactivation(
    job_pass: JobPass, workload: meta.Obj, after_deactivated: Duration | None
) -> ReconcileResult:
    """Delete a job whose Workload Kueue deactivated, once the retention time has passed since the eviction."""
    deletion_time = None if after_deactivated is None else job_deletion_time(workload, after_deactivated)
    if deletion_time is None or "deletionTimestamp" in job_pass.job["metadata"]:
        return ReconcileResult()
    if deletion_time > job_pass.now:
        return ReconcileResult(requeue_at=deletion_time)
    event = job_pass.event("Deleted", "Deleted job: deactivation retention period expired")
    return ReconcileResult([Delete(job_pass.key, uid=job_pass.job["metadata"]["uid"])], [event])


def _nesting_event(key: meta.Key) -> EventRecord:
    return EventRecord(
        key,
        "Warning",
        "JobNestingTooDeep",
        "Terminated search for Kueue-managed Job because ancestor depth exceeded limit of 10",
    )


def _sync_admission_gate(job_pass: JobPass, workload: meta.Obj) -> ReconcileResult | None:
    updated_workload = workloads.with_annotation_of(workload, job_pass.job, well_known.ADMISSION_GATED_BY)
    if updated_workload is workload:
        return None
    admission_gate = meta.annotation(job_pass.job, well_known.ADMISSION_GATED_BY) or ""
    event = job_pass.event("UpdatedWorkload", f'Updated workload AdmissionGatedBy to "{admission_gate}"')
    return ReconcileResult([Update(updated_workload)], [event])


def _sync_timeouts(job_pass: JobPass, workload: meta.Obj) -> ReconcileResult | None:
    updated_workload = workloads.with_annotation_of(workload, job_pass.job, well_known.WAIT_FOR_PODS_READY)
    if updated_workload is workload:
        return None
    message = f"Updated workload annotation {well_known.WAIT_FOR_PODS_READY}: {meta.key_of(workload)}"
    return ReconcileResult([Update(updated_workload)], [job_pass.event("UpdatedWorkload", message)])


def delete_unmatched(job_pass: JobPass, old_workloads: Sequence[meta.Obj]) -> ReconcileResult | None:
    """Return the writes that delete Workloads which do not match their job; None if all are being deleted."""
    outcome = delete_workloads(old_workloads)
    keys = [meta.key_of(workload) for workload in old_workloads if "deletionTimestamp" not in workload["metadata"]]
    outcome.events += [job_pass.event("DeletedWorkload", f"Deleted not matching Workload: {key}") for key in keys]
    return outcome if outcome.writes else None


def _finish_workload(integration: GenericJob, job_pass: JobPass, workload: meta.Obj) -> ReconcileResult | None:
    completion = integration.completion(job_pass.job)
    if completion is None:
        return None
    reason = lifecycle.SUCCEEDED if completion.succeeded else lifecycle.FAILED
    finished_workload = lifecycle.finish(workload, reason, completion.message, job_pass.now)
    message = f"Workload '{meta.key_of(workload)}' is declared finished"
    return ReconcileResult([UpdateStatus(finished_workload)], [job_pass.event("FinishedWorkload", message)])


def _sync_reclaimable_pods(integration: GenericJob, job_pass: JobPass, workload: meta.Obj) -> ReconcileResult | None:
    new_workload = lifecycle.with_reclaimable_pods(workload, integration.reclaimable_pods(job_pass.job))
    return None if new_workload is workload else ReconcileResult([UpdateStatus(new_workload)])


def _unfinished_workloads(job: meta.Key, reader: Reader) -> list[meta.Obj]:
    parent_job = reader.get(job)
    uid = parent_job["metadata"].get("uid", "") if parent_job is not None else ""
    owned_objects = reader.owned_by(uid, job.namespace) if uid else ()
    return [obj for obj in owned_objects if obj["kind"] == "Workload" and not lifecycle.is_finished(obj)]


def _is_stopping(job_pass: JobPass) -> bool:
    """Return whether a job is suspended but the integration has not completed its stop.

    While the job has pods, Kubernetes 1.36 rejects changes of its pod template. Source: shouldAllowMutablePodTemplate
    in pkg/registry/batch/job/strategy.go.
    """
    return workloads.is_set(job_pass.job, workloads.SUSPEND_PATH) and not job_pass.suspended


def _admission_check_events(job_pass: JobPass, workload: meta.Obj) -> list[EventRecord]:
    if not lifecycle.has_quota_reservation(workload):
        return []
    pending_checks = lifecycle.checks_in_state(workload, lifecycle.PENDING)
    check_messages = [f"{c['name']}: {c['message']}" for c in pending_checks if c.get("message")]
    return [job_pass.event("UpdatedAdmissionCheck", "; ".join(check_messages))] if check_messages else []


def report_missing_class(job_pass: JobPass, missing_class: adjustments.MissingPriorityClass) -> ReconcileResult:
    """Return a warning Event about a job's missing WorkloadPriorityClass; no Event for a missing PriorityClass.

    The creation of the class triggers the next reconcile.
    """
    if missing_class.key.kind != scheme.WORKLOAD_PRIORITY_CLASS:
        return ReconcileResult()
    message = f'WorkloadPriorityClass "{missing_class.key.name}" not found'
    return ReconcileResult([], [job_pass.event("WorkloadPriorityClassNotFound", message, kind="Warning")])


def _release_orphans(workloads: Sequence[meta.Obj]) -> ReconcileResult:
    """Release the Workloads of a job that is deleted without its dependents; they finish once they have no owner."""
    return ReconcileResult([write for each in workloads for write in release_workload_finalizer(each).writes])
