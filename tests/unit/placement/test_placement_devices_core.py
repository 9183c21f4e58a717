"""GPU shares: each uses one GPU, whole GPUs are unused ones, and assignments survive a restart."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batchyard.api.views.node import node_view
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import Unschedulable, find_node
from batchyard.placement.node_info import GpuShares
from batchyard.placement.preemption import PodPreemption, find_preemption
from unit.placement import placement_make

MILLI = "batchyard.dev/gpu-milli"
INDEX = "batchyard.dev/gpu-index"


def gpu_node(name: str = "n", gpus: int = 2) -> Any:
    """A Node with this number of shared GPUs."""
    return placement_make.node(name, **{MILLI: str(gpus * 1000)})


def sharer(name: str, milli: int, **fields: Any) -> Any:
    """A Pod that requests this many thousandths of a GPU."""
    pod = placement_make.pod(name, cpu="100m", **fields)
    pod["spec"]["containers"][0]["resources"]["requests"][MILLI] = str(milli)
    return pod


def gpus_of(nodes: ClusterSnapshot, *names: str) -> list[tuple[int, ...]]:
    """The GPUs of pods."""
    return [tuple(nodes.gpu_indices_of(f"uid-{name}")) for name in names]


def test_gpu_share_uses_best_fit() -> None:
    nodes = placement_make.cluster(gpu_node())
    placement_make.place(nodes, [sharer("a", 600), sharer("b", 500), sharer("c", 300)])
    assert gpus_of(nodes, "a", "b", "c") == [(0,), (1,), (0,)]


def test_gpu_share_is_not_split_over_two_gpus() -> None:
    nodes = placement_make.cluster(gpu_node())
    assert placement_make.place(nodes, [sharer("a", 600), sharer("b", 600), sharer("c", 600)]) == ["n", "n", ""]
    assert "1 node(s) didn't have the requested shares free on single GPUs" in placement_make.unschedulable_message(
        nodes, sharer("c", 600)
    )
    assert "1 Insufficient batchyard.dev/gpu-milli" in placement_make.unschedulable_message(nodes, sharer("d", 900))


def test_whole_gpu_request_uses_unused_gpus_only() -> None:
    nodes = placement_make.cluster(gpu_node(gpus=4))
    assert placement_make.place(nodes, [sharer("a", 1), sharer("b", 3000), sharer("c", 1000)]) == ["n", "n", ""]
    assert gpus_of(nodes, "a", "b") == [(0,), (1, 2, 3)]


def test_fraction_beside_whole_gpus_uses_another_gpu() -> None:
    devices = GpuShares(3000)
    devices.assign_gpus("a", 400, ())
    devices.assign_gpus("b", 2500, ())
    assert devices.gpus_of("b") == (1, 2, 0)
    assert devices.free_shares == [100, 0, 0]
    assert not devices.fits(101)


def test_bound_pod_keeps_gpus_of_its_annotation() -> None:
    nodes = placement_make.cluster(gpu_node(), sharer("a", 600, annotations={INDEX: "1"}, nodeName="n"))
    placement_make.place(nodes, [sharer("b", 600)])
    assert gpus_of(nodes, "a", "b") == [(1,), (0,)]


def test_invalid_gpu_index_annotation_is_ignored() -> None:
    for text in ("7", "0,1", "x", ""):
        nodes = placement_make.cluster(gpu_node(), sharer("a", 600, annotations={INDEX: text}, nodeName="n"))
        assert gpus_of(nodes, "a") == [(0,)]


def test_overcommitted_gpu_share_counts_in_sum_only() -> None:
    bound = [sharer(name, 600, nodeName="n") for name in "abc"]
    nodes = placement_make.cluster(gpu_node(), *bound)
    assert gpus_of(nodes, "a", "b", "c") == [(0,), (1,), ()]
    assert placement_make.place(nodes, [sharer("d", 400)]) == [""]
    nodes.remove_pod("uid-c")
    assert placement_make.place(nodes, [sharer("d", 400)]) == ["n"]


def test_what_if_restores_gpu_assignments() -> None:
    nodes = placement_make.cluster(gpu_node(gpus=3))
    placement_make.place(nodes, [sharer("a", 900), sharer("b", 900), sharer("c", 900)])
    with nodes.what_if():
        nodes.remove_pod("uid-a")
        nodes.remove_pod("uid-c")
        placement_make.place(nodes, [sharer("d", 950)])
    assert gpus_of(nodes, "a", "b", "c", "d") == [(0,), (1,), (2,), ()]


def test_gpus_added_to_node_are_used() -> None:
    nodes = placement_make.cluster(gpu_node(gpus=1))
    placement_make.place(nodes, [sharer("a", 600)])
    nodes.set_node(node_view(gpu_node(gpus=2)))
    assert placement_make.place(nodes, [sharer("b", 600)]) == ["n"]
    assert gpus_of(nodes, "a", "b") == [(0,), (1,)]


def test_preemption_selects_victim_that_frees_single_gpu() -> None:
    low = [sharer(name, 600, nodeName="n", priority=1) for name in "ab"]
    nodes = placement_make.cluster(gpu_node(), *low)
    pod = placement_make.view(sharer("c", 700, priority=9))
    result = find_node(pod, nodes)
    assert isinstance(result, Unschedulable)
    preemption = find_preemption(pod, nodes, result.obstacles)
    assert isinstance(preemption, PodPreemption)
    assert [victim.name for victim in preemption.victims] == ["b"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3000)), max_size=20))
def test_gpu_shares_never_overcommit_and_release_everything(steps: list[tuple[int, int]]) -> None:
    devices, there = GpuShares(3000), dict[str, int]()
    for number, amount in steps:
        uid = str(number)
        if uid in there:
            devices.release(uid)
            del there[uid]
        elif devices.fits(amount):
            devices.assign_gpus(uid, amount, ())
            there[uid] = amount
            assert len(devices.gpus_of(uid)) == -(-amount // 1000)
        assert all(0 <= left <= 1000 for left in devices.free_shares)
        assert sum(devices.free_shares) == 3000 - sum(there.values())
