"""Defaults of objects on creation, beyond those of a schema.

Objects are never changed in place; an object that needs no defaults is returned itself. The defaults of pod templates
are in the field tables (batchyard.api.schema). Pods get more on creation (batchyard.admission_plugins.pods), and Jobs
get Kueue's (batchyard.admission_plugins.queued_jobs).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.defaults import kubernetes, kueue
from batchyard.api.meta import Obj, group_kind

Default: TypeAlias = Callable[[Obj], Obj]


_DEFAULTS: Final[Mapping[str, Default]] = {
    **dict.fromkeys(
        (
            *(scheme.LOCAL_QUEUE, scheme.WORKLOAD, scheme.COHORT, scheme.TOPOLOGY),
            *(scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG),
        ),
        kueue.with_spec,
    ),
    scheme.CLUSTER_QUEUE: kueue.cluster_queue,
    scheme.RESOURCE_FLAVOR: kueue.with_in_use_finalizer,
    scheme.CLUSTER: kueue.cluster_defaults,
    scheme.NODE_POOL: kueue.node_pool_defaults,
    scheme.NODE: kubernetes.node_defaults,
    scheme.POD: kubernetes.pod_defaults,
    scheme.ROLE_BINDING: kubernetes.binding_defaults,
    scheme.CLUSTER_ROLE_BINDING: kubernetes.binding_defaults,
    scheme.DEPLOYMENT: kubernetes.deployment_defaults,
    scheme.REPLICA_SET: kubernetes.replica_set_defaults,
    scheme.REPLICATION_CONTROLLER: kubernetes.replication_controller_defaults,
    scheme.STATEFUL_SET: kubernetes.stateful_set_defaults,
    scheme.DAEMON_SET: kubernetes.daemon_set_defaults,
    scheme.CRON_JOB: kubernetes.cron_job_defaults,
    scheme.SECRET: kubernetes.secret_defaults,
    scheme.LIMIT_RANGE: kubernetes.limit_range_defaults,
    scheme.JOB: kubernetes.job_defaults,
    scheme.JOB_SET: kueue.jobset_defaults,
    scheme.PERSISTENT_VOLUME: kubernetes.volume_defaults,
    scheme.PERSISTENT_VOLUME_CLAIM: kubernetes.claim_defaults,
}

_NO_PODS: Final = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
#: The status of kinds without a controller here: clients that wait for a status read it.
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
    """Return the object with its defaults; the same object if it has all of them."""
    kind = group_kind(obj)
    default, status = _DEFAULTS.get(kind), _STATUSES.get(kind)
    done = default(obj) if default else obj
    if status is not None and done.get("status") is None:
        return {**done, "status": status}
    return done if isinstance(done, dict) else dict(done)
