"""Simulates one load with one seed under two configurations and observes both runs; converts traced pods to Jobs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, group_kind
from batchyard.base.instant import Duration, Instant, format_duration
from batchyard.sim.compare.inputs import ComparedConfiguration, ConfigurationPair
from batchyard.sim.scenario import FileFault, InvalidScenario, Scenario, read_sources
from batchyard.sim.simulate import Simulation
from batchyard.sim.summary.run_watch import RunWatch, WatchedSimulation
from batchyard.sim.traces import NAMESPACE, Trace, TracedPod, read_trace
from batchyard.sim.whatif import Comparison, RunRecord, RunStart, run_to_end, simulate_from_start


@dataclass(frozen=True)
class ComparedRun(WatchedSimulation):
    """The finished simulation of one of the compared configurations."""

    run_record: RunRecord


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


def run_both(
    pair: ConfigurationPair,
    horizon: Duration | None = None,
    seed: int = 0,
    finish_run: Callable[[Simulation], None] = run_to_end,
) -> ComparedRuns:
    """Simulate both configurations; `finish_run` runs a simulation to its end, and may show progress."""
    observed_runs = [_run(scenario, horizon, seed, finish_run) for scenario in (pair.a, pair.b)]
    end = max(run_record.result.now for run_record, _ in observed_runs)
    return ComparedRuns(*(ComparedRun(record.result, watch, end, record) for record, watch in observed_runs))


def _run(
    scenario: Scenario, horizon: Duration | None, seed: int, finish: Callable[[Simulation], None]
) -> tuple[RunRecord, RunWatch]:
    run_watches: list[RunWatch] = []

    def run_observed(simulation: Simulation) -> None:
        run_watches.append(RunWatch(simulation.world))
        finish(simulation)

    return simulate_from_start(RunStart(scenario), None, horizon, seed, run_observed), run_watches[0]


# The pods of a trace as Jobs with a queue, for comparing queue configurations.
#
# Each pod becomes a Job of one pod in the namespace `trace`. If both configurations have a LocalQueue named after the
# pod's quality of service (`ls`, `be`), the Job uses it, else the LocalQueue `default`. Traced nodes become Nodes.


DEFAULT_QUEUE: Final = "default"


def is_trace(path: Path) -> bool:
    """Return whether a path is a recorded trace: a folder with CSV files."""
    return path.is_dir() and any(each.suffix == ".csv" for each in path.iterdir())


def trace_as_jobs(folder: Path, load: Fraction, configurations: Sequence[ComparedConfiguration]) -> list[Obj]:
    """Return a trace as manifests in order of time: its Namespace, its Nodes, and a Job with a queue for each pod.

    Pods arrive `load` times as fast. Raise InvalidScenario if the trace is invalid, or if
    one of `configurations` lacks a LocalQueue for the pods.
    """
    queues = set.intersection(*map(_trace_queues, configurations))
    trace = read_trace(folder, load)
    missing_queues = sorted({_queue_name(pod, queues) for pod in trace.pods} - queues)
    if missing_queues:
        problem = f"the configurations have no LocalQueue {NAMESPACE}/{missing_queues[0]} for the pods of the trace"
        remedy = "add the LocalQueue to both; `batchyard simulate --trace` runs the pods without queues"
        raise InvalidScenario(
            [FileFault(", ".join(each.name for each in configurations), FieldError("", problem, remedy))]
        )
    return list(_trace_objects(trace, queues))


def _trace_queues(configuration: ComparedConfiguration) -> set[str]:
    objects = [each.obj for each in read_manifests(read_sources(configuration.sources, [])).objects]
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
    annotations: dict[str, Any] = {**pod["metadata"]["annotations"], well_known.SUBMIT_AT: format_duration(at)}
    if traced_pod.scheduled is None:
        annotations[well_known.DELETE_AT] = format_duration(traced_pod.deleted)
    labels = {well_known.QUEUE_NAME: queue}
    metadata = {"name": traced_pod.name, "namespace": NAMESPACE, "labels": labels, "annotations": annotations}
    template = {"spec": pod["spec"]}
    spec = {"suspend": True, "parallelism": 1, "completions": 1, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
