"""ServiceAccounts of Namespaces, and ClusterRoles that are made of others."""

from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.housekeeping.controllers import ClusterRoleAggregation, ServiceAccounts
from stage import Stage
from unit.apiserver.roles import role, rule

ACCOUNT = Key(scheme.SERVICE_ACCOUNT, "team", "default")
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
PODS, SECRETS = rule("get", "pods"), rule("get", "secrets")


def test_a_namespace_has_a_service_account_again_and_again() -> None:
    stage = Stage(ServiceAccounts())
    stage.put(NAMESPACE)
    first = stage.get(scheme.SERVICE_ACCOUNT, "default")["metadata"]["uid"]
    stage.delete(scheme.SERVICE_ACCOUNT, "default")
    assert stage.get(scheme.SERVICE_ACCOUNT, "default")["metadata"]["uid"] != first


def test_a_namespace_that_goes_has_none() -> None:
    stage = Stage(ServiceAccounts())
    stage.put({**NAMESPACE, "metadata": {"name": "team", "finalizers": ["kubernetes"]}})
    stage.delete(scheme.NAMESPACE, "team", "")
    stage.delete(scheme.SERVICE_ACCOUNT, "default")
    assert stage.client.get(ACCOUNT) is None


def made_of(label: str) -> dict[str, Any]:
    return {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}


def rules(stage: Stage, name: str) -> Any:
    return stage.get(scheme.CLUSTER_ROLE, name, "")["rules"]


def test_a_role_has_the_rules_of_those_it_is_made_of() -> None:
    stage = Stage(ClusterRoleAggregation())
    labelled = {"labels": {"small": "true"}}
    stage.put(role("all", aggregationRule=made_of("large")))
    stage.put(role("some", aggregationRule=made_of("small"), metadata={"labels": {"large": "true"}}))
    stage.put(role("a", PODS, metadata=labelled), role("b", SECRETS, PODS, metadata=labelled))
    assert rules(stage, "some") == rules(stage, "all") == [PODS, SECRETS]
    stage.delete(scheme.CLUSTER_ROLE, "a", "")
    assert rules(stage, "all") == [SECRETS, PODS]
    stage.delete(scheme.CLUSTER_ROLE, "b", "")
    assert rules(stage, "all") == []
