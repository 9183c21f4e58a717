"""Which whole devices a container is given."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.kubelet.local.errors import InputError
from batchyard.kubelet.local.node import GPU, ContainerDevices, Gpu, allocation_of, gpu_devices
from unit.kubelet.local.local_make import container, pod

SIDECAR = {"restartPolicy": "Always"}


def asking(count: int, name: str = "main", **fields: Any) -> dict[str, Any]:
    """A container that asks for so many GPUs."""
    return container(name, resources={"limits": {GPU: str(count)}}, **fields)


def allocation(
    *containers: Mapping[str, Any], first: Sequence[Any] = (), held: Mapping[str, Any] | None = None
) -> Mapping[str, Sequence[int]]:
    return allocation_of(pod(*containers, initContainers=list(first)), GPU, [3, 2, 1, 0], held or {})


def test_the_lowest_free_ones_are_given() -> None:
    held = {"other": {"c": [1]}}
    assert allocation(asking(2), container("none"), asking(1, "side"), held=held) == {"main": [0, 2], "side": [3]}


def test_a_pod_has_the_same_ones_again() -> None:
    assert allocation(asking(2), held={"uid-pod": {"main": [3, 1]}}) == {"main": [3, 1]}


def test_what_a_first_container_had_goes_on_to_the_next() -> None:
    found = allocation(asking(3), first=[asking(1, "a"), asking(2, "b")])
    assert found == {"a": [0], "b": [0, 1], "main": [0, 1, 2]}


def test_what_a_sidecar_has_it_keeps() -> None:
    found = allocation(asking(2), first=[asking(1, "a"), asking(1, "side", **SIDECAR)])
    assert found == {"a": [0], "side": [0], "main": [1, 2]}


def test_who_asks_for_more_than_is_free_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        allocation(asking(2), first=[asking(1, "a")], held={"other": {"c": [0, 1, 2]}})
    assert str(caught.value) == f"requested number of devices unavailable for {GPU}. Requested: 1, Available: 0"


def test_what_a_pod_had_must_be_there_and_be_as_many() -> None:
    with pytest.raises(InputError, match="previously allocated devices are no longer healthy"):
        allocation(asking(1), held={"uid-pod": {"main": [7]}})
    reported = f'pod "uid-pod" container "main" changed request for resource "{GPU}" from 1 to 2'
    with pytest.raises(InputError) as caught:
        allocation(asking(2), held={"uid-pod": {"main": [0]}})
    assert str(caught.value) == reported


@given(st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 3), max_size=3), st.sets(st.integers(0, 7)))
def test_no_device_is_anothers_and_what_runs_together_shares_none(
    wanted: list[int], before: list[int], taken: set[int]
) -> None:
    containers = [asking(count, f"c{n}") for n, count in enumerate(wanted)]
    of = pod(*containers, initContainers=[asking(count, f"i{n}") for n, count in enumerate(before)])
    held = {"other": {"c": sorted(taken)}}
    try:
        found = allocation_of(of, GPU, range(8), held)
    except InputError:
        assert max([sum(wanted), *before]) > 8 - len(taken)
        return
    together = [number for name, numbers in found.items() if name.startswith("c") for number in numbers]
    assert len(together) == len(set(together)) == sum(wanted)
    assert not taken & {number for numbers in found.values() for number in numbers}
    assert allocation_of(of, GPU, range(8), {**held, "uid-pod": found}) == found


GPUS = [Gpu(n, f"GPU-{n}", "NVIDIA L4", 24 << 30, [f"/dev/nvidia{n}", "/dev/nvidiactl"]) for n in range(3)]


def test_a_container_has_the_files_of_its_gpus_and_their_names() -> None:
    listed = "GPU-2,GPU-0"
    assert gpu_devices([GPUS[2], GPUS[0]]) == ContainerDevices(
        ["/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia0"],
        {"CUDA_VISIBLE_DEVICES": listed, "NVIDIA_VISIBLE_DEVICES": listed},
    )


def test_who_asks_for_no_gpu_sees_none() -> None:
    assert gpu_devices([]).paths == ()
    assert gpu_devices([]).variables["CUDA_VISIBLE_DEVICES"] == ""
