"""Simulates a recorded trace of pods, and reports waits, utilization and fragmentation, compared with the recording.

    trace = read_trace(Path("traces"))
    run = TraceRun(trace, SimulationOptions())
    run.simulation.advance()
    report = run.report()

A wait is the time from a pod's creation to its binding to a node. The recorded times of a trace are whole seconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.base.instant import SECOND, Duration, Instant, duration_seconds
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.placement.node_info import NodeInfo
from batchyard.sim.scenario import Scenario
from batchyard.sim.simulate import Simulation, SimulationOptions
from batchyard.sim.time_series import Gauge
from batchyard.sim.traces import GPU, MODEL, NAMESPACE, FreeNodeResources, PodMix, Trace, TracedPod, TracedPodShape
from batchyard.sim.world import EPOCH

# Observes the watch events of a run: the binding time of each pod, and the utilization of the nodes over time.


#: The resource names in nodes. cpu and GPUs are in thousandths, memory in bytes.
RESOURCES: Final[Mapping[str, str]] = {"cpu": "cpu", "memory": "memory", "gpu": GPU}
_NAME_BY_RESOURCE: Final = {resource: name for name, resource in RESOURCES.items()}
ALL_NODES: Final = ""
"""The fleet name that stands for all nodes."""


class FleetPoint(NamedTuple):
    """The usage of all nodes, the fragmentation and the number of waiting pods at one instant."""

    at: Instant
    #: Used amounts by resource.
    used: Mapping[str, float]
    fragmentation: float
    waiting: int


class FleetUsage:
    """Capacity and usage over time, by resource, of the nodes with one GPU model or of all nodes."""

    def __init__(self, now: Instant) -> None:
        self.node_count = 0
        self.capacity_gauges = {resource: Gauge(now) for resource in RESOURCES}
        self.usage_gauges = {resource: Gauge(now) for resource in RESOURCES}


class TraceWatch:
    """Observes waits, utilization and fragmentation in a simulation; `interval` is the time between recorded points."""

    def __init__(self, pod_mix: PodMix, now: Callable[[], Instant], interval: Duration) -> None:
        self._pod_mix = pod_mix
        self._now = now
        self._interval = interval
        self._start_time = self._advanced_to = now()
        self._nodes: dict[str, NodeInfo] = {}
        #: The node of each pod, by uid.
        self._node_by_pod: dict[str, str] = {}
        #: The nodes that changed in this instant.
        self._changed_nodes: dict[str, None] = {}
        #: By node, its free GPUs and the unusable part of them, in thousandths.
        self._free_by_node: dict[str, tuple[int, int]] = {}
        self._free_sum = self._unusable_sum = 0
        self.fleets = {ALL_NODES: FleetUsage(self._advanced_to)}
        #: The fraction of the free GPUs that the expected pods cannot use.
        self.fragmentation = Gauge(self._advanced_to)
        self.points: list[FleetPoint] = []
        #: Pods without a node, by uid.
        self.waiting_pods: dict[str, PodView] = {}
        #: By name, when a pod of the trace was bound, or the scheduler's message if it was deleted before.
        self.bound_at: dict[str, Instant] = {}
        self.unplaced_messages: dict[str, str] = {}

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Update the observed numbers after a batch of watch events."""
        self.advance(self._now())
        for event in events:
            if event.key.kind == scheme.POD:
                self._on_pod(event)
            elif event.key.kind == scheme.NODE:
                self._on_node(event)

    def advance(self, now: Instant) -> None:
        """Record a FleetPoint for each sampling time before `now`, with the numbers after the last watch event."""
        if now == self._advanced_to:
            return
        self._update_fragmentation()
        first_point = self._advanced_to + (self._start_time - self._advanced_to) % self._interval
        for at in range(first_point, now, self._interval):
            used = {resource: gauge.value for resource, gauge in self.fleets[ALL_NODES].usage_gauges.items()}
            self.points.append(FleetPoint(at, used, self.fragmentation.value, len(self.waiting_pods)))
        self._advanced_to = now

    def end(self, now: Instant) -> None:
        """Complete the observed numbers at `now`, the end of the simulation."""
        self.advance(now)
        gauges = [
            gauge
            for fleet in self.fleets.values()
            for gauge in (*fleet.capacity_gauges.values(), *fleet.usage_gauges.values())
        ]
        for gauge in (self.fragmentation, *gauges):
            gauge.set(gauge.value, now)

    # --- nodes ---

    def _on_node(self, event: WatchEvent) -> None:
        name, is_gone = event.key.name, event.type is EventType.DELETED
        node_info = self._nodes.get(name)
        view = node_view(event.obj)
        if node_info is None and not is_gone:
            self._nodes[name] = NodeInfo(view)
            self._count_node(view, 1)
        elif node_info is not None:
            self._count_node(node_info.view, -1)
            node_info.set_view(view)
            if is_gone:
                for uid in list(node_info.pods):
                    self._remove_pod(uid)
                del self._nodes[name]
            else:
                self._count_node(view, 1)
        self._changed_nodes[name] = None

    def _count_node(self, view: NodeView, sign: int) -> None:
        for fleet in self._fleets_of(view):
            fleet.node_count += sign
            for resource, gauge in fleet.capacity_gauges.items():
                gauge.add(sign * view.allocatable.get(RESOURCES[resource], 0), self._advanced_to)

    def _fleets_of(self, view: NodeView) -> list[FleetUsage]:
        gpu_model = view.labels.get(MODEL, ALL_NODES)
        if gpu_model not in self.fleets:
            self.fleets[gpu_model] = FleetUsage(self._advanced_to)
        return [self.fleets[name] for name in dict.fromkeys((ALL_NODES, gpu_model))]

    # --- pods ---

    def _on_pod(self, event: WatchEvent) -> None:
        pod = pod_view(event.obj)
        is_gone = event.type is EventType.DELETED
        if pod.node_name or is_gone:
            self._end_wait(pod)
        elif not pod.is_terminal:
            self.waiting_pods[pod.uid] = pod
        is_on_node = bool(pod.node_name) and not is_gone and not pod.is_terminal
        if is_on_node and pod.uid not in self._node_by_pod:
            self._add_pod(pod)
        elif not is_on_node and pod.uid in self._node_by_pod:
            self._remove_pod(pod.uid)

    def _end_wait(self, pod: PodView) -> None:
        waiting_pod = self.waiting_pods.pop(pod.uid, None)
        if pod.namespace != NAMESPACE or waiting_pod is None:
            return
        if pod.node_name:
            self.bound_at[pod.name] = self._advanced_to
        else:
            self.unplaced_messages[pod.name] = waiting_pod.unschedulable_message

    def _add_pod(self, pod: PodView) -> None:
        node = self._nodes.get(pod.node_name)
        if node is None:
            return
        self._node_by_pod[pod.uid] = node.name
        node.add_pod(pod)
        self._count_pod(pod, node, 1)

    def _remove_pod(self, uid: str) -> None:
        node = self._nodes[self._node_by_pod.pop(uid)]
        pod = node.pods[uid]
        node.release(uid)
        self._count_pod(pod, node, -1)

    def _count_pod(self, pod: PodView, node: NodeInfo, sign: int) -> None:
        self._changed_nodes[node.name] = None
        for fleet in self._fleets_of(node.view):
            for resource, amount in pod.requests:
                if resource in _NAME_BY_RESOURCE:
                    fleet.usage_gauges[_NAME_BY_RESOURCE[resource]].add(sign * amount, self._advanced_to)

    # --- fragmentation ---

    def _update_fragmentation(self) -> None:
        if not self._changed_nodes:
            return
        for name in self._changed_nodes:
            free_gpus, unusable_gpus = self._free_by_node.pop(name, (0, 0))
            self._free_sum -= free_gpus
            self._unusable_sum -= unusable_gpus
            node = self._nodes.get(name)
            if node is not None:
                free_resources = _free_resources_of(node)
                free_gpus, unusable_gpus = sum(free_resources.gpus), self._pod_mix.unusable_gpu_sum(free_resources)
                self._free_by_node[name] = free_gpus, unusable_gpus
                self._free_sum += free_gpus
                self._unusable_sum += unusable_gpus
        self._changed_nodes = {}
        total_free = self._free_sum * self._pod_mix.pod_count
        self.fragmentation.set(self._unusable_sum / total_free if total_free else 0.0, self._advanced_to)


def _free_resources_of(node: NodeInfo) -> FreeNodeResources:
    gpus = tuple([max(0, free_milli) for free_milli in node.gpu_shares.free_shares])
    return FreeNodeResources(
        node.view.labels.get(MODEL, ""), node.free_amounts.get("cpu", 0), node.free_amounts.get("memory", 0), gpus
    )


#: The minimum number of points in a report.
POINTS_MIN: Final = 100
#: The deltas in seconds within which two waits are counted as equal.
WAIT_LIMITS: Final = (1, 10, 60)
_DELETED_EARLY: Final = "deleted before the scheduler tried to place it"
_PREEMPTION_TEXT: Final = " preemption: "
_AVAILABLE_TEXT: Final = " nodes are available: "


@dataclass(frozen=True, slots=True)
class PodCounts:
    """The numbers of pods that were placed in the simulation (`here`) and in the recorded trace (`there`)."""

    total: int
    placed_here: int
    placed_there: int
    placed_in_both: int
    #: Created pods without a node at the end of the run.
    waiting: int
    #: Pods that are not created before the end of the run.
    not_created: int


@dataclass(frozen=True, slots=True)
class DurationStatistics:
    """Mean, percentiles (nearest rank) and maximum of durations, in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class TraceWaits:
    """Waits in seconds of the pods placed both here (in the simulation) and there (in the recorded trace)."""

    here: DurationStatistics
    there: DurationStatistics
    agree: Sequence["WaitAgreement"]
    #: The pods that waited longer here, or there, by more than the smallest limit; and the distribution of the excess.
    longer_here: int
    longer_there: int
    excess_here: DurationStatistics
    excess_there: DurationStatistics


@dataclass(frozen=True, slots=True)
class WaitAgreement:
    """How many pods have a simulated and a recorded wait that differ by at most `within` seconds."""

    within: int
    pods: int


@dataclass(frozen=True, slots=True)
class UnplacedReason:
    """A reason why pods were never placed on a node, with the number of these pods."""

    reason: str
    pods: int


@dataclass(frozen=True, slots=True)
class ResourceUtilization:
    """The utilization of a resource over the simulation: means and peaks are fractions of the capacity."""

    #: The GPU model of the nodes; '' stands for all nodes.
    model: str
    nodes: int
    resource: str
    #: The largest capacity: cpu and GPUs in thousandths, memory in bytes.
    total: float
    mean: float
    peak: float
    #: The start of the peak, in seconds from the start of the run.
    peak_at: float
    #: The mean and peak by the recorded times; with a load factor they can exceed the capacity.
    mean_there: float | None
    peak_there: float | None


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The fraction of free GPUs that pods like those of the trace cannot use: mean, peak and lower bound.

    `peak_at` is the time of the peak, in seconds after the start.
    """

    mean: float
    peak: float
    peak_at: float
    #: The fraction of pods without GPU, which is the lower bound.
    least: float


@dataclass(frozen=True, slots=True)
class UtilizationPoint:
    """Utilization and fragmentation as fractions, and the number of waiting pods, `at` seconds after the start."""

    at: float
    cpu: float
    memory: float
    gpu: float
    fragmentation: float
    waiting: int


@dataclass(frozen=True, slots=True)
class TraceReport:
    """The results of a simulated trace, compared with the recorded times."""

    trace: str
    #: The factor by which pods arrive faster than in the trace.
    load: float
    #: The length of the run in seconds of virtual time.
    duration: float
    pods: PodCounts
    waits: TraceWaits
    unplaced: Sequence[UnplacedReason]
    usage: Sequence[ResourceUtilization]
    fragmentation: Fragmentation
    points: Sequence[UtilizationPoint]

    def api_document(self) -> dict[str, Any]:
        """Return the report as a JSON document with camelCase field names."""
        api_document: dict[str, Any] = with_camel_case_names(asdict(self))
        return api_document


class TraceRun:
    """A simulation of a recorded trace, with observations; a scenario may add nodes and other work."""

    def __init__(self, trace: Trace, options: SimulationOptions, scenario: Scenario | None = None) -> None:
        self._trace = trace
        self._pod_mix = PodMix(pod.shape for pod in trace.pods)
        self.simulation = Simulation(scenario or trace.scenario, options)
        kernel = self.simulation.world.kernel
        end = max((pod.deleted for pod in trace.pods), default=0)
        self._watch = TraceWatch(self._pod_mix, kernel.now, max(SECOND, end // POINTS_MIN))
        self.simulation.world.client.subscribe(self._watch.observe)

    def report(self) -> TraceReport:
        """Return the report of the simulation, which must have ended."""
        watch, length = self._watch, self.simulation.world.now()
        watch.end(EPOCH + length)
        usage = [row for name in sorted(watch.fleets) for row in _usage_rows(name, watch.fleets[name], length)]
        gauge = watch.fragmentation
        return TraceReport(
            trace=self._trace.scenario.name,
            load=float(self._trace.load),
            duration=duration_seconds(length),
            pods=_pod_counts(self._trace.pods, watch, length),
            waits=_trace_waits(self._trace.pods, watch),
            unplaced=_unplaced_reasons(self._trace.pods, watch),
            usage=[
                _add_recorded_usage(row, self._trace.pods, length) if row.model == ALL_NODES else row for row in usage
            ],
            fragmentation=Fragmentation(
                gauge.mean(EPOCH + length),
                gauge.peak,
                duration_seconds(gauge.peak_at - EPOCH),
                self._pod_mix.fraction_without_gpu,
            ),
            points=_utilization_points(watch),
        )


def with_camel_case_names(value: Any) -> Any:
    """Return a JSON value in which all field names are in camelCase instead of snake_case."""
    if isinstance(value, dict):
        return {_camel_case_name(name): with_camel_case_names(field) for name, field in value.items()}
    return [with_camel_case_names(item) for item in value] if isinstance(value, list) else value


def _camel_case_name(name: str) -> str:
    first_word, *other_words = name.split("_")
    return first_word + "".join(map(str.capitalize, other_words))


def _pod_counts(pods: Sequence[TracedPod], watch: TraceWatch, length: Duration) -> PodCounts:
    bound_or_deleted = [*watch.bound_at, *watch.unplaced_messages]
    waiting_count = sum(pod.namespace == NAMESPACE for pod in watch.waiting_pods.values())
    return PodCounts(
        total=len(pods),
        placed_here=len(watch.bound_at),
        placed_there=sum(pod.scheduled is not None and pod.scheduled <= length for pod in pods),
        placed_in_both=len(_simulated_and_recorded_waits(pods, watch)),
        waiting=waiting_count,
        not_created=len(pods) - len(bound_or_deleted) - waiting_count,
    )


def _trace_waits(pods: Sequence[TracedPod], watch: TraceWatch) -> TraceWaits:
    wait_pairs = _simulated_and_recorded_waits(pods, watch)
    deltas = [simulated - recorded for simulated, recorded in wait_pairs]
    smallest_limit = min(WAIT_LIMITS) * SECOND
    excess_here, excess_there = (
        [difference for difference in deltas if difference > smallest_limit],
        [-difference for difference in deltas if -difference > smallest_limit],
    )
    return TraceWaits(
        here=duration_statistics([simulated for simulated, _ in wait_pairs]),
        there=duration_statistics([recorded for _, recorded in wait_pairs]),
        agree=[
            WaitAgreement(limit, sum(abs(difference) <= limit * SECOND for difference in deltas))
            for limit in WAIT_LIMITS
        ],
        longer_here=len(excess_here),
        longer_there=len(excess_there),
        excess_here=duration_statistics(excess_here),
        excess_there=duration_statistics(excess_there),
    )


def _simulated_and_recorded_waits(pods: Sequence[TracedPod], watch: TraceWatch) -> list[tuple[Duration, Duration]]:
    """Return (simulated wait, recorded wait) of each pod that was placed in the simulation and in the trace."""
    return [
        (watch.bound_at[pod.name] - EPOCH - pod.created, pod.scheduled - pod.created)
        for pod in pods
        if pod.scheduled is not None and pod.name in watch.bound_at
    ]


def duration_statistics(durations: Iterable[Duration]) -> DurationStatistics:
    """Return the statistics of durations in seconds; all values are 0 without durations."""
    ranks = sorted(durations)
    if not ranks:
        return DurationStatistics(0, 0, 0, 0, 0)
    at = [duration_seconds(ranks[-(-len(ranks) * percent // 100) - 1]) for percent in (50, 90, 99, 100)]
    return DurationStatistics(sum(ranks) / len(ranks) / SECOND, *at)


def _unplaced_reasons(pods: Sequence[TracedPod], watch: TraceWatch) -> list[UnplacedReason]:
    message_by_pod = dict(watch.unplaced_messages)
    message_by_pod |= {
        pod.name: pod.unschedulable_message for pod in watch.waiting_pods.values() if pod.namespace == NAMESPACE
    }
    count_by_reason: dict[str, int] = {}
    for pod in pods:
        if pod.name in message_by_pod:
            reason = _short_reason(message_by_pod[pod.name])
            count_by_reason[reason] = count_by_reason.get(reason, 0) + 1
    return [UnplacedReason(*item) for item in sorted(count_by_reason.items(), key=lambda item: (-item[1], item[0]))]


def _short_reason(message: str) -> str:
    reasons_text = message.partition(_PREEMPTION_TEXT)[0].partition(_AVAILABLE_TEXT)[2].rstrip(".")
    reason_names = [reason.partition(" ")[2] for reason in reasons_text.split(", ")]
    return ", ".join(sorted(reason_names)) if reasons_text else message or _DELETED_EARLY


def _usage_rows(model: str, fleet: FleetUsage, length: Duration) -> list[ResourceUtilization]:
    now = EPOCH + length
    return [
        ResourceUtilization(
            model=model,
            nodes=fleet.node_count,
            resource=resource,
            total=fleet.capacity_gauges[resource].peak,
            mean=_fraction(fleet.usage_gauges[resource].mean(now), fleet.capacity_gauges[resource].mean(now)),
            peak=_fraction(fleet.usage_gauges[resource].peak, fleet.capacity_gauges[resource].peak),
            peak_at=duration_seconds(fleet.usage_gauges[resource].peak_at - EPOCH),
            mean_there=None,
            peak_there=None,
        )
        for resource in RESOURCES
    ]


def _add_recorded_usage(row: ResourceUtilization, pods: Sequence[TracedPod], length: Duration) -> ResourceUtilization:
    change_by_time: dict[Duration, int] = {}
    for pod in pods:
        if pod.scheduled is not None:
            amount = _requested_amount(pod.shape, row.resource)
            change_by_time[pod.scheduled] = change_by_time.get(pod.scheduled, 0) + amount
            change_by_time[pod.deleted] = change_by_time.get(pod.deleted, 0) - amount
    gauge = Gauge(0)
    for at in sorted(change_by_time):
        if at < length:
            gauge.add(change_by_time[at], at)
    mean_fraction = _fraction(gauge.mean(length), row.total)
    return replace(row, mean_there=mean_fraction, peak_there=_fraction(gauge.peak, row.total))


def _requested_amount(shape: TracedPodShape, resource: str) -> int:
    return {"cpu": shape.cpu, "memory": shape.memory, "gpu": shape.gpu_milli}[resource]


def _utilization_points(watch: TraceWatch) -> list[UtilizationPoint]:
    capacity_gauges = watch.fleets[ALL_NODES].capacity_gauges
    rows = []
    for point in watch.points:
        cpu, memory, gpu = [_fraction(point.used[resource], capacity_gauges[resource].peak) for resource in RESOURCES]
        rows.append(
            UtilizationPoint(duration_seconds(point.at - EPOCH), cpu, memory, gpu, point.fragmentation, point.waiting)
        )
    return rows


def _fraction(amount: float, total: float) -> float:
    return amount / total if total else 0.0
