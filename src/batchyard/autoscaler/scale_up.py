"""Scale-up: chooses the node groups that grow for pending pods, by simulation on the cluster as it will be.

Pending pods are planned gang by gang; pods without a gang are planned together by priority. They first use free
capacity, then new nodes of existing pools, or else of new pools. A gang with a pod that fits nowhere gets no nodes. One
scan scales up for all pods, whereas upstream grows one group per loop. Source, also of the reasons:
kubernetes-sigs/cluster-autoscaler, pkg/core/scaleup/orchestrator and
pkg/processors/status/eventing_scale_up_processor.go.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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
from batchyard.placement.filtering import choose_node, filter_failure_reasons
from batchyard.placement.node_filters import find_obstacle, find_shortage
from batchyard.placement.node_info import NodeInfo

# Units of unschedulable pods: single pods, and gangs whose pods get nodes together or not at all.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/core/scaleup/equivalence (equivalent pods are evaluated once) and
# pkg/core/podlistprocessor (pods that fit existing or upcoming nodes need no new ones).


PodKind: TypeAlias = Hashable
"""A key of equivalent pods: pods of one kind fit the same nodes."""


class PendingUnit(NamedTuple):
    """Pending pods for which one scale-up is planned: a gang (nodes for all pods or none), or pods without a gang."""

    pods: Sequence[PodView]
    is_gang: bool


def units_of(pods: Iterable[PodView]) -> list[PendingUnit]:
    """Group pending pods by gang, and pods without a gang by priority; return the groups by priority, then age."""
    pods_by_gang: dict[str, list[PodView]] = {}
    single_pods_by_priority: dict[int, list[PodView]] = {}
    for pod in pods:
        (
            pods_by_gang.setdefault(pod.gang, []) if pod.gang else single_pods_by_priority.setdefault(pod.priority, [])
        ).append(pod)
    pending_units = [PendingUnit(sorted(members, key=_sort_key), is_gang=True) for members in pods_by_gang.values()]
    pending_units += [
        PendingUnit(sorted(members, key=_sort_key), is_gang=False) for members in single_pods_by_priority.values()
    ]
    return sorted(pending_units, key=lambda pending_unit: _sort_key(pending_unit.pods[0]))


def pod_kind_of(pod: PodView, nodes: ClusterSnapshot) -> PodKind:
    """Return a key that equivalent pods share; a pod with claims, or that depends on other pods, has its own key."""
    if pod.shape.depends_on_pods or pod.volume_claims or _is_repelled_by_anti_affinity(pod, nodes):
        return pod.uid
    return pod.shape


def group_pods_by_kind(pods: Iterable[PodView], nodes: ClusterSnapshot) -> dict[PodKind, list[PodView]]:
    """Group pods by their kind; pods of one kind fit the same nodes."""
    pods_by_kind: dict[PodKind, list[PodView]] = {}
    for pod in pods:
        pods_by_kind.setdefault(pod_kind_of(pod, nodes), []).append(pod)
    return pods_by_kind


class PodPlacements:
    """Places pods on nodes with free capacity in the node snapshot, and records the node of each pod."""

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        #: The node name by pod uid.
        self.node_by_pod: dict[str, str] = {}

    def place_all(self, pods: Sequence[PodView]) -> Sequence[PodView]:
        """Place pods on free capacity; return the pods that fit no node."""
        return _place_with_retries(pods, self._place_in_order)

    def add(self, pod: PodView, node_name: str) -> None:
        """Place a pod on a node of the snapshot."""
        self._nodes.add_pod(pod, node_name)
        self.node_by_pod[pod.uid] = node_name

    def _place_in_order(self, pods: Sequence[PodView]) -> list[PodView]:
        unplaced_pods: list[PodView] = []
        unplaceable_kinds: dict[PodKind, None] = {}
        for pod in pods:
            kind = pod_kind_of(pod, self._nodes)
            name = "" if kind in unplaceable_kinds else choose_node(pod, self._nodes)
            if name:
                self.add(pod, name)
            else:
                unplaceable_kinds[kind] = None
                unplaced_pods.append(pod)
        return unplaced_pods


def _place_with_retries(
    pods: Sequence[PodView], place_all_once: Callable[[Sequence[PodView]], Sequence[PodView]]
) -> Sequence[PodView]:
    """Place pods as long as a further attempt may help; return the pods that did not fit.

    A further attempt may help pods with affinity if the last one placed other pods. `place_all_once` tries each pod
    once, and returns the pods that did not fit.
    """
    unplaced_pods = pods
    while unplaced_pods:
        still_unplaced = place_all_once(unplaced_pods)
        if len(still_unplaced) == len(unplaced_pods) or not any(pod.shape.affinity for pod in still_unplaced):
            return still_unplaced
        unplaced_pods = still_unplaced
    return unplaced_pods


def _sort_key(pod: PodView) -> tuple[int, int, str]:
    return -pod.priority, pod.created, pod.key


def _is_repelled_by_anti_affinity(pod: PodView, nodes: ClusterSnapshot) -> bool:
    anti_affinity_term_list = nodes.placed_pods.anti_affinity_terms
    return any(term.selects(pod.namespace, pod.labels, nodes.namespaces) for term in anti_affinity_term_list)


# Binpacking: estimate the new nodes of a group that pods need, with first-fit decreasing.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/estimator (binpacking_estimator.go, decreasing_pod_orderer.go).


class BinpackingEstimate(NamedTuple):
    """The result of binpacking: the pods of each new node, and the pods that did not fit."""

    nodes: Sequence[Sequence[PodView]]
    unplaced_pods: Sequence[PodView]


def pack(pods: Sequence[PodView], group: NodeGroup, node_count_max: int, nodes: ClusterSnapshot) -> BinpackingEstimate:
    """Return how the pods pack onto at most `node_count_max` new nodes of a node group, beside the existing nodes.

    The node snapshot is unchanged afterwards.
    """
    with nodes.what_if():
        packing = _PodPacking(group, node_count_max, nodes)
        unplaced_pods = packing.pack(in_decreasing_request_order(pods, group.template))
    return BinpackingEstimate([node_pods for node_pods in packing.pods_by_node if node_pods], unplaced_pods)


def find_misfit_reasons(pod: PodView, group: NodeGroup, nodes: ClusterSnapshot) -> tuple[str, ...]:
    """Return the reasons why a pod does not fit a new node of the node group; empty if it fits."""
    node_view = group.new_node(_simulated_node_name(group, 0))
    if pod_kind_of(pod, nodes) is pod.shape:  # the pod has no rules about other nodes and pods
        obstacle = find_obstacle(pod.shape.rules, node_view) or find_shortage(pod.shape, NodeInfo(node_view))
        return () if obstacle is None else obstacle.reasons
    with nodes.what_if():
        nodes.set_node(node_view)
        return _misfit_reasons(pod, node_view.name, nodes)


def in_decreasing_request_order(pods: Sequence[PodView], template: NodeView) -> list[PodView]:
    """Return the pods by priority, then by the requested fraction of a node like `template`, largest first."""
    return sorted(pods, key=lambda pod: (-pod.priority, -_requested_fraction(pod, template), pod.created, pod.key))


class _PodPacking:
    """The assignment of pods to simulated new nodes of a node group, by first fit.

    Pods of one kind are equivalent. The search for a node starts where it ended for the previous pod of the same kind,
    because all earlier nodes have no room for that kind.
    """

    def __init__(self, group: NodeGroup, node_count_max: int, nodes: ClusterSnapshot) -> None:
        self._group = group
        self._count_max = node_count_max
        self._nodes = nodes
        self._start_index_by_kind: dict[PodKind, int] = {}
        self.pods_by_node: list[list[PodView]] = []

    def pack(self, pods: Sequence[PodView]) -> Sequence[PodView]:
        return _place_with_retries(pods, lambda unplaced_pods: [pod for pod in unplaced_pods if not self._place(pod)])

    def _place(self, pod: PodView) -> bool:
        kind = pod_kind_of(pod, self._nodes)
        start_index = self._start_index_by_kind.get(kind, 0) if kind is pod.shape else 0
        while start_index < len(self.pods_by_node) or self._add_node():
            name = _simulated_node_name(self._group, start_index)
            if not _misfit_reasons(pod, name, self._nodes):
                self._nodes.add_pod(pod, name)
                self.pods_by_node[start_index].append(pod)
                self._start_index_by_kind[kind] = start_index
                return True
            start_index += 1
        self._start_index_by_kind[kind] = start_index
        return False

    def _add_node(self) -> bool:
        """Add a simulated node of the node group; return False if no node was added.

        None is added at the maximum number of new nodes, or if the last new node is still empty: a pod that does not
        fit there fits no other new node.
        """
        if len(self.pods_by_node) >= self._count_max or (self.pods_by_node and not self.pods_by_node[-1]):
            return False
        self._nodes.set_node(self._group.new_node(_simulated_node_name(self._group, len(self.pods_by_node))))
        self.pods_by_node.append([])
        return True


def _simulated_node_name(group: NodeGroup, index: int) -> str:
    return f"{group.id}-tried-{index}"


def _misfit_reasons(pod: PodView, node_name: str, nodes: ClusterSnapshot) -> tuple[str, ...]:
    node = nodes.get(node_name)
    return () if node is None else filter_failure_reasons(pod, node, nodes)


def _requested_fraction(pod: PodView, template: NodeView) -> float:
    total = template.allocatable
    return sum(amount / total[name] for name, amount in pod.requests if name != PODS and total.get(name))


# Distribution of a pool's new nodes over its zones: balanced, or in zones with known capacity.
#
# Sources: kubernetes-sigs/cluster-autoscaler, pkg/processors/nodegroupset/balancing_processor.go; GKE's autoscaler,
# pkg/processors/locationpolicy, which asks the cloud for advice with the location policy ANY.


def spread_nodes(groups: Sequence[NodeGroup], count: int, fleet: NodeGroupsState, cluster: Obj) -> dict[NodeGroup, int]:
    """Return the number of new nodes for each node group (zone) that grows: `count` in total, fewer without room."""
    increase_by_group = dict.fromkeys(groups, 0)
    if groups[0].takes_any_zone:
        _spread_by_capacity(increase_by_group, count, fleet, cluster)
    _spread_evenly(increase_by_group, count - sum(increase_by_group.values()), fleet)
    return {group: increase for group, increase in increase_by_group.items() if increase}


def _spread_by_capacity(increases: dict[NodeGroup, int], count: int, fleet: NodeGroupsState, cluster: Obj) -> None:
    """Distribute `count` new nodes over the node groups in `increases`, by the groups' known capacity.

    The first group with capacity for all nodes gets them all. Without such a group, those with the largest capacity are
    filled first.
    """
    capacity_by_group = {
        group: min(fleet.count_addable_within_size(group), fleet.remaining_known_capacity(group, cluster))
        for group in increases
    }
    sufficient_groups = [group for group in increases if capacity_by_group[group] >= count]
    for group in sufficient_groups[:1] or sorted(increases, key=lambda group: -capacity_by_group[group]):
        increase = min(
            capacity_by_group[group], count - sum(increases.values()), _remaining_pool_size(group, increases, fleet)
        )
        increases[group] += max(0, increase)


def _spread_evenly(increase_by_group: dict[NodeGroup, int], node_count: int, fleet: NodeGroupsState) -> None:
    for _ in range(node_count):
        growable_groups = [
            group for group in increase_by_group if increase_by_group[group] < fleet.count_addable_within_size(group)
        ]
        if not growable_groups or not _remaining_pool_size(growable_groups[0], increase_by_group, fleet):
            return
        smallest_group = min(growable_groups, key=lambda group: fleet.size(group) + increase_by_group[group])
        increase_by_group[smallest_group] += 1


def _remaining_pool_size(group: NodeGroup, increase_by_group: dict[NodeGroup, int], fleet: NodeGroupsState) -> int:
    return max(0, group.total.maximum - fleet.pool_size(group) - sum(increase_by_group.values()))


NOT_ALL_PODS_FIT: Final = "not all pods would fit and scale-up is using all-or-nothing strategy"


class LoopContext(NamedTuple):
    """The Cluster, its autoscaler settings, and the time of one scan."""

    cluster: Obj
    settings: ScalingSettings
    now: Instant


class NewPoolPlanner(Protocol):
    """A planner of new node pools for pods that fit no existing pool."""

    def scale_up_options(self, pods: Sequence[PodView], scale_up: "ScaleUp") -> Sequence[ScaleUpOption]:
        """Return scale-ups with new node pools for these pods."""

    def explain_no_new_pool(self, pod: PodView, scale_up: "ScaleUp") -> str:
        """Return why no new node pool helps a pod."""


@dataclass(slots=True)
class ScaleUpDraft:
    """New nodes and pod placements for a gang, or for pods without a gang; a draft is applied to the plan or undone."""

    new_nodes: dict[str, None] = field(default_factory=dict)
    #: The node name by pod uid.
    node_by_pod: dict[str, str] = field(default_factory=dict)
    increases: dict[NodeGroup, int] = field(default_factory=dict)
    groups_by_pod: dict[str, Sequence[NodeGroup]] = field(default_factory=dict)
    pools: list[Obj] = field(default_factory=list)


class ScaleUp:
    """The scale-up plan of one scan. Each step changes the node snapshot and the group sizes for later steps.

    Use only within `nodes.what_if()`.
    """

    def __init__(
        self,
        nodes: ClusterSnapshot,
        fleet: NodeGroupsState,
        limits: ClusterLimits,
        loop_context: LoopContext,
        new_pools: NewPoolPlanner | None,
    ) -> None:
        self.nodes = nodes
        self.fleet = fleet
        self.limits = limits
        self.loop_context = loop_context
        self._new_pools = new_pools
        self._initial_sizes: dict[GroupName, int] = {}
        #: By the group object instead of its name, because possible new pools share names.
        self._misfits: dict[tuple[NodeGroup, PodKind], tuple[str, ...]] = {}
        self._known_failures: dict[tuple[PodKind, ...], Mapping[PodKind, str]] = {}
        #: The NodePools to create, and the increase of each group.
        self.pools: list[Obj] = []
        self.increases: dict[NodeGroup, int] = {}
        #: By pod uid: the groups that grow for the pod, why none grows, and the simulated node of the pod.
        self.groups_by_pod: dict[str, Sequence[NodeGroup]] = {}
        self.refusal_by_pod: dict[str, str] = {}
        self.node_by_pod: dict[str, str] = {}
        self.new_nodes: dict[str, None] = {}

    def plan(self, unit: PendingUnit) -> bool:
        """Plan new nodes for those pods of a unit that have no node; return whether all pods have a node afterwards.

        A unit is a gang, or pods without a gang. A gang gets nodes for all its pods or none.
        """
        pods_by_kind = group_pods_by_kind(unit.pods, self.nodes)
        gang_key = tuple(kind for kind, pods in pods_by_kind.items() for _ in pods) if unit.is_gang else ()
        if gang_key in self._known_failures:
            self._refuse_pods(pods_by_kind, self._known_failures[gang_key])
            return False
        scale_up_draft = ScaleUpDraft()
        with self.nodes.what_if() as trial:
            unplaced_pods = self._find_nodes(scale_up_draft, unit)
            if unplaced_pods and unit.is_gang:
                self._undo_draft(scale_up_draft)
            else:
                trial.keep()
                self._apply_draft(scale_up_draft)
        if unplaced_pods:
            refused_kinds = pods_by_kind if unit.is_gang else group_pods_by_kind(unplaced_pods, self.nodes)
            reason_by_kind = {kind: self._explain_refusal(pods[0], kind, unit) for kind, pods in refused_kinds.items()}
            if gang_key:
                self._known_failures[gang_key] = reason_by_kind
            self._refuse_pods(refused_kinds, reason_by_kind)
        return not unplaced_pods

    def complete_slices(self) -> None:
        """Add the missing machines of TPU slices that were only partly requested."""
        draft = ScaleUpDraft()
        for group in self.fleet.groups.values():
            for _ in range(self.fleet.missing_count(group)):
                self._add_node(group, (), draft)
        self._apply_draft(draft)

    def grow_to_minimum(self) -> None:
        """Add nodes to node groups and pools that are below their minimum size."""
        for groups in self.fleet.pools():
            for group in groups:
                missing_count = group.size.minimum - self.fleet.size(group)
                self._grow([group], missing_count if self.fleet.size(group) == 0 or group.hosts == 1 else 0)
            self._grow(groups, groups[0].total.minimum - self.fleet.pool_size(groups[0]) if groups[0].hosts == 1 else 0)

    def next_backoff_end(self) -> Instant | None:
        """Return the earliest end of a node group's backoff after which a retry may succeed; None if there is none."""
        cluster, now = self.loop_context.cluster, self.loop_context.now
        backoff_end_times = []
        for group in self.fleet.groups.values():
            backoff = self.fleet.backoff(group, now)
            if (
                backoff is None
                or backoff.needs_configuration_change
                or self.fleet.remaining_known_capacity(group, cluster) < group.hosts
            ):
                continue
            backoff_end_times.append(backoff.end)
        return min(backoff_end_times, default=None)

    def format_increase(self, groups: Sequence[NodeGroup]) -> str:
        """Format the growth of node groups as in the cluster autoscaler's Events: `[{pool 0->2 (max: 24)}]`."""
        group_descriptions = [
            f"{{{group.id} {self._initial_sizes.get(group.name, 0)}->{self.fleet.size(group)} "
            f"(max: {min(group.size.maximum, group.total.maximum)})}}"
            for group in groups
        ]
        return f"[{' '.join(group_descriptions)}]"

    def fitting_pod_kinds(self, pods_by_kind: Mapping[PodKind, Sequence[PodView]], group: NodeGroup) -> list[PodKind]:
        """Return the kinds of pods that fit a new node of the node group."""
        return [kind for kind, pods in pods_by_kind.items() if not self._cached_misfit_reasons(pods[0], kind, group)]

    def group_by_fitting_pod_kinds(
        self, groups: Sequence[NodeGroup], pods_by_kind: Mapping[PodKind, Sequence[PodView]]
    ) -> dict[tuple[PodKind, ...], list[NodeGroup]]:
        """Group node groups that fit the same kinds of pods; the key is these kinds."""
        groups_by_kinds: dict[tuple[PodKind, ...], list[NodeGroup]] = {}
        for group in groups:
            groups_by_kinds.setdefault(tuple(self.fitting_pod_kinds(pods_by_kind, group)), []).append(group)
        return groups_by_kinds

    def option(
        self, groups: Sequence[NodeGroup], pods: Sequence[PodView], other_pods: Sequence[PodView]
    ) -> ScaleUpOption | None:
        """Return a scale-up of similar node groups for pods that fit them; None if no new node would get a pod.

        `other_pods` do not fit the groups; they remain unplaced.
        """
        group = groups[0]
        node_count_max = min(
            sum(map(self.fleet.count_addable_within_size, groups)), self.limits.count_allowed(group.counted_resources)
        )
        node_count_max = min(node_count_max, group.total.maximum - self.fleet.pool_size(group))
        packing_estimate = pack(pods, group, node_count_max, self.nodes) if node_count_max > 0 else None
        if packing_estimate is None or not packing_estimate.nodes:
            return None
        node_pods = [*packing_estimate.nodes, *[()] * (group.hosts - len(packing_estimate.nodes))]
        return ScaleUpOption(groups, node_pods, [*packing_estimate.unplaced_pods, *other_pods])

    def _grow(self, groups: Sequence[NodeGroup], node_count: int) -> None:
        if node_count <= 0:
            return
        growable_groups = [group for group in groups if self._may_grow(group)]
        increases_by_group = (
            spread_nodes(growable_groups, node_count, self.fleet, self.loop_context.cluster) if growable_groups else {}
        )
        draft = ScaleUpDraft()
        for group, increase in increases_by_group.items():
            for _ in range(increase):
                self._add_node(group, (), draft)
        self._apply_draft(draft)

    # --- one gang, or pods without a gang ---

    def _find_nodes(self, draft: ScaleUpDraft, unit: PendingUnit) -> Sequence[PodView]:
        pod_placements = PodPlacements(self.nodes)
        unplaced_pods: Sequence[PodView] = pod_placements.place_all(unit.pods)
        draft.node_by_pod.update(pod_placements.node_by_pod)
        while unplaced_pods:
            option = self._choose_option(unplaced_pods, unit)
            if option is None:
                return unplaced_pods
            unplaced_pods = self._add_option(option, draft)
        return unplaced_pods

    def _choose_option(self, unplaced_pods: Sequence[PodView], unit: PendingUnit) -> ScaleUpOption | None:
        pods_by_kind = group_pods_by_kind(unplaced_pods, self.nodes)
        options = [option for groups in self.fleet.pools() for option in self._scale_up_options(groups, pods_by_kind)]
        if self._new_pools and (not options or (unit.is_gang and all(option.unplaced_pods for option in options))):
            options += self._new_pools.scale_up_options(unplaced_pods, self)
        if unit.is_gang:
            options = [option for option in options if self._is_promising(option)]
        complete_options = [option for option in options if not option.unplaced_pods] if unit.is_gang else []
        return best_option(complete_options or options, self.loop_context.settings) if options else None

    def _is_promising(self, option: ScaleUpOption) -> bool:
        if not any(self.fleet.has_failed(group, self.loop_context.now) for group in option.groups):
            return True
        return self.fleet.has_known_capacity_for(option.groups, len(option.nodes), self.loop_context.cluster)

    def _scale_up_options(
        self, groups: Sequence[NodeGroup], pods_by_kind: Mapping[PodKind, Sequence[PodView]]
    ) -> list[ScaleUpOption]:
        scale_up_options = []
        growable_groups = list(filter(self._may_grow, groups))
        for fitting_pod_kinds, similar_groups in self.group_by_fitting_pod_kinds(growable_groups, pods_by_kind).items():
            pods = [pod for kind in fitting_pod_kinds for pod in pods_by_kind[kind]]
            other_pods = [
                pod for kind, kind_pods in pods_by_kind.items() if kind not in fitting_pod_kinds for pod in kind_pods
            ]
            option = self.option(similar_groups, pods, other_pods) if pods else None
            if option is not None:
                scale_up_options.append(option)
        return scale_up_options

    def _may_grow(self, group: NodeGroup) -> bool:
        """Return whether a node group may grow for pending pods: it is autoscaled, not queued, and has no obstacle.

        Groups with queued provisioning grow only for ProvisioningRequests.
        """
        if not group.is_autoscaled or group.provisioning == "queued":
            return False
        return not self.fleet.obstacle(group, self.limits, self.loop_context.now)

    def _add_option(self, option: ScaleUpOption, draft: ScaleUpDraft) -> Sequence[PodView]:
        if option.is_new_pool:
            draft.pools.append(option.group.pool)
            zone_groups = groups_of(option.group.pool, self.loop_context.cluster)
            for group in {group.name: group for group in [*zone_groups, *option.groups]}.values():
                self.fleet.add(group)
        increases_by_group = spread_nodes(option.groups, len(option.nodes), self.fleet, self.loop_context.cluster)
        new_node_groups = [group for group, count in increases_by_group.items() for _ in range(count)]
        groups = tuple(increases_by_group)
        for group, pods in zip(new_node_groups, option.nodes, strict=False):
            self._add_node(group, pods, draft)
            draft.groups_by_pod.update(dict.fromkeys([pod.uid for pod in pods], groups))
        return [*option.unplaced_pods, *[pod for pods in option.nodes[len(new_node_groups) :] for pod in pods]]

    def _add_node(self, group: NodeGroup, pods: Sequence[PodView], draft: ScaleUpDraft) -> None:
        self._initial_sizes.setdefault(group.name, self.fleet.size(group))
        node_view = group.new_node(f"{group.id}-new-{self.fleet.size(group)}")
        self.fleet.grow(group, 1)
        self.limits.add_usage(group.counted_resources, 1)
        self.nodes.set_node(node_view)
        draft.new_nodes[node_view.name] = None
        draft.increases[group] = draft.increases.get(group, 0) + 1
        for pod in pods:
            self.nodes.add_pod(pod, node_view.name)
            draft.node_by_pod[pod.uid] = node_view.name

    def _apply_draft(self, draft: ScaleUpDraft) -> None:
        self.new_nodes.update(draft.new_nodes)
        self.node_by_pod.update(draft.node_by_pod)
        for group, count in draft.increases.items():
            self.increases[group] = self.increases.get(group, 0) + count
        self.pools += draft.pools
        self.groups_by_pod.update(draft.groups_by_pod)
        self._known_failures.clear()

    def _undo_draft(self, draft: ScaleUpDraft) -> None:
        """Restore the node groups and cluster limits; the end of `what_if()` restores the node snapshot."""
        for group, count in draft.increases.items():
            self.fleet.grow(group, -count)
            self.limits.add_usage(group.counted_resources, -count)
        for pool in draft.pools:
            self.fleet.remove(pool["metadata"]["name"])

    # --- refused pods ---

    def _refuse_pods(self, pods_by_kind: Mapping[PodKind, Sequence[PodView]], reasons: Mapping[PodKind, str]) -> None:
        for kind, pods in pods_by_kind.items():
            self.refusal_by_pod.update(dict.fromkeys([pod.uid for pod in pods], reasons[kind]))

    def _explain_refusal(self, pod: PodView, kind: PodKind, unit: PendingUnit) -> str:
        refusal_reasons: list[str] = []
        for group in self.fleet.groups.values():
            if group.is_autoscaled:
                misfits = self._cached_misfit_reasons(pod, kind, group)
                refusal_reasons += misfits or (self._obstacle(group) or (NOT_ALL_PODS_FIT if unit.is_gang else FULL),)
        if refusal_reasons or self._new_pools is None:
            return format_reasons(refusal_reasons)
        return self._new_pools.explain_no_new_pool(pod, self)

    def reasons_against(self, pod: PodView, group: NodeGroup) -> Sequence[str]:
        """Return the reasons why a node group does not grow for a pod."""
        return find_misfit_reasons(pod, group, self.nodes) or (self._obstacle(group) or NOT_ALL_PODS_FIT,)

    def _obstacle(self, group: NodeGroup) -> str:
        return self.fleet.obstacle(group, self.limits, self.loop_context.now)

    def _cached_misfit_reasons(self, pod: PodView, kind: PodKind, group: NodeGroup) -> tuple[str, ...]:
        if kind is not pod.shape:
            return find_misfit_reasons(pod, group, self.nodes)
        misfit_reasons = self._misfits.get((group, kind))
        if misfit_reasons is None:
            misfit_reasons = self._misfits[group, kind] = find_misfit_reasons(pod, group, self.nodes)
        return misfit_reasons


def format_reasons(reasons: Sequence[str]) -> str:
    """Format reasons for a missing scale-up, sorted: each with the number of node groups that the reason concerns."""
    count_by_reason: dict[str, int] = {}
    for reason in reasons:
        count_by_reason[reason] = count_by_reason.get(reason, 0) + 1
    return ", ".join(sorted(f"{count} {reason}" for reason, count in count_by_reason.items()))
