"""The cluster, kept in step change by change."""

import pytest

from batchyard.api.views.node import node_view
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.node_info import NodeGenerations
from unit.placement.placement_make import cluster, node, place, pod, view


def left(nodes: ClusterSnapshot, name: str = "n", resource: str = "cpu") -> int:
    """What a node has left."""
    found = nodes.get(name)
    assert found is not None
    return found.left[resource]


def fail_in_a_trial(nodes: ClusterSnapshot) -> None:
    """Add a pod, then fail."""
    with nodes.what_if():
        nodes.add_pod(view(pod("p")), "n")
        raise KeyError("p")


def test_nodes_come_in_order_of_name() -> None:
    assert [n.name for n in cluster(node("c"), node("a"), node("b"))] == ["a", "b", "c"]


def test_pods_take_of_their_node_and_leave_it_again() -> None:
    nodes = cluster(node(), pod("p", cpu="3", nodeName="n"))
    assert (left(nodes), left(nodes, resource="pods"), nodes.place_of("uid-p")) == (1000, 109, "n")
    nodes.remove_pod("uid-p")
    assert (left(nodes), left(nodes, resource="pods"), nodes.place_of("uid-p")) == (4000, 110, "")


def test_a_pod_that_is_added_again_moves() -> None:
    nodes = cluster(node("a"), node("b"), pod("p", nodeName="a"))
    nodes.add_pod(view(pod("p")), "b")
    assert (left(nodes, "a"), left(nodes, "b")) == (4000, 3000)


def test_a_node_that_changes_keeps_its_pods() -> None:
    nodes = cluster(node(), pod("p", nodeName="n"))
    nodes.set_node(node_view(node(cpu="8", gpu="2")))
    assert (left(nodes), left(nodes, resource="nvidia.com/gpu")) == (7000, 2)


def test_pods_of_a_node_that_is_not_there_count_when_it_comes() -> None:
    nodes = cluster(pod("p", nodeName="n"), pod("q", nodeName="n"), pod("r", nodeName="other"))
    nodes.remove_pod("uid-q")
    nodes.set_node(node_view(node()))
    assert left(nodes) == 3000


def test_a_node_that_comes_back_has_its_pods_still() -> None:
    nodes = cluster(node(), pod("p", nodeName="n"))
    nodes.remove_node("n")
    assert (len(nodes), nodes.get("n"), nodes.place_of("uid-p")) == (0, None, "n")
    nodes.set_node(node_view(node()))
    assert left(nodes) == 3000


def test_a_trial_is_undone_in_full() -> None:
    nodes = cluster(node("a"), pod("p", nodeName="a"))
    nodes.nominate(view(pod("n")), "a")
    with nodes.what_if():
        nodes.remove_pod("uid-p")
        nodes.set_node(node_view(node("b")))
        nodes.add_pod(view(pod("q")), "b")
        nodes.remove_node("a")
        nodes.withdraw("uid-n")
        assert [n.name for n in nodes] == ["b"]
    assert [n.name for n in nodes] == ["a"]
    assert (left(nodes, "a"), nodes.place_of("uid-q"), nodes.nomination_of("uid-n")) == (3000, "", "a")


def test_trials_may_lie_within_each_other() -> None:
    nodes = cluster(node())
    with nodes.what_if():
        nodes.add_pod(view(pod("p")), "n")
        with nodes.what_if():
            nodes.add_pod(view(pod("q")), "n")
            assert left(nodes) == 2000
        assert left(nodes) == 3000
    assert left(nodes) == 4000


def test_what_is_kept_of_a_trial_is_undone_with_the_one_around_it() -> None:
    nodes = cluster(node())
    with nodes.what_if():
        with nodes.what_if() as trial:
            nodes.add_pod(view(pod("p")), "n")
            trial.keep()
        assert left(nodes) == 3000
    assert left(nodes) == 4000


def test_a_trial_that_fails_is_undone_too() -> None:
    nodes = cluster(node())
    with pytest.raises(KeyError):
        fail_in_a_trial(nodes)
    assert left(nodes) == 4000


def test_trials_are_no_lasting_changes() -> None:
    nodes = cluster(node())
    before = nodes.lasting.now
    with nodes.what_if():
        nodes.add_pod(view(pod("p")), "n")
    assert nodes.lasting.now == before
    nodes.add_pod(view(pod("p")), "n")
    assert nodes.lasting.since(before) == ["n"]


def test_what_is_remembered_of_nodes_follows_their_labels_and_taints() -> None:
    nodes = cluster(node("a"), node("b"))
    asked = [pod("p", nodeSelector={"kind": "x"})]
    assert place(nodes, asked) == [""]
    nodes.set_node(node_view(node("b", labels={"kind": "x"})))
    assert place(nodes, asked) == ["b"]
    nodes.set_node(node_view(node("b", labels={"kind": "x"}, taints=[{"key": "t", "effect": "NoSchedule"}])))
    nodes.remove_pod("uid-p")
    assert place(nodes, asked) == [""]


def test_another_revision_of_a_pod_takes_the_place_of_the_first() -> None:
    nodes = cluster(node(), pod("p", nodeName="n"))
    newer = view(pod("p", nodeName="n", status={"phase": "Running"}))
    nodes.update_pod(newer)
    found = nodes.get("n")
    assert found is not None
    assert found.pods["uid-p"] is newer
    assert nodes.pod("uid-p") is newer


def test_changes_are_told_once_a_name_and_the_latest_first() -> None:
    changes = NodeGenerations()
    for name in ("a", "b", "a"):
        changes.note(name)
    moment = changes.now
    assert changes.since(0) == ["a", "b"]
    changes.note("c")
    assert (changes.since(moment), changes.since(changes.now)) == (["c"], [])
