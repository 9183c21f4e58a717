"""What Kueue's webhooks make of a new Job or JobSet: its queue and priority where it names none, and that it waits.

Source: Kueue's pkg/controller/jobframework/defaults.go, with manageJobsWithoutQueueName off.
"""

from typing import Final

from batchyard.admission_plugins.pods import Find
from batchyard.api import scheme, well_known
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Key, Obj, label, with_path
from batchyard.api.selectors import Selector
from batchyard.api.views.ownership import ancestry, job_above, namespace_labels

#: The LocalQueue, and the WorkloadPriorityClass, of those that name none.
_DEFAULT: Final = "default"
_WEBHOOKS: Final = {"Job": "mjob.kb.io", "JobSet": "mjobset.kb.io"}


def is_managed_namespace(name: str, managed: Selector | None, find: Find) -> bool:
    """Whether jobs of a Namespace are managed, by `managedJobsNamespaceSelector`; those of one that is gone are not."""
    if managed is None:
        return True
    namespace = find(Key(scheme.NAMESPACE, "", name))
    return namespace is not None and managed.matches(namespace_labels(namespace))


def queue_job(job: Obj, find: Find, managed: Selector | None = None) -> Obj:
    """The Job or JobSet as it is stored; what belongs to another one is queued with that, if that is.

    In Namespaces that are not managed a job without a queue does not get the default one.
    """
    if job_above(job) is not None:
        return job if _is_managed_above(job, find) else _waiting(job)
    namespace = job["metadata"].get("namespace", "")
    queued = _labelled(job, well_known.QUEUE_NAME, Key(scheme.LOCAL_QUEUE, namespace, _DEFAULT), find)
    if queued is not job and not is_managed_namespace(namespace, managed, find):
        queued = job
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


# --- default queues ---
#
# What Kueue's webhooks ask of Jobs and JobSets that change, beyond what these say themselves.
#
# Source: Kueue's pkg/controller/jobframework/validation.go (validateUpdateForQueueName).


_DEFAULT_QUEUES_WEBHOOKS: Final = {"Job": "vjob.kb.io", "JobSet": "vjobset.kb.io"}


def check_queue_kept(new: Obj, old: Obj, find: Find) -> None:
    """Raise Forbidden if a queue is given up in a Namespace where those without would be queued anyway."""
    name = well_known.QUEUE_NAME
    if label(new, name) or not label(old, name):
        return
    if find(Key(scheme.LOCAL_QUEUE, new["metadata"].get("namespace", ""), _DEFAULT)) is not None:
        path, why = f"metadata.labels[{name}]", "queue-name must not be empty in namespace with default queue"
        webhook = _DEFAULT_QUEUES_WEBHOOKS[new["kind"]]
        raise Forbidden(f'admission webhook "{webhook}" denied the request: {path}: Invalid value: "": {why}')
