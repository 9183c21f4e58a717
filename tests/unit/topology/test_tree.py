"""The domains that nodes form."""

from batchyard.api.well_known import HOSTNAME
from batchyard.topology.tree import TopologyTree
from racks import LEVELS, node, racks


def test_domains_are_numbered_by_path_with_consecutive_children() -> None:
    tree = TopologyTree(LEVELS, racks(b2r1h1=1, b1r2h1=1, b1r1h2=1, b1r1h1=1))
    assert tree.paths[1] == [("b1", "b1r1"), ("b1", "b1r2"), ("b2", "b2r1")]
    assert tree.parents[2] == [0, 0, 1, 2]
    assert tree.first_child == [[0, 2, 3], [0, 2, 3, 4]]
    assert [*tree.leaves_below(0, 0)] == [0, 1, 2]
    assert tree.ancestor(3, 0) == 1


def test_equal_names_in_other_domains_are_other_domains() -> None:
    tree = TopologyTree(("block", "rack"), [node("b1/r1/h1"), node("b2/r1/h2"), node("b2/r1/h3", cpu=2)])
    assert tree.paths[-1] == [("b1", "r1"), ("b2", "r1")]
    assert tree.capacity["cpu"] == [4000, 6000]
    assert tree.leaf_by_node == {"h1": 0, "h2": 1, "h3": 1}


def test_nodes_with_one_host_name_form_one_domain() -> None:
    twin = node("b2/r2/h1", cpu=3)
    tree = TopologyTree(LEVELS, [node("b1/r1/h1"), twin])
    assert tree.paths[-1] == [("b1", "r1", "h1")]
    assert tree.capacity["cpu"] == [7000]
    assert tree.assignment_levels == (HOSTNAME,)
    assert tree.leaf_by_values == {("h1",): 0}


def test_tree_without_nodes_has_no_domains() -> None:
    assert TopologyTree(LEVELS, []).paths == [[], [], []]
