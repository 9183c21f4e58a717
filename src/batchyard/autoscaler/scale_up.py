"""Scale-up: which node groups grow for which pods, simulated on the upcoming cluster, one unit after the other.

A unit first takes free room, then new nodes of existing pools, or else of new pools. A gang with a pod that fits
nowhere gets nothing. One loop scales up for all units, whereas upstream grows one group per loop. Source:
kubernetes-sigs/cluster-autoscaler, pkg/core/scaleup/orchestrator (its reasons too) and
pkg/processors/status/eventing_scale_up_processor.go.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from batchyard.api.meta import Obj
from batchyard.api.views.node import NodeView
from batchyard.api.views.pod_shape import PODS
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.expander import FULL, NodeGroupsState, ScaleUpOption, best_option
from batchyard.autoscaler.node_groups import ClusterLimits, GroupName, NodeGroup, ScalingSettings, groups_of
from batchyard.base.instant import Instant
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import pick_node, why_not
from batchyard.placement.node_filters import find_obstacle, find_shortage
from batchyard.placement.node_info import NodeInfo

# --- pending units ---
#
# Units of unschedulable pods: single pods, and gangs that are helped as a whole or not at all.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/core/scaleup/equivalence (equivalent pods are evaluated once) and
# pkg/core/podlistprocessor (pods that fit existing or upcoming nodes need no new ones).


Kind: TypeAlias = Hashable
"""Pods of one kind fit the same nodes."""


class PendingUnit(NamedTuple):
    """Pods that are helped together; those of a gang all or none."""

    pods: Sequence[PodView]
    is_gang: bool


def units_of(pods: Iterable[PodView]) -> list[PendingUnit]:
    """Return gangs, and the other pods by priority: highest priority first, then the oldest."""
    gangs: dict[str, list[PodView]] = {}
    alone: dict[int, list[PodView]] = {}
    for pod in pods:
        (gangs.setdefault(pod.gang, []) if pod.gang else alone.setdefault(pod.priority, [])).append(pod)
    units = [PendingUnit(sorted(members, key=_turn), is_gang=True) for members in gangs.values()]
    units += [PendingUnit(sorted(members, key=_turn), is_gang=False) for members in alone.values()]
    return sorted(units, key=lambda unit: _turn(unit.pods[0]))


def kind_of(pod: PodView, nodes: ClusterSnapshot) -> Kind:
    """Return the kind of a pod; a pod with inter-pod rules is a kind of its own."""
    if pod.shape.minds_pods or _is_repelled(pod, nodes):
        return pod.uid
    return pod.shape


def kinds_of(pods: Iterable[PodView], nodes: ClusterSnapshot) -> dict[Kind, list[PodView]]:
    """Group pods by kind."""
    kinds: dict[Kind, list[PodView]] = {}
    for pod in pods:
        kinds.setdefault(kind_of(pod, nodes), []).append(pod)
    return kinds


class PodPlacements:
    """Places pods on nodes with room, and records where."""

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        #: Node names by pod uid.
        self.places: dict[str, str] = {}

    def put(self, pods: Sequence[PodView]) -> list[PodView]:
        """Place pods; return those that fit nowhere. Pods with affinity are retried after the others."""
        left = list(pods)
        while left:
            late = self._put_in_turn(left)
            if len(late) == len(left) or not any(pod.shape.affinity for pod in late):
                return late
            left = late
        return left

    def add(self, pod: PodView, node_name: str) -> None:
        """Place a pod on a node."""
        self._nodes.add_pod(pod, node_name)
        self.places[pod.uid] = node_name

    def _put_in_turn(self, pods: Sequence[PodView]) -> list[PodView]:
        left: list[PodView] = []
        stuck: dict[Kind, None] = {}
        for pod in pods:
            kind = kind_of(pod, self._nodes)
            name = "" if kind in stuck else pick_node(pod, self._nodes)
            if name:
                self.add(pod, name)
            else:
                stuck[kind] = None
                left.append(pod)
        return left


def _turn(pod: PodView) -> tuple[int, int, str]:
    return -pod.priority, pod.created, pod.key


def _is_repelled(pod: PodView, nodes: ClusterSnapshot) -> bool:
    """Whether existing pods have anti-affinity to the pod."""
    return any(
        term.selects(pod.namespace, pod.labels, nodes.namespaces) for term in nodes.neighbours.anti_affinity_terms
    )


# --- binpacking ---
#
# Binpacking estimate: the new nodes of a group that pods need, first fit decreasing.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/estimator (binpacking_estimator.go, decreasing_pod_orderer.go).


class BinpackingEstimate(NamedTuple):
    """The pods of each new node, and those that did not fit."""

    nodes: Sequence[Sequence[PodView]]
    left: Sequence[PodView]


def pack(pods: Sequence[PodView], group: NodeGroup, most: int, nodes: ClusterSnapshot) -> BinpackingEstimate:
    """Pack pods onto at most `most` new nodes of a group, in addition to the existing nodes."""
    with nodes.what_if():
        packing = _Packing(group, most, nodes)
        left = packing.pack(in_decreasing_order(pods, group.template))
    return BinpackingEstimate([filled for filled in packing.filled if filled], left)


def misfit(pod: PodView, group: NodeGroup, nodes: ClusterSnapshot) -> tuple[str, ...]:
    """Return why a pod does not fit a new node of the group; empty if it fits."""
    view = group.node(_name(group, 0))
    if kind_of(pod, nodes) is pod.shape:  # other nodes and pods do not matter to it
        obstacle = find_obstacle(pod.shape.rules, view) or find_shortage(pod.shape, NodeInfo(view))
        return () if obstacle is None else obstacle.reasons
    with nodes.what_if():
        nodes.set_node(view)
        return _reasons(pod, view.name, nodes)


def in_decreasing_order(pods: Sequence[PodView], template: NodeView) -> list[PodView]:
    """Sort by priority, then by the share of a node that they request."""
    return sorted(pods, key=lambda pod: (-pod.priority, -_share(pod, template), pod.created, pod.key))


class _Packing:
    """New nodes being filled. For each kind the search starts at the last node used: earlier ones are full for it.

    Pods with inter-pod rules are kinds of their own and search all nodes.
    """

    def __init__(self, group: NodeGroup, most: int, nodes: ClusterSnapshot) -> None:
        self._group = group
        self._most = most
        self._nodes = nodes
        self._first: dict[Kind, int] = {}
        self.filled: list[list[PodView]] = []

    def pack(self, pods: Sequence[PodView]) -> list[PodView]:
        """Place pods on nodes; the rest is retried if it has affinity to pods placed later."""
        left = list(pods)
        while left:
            late = [pod for pod in left if not self._take(pod)]
            if len(late) == len(left) or not any(pod.shape.affinity for pod in late):
                return late
            left = late
        return left

    def _take(self, pod: PodView) -> bool:
        kind = kind_of(pod, self._nodes)
        index = self._first.get(kind, 0) if kind is pod.shape else 0
        while index < len(self.filled) or self._add_node():
            name = _name(self._group, index)
            if not _reasons(pod, name, self._nodes):
                self._nodes.add_pod(pod, name)
                self.filled[index].append(pod)
                self._first[kind] = index
                return True
            index += 1
        self._first[kind] = index
        return False

    def _add_node(self) -> bool:
        """Add a node, unless the limit is reached or the last node is still empty."""
        if len(self.filled) >= self._most or (self.filled and not self.filled[-1]):
            return False
        self._nodes.set_node(self._group.node(_name(self._group, len(self.filled))))
        self.filled.append([])
        return True


def _name(group: NodeGroup, index: int) -> str:
    """Return the name of a simulated node."""
    return f"{group.id}-tried-{index}"


def _reasons(pod: PodView, name: str, nodes: ClusterSnapshot) -> tuple[str, ...]:
    """Return why a pod does not fit a simulated node; empty if it fits."""
    node = nodes.get(name)
    return () if node is None else why_not(pod, node, nodes)


def _share(pod: PodView, template: NodeView) -> float:
    """Return the sum of the pod's shares of a node's resources."""
    total = template.allocatable
    return sum(
        amount / total[resource] for resource, amount in pod.requests if resource != PODS and total.get(resource)
    )


# --- zones ---
#
# Distribution of a pool's new nodes over its zones: balanced, or where the cloud has capacity.
#
# Sources: kubernetes-sigs/cluster-autoscaler, pkg/processors/nodegroupset/balancing_processor.go; GKE's autoscaler,
# pkg/processors/locationpolicy, which asks the cloud for advice with the location policy ANY.


def spread(groups: Sequence[NodeGroup], count: int, fleet: NodeGroupsState, cluster: Obj) -> dict[NodeGroup, int]:
    """Return the number of new nodes of each group of a pool; zeros are omitted."""
    given = dict.fromkeys(groups, 0)
    if groups[0].takes_any_zone:
        _give_where_known(given, count, fleet, cluster)
    _give_evenly(given, count - sum(given.values()), fleet)
    return {group: more for group, more in given.items() if more}


def _give_where_known(given: dict[NodeGroup, int], count: int, fleet: NodeGroupsState, cluster: Obj) -> None:
    """Prefer the first zone that is known to have all machines, else the zones with the most."""
    have = {group: min(fleet.room(group), fleet.known_room(group, cluster)) for group in given}
    whole = [group for group in given if have[group] >= count]
    for group in whole[:1] or sorted(given, key=lambda group: -have[group]):
        more = min(have[group], count - sum(given.values()), _room_of_pool(group, given, fleet))
        given[group] += max(0, more)


def _give_evenly(given: dict[NodeGroup, int], count: int, fleet: NodeGroupsState) -> None:
    """Add nodes one by one to the smallest group that has room."""
    for _ in range(count):
        open_groups = [group for group in given if given[group] < fleet.room(group)]
        if not open_groups or not _room_of_pool(open_groups[0], given, fleet):
            return
        smallest = min(open_groups, key=lambda group: fleet.size(group) + given[group])
        given[smallest] += 1


def _room_of_pool(group: NodeGroup, given: dict[NodeGroup, int], fleet: NodeGroupsState) -> int:
    return max(0, group.total.most - fleet.pool_size(group) - sum(given.values()))


NOT_ALL: Final = "not all pods would fit and scale-up is using all-or-nothing strategy"


class LoopContext(NamedTuple):
    """Cluster, settings and time of one loop."""

    cluster: Obj
    settings: ScalingSettings
    now: Instant


class NewPools(Protocol):
    """Pools that could be created for pods."""

    def options(self, pods: Sequence[PodView], scale_up: "ScaleUp") -> Sequence[ScaleUpOption]:
        """Return the pools that would help."""

    def why_not(self, pod: PodView, scale_up: "ScaleUp") -> str:
        """Return why no new pool would help a pod."""


@dataclass(slots=True)
class ScaleUpDraft:
    """The planned scale-up for one unit."""

    new_nodes: dict[str, None] = field(default_factory=dict)
    #: Node name by pod uid.
    places: dict[str, str] = field(default_factory=dict)
    increases: dict[NodeGroup, int] = field(default_factory=dict)
    helped: dict[str, Sequence[NodeGroup]] = field(default_factory=dict)
    pools: list[Obj] = field(default_factory=list)


class ScaleUp:
    """The scale-up plan so far. Decisions are applied to the nodes and the group state at once, for later units to see.

    Use only within `nodes.what_if()`.
    """

    def __init__(
        self,
        nodes: ClusterSnapshot,
        fleet: NodeGroupsState,
        limits: ClusterLimits,
        situation: LoopContext,
        new_pools: NewPools | None,
    ) -> None:
        self.nodes = nodes
        self.fleet = fleet
        self.limits = limits
        self.situation = situation
        self._new_pools = new_pools
        self._before: dict[GroupName, int] = {}
        #: By the group object: pools that could be created share names.
        self._misfits: dict[tuple[NodeGroup, Kind], tuple[str, ...]] = {}
        self._hopeless: dict[tuple[Kind, ...], Mapping[Kind, str]] = {}
        #: The NodePools to create, and the increase of each group.
        self.pools: list[Obj] = []
        self.increases: dict[NodeGroup, int] = {}
        #: By pod uid: the groups that grow for the pod, why none does, and the node it would get.
        self.helped: dict[str, Sequence[NodeGroup]] = {}
        self.refused: dict[str, str] = {}
        self.places: dict[str, str] = {}
        self.new_nodes: dict[str, None] = {}

    def help(self, unit: PendingUnit) -> bool:
        """Find nodes for a unit; return whether all its pods have one."""
        kinds = kinds_of(unit.pods, self.nodes)
        alike = tuple(kind for kind, pods in kinds.items() for _ in pods) if unit.is_gang else ()
        if alike in self._hopeless:
            self._refuse(kinds, self._hopeless[alike])
            return False
        draft = ScaleUpDraft()
        with self.nodes.what_if() as trial:
            left = self._fill(draft, unit)
            if left and unit.is_gang:
                self._drop(draft)
            else:
                trial.keep()
                self._apply(draft)
        if left:
            refused = kinds if unit.is_gang else kinds_of(left, self.nodes)
            why = {kind: self._why(pods[0], kind, unit) for kind, pods in refused.items()}
            if alike:
                self._hopeless[alike] = why
            self._refuse(refused, why)
        return not left

    def complete_slices(self) -> None:
        """Add the missing machines of slices that were requested only in part."""
        draft = ScaleUpDraft()
        for group in self.fleet.groups.values():
            for _ in range(self.fleet.lack(group)):
                self._add_node(group, (), draft)
        self._apply(draft)

    def grow_to_least(self) -> None:
        """Grow groups that are below their minimum size."""
        for groups in self.fleet.pools():
            for group in groups:
                lack = group.size.least - self.fleet.size(group)
                self._grow([group], lack if self.fleet.size(group) == 0 or group.hosts == 1 else 0)
            self._grow(groups, groups[0].total.least - self.fleet.pool_size(groups[0]) if groups[0].hosts == 1 else 0)

    def backoffs_end(self) -> Instant | None:
        """Return when the first known backoff ends after which a retry makes sense."""
        cluster, now = self.situation.cluster, self.situation.now
        ends = []
        for group in self.fleet.groups.values():
            backoff = self.fleet.backoff(group, now)
            if backoff is None or backoff.is_lasting or self.fleet.known_room(group, cluster) < group.hosts:
                continue
            ends.append(backoff.until)
        return min(ends, default=None)

    def format_increase(self, groups: Sequence[NodeGroup]) -> str:
        """Format the growth of groups as in upstream's Events: `[{pool 0->2 (max: 24)}]`."""
        texts = [
            f"{{{group.id} {self._before.get(group.name, 0)}->{self.fleet.size(group)} "
            f"(max: {min(group.size.most, group.total.most)})}}"
            for group in groups
        ]
        return f"[{' '.join(texts)}]"

    def fitting(self, kinds: Mapping[Kind, Sequence[PodView]], group: NodeGroup) -> list[Kind]:
        """Return the kinds of pods that fit a new node of the group."""
        return [kind for kind, pods in kinds.items() if not self._misfit(pods[0], kind, group)]

    def alike(
        self, groups: Sequence[NodeGroup], kinds: Mapping[Kind, Sequence[PodView]]
    ) -> dict[tuple[Kind, ...], list[NodeGroup]]:
        """Group the node groups by the kinds of pods that fit them."""
        found: dict[tuple[Kind, ...], list[NodeGroup]] = {}
        for group in groups:
            found.setdefault(tuple(self.fitting(kinds, group)), []).append(group)
        return found

    def option(
        self, groups: Sequence[NodeGroup], pods: Sequence[PodView], rest: Sequence[PodView]
    ) -> ScaleUpOption | None:
        """Return the new nodes that similar groups would get for the pods; `rest` does not fit them."""
        group = groups[0]
        most = min(sum(map(self.fleet.room, groups)), self.limits.allowed(group.uses))
        most = min(most, group.total.most - self.fleet.pool_size(group))
        packed = pack(pods, group, most, self.nodes) if most > 0 else None
        if packed is None or not packed.nodes:
            return None
        whole = [*packed.nodes, *[()] * (group.hosts - len(packed.nodes))]
        return ScaleUpOption(groups, whole, [*packed.left, *rest])

    def _grow(self, groups: Sequence[NodeGroup], count: int) -> None:
        """Add nodes without pods."""
        if count <= 0:
            return
        able = [group for group in groups if self._may_grow(group)]
        given = spread(able, count, self.fleet, self.situation.cluster) if able else {}
        draft = ScaleUpDraft()
        for group, more in given.items():
            for _ in range(more):
                self._add_node(group, (), draft)
        self._apply(draft)

    # --- one unit ---

    def _fill(self, draft: ScaleUpDraft, unit: PendingUnit) -> Sequence[PodView]:
        """Find nodes for as many pods as possible; return the rest."""
        placings = PodPlacements(self.nodes)
        left: Sequence[PodView] = placings.put(unit.pods)
        draft.places.update(placings.places)
        while left:
            option = self._choose(left, unit)
            if option is None:
                return left
            left = self._take(option, draft)
        return left

    def _choose(self, left: Sequence[PodView], unit: PendingUnit) -> ScaleUpOption | None:
        """Return the best option; for a gang one that helps all remaining pods, if there is any."""
        kinds = kinds_of(left, self.nodes)
        options = [option for groups in self.fleet.pools() for option in self._options(groups, kinds)]
        if self._new_pools and (not options or (unit.is_gang and all(option.left for option in options))):
            options += self._new_pools.options(left, self)
        if unit.is_gang:
            options = [option for option in options if self._is_promising(option)]
        whole = [option for option in options if not option.left] if unit.is_gang else []
        return best_option(whole or options, self.situation.settings) if options else None

    def _is_promising(self, option: ScaleUpOption) -> bool:
        """Whether all the new nodes are likely to come. Recently failed groups need known capacity in the cloud."""
        if not any(self.fleet.has_failed(group, self.situation.now) for group in option.groups):
            return True
        return self.fleet.is_known_to_have(option.groups, len(option.nodes), self.situation.cluster)

    def _options(self, groups: Sequence[NodeGroup], kinds: Mapping[Kind, Sequence[PodView]]) -> list[ScaleUpOption]:
        """Return the options of a pool's groups; groups that fit the same pods share one."""
        found = []
        for fitting, similar in self.alike(list(filter(self._may_grow, groups)), kinds).items():
            pods = [pod for kind in fitting for pod in kinds[kind]]
            rest = [pod for kind, others in kinds.items() if kind not in fitting for pod in others]
            option = self.option(similar, pods, rest) if pods else None
            if option is not None:
                found.append(option)
        return found

    def _may_grow(self, group: NodeGroup) -> bool:
        """Whether a group may grow for pods. Queued groups grow for ProvisioningRequests only."""
        if not group.is_autoscaled or group.provisioning == "queued":
            return False
        return not self.fleet.obstacle(group, self.limits, self.situation.now)

    def _take(self, option: ScaleUpOption, draft: ScaleUpDraft) -> Sequence[PodView]:
        """Add the new nodes of an option to the draft; return the remaining pods."""
        if option.is_new_pool:
            draft.pools.append(option.group.pool)
            others = groups_of(option.group.pool, self.situation.cluster)
            for group in {group.name: group for group in [*others, *option.groups]}.values():
                self.fleet.add(group)
        given = spread(option.groups, len(option.nodes), self.fleet, self.situation.cluster)
        owners = [group for group, count in given.items() for _ in range(count)]
        groups = tuple(given)
        for group, pods in zip(owners, option.nodes, strict=False):
            self._add_node(group, pods, draft)
            draft.helped.update(dict.fromkeys([pod.uid for pod in pods], groups))
        return [*option.left, *[pod for pods in option.nodes[len(owners) :] for pod in pods]]

    def _add_node(self, group: NodeGroup, pods: Sequence[PodView], draft: ScaleUpDraft) -> None:
        self._before.setdefault(group.name, self.fleet.size(group))
        view = group.node(f"{group.id}-new-{self.fleet.size(group)}")
        self.fleet.grow(group, 1)
        self.limits.take(group.uses, 1)
        self.nodes.set_node(view)
        draft.new_nodes[view.name] = None
        draft.increases[group] = draft.increases.get(group, 0) + 1
        for pod in pods:
            self.nodes.add_pod(pod, view.name)
            draft.places[pod.uid] = view.name

    def _apply(self, draft: ScaleUpDraft) -> None:
        """Add a unit's draft to the plan."""
        self.new_nodes.update(draft.new_nodes)
        self.places.update(draft.places)
        for group, count in draft.increases.items():
            self.increases[group] = self.increases.get(group, 0) + count
        self.pools += draft.pools
        self.helped.update(draft.helped)
        self._hopeless.clear()

    def _drop(self, draft: ScaleUpDraft) -> None:
        """Undo a unit's draft in the group state and the limits."""
        for group, count in draft.increases.items():
            self.fleet.grow(group, -count)
            self.limits.take(group.uses, -count)
        for pool in draft.pools:
            self.fleet.remove(pool["metadata"]["name"])

    # --- refused pods ---

    def _refuse(self, kinds: Mapping[Kind, Sequence[PodView]], why: Mapping[Kind, str]) -> None:
        for kind, pods in kinds.items():
            self.refused.update(dict.fromkeys([pod.uid for pod in pods], why[kind]))

    def _why(self, pod: PodView, kind: Kind, unit: PendingUnit) -> str:
        """Return why no group grows for a pod: each reason with the number of groups."""
        reasons: list[str] = []
        for group in self.fleet.groups.values():
            if group.is_autoscaled:
                misfits = self._misfit(pod, kind, group)
                reasons += misfits or (self._obstacle(group) or (NOT_ALL if unit.is_gang else FULL),)
        if reasons or self._new_pools is None:
            return format_reasons(reasons)
        return self._new_pools.why_not(pod, self)

    def reasons_against(self, pod: PodView, group: NodeGroup) -> Sequence[str]:
        """Return why a group does not grow for a pod."""
        return misfit(pod, group, self.nodes) or (self._obstacle(group) or NOT_ALL,)

    def _obstacle(self, group: NodeGroup) -> str:
        return self.fleet.obstacle(group, self.limits, self.situation.now)

    def _misfit(self, pod: PodView, kind: Kind, group: NodeGroup) -> tuple[str, ...]:
        """Return why a pod does not fit a group; cached for pods without inter-pod rules."""
        if kind is not pod.shape:
            return misfit(pod, group, self.nodes)
        known = self._misfits.get((group, kind))
        if known is None:
            known = self._misfits[group, kind] = misfit(pod, group, self.nodes)
        return known


def format_reasons(reasons: Sequence[str]) -> str:
    """Format each reason with its number of groups."""
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
