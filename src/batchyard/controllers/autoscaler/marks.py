"""What the autoscaler writes on nodes: the taints of those that nobody needs, and of those that go.

Their values are the seconds since when, so that the autoscaler need not remember it. Source:
kubernetes-sigs/cluster-autoscaler, pkg/utils/taints.
"""

from collections.abc import Sequence
from typing import Any

from batchyard.api import well_known
from batchyard.api.meta import Obj, with_path
from batchyard.base.instant import SECOND, Instant


def marked_unneeded(node: Obj, now: Instant) -> Obj:
    """The node, which pods had better avoid."""
    return _tainted(node, well_known.DELETION_CANDIDATE, "PreferNoSchedule", now)


def marked_needed(node: Obj) -> Obj:
    """The node as any other."""
    return _without(node, (well_known.DELETION_CANDIDATE,))


def marked_going(node: Obj, now: Instant) -> Obj:
    """The node, to which no pods come any more."""
    return _tainted(node, well_known.TO_BE_DELETED, "NoSchedule", now)


def marked_staying(node: Obj) -> Obj:
    """A node that was to go, and stays."""
    return _without(node, (well_known.TO_BE_DELETED, well_known.DELETION_CANDIDATE))


def _tainted(node: Obj, key: str, effect: str, now: Instant) -> Obj:
    taints: Sequence[Any] = (node.get("spec") or {}).get("taints") or ()
    taint = {"key": key, "value": str(now // SECOND), "effect": effect}
    return with_path(node, ("spec", "taints"), [*taints, taint])


def _without(node: Obj, keys: Sequence[str]) -> Obj:
    taints: Sequence[Any] = (node.get("spec") or {}).get("taints") or ()
    return with_path(node, ("spec", "taints"), [taint for taint in taints if taint["key"] not in keys] or None)
