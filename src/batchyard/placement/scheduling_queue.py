"""Scheduling queue: the active units, in order, and the unschedulable ones."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from batchyard.api.views.pods import PodView
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.units import SchedulingUnits, Turn
from batchyard.placement.unschedulable_pods import EquivalenceKey, UnschedulablePods


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
