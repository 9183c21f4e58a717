"""The scale subresource of Kubernetes kinds with replicas."""

from typing import Any

from unit.apiserver.api import Api

DEPLOYMENTS = "/apis/apps/v1/namespaces/team/deployments"
MERGE = {"content-type": "application/merge-patch+json"}


def api_with_deployment() -> Api:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec: dict[str, Any] = {"selector": {"matchLabels": {"app": "a"}}, "template": template, "replicas": 2}
    api = Api()
    api.post(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})
    return api


def test_deployment_scale_reports_replicas_and_selector() -> None:
    scale = api_with_deployment().get(f"{DEPLOYMENTS}/web/scale")
    assert (scale["kind"], scale["spec"]) == ("Scale", {"replicas": 2})
    assert scale["status"] == {"replicas": 0, "selector": "app=a"}


def test_scale_patch_changes_replicas() -> None:
    api = api_with_deployment()
    answer = api.ask("PATCH", f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": 5}}, headers=MERGE)
    assert (answer.code, answer.body["spec"]["replicas"]) == (200, 5)
    assert api.get(f"{DEPLOYMENTS}/web")["spec"]["replicas"] == 5


def test_scale_rejects_negative_replicas_and_missing_deployment() -> None:
    api = api_with_deployment()
    scale = api.get(f"{DEPLOYMENTS}/web/scale")
    assert api.ask("PUT", f"{DEPLOYMENTS}/web/scale", {**scale, "spec": {"replicas": -1}}).code == 422
    assert api.ask("GET", f"{DEPLOYMENTS}/none/scale").body["message"] == 'deployments.apps "none" not found'


def test_scale_of_changed_deployment_is_rejected() -> None:
    api, path = api_with_deployment(), f"{DEPLOYMENTS}/web/scale"
    sent = {**api.get(path), "metadata": {"name": "web", "resourceVersion": "1"}, "spec": {"replicas": 3}}
    rejected = api.ask("PUT", path, sent)
    problem = "the object has been modified; please apply your changes to the latest version and try again"
    assert rejected.body["message"] == f'Operation cannot be fulfilled on deployments.apps "web": {problem}'
    assert rejected.body["details"] == {"name": "web", "group": "apps", "kind": "deployments"}


def managed_fields_of(api: Api) -> dict[tuple[str, str], Any]:
    """The owned fields of the Deployment's spec, by manager and subresource."""
    entries = api.get(f"{DEPLOYMENTS}/web")["metadata"]["managedFields"]
    return {(entry["manager"], entry.get("subresource", "")): entry["fieldsV1"].get("f:spec") for entry in entries}


def scale_of(replicas: int) -> dict[str, Any]:
    return {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": replicas}}


def test_scale_update_takes_ownership_of_replicas() -> None:
    api = api_with_deployment()
    assert "f:replicas" in managed_fields_of(api)["unknown", ""]
    scale = api.get(f"{DEPLOYMENTS}/web/scale")
    api.ask("PUT", f"{DEPLOYMENTS}/web/scale?fieldManager=scaler", {**scale, "spec": {"replicas": 3}})
    claims = managed_fields_of(api)
    assert ("f:replicas" in claims["unknown", ""], claims["scaler", "scale"]) == (False, {"f:replicas": {}})


def test_scale_apply_conflicts_with_owner_of_replicas() -> None:
    api, path = api_with_deployment(), f"{DEPLOYMENTS}/web/scale?fieldManager=scaler"
    apply = {"content-type": "application/apply-patch+yaml"}
    refused = api.ask("PATCH", path, scale_of(5), headers=apply)
    assert (refused.code, refused.body["details"]["causes"][0]["field"]) == (409, ".spec.replicas")
    assert api.ask("PATCH", f"{path}&force=true", scale_of(5), headers=apply).body["spec"] == {"replicas": 5}
    assert managed_fields_of(api)["scaler", "scale"] == {"f:replicas": {}}


def test_apply_without_replicas_keeps_scaled_replicas() -> None:
    api, apply = api_with_deployment(), {"content-type": "application/apply-patch+yaml"}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}}
    path = f"{DEPLOYMENTS}/web?fieldManager=me&force=true"
    api.ask("PATCH", path, {**deployment, "spec": {"replicas": 2}}, headers=apply)
    api.ask("PATCH", f"{DEPLOYMENTS}/web/scale?fieldManager=scaler&force=true", scale_of(5), headers=apply)
    api.ask("PATCH", path, deployment, headers=apply)
    assert api.get(f"{DEPLOYMENTS}/web")["spec"]["replicas"] == 5


def test_scale_accepts_strategic_merge_patch() -> None:
    api, path = api_with_deployment(), f"{DEPLOYMENTS}/web/scale"
    strategic = {"content-type": "application/strategic-merge-patch+json"}
    assert api.ask("PATCH", path, {"spec": {"replicas": 4}}, headers=strategic).body["spec"] == {"replicas": 4}


def test_replication_controller_has_scale_with_its_labels_as_selector() -> None:
    api, path = Api(), "/api/v1/namespaces/team/replicationcontrollers"
    template = {"metadata": {"labels": {"b": "y", "a": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    api.post(path, {"metadata": {"name": "web"}, "spec": {"template": template, "replicas": 2}})
    scale = api.get(f"{path}/web/scale")
    assert (scale["spec"], scale["status"]) == ({"replicas": 2}, {"replicas": 0, "selector": "a=x,b=y"})
    assert api.ask("PUT", f"{path}/web/scale", {**scale, "spec": {"replicas": 3}}).body["spec"] == {"replicas": 3}
    assert api.get(f"{path}/web")["spec"]["replicas"] == 3
    served = {each["name"]: each for each in api.get("/api/v1")["resources"]}
    assert served["replicationcontrollers/scale"]["kind"] == "Scale"
