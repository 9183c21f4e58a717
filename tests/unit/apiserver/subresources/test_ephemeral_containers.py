"""`pods/NAME/ephemeralcontainers`: what `kubectl debug` may add to a pod."""

from copy import deepcopy
from typing import Any

import pytest

from batchyard.api.meta import Obj
from unit.apiserver.api import Api

PODS = "/api/v1/namespaces/team/pods"
PATH = f"{PODS}/web/ephemeralcontainers"
DEBUGGER = {"name": "debugger", "image": "busybox", "targetContainerName": "main"}
STRATEGIC = {"content-type": "application/strategic-merge-patch+json"}


def pod_api(labels: dict[str, str] | None = None, *, has_processes: bool = True) -> Api:
    """An API with the pod `web`, whose Namespace has labels."""
    api = Api()
    namespace = api.get("/api/v1/namespaces/team")
    namespace["metadata"]["labels"] = labels or {}
    assert api.ask("PUT", "/api/v1/namespaces/team", namespace).code == 200
    spec = {"containers": [{"name": "main", "image": "x"}], "nodeName": "n"}
    api.post(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})
    if has_processes:
        api.containers.no_process_reason = _no_reason  # type: ignore[method-assign,assignment]
    return api


def _no_reason(_pod: Obj) -> str:
    return ""


def patched(api: Api, *containers: dict[str, Any]) -> Any:
    """The answer to a patch of the ephemeral containers."""
    return api.ask("PATCH", PATH, {"spec": {"ephemeralContainers": list(containers)}}, headers=STRATEGIC)


def test_container_is_added_and_nothing_else_changes() -> None:
    api = pod_api()
    pod = deepcopy(api.get(PATH))
    pod["spec"] |= {"ephemeralContainers": [DEBUGGER], "nodeName": "other"}
    pod["metadata"]["labels"] = {"a": "b"}
    response = api.ask("PUT", PATH, pod)
    assert response.code == 200
    assert response.body["spec"]["ephemeralContainers"][0]["targetContainerName"] == "main"
    assert response.body["spec"]["nodeName"] == "n"
    assert "labels" not in response.body["metadata"]


def test_patches_add_one_container_after_the_other() -> None:
    api = pod_api()
    assert patched(api, DEBUGGER).code == 200
    names = [each["name"] for each in patched(api, {"name": "b", "image": "y"}).body["spec"]["ephemeralContainers"]]
    assert sorted(names) == ["b", "debugger"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "main"}, 'spec.ephemeralContainers[0].name: Duplicate value: "main"'),
        ({"image": ""}, "spec.ephemeralContainers[0].image: Required value"),
        ({"targetContainerName": "no"}, 'spec.ephemeralContainers[0].targetContainerName: Not found: "no"'),
        ({"ports": [{"containerPort": 1}]}, "ports: Forbidden: cannot be set for an Ephemeral Container"),
        ({"resources": {"limits": {"cpu": "1"}}}, "resources: Forbidden: cannot be set for an Ephemeral Container"),
    ],
)
def test_invalid_container_is_rejected(fields: dict[str, Any], problem: str) -> None:
    response = patched(pod_api(), {**DEBUGGER, **fields})
    assert response.code == 422
    assert problem in response.body["message"]


def test_existing_container_is_neither_changed_nor_removed() -> None:
    api = pod_api()
    pod = patched(api, DEBUGGER).body
    assert (
        'existing ephemeral containers "debugger" may not be changed'
        in patched(api, {**DEBUGGER, "image": "other"}).body["message"]
    )
    response = api.ask("PUT", PATH, {**pod, "spec": {**pod["spec"], "ephemeralContainers": []}})
    assert 'existing ephemeral containers "debugger" may not be removed' in response.body["message"]


def test_pod_security_of_the_namespace_applies() -> None:
    api = pod_api({"pod-security.kubernetes.io/enforce": "baseline"})
    response = patched(api, {**DEBUGGER, "securityContext": {"privileged": True}})
    assert response.code == 403
    assert 'violates PodSecurity "baseline:latest": privileged' in response.body["message"]


def test_simulated_pod_has_no_ephemeral_containers() -> None:
    assert patched(pod_api(has_processes=False), DEBUGGER).code == 400
