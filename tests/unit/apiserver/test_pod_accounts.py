"""The ServiceAccounts of Pods and their tokens; and that at most one PriorityClass is the default."""

from typing import Any

import pytest

import make
from unit.apiserver.api import Api

PODS = "/api/v1/namespaces/team/pods"
ACCOUNTS = "/api/v1/namespaces/team/serviceaccounts"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


@pytest.fixture
def api() -> Api:
    return Api()


def pod(container: Any = None, metadata: Any = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "i", **(container or {})}]
    about = metadata or {"name": "pod"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {"containers": containers, **spec}}


def account(name: str = "own", **fields: Any) -> dict[str, Any]:
    metadata = {"name": name, "annotations": fields.pop("annotations", {})}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, **fields}


def test_pod_gets_default_service_account_and_token(api: Api) -> None:
    spec = api.post(PODS, pod())["spec"]
    assert spec["serviceAccountName"] == spec["serviceAccount"] == "default"
    (volume,) = spec["volumes"]
    assert volume["name"].startswith("kube-api-access-")
    assert [next(iter(source)) for source in volume["projected"]["sources"]] == [
        *("serviceAccountToken", "configMap", "downwardAPI")
    ]
    mount = {"name": volume["name"], "readOnly": True, "mountPath": PATH}
    assert spec["containers"][0]["volumeMounts"] == [mount]


def test_pod_has_no_token_without_automount(api: Api) -> None:
    api.post(ACCOUNTS, account(automountServiceAccountToken=False, imagePullSecrets=[{"name": "s"}]))
    spec = api.post(PODS, pod(serviceAccountName="own"))["spec"]
    assert "volumes" not in spec
    assert spec["imagePullSecrets"] == [{"name": "s"}]
    other = pod(metadata={"name": "b"}, automountServiceAccountToken=False)
    assert "volumes" not in api.post(PODS, other)["spec"]


def test_token_mount_of_container_is_kept(api: Api) -> None:
    mount = {"name": "v", "mountPath": PATH}
    spec = api.post(PODS, pod({"volumeMounts": [mount]}, volumes=[{"name": "v", "emptyDir": {}}]))["spec"]
    assert spec["containers"][0]["volumeMounts"] == [mount]
    assert len(spec["volumes"]) == 1


def test_pod_with_missing_service_account_is_rejected(api: Api) -> None:
    sent = pod(metadata={"generateName": "pod-"}, serviceAccountName="nobody")
    response = api.ask("POST", PODS, sent)
    reported = 'error looking up service account team/nobody: serviceaccount "nobody" not found'
    assert (response.code, response.body["message"]) == (403, f'pods "pod-" is forbidden: {reported}')


def test_service_account_limits_mountable_secrets(api: Api) -> None:
    enforced = {"kubernetes.io/enforce-mountable-secrets": "true"}
    api.post(ACCOUNTS, account(annotations=enforced, secrets=[{"name": "known"}]))
    other = {"valueFrom": {"secretKeyRef": {"name": "other", "key": "k"}}, "name": "E"}
    response = api.ask("POST", PODS, pod({"env": [other]}, serviceAccountName="own"))
    why = "is not allowed because service account own does not reference that secret"
    reported = f'container c with envVar E referencing secret.secretName="other" {why}'
    assert response.body["message"] == f'pods "pod" is forbidden: {reported}'


def test_mirror_pod_has_no_service_account(api: Api) -> None:
    metadata = {"name": "pod", "annotations": {"kubernetes.io/config.mirror": "x"}}
    assert "serviceAccountName" not in api.post(PODS, pod(metadata=metadata))["spec"]
    metadata["name"] = "second"
    response = api.ask("POST", PODS, pod(metadata=metadata, serviceAccountName="default"))
    assert response.body["message"].endswith("a mirror pod may not reference service accounts")


def test_second_default_priority_class_is_rejected(api: Api) -> None:
    def priority_class(name: str, *, is_default: bool) -> dict[str, Any]:
        created = make.priority_class(name, 5, is_default=is_default)
        return {**created, "metadata": {"name": name}}

    api.post(CLASSES, priority_class("one", is_default=True))
    reported = "PriorityClass one is already marked as default. Only one default can exist"
    response = api.ask("POST", CLASSES, priority_class("two", is_default=True))
    assert response.body["message"] == f'priorityclasses.scheduling.k8s.io "two" is forbidden: {reported}'
    api.post(CLASSES, priority_class("two", is_default=False))
    merge = {"content-type": "application/merge-patch+json"}
    assert api.ask("PATCH", f"{CLASSES}/two", {"globalDefault": True}, headers=merge).code == 403
    assert api.ask("PATCH", f"{CLASSES}/one", {"description": "d"}, headers=merge).code == 200
