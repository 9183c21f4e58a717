"""Pending Workloads of queues: Kueue's visibility API."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Obj, key_of
from unit.apiserver.api import Api

GROUP = "/apis/visibility.kueue.x-k8s.io/v1beta2"
OF_CLUSTER = f"{GROUP}/clusterqueues/cq/pendingworkloads"
OF_LOCAL = f"{GROUP}/namespaces/{{}}/localqueues/lq/pendingworkloads"


def in_namespace(obj: Obj, namespace: str, **metadata: object) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], "namespace": namespace, **metadata}}


@pytest.fixture
def api() -> Api:
    """A server with four pending Workloads in one ClusterQueue and two LocalQueues of the same name."""
    api = Api()
    result: list[Obj] = [make.cluster_queue("cq")]
    result += [in_namespace(make.local_queue(), namespace) for namespace in ("team-a", "team-b")]
    waiting = [("one", "team-a", 1), ("two", "team-b", 9), ("three", "team-a", 5), ("four", "team-b", 1)]
    for place, (name, namespace, priority) in enumerate(waiting):
        workload = make.workload(name, priority=priority)
        result.append(in_namespace(workload, namespace, uid=name, creationTimestamp=make.stamp(place + 0.25)))
    before = api.stored.revision
    for obj in result:
        api.stored.store.put(key_of(obj), obj)
    for change in api.stored.events_since(before):
        api.index.observe(change, 0)
    return api


def places(summary: Obj) -> list[tuple[Any, ...]]:
    fields = ("positionInClusterQueue", "positionInLocalQueue", "priority")
    return [(item["metadata"]["name"], *(item[field] for field in fields)) for item in summary["items"]]


def test_cluster_queue_lists_pending_workloads_in_order(api: Api) -> None:
    result = api.get(OF_CLUSTER)
    assert places(result) == [("two", 0, 0, 9), ("three", 1, 0, 5), ("one", 2, 1, 1), ("four", 3, 1, 1)]
    assert (result["kind"], result["apiVersion"]) == ("PendingWorkloadsSummary", "visibility.kueue.x-k8s.io/v1beta2")
    assert result["items"][0]["metadata"]["creationTimestamp"] == make.stamp(1)


def test_local_queue_lists_its_pending_workloads(api: Api) -> None:
    assert places(api.get(OF_LOCAL.format("team-b"))) == [("two", 0, 0, 9), ("four", 3, 1, 1)]


@pytest.mark.parametrize(
    ("asked", "reported"),
    [("limit=1", ["two"]), ("offset=3", ["four"]), ("limit=1&offset=1", ["three"]), ("limit=-1", [])],
)
def test_pending_workloads_support_limit_and_offset(api: Api, asked: str, reported: list[str]) -> None:
    assert [name for name, *_ in places(api.get(f"{OF_CLUSTER}?{asked}"))] == reported


def test_positions_count_workloads_before_offset(api: Api) -> None:
    assert places(api.get(f"{OF_CLUSTER}?offset=3")) == [("four", 3, 1, 1)]
    assert places(api.get(f"{OF_LOCAL.format('team-a')}?offset=1")) == [("one", 2, 1, 1)]


def test_missing_queue_is_not_found(api: Api) -> None:
    answer = api.ask("GET", OF_CLUSTER.replace("/cq/", "/none/"))
    assert answer.body["message"] == 'clusterqueue.visibility.kueue.x-k8s.io "none" not found'
    assert api.ask("GET", OF_LOCAL.format("other")).code == 404


def test_discovery_lists_resources_of_kueue_visibility_server(api: Api) -> None:
    result = api.get("/apis/visibility.kueue.x-k8s.io/v1beta1")["resources"]
    assert [(each["name"], each["verbs"]) for each in result] == [
        ("clusterqueues", []),
        ("clusterqueues/pendingworkloads", ["get"]),
        ("localqueues", []),
        ("localqueues/pendingworkloads", ["get"]),
    ]
