"""The free GPUs of a node that pods cannot use, on average."""

import pytest

from batchyard.sim.traces import FreeNodeResources, PodMix, TracedPodShape

SHARE = TracedPodShape(1000, 1000, 600)
WHOLE = TracedPodShape(1000, 1000, 2000)
ROOM = FreeNodeResources("T4", 4000, 4000, (1000, 1000, 500))


@pytest.mark.parametrize(
    ("shape", "room", "unusable"),
    [
        (SHARE, ROOM, 500),  # too little is left of the third GPU
        (WHOLE, ROOM, 500),
        (WHOLE, ROOM._replace(gpus=(1000, 900)), 1900),  # no two GPUs are free
        (SHARE, ROOM._replace(cpu=999), 2500),
        (SHARE, ROOM._replace(memory=999), 2500),
        (SHARE._replace(models=("G2",)), ROOM, 2500),
        (SHARE._replace(models=("G2", "T4")), ROOM, 500),
        (TracedPodShape(1, 1, 0), ROOM, 2500),  # it requests no GPU
        (SHARE, ROOM._replace(gpus=()), 0),
    ],
)
def test_mix_counts_resources_that_pod_cannot_use(
    shape: TracedPodShape, room: FreeNodeResources, unusable: int
) -> None:
    assert PodMix([shape]).unusable_gpu_sum(room) == unusable


def test_mix_adds_unusable_gpus_of_each_pod() -> None:
    mix = PodMix([SHARE, SHARE, TracedPodShape(1, 1, 0), WHOLE])
    assert (mix.pod_count, mix.fraction_without_gpu) == (4, 0.25)
    assert mix.unusable_gpu_sum(ROOM) == 500 + 500 + 2500 + 500


def test_empty_mix_has_no_unusable_gpus() -> None:
    assert (PodMix([]).fraction_without_gpu, PodMix([]).unusable_gpu_sum(ROOM)) == (0.0, 0)
