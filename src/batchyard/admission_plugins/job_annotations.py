"""Annotations of jobs that Kueue's webhooks read: for elastic Jobs, and for own timeouts until pods are ready."""

import json
from collections.abc import Iterator
from typing import Any, Final

from batchyard.admission_plugins.built_in import validating_webhook
from batchyard.api import meta, well_known
from batchyard.api.errors import FieldError, Forbidden
from batchyard.api.validation import rules
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
