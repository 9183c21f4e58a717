"""Default values of objects on creation, beyond the constant defaults of their schemas.

Objects are never changed in place. The defaults of pod templates are in the field tables (batchyard.api.schema). Pods
get further defaults on creation, and Jobs also get Kueue's defaults (batchyard.admission_plugins.built_in).
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, group_kind, with_finalizer, with_metadata, with_path
from batchyard.api.schema import fill_defaults, validate_and_default
from batchyard.api.scheme import kind_info

# Defaults of JobSets. Source: JobSet's webhook. The Jobs of a JobSet get the defaults of Jobs on creation.


def jobset_defaults(jobset: Obj) -> Obj:
    """Return the JobSet with defaults for its policies, network and replicated Jobs."""
    spec = jobset.get("spec") or {}
    new_spec = {
        **_add_missing(spec, successPolicy={"operator": "All"}, startupPolicy={"startupPolicyOrder": "AnyOrder"})
    }

    new_spec["network"] = _add_missing(
        spec.get("network") or {}, enableDNSHostnames=True, publishNotReadyAddresses=True
    )
    new_spec["replicatedJobs"] = [_replicated_job_defaults(each) for each in spec.get("replicatedJobs") or ()]
    if failure := spec.get("failurePolicy"):
        new_spec["failurePolicy"] = _failure_policy_defaults(failure)
    if claims := spec.get("volumeClaimPolicies"):
        new_spec["volumeClaimPolicies"] = [_add_missing(c, retentionPolicy={"whenDeleted": "Delete"}) for c in claims]
    return jobset if new_spec == spec else {**jobset, "spec": new_spec}


def _add_missing(fields: Mapping[str, Any], **defaults: Any) -> Mapping[str, Any]:
    missing_defaults = {name: value for name, value in defaults.items() if fields.get(name) is None}
    return {**fields, **missing_defaults} if missing_defaults else fields


def _replicated_job_defaults(replicated_job: Mapping[str, Any]) -> Mapping[str, Any]:
    template = replicated_job.get("template") or {}
    spec = template.get("spec") or {}
    pod = spec.get("template") or {}
    pod_spec = pod.get("spec") or {}
    if spec.get("completionMode") is not None and pod_spec.get("restartPolicy"):
        return replicated_job
    pod = {**pod, "spec": _add_missing(pod_spec, restartPolicy="OnFailure")}
    spec = {**_add_missing(spec, completionMode="Indexed"), "template": pod}
    return {**replicated_job, "template": {**template, "spec": spec}}


def _failure_policy_defaults(failure_policy: Mapping[str, Any]) -> Mapping[str, Any]:
    rules: Sequence[Mapping[str, Any]] = failure_policy.get("rules") or ()
    completed_policy = _add_missing(failure_policy, restartStrategy="Recreate")
    if all(rule.get("name") for rule in rules):
        return completed_policy
    rules = [rule if rule.get("name") else {**rule, "name": f"failurePolicyRule{i}"} for i, rule in enumerate(rules)]
    return {**completed_policy, "rules": rules}


# Defaults of Kueue's own kinds. Source: Kueue's ClusterQueue and ResourceFlavor webhooks.


def with_in_use_finalizer(obj: Obj) -> Obj:
    """Return the object with Kueue's resource-in-use finalizer; an object being deleted is returned unchanged."""
    if "deletionTimestamp" in obj["metadata"]:
        return obj
    return with_finalizer(obj, well_known.RESOURCE_IN_USE)


def with_default_spec(obj: Obj) -> Obj:
    """Return the object; a missing spec gets all default values, or becomes {} if the kind has required spec fields."""
    if "spec" in obj:
        return obj
    served_kind, obj_with_empty_spec = kind_info(group_kind(obj)), {**obj, "spec": {}}
    return (
        validate_and_default(served_kind, served_kind.storage_version, obj_with_empty_spec).obj or obj_with_empty_spec
    )


def cluster_queue_defaults(obj: Obj) -> Obj:
    """Return the ClusterQueue with Kueue's resource-in-use finalizer, and with a default spec if it has none."""
    return with_in_use_finalizer(with_default_spec(obj))


# Defaults of Clusters and NodePools beyond those of their fields.
#
# Constant defaults are in the field table. Source: GKE, whose pools span all zones of their cluster. Spot machines and
# others with limited supply are taken from any zone that has capacity.


SpecFields = Mapping[str, Any]


def cluster_defaults(cluster: Obj) -> Obj:
    """Return the Cluster with defaults for its region and its node pools.

    A pool without zones gets the zone of its reservation in `spec.reservations`, or else all zones of the cluster.
    """
    spec = cluster["spec"]
    reservation_zones = {each["name"]: each["zone"] for each in spec.get("reservations") or ()}
    new_spec = {"region": region_of(spec["zones"][0]), **spec}
    if pools := spec.get("nodePools"):
        new_spec["nodePools"] = [_with_zones(_pool_defaults(pool), reservation_zones, spec["zones"]) for pool in pools]
    return cluster if new_spec == spec else {**cluster, "spec": new_spec}


def node_pool_defaults(pool: Obj) -> Obj:
    """Return the NodePool with its defaults. Missing zones stay unset, which means all zones of the cluster."""
    new_spec = _pool_defaults(pool["spec"])
    return pool if new_spec == pool["spec"] else {**pool, "spec": new_spec}


def region_of(zone: str) -> str:
    """Return the region of a zone, which is its name up to the last hyphen: europe-west4 for europe-west4-a.

    A name without a hyphen is returned unchanged.
    """
    return zone.rpartition("-")[0] or zone


def _with_zones(pool: SpecFields, reservation_zones: Mapping[str, str], zones: list[str]) -> SpecFields:
    if pool.get("zones"):
        return pool
    zone = reservation_zones.get(pool.get("reservation") or "")
    return {**pool, "zones": zones if zone is None else [zone]}


def _pool_defaults(pool: SpecFields) -> SpecFields:
    autoscaling = pool.get("autoscaling")
    if autoscaling is None:
        return pool
    minimum_field = "totalMin" if "totalMin" in autoscaling or "totalMax" in autoscaling else "min"
    may_use_any_zone = pool.get("provisioning", "standard") != "standard"
    autoscaling = {"locationPolicy": "ANY" if may_use_any_zone else "BALANCED", minimum_field: 0, **autoscaling}
    return {"nodeCount": autoscaling.get("min", 0), **pool, "autoscaling": autoscaling}


# Defaults of Pods beyond those of pod templates: requests, host ports, and the phase Pending.
#
# The defaults shared with templates are in the field tables; a Pod created in process gets them here.
# Sources: Kubernetes's pkg/apis/core/v1/defaults.go and, for the phase, pkg/registry/core/pod/strategy.go.


_CONTAINER_FIELDS: Final = ("containers", "initContainers")
#: The field by which a spec is known to have the defaults of pod templates already.
_SECURITY_CONTEXT_FIELD: Final = "securityContext"


def pod_defaults(pod: Obj) -> Obj:
    """Return the Pod with its defaults; the same object if it has all of them."""
    sent_spec, status = pod.get("spec") or {}, pod.get("status") or {}
    spec = sent_spec if _SECURITY_CONTEXT_FIELD in sent_spec else fill_defaults("PodSpec", sent_spec)
    missing_fields: dict[str, Any] = {} if spec.get("enableServiceLinks") is not None else {"enableServiceLinks": True}
    for field in _CONTAINER_FIELDS:
        containers = spec.get(field) or ()
        if any(_missing_requests(container) for container in containers):
            missing_fields[field] = [_container_with_default_requests(container) for container in containers]
    if spec.get("hostNetwork"):
        missing_fields |= _host_network_containers({**spec, **missing_fields})
    spec = {**spec, **missing_fields} if missing_fields else spec
    defaulted_pod = pod if spec is sent_spec else {**pod, "spec": spec}
    return defaulted_pod if status.get("phase") else {**defaulted_pod, "status": {**status, "phase": "Pending"}}


def _host_network_containers(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {field: [_with_host_ports(each) for each in spec[field]] for field in _CONTAINER_FIELDS if spec.get(field)}


def _with_host_ports(container: Mapping[str, Any]) -> Mapping[str, Any]:
    ports = container.get("ports") or ()
    if all(port.get("hostPort") for port in ports):
        return container
    return {
        **container,
        "ports": [port if port.get("hostPort") else {**port, "hostPort": port["containerPort"]} for port in ports],
    }


def _container_with_default_requests(container: Mapping[str, Any]) -> Mapping[str, Any]:
    requests = _missing_requests(container)
    if not requests:
        return container
    resources = container["resources"]
    return {**container, "resources": {**resources, "requests": {**(resources.get("requests") or {}), **requests}}}


def _missing_requests(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    requests = resources.get("requests") or {}
    return {name: limit for name, limit in (resources.get("limits") or {}).items() if name not in requests}


# Defaults of PersistentVolumes, PersistentVolumeClaims and workload controllers.
#
# Source: Kubernetes's pkg/apis/core/v1/defaults.go and strategies, and pkg/apis/{apps,batch}/v1/defaults.go.


def claim_defaults(obj: Obj) -> dict[str, Any]:
    """Return the PersistentVolumeClaim with the defaults volume mode Filesystem and phase Pending."""
    spec = {"volumeMode": "Filesystem", **(obj.get("spec") or {})}
    return {**obj, "spec": spec, "status": obj.get("status") or {"phase": "Pending"}}


def volume_defaults(obj: Obj) -> dict[str, Any]:
    """Return the PersistentVolume with the defaults volume mode Filesystem, phase Pending and reclaim policy Retain."""
    defaulted_volume = claim_defaults(obj)
    return {**defaulted_volume, "spec": {"persistentVolumeReclaimPolicy": "Retain", **defaulted_volume["spec"]}}


#: The default rules of HorizontalPodAutoscalers; the controller has a default for the scale-down window.
_SCALE_UP_DEFAULTS: Final[Mapping[str, Any]] = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15},
        {"type": "Percent", "value": 100, "periodSeconds": 15},
    ],
}
_SCALE_DOWN_DEFAULTS: Final[Mapping[str, Any]] = {
    "selectPolicy": "Max",
    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
}
_CPU_METRIC: Final[Mapping[str, Any]] = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}


def autoscaler_defaults(obj: Obj) -> dict[str, Any]:
    """Return the HorizontalPodAutoscaler with one replica at least, a CPU metric, and complete scaling rules.

    Source: Kubernetes's pkg/apis/autoscaling/v2/defaults.go.
    """
    spec = {"minReplicas": 1, **(obj.get("spec") or {})}
    if not spec.get("metrics"):
        spec["metrics"] = [_CPU_METRIC]
    behavior = spec.get("behavior")
    if behavior is not None:
        spec["behavior"] = {
            **behavior,
            "scaleUp": {**_SCALE_UP_DEFAULTS, **(behavior.get("scaleUp") or {})},
            "scaleDown": {**_SCALE_DOWN_DEFAULTS, **(behavior.get("scaleDown") or {})},
        }
    return {**obj, "spec": spec}


def storage_class_defaults(obj: Obj) -> dict[str, Any]:
    """Return the StorageClass with the reclaim policy Delete and the binding mode Immediate."""
    return {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", **obj}


def flow_schema_defaults(obj: Obj) -> dict[str, Any]:
    """Return the FlowSchema with the precedence 1000."""
    spec = obj.get("spec") or {}
    return {**obj, "spec": {**spec, "matchingPrecedence": spec.get("matchingPrecedence") or 1000}}


def priority_level_defaults(obj: Obj) -> dict[str, Any]:
    """Return the PriorityLevelConfiguration with default shares and queues."""
    spec = dict(obj.get("spec") or {})
    if spec.get("exempt") is not None:
        spec["exempt"] = {"nominalConcurrencyShares": 0, "lendablePercent": 0, **spec["exempt"]}
    if spec.get("limited") is not None:
        limited = {"nominalConcurrencyShares": 30, "lendablePercent": 0, **spec["limited"]}
        response = limited.get("limitResponse") or {}
        if response.get("queuing") is not None:
            set_values = {field: value for field, value in response["queuing"].items() if value}
            queuing = {"handSize": 8, "queues": 64, "queueLengthLimit": 50, **set_values}
            limited["limitResponse"] = {**response, "queuing": queuing}
        spec["limited"] = limited
    return {**obj, "spec": spec}


_ROLLING_UPDATE_DEFAULTS: Final = {"maxSurge": "25%", "maxUnavailable": "25%"}
_CLAIM_TYPE: Final = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
_ROLLING_UPDATE_TYPE: Final = "RollingUpdate"


def deployment_defaults(obj: Obj) -> Obj:
    """Return the Deployment with its defaults, such as one replica and the strategy RollingUpdate."""
    strategy = _update_strategy_defaults(obj["spec"].get("strategy"), _ROLLING_UPDATE_DEFAULTS)
    settings = {"progressDeadlineSeconds": 600, "replicas": 1, "revisionHistoryLimit": 10}
    return _with_spec_fields(obj, settings, strategy=strategy)


def replica_set_defaults(obj: Obj) -> Obj:
    """Return the ReplicaSet with its default of one replica."""
    return _with_spec_fields(obj, {"replicas": 1})


def stateful_set_defaults(obj: Obj) -> Obj:
    """Return the StatefulSet with its defaults, such as one replica and ordered pod creation."""
    settings = {"podManagementPolicy": "OrderedReady", "replicas": 1, "revisionHistoryLimit": 10}
    retention_defaults = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    sent_policy = obj["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    claims = obj["spec"].get("volumeClaimTemplates")
    return _with_spec_fields(
        obj,
        settings,
        **({"volumeClaimTemplates": [{**_CLAIM_TYPE, **claim_defaults(claim)} for claim in claims]} if claims else {}),
        persistentVolumeClaimRetentionPolicy={**retention_defaults, **sent_policy},
        updateStrategy=_update_strategy_defaults(obj["spec"].get("updateStrategy"), {"partition": 0}),
    )


def replication_controller_defaults(obj: Obj) -> Obj:
    """Return the ReplicationController with defaults: one replica, and its template's labels as selector and labels."""
    spec = obj.get("spec") or {}
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    new_spec = {"replicas": 1, **({"selector": labels} if labels else {}), **spec}
    obj = {**obj, "spec": new_spec} if new_spec != spec else obj
    return with_metadata(obj, labels=labels) if labels and not obj["metadata"].get("labels") else obj


def daemon_set_defaults(obj: Obj) -> Obj:
    """Return the DaemonSet with its defaults for the update strategy and the revision history limit."""
    strategy = _update_strategy_defaults(obj["spec"].get("updateStrategy"), {"maxSurge": 0, "maxUnavailable": 1})
    return _with_spec_fields(obj, {"revisionHistoryLimit": 10}, updateStrategy=strategy)


def cron_job_defaults(obj: Obj) -> Obj:
    """Return the CronJob with its defaults: concurrencyPolicy Allow, not suspended, and limits of the Job history."""
    history_limits = {"failedJobsHistoryLimit": 1, "successfulJobsHistoryLimit": 3}
    return _with_spec_fields(obj, {"concurrencyPolicy": "Allow", "suspend": False, **history_limits})


def _with_spec_fields(obj: Obj, default_fields: Mapping[str, Any], **fields: Any) -> Obj:
    """Return the object with `fields` set in its spec and missing `default_fields` added; the same object if equal."""
    spec = {**default_fields, **obj["spec"], **fields}
    return {**obj, "spec": spec} if spec != obj["spec"] else obj


def _update_strategy_defaults(strategy: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    typed_strategy = {"type": _ROLLING_UPDATE_TYPE, **(strategy or {})}
    if typed_strategy["type"] != _ROLLING_UPDATE_TYPE:
        return typed_strategy
    return {**typed_strategy, "rollingUpdate": {**settings, **(typed_strategy.get("rollingUpdate") or {})}}


# Defaults of Jobs. Source: Kubernetes's pkg/apis/batch/v1/defaults.go.


_INT32_MAX: Final = 2**31 - 1


def job_defaults(job: Obj) -> Obj:
    """Return the Job with its defaults. A Job without labels gets all labels of its pod template."""
    spec = job.get("spec") or {}
    missing_fields = {field: value for field, value in _job_spec_defaults(spec).items() if spec.get(field) is None}
    failure_policy = spec.get("podFailurePolicy")
    if failure_policy and (policy_with_defaults := _pod_failure_policy_defaults(failure_policy)) is not failure_policy:
        missing_fields["podFailurePolicy"] = policy_with_defaults
    new_job = {**job, "spec": {**spec, **missing_fields}} if missing_fields else job
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    return with_metadata(new_job, labels=labels) if labels and not job["metadata"].get("labels") else new_job


def _job_spec_defaults(spec: Mapping[str, Any]) -> dict[str, Any]:
    indexes_fail_alone = spec.get("backoffLimitPerIndex") is not None
    default_fields: dict[str, Any] = {
        "parallelism": 1,
        "backoffLimit": _INT32_MAX if indexes_fail_alone else 6,
        "completionMode": "NonIndexed",
        "manualSelector": False,
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed" if spec.get("podFailurePolicy") is None else "Failed",
    }
    return default_fields if spec.get("parallelism") is not None else {"completions": 1, **default_fields}


def _pod_failure_policy_defaults(failure_policy: Mapping[str, Any]) -> Mapping[str, Any]:
    rules = failure_policy.get("rules") or []
    if all(pattern.get("status") for rule in rules for pattern in rule.get("onPodConditions") or ()):
        return failure_policy
    return {**failure_policy, "rules": [_failure_rule_defaults(rule) for rule in rules]}


def _failure_rule_defaults(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    condition_patterns = rule.get("onPodConditions")
    if not condition_patterns:
        return rule
    return {**rule, "onPodConditions": [p if p.get("status") else {**p, "status": "True"} for p in condition_patterns]}


# Defaults of LimitRanges. Source: Kubernetes's pkg/apis/core/v1/defaults.go (SetDefaults_LimitRangeItem).


def limit_range_defaults(limit_range: Obj) -> Obj:
    """Return the LimitRange with defaults for containers.

    For each resource, a missing `default` becomes `max`; a missing `defaultRequest` becomes `default` or else `min`.
    """
    limits = (limit_range.get("spec") or {}).get("limits") or []
    defaulted_limits = [_container_limit_defaults(limit) for limit in limits]
    return limit_range if defaulted_limits == limits else with_path(limit_range, ("spec", "limits"), defaulted_limits)


def _container_limit_defaults(limit: Mapping[str, Any]) -> Mapping[str, Any]:
    if limit.get("type") != "Container":
        return limit
    default_limits = {**(limit.get("max") or {}), **(limit.get("default") or {})}
    request = {**(limit.get("min") or {}), **default_limits, **(limit.get("defaultRequest") or {})}
    limit_fields = {"default": default_limits, "defaultRequest": request}
    return {**limit, **{field: value for field, value in limit_fields.items() if value}}


# Defaults of Nodes. Source: Kubernetes's pkg/apis/core/v1/defaults.go.


def node_defaults(node: Obj) -> Obj:
    """Return the Node; a missing `status.allocatable` becomes the capacity."""
    status = node.get("status") or {}
    if status.get("capacity") is None or status.get("allocatable") is not None:
        return node
    return {**node, "status": {**status, "allocatable": status["capacity"]}}


# Defaults of role bindings. Source: Kubernetes's pkg/apis/rbac/v1/defaults.go.


_RBAC_GROUP: Final = "rbac.authorization.k8s.io"


def binding_defaults(binding: Obj) -> Obj:
    """Return the RoleBinding or ClusterRoleBinding; users and groups in its subjects get the RBAC API group."""
    rbac_subjects = binding.get("subjects") or ()
    defaulted_subjects = [_subject_defaults(subject) for subject in rbac_subjects]
    return {**binding, "subjects": defaulted_subjects} if defaulted_subjects != list(rbac_subjects) else binding


def _subject_defaults(rbac_subject: Obj) -> Obj:
    if rbac_subject["kind"] not in {"User", "Group"} or rbac_subject.get("apiGroup"):
        return rbac_subject
    return {**rbac_subject, "apiGroup": _RBAC_GROUP}


# Stored form of Secrets. Source: Kubernetes's pkg/apis/core/v1/conversion.go.


def secret_defaults(secret: Obj) -> dict[str, Any]:
    """Return the Secret with its `stringData` moved to `data` in base64, where it replaces values of the same keys."""
    stored_fields = {field: value for field, value in secret.items() if field != "stringData"}
    string_data = secret.get("stringData")
    if string_data:
        encoded_data = {key: base64.b64encode(text.encode()).decode() for key, text in string_data.items()}
        stored_fields["data"] = {**(secret.get("data") or {}), **encoded_data}
    return stored_fields


Defaulter: TypeAlias = Callable[[Obj], Obj]


_DEFAULTER_BY_KIND: Final[Mapping[str, Defaulter]] = {
    **dict.fromkeys(
        (
            *(scheme.LOCAL_QUEUE, scheme.WORKLOAD, scheme.COHORT, scheme.TOPOLOGY),
            *(scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG, scheme.PREEMPTION_CONFIG),
        ),
        with_default_spec,
    ),
    scheme.CLUSTER_QUEUE: cluster_queue_defaults,
    scheme.RESOURCE_FLAVOR: with_in_use_finalizer,
    scheme.CLUSTER: cluster_defaults,
    scheme.NODE_POOL: node_pool_defaults,
    scheme.NODE: node_defaults,
    scheme.POD: pod_defaults,
    scheme.ROLE_BINDING: binding_defaults,
    scheme.CLUSTER_ROLE_BINDING: binding_defaults,
    scheme.DEPLOYMENT: deployment_defaults,
    scheme.REPLICA_SET: replica_set_defaults,
    scheme.REPLICATION_CONTROLLER: replication_controller_defaults,
    scheme.STATEFUL_SET: stateful_set_defaults,
    scheme.DAEMON_SET: daemon_set_defaults,
    scheme.CRON_JOB: cron_job_defaults,
    scheme.SECRET: secret_defaults,
    scheme.LIMIT_RANGE: limit_range_defaults,
    scheme.JOB: job_defaults,
    scheme.JOB_SET: jobset_defaults,
    scheme.HORIZONTAL_POD_AUTOSCALER: autoscaler_defaults,
    scheme.STORAGE_CLASS: storage_class_defaults,
    scheme.FLOW_SCHEMA: flow_schema_defaults,
    scheme.PRIORITY_LEVEL: priority_level_defaults,
    scheme.PERSISTENT_VOLUME: volume_defaults,
    scheme.PERSISTENT_VOLUME_CLAIM: claim_defaults,
}

_DAEMON_SET_COUNTS: Final = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
#: The initial status of kinds that batchyard has no controller for: clients that wait for a status read it.
_INITIAL_STATUS_BY_KIND: Final[Mapping[str, Obj]] = {
    scheme.DEPLOYMENT: {},
    scheme.REPLICA_SET: {"replicas": 0},
    scheme.REPLICATION_CONTROLLER: {"replicas": 0},
    scheme.STATEFUL_SET: {"availableReplicas": 0, "replicas": 0},
    scheme.DAEMON_SET: dict.fromkeys(_DAEMON_SET_COUNTS, 0),
    scheme.CRON_JOB: {},
    scheme.HORIZONTAL_POD_AUTOSCALER: {"desiredReplicas": 0},
    scheme.INGRESS: {"loadBalancer": {}},
    scheme.SERVICE: {"loadBalancer": {}},
    scheme.FLOW_SCHEMA: {},
    scheme.PRIORITY_LEVEL: {},
}


#: Kinds whose objects always have a spec, because Go writes an empty struct.
_KINDS_WITH_SPEC: Final = frozenset(
    {scheme.NODE, scheme.RESOURCE_QUOTA, scheme.POD_DISRUPTION_BUDGET, scheme.LEASE, scheme.NETWORK_POLICY}
)


def with_defaults(obj: Obj) -> dict[str, Any]:
    """Return the object with the defaults of its kind and, for some kinds without a controller, an initial status."""
    kind = group_kind(obj)
    if kind in _KINDS_WITH_SPEC and obj.get("spec") is None:
        obj = {**obj, "spec": {}}
    apply_defaults, initial_status = _DEFAULTER_BY_KIND.get(kind), _INITIAL_STATUS_BY_KIND.get(kind)
    defaulted_object = apply_defaults(obj) if apply_defaults else obj
    if initial_status is not None and defaulted_object.get("status") is None:
        return {**defaulted_object, "status": initial_status}
    return defaulted_object if isinstance(defaulted_object, dict) else dict(defaulted_object)
