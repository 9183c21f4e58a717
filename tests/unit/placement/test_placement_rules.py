"""What keeps a pod from a node whatever runs there."""

from typing import Any

import pytest

from batchyard.api.views.node import node_view
from batchyard.placement import node_filters
from unit.placement.placement_make import ZONE, node, pod, preferred, required, view

TAINT = {"key": "reserved", "value": "true", "effect": "NoSchedule"}
NO_MATCH = "node(s) didn't match Pod's node affinity/selector"


def why(asked: Any, of: Any) -> tuple[str, ...]:
    """Why a pod cannot go to a node."""
    found = node_filters.find_obstacle(view(asked).shape.rules, node_view(of))
    assert found is None or not found.may_yield
    return () if found is None else found.reasons


def zone_is(*values: str, operator: str = "In") -> Any:
    """A term that asks for zones."""
    return {"matchExpressions": [{"key": ZONE, "operator": operator, "values": list(values)}]}


def named(*names: str, operator: str = "In") -> Any:
    """A term that asks for nodes by name."""
    return {"matchFields": [{"key": "metadata.name", "operator": operator, "values": list(names)}]}


def test_a_plain_pod_goes_to_a_plain_node() -> None:
    assert why(pod(), node()) == ()


def test_a_cordoned_node_takes_only_pods_that_tolerate_it() -> None:
    tolerant = pod("t", tolerations=[{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}])
    assert why(pod(), node(unschedulable=True)) == ("node(s) were unschedulable",)
    assert why(tolerant, node(unschedulable=True)) == ()


def test_the_first_taint_that_is_not_tolerated_is_told() -> None:
    other = {"key": "other", "effect": "NoExecute"}
    assert why(pod(), node(taints=[TAINT, other])) == ("node(s) had untolerated taint {reserved: true}",)
    tolerant = pod("t", tolerations=[{"key": "reserved", "operator": "Equal", "value": "true"}])
    assert why(tolerant, node(taints=[TAINT, other])) == ("node(s) had untolerated taint {other: }",)


def test_a_taint_that_only_prefers_keeps_nobody_off() -> None:
    assert why(pod(), node(taints=[{**TAINT, "effect": "PreferNoSchedule"}])) == ()


def test_a_node_selector_asks_for_labels() -> None:
    assert why(pod(nodeSelector={ZONE: "z"}), node()) == ()
    assert why(pod("o", nodeSelector={ZONE: "y"}), node()) == (NO_MATCH,)


def test_terms_of_node_affinity_are_alternatives() -> None:
    asked = pod(affinity=required("nodeAffinity", zone_is("x"), zone_is("z")))
    assert why(asked, node()) == ()
    assert why(asked, node("m", "y")) == (NO_MATCH,)


@pytest.mark.parametrize(("operator", "values", "fits"), [("NotIn", "z", False), ("Exists", "", True)])
def test_node_affinity_knows_operators(operator: str, values: str, fits: bool) -> None:
    asked = pod(affinity=required("nodeAffinity", zone_is(*values, operator=operator)))
    assert (why(asked, node()) == ()) == fits


def test_an_empty_term_holds_for_no_node() -> None:
    assert why(pod(affinity=required("nodeAffinity", {})), node()) == (NO_MATCH,)


def test_nodes_that_no_alternative_names_are_not_even_looked_at() -> None:
    asked = pod(affinity=required("nodeAffinity", named("n"), {**named("m"), **zone_is("x")}))
    assert why(asked, node("n")) == ()
    assert why(asked, node("m")) == (NO_MATCH,)
    assert why(asked, node("o", taints=[TAINT])) == ("node(s) didn't satisfy plugin(s) [NodeAffinity]",)


def test_a_name_may_be_excluded() -> None:
    asked = pod(affinity=required("nodeAffinity", named("n", operator="NotIn")))
    assert why(asked, node("n")) == (NO_MATCH,)
    assert why(asked, node("m")) == ()


def test_preferences_add_up_and_empty_ones_count_nothing() -> None:
    field = "preferredDuringSchedulingIgnoredDuringExecution"
    terms = [
        *preferred("nodeAffinity", 5, zone_is("z"))["nodeAffinity"][field],
        *preferred("nodeAffinity", 3, zone_is("y", "z"))["nodeAffinity"][field],
        *preferred("nodeAffinity", 9, {})["nodeAffinity"][field],
    ]
    asked = view(pod(affinity={"nodeAffinity": {field: terms}})).shape.rules
    assert [node_filters.preference(asked, node_view(node("n", zone))) for zone in ("z", "y", "x")] == [8, 3, 0]


def test_taints_that_prefer_not_to_have_a_pod_are_counted() -> None:
    soft = [{**TAINT, "effect": "PreferNoSchedule"}, {"key": "b", "effect": "PreferNoSchedule"}, TAINT]
    tolerant = pod("t", tolerations=[{"key": "b", "operator": "Exists"}])
    assert node_filters.aversion(view(pod()).shape.rules, node_view(node(taints=soft))) == 2
    assert node_filters.aversion(view(tolerant).shape.rules, node_view(node(taints=soft))) == 1
