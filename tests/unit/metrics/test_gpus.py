"""GPUs by DCGM's names."""

from typing import Any

from batchyard.api.meta import Obj
from batchyard.metrics.gpus import MEASURED, GpuState, Holder, SimulatedGpus, gpu_texts
from unit.metrics.scraped import samples

T4 = 16384


def node(name: str = "n", gpus: int = 2) -> Obj:
    labels = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": str(gpus)}}}


def pod(name: str, gpus: int = 1, phase: str = "Running", **spec: Any) -> Obj:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec = {"nodeName": "n", "containers": [container], **spec}
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": spec,
        "status": {"phase": phase},
    }


def holders(states: list[GpuState]) -> list[str]:
    return [state.holder.pod for state in states]


def test_who_has_one_uses_all_of_it() -> None:
    busy, idle = SimulatedGpus().states([node()], [pod("a")])
    assert (busy.busy_percent, busy.used_mib, busy.free_mib) == (100, T4, 0)
    assert busy.holder == Holder("main", "team", "a")
    assert (idle.busy_percent, idle.used_mib, idle.free_mib, idle.holder.pod) == (0, 0, T4, "")


def test_what_is_not_measured_is_not_told() -> None:
    told = samples(gpu_texts(SimulatedGpus().states([node()], [pod("a")])))
    assert set(told) == {"DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"}
    assert {labels[-1] for family in told.values() for labels in family} == {"simulated"}


def test_a_pod_that_does_not_run_yet_has_one_and_leaves_it_idle() -> None:
    first, _ = SimulatedGpus().states([node()], [pod("a", phase="Pending")])
    assert (first.holder.pod, first.busy_percent) == ("a", 0)


def test_pods_keep_theirs() -> None:
    gpus = SimulatedGpus()
    assert holders(gpus.states([node()], [pod("a"), pod("b")])) == ["a", "b"]
    assert holders(gpus.states([node()], [pod("b")])) == ["", "b"]
    assert holders(gpus.states([node()], [pod("b"), pod("c")])) == ["c", "b"]
    assert holders(gpus.states([node()], [pod("b", phase="Succeeded"), pod("c", 2)])) == ["c", "c"]
    assert gpus.states([], [pod("c", 2)]) == []


def test_who_is_elsewhere_or_asks_for_none_has_none() -> None:
    others = [pod("x", nodeName="m"), pod("y", 0), pod("z", nodeName="")]
    assert holders(SimulatedGpus().states([node(), node("without", 0)], others)) == ["", ""]


def test_a_real_one_is_told_with_its_labels() -> None:
    holder = Holder("main", "team", "a")
    real = GpuState(3, "GPU-1", "NVIDIA H200", "here", holder, MEASURED, 50, 7, 10, 20, 61, 350.5)
    told = samples(gpu_texts([real, real._replace(number=4, watts=None)]))
    labels = ("3", "GPU-1", "nvidia3", "NVIDIA H200", "here", "main", "team", "a", "nvml")
    assert {name: family[labels] for name, family in told.items()} == {
        "DCGM_FI_DEV_GPU_UTIL": 50,
        "DCGM_FI_DEV_MEM_COPY_UTIL": 7,
        "DCGM_FI_DEV_FB_USED": 10,
        "DCGM_FI_DEV_FB_FREE": 20,
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_POWER_USAGE": 350.5,
    }
    assert len(told["DCGM_FI_DEV_POWER_USAGE"]) == 1
