"""Packing: the number of new nodes for pods, and the reasons why pods do not fit."""

from batchyard.autoscaler.scale_up import BinpackingEstimate, find_misfit_reasons, in_decreasing_request_order, pack
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


def packed_names(packed: BinpackingEstimate) -> list[list[str]]:
    return [[pod.name for pod in pods] for pods in packed.nodes]


def test_pack_fills_nodes_sequentially() -> None:
    packed = pack(views("a", "b", "c", "d", "e", cpu="1500m"), GROUP, 10, ClusterSnapshot())
    assert (packed_names(packed), packed.unplaced_pods) == ([["a", "b"], ["c", "d"], ["e"]], [])


def test_pack_places_large_pods_first() -> None:
    packed = pack([*views("small", cpu="500m"), *views("large", cpu="3")], GROUP, 10, ClusterSnapshot())
    assert packed_names(packed) == [["large", "small"]]


def test_packing_order_compares_priority_before_size() -> None:
    pods = [*views("large", cpu="3"), *views("first", cpu="1", priority=None)]
    pods[1].priority = 5
    assert [pod.name for pod in in_decreasing_request_order(pods, GROUP.template)] == ["first", "large"]


def test_pack_respects_maximum_of_nodes() -> None:
    packed = pack(views("a", "b", "c", cpu="3"), GROUP, 2, ClusterSnapshot())
    assert (len(packed.nodes), [pod.name for pod in packed.unplaced_pods]) == (2, ["c"])


def test_pack_separates_pods_with_anti_affinity() -> None:
    packed = pack(views("a", "b", "c", cpu="100m", labels={"app": "a"}, affinity=ALONE), GROUP, 10, ClusterSnapshot())
    assert len(packed.nodes) == 3


def test_pack_places_affinity_target_before_dependent_pod() -> None:
    pods = [*views("a", cpu="2", affinity=TOGETHER), *views("lead", cpu="1", labels={"app": "lead"})]
    packed = pack(pods, GROUP, 10, ClusterSnapshot())
    assert (packed_names(packed), packed.unplaced_pods) == ([["lead", "a"]], [])


def test_pack_adds_no_node_for_pod_that_never_fits() -> None:
    packed = pack(views("a", cpu="5"), GROUP, 10, ClusterSnapshot())
    assert (packed.nodes, [pod.name for pod in packed.unplaced_pods]) == ([], ["a"])


def test_pack_adds_no_node_without_pods() -> None:
    assert pack([], GROUP, 10, ClusterSnapshot()) == ([], [])


def test_misfit_reports_reasons_like_kube_scheduler() -> None:
    (large,), (picky,) = views("a", cpu="5"), views("b", nodeSelector={"x": "y"})
    assert find_misfit_reasons(large, GROUP, ClusterSnapshot()) == ("Insufficient cpu",)
    assert find_misfit_reasons(picky, GROUP, ClusterSnapshot()) == (
        "node(s) didn't match Pod's node affinity/selector",
    )


def test_pack_leaves_snapshot_unchanged() -> None:
    nodes = ClusterSnapshot()
    pack(views("a", "b", cpu="3"), GROUP, 10, nodes)
    assert len(nodes) == 0
