"""Packing: how many new nodes pods need, and why they do not fit."""

from batchyard.autoscaler.scale_up import BinpackingEstimate, in_decreasing_order, misfit, pack
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from unit.autoscaler.scaling_make_core import A, groups, pool, views

GROUP = groups(pool(zones=[A]))[0]
ALONE = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "a"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}
TOGETHER = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "lead"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


def shown(packed: BinpackingEstimate) -> list[list[str]]:
    return [[pod.name for pod in pods] for pods in packed.nodes]


def test_pods_fill_nodes_one_after_the_other() -> None:
    packed = pack(views("a", "b", "c", "d", "e", cpu="1500m"), GROUP, 10, ClusterSnapshot())
    assert (shown(packed), packed.left) == ([["a", "b"], ["c", "d"], ["e"]], [])


def test_large_pods_come_first_and_small_ones_fill_up() -> None:
    packed = pack([*views("small", cpu="500m"), *views("large", cpu="3")], GROUP, 10, ClusterSnapshot())
    assert shown(packed) == [["large", "small"]]


def test_priority_comes_before_size() -> None:
    pods = [*views("large", cpu="3"), *views("first", cpu="1", priority=None)]
    pods[1].priority = 5
    assert [pod.name for pod in in_decreasing_order(pods, GROUP.template)] == ["first", "large"]


def test_no_more_nodes_are_used_than_there_may_be() -> None:
    packed = pack(views("a", "b", "c", cpu="3"), GROUP, 2, ClusterSnapshot())
    assert (len(packed.nodes), [pod.name for pod in packed.left]) == (2, ["c"])


def test_pods_that_repel_each_other_get_a_node_each() -> None:
    packed = pack(views("a", "b", "c", cpu="100m", labels={"app": "a"}, affinity=ALONE), GROUP, 10, ClusterSnapshot())
    assert len(packed.nodes) == 3


def test_pods_find_the_one_they_want_to_be_near_whenever_it_comes() -> None:
    pods = [*views("a", cpu="2", affinity=TOGETHER), *views("lead", cpu="1", labels={"app": "lead"})]
    packed = pack(pods, GROUP, 10, ClusterSnapshot())
    assert (shown(packed), packed.left) == ([["lead", "a"]], [])


def test_what_fits_no_node_is_left_and_uses_none() -> None:
    packed = pack(views("a", cpu="5"), GROUP, 10, ClusterSnapshot())
    assert (packed.nodes, [pod.name for pod in packed.left]) == ([], ["a"])


def test_a_misfit_is_told_as_kube_scheduler_does() -> None:
    (large,), (picky,) = views("a", cpu="5"), views("b", nodeSelector={"x": "y"})
    assert misfit(large, GROUP, ClusterSnapshot()) == ("Insufficient cpu",)
    assert misfit(picky, GROUP, ClusterSnapshot()) == ("node(s) didn't match Pod's node affinity/selector",)


def test_packing_leaves_no_trace() -> None:
    nodes = ClusterSnapshot()
    pack(views("a", "b", cpu="3"), GROUP, 10, nodes)
    assert len(nodes) == 0
