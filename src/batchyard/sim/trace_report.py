"""The report of a trace run, compared with the trace's own times: waits, utilisation, fragmentation.

    trace = read_trace(Path("traces"))
    run = TraceRun(trace, Options())
    run.simulation.advance()
    report = run.report()

A wait is the time from a pod's creation to its binding to a node. The trace's own times are whole seconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.base.instant import SECOND, Duration, Instant, seconds
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.placement.node_info import NodeInfo
from batchyard.sim.scenario import Scenario
from batchyard.sim.simulate import Simulation, SimulationOptions
from batchyard.sim.time_series import Gauge
from batchyard.sim.traces import GPU, MODEL, NAMESPACE, Mix, Room, Trace, TracedPod, TracedPodShape
from batchyard.sim.world import EPOCH

# --- trace watch ---
#
# Observes a run of a trace by its watch events: when each pod is bound, and the utilisation of nodes over time.


#: The resource names in nodes. cpu and GPUs are in thousandths, memory in bytes.
RESOURCES: Final[Mapping[str, str]] = {"cpu": "cpu", "memory": "memory", "gpu": GPU}
_NAMES: Final = {resource: name for name, resource in RESOURCES.items()}
ALL: Final = ""
"""The name of the fleet of all nodes."""


class Point(NamedTuple):
    """The state of all nodes at a moment."""

    at: Instant
    #: Used amounts by resource.
    used: Mapping[str, float]
    fragmentation: float
    waiting: int


class FleetUsage:
    """The capacity and usage of the nodes with a model of GPU, or of all nodes, by resource."""

    def __init__(self, now: Instant) -> None:
        self.nodes = 0
        self.total = {resource: Gauge(now) for resource in RESOURCES}
        self.used = {resource: Gauge(now) for resource in RESOURCES}


class TraceWatch:
    """The observations of a run. `now` returns the time; a point is recorded after each interval `every`."""

    def __init__(self, mix: Mix, now: Callable[[], Instant], every: Duration) -> None:
        self._mix = mix
        self._now = now
        self._every = every
        self._begun = self._at = now()
        self._nodes: dict[str, NodeInfo] = {}
        #: The node of each pod, by uid.
        self._places: dict[str, str] = {}
        #: Nodes that changed in this instant.
        self._changed: dict[str, None] = {}
        #: The free GPUs of each node, and the unusable part of them.
        self._free: dict[str, tuple[int, int]] = {}
        self._free_sum = self._unusable_sum = 0
        self.fleets = {ALL: FleetUsage(self._at)}
        #: The share of the free GPUs that the mix of pods cannot use.
        self.fragmentation = Gauge(self._at)
        self.points: list[Point] = []
        #: Pods without a node, by uid.
        self.waiting: dict[str, PodView] = {}
        #: By name, when a pod of the trace was bound, or why it never was.
        self.placed: dict[str, Instant] = {}
        self.unplaced: dict[str, str] = {}

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Apply watch events."""
        self.let_pass(self._now())
        for event in events:
            if event.key.kind == scheme.POD:
                self._on_pod(event)
            elif event.key.kind == scheme.NODE:
                self._on_node(event)

    def let_pass(self, now: Instant) -> None:
        """Advance to now, recording that nothing changed since the last event."""
        if now == self._at:
            return
        self._look()
        first = self._at + (self._begun - self._at) % self._every
        for at in range(first, now, self._every):
            used = {resource: gauge.value for resource, gauge in self.fleets[ALL].used.items()}
            self.points.append(Point(at, used, self.fragmentation.value, len(self.waiting)))
        self._at = now

    def end(self, now: Instant) -> None:
        """End the observations at the end of the run."""
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
            self._nodes[name] = NodeInfo(view)
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

    def _fleets_of(self, view: NodeView) -> list[FleetUsage]:
        model = view.labels.get(MODEL, ALL)
        if model not in self.fleets:
            self.fleets[model] = FleetUsage(self._at)
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

    def _count_pod(self, pod: PodView, node: NodeInfo, sign: int) -> None:
        self._changed[node.name] = None
        for fleet in self._fleets_of(node.view):
            for resource, amount in pod.requests:
                if resource in _NAMES:
                    fleet.used[_NAMES[resource]].add(sign * amount, self._at)

    # --- fragmentation ---

    def _look(self) -> None:
        """Update the fragmentation of nodes that changed."""
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


def _room(node: NodeInfo) -> Room:
    gpus = tuple([max(0, left) for left in node.devices.left])
    return Room(node.view.labels.get(MODEL, ""), node.left.get("cpu", 0), node.left.get("memory", 0), gpus)


#: The minimum number of points in a report.
POINTS: Final = 100
#: Limits, in seconds, within which two waits count as equal.
AGREEMENTS: Final = (1, 10, 60)
_DELETED_AT_ONCE: Final = "deleted before it was looked at"
_PREEMPTION: Final = " preemption: "
_AVAILABLE: Final = " nodes are available: "


@dataclass(frozen=True, slots=True)
class PodCounts:
    """How many pods of the trace were placed, here (in the run) and there (in the trace)."""

    total: int
    placed_here: int
    placed_there: int
    placed_in_both: int
    #: They were created, and have no node at the end of the run.
    waiting: int
    #: The run ended before they were created.
    not_created: int


@dataclass(frozen=True, slots=True)
class DurationStatistics:
    """The distribution of durations in seconds; percentiles by the nearest rank."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class TraceWaits:
    """The waits of the pods that were placed in both, in seconds."""

    here: DurationStatistics
    there: DurationStatistics
    agree: Sequence["Agreement"]
    #: How many pods waited longer here, or in the trace, by more than the smallest limit; and by how much.
    longer_here: int
    longer_there: int
    excess_here: DurationStatistics
    excess_there: DurationStatistics


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many pairs of waits differ by at most this number of seconds."""

    within: int
    pods: int


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A reason why pods were never placed, and how many."""

    reason: str
    pods: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The utilisation of a resource over the run, as shares of the capacity."""

    #: The nodes with this model of GPU; '' stands for all nodes.
    model: str
    nodes: int
    resource: str
    total: float
    mean: float
    peak: float
    #: Seconds from the start.
    peak_at: float
    #: The same by the trace's own times; nodes are unknown there, so under a load it can exceed the capacity.
    mean_there: float | None
    peak_there: float | None


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The share of the free GPUs that the mix of pods cannot use."""

    mean: float
    peak: float
    peak_at: float
    #: The share of pods without GPU, which is the lower bound.
    least: float


@dataclass(frozen=True, slots=True)
class PointRow:
    """The state at a moment, as shares."""

    at: float
    cpu: float
    memory: float
    gpu: float
    fragmentation: float
    waiting: int


@dataclass(frozen=True, slots=True)
class TraceReport:
    """The results of a trace run, compared with the trace."""

    trace: str
    #: The factor by which its pods arrive faster than in the trace.
    load: float
    #: Virtual time in seconds.
    duration: float
    pods: PodCounts
    waits: TraceWaits
    unplaced: Sequence[Unplaced]
    usage: Sequence[Usage]
    fragmentation: Fragmentation
    points: Sequence[PointRow]

    def api_document(self) -> dict[str, Any]:
        """Return plain values for JSON; fields are named as in the API."""
        api_document: dict[str, Any] = _with_api_names(asdict(self))
        return api_document


class TraceRun:
    """A run of a trace with its observations; with a scenario, on its nodes and beside its pods."""

    def __init__(self, trace: Trace, options: SimulationOptions, scenario: Scenario | None = None) -> None:
        self._trace = trace
        self._mix = Mix(pod.shape for pod in trace.pods)
        self.simulation = Simulation(scenario or trace.scenario, options)
        kernel = self.simulation.world.kernel
        end = max((pod.deleted for pod in trace.pods), default=0)
        self._watch = TraceWatch(self._mix, kernel.now, max(SECOND, end // POINTS))
        self.simulation.world.client.subscribe(self._watch.observe)

    def report(self) -> TraceReport:
        """Return the report, once the run has ended."""
        watch, length = self._watch, self.simulation.world.now()
        watch.end(EPOCH + length)
        usage = [row for name in sorted(watch.fleets) for row in _usage(name, watch.fleets[name], length)]
        gauge = watch.fragmentation
        return TraceReport(
            trace=self._trace.scenario.name,
            load=float(self._trace.load),
            duration=seconds(length),
            pods=_counts(self._trace.pods, watch, length),
            waits=_waits(self._trace.pods, watch),
            unplaced=_reasons(self._trace.pods, watch),
            usage=[_beside_there(row, self._trace.pods, length) if row.model == ALL else row for row in usage],
            fragmentation=Fragmentation(
                gauge.mean(EPOCH + length), gauge.peak, seconds(gauge.peak_at - EPOCH), self._mix.without_gpu
            ),
            points=_points(watch),
        )


def _with_api_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {_api_name(name): _with_api_names(field) for name, field in value.items()}
    return [_with_api_names(item) for item in value] if isinstance(value, list) else value


def _api_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))


# --- waits ---


def _counts(pods: Sequence[TracedPod], watch: TraceWatch, length: Duration) -> PodCounts:
    known = [*watch.placed, *watch.unplaced]
    waiting = sum(pod.namespace == NAMESPACE for pod in watch.waiting.values())
    return PodCounts(
        total=len(pods),
        placed_here=len(watch.placed),
        placed_there=sum(pod.scheduled is not None and pod.scheduled <= length for pod in pods),
        placed_in_both=len(_in_both(pods, watch)),
        waiting=waiting,
        not_created=len(pods) - len(known) - waiting,
    )


def _waits(pods: Sequence[TracedPod], watch: TraceWatch) -> TraceWaits:
    both = _in_both(pods, watch)
    excess = [here - there for here, there in both]
    least = min(AGREEMENTS) * SECOND
    here, there = [e for e in excess if e > least], [-e for e in excess if -e > least]
    return TraceWaits(
        here=duration_statistics([here for here, _ in both]),
        there=duration_statistics([there for _, there in both]),
        agree=[Agreement(limit, sum(abs(e) <= limit * SECOND for e in excess)) for limit in AGREEMENTS],
        longer_here=len(here),
        longer_there=len(there),
        excess_here=duration_statistics(here),
        excess_there=duration_statistics(there),
    )


def _in_both(pods: Sequence[TracedPod], watch: TraceWatch) -> list[tuple[Duration, Duration]]:
    """Return the waits of the pods that were placed here and there."""
    return [
        (watch.placed[pod.name] - EPOCH - pod.created, pod.scheduled - pod.created)
        for pod in pods
        if pod.scheduled is not None and pod.name in watch.placed
    ]


def duration_statistics(amounts: Iterable[Duration]) -> DurationStatistics:
    """Return the distribution; all values are 0 without durations."""
    ranked = sorted(amounts)
    if not ranked:
        return DurationStatistics(0, 0, 0, 0, 0)
    at = [seconds(ranked[-(-len(ranked) * percent // 100) - 1]) for percent in (50, 90, 99, 100)]
    return DurationStatistics(sum(ranked) / len(ranked) / SECOND, *at)


def _reasons(pods: Sequence[TracedPod], watch: TraceWatch) -> list[Unplaced]:
    """Return why pods of the trace were not placed: deleted pods, and pods that still wait."""
    why = dict(watch.unplaced)
    why |= {pod.name: pod.unplaced for pod in watch.waiting.values() if pod.namespace == NAMESPACE}
    counts: dict[str, int] = {}
    for pod in pods:
        if pod.name in why:
            reason = _reason(why[pod.name])
            counts[reason] = counts.get(reason, 0) + 1
    return [Unplaced(*item) for item in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _reason(message: str) -> str:
    """Return the reasons in an unschedulable message, without the node counts."""
    reasons = message.partition(_PREEMPTION)[0].partition(_AVAILABLE)[2].rstrip(".")
    named = [reason.partition(" ")[2] for reason in reasons.split(", ")]
    return ", ".join(sorted(named)) if reasons else message or _DELETED_AT_ONCE


# --- utilisation ---


def _usage(model: str, fleet: FleetUsage, length: Duration) -> list[Usage]:
    now = EPOCH + length
    return [
        Usage(
            model=model,
            nodes=fleet.nodes,
            resource=resource,
            total=fleet.total[resource].peak,
            mean=_share(fleet.used[resource].mean(now), fleet.total[resource].mean(now)),
            peak=_share(fleet.used[resource].peak, fleet.total[resource].peak),
            peak_at=seconds(fleet.used[resource].peak_at - EPOCH),
            mean_there=None,
            peak_there=None,
        )
        for resource in RESOURCES
    ]


def _beside_there(row: Usage, pods: Sequence[TracedPod], length: Duration) -> Usage:
    """Return the row with the usage by the trace's own times."""
    changes: dict[Duration, int] = {}
    for pod in pods:
        if pod.scheduled is not None:
            amount = _amount(pod.shape, row.resource)
            changes[pod.scheduled] = changes.get(pod.scheduled, 0) + amount
            changes[pod.deleted] = changes.get(pod.deleted, 0) - amount
    gauge = Gauge(0)
    for at in sorted(changes):
        if at < length:
            gauge.add(changes[at], at)
    mean = _share(gauge.mean(length), row.total)
    return replace(row, mean_there=mean, peak_there=_share(gauge.peak, row.total))


def _amount(shape: TracedPodShape, resource: str) -> int:
    return {"cpu": shape.cpu, "memory": shape.memory, "gpu": shape.gpu_milli}[resource]


def _points(watch: TraceWatch) -> list[PointRow]:
    total = watch.fleets[ALL].total
    rows = []
    for point in watch.points:
        cpu, memory, gpu = [_share(point.used[resource], total[resource].peak) for resource in RESOURCES]
        rows.append(PointRow(seconds(point.at - EPOCH), cpu, memory, gpu, point.fragmentation, point.waiting))
    return rows


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
