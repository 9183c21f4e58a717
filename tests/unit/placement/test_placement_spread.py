"""Topology spread constraints."""

from typing import Any

import pytest

import make
from unit.placement.placement_make import HOST, ZONE, cluster, node, place, pod, required, unschedulable_message

NODES = (node("a", "x"), node("b", "y"), node("c", "y"))
UNEVEN = "node(s) didn't match pod topology spread constraints"


def spread(name: str, key: str = ZONE, *, soft: bool = False, **fields: Any) -> Any:
    """A Pod with a spread constraint over pods with its own label."""
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


def counted_pod(name: str, on: str, **fields: Any) -> Any:
    """A bound Pod that the constraint counts."""
    return pod(name, labels={"app": "a"}, nodeName=on, **fields)


def test_topology_spread_places_pods_evenly() -> None:
    assert place(cluster(*NODES), [spread(f"p{i}") for i in range(4)]) == ["a", "b", "c", "a"]


def test_full_domain_blocks_further_pods_of_spread() -> None:
    nodes = cluster(node("a", "x", cpu="1"), *NODES[1:])
    assert place(nodes, [spread(f"p{i}") for i in range(4)]) == ["b", "a", "c", ""]
    assert unschedulable_message(nodes, spread("q")) == f"0/3 nodes are available: 1 Insufficient cpu, 2 {UNEVEN}."


def test_spread_ignores_terminating_pods() -> None:
    there = spread("p", nodeSelector={ZONE: "x"}, nodeAffinityPolicy="Ignore")
    assert place(cluster(*NODES, counted_pod("one", "a")), [there]) == [""]
    assert place(cluster(*NODES, counted_pod("one", "a", deleted=make.stamp())), [there]) == ["a"]


def test_spread_respects_max_skew() -> None:
    nodes = cluster(*NODES, counted_pod("one", "a"), counted_pod("two", "a"))
    assert place(nodes, [spread("p", maxSkew=3, nodeSelector={ZONE: "x"}, nodeAffinityPolicy="Ignore")]) == ["a"]
    assert place(nodes, [spread("q", maxSkew=2, nodeSelector={ZONE: "x"}, nodeAffinityPolicy="Ignore")]) == [""]


def test_spread_rejects_nodes_without_topology_label() -> None:
    bare = node("a")
    del bare["metadata"]["labels"][ZONE]
    message = f"0/1 nodes are available: 1 {UNEVEN} (missing required label)."
    assert unschedulable_message(cluster(bare), spread("p")) == message


def test_spread_counts_eligible_domains_unless_affinity_policy_is_ignore() -> None:
    nodes = cluster(*NODES, counted_pod("one", "a"))
    assert place(nodes, [spread("p", nodeSelector={ZONE: "x"})]) == ["a"]
    assert place(nodes, [spread("q", nodeSelector={ZONE: "x"}, nodeAffinityPolicy="Ignore")]) == [""]


def test_spread_counts_tainted_nodes_unless_taints_policy_is_honor() -> None:
    taints = [{"key": "t", "effect": "NoSchedule"}]
    nodes = cluster(NODES[0], node("b", "y", taints=taints), counted_pod("one", "a"))
    assert place(nodes, [spread("p", cpu="2")]) == [""]
    assert place(nodes, [spread("q", cpu="2", nodeTaintsPolicy="Honor")]) == ["a"]


def test_spread_minimum_is_zero_below_min_domains() -> None:
    nodes = cluster(*NODES, counted_pod("one", "a"), counted_pod("two", "b"))
    assert place(nodes, [spread("p", minDomains=3)]) == [""]
    assert place(nodes, [spread("q", minDomains=2)]) == ["c"]


def test_spread_ignores_terminating_pods_and_other_namespaces() -> None:
    going = counted_pod("one", "a", deleted="2026-01-01T00:00:00Z")
    stranger = counted_pod("two", "b", namespace="other")
    assert place(cluster(*NODES, going, stranger), [spread("p"), spread("q")]) == ["c", "a"]


def test_pod_outside_selector_adds_nothing_to_skew() -> None:
    nodes = cluster(*NODES, counted_pod("one", "a"))
    assert place(nodes, [spread("p", labels={"app": "b"}, nodeSelector={HOST: "a"}, nodeAffinityPolicy="Ignore")]) == [
        "a"
    ]


def test_schedule_anyway_constraint_only_scores_nodes() -> None:
    nodes = cluster(*NODES, counted_pod("one", "b", cpu="100m"))
    assert place(nodes, [spread("p", soft=True), spread("q", soft=True, nodeSelector={ZONE: "y"})]) == ["a", "c"]


def test_schedule_anyway_constraint_over_hostname_counts_by_node() -> None:
    nodes = cluster(*NODES, counted_pod("one", "a", cpu="100m"), counted_pod("two", "b", cpu="100m"))
    assert place(nodes, [spread("p", HOST, soft=True)]) == ["c"]


def test_schedule_anyway_constraint_prefers_nodes_with_topology_label() -> None:
    bare = node("a")
    del bare["metadata"]["labels"][ZONE]
    nodes = cluster(bare, node("b", "y"), counted_pod("one", "b"))
    assert place(nodes, [spread("p", soft=True)]) == ["b"]


def test_spread_and_anti_affinity_apply_together() -> None:
    far = required("podAntiAffinity", {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "a"}}})
    assert place(cluster(*NODES), [spread(f"p{i}", affinity=far) for i in range(4)]) == ["a", "b", "c", ""]


@pytest.mark.parametrize("selector", [None, {}])
def test_spread_without_label_selector_counts_no_pods(selector: Any) -> None:
    nodes = cluster(*NODES, counted_pod("one", "a"), counted_pod("two", "a"))
    assert place(nodes, [spread("p", nodeSelector={ZONE: "x"}, nodeAffinityPolicy="Ignore")]) == [""]
    free = spread("p", nodeSelector={ZONE: "x"}, nodeAffinityPolicy="Ignore", labelSelector=selector)
    assert place(nodes, [free]) == ["a"]
