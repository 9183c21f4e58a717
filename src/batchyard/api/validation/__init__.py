"""Validation of objects by rules across fields, which the schema cannot express: on creation, update and status update.

`validate` and `validate_update` take objects that are structurally valid, defaulted, and in the storage version, and
change nothing. Each rule is a function that yields errors (FieldErrors). A reference to a missing object, such as a
flavor or a queue, is valid: controllers report it in a status.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, group_kind
from batchyard.api.validation import (
    apps,
    cluster,
    containers,
    core,
    job,
    jobset,
    pods,
    policies,
    queues,
    rules,
    topology,
    workload,
)

Rule: TypeAlias = Callable[[Mapping[str, Any]], Iterator[FieldError]]
UpdateRule: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[FieldError]]

_RULE_BY_KIND: Final[Mapping[str, Rule]] = {
    scheme.CONFIGURATION: queues.configuration_faults,
    scheme.CLUSTER: cluster.cluster_faults,
    scheme.NODE_POOL: cluster.node_pool_faults,
    scheme.INSTANCE: cluster.instance_faults,
    scheme.RESIZE_REQUEST: cluster.resize_request_faults,
    scheme.NAMESPACE: core.namespace_faults,
    scheme.CONFIG_MAP: core.config_map_faults,
    scheme.SECRET: core.secret_faults,
    scheme.SERVICE: containers.service_faults,
    scheme.EVENT: core.event_faults,
    scheme.RESOURCE_QUOTA: policies.resource_quota_faults,
    scheme.LIMIT_RANGE: policies.limit_range_faults,
    scheme.POD_DISRUPTION_BUDGET: policies.disruption_budget_faults,
    scheme.POD_TEMPLATE: pods.pod_template_kind_faults,
    scheme.NODE: core.node_faults,
    scheme.PROVISIONING_REQUEST: queues.provisioning_request_faults,
    scheme.PRIORITY_CLASS: core.priority_class_faults,
    scheme.ROLE: policies.role_faults,
    scheme.CLUSTER_ROLE: policies.role_faults,
    scheme.ROLE_BINDING: policies.binding_faults,
    scheme.CLUSTER_ROLE_BINDING: policies.binding_faults,
    scheme.DEPLOYMENT: apps.workload_controller_faults,
    scheme.REPLICA_SET: apps.workload_controller_faults,
    scheme.STATEFUL_SET: apps.workload_controller_faults,
    scheme.DAEMON_SET: apps.workload_controller_faults,
    scheme.CRON_JOB: apps.cron_job_faults,
    scheme.BUDGET: cluster.budget_faults,
    scheme.JOB: job.job_faults,
    scheme.JOB_SET: jobset.jobset_faults,
    scheme.POD: pods.pod_faults,
    scheme.RESOURCE_FLAVOR: queues.resource_flavor_faults,
    scheme.CLUSTER_QUEUE: queues.cluster_queue_faults,
    scheme.COHORT: queues.cohort_faults,
    scheme.LOCAL_QUEUE: queues.local_queue_faults,
    scheme.WORKLOAD: workload.workload_faults,
    scheme.ADMISSION_CHECK: queues.admission_check_faults,
    scheme.TOPOLOGY: topology.topology_faults,
    scheme.MULTI_KUEUE_CONFIG: queues.multikueue_config_faults,
    scheme.MULTI_KUEUE_CLUSTER: queues.multikueue_cluster_faults,
}

_UPDATE_RULES: Final[Mapping[str, UpdateRule]] = {
    scheme.CLUSTER: cluster.cluster_update_faults,
    scheme.NODE_POOL: cluster.node_pool_update_faults,
    scheme.INSTANCE: cluster.instance_update_faults,
    scheme.RESIZE_REQUEST: cluster.resize_request_update_faults,
    scheme.NODE: core.node_update_faults,
    scheme.PROVISIONING_REQUEST: queues.provisioning_request_update_faults,
    scheme.CONFIG_MAP: core.config_map_update_faults,
    scheme.SECRET: core.secret_update_faults,
    scheme.SERVICE: containers.service_update_faults,
    scheme.RESOURCE_QUOTA: policies.resource_quota_update_faults,
    scheme.PRIORITY_CLASS: core.priority_class_update_faults,
    scheme.ROLE_BINDING: policies.binding_update_faults,
    scheme.CLUSTER_ROLE_BINDING: policies.binding_update_faults,
    scheme.DEPLOYMENT: apps.workload_controller_update_faults,
    scheme.REPLICA_SET: apps.workload_controller_update_faults,
    scheme.STATEFUL_SET: apps.stateful_set_update_faults,
    scheme.DAEMON_SET: apps.workload_controller_update_faults,
    scheme.POD: pods.pod_update_faults,
    scheme.JOB: job.job_update_faults,
    scheme.JOB_SET: jobset.jobset_update_faults,
    scheme.RESOURCE_FLAVOR: queues.resource_flavor_update_faults,
    scheme.CLUSTER_QUEUE: queues.cluster_queue_update_faults,
    scheme.LOCAL_QUEUE: queues.local_queue_update_faults,
    scheme.WORKLOAD: workload.workload_update_faults,
    scheme.ADMISSION_CHECK: queues.admission_check_update_faults,
    scheme.TOPOLOGY: topology.topology_update_faults,
}

#: Kueue's webhook also validates status updates.
_STATUS_RULES: Final[Mapping[str, UpdateRule]] = {scheme.WORKLOAD: workload.workload_status_faults}


def validate(obj: Obj) -> list[FieldError]:
    """Return all errors of a new object; for kinds without rules of their own, only errors in its metadata."""
    return list(_RULE_BY_KIND.get(group_kind(obj), rules.metadata_faults)(obj))


def validate_status(new: Obj, old: Obj) -> list[FieldError]:
    """Return all errors of a status update, by the kind's rules for status updates or else those for updates."""
    rule = _STATUS_RULES.get(group_kind(new))
    return list(rule(new, old)) if rule else validate_update(new, old)


def validate_update(new: Obj, old: Obj) -> list[FieldError]:
    """Return all errors of an update: invalid fields of the new object, and changes that its kind forbids."""
    rule = _UPDATE_RULES.get(group_kind(new))
    return list(rule(new, old)) if rule else validate(new)
