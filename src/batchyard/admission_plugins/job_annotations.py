"""Annotations of jobs that webhooks read: dependencies on other jobs, elastic Jobs, timeouts until pods are ready."""

import json
from collections.abc import Iterator
from typing import Any, Final

from batchyard.admission_plugins.built_in import FindObject, ManagedJobs, find_managed_ancestor, validating_webhook
from batchyard.api import meta, scheme, well_known
from batchyard.api.errors import FieldError, Forbidden
from batchyard.api.validation import rules
from batchyard.api.views import queued_pods
from batchyard.base.instant import SECOND, Duration, format_duration

# Elastic Jobs.


def gate_elastic_job(job: meta.Obj) -> meta.Obj:
    """Return an elastic Job with the scheduling gate of elastic jobs in its pod template.

    The pods of the Job then wait until its Workload has quota for them. Source: applyWorkloadSliceSchedulingGate in
    Kueue's pkg/controller/jobs/job/job_webhook.go.
    """
    gates = (job["spec"]["template"].get("spec") or {}).get("schedulingGates") or ()
    if any(gate.get("name") == well_known.ELASTIC_JOB for gate in gates):
        return job
    path = ("spec", "template", "spec", "schedulingGates")
    return meta.with_path(job, path, [*gates, {"name": well_known.ELASTIC_JOB}])


# Dependencies on other jobs.


def kinds_with_queues(managed_jobs: ManagedJobs) -> list[str]:
    """Return the kinds of jobs on which a job may depend, such as `Job.batch`: kinds that serve never finish."""
    kinds = dict.fromkeys((*meta.JOB_KINDS, *managed_jobs.kinds, *managed_jobs.job_kinds))
    return [kind for kind in kinds if kind not in scheme.SERVING_KINDS]


def gate_dependent_job(job: meta.Obj, find_object: FindObject, managed_jobs: ManagedJobs) -> meta.Obj:
    """Return a new job with dependencies (`batchyard.dev/after`) with the admission gate that holds it back.

    Other jobs, and jobs whose owner is managed in place of them, are returned unchanged. Raises Forbidden if the job
    has no queue, or depends on a kind of job that has no queues.
    """
    if not meta.annotation(job, well_known.AFTER) or not managed_jobs.has_kind_of(job):
        return job
    from batchyard.api import job_dependencies  # noqa: PLC0415 - few jobs depend on others

    has_owner = meta.controller_of(job) is not None
    if has_owner and find_managed_ancestor(job, find_object, managed_jobs).managed_key is not None:
        return job
    try:
        dependencies = job_dependencies.dependencies_of(job)
    except ValueError:
        return job  # validation reports the error
    kinds = kinds_with_queues(managed_jobs)
    unknown = [each for each in dependencies if job_dependencies.find_kind(each.kind, kinds) is None]
    message = job_dependencies.unknown_kind_message(unknown[0]) if unknown else ""
    if queued_pods.group_name(job) or not managed_jobs.names(job):
        message = job_dependencies.unqueued_message(in_group=bool(queued_pods.group_name(job)))
    if message:
        raise Forbidden(f'admission webhook "m{job["kind"].lower()}.kb.io" denied the request: {message}')
    return job_dependencies.with_gate(job) if dependencies else job


# The annotation `kueue.x-k8s.io/wait-for-pods-ready`.
#
# Source: the job webhooks of Kueue 0.20 (KEP-4803), which run with the feature gate WorkloadLevelWaitForPodsReady.


_PATH: Final = f"metadata.annotations[{well_known.WAIT_FOR_PODS_READY}]"
_REMEDY: Final = 'set the annotation to JSON such as {"timeoutSeconds": 600}'
_FIELDS: Final = ("timeoutSeconds", "recoveryTimeoutSeconds")


def parse_timeout_seconds(text: str) -> tuple[int | None, int | None]:
    """Parse the annotation: JSON with timeoutSeconds and recoveryTimeoutSeconds; a missing number is None.

    The range of the numbers is not checked. Raises ValueError for other JSON, with the reason.
    """
    try:
        fields: Any = json.loads(text)
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError("the value must be a JSON object")  # noqa: TRY004 - the text is wrong, not its type
    for name in _FIELDS:
        value = fields.get(name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ValueError(f"{name} must be an integer")
    return fields.get(_FIELDS[0]), fields.get(_FIELDS[1])


def check_ready_timeouts(new: meta.Obj, old: meta.Obj | None, timeout_max: Duration) -> None:
    """Raise Forbidden if a Job's or JobSet's own timeouts are invalid, or changed while it is not suspended.

    `old` is None for a new job. `timeout_max` is `waitForPodsReady.maxTimeoutOnWorkload`.
    """
    text = meta.annotation(new, well_known.WAIT_FOR_PODS_READY) or ""
    old_text = text if old is None else meta.annotation(old, well_known.WAIT_FOR_PODS_READY) or ""
    errors = list(_timeout_errors(text, timeout_max)) if text else []
    if text != old_text and not new["spec"].get("suspend"):
        errors.append(rules.immutable(_PATH, text, "change the annotation while the job is suspended"))
    if errors:
        message = str(errors[0]) if len(errors) == 1 else f"[{', '.join(map(str, errors))}]"
        webhook_name = validating_webhook(new)
        raise Forbidden(f'admission webhook "{webhook_name}" denied the request: {message}')


def _timeout_errors(text: str, timeout_max: Duration) -> Iterator[FieldError]:
    try:
        timeout_seconds, recovery_seconds = parse_timeout_seconds(text)
    except ValueError as error:
        yield rules.invalid(_PATH, text, str(error), _REMEDY)
        return
    if timeout_seconds is None:
        yield rules.invalid(_PATH, text, "timeoutSeconds is required", _REMEDY)
    elif timeout_seconds <= 0:
        yield rules.invalid(_PATH, text, "timeoutSeconds must be greater than 0", _REMEDY)
    if recovery_seconds is not None and recovery_seconds < 0:
        yield rules.invalid(_PATH, text, "recoveryTimeoutSeconds must be greater than or equal to 0", _REMEDY)
    for name, seconds in zip(_FIELDS, (timeout_seconds, recovery_seconds), strict=True):
        if seconds is not None and seconds * SECOND > timeout_max:
            message = f"{name} must not exceed the maximum of {format_duration(timeout_max)}"
            yield rules.invalid(_PATH, text, message, "set a shorter time")
