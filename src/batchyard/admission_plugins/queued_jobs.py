"""Kueue's job webhooks: default queue, default priority class, and suspension of new Jobs and JobSets.

Source: Kueue's pkg/controller/jobframework/defaults.go, with manageJobsWithoutQueueName off.
"""

from typing import Final

from batchyard.admission_plugins.pods import Find
from batchyard.api import scheme, well_known
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Key, Obj, label, with_path
from batchyard.api.selectors import Selector
from batchyard.api.views.ownership import ancestry, job_above, namespace_labels

#: The name of the default LocalQueue and of the default WorkloadPriorityClass.
_DEFAULT: Final = "default"
_WEBHOOKS: Final = {"Job": "mjob.kb.io", "JobSet": "mjobset.kb.io"}


def is_managed_namespace(name: str, managed: Selector | None, find: Find) -> bool:
    """Report whether `managedJobsNamespaceSelector` selects a Namespace; false if the Namespace is gone."""
    if managed is None:
        return True
    namespace = find(Key(scheme.NAMESPACE, "", name))
    return namespace is not None and managed.matches(namespace_labels(namespace))


def queue_job(job: Obj, find: Find, managed: Selector | None = None) -> Obj:
    """Return the Job or JobSet with its defaults; a child job is suspended only if no ancestor is managed.

    In Namespaces that are not managed, a job without a queue does not get the default one.
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
    """Report whether an ancestor job is managed by a queue. Raises Forbidden if an ancestor is missing."""
    above = ancestry(job, find)
    if above.missing is not None:
        message = f'{above.missing.kind} "{above.missing.name}" not found'
        raise Forbidden(f'admission webhook "{_WEBHOOKS[job["kind"]]}" denied the request: {message}')
    return above.managed is not None


def _waiting(job: Obj) -> Obj:
    """Return the Job, suspended if it has a queue."""
    if not label(job, well_known.QUEUE_NAME) or job["spec"].get("suspend"):
        return job
    return with_path(job, ("spec", "suspend"), True)


def _labelled(job: Obj, name: str, default: Key, find: Find) -> Obj:
    """Return the Job with a label set to the default, if that exists and the job does not have the label."""
    if label(job, name) or find(default) is None:
        return job
    return with_path(job, ("metadata", "labels", name), default.name)


# --- default queues ---
#
# The validating part of Kueue's job webhooks for updates.
#
# Source: Kueue's pkg/controller/jobframework/validation.go (validateUpdateForQueueName).


_DEFAULT_QUEUES_WEBHOOKS: Final = {"Job": "vjob.kb.io", "JobSet": "vjobset.kb.io"}


def check_queue_kept(new: Obj, old: Obj, find: Find) -> None:
    """Raise Forbidden if the queue label is removed in a Namespace with a default LocalQueue."""
    name = well_known.QUEUE_NAME
    if label(new, name) or not label(old, name):
        return
    if find(Key(scheme.LOCAL_QUEUE, new["metadata"].get("namespace", ""), _DEFAULT)) is not None:
        path, why = f"metadata.labels[{name}]", "queue-name must not be empty in namespace with default queue"
        webhook = _DEFAULT_QUEUES_WEBHOOKS[new["kind"]]
        raise Forbidden(f'admission webhook "{webhook}" denied the request: {path}: Invalid value: "": {why}')
