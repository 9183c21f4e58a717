"""The cluster snapshot follows each change of nodes and pods."""

import pytest

from batchyard.api.views.node import node_view
from batchyard.api.views.pods import PodView
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.node_info import NodeGenerations
from unit.placement.placement_make import cluster, node, place, pod, view


def free_amount(nodes: ClusterSnapshot, name: str = "n", resource: str = "cpu") -> int:
    """The free amount of a resource on a node."""
    result = nodes.get(name)
    assert result is not None
    return result.free_amounts[resource]


def fail_in_what_if(nodes: ClusterSnapshot) -> None:
    """Add a pod, then raise an error."""
    with nodes.what_if():
        nodes.add_pod(view(pod("p")), "n")
        raise KeyError("p")


def test_snapshot_lists_nodes_sorted_by_name() -> None:
    assert [n.name for n in cluster(node("c"), node("a"), node("b"))] == ["a", "b", "c"]


def test_snapshot_subtracts_and_restores_pod_requests() -> None:
    nodes = cluster(node(), pod("p", cpu="3", nodeName="n"))
    assert (free_amount(nodes), free_amount(nodes, resource="pods"), nodes.node_name_of("uid-p")) == (1000, 109, "n")
    nodes.remove_pod("uid-p")
    assert (free_amount(nodes), free_amount(nodes, resource="pods"), nodes.node_name_of("uid-p")) == (4000, 110, "")


def test_snapshot_moves_pod_that_is_added_twice() -> None:
    nodes = cluster(node("a"), node("b"), pod("p", nodeName="a"))
    nodes.add_pod(view(pod("p")), "b")
    assert (free_amount(nodes, "a"), free_amount(nodes, "b")) == (4000, 3000)


def test_snapshot_keeps_pods_of_updated_node() -> None:
    nodes = cluster(node(), pod("p", nodeName="n"))
    nodes.set_node(node_view(node(cpu="8", gpu="2")))
    assert (free_amount(nodes), free_amount(nodes, resource="nvidia.com/gpu")) == (7000, 2)


def test_snapshot_counts_pods_added_before_their_node() -> None:
    nodes = cluster(pod("p", nodeName="n"), pod("q", nodeName="n"), pod("r", nodeName="other"))
    nodes.remove_pod("uid-q")
    nodes.set_node(node_view(node()))
    assert free_amount(nodes) == 3000


def test_snapshot_keeps_pods_of_node_that_is_removed_and_added() -> None:
    nodes = cluster(node(), pod("p", nodeName="n"))
    nodes.remove_node("n")
    assert (len(nodes), nodes.get("n"), nodes.node_name_of("uid-p")) == (0, None, "n")
    nodes.set_node(node_view(node()))
    assert free_amount(nodes) == 3000


def test_what_if_reverts_all_changes() -> None:
    nodes = cluster(node("a"), pod("p", nodeName="a"))
    nodes.nominate(view(pod("n")), "a")
    with nodes.what_if():
        nodes.remove_pod("uid-p")
        nodes.set_node(node_view(node("b")))
        nodes.add_pod(view(pod("q")), "b")
        nodes.remove_node("a")
        nodes.withdraw_nomination("uid-n")
        assert [n.name for n in nodes] == ["b"]
    assert [n.name for n in nodes] == ["a"]
    assert (free_amount(nodes, "a"), nodes.node_name_of("uid-q"), nodes.nominated_node_of("uid-n")) == (3000, "", "a")


def test_what_if_blocks_nest() -> None:
    nodes = cluster(node())
    with nodes.what_if():
        nodes.add_pod(view(pod("p")), "n")
        with nodes.what_if():
            nodes.add_pod(view(pod("q")), "n")
            assert free_amount(nodes) == 2000
        assert free_amount(nodes) == 3000
    assert free_amount(nodes) == 4000


def test_outer_what_if_reverts_changes_kept_by_inner() -> None:
    nodes = cluster(node())
    with nodes.what_if():
        with nodes.what_if() as trial:
            nodes.add_pod(view(pod("p")), "n")
            trial.keep()
        assert free_amount(nodes) == 3000
    assert free_amount(nodes) == 4000


def test_what_if_reverts_changes_after_exception() -> None:
    nodes = cluster(node())
    with pytest.raises(KeyError):
        fail_in_what_if(nodes)
    assert free_amount(nodes) == 4000


def test_what_if_adds_no_lasting_node_generation() -> None:
    nodes = cluster(node())
    before = nodes.permanent_changes.latest
    with nodes.what_if():
        nodes.add_pod(view(pod("p")), "n")
    assert nodes.permanent_changes.latest == before
    nodes.add_pod(view(pod("p")), "n")
    assert nodes.permanent_changes.changed_since(before) == ["n"]


def test_snapshot_filter_cache_follows_node_labels_and_taints() -> None:
    nodes = cluster(node("a"), node("b"))
    pending = [pod("p", nodeSelector={"kind": "x"})]
    assert place(nodes, pending) == [""]
    nodes.set_node(node_view(node("b", labels={"kind": "x"})))
    assert place(nodes, pending) == ["b"]
    nodes.set_node(node_view(node("b", labels={"kind": "x"}, taints=[{"key": "t", "effect": "NoSchedule"}])))
    nodes.remove_pod("uid-p")
    assert place(nodes, pending) == [""]


def test_snapshot_update_pod_replaces_view() -> None:
    nodes = cluster(node(), pod("p", nodeName="n"))
    newer = view(pod("p", nodeName="n", status={"phase": "Running"}))
    nodes.update_pod(newer)
    result = nodes.get("n")
    assert result is not None
    assert result.pods["uid-p"] is newer
    assert nodes.pod("uid-p") is newer


def test_node_generations_list_each_changed_name_once() -> None:
    changes = NodeGenerations()
    for name in ("a", "b", "a"):
        changes.record_change(name)
    moment = changes.latest
    assert changes.changed_since(0) == ["a", "b"]
    changes.record_change("c")
    assert (changes.changed_since(moment), changes.changed_since(changes.latest)) == (["c"], [])


def selecting(number: int) -> PodView:
    """A pod with a node selector of its own, so that its node rules and its shape are its own too."""
    return view(pod("p", nodeSelector={"number": str(number)}))


def test_filter_cache_drops_rules_used_longest_ago() -> None:
    cache = cluster(node()).candidate_cache
    first, second = (cache.static_results(selecting(number).shape.rules) for number in range(2))
    for number in range(2, 1024):
        cache.static_results(selecting(number).shape.rules)
    assert cache.static_results(selecting(0).shape.rules) is first
    cache.static_results(selecting(1024).shape.rules)
    assert cache.static_results(selecting(0).shape.rules) is first
    assert cache.static_results(selecting(1).shape.rules) is not second


def test_candidate_cache_drops_shape_used_longest_ago() -> None:
    cache = cluster(node()).candidate_cache
    first, second = (cache.candidates_for(selecting(number).shape, AutoscalingProfile.BALANCED) for number in range(2))
    for number in range(2, 1024):
        cache.candidates_for(selecting(number).shape, AutoscalingProfile.BALANCED)
    assert cache.candidates_for(selecting(0).shape, AutoscalingProfile.BALANCED) is first
    cache.candidates_for(selecting(1024).shape, AutoscalingProfile.BALANCED)
    assert cache.candidates_for(selecting(0).shape, AutoscalingProfile.BALANCED) is first
    assert cache.candidates_for(selecting(1).shape, AutoscalingProfile.BALANCED) is not second


def test_candidate_nodes_keep_best_node_after_many_changes() -> None:
    nodes = cluster(node("a"), node("b"))
    shape = view(pod("p")).shape
    candidates = nodes.candidate_cache.candidates_for(shape, AutoscalingProfile.BALANCED)
    for number in range(200):
        nodes.add_pod(view(pod("q", cpu=str(1 + number % 2))), "a")
        assert nodes.candidate_cache.candidates_for(shape, AutoscalingProfile.BALANCED) is candidates
    assert len(candidates._heap) <= 4 * len(nodes) + 64
    assert candidates.best_node(bool) == "b"
    nodes.add_pod(view(pod("q")), "b")
    candidates = nodes.candidate_cache.candidates_for(shape, AutoscalingProfile.BALANCED)
    assert candidates.best_node(bool) == "a"
