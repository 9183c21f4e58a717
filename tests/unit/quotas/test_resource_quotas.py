"""Status of ResourceQuotas, and root certificates in Namespaces."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.housekeeping.controllers import RootCertificates
from batchyard.quotas.resource_quotas import ResourceQuotas
from stage import Stage
from unit.nodes.node_make import pod, running

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}


def quota(**hard: Any) -> dict[str, Any]:
    metadata = make.metadata("q")
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


def used(stage: Stage) -> Any:
    return stage.get(scheme.RESOURCE_QUOTA, "q")["status"]["used"]


def test_quota_status_counts_existing_created_and_failed_objects() -> None:
    stage = Stage(ResourceQuotas())
    stage.put(pod("a", status=running()))
    stage.put(quota(pods=3, configmaps=1))
    assert stage.get(scheme.RESOURCE_QUOTA, "q")["status"]["hard"] == {"pods": 3, "configmaps": 1}
    assert used(stage) == {"pods": "1", "configmaps": "0"}
    stage.put(pod("b", status=running()))
    assert used(stage)["pods"] == "2"
    stage.put(pod("a", status={"phase": "Failed"}))
    assert used(stage)["pods"] == "1"
    stage.put(quota(pods=3, secrets=1))
    assert used(stage) == {"pods": "1", "secrets": "0"}


def test_quota_status_omits_pod_after_its_grace_period() -> None:
    stage = Stage(ResourceQuotas())
    stage.put(quota(pods=1), pod("a", status=running()))
    stage.delete(scheme.POD, "a")
    assert used(stage) == {"pods": "1"}
    stage.run(61)
    assert used(stage) == {"pods": "0"}


def test_quota_counts_custom_resources_once_they_are_served() -> None:
    stage = Stage(ResourceQuotas())
    stage.put(quota(**{"count/rockets.example.com": 5}))
    assert used(stage) == {}
    spec = {
        "group": "example.com",
        "names": {"plural": "rockets", "kind": "Rocket"},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True}],
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": make.metadata("rockets.example.com", None),
        "spec": spec,
        "status": {"conditions": [make.condition("Established")]},
    }
    stage.put({"apiVersion": "example.com/v1", "kind": "Rocket", "metadata": make.metadata("r")})
    stage.put(definition)
    assert used(stage) == {"count/rockets.example.com": "1"}


def test_root_certificate_is_created_and_restored_in_namespace() -> None:
    stage = Stage(RootCertificates("PEM"))
    stage.put(NAMESPACE)
    assert stage.get(scheme.CONFIG_MAP, "kube-root-ca.crt")["data"] == {"ca.crt": "PEM"}
    stage.delete(scheme.CONFIG_MAP, "kube-root-ca.crt")
    made = stage.get(scheme.CONFIG_MAP, "kube-root-ca.crt")
    stage.put({**made, "data": {"ca.crt": "another"}})
    assert stage.get(scheme.CONFIG_MAP, "kube-root-ca.crt")["data"] == {"ca.crt": "PEM"}
