"""Usage of pods and nodes, as `kubectl top` reads it."""

from typing import Any

import pytest

from batchyard.api.meta import Obj, key_of
from unit.apiserver.api import Api
from unit.nodes.node_make import node, pod

NODES = "/apis/metrics.k8s.io/v1beta1/nodes"
PODS = "/apis/metrics.k8s.io/v1beta1/namespaces/team/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def pod_requesting(name: str, phase: str = "Running", **requests: str) -> Obj:
    result = pod(name, status={"phase": phase}, metadata={"labels": {"run": name}})
    container = {**result["spec"]["containers"][0], "resources": {"requests": requests}}
    return {**result, "spec": {**result["spec"], "containers": [container]}}


@pytest.fixture
def api() -> Api:
    """Two running pods on a node, and a finished one."""
    api = Api()
    result = [node(), node("idle"), pod_requesting("one", cpu="1500m", memory="3Gi"), pod_requesting("two", cpu="1")]
    for obj in [*result, pod_requesting("done", "Succeeded", cpu="9")]:
        api.stored.store.put(key_of(obj), obj)
    return api


def usage_by_name(found: Any) -> dict[str, Any]:
    return {item["metadata"]["name"]: item["usage"] for item in found["items"]}


def test_running_pod_uses_its_requests(api: Api) -> None:
    result = api.get(PODS)
    assert [item["metadata"]["name"] for item in result["items"]] == ["one", "two"]
    assert result["items"][0]["containers"] == [{"name": "c", "usage": {"cpu": "1500m", "memory": "3Gi"}}]
    assert result["kind"] == "PodMetricsList"


def test_node_uses_sum_of_its_pods(api: Api) -> None:
    assert usage_by_name(api.get(NODES)) == {
        "idle": {"cpu": "0", "memory": "0"},
        "node": {"cpu": "2500m", "memory": "3Gi"},
    }
    assert api.get(f"{NODES}/node")["usage"]["cpu"] == "2500m"


def test_pod_metrics_support_label_selector(api: Api) -> None:
    assert [item["metadata"]["name"] for item in api.get(f"{PODS}?labelSelector=run=two")["items"]] == ["two"]


def test_finished_pod_has_no_metrics(api: Api) -> None:
    answer = api.ask("GET", f"{PODS}/done")
    assert (answer.code, answer.body["message"]) == (404, 'podmetrics.metrics.k8s.io "team/done" not found')
    assert api.ask("GET", f"{PODS}/none").body["message"] == 'pods "none" not found'
    assert api.ask("GET", f"{NODES}/none").code == 404


def test_metrics_table_has_column_for_each_resource(api: Api) -> None:
    table = api.get(PODS, accept=TABLE)
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "cpu", "memory", "Window"]
    assert table["rows"][0]["cells"] == ["one", "1500m", "3Gi", "0s"]


def test_metrics_reject_create_and_watch(api: Api) -> None:
    assert api.ask("POST", PODS, {}).code == 405
    assert api.ask("GET", f"{PODS}?watch=true").code == 405
    assert api.ask("GET", f"{PODS}/one?watch=true").code == 200
    assert {tuple(each["verbs"]) for each in api.get("/apis/metrics.k8s.io/v1beta1")["resources"]} == {("get", "list")}
