"""Defaults of JobSets. Source: JobSet's webhook; the Jobs it makes get the defaults of Jobs when they are made."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.api import well_known
from batchyard.api.meta import Obj, group_kind, with_finalizer
from batchyard.api.schema import settle
from batchyard.api.scheme import kind_info


def jobset_defaults(jobset: Obj) -> Obj:
    """A JobSet with its defaults."""
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
    """The fields, with defaults where there is no value."""
    missing = {name: value for name, value in defaults.items() if fields.get(name) is None}
    return {**fields, **missing} if missing else fields


def _replicated_job(replicated: Mapping[str, Any]) -> Mapping[str, Any]:
    """A replicated Job that is Indexed and whose containers restart, unless it says otherwise."""
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
    """A failure policy that says how to restart, and whose rules have names."""
    rules: Sequence[Mapping[str, Any]] = policy.get("rules") or ()
    filled = _filled(policy, restartStrategy="Recreate")
    if all(rule.get("name") for rule in rules):
        return filled
    named = [rule if rule.get("name") else {**rule, "name": f"failurePolicyRule{i}"} for i, rule in enumerate(rules)]
    return {**filled, "rules": named}


# --- queues ---
#
# Defaults of Kueue's own kinds. Source: Kueue's ClusterQueue and ResourceFlavor webhooks.


def in_use(obj: Obj) -> Obj:
    """The object kept from vanishing while something uses it; one that is to go is let go by whoever kept it."""
    if "deletionTimestamp" in obj["metadata"]:
        return obj
    return with_finalizer(obj, well_known.RESOURCE_IN_USE)


def specified(obj: Obj) -> Obj:
    """The object with a spec, which may be left out; with the defaults of its fields, if none of them must be said."""
    if "spec" in obj:
        return obj
    info, empty = kind_info(group_kind(obj)), {**obj, "spec": {}}
    return settle(info, info.storage_version, empty).obj or empty


def cluster_queue(obj: Obj) -> Obj:
    """A ClusterQueue with a spec, kept from vanishing while something uses it."""
    return in_use(specified(obj))


# --- cloud ---
#
# Defaults of Clusters and their NodePools, beyond those of their fields.
#
# What depends on nothing else has its default in the field table. Source: GKE, whose pools lie in all zones of their
# cluster, and take Spot machines and others that may run out from whatever zone has some.


Spec = Mapping[str, Any]


def cluster_defaults(cluster: Obj) -> Obj:
    """A Cluster that says its region, and where each of its pools lies: with its reservation if it has one."""
    spec = cluster["spec"]
    reserved = {each["name"]: each["zone"] for each in spec.get("reservations") or ()}
    done = {"region": region_of(spec["zones"][0]), **spec}
    if spec.get("nodePools"):
        done["nodePools"] = [_placed(_pool_defaults(pool), reserved, spec["zones"]) for pool in spec["nodePools"]]
    return cluster if done == spec else {**cluster, "spec": done}


def node_pool_defaults(pool: Obj) -> Obj:
    """A NodePool with its defaults. Where it says no zones it lies in those of its cluster, which may change."""
    done = _pool_defaults(pool["spec"])
    return pool if done == pool["spec"] else {**pool, "spec": done}


def region_of(zone: str) -> str:
    """The region of a zone: all but the last part of its name."""
    return zone.rpartition("-")[0] or zone


def _placed(pool: Spec, reserved: Mapping[str, str], zones: list[str]) -> Spec:
    """A pool of a cluster that says its zones."""
    if pool.get("zones"):
        return pool
    zone = reserved.get(pool.get("reservation") or "")
    return {**pool, "zones": zones if zone is None else [zone]}


def _pool_defaults(pool: Spec) -> Spec:
    """A pool that says how many nodes it begins with and is never below, if it grows and shrinks."""
    autoscaling = pool.get("autoscaling")
    if autoscaling is None:
        return pool
    lowest = "totalMin" if "totalMin" in autoscaling or "totalMax" in autoscaling else "min"
    anywhere = pool.get("provisioning", "standard") != "standard"
    autoscaling = {"locationPolicy": "ANY" if anywhere else "BALANCED", lowest: 0, **autoscaling}
    return {"nodeCount": autoscaling.get("min", 0), **pool, "autoscaling": autoscaling}
