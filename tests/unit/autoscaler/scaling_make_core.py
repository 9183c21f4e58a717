"""Clusters, pools and pods for tests of scaling, by keyword."""

from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.expander import Backoff, NodeGroupsState
from batchyard.autoscaler.node_groups import ClusterLimits, GroupName, NodeGroup, groups_of, settings_of
from batchyard.autoscaler.scale_up import LoopContext, NewPoolPlanner, ScaleUp
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from unit.autoscaler.scaling_make import ZONES, pod
from unit.placement.placement_make import view

Obj = dict[str, Any]

A, B, C = ZONES


def cluster(**spec: Any) -> Obj:
    """A Cluster in three zones; keywords are fields of its spec."""
    return {
        "apiVersion": "cloud.batchyard.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": make.metadata("batch", None),
        "spec": {"region": "us-central1", "zones": list(ZONES), **spec},
    }


def pool(name: str = "pool", machine: str = "e2-standard-4", most: int = 10, **spec: Any) -> Obj:
    """A NodePool in all zones that grows to this number of nodes in each."""
    bounds = {"min": 0, "max": most, "locationPolicy": spec.pop("policy", "BALANCED"), **spec.pop("bounds", {})}
    return {
        "apiVersion": "cloud.batchyard.dev/v1alpha1",
        "kind": "NodePool",
        "metadata": make.metadata(name, None),
        "spec": {"machineType": machine, "autoscaling": bounds, **spec},
    }


def groups(*pools: Obj, **spec: Any) -> list[NodeGroup]:
    """The groups of pools; keywords are fields of the cluster spec."""
    return [group for each in pools for group in groups_of(each, cluster(**spec))]


def fleet(
    found: Sequence[NodeGroup],
    sizes: Mapping[str, int] | None = None,
    backoffs: Mapping[str, Backoff] | None = None,
    leaving: Mapping[str, int] | None = None,
) -> NodeGroupsState:
    """The state of groups; sizes are by zone and apply to every pool."""
    by_name = {group.name: (sizes or {}).get(group.name.zone, 0) for group in found}
    going: dict[GroupName, int] = {group.name: (leaving or {}).get(group.name.zone, 0) for group in found}
    return NodeGroupsState(found, by_name, going, backoffs or {})


def planner(
    found: Sequence[NodeGroup],
    nodes: ClusterSnapshot | None = None,
    new_pools: NewPoolPlanner | None = None,
    **spec: Any,
) -> ScaleUp:
    """A scale-up without existing nodes, in its own what-if block; keywords are fields of the cluster spec."""
    whole = cluster(**spec)
    settings = settings_of(whole)
    limits = ClusterLimits(settings.limits, {})
    tried = nodes or ClusterSnapshot()
    tried.begin_trial()
    return ScaleUp(tried, fleet(found), limits, LoopContext(whole, settings, make.NOW), new_pools)


def views(*names: str, **fields: Any) -> list[PodView]:
    """The views of pods that differ only in their names."""
    return [view(pod(name, **fields)) for name in names]


def node_counts(scale_up: ScaleUp) -> dict[str, int]:
    """The number of new nodes of each pool."""
    result: dict[str, int] = {}
    for group, count in scale_up.increases.items():
        result[group.name.pool] = result.get(group.name.pool, 0) + count
    return result
