"""GPU metrics with DCGM's names: measured values of real GPUs, and computed values of simulated GPUs.

A simulated GPU has no sensors: its utilization and memory follow the run time of its pod (`simulated_load`). It has no
temperature, no power and no memory traffic, and the label `source` is `simulated`. GPUs that several pods share are
omitted. Source of names and labels: dcgm-exporter, etc/default-counters.csv and pkg/dcgmexporter.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from batchyard.api import meta, well_known
from batchyard.api.meta import Obj, label
from batchyard.api.times import parse_time
from batchyard.api.views.pods import RUNNING, bound_node, is_terminal, phase
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.base.primitives import draw_integer
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import Labels, gauge_text

# The load of simulated GPUs: a function of the pod, the GPU and the elapsed time.
#
# A pod first loads its data and model. Then its utilization varies around a fixed level, with occasional pauses, as in
# training with evaluation and checkpoints. The values are drawn from the pod's uid and the GPU's number (see
# `batchyard.base.draw`), so that two scrapes of the same instant return the same values, even after a restart.


#: How long a value stays constant, and how long a pod loads its data. Both in time of the platform's clock.
LOAD_STEP: Final[Duration] = 15 * SECOND
LOADING_TIME: Final[Duration] = 30 * SECOND
_SEED: Final = 0
#: Ranges of the utilization in percent, bounds included: while loading, the pod's fixed level, and in a pause.
_LOADING_PERCENT: Final = (5, 29)
_BUSY_LEVEL_PERCENT: Final = (70, 94)
_PAUSE_PERCENT: Final = (10, 39)
#: The deviation of a value from the pod's level, in percent.
_DEVIATION_PERCENT: Final = (-6, 5)
#: The average number of pauses in 100 steps.
_PAUSES_PER_100_STEPS: Final = 8
#: The range of the GPU memory in use, in percent, bounds included.
_MEMORY_PERCENT: Final = (60, 95)


class SimulatedLoad(NamedTuple):
    """The utilization and memory use of one simulated GPU, in percent."""

    busy: int
    memory: int


IDLE_LOAD: Final = SimulatedLoad(0, 0)


def simulated_load(uid: str, gpu: int, elapsed_time: Duration) -> SimulatedLoad:
    """Return the simulated load of a GPU whose pod has run for `elapsed_time`; `uid` is the pod's uid."""
    elapsed_time = max(0, elapsed_time)
    memory_percent = _draw_between(_MEMORY_PERCENT, uid, "memory")
    step_seed_names = (uid, str(gpu), str(elapsed_time // LOAD_STEP))
    if elapsed_time < LOADING_TIME:
        busy_percent = _draw_between(_LOADING_PERCENT, "loading", *step_seed_names)
        return SimulatedLoad(busy_percent, memory_percent * elapsed_time // LOADING_TIME)
    if draw_integer(_SEED, "pause", *step_seed_names) % 100 < _PAUSES_PER_100_STEPS:
        return SimulatedLoad(_draw_between(_PAUSE_PERCENT, "paused", *step_seed_names), memory_percent)
    deviation = _draw_between(_DEVIATION_PERCENT, "spread", *step_seed_names)
    return SimulatedLoad(_draw_between(_BUSY_LEVEL_PERCENT, uid, "level") + deviation, memory_percent)


def _draw_between(bounds: tuple[int, int], *names: str) -> int:
    """Draw an integer between two bounds (included) with equal probability; the names determine the result."""
    minimum, maximum = bounds
    return minimum + draw_integer(_SEED, *names) % (maximum - minimum + 1)


MEASURED: Final = "nvml"
SIMULATED_SOURCE: Final = "simulated"
#: The memory of a GPU in MiB, by the accelerator's type. Source: NVIDIA's data sheets.
_MEMORY_BY_MODEL: Final = {
    "nvidia-tesla-p4": 8192,
    "nvidia-tesla-p100": 16384,
    "nvidia-tesla-v100": 16384,
    "nvidia-tesla-t4": 16384,
    "nvidia-l4": 24576,
    "nvidia-tesla-a100": 40960,
    "nvidia-a100-80gb": 81920,
    "nvidia-h100-80gb": 81920,
    "nvidia-h100-mega-80gb": 81920,
}


class GpuHolder(NamedTuple):
    """The names of the container, namespace and pod that a GPU is allocated to; empty if the GPU is free."""

    container: str = ""
    namespace: str = ""
    pod: str = ""


class GpuState(NamedTuple):
    """One GPU: its identity, the pod that holds it, and its measured or simulated values; None for an unknown value."""

    number: int
    uuid: str
    model: str
    node: str
    holder: GpuHolder
    source: str
    busy_percent: float | None = None
    memory_busy_percent: float | None = None
    used_mib: float | None = None
    free_mib: float | None = None
    celsius: float | None = None
    watts: float | None = None

    def labels(self) -> Labels:
        """Return the label values of the GPU's metrics, in dcgm-exporter's order."""
        name = str(self.number)
        return name, self.uuid, f"nvidia{name}", self.model, self.node, *self.holder, self.source


_FIELD_BY_METRIC: Final = {
    "DCGM_FI_DEV_GPU_UTIL": "busy_percent",
    "DCGM_FI_DEV_MEM_COPY_UTIL": "memory_busy_percent",
    "DCGM_FI_DEV_FB_USED": "used_mib",
    "DCGM_FI_DEV_FB_FREE": "free_mib",
    "DCGM_FI_DEV_GPU_TEMP": "celsius",
    "DCGM_FI_DEV_POWER_USAGE": "watts",
}


def gpu_metric_texts(gpus: Sequence[GpuState]) -> Iterator[str]:
    """Yield the exposition text of each GPU metric, with a sample for each GPU whose value is known."""
    for name, field in _FIELD_BY_METRIC.items():
        samples = ((gpu.labels(), value) for gpu in gpus if (value := getattr(gpu, field)) is not None)
        yield gauge_text(metric(name), samples)


class SimulatedGpus:
    """The GPUs of simulated nodes and the pods that hold them; a pod keeps the same GPUs between scrapes."""

    def __init__(self) -> None:
        #: The uid of the pod that holds each GPU, by node.
        self._holders: dict[str, list[str]] = {}

    def states(self, nodes: Iterable[Obj], pods: Iterable[Obj], now: Instant) -> list[GpuState]:
        """Return the state of the GPUs of the simulated `nodes` at `now`, and update their allocation to `pods`."""
        pods_by_node: dict[str, dict[str, Obj]] = {}
        for pod in pods:
            if bound_node(pod) and not is_terminal(pod) and _requested_gpu_count(pod):
                pods_by_node.setdefault(bound_node(pod), {})[pod["metadata"]["uid"]] = pod
        nodes_with_gpu_counts = {node["metadata"]["name"]: (node, _gpu_count(node)) for node in nodes}
        self._holders = {
            name: self._assign_gpus(name, count, pods_by_node.get(name, {}))
            for name, (_, count) in nodes_with_gpu_counts.items()
            if count
        }
        return [
            _gpu_state(nodes_with_gpu_counts[name][0], number, pods_by_node.get(name, {}).get(uid), now)
            for name, uids in self._holders.items()
            for number, uid in enumerate(uids)
        ]

    def _assign_gpus(self, node: str, count: int, pods: dict[str, Obj]) -> list[str]:
        """Return the pod uid of each GPU of a node, '' if free; pods keep their GPUs, new pods get free ones."""
        holder_uids = [uid if uid in pods else "" for uid in [*self._holders.get(node, []), *[""] * count][:count]]
        for uid, pod in sorted(pods.items()):
            needed_gpu_count = _requested_gpu_count(pod) - holder_uids.count(uid)
            free_gpu_numbers = [number for number, holder_uid in enumerate(holder_uids) if not holder_uid]
            for number in free_gpu_numbers[: max(0, needed_gpu_count)]:
                holder_uids[number] = uid
        return holder_uids


def _gpu_count(node: Obj) -> int:
    """Return the number of whole GPUs in the node's allocatable resources; shared GPUs are not counted."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return int(meta.amount(well_known.GPU, allocatable.get(well_known.GPU, "0")))


def _requested_gpu_count(pod: Obj) -> int:
    return sum(_container_gpu_limit(container) for container in pod["spec"].get("containers") or ())


def _container_gpu_limit(container: Obj) -> int:
    limits = (container.get("resources") or {}).get("limits") or {}
    return int(meta.amount(well_known.GPU, limits.get(well_known.GPU, "0")))


def _gpu_state(node: Obj, gpu_number: int, pod: Obj | None, now: Instant) -> GpuState:
    name, model = node["metadata"]["name"], label(node, well_known.ACCELERATOR) or ""
    holder, load, total_mib = GpuHolder(), IDLE_LOAD, _MEMORY_BY_MODEL.get(model)
    if pod is not None:
        container = next((c["name"] for c in pod["spec"]["containers"] if _container_gpu_limit(c)), "")
        holder = GpuHolder(container, pod["metadata"]["namespace"], pod["metadata"]["name"])
        if phase(pod) == RUNNING:
            load = simulated_load(pod["metadata"]["uid"], gpu_number, _pod_run_time(pod, now))
    used_memory = None if total_mib is None else total_mib * load.memory // 100
    return GpuState(
        gpu_number,
        f"GPU-{SIMULATED_SOURCE}-{name}-{gpu_number}",
        model,
        name,
        holder,
        SIMULATED_SOURCE,
        busy_percent=load.busy,
        used_mib=used_memory,
        free_mib=None if total_mib is None or used_memory is None else total_mib - used_memory,
    )


def _pod_run_time(pod: Obj, now: Instant) -> Duration:
    status = pod["status"]
    states = [container_status.get("state") or {} for container_status in status.get("containerStatuses") or ()]
    start_times = [state["running"].get("startedAt") for state in states if "running" in state]
    started_at = next(filter(None, start_times), None) or status.get("startTime")
    return now - parse_time(started_at) if started_at else 0
