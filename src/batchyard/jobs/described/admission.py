"""Admission of jobs of described kinds, and of the JobKinds that describe them.

The rules are those of Kueue's base webhook. Source: pkg/controller/jobframework/{base_webhook,validation}.go of Kueue.
"""

from collections.abc import Iterator
from typing import Final

from batchyard.admission_plugins.built_in import FindObject, ManagedJobs, queue_job, validating_webhook
from batchyard.api import well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, annotation, group_kind, label
from batchyard.api.validation import job as queued_jobs
from batchyard.api.validation import rules
from batchyard.jobs.described.description import InvalidJobKind, parse_job_kind
from batchyard.jobs.described.integration import DescribedJobIntegration, ExpressionFailed, find_integration

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
    return queue_job(job, find_object, managed_jobs, integration.suspend_path)


def described_job_errors(new: Obj, old: Obj | None, managed_jobs: ManagedJobs) -> Iterator[FieldError]:
    """Validate Kueue's labels and annotations on a job of a described kind; `old` is None for a new job."""
    integration = find_integration(group_kind(new), managed_jobs.job_kinds)
    if integration is None:
        return
    if old is None:
        errors = queued_jobs.queue_settings_errors(new)
    else:
        errors = queued_jobs.queue_settings_update_errors(new, old, integration.suspend_path)
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
