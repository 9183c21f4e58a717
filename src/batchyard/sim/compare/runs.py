"""Runs of one load with one seed under two configurations, so that these cause all differences."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, group_kind
from batchyard.base.instant import Duration, Instant, duration_text, seconds
from batchyard.sim.compare.inputs import Variant, VariantPair
from batchyard.sim.compare.watch import RunWatch
from batchyard.sim.compare.workload_records import WorkloadLife
from batchyard.sim.files import read_sources
from batchyard.sim.result import Result
from batchyard.sim.scenario import FileFault, InvalidScenario, Scenario
from batchyard.sim.simulate import Simulation
from batchyard.sim.traces import NAMESPACE, Trace, TracedPod, read_trace
from batchyard.sim.whatif import Comparison, RunRecord, RunStart, course, run_to_end


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
