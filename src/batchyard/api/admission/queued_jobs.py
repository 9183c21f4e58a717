"""What Kueue's webhooks make of a new Job or JobSet: its queue and priority where it names none, and that it waits.

Source: Kueue's pkg/controller/jobframework/defaults.go, with manageJobsWithoutQueueName off.
"""

from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.admission.pods import Find
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Key, Obj, label, with_path
from batchyard.api.views.owners import ancestry, job_above

#: The LocalQueue, and the WorkloadPriorityClass, of those that name none.
_DEFAULT: Final = "default"
_WEBHOOKS: Final = {"Job": "mjob.kb.io", "JobSet": "mjobset.kb.io"}


def queue_job(job: Obj, find: Find) -> Obj:
    """The Job or JobSet as it is stored; what belongs to another one is queued with that, if that is."""
    if job_above(job) is not None:
        return job if _is_managed_above(job, find) else _waiting(job)
    namespace = job["metadata"].get("namespace", "")
    queued = _labelled(job, well_known.QUEUE_NAME, Key(scheme.LOCAL_QUEUE, namespace, _DEFAULT), find)
    return _waiting(
        _labelled(queued, well_known.PRIORITY_CLASS, Key(scheme.WORKLOAD_PRIORITY_CLASS, "", _DEFAULT), find)
    )


def _is_managed_above(job: Obj, find: Find) -> bool:
    """Whether a job above has a queue; Forbidden where one is not there, for nobody could tell."""
    above = ancestry(job, find)
    if above.missing is not None:
        told = f'{above.missing.kind} "{above.missing.name}" not found'
        raise Forbidden(f'admission webhook "{_WEBHOOKS[job["kind"]]}" denied the request: {told}')
    return above.managed is not None


def _waiting(job: Obj) -> Obj:
    """The Job, suspended if it has a queue."""
    if not label(job, well_known.QUEUE_NAME) or job["spec"].get("suspend"):
        return job
    return with_path(job, ("spec", "suspend"), True)


def _labelled(job: Obj, name: str, default: Key, find: Find) -> Obj:
    """The Job with that label, which names the default if that is there and it names nothing itself."""
    if label(job, name) or find(default) is None:
        return job
    return with_path(job, ("metadata", "labels", name), default.name)
