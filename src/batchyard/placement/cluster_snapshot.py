"""Cluster snapshot of the placement controller: nodes, pods, nominated nodes, PodDisruptionBudgets and candidate nodes.

The snapshot is updated incrementally. Plans are tried on the snapshot itself, because `what_if` undoes changes of
nodes, pods and nominations.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from types import TracebackType
from typing import Final, Protocol, TypeAlias

from batchyard.api.meta import Key, Obj, Selector, key_of, parse_selector
from batchyard.api.views.node import NodeView
from batchyard.api.views.pod_shape import NodeRules, PodShape
from batchyard.api.views.pods import PodView
from batchyard.base.primitives import LruCache
from batchyard.placement import node_filters
from batchyard.placement.gpu_policies import DrawBelow, GpuPolicy, NodeScoring
from batchyard.placement.node_info import NodeGenerations, NodeInfo
from batchyard.placement.pod_affinity import PodAffinityIndex

# Candidate nodes for pods with equal requirements (shape), best first, updated incrementally.
#
# Static filters are evaluated once for all pods with the same rules, and again only for nodes whose labels or taints
# change. Resources and scores are evaluated once for pods of the same shape, and again for changed nodes. So placing
# many equal pods evaluates only the changed nodes, not all nodes.


_CACHED_STATIC_RESULTS_MAX: Final = 1024
_CACHED_CANDIDATES_MAX: Final = 1024


class StaticFilterResults:
    """The nodes' filter results and preference scores for pods with equal selectors, node affinity and tolerations."""

    def __init__(self, rules: NodeRules, nodes: Mapping[str, NodeInfo], property_changes: NodeGenerations) -> None:
        self._rules = rules
        self._nodes = nodes
        self._property_changes = property_changes
        self._evaluated_generation = property_changes.latest
        self._evaluated_views: dict[str, NodeView] = {}
        #: Why each node rejects the pods; None if it accepts them.
        self.obstacles: dict[str, node_filters.FilterFailure | None] = {}
        #: Scores of preferred node affinity, and counts of PreferNoSchedule taints; zeros are omitted.
        self.affinity_weights: dict[str, int] = {}
        self.taint_counts: dict[str, int] = {}
        for node in nodes.values():
            self._evaluate_node(node.view)

    def refresh(self) -> None:
        """Update the results for nodes that were added, removed, relabeled or tainted since the last call."""
        if self._evaluated_generation == self._property_changes.latest:
            return
        for name in self._property_changes.changed_since(self._evaluated_generation):
            node = self._nodes.get(name)
            if node is None:
                self._forget_node(name)
            elif node.view != self._evaluated_views.get(name):  # changes made inside what_if are undone by now
                self._forget_node(name)
                self._evaluate_node(node.view)
        self._evaluated_generation = self._property_changes.latest

    def _forget_node(self, name: str) -> None:
        for table in (self._evaluated_views, self.obstacles, self.affinity_weights, self.taint_counts):
            table.pop(name, None)

    def _evaluate_node(self, view: NodeView) -> None:
        rules, name = self._rules, view.name
        self._evaluated_views[name] = view
        obstacle = self.obstacles[name] = node_filters.find_obstacle(rules, view)
        if obstacle is not None:
            return
        if rules.preferences and (preference_score := node_filters.preference_weight(rules, view)):
            self.affinity_weights[name] = preference_score
        if view.taints and (untolerated_taints := node_filters.untolerated_taint_count(rules, view)):
            self.taint_counts[name] = untolerated_taints


class CandidateNodes:
    """The nodes whose labels, taints and free resources suit pods of one PodShape, and their resource scores."""

    def __init__(
        self, shape: PodShape, profile: NodeScoring, static_results: StaticFilterResults, node_changes: NodeGenerations
    ) -> None:
        self._shape = shape
        self._score = profile.score if isinstance(profile, GpuPolicy) else partial(node_filters.resource_score, profile)
        self._changes = node_changes
        self._evaluated_generation = -1
        self._heap: list[tuple[int, str]] = []
        self.static_results = static_results
        self.scores: dict[str, int] = {}

    def refresh(self, nodes: Mapping[str, NodeInfo]) -> None:
        """Recompute the fit and the scores of the nodes that changed since the last call."""
        self.static_results.refresh()
        if self._evaluated_generation == self._changes.latest:
            return
        names = (
            list(nodes) if self._evaluated_generation < 0 else self._changes.changed_since(self._evaluated_generation)
        )
        for name in names:
            self._evaluate_node(name, nodes.get(name))
        self._evaluated_generation = self._changes.latest
        if len(self._heap) > 4 * len(self.scores) + 64:
            self._heap = [(-score, name) for name, score in self.scores.items()]
            heapify(self._heap)

    def best_node(self, accepts_node: Callable[[str], bool]) -> str:
        """Return the name of the node with the highest score that `accepts_node` allows; '' if there is none.

        On a tie, the node whose name sorts first is chosen.
        """
        heap, scores, rejected_entries = self._heap, self.scores, list[tuple[int, str]]()
        best_node_name = ""
        while heap and not best_node_name:
            heap_entry = heap[0]
            name = heap_entry[1]
            if scores.get(name) != -heap_entry[0] or (rejected_entries and rejected_entries[-1] == heap_entry):
                heappop(heap)  # outdated or duplicate
            elif accepts_node(name):
                best_node_name = name
            else:
                rejected_entries.append(heappop(heap))
        for heap_entry in rejected_entries:
            heappush(heap, heap_entry)
        return best_node_name

    def random_node(self, accepts_node: Callable[[str], bool], draw_below: DrawBelow) -> str:
        """Return the name of a random node that `accepts_node` allows; '' if there is none."""
        names = [name for name in self.scores if accepts_node(name)]
        return names[draw_below(len(names))] if names else ""

    def _evaluate_node(self, name: str, node: NodeInfo | None) -> None:
        if (
            node is None
            or self.static_results.obstacles[name] is not None
            or not node_filters.has_room(self._shape, node)
        ):
            self.scores.pop(name, None)
            return
        score = self._score(self._shape, node)
        if self.scores.get(name) != score:
            self.scores[name] = score
            heappush(self._heap, (-score, name))


class NodeShortages:
    """Which resources or host ports each node lacks for pods of one PodShape, computed again after a node changes."""

    def __init__(self, shape: PodShape, node_changes: NodeGenerations) -> None:
        self._shape = shape
        self._changes = node_changes
        self._evaluated_generation = node_changes.latest
        self._failure_by_node: dict[str, node_filters.FilterFailure | None] = {}

    def find(self, node: NodeInfo) -> node_filters.FilterFailure | None:
        """Return what a node of the snapshot lacks for the pods; None if it has enough free resources."""
        if self._evaluated_generation != self._changes.latest:
            for name in self._changes.changed_since(self._evaluated_generation):
                self._failure_by_node.pop(name, None)
            self._evaluated_generation = self._changes.latest
        if node.name not in self._failure_by_node:
            self._failure_by_node[node.name] = node_filters.find_shortage(self._shape, node)
        return self._failure_by_node[node.name]


class CandidateNodesCache:
    """LRU cache of static filter results by node rules, and of candidate nodes and shortages by pod requirements."""

    def __init__(
        self, nodes: Mapping[str, NodeInfo], node_changes: NodeGenerations, property_changes: NodeGenerations
    ) -> None:
        self._nodes = nodes
        self._changes = node_changes
        self._property_changes = property_changes
        self._static_results = LruCache[NodeRules, StaticFilterResults](_CACHED_STATIC_RESULTS_MAX)
        self._candidates = LruCache[tuple[PodShape, NodeScoring], CandidateNodes](_CACHED_CANDIDATES_MAX)
        self._shortages = LruCache[PodShape, NodeShortages](_CACHED_CANDIDATES_MAX)

    def static_results(self, rules: NodeRules) -> StaticFilterResults:
        """Return the up-to-date static filter results for pods with the node rules `rules`."""
        static_results = self._static_results.get(rules)
        if static_results is None:
            static_results = StaticFilterResults(rules, self._nodes, self._property_changes)
            self._static_results.put(rules, static_results)
        static_results.refresh()
        return static_results

    def shortages_for(self, shape: PodShape) -> NodeShortages:
        """Return the shortages of nodes for pods with the requirements `shape`."""
        shortages = self._shortages.get(shape)
        if shortages is None:
            shortages = NodeShortages(shape, self._changes)
            self._shortages.put(shape, shortages)
        return shortages

    def candidates_for(self, shape: PodShape, profile: NodeScoring) -> CandidateNodes:
        """Return the up-to-date candidate nodes for pods with the requirements `shape`, scored by `profile`."""
        cache_key = shape, profile
        candidate_nodes = self._candidates.get(cache_key)
        if candidate_nodes is None:
            candidate_nodes = CandidateNodes(shape, profile, self.static_results(shape.rules), self._changes)
            self._candidates.put(cache_key, candidate_nodes)
        candidate_nodes.refresh(self._nodes)
        return candidate_nodes


# PodDisruptionBudgets for preemption and scale-down: the allowed disruptions and the selected pods.
#
# Sources: kube-scheduler's plugin defaultpreemption (filterPodsWithPDBViolation); kubernetes-sigs/cluster-autoscaler,
# pkg/core/scaledown/pdb.


@dataclass(frozen=True, slots=True)
class _PodDisruptionBudget:
    pod_selector: Selector | None
    allowed_disruptions: int
    #: Names of the pods that are already disrupted.
    disrupted_pods: dict[str, None]

    def covers(self, pod: PodView) -> bool:
        """Return whether the budget selects a pod; the pod must be in the budget's namespace."""
        return self.pod_selector is not None and self.pod_selector.matches(pod.labels)


class PodDisruptionBudgets:
    """All PodDisruptionBudgets, by namespace."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[Key, _PodDisruptionBudget]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_namespace)

    def set(self, obj: Obj) -> None:
        """Add or update a PodDisruptionBudget."""
        key, status = key_of(obj), obj.get("status") or {}
        disrupted_pods: dict[str, None] = dict.fromkeys(status.get("disruptedPods") or ())
        pod_selector = parse_selector((obj.get("spec") or {}).get("selector"))
        allowed_disruptions = status.get("disruptionsAllowed", 0)
        self._by_namespace.setdefault(key.namespace, {})[key] = _PodDisruptionBudget(
            pod_selector, allowed_disruptions, disrupted_pods
        )

    def remove(self, key: Key) -> None:
        """Remove a PodDisruptionBudget."""
        budgets = self._by_namespace.get(key.namespace, {})
        budgets.pop(key, None)
        if not budgets:
            self._by_namespace.pop(key.namespace, None)

    def violating_uids(self, pods: Iterable[PodView]) -> dict[str, None]:
        """Return the uids of the pods whose eviction violates a PodDisruptionBudget if evicted in this order."""
        remaining_disruption_counts: dict[Key, int] = {}
        violating_uids: dict[str, None] = {}
        for pod in pods:
            for key, budget in self._by_namespace.get(pod.namespace, {}).items():
                if not (pod.labels and budget.pod_selector and budget.pod_selector.requirements and budget.covers(pod)):
                    continue  # kube-scheduler's rule: for preemption, an empty selector selects no pods
                if pod.name in budget.disrupted_pods:
                    continue
                remaining_disruption_counts[key] = remaining_disruption_counts.get(key, budget.allowed_disruptions) - 1
                if remaining_disruption_counts[key] < 0:
                    violating_uids[pod.uid] = None
        return violating_uids

    def remaining_disruptions(self) -> "RemainingDisruptions":
        """Return a copy of the disruptions that each budget still allows; scale-down trials subtract from the copy."""
        return RemainingDisruptions(self._by_namespace)


class RemainingDisruptions:
    """The disruptions that each PodDisruptionBudget still allows, while a simulation removes nodes one by one."""

    def __init__(self, budgets: dict[str, dict[Key, _PodDisruptionBudget]]) -> None:
        self._budgets = budgets
        self._remaining_counts = {
            key: budget.allowed_disruptions for each in budgets.values() for key, budget in each.items()
        }

    def blocks(self, pod: PodView) -> bool:
        """Return whether a budget that selects the pod allows no further disruption."""
        return any(self._remaining_counts[key] < 1 for key in self._budgets_of(pod))

    def subtract_disruptions(self, pods: Iterable[PodView]) -> None:
        """Subtract one allowed disruption for each pod from the budgets that select the pod."""
        for pod in pods:
            for key in self._budgets_of(pod):
                self._remaining_counts[key] -= 1

    def _budgets_of(self, pod: PodView) -> Iterable[Key]:
        return [key for key, budget in self._budgets.get(pod.namespace, {}).items() if budget.covers(pod)]


_NO_PODS: Mapping[str, PodView] = {}


class VolumeFilter(Protocol):
    """Node filter for the PersistentVolumeClaims of one pod."""

    #: Why no node accepts the pod; None if this depends on the node.
    pod_failure: node_filters.FilterFailure | None

    def find_obstacle(self, node: NodeInfo) -> node_filters.FilterFailure | None:
        """Return why a node does not suit the volumes of the pod; None if it does."""


VolumeFilterFactory: TypeAlias = Callable[[PodView, "ClusterSnapshot"], VolumeFilter]


class ClusterSnapshot:
    """The nodes with their pods, the nominated nodes of pending pods, the PodDisruptionBudgets, and namespace labels.

    `what_if` undoes changes of nodes, pods and nominations.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeInfo] = {}
        self._names: list[str] = []
        self._node_names: dict[str, str] = {}
        #: Pods bound to nodes that do not exist (yet), by node name.
        self._pods_of_missing_nodes: dict[str, dict[str, PodView]] = {}
        self._nominations: dict[str, dict[str, PodView]] = {}
        self._nominated_nodes: dict[str, str] = {}
        #: The number of pods on nodes, by priority.
        self._pod_counts_by_priority: dict[int, int] = {}
        #: Uids of the terminating pods among the pods on nodes.
        self.terminating_uids: dict[str, None] = {}
        self._undo_steps: list[Callable[[], None]] | None = None
        #: Labels by namespace.
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.budgets = PodDisruptionBudgets()
        #: Creates the node filter for a pod's claims; None if claims do not affect the placement.
        self.volume_filter: VolumeFilterFactory | None = None
        #: The pods on nodes by namespace and name of a claim that they use.
        self.claim_users: dict[tuple[str, str], dict[str, PodView]] = {}
        self._is_trial = False
        #: All changes of nodes or their pods; `permanent_changes` omits changes inside `what_if`.
        self.changes = NodeGenerations()
        self.permanent_changes = NodeGenerations()
        #: Only changes of the existence, labels and taints of nodes.
        self.property_changes = NodeGenerations()
        self.placed_pods = PodAffinityIndex()
        self.candidate_cache = CandidateNodesCache(self._nodes, self.changes, self.property_changes)

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    def __iter__(self) -> Iterator[NodeInfo]:
        """Iterate over the nodes in order of their names."""
        return iter([self._nodes[name] for name in self._names])

    def get(self, name: str) -> NodeInfo | None:
        """Return the node with this name; None if it does not exist."""
        return self._nodes.get(name)

    def node_name_of(self, uid: str) -> str:
        """Return the name of the node to which a pod was added; '' if the pod was not added."""
        return self._node_names.get(uid, "")

    def pod(self, uid: str) -> PodView | None:
        """Return the pod with this uid that was added to a node; None if there is none."""
        return self.placed_pods.get(uid)

    def what_if(self) -> "SnapshotTrial":
        """Return a context manager that undoes the changes inside its `with` block, unless `keep` is called."""
        return SnapshotTrial(self)

    def set_node(self, view: NodeView) -> None:
        """Add or update a node."""
        node = self._nodes.get(view.name)
        if node is None:
            self._add_node(view)
            return
        old_view = node.view
        node.set_view(view)
        self._record_undo(partial(self.set_node, old_view))
        if (view.labels, view.taints, view.unschedulable) != (old_view.labels, old_view.taints, old_view.unschedulable):
            self.property_changes.record_change(view.name)
            self._record_node_change(view.name)
        elif view.allocatable != old_view.allocatable:
            self._record_node_change(view.name)

    def remove_node(self, name: str) -> None:
        """Remove a node; its pods are kept in case the node is created again."""
        node = self._nodes.pop(name, None)
        if node is None:
            return
        del self._names[bisect_left(self._names, name)]
        if node.pods:
            self._pods_of_missing_nodes[name] = node.pods
        self._record_undo(partial(self._add_node, node.view))
        self._record_node_change(name)
        self.property_changes.record_change(name)

    def _add_node(self, view: NodeView) -> None:
        node = self._nodes[view.name] = NodeInfo(view)
        insort(self._names, view.name)
        for pod in self._pods_of_missing_nodes.pop(view.name, _NO_PODS).values():
            node.add_pod(pod)
        self._record_undo(partial(self.remove_node, view.name))
        self._record_node_change(view.name)
        self.property_changes.record_change(view.name)

    def add_pod(self, pod: PodView, node_name: str, gpu_indices: Sequence[int] = ()) -> None:
        """Add a bound or assumed pod to a node; a pod that was added before is moved or replaced."""
        self.remove_pod(pod.uid)
        self._node_names[pod.uid] = node_name
        node = self._nodes.get(node_name)
        if node is None:
            self._pods_of_missing_nodes.setdefault(node_name, {})[pod.uid] = pod
        else:
            node.add_pod(pod, gpu_indices)
        self.placed_pods.add(pod, node_name)
        self._pod_counts_by_priority[pod.priority] = self._pod_counts_by_priority.get(pod.priority, 0) + 1
        if pod.deleting:
            self.terminating_uids[pod.uid] = None
        for name in pod.volume_claims:
            self.claim_users.setdefault((pod.namespace, name), {})[pod.uid] = pod
        self._record_undo(partial(self.remove_pod, pod.uid))
        self._record_node_change(node_name)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod from its node; do nothing if it was not added."""
        node_name = self._node_names.pop(uid, None)
        if node_name is None:
            return
        node = self._nodes.get(node_name)
        previous_gpus: Sequence[int] = ()
        if node is None:
            pod = self._pods_of_missing_nodes[node_name].pop(uid)
            if not self._pods_of_missing_nodes[node_name]:
                del self._pods_of_missing_nodes[node_name]
        else:
            pod = node.pods[uid]
            previous_gpus = node.release(uid)
        self.placed_pods.remove(pod, node_name)
        self.terminating_uids.pop(uid, None)
        for name in pod.volume_claims:
            users = self.claim_users[pod.namespace, name]
            del users[uid]
            if not users:
                del self.claim_users[pod.namespace, name]
        self._pod_counts_by_priority[pod.priority] -= 1
        if not self._pod_counts_by_priority[pod.priority]:
            del self._pod_counts_by_priority[pod.priority]
        self._record_undo(partial(self.add_pod, pod, node_name, previous_gpus))
        self._record_node_change(node_name)

    def gpu_indices_of(self, uid: str) -> Sequence[int]:
        """Return the indices of the GPUs that a pod uses on its node, in whole or in part; () if it uses none."""
        node = self._nodes.get(self.node_name_of(uid))
        return () if node is None else node.gpu_shares.gpus_of(uid)

    def update_pod(self, pod: PodView) -> None:
        """Replace a pod that was added before by a revision with the same requests and labels."""
        node_name = self._node_names[pod.uid]
        node = self._nodes.get(node_name)
        old_pod = self.placed_pods.update(pod)
        (self._pods_of_missing_nodes[node_name] if node is None else node.pods)[pod.uid] = pod
        if pod.deleting:
            self.terminating_uids[pod.uid] = None
        else:
            self.terminating_uids.pop(pod.uid, None)
        self._record_undo(partial(self.update_pod, old_pod))

    def has_pods_below(self, priority: int) -> bool:
        """Return whether any pod on a node has a priority below `priority`."""
        return any(known < priority for known in self._pod_counts_by_priority)

    def nominate(self, pod: PodView, node_name: str) -> None:
        """Nominate a node for a pending pod: reserve its requests there against pods of the same or lower priority."""
        self.withdraw_nomination(pod.uid)
        self._nominated_nodes[pod.uid] = node_name
        self._nominations.setdefault(node_name, {})[pod.uid] = pod
        self._record_undo(partial(self.withdraw_nomination, pod.uid))

    def withdraw_nomination(self, uid: str) -> None:
        """Withdraw the nomination of a pod, if it has one."""
        node_name = self._nominated_nodes.pop(uid, None)
        if node_name is None:
            return
        nominations = self._nominations[node_name]
        pod = nominations.pop(uid)
        if not nominations:
            del self._nominations[node_name]
        self._record_undo(partial(self.nominate, pod, node_name))
        self._record_node_change(node_name)

    def pods_nominated_to(self, node_name: str) -> Mapping[str, PodView]:
        """Return the pods nominated to a node, by uid."""
        return self._nominations.get(node_name, _NO_PODS)

    def competing_nominations(self, pod: PodView, node_name: str) -> list[PodView]:
        """Return the other pods that are nominated to a node and have at least the priority of `pod`."""
        nominations = self._nominations.get(node_name)
        if nominations is None:
            return []
        return [other for other in nominations.values() if other.priority >= pod.priority and other.uid != pod.uid]

    def nominated_node_of(self, uid: str) -> str:
        """Return the name of the node to which a pod is nominated; '' if it is not nominated."""
        return self._nominated_nodes.get(uid, "")

    def begin_trial(self) -> list[Callable[[], None]] | None:
        """Start a trial: record how to undo each of the following changes of the snapshot.

        Trials can be nested. Return the undo steps recorded in the enclosing trial, None if there is none.
        """
        outer_undo_steps, self._undo_steps, self._is_trial = self._undo_steps, [], True
        return outer_undo_steps

    def keep_changes(self, outer_undo_steps: list[Callable[[], None]] | None) -> None:
        """End the current trial without undoing its changes; they become part of the enclosing trial.

        `outer_undo_steps`, the result of `begin_trial`, must not be None.
        """
        assert outer_undo_steps is not None, "keep_changes() requires an enclosing what_if() block"
        outer_undo_steps += self._undo_steps or ()
        self._undo_steps = outer_undo_steps

    def roll_back_changes(self, outer_undo_steps: list[Callable[[], None]] | None) -> None:
        """Undo the changes of a `what_if()` block; an enclosing block, if any, continues to record changes.

        `outer_undo_steps` is the value that `begin_trial` returned at the start of the block.
        """
        undo_steps, self._undo_steps = self._undo_steps or [], None
        for step in reversed(undo_steps):
            step()
        self._undo_steps, self._is_trial = outer_undo_steps, outer_undo_steps is not None

    def _record_node_change(self, name: str) -> None:
        self.changes.record_change(name)
        if not self._is_trial:
            self.permanent_changes.record_change(name)

    def _record_undo(self, undo_step: Callable[[], None]) -> None:
        if self._undo_steps is not None:
            self._undo_steps.append(undo_step)


class SnapshotTrial:
    """Context manager that undoes the changes of the cluster snapshot made inside it, unless `keep` is called."""

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        self._outer_undo_steps: list[Callable[[], None]] | None = None
        self._is_kept = False

    def __enter__(self) -> "SnapshotTrial":
        """Start recording the changes of the snapshot."""
        self._outer_undo_steps = self._nodes.begin_trial()
        return self

    def keep(self) -> None:
        """Do not undo the changes at the end of the `with` block; only for use within an outer SnapshotTrial.

        The changes become part of the outer SnapshotTrial, which undoes or keeps them.
        """
        self._is_kept = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Undo the snapshot's changes of the `with` block; after `keep`, leave them to the enclosing block instead."""
        if self._is_kept:
            self._nodes.keep_changes(self._outer_undo_steps)
        else:
            self._nodes.roll_back_changes(self._outer_undo_steps)
