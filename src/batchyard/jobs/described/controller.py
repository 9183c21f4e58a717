"""Controllers of the Workloads of described kinds of jobs, and the admission of such jobs and of JobKinds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.admission_plugins.built_in import FindObject, ManagedJobs, queue_job, validating_webhook
from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj, annotation, group_kind, key_of, label
from batchyard.api.validation import job as queued_jobs
from batchyard.api.validation import rules
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, ObjectReader, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobframework.reconciler import JobPass, JobReconciler
from batchyard.jobframework.workloads import PodSetInfo, release_workload_finalizer
from batchyard.jobs.described.description import InvalidJobKind, parse_job_kind
from batchyard.jobs.described.integration import DescribedJobIntegration, ExpressionFailed
from batchyard.jobs.described.kinds import find_integration
from batchyard.scheduling.workload import lifecycle


class DescribedJobReconciler(JobReconciler):
    """Controller that manages the Workloads of a described kind; it leaves jobs alone that the description excludes."""

    def __init__(
        self, integration: DescribedJobIntegration, options: Mapping[str, Any], objects: ObjectReader | None = None
    ) -> None:
        """Create the controller of the jobs of a kind, with the options of JobReconciler.

        `objects` reads the objects to which jobs refer.
        """
        if objects is not None:
            integration = integration.with_objects(objects.get)
        super().__init__(integration, **options)
        self.kinds = (*self.kinds, *integration.referenced_kinds)
        self._described = integration
        self._objects = objects

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys of the jobs that an event affects; a new or changed referenced object affects all jobs."""
        if event.key.kind not in self._described.referenced_kinds:
            return super().keys_for(event, now)
        is_unchanged = event.old is not None and event.old.get("spec") == event.obj.get("spec")
        if event.type is EventType.DELETED or is_unchanged or self._objects is None:
            return ()
        return [key_of(job) for job in self._objects.list(self._described.kind)]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the writes that a job or its Workloads need now; none for an excluded job.

        If an expression of the description fails for the job, the only result is an Event on the job.
        """
        job = reader.get(key)
        try:
            if job is not None and self._described.is_ignored(job):
                return ReconcileResult()
            return super().reconcile(key, reader, now)
        except ExpressionFailed as error:
            return ReconcileResult([], [EventRecord(key, "Warning", "ErrWorkloadCompose", str(error))])

    def _start_with(self, job_pass: JobPass, injections: Sequence[PodSetInfo], message: str) -> ReconcileResult:
        """Return the next write of a start, with the Event about the start if it unsuspends the job."""
        result = super()._start_with(job_pass, injections, message)
        updated_jobs = [each.obj for each in result.writes if isinstance(each, Update)]
        return ReconcileResult(result.writes) if any(map(self._described.is_suspended, updated_jobs)) else result

    def _stop_job(self, job_pass: JobPass, workload: Obj | None, message: str) -> ReconcileResult | None:
        """Return the next write of a stop; a stop in steps waits until the job is not active."""
        is_stopping = job_pass.suspended and self._described.starts_in_steps
        if is_stopping and self._described.is_active(job_pass.job):
            return ReconcileResult()
        return super()._stop_job(job_pass, workload, message)

    def _sync_job(self, job_pass: JobPass, workload: Obj) -> ReconcileResult:
        is_ending = lifecycle.is_finished(workload) or "deletionTimestamp" in workload["metadata"]
        if is_ending or not self._described.is_on_hold(job_pass.job):
            return super()._sync_job(job_pass, workload)
        if not lifecycle.has_quota_reservation(workload):
            return ReconcileResult()
        held_workload = lifecycle.set_pending(workload, lifecycle.ON_HOLD, "Job is on hold", job_pass.now)
        return ReconcileResult([UpdateStatus(held_workload)])

    def _create_workload(self, job_pass: JobPass) -> ReconcileResult:
        """Return the write that creates the Workload of a job; a job on hold gets none."""
        is_on_hold = self._described.is_on_hold(job_pass.job)
        return ReconcileResult() if is_on_hold else super()._create_workload(job_pass)


class CustomJobs:
    """Controller that manages the Workloads of the kinds of jobs that batchyard's and users' JobKinds describe.

    It compiles the description of a kind of batchyard's at the first job or Workload of the kind. A Workload may be the
    first: its job may have been deleted before a restart.
    """

    name = "job-kinds"
    rank = 0

    def __init__(self, options: Mapping[str, Any], objects: ObjectReader, kinds: Sequence[str]) -> None:
        """Create the controller of batchyard's described `kinds`, with the options of JobReconciler.

        `objects` reads older objects, and the objects to which jobs refer.
        """
        self._options = options
        self._objects = objects
        self._managed_jobs: ManagedJobs = options["managed_jobs"]
        self._reconcilers: dict[str, DescribedJobReconciler] = {}
        #: The kinds without a job or Workload so far.
        self._unused_kinds = dict.fromkeys(kinds)
        self._watch_kinds()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys of the jobs and of the JobKind that an event affects."""
        kind = event.key.kind
        if kind == scheme.JOB_KIND:
            return self._observe_job_kind(event, now)
        if self._is_abandoned(event.obj):
            return [event.key]
        if kind == scheme.WORKLOAD:
            kind = lifecycle.kind_of_job(event.obj) if event.type is EventType.ADDED else ""
        if kind in self._unused_kinds:
            self._use_kind(kind)
        return [
            key
            for each in self._reconcilers.values()
            if event.key.kind in each.kinds
            for key in each.keys_for(event, now)
        ]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the writes that a job or its Workloads need now, or the Event about an invalid JobKind."""
        if key.kind == scheme.JOB_KIND:
            return self._report_invalid(key, reader)
        if key.kind == scheme.WORKLOAD:
            workload = reader.get(key)
            is_abandoned = workload is not None and self._is_abandoned(workload)
            return release_workload_finalizer(workload) if workload is not None and is_abandoned else ReconcileResult()
        reconciler = self._reconcilers.get(key.kind)
        return ReconcileResult() if reconciler is None else reconciler.reconcile(key, reader, now)

    def _is_abandoned(self, obj: Obj) -> bool:
        """Return whether an object is a Workload that is being deleted, and its job's kind is not managed (any more).

        No controller can stop such a job, so its Workload is released without a stop.
        """
        is_workload = obj["kind"] == "Workload"
        return is_workload and lifecycle.is_abandoned(obj, self._managed_jobs.has_kind_of_owner)

    def _use_kind(self, kind: str) -> None:
        integration = find_integration(kind, {})
        assert integration is not None, f"no file describes {kind}"
        del self._unused_kinds[kind]
        self._add_reconciler(kind, DescribedJobReconciler(integration, self._options, self._objects))

    def _add_reconciler(self, kind: str, reconciler: DescribedJobReconciler) -> None:
        for workload in self._objects.list(scheme.WORKLOAD):
            reconciler.keys_for(WatchEvent(EventType.ADDED, key_of(workload), workload, None, 0), 0)
        self._reconcilers[kind] = reconciler
        self._watch_kinds()

    def _observe_job_kind(self, event: WatchEvent, now: Instant) -> list[Key]:
        self._managed_jobs.observe_job_kind(event)
        spec = event.obj["spec"]
        kind = f"{spec['kind']}.{spec['group']}"
        self._reconcilers.pop(kind, None)
        if self._managed_jobs.job_kinds.get(kind) is None:
            self._watch_kinds()
            return [key_of(each) for each in self._objects.list(scheme.WORKLOAD) if self._is_abandoned(each)]
        try:
            integration = find_integration(kind, self._managed_jobs.job_kinds)
        except InvalidJobKind:
            return [event.key]
        assert integration is not None
        reconciler = DescribedJobReconciler(integration, self._options)
        self._add_reconciler(kind, reconciler)
        jobs = [WatchEvent(EventType.ADDED, key_of(job), job, None, 0) for job in self._objects.list(kind)]
        return [key for each in jobs for key in reconciler.keys_for(each, now)]

    def _watch_kinds(self) -> None:
        watched = dict.fromkeys(kind for each in self._reconcilers.values() for kind in each.kinds)
        self.kinds: Sequence[str] = (scheme.JOB_KIND, *dict.fromkeys((scheme.WORKLOAD, *self._unused_kinds, *watched)))

    def _report_invalid(self, key: Key, reader: Reader) -> ReconcileResult:
        job_kind = reader.get(key)
        if job_kind is None:
            return ReconcileResult()
        spec = job_kind["spec"]
        try:
            find_integration(f"{spec['kind']}.{spec['group']}", self._managed_jobs.job_kinds)
        except InvalidJobKind as error:
            return ReconcileResult([], [EventRecord(key, "Warning", "InvalidJobKind", str(error))])
        return ReconcileResult()


# Admission of jobs of described kinds, and of the JobKinds that describe them, by the rules of Kueue's base webhook.
# Source: pkg/controller/jobframework/{base_webhook,validation}.go of Kueue.


#: The kind whose jobs cannot have a prebuilt Workload.
_WITHOUT_PREBUILT: Final = "JAXJob.kubeflow.org"


def expression_errors(job_kind: Obj) -> Iterator[FieldError]:
    """Compile the expressions of a JobKind; yield the error of the first invalid one."""
    try:
        DescribedJobIntegration(parse_job_kind(job_kind))
    except InvalidJobKind as error:
        yield error.error


def queue_described_job(job: Obj, find_object: FindObject, managed_jobs: ManagedJobs) -> Obj:
    """Return a new job with the default queue and priority class, suspended if it is managed.

    A job that the description excludes is not changed. A job for which this expression fails is suspended, and the
    controller reports the failure. Raises Forbidden as `queue_job` does.
    """
    integration = find_integration(group_kind(job), managed_jobs.job_kinds)
    if integration is None or _is_ignored(job, integration):
        return job
    queued_job = queue_job(job, find_object, managed_jobs, integration.suspend_path)
    return integration.prepared_job(queued_job) if managed_jobs.has_kind_of(job) else queued_job


def described_job_errors(
    new: Obj, old: Obj | None, managed_jobs: ManagedJobs, find_object: FindObject
) -> Iterator[FieldError]:
    """Validate a job of a described kind: Kueue's labels and annotations, and the rules of the description.

    `old` is None for a new job. The rules of the description apply to jobs with a queue name. In a kind with rules,
    updates of other jobs are not validated. `find_object` finds the objects to which the job refers.
    """
    integration = find_integration(group_kind(new), managed_jobs.job_kinds)
    if integration is None:
        return
    integration = integration.with_objects(find_object)
    is_queued = managed_jobs.names(new) or (old is not None and managed_jobs.names(old))
    if old is not None and integration.spec.validations and not is_queued:
        return
    errors = [] if old is None else [*queued_jobs.queue_settings_update_errors(new, old, integration.suspend_path)]
    if managed_jobs.names(new):
        errors += integration.validation_errors(new)
    if not _is_ignored(new, integration):
        errors += queued_jobs.queue_settings_errors(new) if old is None else ()
        # The end of a deletion must not depend on objects to which the job refers.
        errors += () if "deletionTimestamp" in new["metadata"] else integration.topology_errors(new)
    yield from rules.attribute_to_webhook(validating_webhook(new), errors)
    yield from rules.attribute_to_webhook(validating_webhook(new), _prebuilt_errors(new))


def _prebuilt_errors(job: Obj) -> Iterator[FieldError]:
    name = well_known.PREBUILT_WORKLOAD
    if group_kind(job) == _WITHOUT_PREBUILT and (annotation(job, name) or label(job, name)):
        message = f'Is not supported for "{job["apiVersion"]}, Kind={job["kind"]}"'
        yield rules.forbidden(f"metadata.labels[{name}]", message, "remove the name of the Workload")


def _is_ignored(job: Obj, integration: DescribedJobIntegration) -> bool:
    try:
        return integration.is_ignored(job)
    except ExpressionFailed:
        return False
