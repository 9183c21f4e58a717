"""Which node a pod goes to, and what is told when there is none."""

from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import ChosenNode, find_node, pick_node, why_not
from batchyard.placement.node_filters import AutoscalingProfile
from unit.placement.placement_make import (
    HOST,
    ZONE,
    cluster,
    node,
    place,
    pod,
    pod_term,
    preferred,
    reported,
    required,
    view,
)

TAINT = {"key": "reserved", "value": "true", "effect": "NoSchedule"}
SOFT = {"key": "soft", "effect": "PreferNoSchedule"}


def zone_is(value: str) -> dict[str, list[dict[str, object]]]:
    """A term that asks for a zone."""
    return {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [value]}]}


def test_of_equal_nodes_the_first_by_name_is_taken() -> None:
    assert place(cluster(node("b"), node("a")), [pod("p"), pod("q"), pod("r")]) == ["a", "b", "a"]


def test_the_emptier_node_is_taken() -> None:
    nodes = cluster(node("a"), node("b"), pod("t", nodeName="a"))
    assert place(nodes, [pod("p"), pod("q")]) == ["b", "a"]


def test_where_utilization_is_optimized_nodes_are_filled() -> None:
    pods = [pod(f"p{i}") for i in range(5)]
    places = place(cluster(node("a"), node("b")), pods, AutoscalingProfile.OPTIMIZE_UTILIZATION)
    assert places == ["a", "a", "a", "a", "b"]


def test_preferred_node_affinity_outweighs_emptiness() -> None:
    nodes = cluster(node("a", "x"), node("b", "y"), pod("t", nodeName="b"))
    assert place(nodes, [pod("p", affinity=preferred("nodeAffinity", 1, zone_is("y")))]) == ["b"]


def test_taints_that_prefer_not_to_have_a_pod_come_last() -> None:
    nodes = cluster(node("a", taints=[SOFT]), node("b"), pod("t", nodeName="b"))
    assert place(nodes, [pod("p"), pod("q", cpu="3")]) == ["b", "a"]


def test_why_no_node_is_available_is_told_in_the_order_of_the_texts() -> None:
    nodes = cluster(
        *[node(f"full{i:02}") for i in range(10)],
        *[pod(f"t{i:02}", nodeName=f"full{i:02}", cpu="4") for i in range(10)],
        *[node(f"kept{i}", taints=[TAINT]) for i in range(2)],
        node("off", unschedulable=True),
    )
    assert reported(nodes, pod("p")) == (
        "0/13 nodes are available: 1 node(s) were unschedulable, 10 Insufficient cpu, "
        "2 node(s) had untolerated taint {reserved: true}."
    )


def test_a_node_may_lack_more_than_one_thing() -> None:
    assert reported(cluster(node()), pod(cpu="5", memory="20Gi")) == (
        "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."
    )


def test_without_nodes_there_is_nothing_to_tell() -> None:
    assert reported(ClusterSnapshot(), pod()) == "no nodes available to schedule pods"


def test_why_a_pod_does_not_fit_one_node_is_told() -> None:
    nodes = cluster(node("a"), node("b", taints=[TAINT]))
    reasons = [why_not(view(pod("p")), of, nodes) for of in nodes]
    assert reasons == [(), ("node(s) had untolerated taint {reserved: true}",)]


def test_room_is_held_for_those_who_are_nominated() -> None:
    nodes = cluster(node("a"))
    nodes.nominate(view(pod("n", cpu="3", priority=5)), "a")
    assert place(nodes, [pod("p", cpu="2", priority=5)]) == [""]
    assert reported(nodes, pod("p", cpu="2", priority=5)) == "0/1 nodes are available: 1 Insufficient cpu."
    assert place(nodes, [pod("q", cpu="1", priority=5)]) == ["a"]


def test_room_is_not_held_against_those_of_higher_priority() -> None:
    nodes = cluster(node("a"))
    nodes.nominate(view(pod("n", cpu="3", priority=5)), "a")
    assert place(nodes, [pod("p", cpu="2", priority=6)]) == ["a"]


def test_a_nominated_pod_goes_where_room_is_held_for_it() -> None:
    nodes = cluster(node("a"), node("b"), pod("t", nodeName="b"))
    nodes.nominate(view(pod("n")), "b")
    assert place(nodes, [pod("n")]) == ["b"]


def test_a_nominated_pod_goes_elsewhere_when_its_node_is_full() -> None:
    nodes = cluster(node("a"), node("b"), pod("t", cpu="4", nodeName="b"))
    nodes.nominate(view(pod("n")), "b")
    assert place(nodes, [pod("n")]) == ["a"]


def test_those_who_are_nominated_keep_away_whom_they_do_not_want() -> None:
    nodes = cluster(node("a"))
    nodes.nominate(view(pod("n", affinity=required("podAntiAffinity", pod_term(HOST)))), "a")
    assert place(nodes, [pod("p", labels={"app": "a"}), pod("q", labels={"app": "b"})]) == ["", "a"]


def test_a_pod_does_not_count_on_those_who_are_only_nominated() -> None:
    nodes = cluster(node("a"))
    nodes.nominate(view(pod("n", labels={"app": "a"})), "a")
    assert place(nodes, [pod("p", affinity=required("podAffinity", pod_term(HOST)))]) == [""]


def test_picking_and_finding_agree() -> None:
    nodes = cluster(node("a"))
    assert find_node(view(pod("p")), nodes) == ChosenNode("a")
    assert pick_node(view(pod("p")), nodes) == "a"
    assert pick_node(view(pod("q", cpu="9")), nodes) == ""


def test_names_that_contradict_each_other_are_told_once() -> None:
    fields = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in "ab"]
    asked = pod(affinity=required("nodeAffinity", {"matchFields": fields}))
    assert reported(cluster(node("a"), node("b")), asked) == "0/2 nodes are available: pod affinity terms conflict."
