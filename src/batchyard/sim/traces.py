"""Traces: the recorded load of a GPU cluster as a scenario, with its nodes at the start and its pods as they arrived.

A trace is a folder with two CSV files, identified by their columns, as in Alibaba's cluster-trace-gpu-v2023:

nodes  sn, cpu_milli, memory_mib, gpu, model
pods   name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, pod_phase, creation_time, deletion_time,
       scheduled_time

Times are seconds. A pod that was scheduled runs from its placement as long as it did in the trace. The run time of a
pod that was never scheduled is unknown: it is deleted at its deletion time in the trace, and holds its place until
then. GPUs are counted in thousandths (`batchyard.dev/gpu-milli`): a pod may share one GPU, and then its share lies on
one. Under a load of 10 pods arrive ten times as fast, with the same waits and run times, so that the cluster is ten
times as full.
"""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND, Duration
from batchyard.placement.node_info import WHOLE, pick_devices
from batchyard.sim.scenario import FileFault, InvalidScenario, Scenario, ScenarioStep, read_folder

# --- fragmentation ---
#
# GPU fragmentation: how much of the free GPUs of a cluster its pods cannot use, as measured by FGD.
#
# The unusable part of a node's GPUs is a mean over the mix of all pods. A pod that does not fit the node or needs no
# GPU counts all that is free. Any other pod counts the GPUs of which less is left than it requests of one. Source:
# Weng et al., Beware of Fragmentation (USENIX ATC 2023), section 3.2, and the simulator published with it. Amounts are
# integers, so that the shares are exact.


class TracedPodShape(NamedTuple):
    """The requests of a pod: cpu and GPUs in thousandths, memory in bytes."""

    cpu: int
    memory: int
    gpu_milli: int
    #: The models of GPU it runs on; empty: any.
    models: tuple[str, ...] = ()


class Room(NamedTuple):
    """The free resources of a node."""

    model: str
    cpu: int
    memory: int
    #: Of each GPU.
    gpus: tuple[int, ...]


class Mix:
    """The expected pods: the number of each shape."""

    def __init__(self, shapes: Iterable[TracedPodShape]) -> None:
        self._counts: dict[TracedPodShape, int] = {}
        for shape in shapes:
            self._counts[shape] = self._counts.get(shape, 0) + 1
        self.pods = sum(self._counts.values())
        self._known: dict[Room, int] = {}

    @property
    def without_gpu(self) -> float:
        """Return the share of pods that need no GPU, which is the lower bound of the fragmentation."""
        return sum(n for shape, n in self._counts.items() if not shape.gpu_milli) / self.pods if self.pods else 0.0

    def unusable(self, room: Room) -> int:
        """Return the unusable part of a node's GPUs in thousandths, as the sum over all pods, not their mean."""
        known = self._known.get(room)
        if known is None:
            known = self._known[room] = sum(n * _unusable_by(shape, room) for shape, n in self._counts.items())
        return known


def _unusable_by(shape: TracedPodShape, room: Room) -> int:
    if not _fits(shape, room):
        return sum(room.gpus)
    least = min(shape.gpu_milli, WHOLE)
    return sum([left for left in room.gpus if left < least])


def _fits(shape: TracedPodShape, room: Room) -> bool:
    """Whether a node has room for a pod with a GPU request."""
    if not shape.gpu_milli or shape.cpu > room.cpu or shape.memory > room.memory:
        return False
    return (not shape.models or room.model in shape.models) and bool(pick_devices(shape.gpu_milli, room.gpus))


GPU: Final = well_known.GPU_MILLI
MODEL: Final = "batchyard.dev/gpu-model"
NAMESPACE: Final = "trace"
PODS_PER_NODE: Final = 110
_MIB: Final = 1 << 20
_LOAD: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
#: The byte order mark that spreadsheets write at the start of their files.
_BYTE_ORDER_MARK: Final = "\ufeff"

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
    shape: TracedPodShape
    #: Its quality of service in the trace; '' without such a column.
    qos: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """The pods of a trace, and the scenario built from it."""

    pods: Sequence[TracedPod]
    scenario: Scenario
    #: The factor by which its pods arrive faster than in the trace.
    load: Fraction = Fraction(1)


def load_of(text: str) -> Fraction:
    """Parse a load such as 100 or 2.5; raises ValueError if it is invalid."""
    if _LOAD.fullmatch(text) is None or not Fraction(text):
        raise ValueError(f"{text!r} is not a load: give a number above 0, such as 100 or 2.5")
    return Fraction(text)


def read_trace(folder: Path, load: Fraction = Fraction(1)) -> Trace:
    """Read the trace of a folder under a load; raises InvalidScenario with all errors."""
    faults: list[FileFault] = []
    nodes, pods = _read_tables(folder, faults)
    _find_twins(nodes, "sn", faults)
    _find_twins(pods, "name", faults)
    made_nodes = [_made(_node, *row, faults) for row in nodes]
    made_pods = [_made(partial(_pod, load), *row, faults) for row in pods]
    if faults:
        raise InvalidScenario(faults)
    traced = [made[0] for made in made_pods if made is not None]
    objects = [made for made in made_nodes if made is not None]
    applied: dict[Duration, list[Obj]] = {0: [_namespace(), *objects]}
    for made in made_pods:
        if made is not None:
            applied.setdefault(made[0].created, []).append(made[1])
    return Trace(
        traced,
        Scenario(_steps(applied, traced), name=folder.name, counts={"Node": len(objects), "Pod": len(traced)}),
        load,
    )


def with_manifests(trace: Trace, scenario: Scenario) -> Scenario:
    """Return a scenario merged with the nodes and pods of a trace."""
    steps: dict[Duration, ScenarioStep] = {}
    for step in (*trace.scenario.steps, *scenario.steps):
        known = steps.get(step.at, ScenarioStep(step.at, (), ()))
        steps[step.at] = ScenarioStep(step.at, (*known.apply, *step.apply), (*known.delete, *step.delete))
    counts = dict(trace.scenario.counts)
    for kind, count in scenario.counts.items():
        counts[kind] = counts.get(kind, 0) + count
    return replace(scenario, steps=[steps[at] for at in sorted(steps)], counts=counts)


def _steps(applied: Mapping[Duration, Sequence[Obj]], pods: Sequence[TracedPod]) -> list[ScenarioStep]:
    """Return the steps that create and delete objects. Pods that ran end by themselves."""
    deleted: dict[Duration, list[Key]] = {}
    for pod in pods:
        if pod.scheduled is None:
            deleted.setdefault(pod.deleted, []).append(Key(scheme.POD, NAMESPACE, pod.name))
    moments = sorted({**dict.fromkeys(applied), **dict.fromkeys(deleted)})
    return [ScenarioStep(at, applied.get(at, ()), deleted.get(at, ())) for at in moments]


# --- the files ---


def _read_tables(folder: Path, faults: list[FileFault]) -> tuple[list[tuple[str, Row]], list[tuple[str, Row]]]:
    """Return the rows of nodes and of pods, each with its position."""
    tables: dict[Sequence[str], list[tuple[str, Row]]] = {}
    for name, text in read_folder(folder, ".csv", faults):
        try:
            _read_table(name, text, tables, faults)
        except csv.Error as wrong:
            faults.append(FileFault(name, FieldError("", f"not CSV: {wrong}", "save it as CSV")))
    for columns, what in ((_NODE_COLUMNS, "nodes"), (_POD_COLUMNS, "pods")):
        if columns not in tables and not faults:
            remedy = f"put a CSV file with the columns {', '.join(columns)} there"
            faults.append(FileFault(str(folder), FieldError("", f"no file of {what} is in this folder", remedy)))
    return tables.get(_NODE_COLUMNS, []), tables.get(_POD_COLUMNS, [])


def _read_table(
    name: str, text: str, tables: dict[Sequence[str], list[tuple[str, Row]]], faults: list[FileFault]
) -> None:
    reader = csv.DictReader(text.removeprefix(_BYTE_ORDER_MARK).splitlines())
    found = reader.fieldnames or ()
    columns = next((columns for columns in (_POD_COLUMNS, _NODE_COLUMNS) if set(columns) <= set(found)), None)
    if columns is None:
        remedy = f"nodes need {', '.join(_NODE_COLUMNS)}; pods need {', '.join(_POD_COLUMNS)}"
        faults.append(FileFault(name, FieldError("", "its columns match no known trace format", remedy)))
        return
    rows = tables.setdefault(columns, [])
    for row in reader:
        place = f"{name}:{reader.line_num}"
        if None in row or None in row.values():
            faults.append(
                FileFault(
                    place,
                    FieldError(
                        "",
                        f"it does not have {len(found)} fields, as the first line has",
                        "give all of them, or leave the row out",
                    ),
                )
            )
        else:
            rows.append((place, row))


def _find_twins(rows: Sequence[tuple[str, Row]], column: str, faults: list[FileFault]) -> None:
    """Report names that occur twice."""
    first: dict[str, str] = {}
    for place, row in rows:
        known = first.setdefault(row[column], place)
        if known != place:
            faults.append(
                FileFault(place, FieldError("", f"{row[column]!r} is in {known} already", "keep one of them"))
            )


MadeT = TypeVar("MadeT")


def _made(make: Callable[[Row], MadeT], place: str, row: Row, faults: list[FileFault]) -> MadeT | None:
    """Convert a row, or report an error with its position."""
    try:
        return make(row)
    except (ValueError, TypeError) as wrong:
        remedy = "write whole numbers from 0 on, times in seconds"
        faults.append(FileFault(place, FieldError("", f"not a row of a trace: {wrong}", remedy)))
        return None


# --- the objects ---


def _namespace() -> Obj:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def _node(row: Row) -> dict[str, Any]:
    """Return a ready node with its whole capacity allocatable."""
    capacity = {
        "cpu": f"{_number(row, 'cpu_milli')}m",
        "memory": f"{_number(row, 'memory_mib')}Mi",
        "pods": str(PODS_PER_NODE),
        GPU: str(_number(row, "gpu") * WHOLE),
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


def _pod(load: Fraction, row: Row) -> tuple[TracedPod, dict[str, Any]]:
    created, scheduled, deleted = _times(row, load)
    began = created if scheduled is None else scheduled
    gpus = _gpus(row)
    models = tuple(filter(None, (row["gpu_spec"] or "").split("|")))
    shape = TracedPodShape(_number(row, "cpu_milli"), _number(row, "memory_mib") * _MIB, gpus, models)
    extended = {GPU: str(gpus)} if gpus else {}
    requests = {"cpu": f"{shape.cpu}m", "memory": f"{shape.memory // _MIB}Mi", **extended}
    annotations = {well_known.RUNTIME: f"{(deleted - began) // SECOND}s"}
    if row["pod_phase"] == "Failed":
        annotations[well_known.EXIT_CODE] = "1"
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "traced", "resources": {"requests": requests, "limits": extended}}],
    }
    if models:
        spec["affinity"] = _on_models(models)
    metadata = {"name": row["name"], "namespace": NAMESPACE, "annotations": annotations}
    traced = TracedPod(row["name"], created, deleted, scheduled, shape, row.get("qos") or "")
    return traced, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _times(row: Row, load: Fraction) -> tuple[Duration, Duration | None, Duration]:
    """Return the times of a pod's creation, scheduling (or None) and deletion; under a load they are earlier."""
    created, deleted = _number(row, "creation_time") * SECOND, _number(row, "deletion_time") * SECOND
    scheduled = _number(row, "scheduled_time") * SECOND if row["scheduled_time"] else None
    if not created <= (created if scheduled is None else scheduled) <= deleted:
        raise ValueError("its times are not in the order created, scheduled, deleted")
    earlier = created - created * load.denominator // load.numerator
    return created - earlier, None if scheduled is None else scheduled - earlier, deleted - earlier


def _gpus(row: Row) -> int:
    """Return the GPU request of a pod in thousandths: a share of one, or several whole ones."""
    count, share = _number(row, "num_gpu"), _number(row, "gpu_milli")
    if count != 1:
        return count * WHOLE
    if not 1 <= share <= WHOLE:
        raise ValueError(f"gpu_milli is {row['gpu_milli']!r}, not from 1 to {WHOLE} of one GPU")
    return share


def _number(row: Row, column: str) -> int:
    text = row[column] or ""
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{column} is {text!r}")
    return int(text)


def _on_models(models: Sequence[str]) -> dict[str, Any]:
    """Return the affinity of a pod that needs one of these models of GPU."""
    term = {"matchExpressions": [{"key": MODEL, "operator": "In", "values": list(models)}]}
    return {"nodeAffinity": {well_known.REQUIRED: {"nodeSelectorTerms": [term]}}}
