"""Defaults of Clusters and their NodePools, beyond those of their fields.

What depends on nothing else has its default in the field table. Source: GKE, whose pools lie in all zones of their
cluster, and take Spot machines and others that may run out from whatever zone has some.
"""

from collections.abc import Mapping
from typing import Any

from batchyard.api.meta import Obj

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
