"""Scale-down: which nodes are unneeded, and which of them are removed now.

A node is unneeded while its utilization is low and all its pods fit elsewhere. It is removed when it has been unneeded
for long enough and no nodes were added recently: empty nodes in bulk, others one at a time, slices as a whole. Source:
kubernetes-sigs/cluster-autoscaler, pkg/core/scaledown (eligibility, planner, unneeded, budgets) and pkg/simulator
(cluster.go, utilization).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import meta, well_known
from batchyard.api.meta import Obj, annotation, controller_of
from batchyard.api.times import parse_time
from batchyard.api.views.node import grace_period
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.expander import NodeGroupsState
from batchyard.autoscaler.node_groups import ClusterLimits, NodeGroup
from batchyard.autoscaler.scale_up import LoopContext
from batchyard.autoscaler.settings import DRAIN_MAX, PARALLEL_MAX, UNREADY_TIME
from batchyard.base.instant import SECOND, Instant
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import PodFilters
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.node_info import NodeInfo

# --- drain ---
#
# Drainability of pods on a node that may be removed.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/simulator/drainability/rules. As on GKE, local volumes do not block.
# Disruption budgets come last: they do not apply to pods annotated as safe to evict.


_MIRROR: Final = "kubernetes.io/config.mirror"
_SYSTEM_NAMESPACE: Final = "kube-system"
#: A pod that is still terminating this long after its grace period, counted twice, is ignored.
_LATE: Final = 30 * SECOND


class PodDrainability(Enum):
    """The effect of a pod on the removal of its node."""

    #: It fits another node, or its controller creates a replacement.
    MOVES = auto()
    #: It is removed with the node.
    STAYS = auto()
    #: The node may be removed only after the pod has ended.
    WAITS = auto()
    #: The node must stay.
    BLOCKS = auto()


_SAFE: Final = {"true": PodDrainability.MOVES, "on-completion": PodDrainability.WAITS}


def drain_of(pod: Obj, now: Instant, *, is_guarded: bool = False) -> PodDrainability:
    """Return the effect of a pod; `is_guarded`: its disruption budget allows no disruption."""
    deleted = pod["metadata"].get("deletionTimestamp")
    grace = grace_period(pod["spec"]) * SECOND
    if deleted is not None and parse_time(deleted) + grace + _LATE < now:
        return PodDrainability.STAYS
    owner, safe = controller_of(pod), annotation(pod, well_known.SAFE_TO_EVICT)
    if annotation(pod, _MIRROR) is not None or (owner is not None and owner.get("kind") == "DaemonSet"):
        return PodDrainability.STAYS
    if safe in _SAFE:
        return _SAFE[safe]
    is_kept = owner is None or safe == "false" or pod["metadata"].get("namespace") == _SYSTEM_NAMESPACE
    return PodDrainability.BLOCKS if is_kept or is_guarded else PodDrainability.MOVES


DrainOf: TypeAlias = Callable[[PodView, bool], PodDrainability]
"""Returns the effect of a pod, given whether its disruption budget allows no disruption."""


class Candidate(NamedTuple):
    """A node that may be removed."""

    name: str
    group: NodeGroup
    is_ready: bool
    #: Unneeded since this time, if known.
    since: Instant | None


@dataclass(slots=True)
class Removals:
    """The result of a scale-down."""

    #: The nodes that are unneeded now.
    unneeded: dict[str, Candidate] = field(default_factory=dict)
    #: The nodes to remove, with the pods to move.
    going: dict[str, Sequence[PodView]] = field(default_factory=dict)
    look_at: Instant | None = None

    def look_again(self, when: Instant) -> None:
        """Requeue no later than at this time."""
        self.look_at = when if self.look_at is None else min(when, self.look_at)


class ScaleDown:
    """The scale-down of one loop. It moves pods on the nodes themselves: use only within `what_if`."""

    def __init__(
        self,
        nodes: ClusterSnapshot,
        fleet: NodeGroupsState,
        limits: ClusterLimits,
        situation: LoopContext,
        drain_of: DrainOf,
    ) -> None:
        self._nodes = nodes
        self._fleet = fleet
        self._limits = limits
        self._situation = situation
        self._drain_of = drain_of
        #: The disruptions that budgets allow after the moves so far.
        self._budgets = nodes.budgets.rest()
        self._moving: dict[str, Sequence[PodView]] = {}
        #: Nodes with pods that must end first.
        self._waiting: dict[str, None] = {}
        #: Nodes that must not receive pods; removed from the snapshot before the first move.
        self._gone: list[str] = []
        self.removals = Removals()

    def find_unneeded(
        self, candidates: Sequence[Candidate], awaited: Mapping[str, object], upcoming: Iterable[str]
    ) -> None:
        """Find unneeded nodes. Nodes in `awaited` are needed; pods do not move to `upcoming` nodes."""
        self._gone += upcoming
        for candidate in sorted(candidates, key=self._turn):
            node = self._nodes.get(candidate.name)
            if node is None or candidate.name in awaited or not self._is_underused(node, candidate.group):
                continue
            pods = list(node.pods.values())
            drains = [self._drain_of(pod, self._budgets.blocks(pod)) for pod in pods]
            moving = [pod for pod, drain in zip(pods, drains, strict=True) if drain is PodDrainability.MOVES]
            if PodDrainability.BLOCKS not in drains and self._move(node, moving):
                self._budgets.take(moving)
                self._moving[candidate.name] = moving
                self.removals.unneeded[candidate.name] = candidate
                if PodDrainability.WAITS in drains:
                    self._waiting[candidate.name] = None

    def remove(self, last_added: Instant | None, draining: int) -> Removals:
        """Return the unneeded nodes to remove now."""
        now, patience = self._situation.now, self._situation.settings.patience
        due = [c for c in self.removals.unneeded.values() if c.name not in self._waiting and self._is_due(c)]
        calm = now if last_added is None else last_added + patience.after_add
        if due and calm > now:
            self.removals.look_again(calm)
        elif due:
            self._remove_due(due, draining)
        return self.removals

    # --- which are unneeded ---

    def _turn(self, candidate: Candidate) -> tuple[bool, bool, str]:
        """Sort key: already unneeded nodes first, then empty ones."""
        node = self._nodes.get(candidate.name)
        return candidate.since is None, node is not None and bool(node.pods), candidate.name

    def _is_underused(self, node: NodeInfo, group: NodeGroup) -> bool:
        accelerator = group.machine.accelerator
        resources = ("cpu", "memory") if accelerator is None else (accelerator.resource,)
        threshold = self._situation.settings.utilization_threshold
        total, left = node.view.allocatable, node.left
        return all(
            (total.get(r, 0) - left.get(r, 0)) * meta.NANO <= threshold * total[r] for r in resources if total.get(r)
        )

    def _move(self, node: NodeInfo, pods: Sequence[PodView]) -> bool:
        """Move the pods of a node elsewhere if all fit; the node is then removed from the snapshot."""
        view, moved = node.view, list[PodView]()
        self._gone.append(node.name)
        while pods and self._gone:
            self._nodes.remove_node(self._gone.pop())
        for pod in pods:
            place = self._place_for(pod)
            if not place:
                for back in moved:
                    self._nodes.add_pod(back, node.name)
                self._nodes.set_node(view)
                return False
            self._nodes.add_pod(pod, place)
            moved.append(pod)
        return True

    def _place_for(self, pod: PodView) -> str:
        """Return a node that the pod fits; '' if none. Scores other than resources are ignored."""
        shortlist = self._nodes.shortlists.of(pod.shape, AutoscalingProfile.BALANCED)
        return shortlist.best(PodFilters(pod, self._nodes).passes)

    # --- which go ---

    def _is_due(self, candidate: Candidate) -> bool:
        """Whether the node was unneeded for long enough."""
        since = self._situation.now if candidate.since is None else candidate.since
        wait = self._situation.settings.patience.unneeded if candidate.is_ready else UNREADY_TIME
        if since + wait > self._situation.now:
            self.removals.look_again(since + wait)
            return False
        return True

    def _remove_due(self, due: Sequence[Candidate], draining: int) -> None:
        """Remove slices first, then empty nodes, then others, within the limits of one loop."""
        budget, drains = PARALLEL_MAX - draining, DRAIN_MAX - draining
        slices: dict[NodeGroup, list[Candidate]] = {}
        single: list[Candidate] = []
        for candidate in due:
            (slices.setdefault(candidate.group, []) if candidate.group.hosts > 1 else single).append(candidate)
        for group, hosts in slices.items():
            if len(hosts) == self._fleet.size(group) and not group.size.least:
                self._mark_removed(hosts)
                budget -= len(hosts)
        single.sort(key=lambda candidate: bool(self._moving[candidate.name]))
        for candidate in single:
            is_empty = not self._moving[candidate.name]
            if budget <= 0 or (not is_empty and drains <= 0):
                self.removals.look_again(self._situation.now + self._situation.settings.scan_interval)
                return
            if self._may_shrink(candidate.group):
                self._mark_removed([candidate])
                budget -= 1
                drains -= not is_empty

    def _may_shrink(self, group: NodeGroup) -> bool:
        least = self._fleet.size(group) > group.size.least and self._fleet.pool_size(group) > group.total.least
        return least and self._limits.may_go(group.uses)

    def _mark_removed(self, candidates: Sequence[Candidate]) -> None:
        for candidate in candidates:
            self._fleet.grow(candidate.group, -1)
            self._limits.take(candidate.group.uses, -1)
            self.removals.going[candidate.name] = self._moving[candidate.name]
