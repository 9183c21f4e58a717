"""Immutable fields are compared by meaning: clients write objects back with other defaults and units."""

from collections.abc import Mapping
from typing import Any

import pytest

from object_edits import with_edits
from unit.apiserver.api import Api

CONTAINER: dict[str, Any] = {
    "name": "c",
    "image": "busybox:1",
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": False}],
}
POD_SPEC: dict[str, Any] = {
    "restartPolicy": "Never",
    "containers": [CONTAINER],
    "volumes": [{"name": "v", "emptyDir": {}}],
}
JOB: dict[str, Any] = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "a"},
    "spec": {"suspend": True, "template": {"spec": POD_SPEC}},
}
JOB_SET: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "a"},
    "spec": {
        "suspend": True,
        "replicatedJobs": [{"name": "r", "template": {"spec": {"template": {"spec": POD_SPEC}}}}],
    },
}
POD: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": POD_SPEC}
STATEFUL_SET: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "metadata": {"name": "a"},
    "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {**POD_SPEC, "restartPolicy": "Always"}},
        "volumeClaimTemplates": [
            {
                "metadata": {"name": "d"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        ],
    },
}
PATHS = {
    "Job": "/apis/batch/v1/namespaces/default/jobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets",
    "Pod": "/api/v1/namespaces/default/pods",
    "StatefulSet": "/apis/apps/v1/namespaces/default/statefulsets",
    "Workload": "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads",
}
#: The path of the pod template of a kind.
TEMPLATES = {
    "Job": "spec.template",
    "JobSet": "spec.replicatedJobs[0].template.spec.template",
    "Workload": "spec.podSets[0].template",
}
#: Changes below a pod template that do not change its meaning.
EQUIVALENT = [
    pytest.param({"metadata": {"creationTimestamp": None}}, id="metadata without a creation time"),
    pytest.param({"metadata": {"labels": {}, "annotations": {}}}, id="empty labels"),
    pytest.param({"spec.containers[0].resources.limits": {}}, id="empty limits"),
    pytest.param({"spec.containers[0].resources.requests.cpu": "1000m"}, id="the same quantity"),
    pytest.param({"spec.containers[0].resources.requests.memory": "1024Mi"}, id="the same size"),
    pytest.param({"spec.containers[0].securityContext": {}}, id="an empty security context of a container"),
    pytest.param({"spec.containers[0].volumeMounts": [{"name": "v", "mountPath": "/v"}]}, id="false dropped"),
    pytest.param({"spec.containers[0].args": []}, id="an empty list"),
    pytest.param({"spec.containers[0].tty": False, "spec.hostNetwork": False}, id="false added"),
    pytest.param({"spec.containers[0].terminationMessagePath": "/dev/termination-log"}, id="a default of a container"),
    pytest.param({"spec.containers[0].imagePullPolicy": "IfNotPresent"}, id="a pull policy"),
    pytest.param({"spec.securityContext": {}}, id="an empty security context"),
    pytest.param({"spec.dnsPolicy": "ClusterFirst", "spec.schedulerName": "default-scheduler"}, id="defaults of a pod"),
    pytest.param({"spec.terminationGracePeriodSeconds": 30}, id="a grace period"),
]
#: Changes below a pod template that change its meaning.
OTHER = [
    pytest.param({"spec.containers[0].image": "busybox:2"}, id="image"),
    pytest.param({"spec.terminationGracePeriodSeconds": 0}, id="grace period"),
    pytest.param({"spec.automountServiceAccountToken": False}, id="false where absence is not false"),
    pytest.param({"spec.dnsPolicy": "Default"}, id="dns"),
    pytest.param({"spec.containers[0].env": [{"name": "A"}]}, id="env"),
    pytest.param({"spec.containers[0].securityContext": {"runAsNonRoot": False}}, id="security context"),
    pytest.param(
        {
            "spec.affinity": {
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a", "namespaceSelector": {}}]
                }
            }
        },
        id="affinity",
    ),
]


#: A webhook refuses a changed Workload.
REFUSED = {"Job": 422, "JobSet": 422, "Workload": 403}


def workload() -> dict[str, Any]:
    """A Workload whose quota is reserved, without requests."""
    spec = {"restartPolicy": "Never", "containers": [CONTAINER], "volumes": POD_SPEC["volumes"]}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "a"},
        "spec": {"queueName": "q", "podSets": [{"name": "main", "count": 1, "template": {"spec": spec}}]},
    }


ADMISSION = {
    "clusterQueue": "q",
    "podSetAssignments": [{"name": "main", "flavors": {}, "resourceUsage": {}, "count": 1}],
}
RESERVED = {
    "type": "QuotaReserved",
    "status": "True",
    "reason": "QuotaReserved",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}


def api_with_object(kind: str) -> tuple[Api, str]:
    """An API with an object of that kind, and the object's path."""
    api = Api()
    sent = {"Job": JOB, "JobSet": JOB_SET, "Pod": POD, "StatefulSet": STATEFUL_SET, "Workload": workload()}[kind]
    path = f"{PATHS[kind]}/{api.post(PATHS[kind], sent)['metadata']['name']}"
    if kind == "Workload":
        stored = api.get(path)
        status = {"admission": ADMISSION, "conditions": [RESERVED]}
        assert api.ask("PUT", f"{path}/status", {**stored, "status": status}).code == 200
    return api, path


def change(api: Api, path: str, template: str, changes: Mapping[str, Any]) -> int:
    """Write an object back with changes below its pod template; the code of the answer."""
    below = {f"{template}.{place}": value for place, value in changes.items()}
    return api.ask("PUT", path, with_edits(api.get(path), below)).code


@pytest.mark.parametrize("changes", EQUIVALENT)
@pytest.mark.parametrize("kind", list(TEMPLATES))
def test_equivalent_pod_template_is_accepted(kind: str, changes: Mapping[str, Any]) -> None:
    api, path = api_with_object(kind)
    assert change(api, path, TEMPLATES[kind], changes) == 200


@pytest.mark.parametrize("changes", OTHER)
@pytest.mark.parametrize("kind", list(TEMPLATES))
def test_changed_pod_template_is_rejected(kind: str, changes: Mapping[str, Any]) -> None:
    api, path = api_with_object(kind)
    assert change(api, path, TEMPLATES[kind], changes) == REFUSED[kind]


def test_admission_without_empty_fields_is_unchanged() -> None:
    api, path = api_with_object("Workload")
    stored = api.get(path)
    written = with_edits(stored, {"status.admission.podSetAssignments": [{"name": "main", "count": 1}]})
    assert api.ask("PUT", f"{path}/status", written).code == 200
    other = with_edits(api.get(path), {"status.admission.podSetAssignments": [{"name": "main", "count": 2}]})
    assert api.ask("PUT", f"{path}/status", other).code == 403


def test_equivalent_pod_spec_is_accepted() -> None:
    api, path = api_with_object("Pod")
    stored = api.get(path)
    bare = with_edits(stored, {"spec.containers[0].securityContext": {}, "spec.hostNetwork": False})
    assert api.ask("PUT", path, bare).code == 200
    assert api.ask("PUT", path, with_edits(api.get(path), {"spec.dnsPolicy": "Default"})).code == 422


def test_equivalent_stateful_set_spec_is_accepted() -> None:
    api, path = api_with_object("StatefulSet")
    stored = api.get(path)
    claims = STATEFUL_SET["spec"]["volumeClaimTemplates"]
    assert (
        api.ask("PUT", path, with_edits(stored, {"spec.volumeClaimTemplates": claims, "spec.serviceName": ""})).code
        == 200
    )
    assert api.ask("PUT", path, with_edits(api.get(path), {"spec.serviceName": "s"})).code == 422
