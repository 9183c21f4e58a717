"""Validation of objects by rules that their schema does not express: on creation, update and status update.

`validate` and `validate_update` take objects that are structurally valid, defaulted, and in the storage version, and
change nothing. Each rule is a function that yields errors (FieldErrors). A reference to a missing object, such as a
flavor or a queue, is valid: controllers report it in a status.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, group_kind
from batchyard.api.validation import (
    apps,
    cluster,
    containers,
    core,
    job,
    job_kinds,
    jobset,
    pods,
    policies,
    queued_pods,
    queues,
    rules,
    topology,
    workload,
)

ValidationRule: TypeAlias = Callable[[Mapping[str, Any]], Iterator[FieldError]]
UpdateValidationRule: TypeAlias = Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[FieldError]]


def _flow_object_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a FlowSchema or PriorityLevelConfiguration; simulations have no such objects."""
    from batchyard.api.validation import flow_control  # noqa: PLC0415 - loaded on first use

    return flow_control.flow_object_errors(obj)


_RULE_BY_KIND: Final[Mapping[str, ValidationRule]] = {
    scheme.CONFIGURATION: queues.configuration_errors,
    scheme.CLUSTER: cluster.cluster_errors,
    scheme.NODE_POOL: cluster.node_pool_errors,
    scheme.INSTANCE: cluster.instance_errors,
    scheme.RESIZE_REQUEST: cluster.resize_request_errors,
    scheme.NAMESPACE: core.namespace_errors,
    scheme.CONFIG_MAP: core.config_map_errors,
    scheme.SECRET: core.secret_errors,
    scheme.SERVICE: containers.service_errors,
    scheme.EVENT: core.event_errors,
    scheme.RESOURCE_QUOTA: policies.resource_quota_errors,
    scheme.LIMIT_RANGE: policies.limit_range_errors,
    scheme.POD_DISRUPTION_BUDGET: policies.disruption_budget_errors,
    scheme.POD_TEMPLATE: pods.pod_template_kind_errors,
    scheme.STORAGE_CLASS: core.storage_class_errors,
    scheme.FLOW_SCHEMA: _flow_object_errors,
    scheme.PRIORITY_LEVEL: _flow_object_errors,
    scheme.PERSISTENT_VOLUME_CLAIM: core.claim_errors,
    scheme.NODE: core.node_errors,
    scheme.PROVISIONING_REQUEST: queues.provisioning_request_errors,
    scheme.PRIORITY_CLASS: core.priority_class_errors,
    scheme.ROLE: policies.role_errors,
    scheme.CLUSTER_ROLE: policies.role_errors,
    scheme.ROLE_BINDING: policies.binding_errors,
    scheme.CLUSTER_ROLE_BINDING: policies.binding_errors,
    scheme.DEPLOYMENT: apps.workload_controller_errors,
    scheme.REPLICA_SET: apps.workload_controller_errors,
    scheme.STATEFUL_SET: apps.workload_controller_errors,
    scheme.DAEMON_SET: apps.workload_controller_errors,
    scheme.CRON_JOB: apps.cron_job_errors,
    scheme.HORIZONTAL_POD_AUTOSCALER: apps.autoscaler_errors,
    scheme.MUTATING_WEBHOOKS: policies.webhook_configuration_errors,
    scheme.VALIDATING_WEBHOOKS: policies.webhook_configuration_errors,
    scheme.BUDGET: cluster.budget_errors,
    scheme.JOB: job.job_errors,
    scheme.JOB_SET: jobset.jobset_errors,
    scheme.JOB_KIND: job_kinds.job_kind_errors,
    scheme.POD: queued_pods.pod_errors,
    scheme.RESOURCE_FLAVOR: queues.resource_flavor_errors,
    scheme.CLUSTER_QUEUE: queues.cluster_queue_errors,
    scheme.COHORT: queues.cohort_errors,
    scheme.LOCAL_QUEUE: queues.local_queue_errors,
    scheme.WORKLOAD: workload.workload_errors,
    scheme.ADMISSION_CHECK: queues.admission_check_errors,
    scheme.TOPOLOGY: topology.topology_errors,
    scheme.PREEMPTION_CONFIG: queues.preemption_config_errors,
    scheme.MULTI_KUEUE_CONFIG: queues.multikueue_config_errors,
    scheme.MULTI_KUEUE_CLUSTER: queues.multikueue_cluster_errors,
}

_UPDATE_RULE_BY_KIND: Final[Mapping[str, UpdateValidationRule]] = {
    scheme.CLUSTER: cluster.cluster_update_errors,
    scheme.NODE_POOL: cluster.node_pool_update_errors,
    scheme.INSTANCE: cluster.instance_update_errors,
    scheme.RESIZE_REQUEST: cluster.resize_request_update_errors,
    scheme.STORAGE_CLASS: core.storage_class_update_errors,
    scheme.FLOW_SCHEMA: lambda new, _old: _flow_object_errors(new),
    scheme.PRIORITY_LEVEL: lambda new, _old: _flow_object_errors(new),
    scheme.PERSISTENT_VOLUME_CLAIM: core.claim_update_errors,
    scheme.NODE: core.node_update_errors,
    scheme.PROVISIONING_REQUEST: queues.provisioning_request_update_errors,
    scheme.CONFIG_MAP: core.config_map_update_errors,
    scheme.SECRET: core.secret_update_errors,
    scheme.SERVICE: containers.service_update_errors,
    scheme.RESOURCE_QUOTA: policies.resource_quota_update_errors,
    scheme.PRIORITY_CLASS: core.priority_class_update_errors,
    scheme.ROLE_BINDING: policies.binding_update_errors,
    scheme.CLUSTER_ROLE_BINDING: policies.binding_update_errors,
    scheme.DEPLOYMENT: apps.workload_controller_update_errors,
    scheme.REPLICA_SET: apps.workload_controller_update_errors,
    scheme.STATEFUL_SET: apps.stateful_set_update_errors,
    scheme.DAEMON_SET: apps.workload_controller_update_errors,
    scheme.HORIZONTAL_POD_AUTOSCALER: apps.autoscaler_update_errors,
    scheme.POD: queued_pods.pod_update_errors,
    scheme.JOB: job.job_update_errors,
    scheme.JOB_SET: jobset.jobset_update_errors,
    scheme.JOB_KIND: job_kinds.job_kind_update_errors,
    scheme.RESOURCE_FLAVOR: queues.resource_flavor_update_errors,
    scheme.CLUSTER_QUEUE: queues.cluster_queue_update_errors,
    scheme.LOCAL_QUEUE: queues.local_queue_update_errors,
    scheme.WORKLOAD: workload.workload_update_errors,
    scheme.ADMISSION_CHECK: queues.admission_check_update_errors,
    scheme.TOPOLOGY: topology.topology_update_errors,
}

#: Kueue's webhook also validates status updates.
_STATUS_RULE_BY_KIND: Final[Mapping[str, UpdateValidationRule]] = {scheme.WORKLOAD: workload.workload_status_errors}


#: The names of disabled feature gates of Kueue that validation obeys (`VALIDATION_GATES`).
DisabledGates: TypeAlias = frozenset[str]
NO_DISABLED_GATES: Final[DisabledGates] = frozenset()


def validate(obj: Obj, disabled_gates: DisabledGates = NO_DISABLED_GATES) -> list[FieldError]:
    """Return the errors of a new object by its kind's rules; for kinds without rules, only errors in its metadata."""
    errors = list(_RULE_BY_KIND.get(group_kind(obj), rules.metadata_errors)(obj))
    return _errors_without_gates(errors, obj, disabled_gates) if disabled_gates else errors


def validate_status(new: Obj, old: Obj, disabled_gates: DisabledGates = NO_DISABLED_GATES) -> list[FieldError]:
    """Return the errors of a status update, by the kind's rules for status updates or else those for updates."""
    rule = _STATUS_RULE_BY_KIND.get(group_kind(new))
    if rule is None:
        return validate_update(new, old, disabled_gates)
    errors = list(rule(new, old))
    return _errors_without_gates(errors, new, disabled_gates) if disabled_gates else errors


def validate_update(new: Obj, old: Obj, disabled_gates: DisabledGates = NO_DISABLED_GATES) -> list[FieldError]:
    """Return the errors of an update: invalid fields of the new object, and changes that its kind forbids."""
    rule = _UPDATE_RULE_BY_KIND.get(group_kind(new))
    if rule is None:
        return validate(new, disabled_gates)
    errors = list(rule(new, old))
    return _errors_without_gates(errors, new, disabled_gates) if disabled_gates else errors


def _errors_without_gates(errors: list[FieldError], obj: Obj, disabled_gates: DisabledGates) -> list[FieldError]:
    """Return the errors that Kueue reports with some feature gates disabled."""
    kept_errors = [error for error in errors if error.gate not in disabled_gates]
    kind = group_kind(obj)
    if well_known.TAS_MULTIPLE_LAYERS in disabled_gates and kind == scheme.JOB:
        kept_errors += job.disabled_layers_errors(obj)
    elif well_known.TAS_MULTIPLE_LAYERS in disabled_gates and kind == scheme.JOB_SET:
        kept_errors += jobset.disabled_layers_errors(obj)
    return kept_errors
