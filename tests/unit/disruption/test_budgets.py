"""PodDisruptionBudgets: their Pods, their status, evictions, and the choice of preemption victims."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api.meta import key_of
from batchyard.disruption.controller import EvictionRefusal, ExpectedPods, eviction_decision, find_disrupted, status_of
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import Unschedulable, find_node
from batchyard.placement.preemption import PodPreemption, find_preemption
from unit.nodes.node_make import pod, running
from unit.placement import placement_make
from unit.placement.placement_make import cluster, node, view

LABELS = {"app": "web"}


def budget(name: str = "b", status: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    spec = {"selector": {"matchLabels": LABELS}, **spec}
    metadata = make.metadata(name, generation=1)
    obj = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec}
    return obj if status is None else {**obj, "status": {"observedGeneration": 1, **status}}


def web(name: str = "pod", *, ready: bool = True, **fields: Any) -> dict[str, Any]:
    status = running() if ready else {"phase": "Running"}
    return pod(name, metadata={"labels": LABELS}, status=fields.pop("status", status), **fields)


def refusal(judged: dict[str, Any], asked: dict[str, Any] | None = None) -> EvictionRefusal:
    result = eviction_decision(asked or web(), [judged], make.NOW).refusal
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("spec", "expected", "desired", "allowed"),
    [
        ({"minAvailable": 2}, 3, 2, 1),
        ({"minAvailable": 4}, 3, 4, 0),
        ({"minAvailable": "50%"}, 5, 3, 0),
        ({"maxUnavailable": 1}, 4, 3, 0),
        ({"maxUnavailable": "40%"}, 4, 2, 1),
        ({"maxUnavailable": 9}, 3, 0, 3),
        ({"minAvailable": 0}, 0, 0, 0),
    ],
)
def test_disruptions_allowed_equal_healthy_pods_above_desired(
    spec: Any, expected: int, desired: int, allowed: int
) -> None:
    pods = [web("a"), web("b"), web("c"), web("d", ready=False)]
    status = status_of(budget(**spec), pods, ExpectedPods(expected), {}, make.NOW)
    assert (status["currentHealthy"], status["desiredHealthy"], status["disruptionsAllowed"]) == (3, desired, allowed)
    (condition,) = status["conditions"]
    assert condition["reason"] == ("SufficientPods" if allowed else "InsufficientPods")


def test_disrupted_pod_counts_as_unhealthy_for_two_minutes() -> None:
    pdb = budget(minAvailable=1, status={"disruptedPods": {"a": make.stamp(), "gone": make.stamp()}})
    early = find_disrupted(pdb, [web("a"), web("b")], make.at(60))
    assert (dict(early.eviction_times), early.expires_at) == ({"a": make.stamp()}, make.at(120))
    assert status_of(pdb, [web("a"), web("b")], ExpectedPods(2), early.eviction_times, make.NOW)["currentHealthy"] == 1
    late = find_disrupted(pdb, [web("a"), web("b")], make.at(121))
    assert (dict(late.eviction_times), len(late.undeleted_pods)) == ({}, 1)


def test_allowed_eviction_decrements_disruptions_allowed() -> None:
    judged = eviction_decision(web(), [budget(status={"disruptionsAllowed": 1})], make.NOW)
    assert judged.refusal is None
    assert judged.new_budget is not None
    assert judged.new_budget["status"]["disruptedPods"] == {"pod": make.stamp()}
    assert judged.new_budget["status"]["disruptionsAllowed"] == 0
    assert judged.new_budget["status"]["conditions"][0]["reason"] == "InsufficientPods"


def test_exhausted_budget_reports_desired_and_current_healthy_pods() -> None:
    reported = refusal(budget(status={"disruptionsAllowed": 0, "desiredHealthy": 2, "currentHealthy": 2}))
    assert (reported.code, reported.message) == (
        429,
        "Cannot evict pod as it would violate the pod's disruption budget.",
    )
    assert reported.cause == "The disruption budget b needs 2 healthy pods and has 2 currently"


def test_budget_with_outdated_observed_generation_rejects_eviction() -> None:
    reported = refusal(budget(status={"observedGeneration": 0, "disruptionsAllowed": 5}))
    assert reported.cause == "The disruption budget b is still being processed by the server."
    assert reported.retry_after == 10


def test_eviction_is_forbidden_if_disruptions_allowed_are_negative() -> None:
    reported = refusal(budget(status={"disruptionsAllowed": -1}))
    assert (reported.code, reported.reason) == (403, "Forbidden")
    assert reported.message == 'poddisruptionbudget.policy "b" is forbidden: pdb disruptions allowed is negative'


@pytest.mark.parametrize(("pending", "code"), [(2000, None), (2001, 403)])
def test_eviction_is_forbidden_while_too_many_evictions_are_unconfirmed(pending: int, code: int | None) -> None:
    evicted = {f"p{number}": make.stamp() for number in range(pending)}
    result = eviction_decision(web(), [budget(status={"disruptionsAllowed": 1, "disruptedPods": evicted})], make.NOW)
    assert (result.refusal and result.refusal.code) == code
    if result.refusal is not None:
        cause = "does not allow evicting pods currently: too many pending evictions not confirmed by PDB controller"
        assert result.refusal.cause == f"The disruption budget b {cause}"


def test_budget_with_failed_sync_reports_reason() -> None:
    condition = make.condition("DisruptionAllowed", False, reason="SyncFailed", message="no scale")
    reported = refusal(budget(status={"disruptionsAllowed": 0, "conditions": [condition]}))
    assert reported.cause.endswith("does not allow evicting pods currently because it failed sync: no scale")


def test_eviction_of_pod_with_two_budgets_fails() -> None:
    two = [budget("a", status={"disruptionsAllowed": 1}), budget("b", status={"disruptionsAllowed": 1})]
    result = eviction_decision(web(), two, make.NOW).refusal
    assert result is not None
    assert result.code == 500


@pytest.mark.parametrize(
    "asked",
    [
        web(status={"phase": "Pending"}),
        web(status={"phase": "Succeeded"}),
        pod(status=running()),
        web() | {"metadata": {**web()["metadata"], "deletionTimestamp": make.stamp()}},
    ],
)
def test_eviction_of_pod_without_applicable_budget_is_allowed(asked: Any) -> None:
    assert eviction_decision(asked, [budget(status={"disruptionsAllowed": 0})], make.NOW) == (None, None)


def test_eviction_of_unready_pod_is_allowed_if_enough_pods_are_healthy() -> None:
    unready = web(ready=False)
    none_left = {"disruptionsAllowed": 0, "desiredHealthy": 2}
    assert eviction_decision(unready, [budget(status={**none_left, "currentHealthy": 2})], make.NOW) == (None, None)
    assert refusal(budget(status={**none_left, "currentHealthy": 1}), unready).code == 429
    always = budget(status={**none_left, "currentHealthy": 1}, unhealthyPodEvictionPolicy="AlwaysAllow")
    assert eviction_decision(unready, [always], make.NOW) == (None, None)


def pod_on_node(name: str, node_name: str = "n", priority: int = 0, labels: Any = None) -> Any:
    return placement_make.pod(name, nodeName=node_name, priority=priority, labels=labels)


def victims(nodes: ClusterSnapshot, cpu: str) -> tuple[str, list[str]]:
    request = view(placement_make.pod("p", cpu=cpu, priority=5))
    placement = find_node(request, nodes)
    assert isinstance(placement, Unschedulable)
    result = find_preemption(request, nodes, placement.obstacles)
    assert isinstance(result, PodPreemption), result
    return result.node, [victim.name for victim in result.victims]


def test_pod_with_exhausted_budget_is_preempted_last() -> None:
    nodes = cluster(node(cpu="2"), pod_on_node("guarded", labels=LABELS), pod_on_node("more", priority=3))
    assert victims(nodes, "1") == ("n", ["guarded"])
    nodes.budgets.set(budget(status={"disruptionsAllowed": 0}))
    assert victims(nodes, "1") == ("n", ["more"])
    assert victims(nodes, "2") == ("n", ["more", "guarded"])


def test_preemption_prefers_node_without_budget_violation() -> None:
    nodes = cluster(
        node("a", cpu="1"), node("b", cpu="1"), pod_on_node("x", "a", labels=LABELS), pod_on_node("y", "b", 3)
    )
    nodes.budgets.set(budget(status={"disruptionsAllowed": 0}))
    assert victims(nodes, "1") == ("b", ["y"])
    nodes.budgets.set(budget(status={"disruptionsAllowed": 1}))
    assert victims(nodes, "1") == ("a", ["x"])
    nodes.budgets.set(budget(status={"disruptionsAllowed": 0, "disruptedPods": {"x": make.stamp()}}))
    assert victims(nodes, "1") == ("a", ["x"])
    nodes.budgets.remove(key_of(budget()))
    assert not nodes.budgets
