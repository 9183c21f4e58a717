"""The pods that wait for a node: who is to be tried now, in which order, and who is parked."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from batchyard.api.views.pods import PodView
from batchyard.placement.cluster_snapshot import Nodes
from batchyard.placement.units import Turn, Units
from batchyard.placement.unschedulable_pods import Asking, Parked


class WaitingPods:
    """See the module. A pass calls `start` and then `next_unit` until that is empty."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._units = Units()
        self._parked = Parked(nodes)
        self._active: dict[str, None] = {}
        #: Pods that came to a node or left one since the parked were last looked at, and up to when nodes were.
        self._moved: list[PodView] = []
        self._moment = self._traits_moment = 0
        #: Whether namespaces have other labels since then.
        self._are_namespaces_new = False
        #: What is left of a pass, and the unit tried last with the line it stood in.
        self._heap: list[tuple[Turn, str]] = []
        self._tried: tuple[str, Asking | None] = ("", None)

    def get(self, uid: str) -> PodView | None:
        """A pod that waits."""
        return self._units.pod(uid)

    @property
    def has_work(self) -> bool:
        """Whether somebody is to be tried, or something happened that may help somebody."""
        is_news = self._moved or self._are_namespaces_new or self._moment != self._nodes.lasting.now
        return bool(self._active or (self._parked and is_news))

    # --- who waits ---

    def add(self, pod: PodView) -> None:
        """A pod waits, or waits for something else than before: it is to be tried."""
        self.drop(pod.uid)
        self._units.put(pod)
        self._activate(self._units.of(pod))

    def refresh(self, pod: PodView) -> None:
        """A pod that waits is another revision now, and asks for the same."""
        self._units.put(pod)

    def drop(self, uid: str) -> None:
        """A pod waits no more."""
        pod = self._units.pod(uid)
        if pod is None:
            return
        unit = self._units.of(pod)
        self._units.remove(uid)
        if not self._units.pods(unit):
            self._parked.remove(unit)
            self._active.pop(unit, None)
        elif self._parked.line_of(unit) is not None:
            self._activate(unit)  # what is left of a gang may fit

    def activate(self, uid: str) -> None:
        """A pod that waits is to be tried, with its gang."""
        pod = self._units.pod(uid)
        if pod is not None:
            self._activate(self._units.of(pod))

    def park(self, pods: Sequence[PodView]) -> None:
        """The pods of a unit are not to be tried before something changes that can help them."""
        unit = self._units.of(pods[0])
        self._active.pop(unit, None)
        self._parked.remove(unit)
        self._parked.add(unit, pods, self._units.turn(pods))

    def note_moved(self, pod: PodView, has_node: bool) -> None:
        """A pod came to a node, or left one or is about to. The rest of a gang that has begun is tried one by one."""
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
        """A pod that has a node had other labels or terms: whom they kept away may come now."""
        if self._parked:
            self._moved.append(before)

    def note_namespaces(self) -> None:
        """Namespaces have other labels: pods may mean others by their terms."""
        self._are_namespaces_new = bool(self._parked)

    def _activate(self, unit: str) -> None:
        self._parked.remove(unit)
        self._active[unit] = None

    # --- a pass ---

    def line_for(self, pods: Sequence[PodView]) -> Asking:
        """What a unit asks for: if it fits nowhere, no unit of the same line does."""
        return self._parked.line_for(self._units.of(pods[0]), pods)

    def start(self) -> None:
        """Begin a pass: with those to be tried, and those whom the changes since the last one can help."""
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
        """The pods of the next unit to be tried, which then are parked or wait no more; none at the end of the pass."""
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
        """The first unit of a line was tried: if it is not back there, the next one is to be tried."""
        unit, line = self._tried
        self._tried = "", None
        if line is not None and self._parked.line_of(unit) != line:
            following = self._parked.first(line)
            if following is not None:
                heappush(self._heap, following)
