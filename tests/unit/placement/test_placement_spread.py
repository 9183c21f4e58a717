"""Pods that are spread over domains."""

from typing import Any

import make
from unit.placement.placement_make import HOST, ZONE, cluster, node, place, pod, reported, required

NODES = (node("a", "x"), node("b", "y"), node("c", "y"))
UNEVEN = "node(s) didn't match pod topology spread constraints"


def spread(name: str, key: str = ZONE, *, soft: bool = False, **fields: Any) -> Any:
    """A Pod that is spread evenly, counting those labelled as itself."""
    others = ("nodeSelector", "affinity", "labels", "cpu")
    pod_fields = {"labels": {"app": "a"}, **{field: fields.pop(field) for field in others if field in fields}}
    constraint = {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway" if soft else "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
        **fields,
    }
    return pod(name, topologySpreadConstraints=[constraint], **pod_fields)


def counted(name: str, on: str, **fields: Any) -> Any:
    """A Pod on a node that is counted."""
    return pod(name, labels={"app": "a"}, nodeName=on, **fields)


def test_pods_are_spread_evenly() -> None:
    assert place(cluster(*NODES), [spread(f"p{i}") for i in range(4)]) == ["a", "b", "c", "a"]


def test_a_full_domain_holds_the_others_up() -> None:
    nodes = cluster(node("a", "x", cpu="1"), *NODES[1:])
    assert place(nodes, [spread(f"p{i}") for i in range(4)]) == ["b", "a", "c", ""]
    assert reported(nodes, spread("q")) == f"0/3 nodes are available: 1 Insufficient cpu, 2 {UNEVEN}."


def test_pods_that_are_going_do_not_count() -> None:
    there = spread("p", nodeSelector={ZONE: "x"}, nodeAffinityPolicy="Ignore")
    assert place(cluster(*NODES, counted("one", "a")), [there]) == [""]
    assert place(cluster(*NODES, counted("one", "a", deleted=make.stamp())), [there]) == ["a"]


def test_more_skew_may_be_allowed() -> None:
    nodes = cluster(*NODES, counted("one", "a"), counted("two", "a"))
    assert place(nodes, [spread("p", maxSkew=3, nodeSelector={ZONE: "x"}, nodeAffinityPolicy="Ignore")]) == ["a"]
    assert place(nodes, [spread("q", maxSkew=2, nodeSelector={ZONE: "x"}, nodeAffinityPolicy="Ignore")]) == [""]


def test_nodes_without_the_label_are_out() -> None:
    bare = node("a")
    del bare["metadata"]["labels"][ZONE]
    message = f"0/1 nodes are available: 1 {UNEVEN} (missing required label)."
    assert reported(cluster(bare), spread("p")) == message


def test_only_domains_a_pod_may_go_to_are_counted() -> None:
    nodes = cluster(*NODES, counted("one", "a"))
    assert place(nodes, [spread("p", nodeSelector={ZONE: "x"})]) == ["a"]
    assert place(nodes, [spread("q", nodeSelector={ZONE: "x"}, nodeAffinityPolicy="Ignore")]) == [""]


def test_tainted_nodes_are_counted_unless_the_constraint_heeds_taints() -> None:
    taints = [{"key": "t", "effect": "NoSchedule"}]
    nodes = cluster(NODES[0], node("b", "y", taints=taints), counted("one", "a"))
    assert place(nodes, [spread("p", cpu="2")]) == [""]
    assert place(nodes, [spread("q", cpu="2", nodeTaintsPolicy="Honor")]) == ["a"]


def test_too_few_domains_count_as_an_empty_one() -> None:
    nodes = cluster(*NODES, counted("one", "a"), counted("two", "b"))
    assert place(nodes, [spread("p", minDomains=3)]) == [""]
    assert place(nodes, [spread("q", minDomains=2)]) == ["c"]


def test_pods_that_go_and_pods_elsewhere_are_not_counted() -> None:
    going = counted("one", "a", deleted="2026-01-01T00:00:00Z")
    stranger = counted("two", "b", namespace="other")
    assert place(cluster(*NODES, going, stranger), [spread("p"), spread("q")]) == ["c", "a"]


def test_a_pod_that_is_not_meant_itself_does_not_add_to_the_skew() -> None:
    nodes = cluster(*NODES, counted("one", "a"))
    assert place(nodes, [spread("p", labels={"app": "b"}, nodeSelector={HOST: "a"}, nodeAffinityPolicy="Ignore")]) == [
        "a"
    ]


def test_a_soft_constraint_only_prefers() -> None:
    nodes = cluster(*NODES, counted("one", "b", cpu="100m"))
    assert place(nodes, [spread("p", soft=True), spread("q", soft=True, nodeSelector={ZONE: "y"})]) == ["a", "c"]


def test_a_soft_constraint_over_hosts_counts_by_node() -> None:
    nodes = cluster(*NODES, counted("one", "a", cpu="100m"), counted("two", "b", cpu="100m"))
    assert place(nodes, [spread("p", HOST, soft=True)]) == ["c"]


def test_nodes_without_the_label_come_last_for_a_soft_constraint() -> None:
    bare = node("a")
    del bare["metadata"]["labels"][ZONE]
    nodes = cluster(bare, node("b", "y"), counted("one", "b"))
    assert place(nodes, [spread("p", soft=True)]) == ["b"]


def test_spread_and_affinity_hold_together() -> None:
    far = required("podAntiAffinity", {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "a"}}})
    assert place(cluster(*NODES), [spread(f"p{i}", affinity=far) for i in range(4)]) == ["a", "b", "c", ""]
