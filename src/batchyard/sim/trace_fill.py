"""Fills the nodes of a trace with its pods, to compare how many GPUs placement policies allocate.

    fill = fill_trace(read_trace(Path("traces")), Fraction(13, 10), seed=42)
    run = FillRun(fill, SimulationOptions(seed=42))
    run.simulation.advance()
    report = run.report()

The pods arrive one by one in random order, and never end. After all pods of the trace, random ones of them arrive
again, until the requested GPUs are a given fraction of the nodes' GPUs. Policies take the first name among nodes with
equal scores, so the nodes get random names. Source: Weng et al., Beware of Fragmentation (USENIX ATC 2023), section
6, and the simulator published with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import accumulate, chain, count
from typing import Any

from batchyard.api import well_known
from batchyard.api.meta import Obj, with_path
from batchyard.api.views.node import node_view
from batchyard.base.instant import SECOND, Duration
from batchyard.base.primitives import draw_integer
from batchyard.placement.gpu_policies import ExpectedPod, GpuPlacement, GpuPolicyName, LargestAllocatable
from batchyard.placement.node_info import WHOLE_GPU
from batchyard.sim.scenario import Scenario, ScenarioStep
from batchyard.sim.simulate import Simulation, SimulationOptions
from batchyard.sim.trace_report import ALL_NODES, FleetPoint, TraceWatch, with_camel_case_names
from batchyard.sim.traces import GPU, MODEL, PodMix, Trace, TracedPod
from batchyard.sim.world import EPOCH


@dataclass(frozen=True, slots=True)
class TraceFill:
    """A scenario in which the pods of a trace arrive, one per second, and never end."""

    scenario: Scenario
    #: The pods of the trace, to which fragmentation refers.
    expected_pods: Sequence[TracedPod]
    arriving_pods: Sequence[TracedPod]
    #: The GPUs of all nodes, in thousandths.
    gpu_milli: int


@dataclass(frozen=True, slots=True)
class FillPoint:
    """The state when the pods that have arrived request the fraction `requested` of all GPUs.

    `allocated` and `fragmented` are fractions of all GPUs too.
    """

    requested: float
    allocated: float
    #: The free GPUs that the pods of the trace cannot use, as a mean over these pods.
    fragmented: float
    #: The number of pods that fitted no node.
    unplaced_pods: int


@dataclass(frozen=True, slots=True)
class FillReport:
    """How many GPUs a placement policy allocated while pods filled the nodes of a trace."""

    trace: str
    #: The placement policy; '' is kube-scheduler's scoring.
    policy: str
    seed: int
    nodes: int
    gpus: int
    pods: int
    points: Sequence[FillPoint]

    def api_document(self) -> dict[str, Any]:
        """Return the report as a JSON document with camelCase field names."""
        api_document: dict[str, Any] = with_camel_case_names(asdict(self))
        return api_document


def gpu_placement_for(trace: Trace, policy: GpuPolicyName) -> GpuPlacement:
    """Return a GpuPlacement with this policy that is adapted to the pods and nodes of a trace."""
    allocatable_amounts = [node_view(node).allocatable for node in _objects_of(trace, "Node")]
    return GpuPlacement(
        policy,
        [ExpectedPod(pod.shape.cpu, pod.shape.gpu_milli, pod.shape.models) for pod in trace.pods],
        LargestAllocatable(
            max((amounts.get("cpu", 0) for amounts in allocatable_amounts), default=0) or 1,
            max((amounts.get(GPU, 0) for amounts in allocatable_amounts), default=0) or 1,
        ),
        MODEL,
    )


def fill_trace(trace: Trace, requested: Fraction, seed: int) -> TraceFill:
    """Return a trace whose pods request up to the fraction `requested` of all GPUs.

    If the recorded pods request less, random ones arrive again. `seed` determines these, and the order of the pods and
    of the nodes. Raise ValueError if the trace has no GPUs, or no pods that request GPUs.
    """
    nodes = _objects_of(trace, "Node")
    gpu_milli = sum(node_view(node).allocatable.get(GPU, 0) for node in nodes)
    if not gpu_milli or not any(pod.shape.gpu_milli for pod in trace.pods):
        raise ValueError("the trace has no nodes with GPUs, or no pods that request GPUs; use another trace")
    arriving_pods = _arriving_pods(trace.pods, requested * gpu_milli, seed)
    horizon = (len(arriving_pods) + 1) * SECOND
    nodes.sort(key=lambda node: draw_integer(seed, "node", node["metadata"]["name"]))
    renamed_nodes = [_with_rank(node, rank) for rank, node in enumerate(nodes)]
    steps = [ScenarioStep(0, (*_objects_of(trace, "Namespace"), *renamed_nodes), ())]
    for manifest in _pod_manifests(trace, arriving_pods, horizon):
        steps.append(ScenarioStep(len(steps) * SECOND, (manifest,), ()))
    count_by_kind = {"Node": len(nodes), "Pod": len(arriving_pods)}
    scenario = replace(trace.scenario, steps=steps, horizon=horizon, counts=count_by_kind)
    return TraceFill(scenario, trace.pods, arriving_pods, gpu_milli)


def _arriving_pods(pods: Sequence[TracedPod], requested_max: Fraction, seed: int) -> Sequence[TracedPod]:
    arriving_pods = []
    requested_milli = 0
    for pod in chain(sorted(pods, key=lambda pod: draw_integer(seed, "pod", pod.name)), _random_pods(pods, seed)):
        requested_milli += pod.shape.gpu_milli
        if requested_milli > requested_max:
            break
        arriving_pods.append(pod)
    return arriving_pods


def _random_pods(pods: Sequence[TracedPod], seed: int) -> Iterator[TracedPod]:
    for number in count():
        yield pods[draw_integer(seed, "again", str(number)) % len(pods)]


def _objects_of(trace: Trace, kind: str) -> list[Obj]:
    return [obj for step in trace.scenario.steps for obj in step.apply if obj["kind"] == kind]


def _with_rank(node: Obj, rank: int) -> Obj:
    name = f"{rank:05d}-{node['metadata']['name']}"
    renamed_node = with_path(node, ("metadata", "name"), name)
    return with_path(renamed_node, ("metadata", "labels", well_known.HOSTNAME), name)


def _pod_manifests(trace: Trace, pods: Sequence[TracedPod], run_time: Duration) -> Iterator[Obj]:
    manifests = {obj["metadata"]["name"]: obj for obj in _objects_of(trace, "Pod")}
    for number, pod in enumerate(pods):
        manifest = with_path(manifests[pod.name], ("metadata", "name"), f"{pod.name}-{number}")
        annotations = {well_known.RUNTIME: f"{run_time // SECOND}s"}
        yield with_path(manifest, ("metadata", "annotations"), annotations)


class FillRun:
    """A simulation that fills the nodes of a trace, with observations."""

    def __init__(self, fill: TraceFill, options: SimulationOptions) -> None:
        self._fill = fill
        self._seed = options.seed
        self.simulation = Simulation(fill.scenario, options)
        world = self.simulation.world
        self._watch = TraceWatch(PodMix(pod.shape for pod in fill.expected_pods), world.kernel.now, SECOND)
        world.client.subscribe(self._watch.observe)

    def report(self) -> FillReport:
        """Return the report of the simulation, which must have ended."""
        fill, watch = self._fill, self._watch
        watch.end(EPOCH + self.simulation.world.now())
        placement = fill.scenario.gpu_placement
        return FillReport(
            trace=fill.scenario.name,
            policy="" if placement is None else placement.policy.value,
            seed=self._seed,
            nodes=watch.fleets[ALL_NODES].node_count,
            gpus=fill.gpu_milli // WHOLE_GPU,
            pods=len(fill.arriving_pods),
            points=_fill_points(fill, watch.points),
        )


def _fill_points(fill: TraceFill, fleet_points: Sequence[FleetPoint]) -> list[FillPoint]:
    """Return the state at each percentage of all GPUs that the arrived pods request, rounded up to whole percents.

    Of several states with the same percentage, the last one is returned. One pod arrives per second, so
    `fleet_points[i]` is the state after the arrival of i pods.
    """
    requested_milli = [0, *accumulate(pod.shape.gpu_milli for pod in fill.arriving_pods)]
    points_by_percent: dict[int, FillPoint] = {}
    for requested, observed in zip(requested_milli, fleet_points, strict=False):
        allocated = observed.used["gpu"] / fill.gpu_milli
        fragmented = observed.fragmentation * (1 - allocated)
        points_by_percent[-(-requested * 100 // fill.gpu_milli)] = FillPoint(
            requested / fill.gpu_milli, allocated, fragmented, observed.waiting
        )
    return list(points_by_percent.values())
