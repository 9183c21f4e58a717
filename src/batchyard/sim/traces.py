"""Traces: the recorded load of a GPU cluster, read as a scenario; and how the fragmentation of GPUs is measured.

A trace is a folder with two CSV files, identified by their columns, as in Alibaba's cluster-trace-gpu-v2023:

nodes  sn, cpu_milli, memory_mib, gpu, model
pods   name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, pod_phase, creation_time, deletion_time,
       scheduled_time

Times are seconds. A pod that was scheduled runs as long as it did in the trace. A pod that was never scheduled has an
unknown run time; it is deleted at its deletion time in the trace. GPUs are counted in thousandths
(`batchyard.dev/gpu-milli`): a pod may use a fraction of one GPU. With a load factor of 10, pods arrive ten times as
fast, with the same run times, so that ten times as much work runs at once.
"""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj
from batchyard.base.counts import pluralize
from batchyard.base.instant import SECOND, Duration
from batchyard.placement.node_info import WHOLE_GPU, choose_gpus
from batchyard.sim.scenario import FileFault, InvalidScenario, Scenario, ScenarioStep, read_folder

# GPU fragmentation: the fraction of the free GPUs of a cluster that its pods cannot use, as measured by FGD.
#
# The unusable part of a node's GPUs is a mean over all expected pods. For a pod that does not fit the node or needs no
# GPU, all free GPUs are unusable. For any other pod, the GPUs with less free capacity than the pod requests of one GPU
# are unusable. Source: Weng et al., Beware of Fragmentation (USENIX ATC 2023), section 3.2, and the simulator published
# with it. Amounts are integers, so that the fractions are exact.


class TracedPodShape(NamedTuple):
    """The requests of a traced pod: cpu and GPUs in thousandths, memory in bytes."""

    cpu: int
    memory: int
    gpu_milli: int
    #: The GPU models on which the pod can run; empty: any.
    models: tuple[str, ...] = ()


class FreeNodeResources(NamedTuple):
    """The free resources of a node: cpu in thousandths, memory in bytes."""

    model: str
    cpu: int
    memory: int
    #: The free thousandths of each GPU.
    gpus: tuple[int, ...]


class PodMix:
    """The numbers of a trace's pods by their requests, to measure which free GPUs these pods cannot use."""

    def __init__(self, shapes: Iterable[TracedPodShape]) -> None:
        self._counts: dict[TracedPodShape, int] = {}
        for shape in shapes:
            self._counts[shape] = self._counts.get(shape, 0) + 1
        self.pod_count = sum(self._counts.values())
        self._unusable_by_room: dict[FreeNodeResources, int] = {}

    @property
    def fraction_without_gpu(self) -> float:
        """Return the fraction of the trace's pods that need no GPU: the minimum of the trace's GPU fragmentation."""
        return (
            sum(n for shape, n in self._counts.items() if not shape.gpu_milli) / self.pod_count
            if self.pod_count
            else 0.0
        )

    def unusable_gpu_sum(self, free_resources: FreeNodeResources) -> int:
        """Return how much of a node's free GPUs the trace's pods cannot use, in thousandths of a GPU.

        This is the sum over all pods; each pod alone is compared with the free GPUs.
        """
        unusable_sum = self._unusable_by_room.get(free_resources)
        if unusable_sum is None:
            unusable_sum = self._unusable_by_room[free_resources] = sum(
                n * _unusable_gpus(shape, free_resources) for shape, n in self._counts.items()
            )
        return unusable_sum


def _unusable_gpus(shape: TracedPodShape, free_resources: FreeNodeResources) -> int:
    if not _fits(shape, free_resources):
        return sum(free_resources.gpus)
    needed_per_gpu = min(shape.gpu_milli, WHOLE_GPU)
    return sum([free for free in free_resources.gpus if free < needed_per_gpu])


def _fits(shape: TracedPodShape, node: FreeNodeResources) -> bool:
    """Return whether a node has room for a pod that requests GPUs; False for a pod without GPUs."""
    if not shape.gpu_milli or shape.cpu > node.cpu or shape.memory > node.memory:
        return False
    return (not shape.models or node.model in shape.models) and bool(choose_gpus(shape.gpu_milli, node.gpus))


GPU: Final = well_known.GPU_MILLI
MODEL: Final = "batchyard.dev/gpu-model"
NAMESPACE: Final = "trace"
PODS_PER_NODE: Final = 110
_MIB: Final = 1 << 20
_LOAD_PATTERN: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
#: The byte order mark that spreadsheets write at the start of their files.
_BYTE_ORDER_MARK: Final = "\ufeff"

_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "pod_phase"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
TraceRow: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TracedPod:
    """A pod of a trace; times count from the start of the simulation."""

    name: str
    created: Duration
    deleted: Duration
    #: The time at which the pod was scheduled; None: never.
    scheduled: Duration | None
    shape: TracedPodShape
    #: The quality of service in the trace; '' if the trace has no such column.
    qos: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """The pods of a recorded trace, and the scenario built from it."""

    pods: Sequence[TracedPod]
    scenario: Scenario
    #: The factor by which pods arrive faster than in the trace.
    load: Fraction = Fraction(1)


def parse_load(text: str) -> Fraction:
    """Parse a load factor (how many times as fast pods arrive), such as 2.5; raise ValueError if it is invalid."""
    if _LOAD_PATTERN.fullmatch(text) is None or not Fraction(text):
        raise ValueError(f"{text!r} is not a valid load: use a number above 0, such as 100 or 2.5")
    return Fraction(text)


def read_trace(folder: Path, load: Fraction = Fraction(1)) -> Trace:
    """Read the trace in a folder; pods arrive `load` times as fast. Raise InvalidScenario with all errors."""
    faults: list[FileFault] = []
    nodes, pods = _read_trace_tables(folder, faults)
    _report_duplicates(nodes, "sn", faults)
    _report_duplicates(pods, "name", faults)
    node_objects = [_convert_row(_node_object, *row, faults) for row in nodes]
    converted_pods = [_convert_row(partial(_traced_pod, load), *row, faults) for row in pods]
    if faults:
        raise InvalidScenario(faults)
    traced_pods = [converted[0] for converted in converted_pods if converted is not None]
    known_nodes = [converted for converted in node_objects if converted is not None]
    objects_by_time: dict[Duration, list[Obj]] = {0: [_namespace(), *known_nodes]}
    for converted in converted_pods:
        if converted is not None:
            objects_by_time.setdefault(converted[0].created, []).append(converted[1])
    count_by_kind = {"Node": len(known_nodes), "Pod": len(traced_pods)}
    scenario = Scenario(_trace_steps(objects_by_time, traced_pods), name=folder.name, counts=count_by_kind)
    return Trace(traced_pods, scenario, load)


def merge_trace(trace: Trace, scenario: Scenario) -> Scenario:
    """Return `scenario` with the nodes and pods of a trace added."""
    steps: dict[Duration, ScenarioStep] = {}
    for step in (*trace.scenario.steps, *scenario.steps):
        merged_step = steps.get(step.at, ScenarioStep(step.at, (), ()))
        steps[step.at] = ScenarioStep(step.at, (*merged_step.apply, *step.apply), (*merged_step.delete, *step.delete))
    count_by_kind = dict(trace.scenario.counts)
    for kind, count in scenario.counts.items():
        count_by_kind[kind] = count_by_kind.get(kind, 0) + count
    return replace(scenario, steps=[steps[at] for at in sorted(steps)], counts=count_by_kind)


def _trace_steps(objects_by_time: Mapping[Duration, Sequence[Obj]], pods: Sequence[TracedPod]) -> list[ScenarioStep]:
    deleted_keys_by_time: dict[Duration, list[Key]] = {}
    for pod in pods:
        if pod.scheduled is None:
            deleted_keys_by_time.setdefault(pod.deleted, []).append(Key(scheme.POD, NAMESPACE, pod.name))
    step_times = sorted({**dict.fromkeys(objects_by_time), **dict.fromkeys(deleted_keys_by_time)})
    return [ScenarioStep(at, objects_by_time.get(at, ()), deleted_keys_by_time.get(at, ())) for at in step_times]


_TraceRows: TypeAlias = list[tuple[str, TraceRow]]


def _read_trace_tables(folder: Path, faults: list[FileFault]) -> tuple[_TraceRows, _TraceRows]:
    rows_by_columns: dict[Sequence[str], _TraceRows] = {}
    for name, text in read_folder(folder, ".csv", faults):
        try:
            _read_table(name, text, rows_by_columns, faults)
        except csv.Error as error:
            faults.append(
                FileFault(name, FieldError("", f"the file is not valid CSV: {error}", "save the file as CSV"))
            )
    for columns, table_name in ((_NODE_COLUMNS, "nodes"), (_POD_COLUMNS, "pods")):
        if columns not in rows_by_columns and not faults:
            remedy = f"add a CSV file with the columns {', '.join(columns)}"
            faults.append(FileFault(str(folder), FieldError("", f"the folder has no CSV file of {table_name}", remedy)))
    return rows_by_columns.get(_NODE_COLUMNS, []), rows_by_columns.get(_POD_COLUMNS, [])


def _read_table(name: str, text: str, tables: dict[Sequence[str], _TraceRows], faults: list[FileFault]) -> None:
    reader = csv.DictReader(text.removeprefix(_BYTE_ORDER_MARK).splitlines())
    field_names = reader.fieldnames or ()
    columns = next((columns for columns in (_POD_COLUMNS, _NODE_COLUMNS) if set(columns) <= set(field_names)), None)
    if columns is None:
        faults.append(FileFault(f"{name}:1", _columns_error(field_names)))
        return
    rows = tables.setdefault(columns, [])
    for row in reader:
        location = f"{name}:{reader.line_num}"
        if None in row or None in row.values():
            problem = f"the row does not have {len(field_names)} fields like the first line"
            action = "remove the extra" if None in row else "add the missing"
            faults.append(FileFault(location, FieldError("", problem, f"{action} fields, or remove the row")))
        else:
            rows.append((location, row))


def _columns_error(field_names: Sequence[str]) -> FieldError:
    if not set(field_names) & {*_NODE_COLUMNS, *_POD_COLUMNS}:
        remedy = f"nodes need {', '.join(_NODE_COLUMNS)}; pods need {', '.join(_POD_COLUMNS)}"
        return FieldError("", "the columns are those of neither nodes nor pods", remedy)
    is_pods = len({*_POD_COLUMNS} & set(field_names)) > len({*_NODE_COLUMNS} & set(field_names))
    table_name, columns = ("pods", _POD_COLUMNS) if is_pods else ("nodes", _NODE_COLUMNS)
    missing_columns = [column for column in columns if column not in field_names]
    missing, noun = ", ".join(missing_columns), pluralize("column", len(missing_columns))
    remedy = f"add the missing {noun} to the first line and to each row, or rename similar columns to {missing}"
    return FieldError("", f"the table of {table_name} lacks the {noun} {missing}", remedy)


def _report_duplicates(rows: Sequence[tuple[str, TraceRow]], column: str, faults: list[FileFault]) -> None:
    first_location: dict[str, str] = {}
    for location, row in rows:
        known_location = first_location.setdefault(row[column], location)
        if known_location != location:
            faults.append(
                FileFault(
                    location,
                    FieldError(
                        "", f"the name {row[column]!r} is already used in {known_location}", "remove one of the rows"
                    ),
                )
            )


class _RowError(ValueError):
    """A row of a trace file has an invalid value."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.remedy = remedy


ConvertedT = TypeVar("ConvertedT")


def _convert_row(
    convert: Callable[[TraceRow], ConvertedT], location: str, row: TraceRow, faults: list[FileFault]
) -> ConvertedT | None:
    try:
        return convert(row)
    except (ValueError, TypeError) as error:
        remedy = error.remedy if isinstance(error, _RowError) else "correct the row, or remove it"
        faults.append(FileFault(location, FieldError("", f"the row is invalid: {error}", remedy)))
        return None


def _namespace() -> Obj:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def _node_object(row: TraceRow) -> dict[str, Any]:
    capacity = {
        "cpu": f"{_whole_number(row, 'cpu_milli')}m",
        "memory": f"{_whole_number(row, 'memory_mib')}Mi",
        "pods": str(PODS_PER_NODE),
        GPU: str(_whole_number(row, "gpu") * WHOLE_GPU),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": row["sn"], "labels": {well_known.HOSTNAME: row["sn"], MODEL: row["model"]}},
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def _traced_pod(load: Fraction, row: TraceRow) -> tuple[TracedPod, dict[str, Any]]:
    creation_time, scheduling_time, deletion_time = _pod_times(row, load)
    runs_from = creation_time if scheduling_time is None else scheduling_time
    gpus = _gpu_request(row)
    models = tuple(filter(None, (row["gpu_spec"] or "").split("|")))
    shape = TracedPodShape(_whole_number(row, "cpu_milli"), _whole_number(row, "memory_mib") * _MIB, gpus, models)
    annotations = {well_known.RUNTIME: f"{(deletion_time - runs_from) // SECOND}s"}
    if row["pod_phase"] == "Failed":
        annotations[well_known.EXIT_CODE] = "1"
    metadata = {"name": row["name"], "namespace": NAMESPACE, "annotations": annotations}
    traced_pod = TracedPod(row["name"], creation_time, deletion_time, scheduling_time, shape, row.get("qos") or "")
    return traced_pod, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _pod_spec(shape)}


@lru_cache(maxsize=16384)
def _pod_spec(shape: TracedPodShape) -> dict[str, Any]:
    """Return the spec of a traced pod; pods of equal shape share it, because a trace can have a million pods."""
    gpu_resources = {GPU: str(shape.gpu_milli)} if shape.gpu_milli else {}
    requests = {"cpu": f"{shape.cpu}m", "memory": f"{shape.memory // _MIB}Mi", **gpu_resources}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [
            {"name": "main", "image": "traced", "resources": {"requests": requests, "limits": gpu_resources}}
        ],
    }
    if shape.models:
        spec["affinity"] = _model_affinity(shape.models)
    return spec


def _pod_times(row: TraceRow, load: Fraction) -> tuple[Duration, Duration | None, Duration]:
    """Return when a traced pod is created, scheduled (None if never) and deleted.

    The creation time is divided by `load`; the other times are shifted equally, so that durations stay the same.
    """
    created_at, deleted_at = _whole_number(row, "creation_time") * SECOND, _whole_number(row, "deletion_time") * SECOND
    scheduled_at = _whole_number(row, "scheduled_time") * SECOND if row["scheduled_time"] else None
    if not created_at <= (created_at if scheduled_at is None else scheduled_at) <= deleted_at:
        times = f"creation_time {row['creation_time']}, scheduled_time {row['scheduled_time'] or '-'}"
        problem = f"{times} and deletion_time {row['deletion_time']} are not in ascending order"
        raise _RowError(problem, "write the times in seconds: creation, then scheduling, then deletion")
    time_shift = created_at - created_at * load.denominator // load.numerator
    return created_at - time_shift, None if scheduled_at is None else scheduled_at - time_shift, deleted_at - time_shift


def _gpu_request(row: TraceRow) -> int:
    """Return a traced pod's GPU request in thousandths of a GPU."""
    count, gpu_milli = _whole_number(row, "num_gpu"), _whole_number(row, "gpu_milli")
    if count != 1:
        return count * WHOLE_GPU
    if not 1 <= gpu_milli <= WHOLE_GPU:
        problem = f"gpu_milli is {row['gpu_milli']!r}, but must be from 1 to {WHOLE_GPU} for one GPU"
        raise _RowError(problem, f"write the thousandths of a GPU, such as {WHOLE_GPU} for a whole one")
    return gpu_milli


def _whole_number(row: TraceRow, column: str) -> int:
    text = row[column] or ""
    if not (text.isascii() and text.isdecimal()):
        raise _RowError(f"{column} is {text!r}, not a whole number", "write a whole number from 0")
    return int(text)


def _model_affinity(models: Sequence[str]) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": MODEL, "operator": "In", "values": list(models)}]}
    return {"nodeAffinity": {well_known.REQUIRED: {"nodeSelectorTerms": [term]}}}
