"""Which of the nodes that a pod fits is best: kube-scheduler's scores with their weights.

Scores of resources stand for themselves (batchyard.core.placement.resources). The others are brought to 0..100 over
the nodes that are compared. Source: kube-scheduler's plugins tainttoleration, nodeaffinity, interpodaffinity and
podtopologyspread, apis/config/v1/default_plugins.go, framework/plugins/helper/normalize_score.go.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from batchyard.core.placement.affinity import Domain
from batchyard.core.placement.node import Node

_MAX: Final = 100
_TAINT_TOLERATION: Final = 3
_NODE_AFFINITY: Final = 2
_TOPOLOGY_SPREAD: Final = 2
_POD_AFFINITY: Final = 2


def add_preferences(totals: dict[str, int], preferences: Mapping[str, int]) -> None:
    """Preferred node affinity: the more the better."""
    top = max([preferences.get(name, 0) for name in totals], default=0)
    if top:
        for name in totals:
            totals[name] += _NODE_AFFINITY * (_MAX * preferences.get(name, 0) // top)


def add_aversions(totals: dict[str, int], aversions: Mapping[str, int]) -> None:
    """Taints that would rather not have the pod: the fewer the better."""
    top = max([aversions.get(name, 0) for name in totals], default=0)
    if top:
        for name in totals:
            totals[name] += _TAINT_TOLERATION * (_MAX - _MAX * aversions.get(name, 0) // top)


def add_attraction(totals: dict[str, int], nodes: Sequence[Node], drawn: Mapping[Domain, int]) -> None:
    """Pod affinity: what the domains of a node draw, from the least to the most."""
    keys = list(dict.fromkeys(key for key, _ in drawn))
    sums = {n.name: sum(drawn.get((key, n.view.labels.get(key, "")), 0) for key in keys) for n in nodes}
    low, high = min(sums.values()), max(sums.values())
    if high > low:
        for name, amount in sums.items():
            totals[name] += _POD_AFFINITY * int(_MAX * ((amount - low) / (high - low)))


def add_crowding(totals: dict[str, int], crowds: Mapping[str, int]) -> None:
    """Topology spread: the less crowded the better; nodes without the topology keys get nothing."""
    low, high = min(crowds.values(), default=0), max(crowds.values(), default=0)
    for name, crowd in crowds.items():
        totals[name] += _TOPOLOGY_SPREAD * (_MAX * (high + low - crowd) // high if high else _MAX)
