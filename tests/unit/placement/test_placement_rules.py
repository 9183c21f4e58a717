"""Obstacles between a pod and a node that do not depend on other pods."""

from typing import Any

import pytest

from batchyard.api.views.node import node_view
from batchyard.placement import node_filters
from unit.placement.placement_make import ZONE, node, pod, preferred, required, view

TAINT = {"key": "reserved", "value": "true", "effect": "NoSchedule"}
NO_MATCH = "node(s) didn't match Pod's node affinity/selector"


def obstacle_texts(pending: Any, of: Any) -> tuple[str, ...]:
    """The reasons why a node rejects a pod."""
    result = node_filters.find_obstacle(view(pending).shape.rules, node_view(of))
    assert result is None or not result.is_resolvable
    return () if result is None else result.reasons


def zone_is(*values: str, operator: str = "In") -> Any:
    """A term that selects zones."""
    return {"matchExpressions": [{"key": ZONE, "operator": operator, "values": list(values)}]}


def name_term(*names: str, operator: str = "In") -> Any:
    """A term that selects nodes by name."""
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(names)}]}


def test_find_obstacle_accepts_unconstrained_pod() -> None:
    assert obstacle_texts(pod(), node()) == ()


def test_cordoned_node_accepts_tolerating_pods_only() -> None:
    tolerant = pod("t", tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])
    assert obstacle_texts(pod(), node(unschedulable=True)) == ("node(s) were unschedulable",)
    assert obstacle_texts(tolerant, node(unschedulable=True)) == ()


def test_first_untolerated_taint_is_reported() -> None:
    other = {"key": "other", "effect": "NoExecute"}
    assert obstacle_texts(pod(), node(taints=[TAINT, other])) == ("node(s) had untolerated taint {reserved: true}",)
    tolerant = pod("t", tolerations=[{"key": "reserved", "operator": "Equal", "value": "true"}])
    assert obstacle_texts(tolerant, node(taints=[TAINT, other])) == ("node(s) had untolerated taint {other: }",)


def test_prefer_no_schedule_taint_is_no_obstacle() -> None:
    assert obstacle_texts(pod(), node(taints=[{**TAINT, "effect": "PreferNoSchedule"}])) == ()


def test_node_selector_matches_labels() -> None:
    assert obstacle_texts(pod(nodeSelector={ZONE: "z"}), node()) == ()
    assert obstacle_texts(pod("o", nodeSelector={ZONE: "y"}), node()) == (NO_MATCH,)


def test_node_selector_terms_are_alternatives() -> None:
    pending = pod(affinity=required("nodeAffinity", zone_is("x"), zone_is("z")))
    assert obstacle_texts(pending, node()) == ()
    assert obstacle_texts(pending, node("m", "y")) == (NO_MATCH,)


@pytest.mark.parametrize(("operator", "values", "fits"), [("NotIn", "z", False), ("Exists", "", True)])
def test_node_affinity_evaluates_operators(operator: str, values: str, fits: bool) -> None:
    pending = pod(affinity=required("nodeAffinity", zone_is(*values, operator=operator)))
    assert (obstacle_texts(pending, node()) == ()) == fits


def test_empty_node_selector_term_matches_no_node() -> None:
    assert obstacle_texts(pod(affinity=required("nodeAffinity", {})), node()) == (NO_MATCH,)


def test_nodes_excluded_by_match_fields_are_filtered_first() -> None:
    pending = pod(affinity=required("nodeAffinity", name_term("n"), {**name_term("m"), **zone_is("x")}))
    assert obstacle_texts(pending, node("n")) == ()
    assert obstacle_texts(pending, node("m")) == (NO_MATCH,)
    assert obstacle_texts(pending, node("o", taints=[TAINT])) == ("node(s) didn't satisfy plugin(s) [NodeAffinity]",)


def test_match_fields_not_in_excludes_node_name() -> None:
    pending = pod(affinity=required("nodeAffinity", name_term("n", operator="NotIn")))
    assert obstacle_texts(pending, node("n")) == (NO_MATCH,)
    assert obstacle_texts(pending, node("m")) == ()


def test_node_preference_sums_weights_and_ignores_empty_terms() -> None:
    field = "preferredDuringSchedulingIgnoredDuringExecution"
    terms = [
        *preferred("nodeAffinity", 5, zone_is("z"))["nodeAffinity"][field],
        *preferred("nodeAffinity", 3, zone_is("y", "z"))["nodeAffinity"][field],
        *preferred("nodeAffinity", 9, {})["nodeAffinity"][field],
    ]
    pending = view(pod(affinity={"nodeAffinity": {field: terms}})).shape.rules
    assert [node_filters.preference_weight(pending, node_view(node("n", zone))) for zone in ("z", "y", "x")] == [
        8,
        3,
        0,
    ]


def test_aversion_counts_untolerated_prefer_no_schedule_taints() -> None:
    soft = [{**TAINT, "effect": "PreferNoSchedule"}, {"key": "b", "effect": "PreferNoSchedule"}, TAINT]
    tolerant = pod("t", tolerations=[{"key": "b", "operator": "Exists"}])
    assert node_filters.untolerated_taint_count(view(pod()).shape.rules, node_view(node(taints=soft))) == 2
    assert node_filters.untolerated_taint_count(view(tolerant).shape.rules, node_view(node(taints=soft))) == 1
