"""What a flavor's nodes have in common: labels and taints of its pools, beside what is said of it.

Of the labels that nodes have anyway those count that tell accelerators and the terms on which machines are had; of
taints, those that keep pods away, but for the one of queued provisioning, which requests for capacity tolerate.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from batchyard.api import well_known
from batchyard.api.meta import Obj
from batchyard.core.machines.nodes import node_template
from batchyard.core.machines.pools import zones_of
from batchyard.plan.model import Flavor, Part, Platform

#: Labels of the system that say what nodes are.
_TELLING: Final = (
    well_known.ACCELERATOR,
    well_known.TPU_ACCELERATOR,
    well_known.TPU_TOPOLOGY,
    well_known.PROVISIONING,
)
_KEEPING_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})


def node_labels(flavor: Flavor, platform: Platform) -> Mapping[str, str]:
    """The nodeLabels of a flavor: those all nodes of its pools have, and those it names.

    Where nodes of other pools would have them too, and the flavor is of one pool, its name is among them.
    """
    if not flavor.pools:
        return flavor.node_labels
    nodes = _nodes(platform)
    own = [nodes[name] for name in flavor.pools]
    others = [node for name, node in nodes.items() if name not in flavor.pools]
    keys = {*_TELLING, *(key for row in platform.node_pools for key in row.get("labels") or ())}
    common = {key: value for key, value in _labels(own[0]).items() if key in keys}
    common = {key: value for key, value in common.items() if all(_labels(node).get(key) == value for node in own)}
    found = {**common, **flavor.node_labels}
    if len(own) == 1 and any(found.items() <= _labels(node).items() for node in others):
        found = {**found, well_known.NODE_POOL: flavor.pools[0]}
    return dict(sorted(found.items()))


def node_taints(flavor: Flavor, platform: Platform) -> Sequence[Part]:
    """The nodeTaints of a flavor: those all nodes of its pools have, and those it names."""
    if not flavor.pools:
        return flavor.node_taints
    nodes = _nodes(platform)
    own = [nodes[name]["spec"]["taints"] for name in flavor.pools]
    common = [taint for taint in own[0] if all(taint in taints for taints in own)]
    named = [(taint["key"], taint["effect"]) for taint in flavor.node_taints]
    kept = [
        taint
        for taint in common
        if taint["effect"] in _KEEPING_AWAY
        and taint["key"] != well_known.QUEUED
        and (taint["key"], taint["effect"]) not in named
    ]
    return sorted([*kept, *flavor.node_taints], key=lambda taint: (taint["key"], taint["effect"]))


def _labels(node: Obj) -> Mapping[str, str]:
    labels: Mapping[str, str] = node["metadata"]["labels"]
    return labels


def _nodes(platform: Platform) -> Mapping[str, Obj]:
    """A node of each pool, by the pool's name."""
    cluster = platform.cluster
    if cluster is None:
        return {}
    pools = [{"metadata": {"name": row["name"]}, "spec": row} for row in platform.node_pools]
    return {pool["metadata"]["name"]: node_template(pool, zones_of(pool, cluster)[0], cluster) for pool in pools}
