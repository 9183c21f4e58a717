"""Node capacity: what the autoscaler reports about pods without a node, and what it waits for."""

from collections.abc import Sequence
from typing import Final

from batchyard.api.times import format_time
from batchyard.autoscaler.controller import Autoscaler
from batchyard.autoscaler.expander import Backoff
from batchyard.autoscaler.index import ScalingIndex
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.autoscaler.node_groups_state import FULL, IN_BACKOFF
from batchyard.base.instant import Instant
from batchyard.placement.controller import PlacementController

STOCK_OUT: Final = "stockOut"
CLOUD_QUOTA: Final = "cloudQuota"
LIMITS: Final = "autoscalerLimits"
BOOTING: Final = "booting"
CAPACITY: Final = "nodeCapacity"
TOPOLOGY: Final = "topology"
TAINT: Final = "taint"
AFFINITY: Final = "affinity"
#: Parts of kube-scheduler's messages: a node that fails one of the last filters has room.
_APART: Final = (
    "without room for the whole Job",
    "anti-affinity rules",
    "pod affinity rules",
    "topology spread constraints",
)
_TAKEN: Final = ("Insufficient", "Too many pods", FULL)
_TRIGGERED: Final = "pod triggered scale-up"
_LIMITED: Final = "exceeded quota"
_QUOTA_EXCEEDED: Final = "QUOTA_EXCEEDED"
_SHOWN_MAX: Final = 5


def limit_among_nodes(scheduler: str, autoscaler: str, *, is_selected: bool) -> str:
    """Return the limit behind both messages about a pod. `is_selected`: a node has the labels that it selects."""
    if any(words in scheduler for words in _APART):
        return TOPOLOGY
    if any(words in text for words in _TAKEN for text in (scheduler, autoscaler)):
        return CAPACITY
    if "untolerated taint" in scheduler and is_selected:
        return TAINT
    return AFFINITY if "node affinity/selector" in scheduler else CAPACITY


class NodeCapacityView:
    """The autoscaler's state and the simulated placement, for questions about pods without a node."""

    def __init__(self, index: ScalingIndex, autoscaler: Autoscaler, placement: PlacementController) -> None:
        self._index = index
        self._autoscaler = autoscaler
        self.has_room_for = placement.has_room_for

    def groups(self) -> Sequence[NodeGroup]:
        """Return one node group of each pool."""
        return [groups[0] for groups in self._index.groups.values() if groups]

    def zones_of(self, pool: str) -> int:
        """Return the number of zones of a pool."""
        return len(self._index.groups.get(pool, ()))

    def last_message_for(self, pod: str) -> str:
        """Return the autoscaler's last message about a pod, given its uid; '' if it has none."""
        return self._autoscaler.last_message_for(pod)

    def limit_of(self, message: str, now: Instant) -> tuple[str, str]:
        """Return the limit that an autoscaler message refers to, and the pool; '' if the pool is not known."""
        if message.startswith(_TRIGGERED):
            return BOOTING, next((machine.group.pool for machine in self._index.machines.coming.values()), "")
        if IN_BACKOFF in message:
            backoffs = self._backoffs(now)
            codes = {each.code for _, each in backoffs}
            pool = backoffs[0][0].partition("/")[0] if backoffs else ""
            return (CLOUD_QUOTA if codes == {_QUOTA_EXCEEDED} else STOCK_OUT), pool
        return (LIMITS if _LIMITED in message and FULL not in message else CAPACITY), ""

    def waits_for(self, now: Instant) -> list[str]:
        """Return what the autoscaler waits for: machines that boot, and node groups in backoff."""
        coming: dict[str, list[Instant]] = {}
        for machine in self._index.machines.coming.values():
            coming.setdefault(f"pool {machine.group.pool} in {machine.group.zone}", []).append(machine.created)
        texts = [
            f"{len(born)} machine{'s' * (len(born) > 1)} of {where} requested, the first at {format_time(min(born))}"
            for where, born in sorted(coming.items())
        ]
        texts += [
            f"pool {where}: {each.code}; retried after {format_time(each.until)}" for where, each in self._backoffs(now)
        ]
        return texts[:_SHOWN_MAX]

    def _backoffs(self, now: Instant) -> Sequence[tuple[str, Backoff]]:
        """Return the current backoffs. If none is current, return the expired ones: they were not retried yet."""
        every = sorted(self._index.backoffs.items())
        return [(where, each) for where, each in every if each.until > now] or every
