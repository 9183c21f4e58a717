"""The allocation of whole devices to containers."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.kubelet.local.errors import InputError
from batchyard.kubelet.local.node import GPU, ContainerDevices, Gpu, allocate_devices, gpu_devices
from unit.kubelet.local.local_make import container, pod

SIDECAR = {"restartPolicy": "Always"}


def gpu_container(count: int, name: str = "main", **fields: Any) -> dict[str, Any]:
    """A container that requests this many GPUs."""
    return container(name, resources={"limits": {GPU: str(count)}}, **fields)


def allocation(
    *containers: Mapping[str, Any], first: Sequence[Any] = (), held: Mapping[str, Any] | None = None
) -> Mapping[str, Sequence[int]]:
    return allocate_devices(pod(*containers, initContainers=list(first)), GPU, [3, 2, 1, 0], held or {})


def test_lowest_free_devices_are_allocated() -> None:
    held = {"other": {"c": [1]}}
    assert allocation(gpu_container(2), container("none"), gpu_container(1, "side"), held=held) == {
        "main": [0, 2],
        "side": [3],
    }


def test_pod_keeps_its_allocated_devices() -> None:
    assert allocation(gpu_container(2), held={"uid-pod": {"main": [3, 1]}}) == {"main": [3, 1]}


def test_devices_of_init_container_are_reused_by_next_container() -> None:
    result = allocation(gpu_container(3), first=[gpu_container(1, "a"), gpu_container(2, "b")])
    assert result == {"a": [0], "b": [0, 1], "main": [0, 1, 2]}


def test_sidecar_keeps_its_devices() -> None:
    result = allocation(gpu_container(2), first=[gpu_container(1, "a"), gpu_container(1, "side", **SIDECAR)])
    assert result == {"a": [0], "side": [0], "main": [1, 2]}


def test_allocation_of_more_devices_than_free_is_rejected() -> None:
    with pytest.raises(InputError) as caught:
        allocation(gpu_container(2), first=[gpu_container(1, "a")], held={"other": {"c": [0, 1, 2]}})
    assert str(caught.value) == f"requested number of devices unavailable for {GPU}. Requested: 1, Available: 0"


def test_previous_allocation_must_exist_and_match_request() -> None:
    with pytest.raises(InputError, match="previously allocated devices are no longer healthy"):
        allocation(gpu_container(1), held={"uid-pod": {"main": [7]}})
    reported = f'pod "uid-pod" container "main" changed request for resource "{GPU}" from 1 to 2'
    with pytest.raises(InputError) as caught:
        allocation(gpu_container(2), held={"uid-pod": {"main": [0]}})
    assert str(caught.value) == reported


@given(st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 3), max_size=3), st.sets(st.integers(0, 7)))
def test_devices_are_never_shared_between_pods_or_concurrent_containers(
    wanted: list[int], before: list[int], allocated: set[int]
) -> None:
    containers = [gpu_container(count, f"c{n}") for n, count in enumerate(wanted)]
    of = pod(*containers, initContainers=[gpu_container(count, f"i{n}") for n, count in enumerate(before)])
    held = {"other": {"c": sorted(allocated)}}
    try:
        result = allocate_devices(of, GPU, range(8), held)
    except InputError:
        assert max([sum(wanted), *before]) > 8 - len(allocated)
        return
    together = [number for name, numbers in result.items() if name.startswith("c") for number in numbers]
    assert len(together) == len(set(together)) == sum(wanted)
    assert not allocated & {number for numbers in result.values() for number in numbers}
    assert allocate_devices(of, GPU, range(8), {**held, "uid-pod": result}) == result


GPUS = [Gpu(n, f"GPU-{n}", "NVIDIA L4", 24 << 30, [f"/dev/nvidia{n}", "/dev/nvidiactl"]) for n in range(3)]


def test_container_gets_device_files_and_names_of_its_gpus() -> None:
    listed = "GPU-2,GPU-0"
    assert gpu_devices([GPUS[2], GPUS[0]]) == ContainerDevices(
        ["/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia0"],
        {"CUDA_VISIBLE_DEVICES": listed, "NVIDIA_VISIBLE_DEVICES": listed},
    )


def test_container_without_gpu_request_sees_no_gpu() -> None:
    assert gpu_devices([]).paths == ()
    assert gpu_devices([]).variables["CUDA_VISIBLE_DEVICES"] == ""
