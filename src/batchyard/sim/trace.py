"""Traces: what really ran on a cluster of GPUs, as a scenario: its nodes from the start, its pods when they came.

A trace is a folder with two CSV files, told apart by their columns, as in Alibaba's cluster-trace-gpu-v2023:

nodes  sn, cpu_milli, memory_mib, gpu, model
pods   name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, pod_phase, creation_time, deletion_time,
       scheduled_time

Times are seconds. A pod that was scheduled runs from its placement as long as it did in the trace; one that never was
is deleted when it was deleted there. GPUs are counted in thousandths (`batchyard.dev/gpu-milli`): a pod may share one
GPU, and then all of its share lies on one.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND, Duration
from batchyard.sim.scenario import FileFault, InvalidScenario, Scenario, Step

GPU: Final = "batchyard.dev/gpu-milli"
GPU_WHOLE: Final = 1000
MODEL: Final = "batchyard.dev/gpu-model"
NAMESPACE: Final = "trace"
PODS_PER_NODE: Final = 110

_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "pod_phase"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
Row: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TracedPod:
    """A pod of the trace; times count from its start."""

    name: str
    created: Duration
    deleted: Duration
    #: None: it never was.
    scheduled: Duration | None
    gpu_milli: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace holds, and the scenario made of it."""

    pods: Sequence[TracedPod]
    nodes: int
    #: All GPUs of the nodes, in thousandths.
    gpu_milli: int
    scenario: Scenario


def read_trace(folder: Path) -> Trace:
    """The trace of a folder; InvalidScenario with every fault at once."""
    faults: list[FileFault] = []
    nodes, pods = _read_tables(folder, faults)
    made_nodes = [_made(_node, *row, faults) for row in nodes]
    made_pods = [_made(_pod, *row, faults) for row in pods]
    if faults:
        raise InvalidScenario(faults)
    traced = [pod for made in made_pods if made is not None for pod in [made[0]]]
    objects = [made for made in made_nodes if made is not None]
    applied: dict[Duration, list[Obj]] = {0: [_namespace(), *objects]}
    for made in made_pods:
        if made is not None:
            applied.setdefault(made[0].created, []).append(made[1])
    return Trace(
        traced,
        len(objects),
        sum(int(node["status"]["capacity"][GPU]) for node in objects),
        Scenario(_steps(applied, traced), name=folder.name, counts={"Node": len(objects), "Pod": len(traced)}),
    )


def _steps(applied: Mapping[Duration, Sequence[Obj]], pods: Sequence[TracedPod]) -> list[Step]:
    """What is applied and deleted when. Pods that ran end by themselves."""
    deleted: dict[Duration, list[Key]] = {}
    for pod in pods:
        if pod.scheduled is None:
            deleted.setdefault(pod.deleted, []).append(Key(scheme.POD, NAMESPACE, pod.name))
    moments = sorted({**dict.fromkeys(applied), **dict.fromkeys(deleted)})
    return [Step(at, applied.get(at, ()), deleted.get(at, ())) for at in moments]


# --- the files ---


def _read_tables(folder: Path, faults: list[FileFault]) -> tuple[list[tuple[str, Row]], list[tuple[str, Row]]]:
    """The rows of nodes and of pods, each with its place."""
    tables: dict[Sequence[str], list[tuple[str, Row]]] = {}
    files = sorted(folder.glob("*.csv")) if folder.is_dir() else []
    for path in files:
        try:
            _read_table(path, tables, faults)
        except (OSError, UnicodeDecodeError, csv.Error) as wrong:
            faults.append(FileFault(str(path), FieldError("", f"cannot be read: {wrong}", "save it as CSV in UTF-8")))
    for columns, what in ((_NODE_COLUMNS, "nodes"), (_POD_COLUMNS, "pods")):
        if columns not in tables and not faults:
            remedy = f"put a CSV file with the columns {', '.join(columns)} there"
            faults.append(FileFault(str(folder), FieldError("", f"no file of {what} is in this folder", remedy)))
    return tables.get(_NODE_COLUMNS, []), tables.get(_POD_COLUMNS, [])


def _read_table(path: Path, tables: dict[Sequence[str], list[tuple[str, Row]]], faults: list[FileFault]) -> None:
    with path.open(newline="", encoding="utf-8") as text:
        reader = csv.DictReader(text)
        found = reader.fieldnames or ()
        columns = next((columns for columns in (_POD_COLUMNS, _NODE_COLUMNS) if set(columns) <= set(found)), None)
        if columns is None:
            remedy = f"nodes need {', '.join(_NODE_COLUMNS)}; pods need {', '.join(_POD_COLUMNS)}"
            faults.append(FileFault(str(path), FieldError("", "its columns are of no trace that is known", remedy)))
            return
        tables.setdefault(columns, []).extend((f"{path}:{reader.line_num}", row) for row in reader)


MadeT = TypeVar("MadeT")


def _made(make: Callable[[Row], MadeT], place: str, row: Row, faults: list[FileFault]) -> MadeT | None:
    """What a row says, or a fault with its place."""
    try:
        return make(row)
    except (ValueError, TypeError) as wrong:
        faults.append(FileFault(place, FieldError("", f"not a row of a trace: {wrong}", "write whole numbers")))
        return None


# --- the objects ---


def _namespace() -> Obj:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def _node(row: Row) -> dict[str, Any]:
    """A node as it stands ready, with all it has free for pods."""
    gpus = int(row["gpu"])
    capacity = {
        "cpu": f"{int(row['cpu_milli'])}m",
        "memory": f"{int(row['memory_mib'])}Mi",
        "pods": str(PODS_PER_NODE),
        GPU: str(gpus * GPU_WHOLE),
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


def _pod(row: Row) -> tuple[TracedPod, dict[str, Any]]:
    created, deleted = int(row["creation_time"]) * SECOND, int(row["deletion_time"]) * SECOND
    scheduled = int(row["scheduled_time"]) * SECOND if row["scheduled_time"] else None
    gpus = int(row["num_gpu"]) * (int(row["gpu_milli"]) if row["num_gpu"] == "1" else GPU_WHOLE)
    requests = {"cpu": f"{int(row['cpu_milli'])}m", "memory": f"{int(row['memory_mib'])}Mi"}
    if gpus:
        requests[GPU] = str(gpus)
    annotations = {}
    if scheduled is not None:
        annotations[well_known.RUNTIME] = f"{(deleted - scheduled) // SECOND}s"
    if row["pod_phase"] == "Failed":
        annotations[well_known.EXIT_CODE] = "1"
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "traced", "resources": {"requests": requests}}],
    }
    if row["gpu_spec"]:
        spec["affinity"] = _on_models(row["gpu_spec"].split("|"))
    metadata = {"name": row["name"], "namespace": NAMESPACE, "annotations": annotations}
    traced = TracedPod(row["name"], created, deleted, scheduled, gpus)
    return traced, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _on_models(models: Sequence[str]) -> dict[str, Any]:
    """The affinity of a pod that runs on these models of GPU only."""
    term = {"matchExpressions": [{"key": MODEL, "operator": "In", "values": list(models)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
