"""Default ServiceAccounts of Namespaces, and aggregated ClusterRoles."""

from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.housekeeping.controllers import ClusterRoleAggregation, ServiceAccounts
from stage import Stage
from unit.apiserver.roles import role, rule

ACCOUNT = Key(scheme.SERVICE_ACCOUNT, "team", "default")
NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
PODS, SECRETS = rule("get", "pods"), rule("get", "secrets")


def test_deleted_default_service_account_is_recreated() -> None:
    stage = Stage(ServiceAccounts())
    stage.put(NAMESPACE)
    first = stage.get(scheme.SERVICE_ACCOUNT, "default")["metadata"]["uid"]
    stage.delete(scheme.SERVICE_ACCOUNT, "default")
    assert stage.get(scheme.SERVICE_ACCOUNT, "default")["metadata"]["uid"] != first


def test_terminating_namespace_gets_no_service_account() -> None:
    stage = Stage(ServiceAccounts())
    stage.put({**NAMESPACE, "metadata": {"name": "team", "finalizers": ["kubernetes"]}})
    stage.delete(scheme.NAMESPACE, "team", "")
    stage.delete(scheme.SERVICE_ACCOUNT, "default")
    assert stage.client.get(ACCOUNT) is None


def aggregation_of(label: str) -> dict[str, Any]:
    return {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}


def rules(stage: Stage, name: str) -> Any:
    return stage.get(scheme.CLUSTER_ROLE, name, "")["rules"]


def test_aggregated_cluster_role_has_rules_of_selected_roles() -> None:
    stage = Stage(ClusterRoleAggregation())
    labeled = {"labels": {"small": "true"}}
    stage.put(role("all", aggregationRule=aggregation_of("large")))
    stage.put(role("some", aggregationRule=aggregation_of("small"), metadata={"labels": {"large": "true"}}))
    stage.put(role("a", PODS, metadata=labeled), role("b", SECRETS, PODS, metadata=labeled))
    assert rules(stage, "some") == rules(stage, "all") == [PODS, SECRETS]
    stage.delete(scheme.CLUSTER_ROLE, "a", "")
    assert rules(stage, "all") == [SECRETS, PODS]
    stage.delete(scheme.CLUSTER_ROLE, "b", "")
    assert rules(stage, "all") == []
