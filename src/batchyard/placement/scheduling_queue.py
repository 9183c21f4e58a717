"""Scheduling queue: the active units, in order, and the unschedulable ones."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeAlias

from batchyard.api.views.pod_shape import PodShape
from batchyard.api.views.pods import PodView
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.node_filters import NOTHING, find_shortage, has_room, less_held
from batchyard.placement.node_info import NodeInfo
from batchyard.placement.units import SchedulingUnits, Turn

# --- waking ---
#
# Queueing hints: which changes may make an unschedulable pod fit.
#
# Pods that lack resources or fail taints and labels are helped by changed nodes. Pods with inter-pod rules are also
# helped by added and removed pods. Source: the queueing hints of kube-scheduler's plugins.


def is_helped_by(pod: PodView, changed: Iterable[str], nodes: ClusterSnapshot) -> bool:
    """Whether the pod may fit one of the changed nodes, possibly by preemption."""
    obstacles = nodes.shortlists.reach(pod.shape.rules).obstacles
    for name in changed:
        node = nodes.get(name)
        if node is not None and obstacles[name] is None and _may_fit(pod, node, nodes):
            return True
    return False


# --- unschedulable pods ---
#
# Unschedulable units, parked until a change may help them.
#
# Units with the same requirements form an equivalence class: if one fits, the next is tried, else none is. A unit with
# pod affinity, topology spread or a nomination is a class of its own.


def is_concerned_by(pod: PodView, other: PodView, nodes: ClusterSnapshot) -> bool:
    """Whether the addition or removal of another pod may affect the pod."""
    for term in (*pod.shape.affinity, *pod.shape.anti_affinity):
        if term.selects(other.namespace, other.labels, nodes.namespaces):
            return True
    for rule in pod.shape.spread:
        if other.namespace == pod.namespace and rule.selector is not None and rule.selector.matches(other.labels):
            return True
    return any(term.selects(pod.namespace, pod.labels, nodes.namespaces) for term in other.shape.anti_affinity)


def _may_fit(pod: PodView, node: NodeInfo, nodes: ClusterSnapshot) -> bool:
    """Whether the pod may fit, given the reservations of others, possibly without pods of lower priority."""
    held = nodes.held_against(pod, node.name)
    if not held and has_room(pod.shape, node):
        return True
    below = node.taken_below(pod.priority) if pod.may_preempt else NOTHING
    if not below and not held:
        return False
    spare = less_held(below, held) if held else below
    return (bool(below) and bool(pod.shape.host_ports)) or find_shortage(pod.shape, node, spare) is None


Kind: TypeAlias = tuple[PodShape, int, bool, str]
"""What decides on which nodes a pod fits and which pods it may preempt."""


class EquivalenceKey(NamedTuple):
    """The key of an equivalence class: the number of pods of each kind, and the unit if it is the only member."""

    kinds: tuple[tuple[Kind, int], ...]
    alone: str


class _ParkedUnit(NamedTuple):
    """The position of a parked unit."""

    line: EquivalenceKey
    turn: Turn
    #: The nodes to which its pods are nominated.
    held: Sequence[str]


class _EquivalenceClass(NamedTuple):
    """The units of an equivalence class, in scheduling order."""

    #: One pod of each kind.
    representatives: Sequence[PodView]
    turns: list[tuple[Turn, str]]


class UnschedulablePods:
    """The equivalence classes of parked units."""

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        self._lines: dict[EquivalenceKey, _EquivalenceClass] = {}
        self._places: dict[str, _ParkedUnit] = {}
        #: Pods with inter-pod rules, by unit.
        self._minding: dict[str, Sequence[PodView]] = {}
        #: Units with nominations, by node.
        self._held: dict[str, dict[str, None]] = {}
        self._changed: Sequence[str] = ()

    def __len__(self) -> int:
        """The number of parked units."""
        return len(self._places)

    def line_for(self, unit: str, pods: Sequence[PodView]) -> EquivalenceKey:
        """Return a unit's equivalence class: equal requirements and sensitivity to the same changes."""
        counts: dict[Kind, int] = {}
        for pod in pods:
            alike = _kind(pod)
            counts[alike] = counts.get(alike, 0) + 1
        is_alone = any(alike[0].minds_pods for alike in counts) or any(map(self._is_special, pods))
        return EquivalenceKey(tuple(counts.items()), unit if is_alone else "")

    def line_of(self, unit: str) -> EquivalenceKey | None:
        """Return the class of a parked unit; None if it is not parked."""
        place = self._places.get(unit)
        return None if place is None else place.line

    def add(self, unit: str, pods: Sequence[PodView], turn: Turn) -> None:
        """Park a unit."""
        line = self.line_for(unit, pods)
        held = list(dict.fromkeys(name for pod in pods if (name := self._nodes.nomination_of(pod.uid))))
        self._places[unit] = _ParkedUnit(line, turn, held)
        if line not in self._lines:
            representatives = {_kind(pod): pod for pod in pods}
            self._lines[line] = _EquivalenceClass(list(representatives.values()), [])
        insort(self._lines[line].turns, (turn, unit))
        minding = [pod for pod in pods if pod.shape.minds_pods]
        if minding:
            self._minding[unit] = minding
        for node_name in held:
            self._held.setdefault(node_name, {})[unit] = None

    def remove(self, unit: str) -> None:
        """Remove a unit from the parked ones."""
        place = self._places.pop(unit, None)
        if place is None:
            return
        self._minding.pop(unit, None)
        for node_name in place.held:
            del self._held[node_name][unit]
            if not self._held[node_name]:
                del self._held[node_name]
        turns = self._lines[place.line].turns
        del turns[bisect_left(turns, (place.turn, unit))]
        if not turns:
            del self._lines[place.line]

    def first(self, line: EquivalenceKey) -> tuple[Turn, str] | None:
        """Return the turn and name of the first unit of a class; None if the class is empty."""
        found = self._lines.get(line)
        return None if found is None else found.turns[0]

    def stir(self, changed: Sequence[str], moved: Iterable[PodView], *, is_map_new: bool) -> list[tuple[Turn, str]]:
        """Return the units that changed nodes and moved pods may help: the first of each class.

        If the topology changed (nodes or their labels), all single-member classes are included.
        """
        found = [line.turns[0] for line in self._lines.values() if self._is_helped(line, changed)]
        stirred = [unit for name in changed for unit in self._held.get(name, ())]
        stirred += [unit for unit, place in self._places.items() if place.line.alone] if is_map_new else ()
        for other in moved:
            stirred += [unit for unit, pods in self._minding.items() if self._is_concerned(pods, other)]
            if other.shape.anti_affinity:
                found += [
                    line.turns[0] for line in self._lines.values() if self._is_concerned(line.representatives, other)
                ]
        self._changed = changed
        return list(dict.fromkeys([*found, *[(self._places[unit].turn, unit) for unit in stirred]]))

    def is_worth_a_try(self, unit: str) -> bool:
        """Whether the change that activated the unit still helps it: others may have taken the room."""
        line = self._places[unit].line
        return bool(line.alone) or self._is_helped(self._lines[line], self._changed)

    def _is_helped(self, line: _EquivalenceClass, changed: Sequence[str]) -> bool:
        return any(is_helped_by(pod, changed, self._nodes) for pod in line.representatives)

    def _is_concerned(self, pods: Sequence[PodView], other: PodView) -> bool:
        return any(is_concerned_by(pod, other, self._nodes) for pod in pods)

    def _is_special(self, pod: PodView) -> bool:
        """Whether a pod is nominated, or placed pods have anti-affinity to it."""
        if self._nodes.nomination_of(pod.uid):
            return True
        terms, namespaces = self._nodes.neighbours.repelling, self._nodes.namespaces
        return bool(terms) and any(term.selects(pod.namespace, pod.labels, namespaces) for term in terms)


def _kind(pod: PodView) -> Kind:
    return pod.shape, pod.priority, pod.may_preempt, pod.scheduler


class SchedulingQueue:
    """The pending pods. A pass calls `start`, then `next_unit` until it returns nothing."""

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        self._units = SchedulingUnits()
        self._parked = UnschedulablePods(nodes)
        self._active: dict[str, None] = {}
        #: Pods that were bound or removed since the last pass, and the node generations it has seen.
        self._moved: list[PodView] = []
        self._moment = self._traits_moment = 0
        #: Whether namespace labels have changed since then.
        self._are_namespaces_new = False
        #: The rest of the pass, and the last unit with its equivalence class.
        self._heap: list[tuple[Turn, str]] = []
        self._tried: tuple[str, EquivalenceKey | None] = ("", None)

    def get(self, uid: str) -> PodView | None:
        """Return a pending pod."""
        return self._units.pod(uid)

    @property
    def has_work(self) -> bool:
        """Whether a unit is active, or a change may help an unschedulable one."""
        is_news = self._moved or self._are_namespaces_new or self._moment != self._nodes.lasting.now
        return bool(self._active or (self._parked and is_news))

    # --- pending pods ---

    def add(self, pod: PodView) -> None:
        """Add a pending pod, or one whose requirements changed, as active."""
        self.drop(pod.uid)
        self._units.put(pod)
        self._activate(self._units.of(pod))

    def refresh(self, pod: PodView) -> None:
        """Replace a pending pod by another revision with the same requirements."""
        self._units.put(pod)

    def drop(self, uid: str) -> None:
        """Remove a pod that is no longer pending."""
        pod = self._units.pod(uid)
        if pod is None:
            return
        unit = self._units.of(pod)
        self._units.remove(uid)
        if not self._units.pods(unit):
            self._parked.remove(unit)
            self._active.pop(unit, None)
        elif self._parked.line_of(unit) is not None:
            self._activate(unit)  # the rest of a gang may fit

    def activate(self, uid: str) -> None:
        """Move a pending pod's unit to the active ones."""
        pod = self._units.pod(uid)
        if pod is not None:
            self._activate(self._units.of(pod))

    def park(self, pods: Sequence[PodView]) -> None:
        """Park a unit until a relevant change."""
        unit = self._units.of(pods[0])
        self._active.pop(unit, None)
        self._parked.remove(unit)
        self._parked.add(unit, pods, self._units.turn(pods))

    def note_moved(self, pod: PodView, has_node: bool) -> None:
        """Record that a pod was bound or is leaving. The rest of a partly bound gang is tried pod by pod."""
        if self._parked:
            self._moved.append(pod)
        if pod.gang and self._units.set_begun(pod, has_node):
            rest = self._units.waiting_of(pod.gang)
            for unit in (pod.gang, *[other.uid for other in rest]):
                self._parked.remove(unit)
                self._active.pop(unit, None)
            for other in rest:
                self._active[self._units.of(other)] = None

    def note_relabelled(self, before: PodView) -> None:
        """Record that a bound pod had other labels or terms, which may unblock others."""
        if self._parked:
            self._moved.append(before)

    def note_namespaces(self) -> None:
        """Record that namespace labels changed, which affects namespace selectors of affinity terms."""
        self._are_namespaces_new = bool(self._parked)

    def _activate(self, unit: str) -> None:
        self._parked.remove(unit)
        self._active[unit] = None

    # --- a pass ---

    def line_for(self, pods: Sequence[PodView]) -> EquivalenceKey:
        """Return the equivalence class of a unit: if one fits nowhere, no unit of the class does."""
        return self._parked.line_for(self._units.of(pods[0]), pods)

    def start(self) -> None:
        """Start a pass with the active units and those that changes since the last pass may help."""
        changed, moved = self._nodes.lasting.since(self._moment), self._moved
        is_map_new = self._are_namespaces_new or self._traits_moment != self._nodes.traits.now
        self._are_namespaces_new = False
        self._moment, self._moved, self._traits_moment = self._nodes.lasting.now, [], self._nodes.traits.now
        self._heap = [(self._units.turn(self._units.pods(unit)), unit) for unit in self._active]
        if self._parked and (changed or moved or is_map_new):
            self._heap += self._parked.stir(changed, moved, is_map_new=is_map_new)
        self._tried = "", None
        heapify(self._heap)

    def next_unit(self) -> Sequence[PodView]:
        """Return the pods of the next unit, which the caller binds or parks; empty at the end of the pass."""
        self._follow_up()
        while self._heap:
            _, unit = heappop(self._heap)
            line = self._parked.line_of(unit)
            if unit in self._active or (line is not None and self._parked.is_worth_a_try(unit)):
                self._tried = unit, line
                self._activate(unit)
                return self._units.pods(unit)
        return ()

    def _follow_up(self) -> None:
        """If the last unit's class leader was not parked again, queue the next unit of its class."""
        unit, line = self._tried
        self._tried = "", None
        if line is not None and self._parked.line_of(unit) != line:
            following = self._parked.first(line)
            if following is not None:
                heappush(self._heap, following)
