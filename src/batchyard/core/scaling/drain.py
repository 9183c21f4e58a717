"""What becomes of the pods of a node that is to go.

Source: kubernetes-sigs/cluster-autoscaler, pkg/simulator/drainability/rules. As on GKE, volumes on the node's disk
keep no node. What disruption budgets say comes last: a pod that says itself that it may go is not asked about them.
"""

from enum import Enum, auto
from typing import Final

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation, controller_of
from batchyard.api.times import parse_time
from batchyard.api.views.pod import grace_period
from batchyard.base.instant import SECOND, Instant

_MIRROR: Final = "kubernetes.io/config.mirror"
_SYSTEM_NAMESPACE: Final = "kube-system"
#: A pod that has not stopped so long after it should have, and its own time to stop once more, does not count any more.
_LATE: Final = 30 * SECOND


class Drain(Enum):
    """What a pod means for its node."""

    #: It finds another node, or its controller makes another pod.
    MOVES = auto()
    #: It goes with the node.
    STAYS = auto()
    #: The node goes when it has ended, and not before.
    WAITS = auto()
    #: The node has to stay.
    BLOCKS = auto()


_SAFE: Final = {"true": Drain.MOVES, "on-completion": Drain.WAITS}


def drain_of(pod: Obj, now: Instant, *, is_guarded: bool = False) -> Drain:
    """What a pod means for its node; one is guarded of whose disruption budget nothing is left."""
    deleted = pod["metadata"].get("deletionTimestamp")
    grace = grace_period(pod["spec"]) * SECOND
    if deleted is not None and parse_time(deleted) + grace + _LATE < now:
        return Drain.STAYS
    owner, safe = controller_of(pod), annotation(pod, well_known.SAFE_TO_EVICT)
    if annotation(pod, _MIRROR) is not None or (owner is not None and owner.get("kind") == "DaemonSet"):
        return Drain.STAYS
    if safe in _SAFE:
        return _SAFE[safe]
    is_kept = owner is None or safe == "false" or pod["metadata"].get("namespace") == _SYSTEM_NAMESPACE
    return Drain.BLOCKS if is_kept or is_guarded else Drain.MOVES
