"""Runs of one load with one seed under two configurations, so that these cause all differences."""

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
from batchyard.base.instant import Duration, Instant, duration_text, seconds
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.compare.inputs import Variant, VariantPair
from batchyard.sim.compare.workload_records import FlavorResource, WorkloadLife, WorkloadLives
from batchyard.sim.result import Result
from batchyard.sim.scenario import FileFault, InvalidScenario, Scenario, read_sources
from batchyard.sim.simulate import Simulation
from batchyard.sim.time_series import Curve
from batchyard.sim.traces import NAMESPACE, Trace, TracedPod, read_trace
from batchyard.sim.whatif import Comparison, RunRecord, RunStart, course, run_to_end
from batchyard.sim.world import World

# --- watch ---
#
# Observes a run for a comparison, by its watch events: Workloads, quota and machines.


#: The pool of nodes without one.
NO_POOL: Final = ""
#: Resources of nodes that are not compared, because pods do not request them.
_LEFT_OUT: Final = frozenset({"pods", "ephemeral-storage"})


class MachineUsage:
    """The allocatable resources of nodes and the requests of pods on them over time, by pool and resource."""

    def __init__(self, begun: Instant) -> None:
        self._begun = begun
        self.nodes: dict[str, Curve] = {}
        self.total: dict[tuple[str, str], Curve] = {}
        self.used: dict[tuple[str, str], Curve] = {}
        #: By node, its pool and its allocatable resources; by pod, the pool and its requests.
        self._has: dict[str, tuple[str, dict[str, int]]] = {}
        self._takes: dict[str, tuple[str, dict[str, int]]] = {}

    def on_node(self, event: WatchEvent, now: Instant) -> None:
        """Apply a watch event of a node."""
        view = node_view(event.obj)
        pool = view.labels.get(well_known.NODE_POOL, NO_POOL)
        before = self._has.pop(view.name, None)
        if before is not None:
            self._nodes(before[0]).add(-1, now)
            self._count(self.total, before, -1, now)
        if event.type is not EventType.DELETED:
            has = {resource: left for resource, left in view.allocatable.items() if resource not in _LEFT_OUT}
            self._has[view.name] = pool, has
            self._nodes(pool).add(1, now)
            self._count(self.total, (pool, has), 1, now)

    def on_pod(self, event: WatchEvent, now: Instant) -> None:
        """Apply a watch event of a pod."""
        view = pod_view(event.obj)
        is_there = bool(view.node_name) and event.type is not EventType.DELETED and not view.is_terminal
        if is_there and view.uid not in self._takes and view.node_name in self._has:
            pool = self._has[view.node_name][0]
            self._takes[view.uid] = pool, {r: amount for r, amount in view.requests if r not in _LEFT_OUT}
            self._count(self.used, self._takes[view.uid], 1, now)
        elif not is_there and view.uid in self._takes:
            self._count(self.used, self._takes.pop(view.uid), -1, now)

    def _nodes(self, pool: str) -> Curve:
        return self.nodes.setdefault(pool, Curve(self._begun))

    def _count(
        self, curves: dict[tuple[str, str], Curve], what: tuple[str, dict[str, int]], sign: int, now: Instant
    ) -> None:
        pool, amounts = what
        for resource, amount in amounts.items():
            curves.setdefault((pool, resource), Curve(self._begun)).add(sign * amount, now)


class RunWatch:
    """The observations of a run; create it before the run begins."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kernel = world.kernel
        self.begun = self._begun = world.start
        self.lives = WorkloadLives(world.start, self._queue_of)
        self.machines = MachineUsage(world.start)
        #: The nominal quota over time by ClusterQueue or Cohort, flavor and resource; Cohorts are named `Cohort/NAME`.
        self.nominal: dict[FlavorResource, Curve] = {}
        self._quotas: dict[Key, dict[FlavorResource, int]] = {}
        world.client.subscribe(self.observe)

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Apply watch events."""
        now = self._kernel.now()
        self.lives.let_pass(now)
        for event in events:
            kind = event.key.kind
            if kind == scheme.WORKLOAD:
                self.lives.observe(event, now)
            elif kind == scheme.POD:
                self.machines.on_pod(event, now)
            elif kind == scheme.NODE:
                self.machines.on_node(event, now)
            elif kind in {scheme.CLUSTER_QUEUE, scheme.COHORT}:
                self._on_quota(event, now)

    def _queue_of(self, namespace: str, name: str) -> str | None:
        """Return the ClusterQueue of a LocalQueue from the current platform, which a crash may have replaced."""
        return self._world.platform.index.cluster_queue_of(namespace, name)

    def _on_quota(self, event: WatchEvent, now: Instant) -> None:
        quotas = {} if event.type is EventType.DELETED else _nominal(event.key, event.obj)
        before = self._quotas.get(event.key, {})
        if quotas == before:
            return
        for sign, amounts in ((-1, before), (1, quotas)):
            for at, amount in amounts.items():
                self.nominal.setdefault(at, Curve(self._begun)).add(sign * amount, now)
        self._quotas[event.key] = quotas


def _nominal(key: Key, obj: Obj) -> dict[FlavorResource, int]:
    is_cohort = key.kind == scheme.COHORT
    groups = cohort_view(obj).groups if is_cohort else cluster_queue_view(obj).groups
    name = f"Cohort/{key.name}" if is_cohort else key.name
    return {(name, each.flavor, each.resource): each.nominal for group in groups for each in group.quotas}


@dataclass(frozen=True)
class ComparedRun:
    """One of the two runs, ended."""

    course: RunRecord
    watch: RunWatch
    begun: Instant

    @property
    def result(self) -> Result:
        """Return its result."""
        return self.course.result

    @property
    def lives(self) -> list[WorkloadLife]:
        """Return the lives of its Workloads, in the order of creation."""
        return list(self.watch.lives.lives.values())


@dataclass(frozen=True)
class ComparedRuns:
    """Both runs."""

    a: ComparedRun
    b: ComparedRun

    @property
    def end(self) -> Instant:
        """Return the later end of both, until which unadmitted Workloads count as waiting."""
        return max(self.a.result.now, self.b.result.now)

    @property
    def comparison(self) -> Comparison:
        """Return both runs as a change from the first to the second."""
        return Comparison(self.a.course, self.b.course)

    def waited(self, run: ComparedRun, life: WorkloadLife) -> Duration:
        """Return the total time that a Workload was without quota, until the later end if it still is."""
        end = life.gone if life.gone is not None else self.end
        return run.result.waits.waited(life.obj, end)

    def waited_seconds(self, run: ComparedRun, life: WorkloadLife) -> float:
        """Return the same in seconds."""
        return seconds(self.waited(run, life))


def run_both(
    pair: VariantPair, until: Duration | None = None, seed: int = 0, finish: Callable[[Simulation], None] = run_to_end
) -> ComparedRuns:
    """Run both; `finish` runs a simulation to its end, and may show progress."""
    return ComparedRuns(_run(pair.a, until, seed, finish), _run(pair.b, until, seed, finish))


def _run(scenario: Scenario, until: Duration | None, seed: int, finish: Callable[[Simulation], None]) -> ComparedRun:
    watches: list[RunWatch] = []

    def watched(simulation: Simulation) -> None:
        watches.append(RunWatch(simulation.world))
        finish(simulation)

    ended = course(RunStart(scenario), None, until, seed, watched)
    return ComparedRun(ended, watches[0], watches[0].begun)


# --- trace as Jobs ---
#
# The pods of a trace as Jobs with a queue, for comparing queue configurations.
#
# Each pod becomes a Job of one pod in the namespace `trace`. Its LocalQueue is named after its quality of service
# (`ls`,
# `be`) if both configurations have one, else it is `default`. The trace's nodes become Nodes.


DEFAULT: Final = "default"


def is_trace(path: Path) -> bool:
    """Whether a path is a trace: a folder with CSV files."""
    return path.is_dir() and any(each.suffix == ".csv" for each in path.iterdir())


def as_jobs(folder: Path, load: Fraction, sides: Sequence[Variant]) -> list[Obj]:
    """Return the nodes and pods of the trace as objects to apply, in order of time; raises InvalidScenario."""
    queues = set.intersection(*map(_queues, sides))
    trace = read_trace(folder, load)
    missing = sorted({_queue(pod, queues) for pod in trace.pods} - queues)
    if missing:
        problem = f"both need a LocalQueue {NAMESPACE}/{missing[0]} for the pods of the trace"
        remedy = "give them one; pods that queue nowhere are for `batchyard simulate --trace`"
        raise InvalidScenario([FileFault(", ".join(side.name for side in sides), FieldError("", problem, remedy))])
    return list(_objects(trace, queues))


def _queues(side: Variant) -> set[str]:
    """Return the LocalQueues that a configuration has for a trace."""
    objects = [each.obj for each in read_manifests(read_sources(side.sources, [])).objects]
    queues = [obj["metadata"] for obj in objects if group_kind(obj) == scheme.LOCAL_QUEUE]
    return {metadata["name"] for metadata in queues if metadata.get("namespace") == NAMESPACE}


def _queue(pod: TracedPod, queues: set[str]) -> str:
    name = pod.qos.lower()
    return name if name in queues else DEFAULT


def _objects(trace: Trace, queues: set[str]) -> Iterator[Obj]:
    pods = {pod.name: pod for pod in trace.pods}
    for step in trace.scenario.steps:
        for obj in step.apply:
            if group_kind(obj) != scheme.POD:
                yield obj
                continue
            traced = pods[obj["metadata"]["name"]]
            yield _job(obj, traced, _queue(traced, queues), step.at)


def _job(pod: Obj, traced: TracedPod, queue: str, at: Duration) -> Obj:
    """Return a pod as a Job; one that was never scheduled is deleted at its deletion time in the trace."""
    annotations: dict[str, Any] = {**pod["metadata"]["annotations"], well_known.SUBMIT_AT: duration_text(at)}
    if traced.scheduled is None:
        annotations[well_known.DELETE_AT] = duration_text(traced.deleted)
    labels = {well_known.QUEUE_NAME: queue}
    metadata = {"name": traced.name, "namespace": NAMESPACE, "labels": labels, "annotations": annotations}
    template = {"spec": pod["spec"]}
    spec = {"suspend": True, "parallelism": 1, "completions": 1, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
