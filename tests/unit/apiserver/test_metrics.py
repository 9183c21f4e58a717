"""What pods and nodes use, as `kubectl top` is told."""

from typing import Any

import pytest

from batchyard.api.meta import Obj, key_of
from unit.apiserver.api import Api
from unit.nodes.node_make import node, pod

NODES = "/apis/metrics.k8s.io/v1beta1/nodes"
PODS = "/apis/metrics.k8s.io/v1beta1/namespaces/team/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def asking(name: str, phase: str = "Running", **requests: str) -> Obj:
    found = pod(name, status={"phase": phase}, metadata={"labels": {"run": name}})
    container = {**found["spec"]["containers"][0], "resources": {"requests": requests}}
    return {**found, "spec": {**found["spec"], "containers": [container]}}


@pytest.fixture
def api() -> Api:
    """Two pods that run on a node, and one that does not any more."""
    api = Api()
    found = [node(), node("idle"), asking("one", cpu="1500m", memory="3Gi"), asking("two", cpu="1")]
    for obj in [*found, asking("done", "Succeeded", cpu="9")]:
        api.stored.store.put(key_of(obj), obj)
    return api


def used(found: Any) -> dict[str, Any]:
    return {item["metadata"]["name"]: item["usage"] for item in found["items"]}


def test_a_pod_that_runs_uses_what_it_requests(api: Api) -> None:
    found = api.get(PODS)
    assert [item["metadata"]["name"] for item in found["items"]] == ["one", "two"]
    assert found["items"][0]["containers"] == [{"name": "c", "usage": {"cpu": "1500m", "memory": "3Gi"}}]
    assert found["kind"] == "PodMetricsList"


def test_a_node_uses_what_the_pods_on_it_use(api: Api) -> None:
    assert used(api.get(NODES)) == {"idle": {"cpu": "0", "memory": "0"}, "node": {"cpu": "2500m", "memory": "3Gi"}}
    assert api.get(f"{NODES}/node")["usage"]["cpu"] == "2500m"


def test_pods_can_be_chosen_by_their_labels(api: Api) -> None:
    assert [item["metadata"]["name"] for item in api.get(f"{PODS}?labelSelector=run=two")["items"]] == ["two"]


def test_who_does_not_run_has_no_metrics(api: Api) -> None:
    answer = api.ask("GET", f"{PODS}/done")
    assert (answer.code, answer.body["message"]) == (404, 'podmetrics.metrics.k8s.io "team/done" not found')
    assert api.ask("GET", f"{PODS}/none").body["message"] == 'pods "none" not found'
    assert api.ask("GET", f"{NODES}/none").code == 404


def test_as_a_table_it_has_a_column_for_each_resource(api: Api) -> None:
    table = api.get(PODS, accept=TABLE)
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "cpu", "memory", "Window"]
    assert table["rows"][0]["cells"] == ["one", "1500m", "3Gi", "0s"]


def test_it_is_read_and_nothing_else(api: Api) -> None:
    assert api.ask("POST", PODS, {}).code == 405
    assert api.ask("GET", f"{PODS}?watch=true").code == 405
    assert api.ask("GET", f"{PODS}/one?watch=true").code == 200
    assert {tuple(each["verbs"]) for each in api.get("/apis/metrics.k8s.io/v1beta1")["resources"]} == {("get", "list")}
