"""Scheduling queue of the placement controller: pods and gangs to try in order, and those that did not fit."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeAlias

from batchyard.api.views.pod_shape import PodShape
from batchyard.api.views.pods import PodView
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.node_filters import NO_AMOUNTS, find_shortage, has_room, subtract_requests
from batchyard.placement.node_info import NodeInfo
from batchyard.placement.units import SchedulingUnits, UnitSortKey

# Queueing hints: which changes may make an unschedulable pod fit.
#
# Changed nodes may help pods that lack resources or fail taints and labels. Added and removed pods may help pods with
# affinity or topology spread. Source: the queueing hints of kube-scheduler's plugins.


def may_be_helped_by(pod: PodView, node_names: Iterable[str], nodes: ClusterSnapshot) -> bool:
    """Return whether a pod may fit one of the nodes in `node_names`, possibly by preemption."""
    obstacles = nodes.candidate_cache.static_results(pod.shape.rules).obstacles
    for name in node_names:
        node = nodes.get(name)
        if node is not None and obstacles[name] is None and _may_fit(pod, node, nodes):
            return True
    return False


# Unschedulable units, parked until a change may help them.
#
# Units with the same requirements form an equivalence class: the next unit is tried only if the previous one fits. A
# unit with pod affinity, topology spread or a nomination is the only member of its class.


def is_affected_by(pod: PodView, other_pod: PodView, nodes: ClusterSnapshot) -> bool:
    """Return whether affinity, anti-affinity or spread rules make the placement of `pod` depend on `other_pod`."""
    for term in (*pod.shape.affinity, *pod.shape.anti_affinity):
        if term.selects(other_pod.namespace, other_pod.labels, nodes.namespaces):
            return True
    for rule in pod.shape.spread_rules:
        if (
            other_pod.namespace == pod.namespace
            and rule.selector is not None
            and rule.selector.matches(other_pod.labels)
        ):
            return True
    return any(term.selects(pod.namespace, pod.labels, nodes.namespaces) for term in other_pod.shape.anti_affinity)


def _may_fit(pod: PodView, node: NodeInfo, nodes: ClusterSnapshot) -> bool:
    competing_pods = nodes.competing_nominations(pod, node.name)
    if not competing_pods and has_room(pod.shape, node):
        return True
    freed_amounts = node.requests_below(pod.priority) if pod.may_preempt else NO_AMOUNTS
    if not freed_amounts and not competing_pods:
        return False
    available = subtract_requests(freed_amounts, competing_pods) if competing_pods else freed_amounts
    return (bool(freed_amounts) and bool(pod.shape.host_ports)) or find_shortage(pod.shape, node, available) is None


PodKind: TypeAlias = tuple[PodShape, int, bool, str]
"""A pod's shape, priority, permission to preempt, and scheduler: equal pods fit the same nodes."""


class EquivalenceKey(NamedTuple):
    """Key of a class of pods or gangs that fit the same nodes."""

    #: The kinds of the unit's pods, each with its number of pods.
    kinds: tuple[tuple[PodKind, int], ...]
    #: The name of the only unit of the class; '' if others may belong to it.
    lone_unit: str


class _ParkedUnit(NamedTuple):
    class_key: EquivalenceKey
    sort_key: UnitSortKey
    #: The nodes to which pods of the unit are nominated.
    nominated_nodes: Sequence[str]


class _EquivalenceClass(NamedTuple):
    #: One pod of each kind.
    representatives: Sequence[PodView]
    queued_units: list[tuple[UnitSortKey, str]]


class UnschedulablePods:
    """The pods and gangs that did not fit when they were tried, grouped into classes of equal requirements."""

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        self._classes: dict[EquivalenceKey, _EquivalenceClass] = {}
        self._parked_units: dict[str, _ParkedUnit] = {}
        #: Pods with affinity or topology spread, by unit.
        self._pods_with_affinity: dict[str, Sequence[PodView]] = {}
        #: Units with pods nominated to a node, by node.
        self._nominated_units: dict[str, dict[str, None]] = {}
        self._changed_nodes: Sequence[str] = ()

    def __len__(self) -> int:
        """Return the number of unschedulable pods and gangs."""
        return len(self._parked_units)

    def equivalence_key(self, unit: str, pods: Sequence[PodView]) -> EquivalenceKey:
        """Return the equivalence class of a pod or gang, which depends on the requirements of its pods."""
        count_by_kind: dict[PodKind, int] = {}
        for pod in pods:
            kind = _pod_kind(pod)
            count_by_kind[kind] = count_by_kind.get(kind, 0) + 1
        is_lone_unit = any(kind[0].depends_on_pods for kind in count_by_kind) or any(map(self._needs_own_class, pods))
        return EquivalenceKey(tuple(count_by_kind.items()), unit if is_lone_unit else "")

    def parked_class_key(self, unit: str) -> EquivalenceKey | None:
        """Return the equivalence class of an unschedulable pod or gang; None if `unit` is not unschedulable."""
        parked_unit = self._parked_units.get(unit)
        return None if parked_unit is None else parked_unit.class_key

    def add(self, unit: str, pods: Sequence[PodView], sort_key: UnitSortKey) -> None:
        """Add a pod or gang that did not fit; `unit` is its name: the pod's uid, or the gang.

        `sort_key` is its position among the pods and gangs with equal requirements.
        """
        class_key = self.equivalence_key(unit, pods)
        nominated_nodes = list(dict.fromkeys(name for pod in pods if (name := self._nodes.nominated_node_of(pod.uid))))
        self._parked_units[unit] = _ParkedUnit(class_key, sort_key, nominated_nodes)
        if class_key not in self._classes:
            representatives = {_pod_kind(pod): pod for pod in pods}
            self._classes[class_key] = _EquivalenceClass(list(representatives.values()), [])
        insort(self._classes[class_key].queued_units, (sort_key, unit))
        pods_with_affinity = [pod for pod in pods if pod.shape.depends_on_pods]
        if pods_with_affinity:
            self._pods_with_affinity[unit] = pods_with_affinity
        for node_name in nominated_nodes:
            self._nominated_units.setdefault(node_name, {})[unit] = None

    def remove(self, unit: str) -> None:
        """Remove a pod or gang, if it is among the unschedulable ones."""
        parked_unit = self._parked_units.pop(unit, None)
        if parked_unit is None:
            return
        self._pods_with_affinity.pop(unit, None)
        for node_name in parked_unit.nominated_nodes:
            del self._nominated_units[node_name][unit]
            if not self._nominated_units[node_name]:
                del self._nominated_units[node_name]
        queued_units = self._classes[parked_unit.class_key].queued_units
        del queued_units[bisect_left(queued_units, (parked_unit.sort_key, unit))]
        if not queued_units:
            del self._classes[parked_unit.class_key]

    def first_unit(self, class_key: EquivalenceKey) -> tuple[UnitSortKey, str] | None:
        """Return the sort key and name of the first pod or gang of an equivalence class; None if the class is empty."""
        equivalence_class = self._classes.get(class_key)
        return None if equivalence_class is None else equivalence_class.queued_units[0]

    def find_helped_units(
        self, node_names: Sequence[str], moved_pods: Iterable[PodView], *, is_topology_changed: bool
    ) -> list[tuple[UnitSortKey, str]]:
        """Return the unschedulable pods and gangs that may fit after changes, as pairs of sort key and name.

        The nodes `node_names` changed, and the pods `moved_pods` were bound, terminate or were removed. Of each
        equivalence class, only the first member is returned. With `is_topology_changed` (nodes, their labels or taints,
        or namespace labels changed), all pods and gangs that are alone in their class are returned too.
        """
        helped_units = [
            equivalence_class.queued_units[0]
            for equivalence_class in self._classes.values()
            if self._is_helped(equivalence_class, node_names)
        ]
        affected_units = [unit for name in node_names for unit in self._nominated_units.get(name, ())]
        affected_units += (
            [unit for unit, parked_unit in self._parked_units.items() if parked_unit.class_key.lone_unit]
            if is_topology_changed
            else ()
        )
        for moved_pod in moved_pods:
            affected_units += [
                unit for unit, pods in self._pods_with_affinity.items() if self._are_affected(pods, moved_pod)
            ]
            if moved_pod.shape.anti_affinity:
                helped_units += [
                    equivalence_class.queued_units[0]
                    for equivalence_class in self._classes.values()
                    if self._are_affected(equivalence_class.representatives, moved_pod)
                ]
        self._changed_nodes = node_names
        return list(
            dict.fromkeys([*helped_units, *[(self._parked_units[unit].sort_key, unit) for unit in affected_units]])
        )

    def may_fit_changed_nodes(self, unit: str) -> bool:
        """Return whether a pod or gang may fit the changed nodes, on which earlier pods may have been placed since."""
        class_key = self._parked_units[unit].class_key
        return bool(class_key.lone_unit) or self._is_helped(self._classes[class_key], self._changed_nodes)

    def _is_helped(self, equivalence_class: _EquivalenceClass, node_names: Sequence[str]) -> bool:
        return any(may_be_helped_by(pod, node_names, self._nodes) for pod in equivalence_class.representatives)

    def _are_affected(self, pods: Sequence[PodView], moved_pod: PodView) -> bool:
        return any(is_affected_by(pod, moved_pod, self._nodes) for pod in pods)

    def _needs_own_class(self, pod: PodView) -> bool:
        if self._nodes.nominated_node_of(pod.uid) or pod.volume_claims:
            return True
        terms, namespaces = self._nodes.placed_pods.anti_affinity_terms, self._nodes.namespaces
        return bool(terms) and any(term.selects(pod.namespace, pod.labels, namespaces) for term in terms)


def _pod_kind(pod: PodView) -> PodKind:
    return pod.shape, pod.priority, pod.may_preempt, pod.scheduler


class SchedulingQueue:
    """The queue of scheduling units with pending pods; a unit is a gang, or a pod without a gang.

    To try all due units, call `start`, and then `next_unit` until it returns an empty sequence.
    """

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        self._units = SchedulingUnits()
        self._unschedulable_pods = UnschedulablePods(nodes)
        self._active_units: dict[str, None] = {}
        #: Pods that were bound or removed since the last pass, and the node generations that this pass has seen.
        self._moved_pods: list[PodView] = []
        self._generation = self._property_generation = 0
        #: Whether namespace labels have changed since the last pass.
        self._namespaces_changed = False
        #: The remaining units of the pass, and the last returned unit with its equivalence class.
        self._heap: list[tuple[UnitSortKey, str]] = []
        self._last_unit: tuple[str, EquivalenceKey | None] = ("", None)

    def get(self, uid: str) -> PodView | None:
        """Return the pending pod with this uid; None if it is not pending."""
        return self._units.pod(uid)

    @property
    def has_work(self) -> bool:
        """Whether a pod or gang is due to be tried, or a recent change may help an unschedulable one."""
        has_changes = (
            self._moved_pods or self._namespaces_changed or self._generation != self._nodes.permanent_changes.latest
        )
        return bool(self._active_units or (self._unschedulable_pods and has_changes))

    # --- pending pods ---

    def add(self, pod: PodView) -> None:
        """Add a pending pod, or replace one whose requirements changed; the pod or its gang will be tried."""
        self.drop(pod.uid)
        self._units.put(pod)
        self._activate_unit(self._units.unit_of(pod))

    def refresh(self, pod: PodView) -> None:
        """Replace a pending pod by a revision with the same requirements."""
        self._units.put(pod)

    def drop(self, uid: str) -> None:
        """Remove a pod from the queue because it is no longer pending."""
        pod = self._units.pod(uid)
        if pod is None:
            return
        unit = self._units.unit_of(pod)
        self._units.remove(uid)
        if not self._units.pods(unit):
            self._unschedulable_pods.remove(unit)
            self._active_units.pop(unit, None)
        elif self._unschedulable_pods.parked_class_key(unit) is not None:
            self._activate_unit(unit)  # the remaining pods of the gang may fit

    def activate(self, uid: str) -> None:
        """Let the next pass over the queue try a pending pod, together with its gang."""
        pod = self._units.pod(uid)
        if pod is not None:
            self._activate_unit(self._units.unit_of(pod))

    def park(self, pods: Sequence[PodView]) -> None:
        """Set a pod or all pods of a gang aside as unschedulable, until a change may help."""
        unit = self._units.unit_of(pods[0])
        self._active_units.pop(unit, None)
        self._unschedulable_pods.remove(unit)
        self._unschedulable_pods.add(unit, pods, self._units.sort_key(pods))

    def record_moved_pod(self, pod: PodView, has_node: bool) -> None:
        """Record that a pod was bound to a node (`has_node`), or that it terminates or was removed.

        If only a part of a gang is bound, its other pods are scheduled one by one from then on.
        """
        if self._unschedulable_pods:
            self._moved_pods.append(pod)
        if pod.gang and self._units.record_bound_state(pod, has_node):
            remaining_pods = self._units.pending_pods_of(pod.gang)
            for unit in (pod.gang, *[other.uid for other in remaining_pods]):
                self._unschedulable_pods.remove(unit)
                self._active_units.pop(unit, None)
            for other in remaining_pods:
                self._active_units[self._units.unit_of(other)] = None

    def record_relabeled_pod(self, previous_revision: PodView) -> None:
        """Record the old revision of a bound pod with changed labels or affinity terms: other pods may fit now."""
        if self._unschedulable_pods:
            self._moved_pods.append(previous_revision)

    def record_namespace_change(self) -> None:
        """Record that namespace labels changed, because affinity terms select namespaces by label."""
        self._namespaces_changed = bool(self._unschedulable_pods)

    def _activate_unit(self, unit: str) -> None:
        self._unschedulable_pods.remove(unit)
        self._active_units[unit] = None

    # --- a pass ---

    def equivalence_key(self, pods: Sequence[PodView]) -> EquivalenceKey:
        """Return the equivalence class of a pod or gang: if one member of the class does not fit, no other one does."""
        return self._unschedulable_pods.equivalence_key(self._units.unit_of(pods[0]), pods)

    def start(self) -> None:
        """Start a pass over the due pods and gangs, and the unschedulable ones that recent changes may help."""
        node_names, moved_pods = self._nodes.permanent_changes.changed_since(self._generation), self._moved_pods
        is_topology_changed = (
            self._namespaces_changed or self._property_generation != self._nodes.property_changes.latest
        )
        self._namespaces_changed = False
        self._moved_pods = []
        self._generation = self._nodes.permanent_changes.latest
        self._property_generation = self._nodes.property_changes.latest
        self._heap = [(self._units.sort_key(self._units.pods(unit)), unit) for unit in self._active_units]
        if self._unschedulable_pods and (node_names or moved_pods or is_topology_changed):
            self._heap += self._unschedulable_pods.find_helped_units(
                node_names, moved_pods, is_topology_changed=is_topology_changed
            )
        self._last_unit = "", None
        heapify(self._heap)

    def next_unit(self) -> Sequence[PodView]:
        """Return the next pod, or all pods of the next gang, for the caller to bind or `park`; empty if none."""
        self._queue_next_of_class()
        while self._heap:
            _, unit = heappop(self._heap)
            class_key = self._unschedulable_pods.parked_class_key(unit)
            if unit in self._active_units or (
                class_key is not None and self._unschedulable_pods.may_fit_changed_nodes(unit)
            ):
                self._last_unit = unit, class_key
                self._activate_unit(unit)
                return self._units.pods(unit)
        return ()

    def _queue_next_of_class(self) -> None:
        """After a unit (pod or gang) was placed, queue the next one of its equivalence class, which may fit too."""
        unit, class_key = self._last_unit
        self._last_unit = "", None
        if class_key is not None and self._unschedulable_pods.parked_class_key(unit) != class_key:
            next_unit_of_class = self._unschedulable_pods.first_unit(class_key)
            if next_unit_of_class is not None:
                heappush(self._heap, next_unit_of_class)
