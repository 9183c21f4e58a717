"""The domains that nodes form, and which capacity counts: nodes, pods outside topologies, and Workloads."""

from dataclasses import replace
from typing import Any

import pytest

from batchyard.api.views.node import NodeView, Taint
from batchyard.api.views.topology import TopologyAssignment, TopologyDomain
from batchyard.api.well_known import HOSTNAME
from batchyard.base.primitives import draw_integer
from batchyard.topology.state import TopologyState, TopologyUsage, usage_of
from batchyard.topology.tree import TopologyTree
from racks import LEVELS, flavor, node, place, racks, request, state, template
from stage import Stage


def usage(host: str, count: int, name: str = "tas") -> TopologyUsage:
    """Pods of a Workload on a host."""
    return usage_of([name], TopologyAssignment((HOSTNAME,), (TopologyDomain((host,), count),)), template())


def node_object(name: str = "b1r1h1", *, ready: bool = True, **spec: Any) -> dict[str, Any]:
    """A Node of a rack."""
    labels = {"block": "b1", "rack": "b1r1", HOSTNAME: name}
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"allocatable": {"cpu": "4", "pods": "9"}, "conditions": conditions}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}


def pod(cpu: int = 1, phase: str = "Running", node_name: str = "b1r1h1", **annotations: str) -> dict[str, Any]:
    """A Pod on a node."""
    containers = [{"name": "main", "resources": {"requests": {"cpu": str(cpu)}}}]
    metadata = {"name": "other", "namespace": "kube-system", "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": node_name, "containers": containers}, "status": {"phase": phase}}


def free_pods(topology: TopologyState, name: str = "tas") -> int:
    """The number of one-cpu pods that fit on the hosts of a flavor."""
    built = topology.get(name)
    assert built is not None
    return sum(built.capacity.count_pods(leaf, (("cpu", 1000), ("pods", 1))) for leaf in range(built.tree.leaf_count))


def test_usage_of_workload_counts_until_it_is_removed() -> None:
    topology = state(*racks(b1r1h1=4))
    topology.add_usage(usage("b1r1h1", 3))
    assert free_pods(topology) == 1
    topology.add_usage(usage("b1r1h1", 3), -1)
    assert free_pods(topology) == 4


def test_usage_survives_the_absence_of_its_node() -> None:
    topology = state(*racks(b1r1h2=1))
    topology.add_usage(usage("b1r1h1", 3))
    assert free_pods(topology) == 1
    assert topology.observe_node(node_object(), None, is_deleted=False)
    assert free_pods(topology) == 2


def test_unready_or_cordoned_node_does_not_count() -> None:
    topology = state()
    assert topology.observe_node(node_object(), None, is_deleted=False)
    assert free_pods(topology) == 4
    assert topology.observe_node(node_object(ready=False), node_object(), is_deleted=False)
    assert free_pods(topology) == 0
    assert topology.observe_node(node_object(unschedulable=True), node_object(ready=False), is_deleted=False)
    assert free_pods(topology) == 0


def test_listing_forgets_nodes_that_were_deleted_while_no_flavor_had_a_topology() -> None:
    topology, stage = state(*racks(b1r1h1=4)), Stage()
    topology.observe_pod(pod(cpu=3), is_deleted=False)
    assert free_pods(topology) == 1
    stage.put({"apiVersion": "v1", "kind": "Node", **node_object("b1r1h2")})
    topology.list_nodes(stage.client)
    assert place(topology, request(4, required="block")) == "b1r1h2:4"
    assert free_pods(topology) == 4


def test_irrelevant_change_of_node_is_ignored() -> None:
    topology, old = state(), node_object()
    topology.observe_node(old, None, is_deleted=False)
    new = {**old, "status": {**old["status"], "images": ["large"]}}
    assert not topology.observe_node(new, old, is_deleted=False)


def test_pods_outside_topologies_use_capacity() -> None:
    topology = state(*racks(b1r1h1=4))
    assert topology.observe_pod(pod(cpu=3), is_deleted=False) == ""
    assert free_pods(topology) == 1
    assert topology.observe_pod(pod(cpu=2), is_deleted=False) == "b1r1h1"
    assert topology.observe_pod(pod(phase="Succeeded"), is_deleted=False) == "b1r1h1"
    assert free_pods(topology) == 4


def test_pods_of_topology_workloads_are_not_counted_twice() -> None:
    topology = state(*racks(b1r1h1=4))
    annotations: dict[str, Any] = {"kueue.x-k8s.io/podset-required-topology": "rack"}
    topology.observe_pod(pod(**annotations), is_deleted=False)
    assert free_pods(topology) == 4


def test_flavors_with_hosts_share_the_usage_of_their_nodes() -> None:
    topology = state(*racks(b1r1h1=4))
    topology.put_flavor(flavor("other"))
    topology.add_usage(usage("b1r1h1", 3, name="other"))
    assert (free_pods(topology), free_pods(topology, "other")) == (1, 1)


def test_flavors_without_hosts_see_only_their_own_usage() -> None:
    topology = state(*racks(b1r1h1=4), levels=("block", "rack"))
    topology.put_flavor(flavor("other"))
    assignment = TopologyAssignment(("block", "rack"), (TopologyDomain(("b1", "b1r1"), 3),))
    topology.add_usage(usage_of(["other"], assignment, template()))
    assert (free_pods(topology), free_pods(topology, "other")) == (4, 1)


def test_flavor_has_only_nodes_with_its_labels_and_all_levels() -> None:
    topology = state(node("b1/r1/h1", pool="a"), node("b1/r1/h2", pool="b"))
    topology.put_flavor(flavor("pool-a", pool="a"))
    assert (free_pods(topology), free_pods(topology, "pool-a")) == (8, 4)


def test_flavor_is_ignored_unless_topologies_are_enabled() -> None:
    topology = TopologyState()
    topology.put_topology("racks", ("rack",))
    topology.put_flavor(flavor())
    assert topology.get("tas") is None


def test_changed_levels_build_a_new_tree() -> None:
    topology = state(*racks(b1r1h1=4, b1r2h1=4))
    assert place(topology, request(8, required="block")) == "b1r1h1:4 b1r2h1:4"
    assert topology.put_topology("racks", ("rack", HOSTNAME))
    assert place(topology, request(8, required="block")) == "no requested topology level: block"


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("levels", [("block", "rack", HOSTNAME), ("block", "rack")])
def test_changed_nodes_give_the_same_placements_as_a_new_tree(seed: int, levels: tuple[str, ...]) -> None:
    nodes = [random_node(f"b{i % 2}/r{i % 5}/h{i}", seed, "first") for i in range(12)]
    topology = state(*nodes, levels=levels)
    for i in range(6):
        topology.observe_pod(named_pod(f"p{i}", f"h{i}"), is_deleted=False)
    topology.add_usage(usage("h3", 1))
    for step in range(12):
        topology.build()
        each = nodes[draw_integer(seed, "node", str(step)) % len(nodes)]
        change_node(topology, random_node("/".join(each.labels[level] for level in LEVELS), seed, str(step)))
        fresh = state(*topology.nodes.values(), levels=levels)
        for i in range(6):
            fresh.observe_pod(named_pod(f"p{i}", f"h{i}"), is_deleted=False)
        fresh.add_usage(usage("h3", 1))
        for count in (1, 5, 9, 40):
            for fields in ({"required": "rack"}, {"preferred": "block"}, {"unconstrained": True}):
                assert place(topology, request(count, **fields)) == place(fresh, request(count, **fields))
            idle = place(topology, request(count, required="block"), is_idle=True)
            assert idle == place(fresh, request(count, required="block"), is_idle=True)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("levels", [("block", "rack", HOSTNAME), ("block", "rack"), ("rack", HOSTNAME), (HOSTNAME,)])
def test_new_nodes_give_the_same_placements_as_a_new_tree(seed: int, levels: tuple[str, ...]) -> None:
    topology = state(*[random_node(f"b{i % 2}/r{i % 5}/h{i}", seed, "first") for i in range(3)], levels=levels)
    topology.add_usage(usage("h3", 1))
    for step in range(12):
        topology.build()
        place(topology, request(3))
        host = draw_integer(seed, "node", str(step)) % 24
        change_node(topology, random_node(f"b{host % 3}/r{host % 7}/h{host}", seed, str(step)))
        fresh = state(*topology.nodes.values(), levels=levels)
        fresh.add_usage(usage("h3", 1))
        for count in (1, 5, 9, 40):
            for fields in ({"required": "rack"}, {"preferred": "rack"}, {"unconstrained": True}):
                assert place(topology, request(count, **fields)) == place(fresh, request(count, **fields))


def test_new_node_does_not_build_a_new_tree_until_many_domains_are_empty() -> None:
    topology = state(*racks(b1r1h1=4, b1r1h5=4))
    tree = topology.get("tas")
    added = [node_object(name) for name in ("b1r1h3", "b1r1h4", "b1r1h2")]
    for each in added[:2]:
        topology.observe_node(each, None, is_deleted=False)
    assert place(topology, request(9, required="block")) == "b1r1h1:4 b1r1h3:4 b1r1h4:1"
    assert topology.get("tas") is tree
    for each in added[:2]:
        topology.observe_node(each, None, is_deleted=True)
    topology.observe_node(added[2], None, is_deleted=False)
    assert place(topology, request(5, required="block")) == "b1r1h1:4 b1r1h2:1"
    assert topology.get("tas") is not tree


def test_node_that_leaves_and_returns_does_not_build_a_new_tree() -> None:
    topology = state(*racks(b1r1h1=4, b1r1h2=4))
    tree = topology.get("tas")
    topology.observe_node(node_object(ready=False), node_object(), is_deleted=False)
    assert str(place(topology, request(5, required="block"))).startswith('topology "racks" allows to fit only 4')
    topology.observe_node(node_object(), node_object(ready=False), is_deleted=False)
    assert place(topology, request(5, required="block")) == "b1r1h1:4 b1r1h2:1"
    assert topology.get("tas") is tree


def test_constraints_are_bounded_and_keep_their_meaning() -> None:
    topology = state(node("b1/r1/h1", job="j0"))
    built = topology.get("tas")
    assert built is not None
    selectors = [template(nodeSelector={"job": f"j{i}"}) for i in range(600)]
    assert max(map(built.constraints_of, selectors)) < 300
    for each in (*selectors, *selectors):
        placed = place(topology, request(1, required="rack")._replace(template=each))
        assert (placed == "h1:1") == (each is selectors[0])


def test_relisted_node_leaves_the_flavor_of_its_old_labels() -> None:
    topology = state(node("b1/r1/h1", pool="a"))
    for pool in ("a", "b"):
        topology.put_flavor(flavor(pool, pool=pool))
    topology.build()
    change_node(topology, node("b1/r1/h1", pool="b"))
    assert (free_pods(topology, "a"), free_pods(topology, "b")) == (0, 4)


def random_node(path: str, seed: int, step: str) -> NodeView:
    """A node with random cpus, perhaps tainted or not ready."""
    draws = [draw_integer(seed, step, path, part) for part in ("cpu", "taint", "ready")]
    taints = [Taint("gone", "", "NoExecute")] if draws[1] % 4 == 0 else []
    return replace(node(path, cpu=draws[0] % 6, taints=taints), ready=draws[2] % 3 > 0)


def change_node(topology: TopologyState, view: NodeView) -> None:
    """Report a changed Node."""
    taints = [{"key": each.key, "effect": each.effect} for each in view.taints]
    conditions = [{"type": "Ready", "status": str(view.ready)}]
    allocatable = {"cpu": f"{view.allocatable['cpu']}m", "pods": "110"}
    metadata = {"name": view.name, "labels": {**view.labels}}
    status = {"allocatable": allocatable, "conditions": conditions}
    topology.observe_node({"metadata": metadata, "spec": {"taints": taints}, "status": status}, None, is_deleted=False)


def named_pod(name: str, node_name: str) -> dict[str, Any]:
    """A Pod of this name on a node."""
    result = pod(node_name=node_name)
    return {**result, "metadata": {**result["metadata"], "name": name}}


# The tree of a flavor.


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


def test_flavors_do_not_share_usage_without_the_gate() -> None:
    topology = state(*racks(b1r1h1=4), TASHandleOverlappingFlavors=False)
    topology.put_flavor(flavor("other"))
    topology.build()
    topology.add_usage(usage("b1r1h1", 3))
    assert (free_pods(topology), free_pods(topology, "other")) == (1, 4)
    topology.put_flavor(flavor("other"))
    copy = topology.copy()
    assert (free_pods(copy), free_pods(copy, "other")) == (1, 4)
    assert topology.observe_node(node_object("b1r1h2"), None, is_deleted=False)
    assert (free_pods(topology), free_pods(topology, "other")) == (5, 8)
