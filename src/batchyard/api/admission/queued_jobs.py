"""What Kueue's webhooks make of a new Job or JobSet: its queue and priority where it names none, and that it waits.

Source: Kueue's pkg/controller/jobframework/defaults.go, with manageJobsWithoutQueueName off.
"""

from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.admission.pods import Find
from batchyard.api.meta import Key, Obj, controller_of, label, with_path

#: The LocalQueue, and the WorkloadPriorityClass, of those that name none.
_DEFAULT: Final = "default"
_OWNERS: Final = ("Job", "JobSet")


def queue_job(job: Obj, find: Find) -> Obj:
    """The Job or JobSet as it is stored; what belongs to another one is queued with that."""
    owner = controller_of(job)
    if owner is not None and owner["kind"] in _OWNERS:
        return job
    namespace = job["metadata"].get("namespace", "")
    queued = _labelled(job, well_known.QUEUE_NAME, Key(scheme.LOCAL_QUEUE, namespace, _DEFAULT), find)
    classed = _labelled(queued, well_known.PRIORITY_CLASS, Key(scheme.WORKLOAD_PRIORITY_CLASS, "", _DEFAULT), find)
    if not label(classed, well_known.QUEUE_NAME) or classed["spec"].get("suspend"):
        return classed
    return with_path(classed, ("spec", "suspend"), True)


def _labelled(job: Obj, name: str, default: Key, find: Find) -> Obj:
    """The Job with that label, which names the default if that is there and it names nothing itself."""
    if label(job, name) or find(default) is None:
        return job
    return with_path(job, ("metadata", "labels", name), default.name)
