"""Values that objects get when they are made, beyond what a schema can express.

Nothing is changed in place; an object that needs nothing comes back as it is. Pod templates get no defaults: what is
not asked for is not written down, and the views know what absence means. Pods get theirs when they are made, from
whichever template (batchyard.api.admission.pods).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.defaults import cloud, job, jobset, node, pod, queues
from batchyard.api.meta import Obj, group_kind, label, with_path

Default: TypeAlias = Callable[[Obj], Obj]


_DEFAULTS: Final[Mapping[str, Default]] = {
    scheme.CLUSTER_QUEUE: queues.in_use,
    scheme.RESOURCE_FLAVOR: queues.in_use,
    scheme.CLUSTER: cloud.cluster_defaults,
    scheme.NODE_POOL: cloud.node_pool_defaults,
    scheme.NODE: node.node_defaults,
    scheme.POD: pod.pod_defaults,
    scheme.JOB: job.job_defaults,
    scheme.JOB_SET: jobset.jobset_defaults,
}


def with_defaults(obj: Obj) -> dict[str, Any]:
    """The object with its defaults; the same object where it has them all."""
    default = _DEFAULTS.get(group_kind(obj))
    done = default(obj) if default else obj
    return done if isinstance(done, dict) else dict(done)


def suspend_if_managed(obj: Obj) -> dict[str, Any]:
    """A new Job or JobSet, suspended where it names a queue: it runs when the queue says so.

    Source: Kueue's Job and JobSet webhooks, with manageJobsWithoutQueueName off.
    """
    managed = group_kind(obj) in {scheme.JOB, scheme.JOB_SET} and label(obj, well_known.QUEUE_NAME)
    if managed and not (obj.get("spec") or {}).get("suspend"):
        return with_path(obj, ("spec", "suspend"), True)
    return obj if isinstance(obj, dict) else dict(obj)
