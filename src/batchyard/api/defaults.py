"""Defaults of objects on creation, beyond those of a schema.

Objects are never changed in place; an object that needs no defaults is returned itself. The defaults of pod templates
are in the field tables (batchyard.api.schema). Pods get more on creation, and Jobs get Kueue's
(batchyard.admission_plugins.built_in).
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, group_kind, with_finalizer, with_metadata, with_path
from batchyard.api.schema import completed, settle
from batchyard.api.scheme import kind_info

# --- kueue ---
#
# Defaults of JobSets and of Kueue's kinds. Source: JobSet's webhook. A JobSet's Jobs get their own on creation.


def jobset_defaults(jobset: Obj) -> Obj:
    """Return a JobSet with its defaults."""
    spec = jobset.get("spec") or {}
    done = dict(_filled(spec, successPolicy={"operator": "All"}, startupPolicy={"startupPolicyOrder": "AnyOrder"}))
    done["network"] = _filled(spec.get("network") or {}, enableDNSHostnames=True, publishNotReadyAddresses=True)
    done["replicatedJobs"] = [_replicated_job(each) for each in spec.get("replicatedJobs") or ()]
    if failure := spec.get("failurePolicy"):
        done["failurePolicy"] = _failure_policy(failure)
    if claims := spec.get("volumeClaimPolicies"):
        done["volumeClaimPolicies"] = [_filled(each, retentionPolicy={"whenDeleted": "Delete"}) for each in claims]
    return jobset if done == spec else {**jobset, "spec": done}


def _filled(fields: Mapping[str, Any], **defaults: Any) -> Mapping[str, Any]:
    """Return the fields, with defaults for missing values."""
    missing = {name: value for name, value in defaults.items() if fields.get(name) is None}
    return {**fields, **missing} if missing else fields


def _replicated_job(replicated: Mapping[str, Any]) -> Mapping[str, Any]:
    """Set the defaults of a replicated Job: Indexed, and restartPolicy OnFailure."""
    template = replicated.get("template") or {}
    spec = template.get("spec") or {}
    pod = spec.get("template") or {}
    pod_spec = pod.get("spec") or {}
    if spec.get("completionMode") is not None and pod_spec.get("restartPolicy"):
        return replicated
    pod = {**pod, "spec": _filled(pod_spec, restartPolicy="OnFailure")}
    spec = {**_filled(spec, completionMode="Indexed"), "template": pod}
    return {**replicated, "template": {**template, "spec": spec}}


def _failure_policy(policy: Mapping[str, Any]) -> Mapping[str, Any]:
    """Set the defaults of a failure policy: the restart strategy, and names of rules."""
    rules: Sequence[Mapping[str, Any]] = policy.get("rules") or ()
    filled = _filled(policy, restartStrategy="Recreate")
    if all(rule.get("name") for rule in rules):
        return filled
    named = [rule if rule.get("name") else {**rule, "name": f"failurePolicyRule{i}"} for i, rule in enumerate(rules)]
    return {**filled, "rules": named}


# --- queues ---
#
# Defaults of Kueue's own kinds. Source: Kueue's ClusterQueue and ResourceFlavor webhooks.


def with_in_use_finalizer(obj: Obj) -> Obj:
    """Add the resource-in-use finalizer, unless the object is being deleted."""
    if "deletionTimestamp" in obj["metadata"]:
        return obj
    return with_finalizer(obj, well_known.RESOURCE_IN_USE)


def with_spec(obj: Obj) -> Obj:
    """Return the object with a spec; a missing one gets the defaults of its fields if none is required."""
    if "spec" in obj:
        return obj
    info, empty = kind_info(group_kind(obj)), {**obj, "spec": {}}
    return settle(info, info.storage_version, empty).obj or empty


def cluster_queue(obj: Obj) -> Obj:
    """Return a ClusterQueue with a spec and the resource-in-use finalizer."""
    return with_in_use_finalizer(with_spec(obj))


# --- cloud ---
#
# Defaults of Clusters and NodePools beyond those of their fields.
#
# Constant defaults are in the field table. Source: GKE, whose pools span all zones of their cluster. Spot machines and
# others with limited supply are taken from any zone that has capacity.


Spec = Mapping[str, Any]


def cluster_defaults(cluster: Obj) -> Obj:
    """Set the region of a Cluster and the zones of its pools: the zone of the reservation if a pool has one."""
    spec = cluster["spec"]
    reserved = {each["name"]: each["zone"] for each in spec.get("reservations") or ()}
    done = {"region": region_of(spec["zones"][0]), **spec}
    if spec.get("nodePools"):
        done["nodePools"] = [_placed(_pool_defaults(pool), reserved, spec["zones"]) for pool in spec["nodePools"]]
    return cluster if done == spec else {**cluster, "spec": done}


def node_pool_defaults(pool: Obj) -> Obj:
    """Return a NodePool with its defaults. Missing zones stay unset: they follow those of its cluster."""
    done = _pool_defaults(pool["spec"])
    return pool if done == pool["spec"] else {**pool, "spec": done}


def region_of(zone: str) -> str:
    """Return the region of a zone: its name without the last part."""
    return zone.rpartition("-")[0] or zone


def _placed(pool: Spec, reserved: Mapping[str, str], zones: list[str]) -> Spec:
    """Return a pool of a cluster with its zones set."""
    if pool.get("zones"):
        return pool
    zone = reserved.get(pool.get("reservation") or "")
    return {**pool, "zones": zones if zone is None else [zone]}


def _pool_defaults(pool: Spec) -> Spec:
    """Return an autoscaled pool with its initial node count, its minimum, and its location policy."""
    autoscaling = pool.get("autoscaling")
    if autoscaling is None:
        return pool
    lowest = "totalMin" if "totalMin" in autoscaling or "totalMax" in autoscaling else "min"
    anywhere = pool.get("provisioning", "standard") != "standard"
    autoscaling = {"locationPolicy": "ANY" if anywhere else "BALANCED", lowest: 0, **autoscaling}
    return {"nodeCount": autoscaling.get("min", 0), **pool, "autoscaling": autoscaling}


# --- pod ---
#
# Defaults of Pods beyond those of pod templates: requests, host ports, and the phase Pending.
#
# The defaults shared with templates are in the field tables; a Pod created in process gets them here.
# Sources: Kubernetes's pkg/apis/core/v1/defaults.go and, for the phase, pkg/registry/core/pod/strategy.go.


_CONTAINERS: Final = ("containers", "initContainers")
# --- kubernetes ---
#
# Defaults of Kubernetes's own kinds. Source: Kubernetes's pkg/apis/{apps,batch}/v1/defaults.go.


#: A spec that already has the defaults of templates has this field.
_OF_COMPLETE: Final = "securityContext"


def pod_defaults(pod: Obj) -> Obj:
    """Return a Pod with its defaults; the same object if it has all of them."""
    given, status = pod.get("spec") or {}, pod.get("status") or {}
    spec = given if _OF_COMPLETE in given else completed("PodSpec", given)
    missing: dict[str, Any] = {} if spec.get("enableServiceLinks") is not None else {"enableServiceLinks": True}
    for field in _CONTAINERS:
        containers = spec.get(field) or ()
        if any(_missing_requests(container) for container in containers):
            missing[field] = [_requesting(container) for container in containers]
    if spec.get("hostNetwork"):
        missing |= _on_host({**spec, **missing})
    spec = {**spec, **missing} if missing else spec
    done = pod if spec is given else {**pod, "spec": spec}
    return done if status.get("phase") else {**done, "status": {**status, "phase": "Pending"}}


def _on_host(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the containers of a Pod on the host network, with host ports equal to their container ports."""
    return {field: [_with_host_ports(each) for each in spec[field]] for field in _CONTAINERS if spec.get(field)}


def _with_host_ports(container: Mapping[str, Any]) -> Mapping[str, Any]:
    ports = container.get("ports") or ()
    if all(port.get("hostPort") for port in ports):
        return container
    return {**container, "ports": [{"hostPort": port["containerPort"], **port} for port in ports]}


def _requesting(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a container whose missing requests are set to its limits."""
    missing = _missing_requests(container)
    if not missing:
        return container
    resources = container["resources"]
    return {**container, "resources": {**resources, "requests": {**(resources.get("requests") or {}), **missing}}}


def _missing_requests(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of resources that a container does not request."""
    resources = container.get("resources") or {}
    requests = resources.get("requests") or {}
    return {name: limit for name, limit in (resources.get("limits") or {}).items() if name not in requests}


# --- volumes ---
#
# Defaults of PersistentVolumes and PersistentVolumeClaims. Source: Kubernetes's pkg/apis/core/v1/defaults.go and
# strategies.


def claim_defaults(obj: Obj) -> dict[str, Any]:
    """Set the defaults of a claim; its phase is Pending."""
    spec = {"volumeMode": "Filesystem", **(obj.get("spec") or {})}
    return {**obj, "spec": spec, "status": obj.get("status") or {"phase": "Pending"}}


def volume_defaults(obj: Obj) -> dict[str, Any]:
    """Set the defaults of a volume; its reclaim policy is Retain."""
    done = claim_defaults(obj)
    return {**done, "spec": {"persistentVolumeReclaimPolicy": "Retain", **done["spec"]}}


_QUARTER: Final = {"maxSurge": "25%", "maxUnavailable": "25%"}
_CLAIM: Final = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
_ROLLING: Final = "RollingUpdate"


def deployment_defaults(obj: Obj) -> Obj:
    """Set the defaults of a Deployment."""
    strategy = _rolling(obj["spec"].get("strategy"), _QUARTER)
    settings = {"progressDeadlineSeconds": 600, "replicas": 1, "revisionHistoryLimit": 10}
    return _with_spec(obj, settings, strategy=strategy)


def replica_set_defaults(obj: Obj) -> Obj:
    """Set the defaults of a ReplicaSet."""
    return _with_spec(obj, {"replicas": 1})


def stateful_set_defaults(obj: Obj) -> Obj:
    """Set the defaults of a StatefulSet."""
    settings = {"podManagementPolicy": "OrderedReady", "replicas": 1, "revisionHistoryLimit": 10}
    retention = {"whenDeleted": "Retain", "whenScaled": "Retain"}
    given = obj["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    claims = obj["spec"].get("volumeClaimTemplates")
    return _with_spec(
        obj,
        settings,
        **({"volumeClaimTemplates": [{**_CLAIM, **claim_defaults(claim)} for claim in claims]} if claims else {}),
        persistentVolumeClaimRetentionPolicy={**retention, **given},
        updateStrategy=_rolling(obj["spec"].get("updateStrategy"), {"partition": 0}),
    )


def replication_controller_defaults(obj: Obj) -> Obj:
    """Set the defaults of a ReplicationController: selector and labels are those of its template."""
    spec = obj.get("spec") or {}
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    done = {"replicas": 1, **({"selector": labels} if labels else {}), **spec}
    obj = {**obj, "spec": done} if done != spec else obj
    return with_metadata(obj, labels=labels) if labels and not obj["metadata"].get("labels") else obj


def daemon_set_defaults(obj: Obj) -> Obj:
    """Set the defaults of a DaemonSet."""
    strategy = _rolling(obj["spec"].get("updateStrategy"), {"maxSurge": 0, "maxUnavailable": 1})
    return _with_spec(obj, {"revisionHistoryLimit": 10}, updateStrategy=strategy)


def cron_job_defaults(obj: Obj) -> Obj:
    """Set the defaults of a CronJob."""
    limits = {"failedJobsHistoryLimit": 1, "successfulJobsHistoryLimit": 3}
    return _with_spec(obj, {"concurrencyPolicy": "Allow", "suspend": False, **limits})


def _with_spec(obj: Obj, missing: Mapping[str, Any], **fields: Any) -> Obj:
    """Return the object with `fields` set in its spec, and `missing` where absent; itself if nothing changes."""
    spec = {**missing, **obj["spec"], **fields}
    return {**obj, "spec": spec} if spec != obj["spec"] else obj


def _rolling(strategy: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the update strategy: a rolling update with these settings, unless another type is named."""
    given = {"type": _ROLLING, **(strategy or {})}
    if given["type"] != _ROLLING:
        return given
    return {**given, "rollingUpdate": {**settings, **(given.get("rollingUpdate") or {})}}


# --- job ---
#
# Defaults of Jobs. Source: Kubernetes's pkg/apis/batch/v1/defaults.go.


_INT32_MAX: Final = 2**31 - 1


def job_defaults(job: Obj) -> Obj:
    """Return a Job with its defaults. A Job without labels gets those of its pod template, including the queue."""
    spec = job.get("spec") or {}
    missing = {field: value for field, value in _spec_defaults(spec).items() if spec.get(field) is None}
    policy = spec.get("podFailurePolicy")
    if policy and (complete := _policy_defaults(policy)) is not policy:
        missing["podFailurePolicy"] = complete
    done = {**job, "spec": {**spec, **missing}} if missing else job
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    return with_metadata(done, labels=labels) if labels and not job["metadata"].get("labels") else done


def _spec_defaults(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a Job's spec; completions only if no other field determines them."""
    indexes_fail_alone = spec.get("backoffLimitPerIndex") is not None
    defaults: dict[str, Any] = {
        "parallelism": 1,
        "backoffLimit": _INT32_MAX if indexes_fail_alone else 6,
        "completionMode": "NonIndexed",
        "manualSelector": False,
        "suspend": False,
        "podReplacementPolicy": "TerminatingOrFailed" if spec.get("podFailurePolicy") is None else "Failed",
    }
    return defaults if spec.get("parallelism") is not None else {"completions": 1, **defaults}


def _policy_defaults(policy: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pod failure policy with a status in each pattern of conditions."""
    rules = policy.get("rules") or []
    if all(pattern.get("status") for rule in rules for pattern in rule.get("onPodConditions") or ()):
        return policy
    return {**policy, "rules": [_rule_defaults(rule) for rule in rules]}


def _rule_defaults(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a rule with a status in each pattern of conditions."""
    patterns = rule.get("onPodConditions")
    if not patterns:
        return rule
    return {**rule, "onPodConditions": [p if p.get("status") else {**p, "status": "True"} for p in patterns]}


# --- limit range ---
#
# Defaults of LimitRanges. Source: Kubernetes's pkg/apis/core/v1/defaults.go (SetDefaults_LimitRangeItem).


def limit_range_defaults(limit_range: Obj) -> Obj:
    """Set the container defaults of a LimitRange: the default limit is the maximum, the default request the limit."""
    limits = (limit_range.get("spec") or {}).get("limits") or []
    done = [_complete(limit) for limit in limits]
    return limit_range if done == limits else with_path(limit_range, ("spec", "limits"), done)


def _complete(limit: Mapping[str, Any]) -> Mapping[str, Any]:
    if limit.get("type") != "Container":
        return limit
    default = {**(limit.get("max") or {}), **(limit.get("default") or {})}
    request = {**(limit.get("min") or {}), **default, **(limit.get("defaultRequest") or {})}
    defaults = {"default": default, "defaultRequest": request}
    return {**limit, **{field: value for field, value in defaults.items() if value}}


# --- node ---
#
# Defaults of Nodes. Source: Kubernetes's pkg/apis/core/v1/defaults.go.


def node_defaults(node: Obj) -> Obj:
    """Set the allocatable resources of a Node to its capacity if they are missing."""
    status = node.get("status") or {}
    if status.get("capacity") is None or status.get("allocatable") is not None:
        return node
    return {**node, "status": {**status, "allocatable": status["capacity"]}}


# --- rbac ---
#
# Defaults of role bindings. Source: Kubernetes's pkg/apis/rbac/v1/defaults.go.


_GROUP: Final = "rbac.authorization.k8s.io"


def binding_defaults(binding: Obj) -> Obj:
    """Set the API group of users and groups."""
    subjects = binding.get("subjects") or ()
    completed = [_completed(subject) for subject in subjects]
    return {**binding, "subjects": completed} if completed != list(subjects) else binding


def _completed(subject: Obj) -> Obj:
    if subject["kind"] not in {"User", "Group"} or subject.get("apiGroup"):
        return subject
    return {**subject, "apiGroup": _GROUP}


# --- secret ---
#
# Stored form of Secrets. Source: Kubernetes's pkg/apis/core/v1/conversion.go.


def secret_defaults(secret: Obj) -> dict[str, Any]:
    """Merge `stringData` into `data`, where it takes precedence; `stringData` itself is never stored."""
    kept = {field: value for field, value in secret.items() if field != "stringData"}
    texts = secret.get("stringData")
    if texts:
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        kept["data"] = {**(secret.get("data") or {}), **encoded}
    return kept


Default: TypeAlias = Callable[[Obj], Obj]


_DEFAULTS: Final[Mapping[str, Default]] = {
    **dict.fromkeys(
        (
            *(scheme.LOCAL_QUEUE, scheme.WORKLOAD, scheme.COHORT, scheme.TOPOLOGY),
            *(scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG),
        ),
        with_spec,
    ),
    scheme.CLUSTER_QUEUE: cluster_queue,
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
    scheme.PERSISTENT_VOLUME: volume_defaults,
    scheme.PERSISTENT_VOLUME_CLAIM: claim_defaults,
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
