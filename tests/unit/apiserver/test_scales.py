"""Scales of kinds of Kubernetes that have replicas."""

from typing import Any

from unit.apiserver.api import Api

DEPLOYMENTS = "/apis/apps/v1/namespaces/team/deployments"


def deployed() -> Api:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec: dict[str, Any] = {"selector": {"matchLabels": {"app": "a"}}, "template": template, "replicas": 2}
    api = Api()
    api.post(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})
    return api


def test_a_deployment_tells_how_many_are_wanted() -> None:
    scale = deployed().get(f"{DEPLOYMENTS}/web/scale")
    assert (scale["kind"], scale["spec"]) == ("Scale", {"replicas": 2})
    assert scale["status"] == {"replicas": 0, "selector": "app=a"}


def test_more_can_be_wanted() -> None:
    api, merge = deployed(), {"content-type": "application/merge-patch+json"}
    answer = api.ask("PATCH", f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": 5}}, headers=merge)
    assert (answer.code, answer.body["spec"]["replicas"]) == (200, 5)
    assert api.get(f"{DEPLOYMENTS}/web")["spec"]["replicas"] == 5


def test_less_than_none_cannot_be_wanted() -> None:
    api = deployed()
    scale = api.get(f"{DEPLOYMENTS}/web/scale")
    assert api.ask("PUT", f"{DEPLOYMENTS}/web/scale", {**scale, "spec": {"replicas": -1}}).code == 422
    assert api.ask("GET", f"{DEPLOYMENTS}/none/scale").body["message"] == 'deployments.apps "none" not found'
