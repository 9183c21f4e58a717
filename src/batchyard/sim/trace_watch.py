"""Follows a run of a trace by its watch events: when each pod got a node, and how the nodes were used all the time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.base.instant import Duration, Instant
from batchyard.core.placement.node import Node
from batchyard.ports.client import EventType, WatchEvent
from batchyard.sim.fragmentation import Mix, Room
from batchyard.sim.gauge import Gauge
from batchyard.sim.trace import GPU, MODEL, NAMESPACE

#: What they are called in nodes. cpu and GPUs are in thousandths, memory in bytes.
RESOURCES: Final[Mapping[str, str]] = {"cpu": "cpu", "memory": "memory", "gpu": GPU}
_NAMES: Final = {resource: name for name, resource in RESOURCES.items()}
ALL: Final = ""
"""The name of the fleet of all nodes."""


class Point(NamedTuple):
    """How all nodes stood at a moment."""

    at: Instant
    #: By resource.
    used: Mapping[str, float]
    fragmentation: float
    waiting: int


class Fleet:
    """What the nodes of a model of GPU, or all nodes, have and give, by resource."""

    def __init__(self, now: Instant) -> None:
        self.nodes = 0
        self.total = {resource: Gauge(now) for resource in RESOURCES}
        self.used = {resource: Gauge(now) for resource in RESOURCES}


class TraceWatch:
    """See the module. `now` tells the time; a point is noted `every` so often."""

    def __init__(self, mix: Mix, now: Callable[[], Instant], every: Duration) -> None:
        self._mix = mix
        self._now = now
        self._every = every
        self._begun = self._at = now()
        self._nodes: dict[str, Node] = {}
        #: Where pods are, by uid.
        self._places: dict[str, str] = {}
        #: Nodes that changed in this instant.
        self._changed: dict[str, None] = {}
        #: What nodes have free of their GPUs, and what of that is unusable.
        self._free: dict[str, tuple[int, int]] = {}
        self._free_sum = self._unusable_sum = 0
        self.fleets = {ALL: Fleet(self._at)}
        #: The share of the free GPUs that the mix of pods cannot use.
        self.fragmentation = Gauge(self._at)
        self.points: list[Point] = []
        #: Pods without a node, by uid.
        self.waiting: dict[str, PodView] = {}
        #: When a pod of the trace got its node, or why it went without, by name.
        self.placed: dict[str, Instant] = {}
        self.unplaced: dict[str, str] = {}

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Take note of changes."""
        self.let_pass(self._now())
        for event in events:
            if event.key.kind == scheme.POD:
                self._on_pod(event)
            elif event.key.kind == scheme.NODE:
                self._on_node(event)

    def let_pass(self, now: Instant) -> None:
        """Things stood until now as they stand."""
        if now == self._at:
            return
        self._look()
        first = self._at + (self._begun - self._at) % self._every
        for at in range(first, now, self._every):
            used = {resource: gauge.value for resource, gauge in self.fleets[ALL].used.items()}
            self.points.append(Point(at, used, self.fragmentation.value, len(self.waiting)))
        self._at = now

    def end(self, now: Instant) -> None:
        """The run has ended: nothing changes any more."""
        self.let_pass(now)
        gauges = [gauge for fleet in self.fleets.values() for gauge in (*fleet.total.values(), *fleet.used.values())]
        for gauge in (self.fragmentation, *gauges):
            gauge.set(gauge.value, now)

    # --- nodes ---

    def _on_node(self, event: WatchEvent) -> None:
        name, is_gone = event.key.name, event.type is EventType.DELETED
        known = self._nodes.get(name)
        view = node_view(event.obj)
        if known is None and not is_gone:
            self._nodes[name] = Node(view)
            self._count_node(view, 1)
        elif known is not None:
            self._count_node(known.view, -1)
            known.set_view(view)
            if is_gone:
                for uid in list(known.pods):
                    self._release(uid)
                del self._nodes[name]
            else:
                self._count_node(view, 1)
        self._changed[name] = None

    def _count_node(self, view: NodeView, sign: int) -> None:
        for fleet in self._fleets_of(view):
            fleet.nodes += sign
            for resource, gauge in fleet.total.items():
                gauge.add(sign * view.allocatable.get(RESOURCES[resource], 0), self._at)

    def _fleets_of(self, view: NodeView) -> list[Fleet]:
        model = view.labels.get(MODEL, ALL)
        if model not in self.fleets:
            self.fleets[model] = Fleet(self._at)
        return [self.fleets[name] for name in dict.fromkeys((ALL, model))]

    # --- pods ---

    def _on_pod(self, event: WatchEvent) -> None:
        pod = pod_view(event.obj)
        is_gone = event.type is EventType.DELETED
        if pod.node_name or is_gone:
            self._end_wait(pod)
        elif not pod.is_terminal:
            self.waiting[pod.uid] = pod
        holds = bool(pod.node_name) and not is_gone and not pod.is_terminal
        if holds and pod.uid not in self._places:
            self._take(pod)
        elif not holds and pod.uid in self._places:
            self._release(pod.uid)

    def _end_wait(self, pod: PodView) -> None:
        waited = self.waiting.pop(pod.uid, None)
        if pod.namespace != NAMESPACE or waited is None:
            return
        if pod.node_name:
            self.placed[pod.name] = self._at
        else:
            self.unplaced[pod.name] = waited.unplaced

    def _take(self, pod: PodView) -> None:
        node = self._nodes.get(pod.node_name)
        if node is None:
            return
        self._places[pod.uid] = node.name
        node.take(pod)
        self._count_pod(pod, node, 1)

    def _release(self, uid: str) -> None:
        node = self._nodes[self._places.pop(uid)]
        pod = node.pods[uid]
        node.release(uid)
        self._count_pod(pod, node, -1)

    def _count_pod(self, pod: PodView, node: Node, sign: int) -> None:
        self._changed[node.name] = None
        for fleet in self._fleets_of(node.view):
            for resource, amount in pod.requests:
                if resource in _NAMES:
                    fleet.used[_NAMES[resource]].add(sign * amount, self._at)

    # --- fragmentation ---

    def _look(self) -> None:
        """Work out the fragmentation anew where nodes changed."""
        if not self._changed:
            return
        for name in self._changed:
            free, unusable = self._free.pop(name, (0, 0))
            self._free_sum -= free
            self._unusable_sum -= unusable
            node = self._nodes.get(name)
            if node is not None:
                room = _room(node)
                self._free[name] = free, unusable = sum(room.gpus), self._mix.unusable(room)
                self._free_sum += free
                self._unusable_sum += unusable
        self._changed = {}
        whole = self._free_sum * self._mix.pods
        self.fragmentation.set(self._unusable_sum / whole if whole else 0.0, self._at)


def _room(node: Node) -> Room:
    gpus = tuple([max(0, left) for left in node.devices.left])
    return Room(node.view.labels.get(MODEL, ""), node.left.get("cpu", 0), node.left.get("memory", 0), gpus)
