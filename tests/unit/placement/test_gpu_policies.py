"""Policies for pods that share GPUs: scores, the choice of GPUs, and FGD's fragmentation against its definition."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.api.views.node import node_view
from batchyard.api.views.pods import PodView
from batchyard.placement.gpu_policies import (
    ExpectedPod,
    GpuPlacement,
    GpuPolicy,
    GpuPolicyName,
    LargestAllocatable,
    make_gpu_policy,
)
from batchyard.placement.index import PlacementIndex
from batchyard.placement.node_info import NodeInfo
from batchyard.sim.traces import FreeNodeResources, PodMix, TracedPodShape
from unit.placement import placement_make

MILLI = "batchyard.dev/gpu-milli"
MODEL = "model"
LARGEST = LargestAllocatable(8000, 4000)
PART = ExpectedPod(1000, 500)
SEVERAL = ExpectedPod(2000, 2000, ("T4",))


def policy(name: GpuPolicyName, expected: Sequence[ExpectedPod] = (PART,)) -> GpuPolicy:
    """A policy for nodes of at most 8 cpus and 4 GPUs; its random numbers are always the highest."""
    return make_gpu_policy(GpuPlacement(name, expected, LARGEST, MODEL), lambda stop: stop - 1)


def sharing_pod(name: str, milli: int, cpu: str = "1") -> PodView:
    """A pod that requests thousandths of GPUs."""
    pod = placement_make.pod(name, cpu=cpu, memory="1Mi")
    if milli:
        pod["spec"]["containers"][0]["resources"]["requests"][MILLI] = str(milli)
    return placement_make.view(pod)


def node(gpus: int, *used: int, cpu: str = "8", name: str = "n") -> NodeInfo:
    """A node with T4 GPUs and a pod of 1 cpu for each used amount of GPUs, in thousandths."""
    labels = {MODEL: "T4"}
    info = NodeInfo(node_view(placement_make.node(name, cpu=cpu, labels=labels, **{MILLI: str(gpus * 1000)})))
    for number, milli in enumerate(used):
        info.add_pod(sharing_pod(f"used-{number}", milli))
    return info


@pytest.mark.parametrize(
    ("used", "milli", "score"),
    [
        ((), 500, 29),  # all GPUs are free: a third of 100, less a point for each
        ((1000,), 500, 49),  # it needs a free GPU of a used node
        ((1000,), 2000, 48),
        ((600,), 300, 96),  # 40 percent of the used GPU are free
        ((), 0, 0),
    ],
)
def test_packing_prefers_used_gpus(used: Sequence[int], milli: int, score: int) -> None:
    shape = sharing_pod("p", milli).shape
    assert policy(GpuPolicyName.GPU_PACKING).score(shape, node(4, *used)) == score


@pytest.mark.parametrize(
    ("used", "milli", "score"),
    [
        ((500,), 300, 75 + 3),  # only parts of GPUs are used
        ((500, 1000), 300, 50 + 9),
        ((), 300, 25),
        ((1000,), 300, 6),  # a pod with another number of GPUs
        ((1000,), 1000, 75 + 6),
        ((1000,), 0, 0),
    ],
)
def test_clustering_prefers_nodes_with_equal_pods(used: Sequence[int], milli: int, score: int) -> None:
    shape = sharing_pod("p", milli).shape
    assert policy(GpuPolicyName.GPU_CLUSTERING).score(shape, node(4, *used)) == score


def test_best_fit_and_dot_product_prefer_fuller_node() -> None:
    shape = sharing_pod("p", 500).shape
    full, empty = node(4, 1000, 1000), node(4)
    assert policy(GpuPolicyName.BEST_FIT).score(shape, full) == 50  # 5 of 8 cpus and 1.5 of 4 GPUs remain
    assert policy(GpuPolicyName.BEST_FIT).score(shape, empty) == 12
    assert policy(GpuPolicyName.DOT_PRODUCT).score(shape, full) == 92
    assert policy(GpuPolicyName.DOT_PRODUCT).score(shape, empty) == 87


def test_random_policy_draws_among_gpus_with_enough_free_share() -> None:
    shape = sharing_pod("p", 500).shape
    assert policy(GpuPolicyName.RANDOM).choose_gpus(shape, node(3, 600)) == (2,)
    assert policy(GpuPolicyName.RANDOM).choose_gpus(sharing_pod("q", 2000).shape, node(3, 600)) == (1, 2)


def test_fgd_shares_a_used_gpu_so_that_whole_gpus_stay_free() -> None:
    fgd = policy(GpuPolicyName.FGD, [PART, SEVERAL])
    shape = sharing_pod("p", 500).shape
    assert fgd.choose_gpus(shape, node(2, 500)) == (0,)
    assert fgd.score(shape, node(2, 500)) > fgd.score(shape, node(2)), "the second one loses its two free GPUs"
    assert fgd.choose_gpus(sharing_pod("q", 2000).shape, node(2)) == (0, 1)
    assert fgd.choose_gpus(sharing_pod("c", 0).shape, node(2)) == ()


def test_fgd_expects_only_the_most_frequent_pods() -> None:
    frequent, rare = [PART] * 95, [SEVERAL] * 5
    shape = sharing_pod("p", 500).shape
    with_rare_pods = policy(GpuPolicyName.FGD, [*frequent, *rare])
    assert with_rare_pods.score(shape, node(2)) == policy(GpuPolicyName.FGD, frequent).score(shape, node(2))


SHAPES = st.sampled_from([PART, SEVERAL, ExpectedPod(3000, 1000), ExpectedPod(500, 300, ("G2",)), ExpectedPod(4000, 0)])


@given(
    expected=st.lists(SHAPES, min_size=1, max_size=4),
    used=st.lists(st.sampled_from([300, 500, 1000]), max_size=3),
    milli=st.sampled_from([0, 200, 500, 1000, 2000]),
)
def test_fgd_score_is_reduction_of_fragmentation(expected: list[ExpectedPod], used: list[int], milli: int) -> None:
    info, pod = node(5, *used, cpu="6"), sharing_pod("p", milli)
    fgd = policy(GpuPolicyName.FGD, expected)
    before, score = fragmentation(info, expected), fgd.score(pod.shape, info)
    info.add_pod(pod, fgd.choose_gpus(pod.shape, info) if milli else ())
    reduction = (before - fragmentation(info, expected)) / 1000
    assert score == pytest.approx(100 / (1 + math.exp(-reduction)), abs=1)


def fragmentation(info: NodeInfo, expected: Sequence[ExpectedPod]) -> float:
    """The thousandths of a node's free GPUs that an expected pod cannot use, by definition."""
    mix = PodMix(TracedPodShape(pod.cpu, 0, pod.gpu_milli, pod.models) for pod in expected)
    free = FreeNodeResources("T4", info.free_amounts["cpu"], 0, tuple(info.gpu_shares.free_shares))
    return mix.unusable_gpu_sum(free) / mix.pod_count


def test_assumed_pod_gets_gpus_of_the_policy() -> None:
    index = PlacementIndex(policy(GpuPolicyName.RANDOM))
    index.nodes.set_node(node_view(placement_make.node("n", **{MILLI: "3000"})))
    pod = sharing_pod("p", 500)
    index.assume(pod, "n")
    assert index.nodes.gpu_indices_of(pod.uid) == (2,), "the highest random number; the fullest GPU would be 0"
