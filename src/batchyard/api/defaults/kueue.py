"""Defaults of JobSets and of Kueue's kinds. Source: JobSet's webhook. A JobSet's Jobs get their own on creation."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.api import well_known
from batchyard.api.meta import Obj, group_kind, with_finalizer
from batchyard.api.schema import settle
from batchyard.api.scheme import kind_info


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
