"""Units that fit nowhere and wait for a change that can help them.

Those that ask for the same stand in one line: what helps one may help the others, but the next is worth a look only
when the one before it found a place. Who minds where other pods are, or has room held for it, stands alone.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from batchyard.api.views.pods import PodShape, PodView
from batchyard.placement.cluster_snapshot import Nodes
from batchyard.placement.node_info import Node
from batchyard.placement.resources import NOTHING, find_shortage, has_room, less_held
from batchyard.placement.units import Turn

# --- waking ---
#
# Which changes can help a pod that fits nowhere, so that the others do not wake it.
#
# What lacks room, or meets taints and labels, is helped by nodes that changed; what minds other pods, by pods that came
# or went as well. Source: the queueing hints of kube-scheduler's plugins.


def is_helped_by(pod: PodView, changed: Iterable[str], nodes: Nodes) -> bool:
    """Whether the pod may fit one of the nodes that changed, or make room for itself there."""
    obstacles = nodes.shortlists.reach(pod.shape.rules).obstacles
    for name in changed:
        node = nodes.get(name)
        if node is not None and obstacles[name] is None and _may_fit(pod, node, nodes):
            return True
    return False


def is_concerned_by(pod: PodView, other: PodView, nodes: Nodes) -> bool:
    """Whether it can matter to the pod that another one came or went."""
    for term in (*pod.shape.affinity, *pod.shape.anti_affinity):
        if term.selects(other.namespace, other.labels, nodes.namespaces):
            return True
    for rule in pod.shape.spread:
        if other.namespace == pod.namespace and rule.selector is not None and rule.selector.matches(other.labels):
            return True
    return any(term.selects(pod.namespace, pod.labels, nodes.namespaces) for term in other.shape.anti_affinity)


def _may_fit(pod: PodView, node: Node, nodes: Nodes) -> bool:
    """Whether there is room that is held for nobody else, or would be if pods of lower priority left."""
    held = nodes.held_against(pod, node.name)
    if not held and has_room(pod.shape, node):
        return True
    below = node.taken_below(pod.priority) if pod.may_preempt else NOTHING
    if not below and not held:
        return False
    spare = less_held(below, held) if held else below
    return (bool(below) and bool(pod.shape.host_ports)) or find_shortage(pod.shape, node, spare) is None


Kind: TypeAlias = tuple[PodShape, int, bool, str]
"""What decides where a pod may go and for whom it may ask others to leave."""


class Asking(NamedTuple):
    """What names a line: how many pods of each kind its units have, and the unit that stands alone in it."""

    kinds: tuple[tuple[Kind, int], ...]
    alone: str


class _Place(NamedTuple):
    """Where a unit stands."""

    line: Asking
    turn: Turn
    #: The nodes on which room is held for it.
    held: Sequence[str]


class _Line(NamedTuple):
    """Units that ask for the same, in order of their turns."""

    #: One pod of each kind in a unit.
    asking: Sequence[PodView]
    turns: list[tuple[Turn, str]]


class Parked:
    """The lines of parked units."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._lines: dict[Asking, _Line] = {}
        self._places: dict[str, _Place] = {}
        #: Pods for which it matters where others are, by unit.
        self._minding: dict[str, Sequence[PodView]] = {}
        #: Units for which room is held, by the nodes on which it is.
        self._held: dict[str, dict[str, None]] = {}
        self._changed: Sequence[str] = ()

    def __len__(self) -> int:
        """How many units are parked."""
        return len(self._places)

    def line_for(self, unit: str, pods: Sequence[PodView]) -> Asking:
        """The line of a unit: equal for units that ask for the same and answer to the same changes."""
        counts: dict[Kind, int] = {}
        for pod in pods:
            alike = _kind(pod)
            counts[alike] = counts.get(alike, 0) + 1
        is_alone = any(alike[0].minds_pods for alike in counts) or any(map(self._is_special, pods))
        return Asking(tuple(counts.items()), unit if is_alone else "")

    def line_of(self, unit: str) -> Asking | None:
        """The line in which a unit stands; None if it is not parked."""
        place = self._places.get(unit)
        return None if place is None else place.line

    def add(self, unit: str, pods: Sequence[PodView], turn: Turn) -> None:
        """Park a unit."""
        line = self.line_for(unit, pods)
        held = list(dict.fromkeys(name for pod in pods if (name := self._nodes.nomination_of(pod.uid))))
        self._places[unit] = _Place(line, turn, held)
        if line not in self._lines:
            asking = {_kind(pod): pod for pod in pods}
            self._lines[line] = _Line(list(asking.values()), [])
        insort(self._lines[line].turns, (turn, unit))
        minding = [pod for pod in pods if pod.shape.minds_pods]
        if minding:
            self._minding[unit] = minding
        for node_name in held:
            self._held.setdefault(node_name, {})[unit] = None

    def remove(self, unit: str) -> None:
        """A unit is not parked any more."""
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

    def first(self, line: Asking) -> tuple[Turn, str] | None:
        """The first unit of a line, with its turn; None if there is nobody in that line."""
        found = self._lines.get(line)
        return None if found is None else found.turns[0]

    def stir(self, changed: Sequence[str], moved: Iterable[PodView], *, is_map_new: bool) -> list[tuple[Turn, str]]:
        """Who may be helped by nodes that changed and pods that came or went: the first of each line.

        With a new map, as where nodes came, went or have other labels, others are near or far: all who stand alone.
        """
        found = [line.turns[0] for line in self._lines.values() if self._is_helped(line, changed)]
        stirred = [unit for name in changed for unit in self._held.get(name, ())]
        stirred += [unit for unit, place in self._places.items() if place.line.alone] if is_map_new else ()
        for other in moved:
            stirred += [unit for unit, pods in self._minding.items() if self._is_concerned(pods, other)]
            if other.shape.anti_affinity:
                found += [line.turns[0] for line in self._lines.values() if self._is_concerned(line.asking, other)]
        self._changed = changed
        return list(dict.fromkeys([*found, *[(self._places[unit].turn, unit) for unit in stirred]]))

    def is_worth_a_try(self, unit: str) -> bool:
        """Whether what stirred a parked unit is still so: the room may be gone to others by now."""
        line = self._places[unit].line
        return bool(line.alone) or self._is_helped(self._lines[line], self._changed)

    def _is_helped(self, line: _Line, changed: Sequence[str]) -> bool:
        return any(is_helped_by(pod, changed, self._nodes) for pod in line.asking)

    def _is_concerned(self, pods: Sequence[PodView], other: PodView) -> bool:
        return any(is_concerned_by(pod, other, self._nodes) for pod in pods)

    def _is_special(self, pod: PodView) -> bool:
        """Whether room is held for a pod, or others want none of it near them."""
        if self._nodes.nomination_of(pod.uid):
            return True
        terms, namespaces = self._nodes.neighbours.repelling, self._nodes.namespaces
        return bool(terms) and any(term.selects(pod.namespace, pod.labels, namespaces) for term in terms)


def _kind(pod: PodView) -> Kind:
    return pod.shape, pod.priority, pod.may_preempt, pod.scheduler
