"""Simulates one load with one seed under two configurations and observes both runs; converts traced pods to Jobs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj, group_kind
from batchyard.api.views.node import node_view
from batchyard.api.views.pods import pod_view
from batchyard.api.views.workload import cluster_queue_view, cohort_view
from batchyard.base.instant import Duration, Instant, duration_seconds, format_duration
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.compare.inputs import ComparedConfiguration, ConfigurationPair
from batchyard.sim.compare.workload_records import FlavorResource, WorkloadRecord, WorkloadRecords
from batchyard.sim.result import Result
from batchyard.sim.scenario import FileFault, InvalidScenario, Scenario, read_sources
from batchyard.sim.simulate import Simulation
from batchyard.sim.time_series import Curve
from batchyard.sim.traces import NAMESPACE, Trace, TracedPod, read_trace
from batchyard.sim.whatif import Comparison, RunRecord, RunStart, run_to_end, simulate_start
from batchyard.sim.world import World

# Observations of a run for a comparison, from watch events: Workloads, quota and machines.


#: The pool name of nodes without a pool.
NO_POOL: Final = ""
#: Resources of nodes that are not compared, because pods do not request them.
_IGNORED_RESOURCES: Final = frozenset({"pods", "ephemeral-storage"})


class MachineUsage:
    """By node pool and resource: the allocatable amount of nodes and the requests of their pods over time."""

    def __init__(self, start_time: Instant) -> None:
        self._start_time = start_time
        self.nodes: dict[str, Curve] = {}
        self.total: dict[tuple[str, str], Curve] = {}
        self.used: dict[tuple[str, str], Curve] = {}
        #: By node, its pool and its allocatable resources; by pod, the pool and its requests.
        self._allocatable_by_node: dict[str, tuple[str, dict[str, int]]] = {}
        self._requests_by_pod: dict[str, tuple[str, dict[str, int]]] = {}

    def on_node(self, event: WatchEvent, now: Instant) -> None:
        """Update the number of nodes and their allocatable resources after a watch event of a node."""
        view = node_view(event.obj)
        pool = view.labels.get(well_known.NODE_POOL, NO_POOL)
        old_allocatable = self._allocatable_by_node.pop(view.name, None)
        if old_allocatable is not None:
            self._node_curve(old_allocatable[0]).add(-1, now)
            self._add_amounts(self.total, old_allocatable, -1, now)
        if event.type is not EventType.DELETED:
            allocatable = {r: amount for r, amount in view.allocatable.items() if r not in _IGNORED_RESOURCES}
            self._allocatable_by_node[view.name] = pool, allocatable
            self._node_curve(pool).add(1, now)
            self._add_amounts(self.total, (pool, allocatable), 1, now)

    def on_pod(self, event: WatchEvent, now: Instant) -> None:
        """Update the requests of pods on nodes after a watch event of a pod."""
        view = pod_view(event.obj)
        is_running = bool(view.node_name) and event.type is not EventType.DELETED and not view.is_terminal
        if is_running and view.uid not in self._requests_by_pod and view.node_name in self._allocatable_by_node:
            pool = self._allocatable_by_node[view.node_name][0]
            requests = {r: amount for r, amount in view.requests if r not in _IGNORED_RESOURCES}
            self._requests_by_pod[view.uid] = (pool, requests)
            self._add_amounts(self.used, self._requests_by_pod[view.uid], 1, now)
        elif not is_running and view.uid in self._requests_by_pod:
            self._add_amounts(self.used, self._requests_by_pod.pop(view.uid), -1, now)

    def _node_curve(self, pool: str) -> Curve:
        return self.nodes.setdefault(pool, Curve(self._start_time))

    def _add_amounts(
        self, curves: dict[tuple[str, str], Curve], pool_amounts: tuple[str, dict[str, int]], sign: int, now: Instant
    ) -> None:
        pool, amounts = pool_amounts
        for resource, amount in amounts.items():
            curves.setdefault((pool, resource), Curve(self._start_time)).add(sign * amount, now)


class RunWatch:
    """Observer of a simulation's Workloads, quota and nodes over time; create it before the simulation begins."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kernel = world.kernel
        self.start_time = self._start_time = world.start
        self.workload_records = WorkloadRecords(world.start, self._queue_of)
        self.machines = MachineUsage(world.start)
        #: The nominal quota over time by ClusterQueue or Cohort, flavor and resource; Cohorts are named `Cohort/NAME`.
        self.nominal: dict[FlavorResource, Curve] = {}
        self._quotas: dict[Key, dict[FlavorResource, int]] = {}
        world.client.subscribe(self.observe)

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Update the observed numbers after a batch of watch events."""
        now = self._kernel.now()
        self.workload_records.advance(now)
        for event in events:
            kind = event.key.kind
            if kind == scheme.WORKLOAD:
                self.workload_records.observe(event, now)
            elif kind == scheme.POD:
                self.machines.on_pod(event, now)
            elif kind == scheme.NODE:
                self.machines.on_node(event, now)
            elif kind in {scheme.CLUSTER_QUEUE, scheme.COHORT}:
                self._on_quota(event, now)

    def _queue_of(self, namespace: str, name: str) -> str | None:
        """Return the ClusterQueue of a LocalQueue, as the platform knows it that runs now (after any crash)."""
        return self._world.platform.index.cluster_queue_of(namespace, name)

    def _on_quota(self, event: WatchEvent, now: Instant) -> None:
        new_amounts = {} if event.type is EventType.DELETED else _nominal_amounts(event.key, event.obj)
        old_amounts = self._quotas.get(event.key, {})
        if new_amounts == old_amounts:
            return
        for sign, amounts in ((-1, old_amounts), (1, new_amounts)):
            for at, amount in amounts.items():
                self.nominal.setdefault(at, Curve(self._start_time)).add(sign * amount, now)
        self._quotas[event.key] = new_amounts


def _nominal_amounts(key: Key, obj: Obj) -> dict[FlavorResource, int]:
    is_cohort = key.kind == scheme.COHORT
    resource_groups = cohort_view(obj).groups if is_cohort else cluster_queue_view(obj).groups
    name = f"Cohort/{key.name}" if is_cohort else key.name
    return {(name, each.flavor, each.resource): each.nominal for group in resource_groups for each in group.quotas}


@dataclass(frozen=True)
class ComparedRun:
    """The finished simulation of one of the compared configurations."""

    run_record: RunRecord
    watch: RunWatch
    start_time: Instant

    @property
    def result(self) -> Result:
        """Return the result of the simulation."""
        return self.run_record.result

    @property
    def workload_records(self) -> list[WorkloadRecord]:
        """Return the histories of the simulation's Workloads, in the order of creation."""
        return list(self.watch.workload_records.workload_records.values())


@dataclass(frozen=True)
class ComparedRuns:
    """The finished simulations of both compared configurations."""

    a: ComparedRun
    b: ComparedRun

    @property
    def end(self) -> Instant:
        """Return the end of the longer run; until then, Workloads without quota count as waiting."""
        return max(self.a.result.now, self.b.result.now)

    @property
    def comparison(self) -> Comparison:
        """Return both runs as a what-if comparison, whose change is the second configuration."""
        return Comparison(self.a.run_record, self.b.run_record)

    def wait_time(self, run: ComparedRun, workload_record: WorkloadRecord) -> Duration:
        """Return how long a Workload was without quota in total, up to the end of the longer run."""
        end = workload_record.deleted_at if workload_record.deleted_at is not None else self.end
        return run.result.waits.wait_time(workload_record.obj, end)

    def waited_seconds(self, run: ComparedRun, workload_record: WorkloadRecord) -> float:
        """Return how many seconds a Workload was without quota in total, up to the end of the longer run."""
        return duration_seconds(self.wait_time(run, workload_record))


def run_both(
    pair: ConfigurationPair,
    horizon: Duration | None = None,
    seed: int = 0,
    finish_run: Callable[[Simulation], None] = run_to_end,
) -> ComparedRuns:
    """Simulate both configurations; `finish` runs a simulation to its end, and may show progress."""
    return ComparedRuns(_run(pair.a, horizon, seed, finish_run), _run(pair.b, horizon, seed, finish_run))


def _run(scenario: Scenario, horizon: Duration | None, seed: int, finish: Callable[[Simulation], None]) -> ComparedRun:
    run_watches: list[RunWatch] = []

    def run_observed(simulation: Simulation) -> None:
        run_watches.append(RunWatch(simulation.world))
        finish(simulation)

    run_record = simulate_start(RunStart(scenario), None, horizon, seed, run_observed)
    return ComparedRun(run_record, run_watches[0], run_watches[0].start_time)


# The pods of a trace as Jobs with a queue, for comparing queue configurations.
#
# Each pod becomes a Job of one pod in the namespace `trace`. If both configurations have a LocalQueue named after the
# pod's quality of service (`ls`, `be`), the Job uses it, else the LocalQueue `default`. Traced nodes become Nodes.


DEFAULT_QUEUE: Final = "default"


def is_trace(path: Path) -> bool:
    """Report whether a path is a recorded trace: a folder with CSV files."""
    return path.is_dir() and any(each.suffix == ".csv" for each in path.iterdir())


def trace_as_jobs(folder: Path, load: Fraction, sides: Sequence[ComparedConfiguration]) -> list[Obj]:
    """Return a trace's nodes as Nodes and its pods as Jobs, in order of time; raise InvalidScenario with all errors."""
    queues = set.intersection(*map(_trace_queues, sides))
    trace = read_trace(folder, load)
    missing_queues = sorted({_queue_name(pod, queues) for pod in trace.pods} - queues)
    if missing_queues:
        problem = f"the configurations have no LocalQueue {NAMESPACE}/{missing_queues[0]} for the pods of the trace"
        remedy = "add the LocalQueue to both; `batchyard simulate --trace` runs the pods without queues"
        raise InvalidScenario([FileFault(", ".join(side.name for side in sides), FieldError("", problem, remedy))])
    return list(_trace_objects(trace, queues))


def _trace_queues(side: ComparedConfiguration) -> set[str]:
    """Return the names of a configuration's LocalQueues in the namespace of the traced pods."""
    objects = [each.obj for each in read_manifests(read_sources(side.sources, [])).objects]
    queues = [obj["metadata"] for obj in objects if group_kind(obj) == scheme.LOCAL_QUEUE]
    return {metadata["name"] for metadata in queues if metadata.get("namespace") == NAMESPACE}


def _queue_name(pod: TracedPod, queue_names: set[str]) -> str:
    name = pod.qos.lower()
    return name if name in queue_names else DEFAULT_QUEUE


def _trace_objects(trace: Trace, queue_names: set[str]) -> Iterator[Obj]:
    pods = {pod.name: pod for pod in trace.pods}
    for step in trace.scenario.steps:
        for obj in step.apply:
            if group_kind(obj) != scheme.POD:
                yield obj
                continue
            traced_pod = pods[obj["metadata"]["name"]]
            yield _job_of_pod(obj, traced_pod, _queue_name(traced_pod, queue_names), step.at)


def _job_of_pod(pod: Obj, traced_pod: TracedPod, queue: str, at: Duration) -> Obj:
    """Return a traced pod as a Job; if the pod was never scheduled, the Job is deleted when the pod was."""
    annotations: dict[str, Any] = {**pod["metadata"]["annotations"], well_known.SUBMIT_AT: format_duration(at)}
    if traced_pod.scheduled is None:
        annotations[well_known.DELETE_AT] = format_duration(traced_pod.deleted)
    labels = {well_known.QUEUE_NAME: queue}
    metadata = {"name": traced_pod.name, "namespace": NAMESPACE, "labels": labels, "annotations": annotations}
    template = {"spec": pod["spec"]}
    spec = {"suspend": True, "parallelism": 1, "completions": 1, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
