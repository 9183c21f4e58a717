"""GPU metrics under the names of DCGM."""

from itertools import pairwise
from typing import Any

from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import MINUTE, SECOND
from batchyard.metrics.gpus import (
    LOAD_STEP,
    LOADING_TIME,
    MEASURED,
    GpuHolder,
    GpuState,
    SimulatedGpus,
    SimulatedLoad,
    gpu_metric_texts,
    simulated_load,
)
from unit.metrics.scrape import samples

T4 = 16384
BEGAN = "2026-01-01T00:00:00Z"
NOW = parse_time(BEGAN) + 10 * MINUTE


def node(name: str = "n", gpus: int = 2) -> Obj:
    labels = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}


def pod(name: str, gpus: int = 1, phase: str = "Running", **spec: Any) -> Obj:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec = {"nodeName": "n", "containers": [container], **spec}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": spec,
        "status": {"phase": phase, "containerStatuses": [{"state": {"running": {"startedAt": BEGAN}}}]},
    }


def holders(states: list[GpuState]) -> list[str]:
    return [state.holder.pod for state in states]


def test_running_pod_keeps_its_gpu_busy_and_others_stay_idle() -> None:
    busy, idle = SimulatedGpus().states([node()], [pod("a")], NOW)
    load = simulated_load("uid-a", 0, 10 * MINUTE)
    assert (busy.busy_percent, busy.used_mib) == (load.busy, T4 * load.memory // 100)
    assert (busy.used_mib or 0) + (busy.free_mib or 0) == T4
    assert busy.holder == GpuHolder("main", "team", "a")
    assert (idle.busy_percent, idle.used_mib, idle.free_mib, idle.holder.pod) == (0, 0, T4, "")


def test_simulated_utilization_varies_over_time_and_is_deterministic() -> None:
    course = [simulated_load("uid-a", 0, step * LOAD_STEP) for step in range(400)]
    assert [load.busy for load in course] == [
        simulated_load("uid-a", 0, step * LOAD_STEP + 7).busy for step in range(400)
    ]
    working = [load.busy for load in course[LOADING_TIME // LOAD_STEP :]]
    assert all(5 <= busy <= 100 for busy in working)
    assert sum(busy < 40 for busy in working) in range(10, 60)
    assert 60 < sum(working) / len(working) < 100
    assert sum(one != other for one, other in pairwise(working)) > 300
    assert len({load.memory for load in course[LOADING_TIME // LOAD_STEP :]}) == 1


def test_simulated_load_is_low_while_pod_loads() -> None:
    assert simulated_load("uid-a", 0, -SECOND) == SimulatedLoad(simulated_load("uid-a", 0, 0).busy, 0)
    early, late = simulated_load("uid-a", 0, 10 * SECOND), simulated_load("uid-a", 0, 29 * SECOND)
    assert early.busy < 30
    assert 0 < early.memory < late.memory < simulated_load("uid-a", 0, LOADING_TIME).memory + 1


def test_simulated_load_differs_by_pod_and_gpu() -> None:
    courses = [
        [simulated_load(uid, gpu, step * LOAD_STEP).busy for step in range(40)] for uid in ("a", "b") for gpu in (0, 1)
    ]
    assert len({tuple(course) for course in courses}) == 4


def test_simulated_gpus_omit_metrics_without_measurements() -> None:
    reported = samples(gpu_metric_texts(SimulatedGpus().states([node()], [pod("a")], NOW)))
    assert set(reported) == {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"}
    assert {labels[-1] for family in reported.values() for labels in family} == {"simulated"}


def test_pending_pod_holds_idle_gpu() -> None:
    first, _ = SimulatedGpus().states([node()], [pod("a", phase="Pending")], NOW)
    assert (first.holder.pod, first.busy_percent) == ("a", 0)


def test_pods_keep_their_gpus_when_other_pods_change() -> None:
    gpus = SimulatedGpus()
    assert holders(gpus.states([node()], [pod("a"), pod("b")], NOW)) == ["a", "b"]
    assert holders(gpus.states([node()], [pod("b")], NOW)) == ["", "b"]
    assert holders(gpus.states([node()], [pod("b"), pod("c")], NOW)) == ["c", "b"]
    assert holders(gpus.states([node()], [pod("b", phase="Succeeded"), pod("c", 2)], NOW)) == ["c", "c"]
    assert gpus.states([], [pod("c", 2)], NOW) == []


def test_pods_on_other_nodes_or_without_gpu_request_hold_no_gpu() -> None:
    others = [pod("x", nodeName="m"), pod("y", 0), pod("z", nodeName="")]
    assert holders(SimulatedGpus().states([node(), node("without", 0)], others, NOW)) == ["", ""]


def test_measured_gpu_is_reported_with_its_labels() -> None:
    holder = GpuHolder("main", "team", "a")
    real = GpuState(3, "GPU-1", "NVIDIA H200", "here", holder, MEASURED, 50, 7, 10, 20, 61, 350.5)
    reported = samples(gpu_metric_texts([real, real._replace(number=4, watts=None)]))
    labels = ("3", "GPU-1", "nvidia3", "NVIDIA H200", "here", "main", "team", "a", "nvml")
    assert {name: family[labels] for name, family in reported.items()} == {
        "DCGM_FI_DEV_GPU_UTIL": 50,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 7,
        "DCGM_FI_DEV_FB_USED": 10,
        "DCGM_FI_DEV_FB_FREE": 20,
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_POWER_USAGE": 350.5,
    }
    assert len(reported["DCGM_FI_DEV_POWER_USAGE"]) == 1
