"""Status of ResourceQuotas, and root certificates in Namespaces."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import NANO, key_of
from batchyard.housekeeping.controllers import RootCertificates
from batchyard.interfaces.client import Create, Delete, WriteResult
from batchyard.quotas.resource_quotas import ResourceQuotas, has_active_deadline, object_usage
from stage import Stage
from unit.nodes.node_make import pod, running

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}


def quota(**hard: Any) -> dict[str, Any]:
    metadata = make.metadata("q")
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


def used_quota(stage: Stage) -> Any:
    return stage.get(scheme.RESOURCE_QUOTA, "q")["status"]["used"]


def test_pod_with_any_deadline_is_in_scope_terminating() -> None:
    assert not has_active_deadline(pod())
    assert has_active_deadline(pod(activeDeadlineSeconds=0))


def test_quota_status_counts_existing_created_and_failed_objects() -> None:
    stage = Stage(ResourceQuotas())
    stage.put(pod("a", status=running()))
    stage.put(quota(pods=3, configmaps=1))
    assert stage.get(scheme.RESOURCE_QUOTA, "q")["status"]["hard"] == {"pods": 3, "configmaps": 1}
    assert used_quota(stage) == {"pods": "1", "configmaps": "0"}
    stage.put(pod("b", status=running()))
    assert used_quota(stage)["pods"] == "2"
    stage.put(pod("a", status={"phase": "Failed"}))
    assert used_quota(stage)["pods"] == "1"
    stage.put(quota(pods=3, secrets=1))
    assert used_quota(stage) == {"pods": "1", "secrets": "0"}


def test_quota_status_omits_pod_after_its_grace_period() -> None:
    stage = Stage(ResourceQuotas())
    stage.put(quota(pods=1), pod("a", status=running()))
    stage.delete(scheme.POD, "a")
    assert used_quota(stage) == {"pods": "1"}
    stage.run(61)
    assert used_quota(stage) == {"pods": "0"}


def requesting(requests: Mapping[str, str], limits: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod of one container with these resources; keywords are other fields of its spec."""
    resources = {"requests": dict(requests), "limits": dict(limits or {})}
    return pod(containers=[{"name": "c", "image": "i", "resources": resources}], **spec)


def test_quota_adds_pod_overhead_to_requests_and_existing_limits() -> None:
    stage = Stage(ResourceQuotas())
    hard = dict.fromkeys(("requests.cpu", "limits.cpu", "requests.memory", "limits.memory"), 8)
    overhead = {"cpu": "250m", "memory": "10Mi"}
    stage.put(quota(**hard), requesting({"cpu": "1"}, {"cpu": "2"}, overhead=overhead))
    expected = {"requests.cpu": "1250m", "limits.cpu": "2250m", "requests.memory": "10485760", "limits.memory": "0"}
    assert used_quota(stage) == expected


def test_pods_use_quota_of_extended_but_not_of_other_native_resources() -> None:
    usage = object_usage(requesting({"nvidia.com/gpu": "2", "example.kubernetes.io/card": "1"}), scheme.POD, ())
    assert usage == {"count/pods": NANO, "pods": NANO, "requests.nvidia.com/gpu": 2 * NANO}


@pytest.mark.parametrize(
    ("spec", "status", "amount"),
    [
        ({"resources": {"requests": {"storage": "2Gi"}}}, {}, 2 * 2**30),
        ({"resources": {"requests": {"storage": "1500m"}}}, {}, 2),
        ({"resources": {"requests": {"storage": "5"}}}, {"allocatedResources": {"storage": "7"}}, 7),
        ({"resources": {"requests": {"storage": "9"}}}, {"allocatedResources": {"storage": "7"}}, 9),
        ({}, {}, None),
    ],
)
def test_claim_uses_requested_or_allocated_storage_of_its_class(spec: Any, status: Any, amount: int | None) -> None:
    annotations = {"volume.beta.kubernetes.io/storage-class": "old"}
    kind, counts = scheme.PERSISTENT_VOLUME_CLAIM, {"count/persistentvolumeclaims": 1, "persistentvolumeclaims": 1}
    storage = {} if amount is None else {"requests.storage": amount}
    for metadata, fields, name in (({}, {"storageClassName": "new"}, "new"), ({"annotations": annotations}, {}, "old")):
        usage = object_usage({"metadata": metadata, "spec": {**spec, **fields}, "status": status}, kind, ())
        by_class = {"persistentvolumeclaims": 1, **storage}
        prefix = f"{name}.storageclass.storage.k8s.io/"
        expected = counts | storage | {prefix + each: by_class[each] for each in by_class}
        assert usage == {each: value * NANO for each, value in expected.items()}
    assert object_usage({"metadata": {}, "spec": spec, "status": status}, kind, ()).keys() == {*counts, *storage}


def affinity(kind: str, *, preferred: bool = False, **term: Any) -> dict[str, Any]:
    """The affinity of a pod with one term."""
    term = {"topologyKey": "zone", **term}
    if preferred:
        return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


HIGH = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
ANY_CLASS = {"scopeName": "PriorityClass", "operator": "Exists"}
CROSS = {"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"}


@pytest.mark.parametrize(
    ("scope", "spec", "expected"),
    [
        (HIGH, {"priorityClassName": "high"}, "1"),
        (HIGH, {"priorityClassName": "low"}, "0"),
        (HIGH, {}, "0"),
        (ANY_CLASS, {"priorityClassName": "low"}, "1"),
        (ANY_CLASS, {}, "0"),
        (CROSS, {}, "0"),
        (CROSS, {"affinity": affinity("podAffinity")}, "0"),
        (CROSS, {"affinity": affinity("podAffinity", namespaces=["other"])}, "1"),
        (CROSS, {"affinity": affinity("podAntiAffinity", preferred=True, namespaceSelector={})}, "1"),
        (CROSS, {"affinity": affinity("podAntiAffinity", preferred=True)}, "0"),
    ],
)
def test_scope_selects_pods_that_count_for_quota(scope: Any, spec: Any, expected: str) -> None:
    stage = Stage(ResourceQuotas())
    limited = quota(pods=3)
    limited["spec"]["scopeSelector"] = {"matchExpressions": [scope]}
    stage.put(limited, pod(status=running(), **spec))
    assert used_quota(stage) == {"pods": expected}


def test_quota_deleted_before_its_status_is_written_stays_deleted() -> None:
    stage = Stage(ResourceQuotas())
    results: list[WriteResult] = []
    key = key_of(quota(pods=1))
    stage.client.submit([Create(quota(pods=1)), Delete(key)], results.append)
    stage.put(pod(status=running()))
    assert (stage.client.get(key), [each.error for each in results]) == (None, [None])


def test_quota_counts_custom_resources_once_they_are_served() -> None:
    stage = Stage(ResourceQuotas())
    stage.put(quota(**{"count/rockets.example.com": 5}))
    assert used_quota(stage) == {}
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
    assert used_quota(stage) == {"count/rockets.example.com": "1"}


def test_root_certificate_is_created_and_restored_in_namespace() -> None:
    stage = Stage(RootCertificates("PEM"))
    stage.put(NAMESPACE)
    assert stage.get(scheme.CONFIG_MAP, "kube-root-ca.crt")["data"] == {"ca.crt": "PEM"}
    stage.delete(scheme.CONFIG_MAP, "kube-root-ca.crt")
    created = stage.get(scheme.CONFIG_MAP, "kube-root-ca.crt")
    stage.put({**created, "data": {"ca.crt": "another"}})
    assert stage.get(scheme.CONFIG_MAP, "kube-root-ca.crt")["data"] == {"ca.crt": "PEM"}
