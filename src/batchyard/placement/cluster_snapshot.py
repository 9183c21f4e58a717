"""Cluster snapshot of the scheduler: nodes, their pods and free resources, updated incrementally.

`what_if` undoes changes exactly, so plans are tried on the snapshot itself instead of a copy.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from types import TracebackType
from typing import Final

from batchyard.api.meta import Key, Obj, Selector, key_of, selector
from batchyard.api.views.node import NodeView
from batchyard.api.views.pod_shape import NodeRules, PodShape
from batchyard.api.views.pods import PodView
from batchyard.placement.node_filters import (
    AutoscalingProfile,
    FilterFailure,
    aversion,
    find_obstacle,
    has_room,
    preference,
    resource_score,
)
from batchyard.placement.node_info import NodeGenerations, NodeInfo
from batchyard.placement.pod_affinity import PodAffinityIndex

# --- candidate nodes ---
#
# Candidate nodes for pods of equal shape, best first, updated incrementally.
#
# Static filters are evaluated once for all pods with the same rules, and again only for nodes whose labels or taints
# change. Resources and scores are evaluated once for pods of the same shape, and again for changed nodes. So placing
# many equal pods costs one look at each changed node, not at all nodes.


_REACHES_MAX: Final = 1024
_SHORTLISTS_MAX: Final = 1024


class StaticFilterResults:
    """The static filters and preferences of equal rules, evaluated for each node."""

    def __init__(self, rules: NodeRules, nodes: Mapping[str, NodeInfo], traits: NodeGenerations) -> None:
        self._rules = rules
        self._nodes = nodes
        self._traits = traits
        self._moment = traits.now
        self._seen: dict[str, NodeView] = {}
        #: Why a node rejects the pods; None: it does not.
        self.obstacles: dict[str, FilterFailure | None] = {}
        #: Scores of preferred node affinity, and counts of PreferNoSchedule taints; zeros are omitted.
        self.preferences: dict[str, int] = {}
        self.aversions: dict[str, int] = {}
        for node in nodes.values():
            self._look(node.view)

    def refresh(self) -> None:
        """Apply the changes of nodes."""
        if self._moment == self._traits.now:
            return
        for name in self._traits.since(self._moment):
            node = self._nodes.get(name)
            if node is None:
                self._forget(name)
            elif node.view != self._seen.get(name):  # changes made inside what_if are undone by now
                self._forget(name)
                self._look(node.view)
        self._moment = self._traits.now

    def _forget(self, name: str) -> None:
        for known in (self._seen, self.obstacles, self.preferences, self.aversions):
            known.pop(name, None)

    def _look(self, view: NodeView) -> None:
        rules, name = self._rules, view.name
        self._seen[name] = view
        obstacle = self.obstacles[name] = find_obstacle(rules, view)
        if obstacle is not None:
            return
        if rules.preferences and (preferred := preference(rules, view)):
            self.preferences[name] = preferred
        if view.taints and (averse := aversion(rules, view)):
            self.aversions[name] = averse


class CandidateNodes:
    """The nodes with room for pods of a shape, and their resource scores."""

    def __init__(
        self, shape: PodShape, profile: AutoscalingProfile, reach: StaticFilterResults, changes: NodeGenerations
    ) -> None:
        self._shape = shape
        self._profile = profile
        self._changes = changes
        self._moment = -1
        self._heap: list[tuple[int, str]] = []
        self.reach = reach
        self.scores: dict[str, int] = {}

    def refresh(self, nodes: Mapping[str, NodeInfo]) -> None:
        """Apply the changes of nodes."""
        self.reach.refresh()
        if self._moment == self._changes.now:
            return
        names = list(nodes) if self._moment < 0 else self._changes.since(self._moment)
        for name in names:
            self._look(name, nodes.get(name))
        self._moment = self._changes.now
        if len(self._heap) > 4 * len(self.scores) + 64:
            self._heap = [(-score, name) for name, score in self.scores.items()]
            heapify(self._heap)

    def best(self, accepts: Callable[[str], bool]) -> str:
        """Return the accepted node with the highest score, the first by name among equals; '' if there is none."""
        heap, scores, refused = self._heap, self.scores, list[tuple[int, str]]()
        found = ""
        while heap and not found:
            entry = heap[0]
            name = entry[1]
            if scores.get(name) != -entry[0] or (refused and refused[-1] == entry):
                heappop(heap)  # outdated or duplicate
            elif accepts(name):
                found = name
            else:
                refused.append(heappop(heap))
        for entry in refused:
            heappush(heap, entry)
        return found

    def _look(self, name: str, node: NodeInfo | None) -> None:
        if node is None or self.reach.obstacles[name] is not None or not has_room(self._shape, node):
            self.scores.pop(name, None)
            return
        score = resource_score(self._shape, node, self._profile)
        if self.scores.get(name) != score:
            self.scores[name] = score
            heappush(self._heap, (-score, name))


class CandidateNodesCache:
    """LRU cache of filter results by rules, and of candidates by shape."""

    def __init__(self, nodes: Mapping[str, NodeInfo], changes: NodeGenerations, traits: NodeGenerations) -> None:
        self._nodes = nodes
        self._changes = changes
        self._traits = traits
        self._reaches: dict[NodeRules, StaticFilterResults] = {}
        self._lists: dict[tuple[PodShape, AutoscalingProfile], CandidateNodes] = {}

    def reach(self, rules: NodeRules) -> StaticFilterResults:
        """Return the up-to-date filter results for some rules."""
        reach = self._reaches.pop(rules, None)
        if reach is None:
            if len(self._reaches) >= _REACHES_MAX:
                del self._reaches[next(iter(self._reaches))]
            reach = StaticFilterResults(rules, self._nodes, self._traits)
        self._reaches[rules] = reach
        reach.refresh()
        return reach

    def of(self, shape: PodShape, profile: AutoscalingProfile) -> CandidateNodes:
        """Return the up-to-date candidates for a shape."""
        key = shape, profile
        found = self._lists.pop(key, None)
        if found is None:
            if len(self._lists) >= _SHORTLISTS_MAX:
                del self._lists[next(iter(self._lists))]
            found = CandidateNodes(shape, profile, self.reach(shape.rules), self._changes)
        self._lists[key] = found
        found.refresh(self._nodes)
        return found


# --- budgets ---
#
# PodDisruptionBudgets for preemption and scale-down: the allowed disruptions and the guarded pods.
#
# Sources: kube-scheduler's plugin defaultpreemption (filterPodsWithPDBViolation); kubernetes-sigs/cluster-autoscaler,
# pkg/core/scaledown/pdb.


@dataclass(frozen=True, slots=True)
class _PodDisruptionBudget:
    """Selector, allowed disruptions and disrupted pods of one budget."""

    chosen: Selector | None
    allowed: int
    #: Names of the pods that are already disrupted.
    gone: dict[str, None]

    def guards(self, pod: PodView) -> bool:
        """Whether the budget selects a pod of its namespace."""
        return self.chosen is not None and self.chosen.matches(pod.labels)


class PodDisruptionBudgets:
    """All PodDisruptionBudgets, by namespace."""

    def __init__(self) -> None:
        self._by_namespace: dict[str, dict[Key, _PodDisruptionBudget]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_namespace)

    def set(self, obj: Obj) -> None:
        """Add or update a budget."""
        key, status = key_of(obj), obj.get("status") or {}
        gone: dict[str, None] = dict.fromkeys(status.get("disruptedPods") or ())
        chosen = selector((obj.get("spec") or {}).get("selector"))
        allowed = status.get("disruptionsAllowed", 0)
        self._by_namespace.setdefault(key.namespace, {})[key] = _PodDisruptionBudget(chosen, allowed, gone)

    def remove(self, key: Key) -> None:
        """Remove a budget."""
        known = self._by_namespace.get(key.namespace, {})
        known.pop(key, None)
        if not known:
            self._by_namespace.pop(key.namespace, None)

    def violating(self, pods: Iterable[PodView]) -> dict[str, None]:
        """Return the uids of the pods whose eviction, in this order, violates a budget."""
        left: dict[Key, int] = {}
        found: dict[str, None] = {}
        for pod in pods:
            for key, budget in self._by_namespace.get(pod.namespace, {}).items():
                if not pod.labels or not budget.chosen or not budget.chosen.requirements or not budget.guards(pod):
                    continue  # kube-scheduler's rule: here an empty selector selects nothing
                if pod.name in budget.gone:
                    continue
                left[key] = left.get(key, budget.allowed) - 1
                if left[key] < 0:
                    found[pod.uid] = None
        return found

    def rest(self) -> "DisruptionsAllowed":
        """Return a copy of the allowed disruptions that can be used up."""
        return DisruptionsAllowed(self._by_namespace)


class DisruptionsAllowed:
    """The remaining disruptions while candidates for scale-down are tried."""

    def __init__(self, budgets: dict[str, dict[Key, _PodDisruptionBudget]]) -> None:
        self._budgets = budgets
        self._left = {key: budget.allowed for each in budgets.values() for key, budget in each.items()}

    def blocks(self, pod: PodView) -> bool:
        """Whether a budget that guards the pod has no disruptions left."""
        return any(self._left[key] < 1 for key in self._guarding(pod))

    def take(self, pods: Iterable[PodView]) -> None:
        """Subtract the disruptions of these pods."""
        for pod in pods:
            for key in self._guarding(pod):
                self._left[key] -= 1

    def _guarding(self, pod: PodView) -> Iterable[Key]:
        return [key for key, budget in self._budgets.get(pod.namespace, {}).items() if budget.guards(pod)]


_NO_PODS: Mapping[str, PodView] = {}


class ClusterSnapshot:
    """Nodes and their pods, nominations, budgets and namespaces, with undo."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeInfo] = {}
        self._names: list[str] = []
        self._places: dict[str, str] = {}
        #: Pods bound to nodes that do not exist (yet), by node name.
        self._strays: dict[str, dict[str, PodView]] = {}
        self._nominations: dict[str, dict[str, PodView]] = {}
        self._nominated: dict[str, str] = {}
        #: The number of placed pods by priority.
        self._priorities: dict[int, int] = {}
        #: Uids of placed pods that are terminating.
        self.stopping: dict[str, None] = {}
        self._undo: list[Callable[[], None]] | None = None
        #: Labels by namespace.
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.budgets = PodDisruptionBudgets()
        self._is_trial = False
        #: Every change of a node or its pods; `lasting` omits those inside `what_if`.
        self.changes = NodeGenerations()
        self.lasting = NodeGenerations()
        #: Changes of a node's existence, labels and taints only.
        self.traits = NodeGenerations()
        self.neighbours = PodAffinityIndex()
        self.shortlists = CandidateNodesCache(self._nodes, self.changes, self.traits)

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self._nodes)

    def __iter__(self) -> Iterator[NodeInfo]:
        """Iterate over the nodes by name."""
        return iter([self._nodes[name] for name in self._names])

    def get(self, name: str) -> NodeInfo | None:
        """Return a node by name."""
        return self._nodes.get(name)

    def place_of(self, uid: str) -> str:
        """Return the name of the node that a pod was added to; '' if none."""
        return self._places.get(uid, "")

    def pod(self, uid: str) -> PodView | None:
        """Return a pod that was added."""
        return self.neighbours.get(uid)

    def what_if(self) -> "SnapshotTrial":
        """Return a context manager that undoes all changes made inside."""
        return SnapshotTrial(self)

    # --- nodes ---

    def set_node(self, view: NodeView) -> None:
        """Add or update a node."""
        node = self._nodes.get(view.name)
        if node is None:
            self._add_node(view)
            return
        before = node.view
        node.set_view(view)
        self._note(partial(self.set_node, before))
        if (view.labels, view.taints, view.unschedulable) != (before.labels, before.taints, before.unschedulable):
            self.traits.note(view.name)
            self._changed(view.name)
        elif view.allocatable != before.allocatable:
            self._changed(view.name)

    def remove_node(self, name: str) -> None:
        """Remove a node; its pods are kept in case it returns."""
        node = self._nodes.pop(name, None)
        if node is None:
            return
        del self._names[bisect_left(self._names, name)]
        if node.pods:
            self._strays[name] = node.pods
        self._note(partial(self._add_node, node.view))
        self._changed(name)
        self.traits.note(name)

    def _add_node(self, view: NodeView) -> None:
        node = self._nodes[view.name] = NodeInfo(view)
        insort(self._names, view.name)
        for pod in self._strays.pop(view.name, _NO_PODS).values():
            node.take(pod)
        self._note(partial(self.remove_node, view.name))
        self._changed(view.name)
        self.traits.note(view.name)

    # --- pods ---

    def add_pod(self, pod: PodView, node_name: str, devices: Sequence[int] = ()) -> None:
        """Add a pod to a node, bound or assumed; a pod that was added before is moved or replaced."""
        self.remove_pod(pod.uid)
        self._places[pod.uid] = node_name
        node = self._nodes.get(node_name)
        if node is None:
            self._strays.setdefault(node_name, {})[pod.uid] = pod
        else:
            node.take(pod, devices)
        self.neighbours.add(pod, node_name)
        self._priorities[pod.priority] = self._priorities.get(pod.priority, 0) + 1
        if pod.deleting:
            self.stopping[pod.uid] = None
        self._note(partial(self.remove_pod, pod.uid))
        self._changed(node_name)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod that was deleted or has ended."""
        node_name = self._places.pop(uid, None)
        if node_name is None:
            return
        node = self._nodes.get(node_name)
        devices: Sequence[int] = ()
        if node is None:
            pod = self._strays[node_name].pop(uid)
            if not self._strays[node_name]:
                del self._strays[node_name]
        else:
            pod = node.pods[uid]
            devices = node.release(uid)
        self.neighbours.remove(pod, node_name)
        self.stopping.pop(uid, None)
        self._priorities[pod.priority] -= 1
        if not self._priorities[pod.priority]:
            del self._priorities[pod.priority]
        self._note(partial(self.add_pod, pod, node_name, devices))
        self._changed(node_name)

    def devices_of(self, uid: str) -> Sequence[int]:
        """Return the indices of the GPUs of which a pod has shares on its node."""
        node = self._nodes.get(self.place_of(uid))
        return () if node is None else node.devices.held_by(uid)

    def update_pod(self, pod: PodView) -> None:
        """Replace an added pod by another revision with the same requests and labels."""
        node_name = self._places[pod.uid]
        node = self._nodes.get(node_name)
        before = self.neighbours.update(pod)
        (self._strays[node_name] if node is None else node.pods)[pod.uid] = pod
        if pod.deleting:
            self.stopping[pod.uid] = None
        else:
            self.stopping.pop(pod.uid, None)
        self._note(partial(self.update_pod, before))

    def has_lower_priority(self, priority: int) -> bool:
        """Whether a placed pod has a lower priority."""
        return any(known < priority for known in self._priorities)

    # --- nominations ---

    def nominate(self, pod: PodView, node_name: str) -> None:
        """Reserve room on a node for a pending pod, against pods of the same or lower priority."""
        self.withdraw(pod.uid)
        self._nominated[pod.uid] = node_name
        self._nominations.setdefault(node_name, {})[pod.uid] = pod
        self._note(partial(self.withdraw, pod.uid))

    def withdraw(self, uid: str) -> None:
        """Release the room reserved for a pod."""
        node_name = self._nominated.pop(uid, None)
        if node_name is None:
            return
        held = self._nominations[node_name]
        pod = held.pop(uid)
        if not held:
            del self._nominations[node_name]
        self._note(partial(self.nominate, pod, node_name))
        self._changed(node_name)

    def nominated_to(self, node_name: str) -> Mapping[str, PodView]:
        """Return the pods nominated to a node, by uid."""
        return self._nominations.get(node_name, _NO_PODS)

    def held_against(self, pod: PodView, node_name: str) -> list[PodView]:
        """Return the pods whose reservation on a node binds a pod: all of the same or higher priority."""
        nominated = self._nominations.get(node_name)
        if nominated is None:
            return []
        return [other for other in nominated.values() if other.priority >= pod.priority and other.uid != pod.uid]

    def nomination_of(self, uid: str) -> str:
        """Return the node to which a pod is nominated; '' if none."""
        return self._nominated.get(uid, "")

    # --- undoing ---

    def begin(self) -> list[Callable[[], None]] | None:
        """Start recording changes for undo; return the outer recording."""
        outer, self._undo, self._is_trial = self._undo, [], True
        return outer

    def keep(self, outer: list[Callable[[], None]] | None) -> None:
        """Append the changes since `begin` to the outer recording."""
        assert outer is not None, "changes are kept only inside what_if"
        outer += self._undo or ()
        self._undo = outer

    def rollback(self, outer: list[Callable[[], None]] | None) -> None:
        """Undo the changes since `begin`, and resume the outer recording."""
        undo, self._undo = self._undo or [], None
        for step in reversed(undo):
            step()
        self._undo, self._is_trial = outer, outer is not None

    def _changed(self, name: str) -> None:
        self.changes.note(name)
        if not self._is_trial:
            self.lasting.note(name)

    def _note(self, undo: Callable[[], None]) -> None:
        if self._undo is not None:
            self._undo.append(undo)


class SnapshotTrial:
    """Context manager that undoes the changes made inside, unless they are kept."""

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        self._outer: list[Callable[[], None]] | None = None
        self._is_kept = False

    def __enter__(self) -> "SnapshotTrial":
        """Start recording."""
        self._outer = self._nodes.begin()
        return self

    def keep(self) -> None:
        """Leave the changes to the enclosing context."""
        self._is_kept = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Undo the changes, or pass them to the enclosing context."""
        if self._is_kept:
            self._nodes.keep(self._outer)
        else:
            self._nodes.rollback(self._outer)
