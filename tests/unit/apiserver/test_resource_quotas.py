"""ResourceQuotas: the requests that they reject, and the messages."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key
from unit.apiserver.api import Api, config_map

PODS = "/api/v1/namespaces/team/pods"
CLAIMS = "/api/v1/namespaces/team/persistentvolumeclaims"
OVER = 'pods "second" is forbidden: exceeded quota: q, requested: '


@pytest.fixture
def api() -> Api:
    return Api()


def limit_namespace(api: Api, hard: Any, *, name: str = "q", scopes: Any = None) -> None:
    """Create a ResourceQuota in the Namespace."""
    spec: dict[str, Any] = {"hard": hard}
    spec |= {"scopes": scopes} if isinstance(scopes, list) else {"scopeSelector": scopes} if scopes else {}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}, "spec": spec}
    api.post("/api/v1/namespaces/team/resourcequotas", quota)


def pod(name: str, requests: Any = None, limits: Any = None, **spec: Any) -> dict[str, Any]:
    resources = {"requests": requests or {}, "limits": limits or {}}
    container = {"name": "c", "image": "i", "resources": {field: each for field, each in resources.items() if each}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def refusal(api: Api, obj: Any, path: str = PODS) -> str:
    response = api.ask("POST", path, obj)
    assert response.code == 403, response
    return str(response.body["message"])


def test_quota_is_released_when_pod_is_deleted(api: Api) -> None:
    limit_namespace(api, {"requests.cpu": "2", "pods": 5})
    api.post(PODS, pod("first", {"cpu": "1500m"}))
    reported = f"{OVER}requests.cpu=1, used: requests.cpu=1500m, limited: requests.cpu=2"
    assert refusal(api, pod("second", {"cpu": "1"})) == reported
    api.ask("DELETE", f"{PODS}/first")
    api.post(PODS, pod("second", {"cpu": "1"}))


def test_dry_run_is_checked_against_quota_but_uses_none(api: Api) -> None:
    limit_namespace(api, {"pods": 1})
    assert api.ask("POST", f"{PODS}?dryRun=All", pod("first")).code == 201
    api.post(PODS, pod("first"))
    assert api.ask("POST", f"{PODS}?dryRun=All", pod("second")).code == 403


def test_succeeded_pod_uses_only_object_count(api: Api) -> None:
    api.post(PODS, pod("first", {"cpu": "2"}))
    limit_namespace(api, {"cpu": "2", "count/pods": 2})
    ended = {**api.get(f"{PODS}/first"), "status": {"phase": "Succeeded"}}
    assert api.ask("PUT", f"{PODS}/first/status", ended).code == 200
    api.post(PODS, pod("second", {"cpu": "2"}))
    reported = "exceeded quota: q, requested: count/pods=1,cpu=1, used: count/pods=2,cpu=2, limited: count/pods=2,cpu=2"
    assert refusal(api, pod("third", {"cpu": "1"})).endswith(reported)


def test_containers_must_specify_cpu_and_memory_under_quota(api: Api) -> None:
    limit_namespace(api, {"cpu": "2", "limits.memory": "1Gi", "requests.storage": 1, "requests.nvidia.com/gpu": 1})
    reported = "failed quota: q: must specify cpu for: c; limits.memory for: c"
    assert refusal(api, pod("first")) == f'pods "first" is forbidden: {reported}'


def test_quota_limits_requested_devices(api: Api) -> None:
    limit_namespace(api, {"requests.nvidia.com/gpu": 4})
    gpus = {"nvidia.com/gpu": "3"}
    api.post(PODS, pod("first", gpus, gpus))
    reported = "requests.nvidia.com/gpu=3, used: requests.nvidia.com/gpu=3, limited: requests.nvidia.com/gpu=4"
    assert refusal(api, pod("second", gpus, gpus)) == OVER + reported


def test_quota_message_keeps_memory_units(api: Api) -> None:
    limit_namespace(api, {"requests.memory": "1Gi"})
    api.post(PODS, pod("first", {"memory": "512Mi"}))
    reported = "requests.memory=768Mi, used: requests.memory=512Mi, limited: requests.memory=1Gi"
    assert refusal(api, pod("second", {"memory": "768Mi"})) == OVER + reported


@pytest.mark.parametrize(
    ("scopes", "within", "without"),
    [
        (["BestEffort"], {}, {"requests": {"cpu": "1"}}),
        (["NotBestEffort"], {"requests": {"cpu": "1"}}, {}),
        (["Terminating"], {"activeDeadlineSeconds": 5}, {}),
        (["NotTerminating"], {}, {"activeDeadlineSeconds": 5}),
        (["PriorityClass"], {"priorityClassName": "system-node-critical"}, {}),
    ],
)
def test_quota_applies_to_pods_in_its_scopes(api: Api, scopes: Any, within: Any, without: Any) -> None:
    limit_namespace(api, {"pods": 0}, scopes=scopes)
    api.post(PODS, pod("first", **without))
    assert "exceeded quota: q" in refusal(api, pod("second", **within))


def test_quota_scope_selector_matches_priority_classes(api: Api) -> None:
    name = "system-cluster-critical"
    expression = {"scopeName": "PriorityClass", "operator": "NotIn", "values": [name]}
    limit_namespace(api, {"pods": 0}, scopes={"matchExpressions": [expression]})
    api.post(PODS, pod("first", priorityClassName=name))
    assert "exceeded quota: q" in refusal(api, pod("second"))


def test_pod_update_that_enters_scope_is_checked_against_quota(api: Api) -> None:
    limit_namespace(api, {"pods": 0}, scopes=["Terminating"])
    api.post(PODS, pod("first"))
    response = api.ask("PATCH", f"{PODS}/first", {"spec": {"activeDeadlineSeconds": 5}}, headers=MERGE)
    assert response.code == 403
    assert response.body["message"].endswith("exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0")


MERGE = {"content-type": "application/merge-patch+json"}


def test_service_type_update_is_checked_against_quota(api: Api) -> None:
    path = "/api/v1/namespaces/team/services"
    limit_namespace(api, {"services": 1, "services.loadbalancers": 0})
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}
    api.post(path, service)
    response = api.ask("PATCH", f"{path}/s", {"spec": {"type": "LoadBalancer"}}, headers=MERGE)
    assert response.code == 403
    assert "requested: services.loadbalancers=1, used: services.loadbalancers=0" in response.body["message"]


def test_quota_counts_objects_of_any_kind(api: Api) -> None:
    path = "/api/v1/namespaces/team/configmaps"
    limit_namespace(api, {"configmaps": 1, "count/jobs.batch": 0})
    api.post(path, config_map("first"))
    reported = "exceeded quota: q, requested: configmaps=1, used: configmaps=1, limited: configmaps=1"
    assert refusal(api, config_map("second"), path) == f'configmaps "second" is forbidden: {reported}'
    container = {"name": "c", "image": "i"}
    spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}
    reported = "exceeded quota: q, requested: count/jobs.batch=1, used: count/jobs.batch=0, limited: count/jobs.batch=0"
    assert refusal(api, job, "/apis/batch/v1/namespaces/team/jobs") == f'jobs.batch "j" is forbidden: {reported}'


def claim(name: str, storage: str = "1Gi", **fields: Any) -> dict[str, Any]:
    """A PersistentVolumeClaim; keywords are other fields of its spec."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}, **fields}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("resource", ["persistentvolumeclaims", "count/persistentvolumeclaims"])
def test_quota_limits_number_of_claims(api: Api, resource: str) -> None:
    limit_namespace(api, {resource: 1})
    api.post(CLAIMS, claim("first"))
    reported = f"exceeded quota: q, requested: {resource}=1, used: {resource}=1, limited: {resource}=1"
    assert refusal(api, claim("second"), CLAIMS) == f'persistentvolumeclaims "second" is forbidden: {reported}'
    api.ask("DELETE", f"{CLAIMS}/first")
    api.post(CLAIMS, claim("second"))


def test_quota_limits_requested_storage_in_total_and_by_storage_class(api: Api) -> None:
    gold = "gold.storageclass.storage.k8s.io/"
    limit_namespace(api, {"requests.storage": "10Gi", f"{gold}requests.storage": "3Gi"})
    api.post(CLAIMS, claim("first", "2Gi", storageClassName="gold"))
    reported = f"{gold}requests.storage=2Gi, used: {gold}requests.storage=2Gi, limited: {gold}requests.storage=3Gi"
    message = refusal(api, claim("second", "2Gi", storageClassName="gold"), CLAIMS)
    assert message.endswith(f"exceeded quota: q, requested: {reported}")
    api.post(CLAIMS, claim("second", "2Gi"))
    assert "requests.storage=7Gi, used: requests.storage=4Gi" in refusal(api, claim("third", "7Gi"), CLAIMS)


def test_expansion_of_claim_is_rejected_before_the_quota_is_checked(api: Api) -> None:
    limit_namespace(api, {"requests.storage": "3Gi"})
    api.post(CLAIMS, claim("first", "2Gi"))
    response = api.ask("PUT", f"{CLAIMS}/first", claim("first", "4Gi"))
    assert response.code == 403
    assert "Only bound persistent volume claims can be expanded" in response.body["message"]


def test_quota_limits_replication_controllers(api: Api) -> None:
    path = "/api/v1/namespaces/team/replicationcontrollers"
    template = {"metadata": {"labels": {"a": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    limit_namespace(api, {"replicationcontrollers": 1})
    api.post(path, {"metadata": {"name": "first"}, "spec": {"template": template}})
    rejected = refusal(api, {"metadata": {"name": "second"}, "spec": {"template": template}}, path)
    assert "exceeded quota: q, requested: replicationcontrollers=1, used: replicationcontrollers=1" in rejected


def test_first_exceeded_quota_is_reported(api: Api) -> None:
    limit_namespace(api, {"pods": 5}, name="a")
    limit_namespace(api, {"pods": 0}, name="b")
    limit_namespace(api, {"pods": 0}, name="c")
    assert "exceeded quota: b" in refusal(api, pod("first"))
    api.ask("DELETE", "/api/v1/namespaces/team/resourcequotas/b")
    assert "exceeded quota: c" in refusal(api, pod("first"))


def test_terminating_pod_past_its_grace_period_uses_no_quota(api: Api) -> None:
    limit_namespace(api, {"pods": 1})
    api.post(PODS, pod("first", nodeName="lost"))
    api.ask("DELETE", f"{PODS}/first")
    assert api.stored.get(Key(scheme.POD, "team", "first")) is not None
    assert "exceeded quota" in refusal(api, pod("second"))
    api.pass_time(61)
    api.post(PODS, pod("second"))


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"hard": {"foo": 1}}, "must be a standard resource for quota"),
        ({"hard": {"pods": "500m"}}, "must be an integer"),
        ({"hard": {"cpu": "-1"}}, "must be greater than or equal to 0"),
        ({"hard": {"services": 1}, "scopes": ["BestEffort"]}, "unsupported scope applied to resource"),
        ({"hard": {"pods": 1}, "scopes": ["Terminating", "NotTerminating"]}, "conflicting scopes"),
        (
            {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}},
            "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        ),
    ],
)
def test_invalid_quota_is_rejected(api: Api, spec: Any, fault: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": spec}
    response = api.ask("POST", "/api/v1/namespaces/team/resourcequotas", quota)
    assert response.code == 422
    assert fault in response.body["message"]
