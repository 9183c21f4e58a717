"""The node chosen for a pod, and the message if there is none."""

from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import ChosenNode, choose_node, filter_failure_reasons, find_node
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
    required,
    unschedulable_message,
    view,
)

TAINT = {"key": "reserved", "value": "true", "effect": "NoSchedule"}
SOFT = {"key": "soft", "effect": "PreferNoSchedule"}


def zone_is(value: str) -> dict[str, list[dict[str, object]]]:
    """A term that selects a zone."""
    return {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [value]}]}


def test_find_node_prefers_first_name_of_equal_nodes() -> None:
    assert place(cluster(node("b"), node("a")), [pod("p"), pod("q"), pod("r")]) == ["a", "b", "a"]


def test_find_node_prefers_emptier_node() -> None:
    nodes = cluster(node("a"), node("b"), pod("t", nodeName="a"))
    assert place(nodes, [pod("p"), pod("q")]) == ["b", "a"]


def test_optimize_utilization_profile_fills_nodes() -> None:
    pods = [pod(f"p{i}") for i in range(5)]
    places = place(cluster(node("a"), node("b")), pods, AutoscalingProfile.OPTIMIZE_UTILIZATION)
    assert places == ["a", "a", "a", "a", "b"]


def test_preferred_node_affinity_outweighs_free_resources() -> None:
    nodes = cluster(node("a", "x"), node("b", "y"), pod("t", nodeName="b"))
    assert place(nodes, [pod("p", affinity=preferred("nodeAffinity", 1, zone_is("y")))]) == ["b"]


def test_find_node_avoids_prefer_no_schedule_taints() -> None:
    nodes = cluster(node("a", taints=[SOFT]), node("b"), pod("t", nodeName="b"))
    assert place(nodes, [pod("p"), pod("q", cpu="3")]) == ["b", "a"]


def test_unschedulable_message_sorts_reasons_by_text() -> None:
    nodes = cluster(
        *[node(f"full{i:02}") for i in range(10)],
        *[pod(f"t{i:02}", nodeName=f"full{i:02}", cpu="4") for i in range(10)],
        *[node(f"kept{i}", taints=[TAINT]) for i in range(2)],
        node("off", unschedulable=True),
    )
    assert unschedulable_message(nodes, pod("p")) == (
        "0/13 nodes are available: 1 node(s) were unschedulable, 10 Insufficient cpu, "
        "2 node(s) had untolerated taint {reserved: true}."
    )


def test_unschedulable_message_lists_all_insufficient_resources() -> None:
    assert unschedulable_message(cluster(node()), pod(cpu="5", memory="20Gi")) == (
        "0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory."
    )


def test_unschedulable_message_without_nodes() -> None:
    assert unschedulable_message(ClusterSnapshot(), pod()) == "no nodes available to schedule pods"


def test_why_not_returns_reasons_of_single_node() -> None:
    nodes = cluster(node("a"), node("b", taints=[TAINT]))
    reasons = [filter_failure_reasons(view(pod("p")), of, nodes) for of in nodes]
    assert reasons == [(), ("node(s) had untolerated taint {reserved: true}",)]


def test_find_node_reserves_capacity_of_nominated_pod() -> None:
    nodes = cluster(node("a"))
    nodes.nominate(view(pod("n", cpu="3", priority=5)), "a")
    assert place(nodes, [pod("p", cpu="2", priority=5)]) == [""]
    assert unschedulable_message(nodes, pod("p", cpu="2", priority=5)) == "0/1 nodes are available: 1 Insufficient cpu."
    assert place(nodes, [pod("q", cpu="1", priority=5)]) == ["a"]


def test_find_node_ignores_nominated_pods_of_lower_priority() -> None:
    nodes = cluster(node("a"))
    nodes.nominate(view(pod("n", cpu="3", priority=5)), "a")
    assert place(nodes, [pod("p", cpu="2", priority=6)]) == ["a"]


def test_find_node_returns_nominated_node() -> None:
    nodes = cluster(node("a"), node("b"), pod("t", nodeName="b"))
    nodes.nominate(view(pod("n")), "b")
    assert place(nodes, [pod("n")]) == ["b"]


def test_find_node_returns_another_node_if_nominated_node_is_full() -> None:
    nodes = cluster(node("a"), node("b"), pod("t", cpu="4", nodeName="b"))
    nodes.nominate(view(pod("n")), "b")
    assert place(nodes, [pod("n")]) == ["a"]


def test_anti_affinity_of_nominated_pod_excludes_matching_pod() -> None:
    nodes = cluster(node("a"))
    nodes.nominate(view(pod("n", affinity=required("podAntiAffinity", pod_term(HOST)))), "a")
    assert place(nodes, [pod("p", labels={"app": "a"}), pod("q", labels={"app": "b"})]) == ["", "a"]


def test_nominated_pod_does_not_satisfy_affinity() -> None:
    nodes = cluster(node("a"))
    nodes.nominate(view(pod("n", labels={"app": "a"})), "a")
    assert place(nodes, [pod("p", affinity=required("podAffinity", pod_term(HOST)))]) == [""]


def test_pick_node_agrees_with_find_node() -> None:
    nodes = cluster(node("a"))
    assert find_node(view(pod("p")), nodes) == ChosenNode("a")
    assert choose_node(view(pod("p")), nodes) == "a"
    assert choose_node(view(pod("q", cpu="9")), nodes) == ""


def test_conflicting_node_names_are_reported_as_affinity_conflict() -> None:
    fields = [{"key": "metadata.name", "operator": "In", "values": [name]} for name in "ab"]
    pending = pod(affinity=required("nodeAffinity", {"matchFields": fields}))
    assert (
        unschedulable_message(cluster(node("a"), node("b")), pending)
        == "0/2 nodes are available: pod affinity terms conflict."
    )
