"""Values that objects get when they are made, beyond what a schema can express.

Nothing is changed in place; an object that needs nothing comes back as it is. The defaults of pod templates are in the
field tables (batchyard.api.schema). Pods get some more when they are made (batchyard.api.admission.pods), and Jobs what
Kueue adds (batchyard.api.admission.queued_jobs).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.defaults import apps, cloud, job, jobset, limit_range, node, pod, queues, rbac, secret, volumes
from batchyard.api.meta import Obj, group_kind

Default: TypeAlias = Callable[[Obj], Obj]


_DEFAULTS: Final[Mapping[str, Default]] = {
    **dict.fromkeys(
        (
            *(scheme.LOCAL_QUEUE, scheme.WORKLOAD, scheme.COHORT, scheme.TOPOLOGY),
            *(scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG),
        ),
        queues.specified,
    ),
    scheme.CLUSTER_QUEUE: queues.cluster_queue,
    scheme.RESOURCE_FLAVOR: queues.in_use,
    scheme.CLUSTER: cloud.cluster_defaults,
    scheme.NODE_POOL: cloud.node_pool_defaults,
    scheme.NODE: node.node_defaults,
    scheme.POD: pod.pod_defaults,
    scheme.ROLE_BINDING: rbac.binding_defaults,
    scheme.CLUSTER_ROLE_BINDING: rbac.binding_defaults,
    scheme.DEPLOYMENT: apps.deployment_defaults,
    scheme.REPLICA_SET: apps.replica_set_defaults,
    scheme.REPLICATION_CONTROLLER: apps.replication_controller_defaults,
    scheme.STATEFUL_SET: apps.stateful_set_defaults,
    scheme.DAEMON_SET: apps.daemon_set_defaults,
    scheme.CRON_JOB: apps.cron_job_defaults,
    scheme.SECRET: secret.secret_defaults,
    scheme.LIMIT_RANGE: limit_range.limit_range_defaults,
    scheme.JOB: job.job_defaults,
    scheme.JOB_SET: jobset.jobset_defaults,
    scheme.PERSISTENT_VOLUME: volumes.volume_defaults,
    scheme.PERSISTENT_VOLUME_CLAIM: volumes.claim_defaults,
}

_NO_PODS: Final = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
#: What is told of those that nobody acts on, and whose status nobody will write: clients that wait for one read it.
_STATUSES: Final[Mapping[str, Obj]] = {
    scheme.DEPLOYMENT: {},
    scheme.REPLICA_SET: {"replicas": 0},
    scheme.REPLICATION_CONTROLLER: {"replicas": 0},
    scheme.STATEFUL_SET: {"availableReplicas": 0, "replicas": 0},
    scheme.DAEMON_SET: dict.fromkeys(_NO_PODS, 0),
    scheme.CRON_JOB: {},
    scheme.INGRESS: {"loadBalancer": {}},
    scheme.SERVICE: {"loadBalancer": {}},
}


def with_defaults(obj: Obj) -> dict[str, Any]:
    """The object with its defaults; the same object where it has them all."""
    kind = group_kind(obj)
    default, status = _DEFAULTS.get(kind), _STATUSES.get(kind)
    done = default(obj) if default else obj
    if status is not None and done.get("status") is None:
        return {**done, "status": status}
    return done if isinstance(done, dict) else dict(done)
