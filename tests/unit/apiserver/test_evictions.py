"""Evictions set the condition DisruptionTarget and delete the pod with its grace period."""

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key, find_condition
from unit.apiserver.api import Api
from unit.nodes.node_make import pod, running

POD = Key(scheme.POD, "team", "pod")
PATH = "/api/v1/namespaces/team/pods/pod/eviction"


@pytest.fixture
def api() -> Api:
    """An API with a running pod."""
    api = Api()
    api.stored.store.put(POD, pod(status=running()))
    return api


def eviction(name: str = "pod", **options: object) -> dict[str, object]:
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}


def test_eviction_sets_condition_and_grace_period(api: Api) -> None:
    assert api.ask("POST", PATH, eviction()).code == 201
    left = api.stored.store.get(POD)
    assert left is not None
    assert (find_condition(left, "DisruptionTarget") or {})["reason"] == "EvictionByEvictionAPI"
    assert left["metadata"]["deletionGracePeriodSeconds"] == 30


def test_eviction_with_dry_run_option_changes_nothing(api: Api) -> None:
    assert api.ask("POST", PATH, eviction(dryRun=["All"])).code == 201
    assert "deletionTimestamp" not in api.stored.store.list(scheme.POD)[0]["metadata"]


def test_eviction_with_dry_run_query_changes_nothing(api: Api) -> None:
    for sent in (eviction(dryRun=[]), eviction(), {**eviction(), "apiVersion": "policy/v1beta1"}):
        assert api.ask("POST", f"{PATH}?dryRun=All", sent).code == 201
    assert api.ask("POST", f"{PATH}?dryRun=Some", eviction()).code == 422
    assert "deletionTimestamp" not in api.stored.store.list(scheme.POD)[0]["metadata"]


def test_eviction_deletes_succeeded_pod_at_once(api: Api) -> None:
    api.stored.store.put(POD, pod(status={"phase": "Succeeded"}))
    assert api.ask("POST", PATH, eviction()).code == 201
    assert api.stored.store.get(POD) is None


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (eviction("other"), 400),
        ({"kind": "Pod"}, 400),
        ([], 400),
        ({}, 400),
        ({**eviction(), "apiVersion": "v1"}, 400),
        ({**eviction(), "metadata": {"name": "pod", "namespace": "other"}}, 400),
        ({**eviction(), "deleteOptions": []}, 400),
        (eviction(preconditions={"uid": "another"}), 409),
        (eviction(dryRun=["Some"]), 422),
    ],
)
def test_invalid_eviction_is_rejected(api: Api, sent: object, code: int) -> None:
    assert api.ask("POST", PATH, sent).code == code
    assert api.ask("POST", PATH.replace("pods/pod", "pods/none"), eviction("none")).code == 404


BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "b"},
    "spec": {"minAvailable": 1, "selector": {}},
}


def guard(api: Api, name: str = "b", **status: object) -> None:
    """Create a PodDisruptionBudget for all pods with that status."""
    path = "/apis/policy/v1/namespaces/team/poddisruptionbudgets"
    created = api.post(path, {**BUDGET, "metadata": {"name": name}})
    reported = {**created, "status": {"observedGeneration": 1, "expectedPods": 1, **status}}
    for field in ("currentHealthy", "desiredHealthy", "disruptionsAllowed"):
        reported["status"].setdefault(field, 0)
    assert api.ask("PUT", f"{path}/{name}/status", reported).code == 200


def test_eviction_is_rejected_after_disruption_budget_is_used_up(api: Api) -> None:
    guard(api, disruptionsAllowed=1, currentHealthy=2, desiredHealthy=1)
    assert api.ask("POST", PATH, eviction(dryRun=["All"])).code == 201
    assert api.ask("POST", PATH, eviction()).code == 201
    other = Key(scheme.POD, "team", "other")
    api.stored.store.put(other, pod("other", status=running()))
    response = api.ask("POST", PATH.replace("pods/pod", "pods/other"), eviction("other"))
    assert (response.code, response.body["reason"], response.retry_after) == (429, "TooManyRequests", None)
    reported = "The disruption budget b does not allow evicting pods currently"
    assert response.body["details"]["causes"] == [{"reason": "DisruptionBudget", "message": reported}]
    left = api.stored.store.get(other)
    assert left is not None
    assert find_condition(left, "DisruptionTarget") is None


def test_eviction_before_budget_is_observed_returns_retry_after(api: Api) -> None:
    guard(api, observedGeneration=0, disruptionsAllowed=1)
    response = api.ask("POST", PATH, eviction())
    assert (response.code, response.retry_after) == (429, 10)


def test_eviction_of_pod_with_two_budgets_is_rejected(api: Api) -> None:
    guard(api, disruptionsAllowed=1)
    guard(api, "c", disruptionsAllowed=1)
    response = api.ask("POST", PATH, eviction())
    reported = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    assert (response.code, response.body["message"]) == (500, reported)


def test_eviction_with_old_resource_version_is_rejected(api: Api) -> None:
    response = api.ask("POST", PATH, eviction(preconditions={"resourceVersion": "1"}))
    assert "the ResourceVersion in the precondition (1) does not match" in response.body["message"]
