"""Status of PodDisruptionBudgets, and stale DisruptionTarget conditions of Pods."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, key_of
from batchyard.disruption.controller import DisruptionBudgets
from batchyard.interfaces.client import Create, Delete, EventType, WatchEvent, WriteResult
from stage import Stage, condition_state
from unit.disruption.test_budgets import budget, web
from unit.nodes.node_make import running

OWNED = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "uid-rs", "controller": True}


def status(stage: Stage) -> Any:
    return stage.get(scheme.POD_DISRUPTION_BUDGET, "b")["status"]


def owned_pod(name: str, /, **owner: Any) -> dict[str, Any]:
    created = web(name)
    return {**created, "metadata": {**created["metadata"], "ownerReferences": [{**OWNED, **owner}]}}


def replicas(kind: str, name: str, count: int, **metadata: Any) -> dict[str, Any]:
    about = make.metadata(name, **metadata)
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": about, "spec": {"replicas": count}}


def test_budget_status_follows_its_pods() -> None:
    stage = Stage(DisruptionBudgets())
    stage.put(budget(minAvailable=1))
    assert (status(stage)["expectedPods"], stage.reasons()[0]) == (0, "NoPods")
    stage.put(web("a"), web("b"))
    assert (status(stage)["disruptionsAllowed"], status(stage)["observedGeneration"]) == (1, 1)
    stage.put(web("b", ready=False))
    assert status(stage)["disruptionsAllowed"] == 0
    stage.put(web("b", status={"phase": "Failed"}))
    stage.delete(scheme.POD, "b")
    assert status(stage)["expectedPods"] == 1


def test_percentage_refers_to_replicas_of_pod_controllers() -> None:
    stage = Stage(DisruptionBudgets())
    stage.put(replicas("ReplicaSet", "rs", 4), owned_pod("a"), owned_pod("b"), budget(maxUnavailable="50%"))
    assert (status(stage)["expectedPods"], status(stage)["desiredHealthy"]) == (4, 2)


def test_maximum_unavailable_counts_replicas_of_replication_controller() -> None:
    stage, owner = Stage(DisruptionBudgets()), {"apiVersion": "v1", "kind": "ReplicationController"}
    stage.put({**replicas("ReplicationController", "rs", 3), "apiVersion": "v1"}, owned_pod("a", **owner))
    stage.put(budget(maxUnavailable=1))
    assert status(stage)["expectedPods"] == 3


def test_expected_pods_use_replicas_of_deployment_above_replica_set() -> None:
    stage = Stage(DisruptionBudgets())
    above = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "uid-d", "controller": True}
    stage.put(replicas("Deployment", "d", 6), replicas("ReplicaSet", "rs", 4, ownerReferences=[above]))
    stage.put(owned_pod("a"), budget(maxUnavailable=1))
    assert status(stage)["expectedPods"] == 6


@pytest.mark.parametrize(
    ("owner", "why"),
    [
        ({"apiVersion": "batch/v1", "kind": "Job"}, "jobs.batch does not implement the scale subresource"),
        ({}, 'found no controllers for pod "a"'),
        ({"apiVersion": "example.com/v1", "kind": "R"}, 'no matches for kind "R" in version "example.com/v1"'),
    ],
)
def test_budget_allows_no_disruption_if_expected_pods_are_unknown(owner: Any, why: str) -> None:
    stage = Stage(DisruptionBudgets())
    stage.put(owned_pod("a", **owner), budget(maxUnavailable=1))
    assert status(stage)["disruptionsAllowed"] == 0
    assert condition_state(stage.get(scheme.POD_DISRUPTION_BUDGET, "b"), "DisruptionAllowed") == (
        "False",
        "SyncFailed",
        why,
    )
    assert stage.events[0].message == f"Failed to calculate the number of expected pods: {why}"


def fleets(scale: dict[str, str] | None, *, version: str = "v1", established: bool = True) -> dict[str, Any]:
    """The definition of a custom kind Fleet with this scale subresource in its only version."""
    declared: dict[str, Any] = {"name": version, "served": True, "storage": True}
    if scale is not None:
        declared["subresources"] = {"scale": scale}
    names = {"plural": "fleets", "kind": "Fleet"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": make.metadata("fleets.example.com", None),
        "spec": {"group": "example.com", "names": names, "scope": "Namespaced", "versions": [declared]},
        "status": {"conditions": [make.condition("Established", established)]},
    }


FLEET = {"apiVersion": "example.com/v1", "kind": "Fleet", "name": "f", "uid": "uid-f"}
SCALE = {"specReplicasPath": ".spec.size"}


def fleet_stage(definition: dict[str, Any]) -> Stage:
    """A budget for the pod of a Fleet of size 4."""
    stage = Stage(DisruptionBudgets())
    fleet = {"apiVersion": "example.com/v1", "kind": "Fleet", "metadata": make.metadata("f"), "spec": {"size": 4}}
    stage.put(definition, fleet, owned_pod("a", **FLEET), budget(maxUnavailable="25%"))
    return stage


def test_expected_pods_use_scale_of_custom_resource() -> None:
    stage = fleet_stage(fleets(SCALE))
    assert (status(stage)["expectedPods"], status(stage)["desiredHealthy"]) == (4, 3)


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (fleets(None), "fleets.example.com does not implement the scale subresource"),
        (fleets(SCALE, version="v2"), 'no matches for kind "Fleet" in version "example.com/v1"'),
        (fleets(SCALE, established=False), 'no matches for kind "Fleet" in version "example.com/v1"'),
    ],
)
def test_budget_reports_custom_resource_without_scale(definition: dict[str, Any], why: str) -> None:
    stage = fleet_stage(definition)
    assert condition_state(stage.get(scheme.POD_DISRUPTION_BUDGET, "b"), "DisruptionAllowed") == (
        "False",
        "SyncFailed",
        why,
    )


def test_pods_of_deleted_budget_require_no_reconcile() -> None:
    controller = DisruptionBudgets()
    pod_key = Key(scheme.POD, "team", "a")

    def keys_for(change: EventType, key: Key, obj: dict[str, Any]) -> list[Key]:
        return list(controller.keys_for(WatchEvent(change, key, obj, None, 1), make.NOW))

    key = key_of(budget())
    assert keys_for(EventType.ADDED, key, budget()) == [key]
    assert keys_for(EventType.ADDED, pod_key, web("a")) == [key]
    assert keys_for(EventType.DELETED, key, budget()) == []
    assert keys_for(EventType.ADDED, pod_key, web("a")) == []


def test_budget_deleted_before_its_status_is_written_stays_deleted() -> None:
    stage = Stage(DisruptionBudgets())
    results: list[WriteResult] = []
    stage.client.submit([Create(budget(minAvailable=1)), Delete(key_of(budget()))], results.append)
    stage.settle()
    assert (stage.client.get(key_of(budget())), stage.events, [each.error for each in results]) == (None, [], [None])


def test_budget_reports_event_for_unmanaged_pods() -> None:
    stage = Stage(DisruptionBudgets())
    stage.put(web("a"), budget(maxUnavailable=1))
    shown = "&LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:[]LabelSelectorRequirement{},}"
    assert stage.events[0].message.startswith(
        f"Pods selected by this PodDisruptionBudget (selector: {shown}) were found"
    )


def test_disrupted_pod_that_is_not_deleted_counts_again() -> None:
    stage = Stage(DisruptionBudgets())
    stage.put(web("a"), web("b"), budget(minAvailable=1))
    result = stage.get(scheme.POD_DISRUPTION_BUDGET, "b")
    stage.put({**result, "status": {**result["status"], "disruptedPods": {"a": make.stamp()}}})
    assert status(stage)["currentHealthy"] == 1
    stage.run(121)
    assert status(stage)["currentHealthy"] == 2
    assert "disruptedPods" not in status(stage)
    assert stage.reasons()[-1] == "NotDeleted"


def test_stale_disruption_target_condition_is_reset() -> None:
    stage = Stage(DisruptionBudgets())
    conditions = [*running()["conditions"], make.condition("DisruptionTarget", reason="PreemptionByScheduler")]
    stage.put(web("a", status={"phase": "Running", "conditions": conditions}))
    stage.run(119)
    assert stage.get(scheme.POD, "a")["status"]["conditions"][-1]["status"] == "True"
    stage.run(121)
    marked = stage.get(scheme.POD, "a")["status"]["conditions"][-1]
    assert (marked["status"], "reason" in marked) == ("False", False)


def test_budget_without_spec_selects_no_pods() -> None:
    stage = Stage(DisruptionBudgets())
    bare = budget()
    del bare["spec"]
    stage.put(bare, web("a"))
    assert (status(stage)["expectedPods"], status(stage)["disruptionsAllowed"]) == (0, 0)
