"""Who waits in a queue, as Kueue's visibility API tells it."""

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
    """Two LocalQueues of one name and one ClusterQueue, in which four wait."""
    api = Api()
    found: list[Obj] = [make.cluster_queue("cq")]
    found += [in_namespace(make.local_queue(), namespace) for namespace in ("team-a", "team-b")]
    waiting = [("one", "team-a", 1), ("two", "team-b", 9), ("three", "team-a", 5), ("four", "team-b", 1)]
    for place, (name, namespace, priority) in enumerate(waiting):
        workload = make.workload(name, priority=priority)
        found.append(in_namespace(workload, namespace, uid=name, creationTimestamp=make.stamp(place + 0.25)))
    before = api.stored.revision
    for obj in found:
        api.stored.store.put(key_of(obj), obj)
    for change in api.stored.since(before):
        api.index.observe(change, 0)
    return api


def places(summary: Obj) -> list[tuple[Any, ...]]:
    fields = ("positionInClusterQueue", "positionInLocalQueue", "priority")
    return [(item["metadata"]["name"], *(item[field] for field in fields)) for item in summary["items"]]


def test_all_of_a_cluster_queue_are_told_in_their_turn(api: Api) -> None:
    found = api.get(OF_CLUSTER)
    assert places(found) == [("two", 0, 0, 9), ("three", 1, 0, 5), ("one", 2, 1, 1), ("four", 3, 1, 1)]
    assert (found["kind"], found["apiVersion"]) == ("PendingWorkloadsSummary", "visibility.kueue.x-k8s.io/v1beta2")
    assert found["items"][0]["metadata"]["creationTimestamp"] == make.stamp(1)


def test_a_local_queue_tells_its_own(api: Api) -> None:
    assert places(api.get(OF_LOCAL.format("team-b"))) == [("two", 0, 0, 9), ("four", 3, 1, 1)]


@pytest.mark.parametrize(
    ("asked", "reported"),
    [("limit=1", ["two"]), ("offset=3", ["four"]), ("limit=1&offset=1", ["three"]), ("limit=-1", [])],
)
def test_some_of_them_can_be_asked_for(api: Api, asked: str, reported: list[str]) -> None:
    assert [name for name, *_ in places(api.get(f"{OF_CLUSTER}?{asked}"))] == reported


def test_places_count_those_that_were_left_out(api: Api) -> None:
    assert places(api.get(f"{OF_CLUSTER}?offset=3")) == [("four", 3, 1, 1)]
    assert places(api.get(f"{OF_LOCAL.format('team-a')}?offset=1")) == [("one", 2, 1, 1)]


def test_queues_that_are_not_there_are_not_found(api: Api) -> None:
    answer = api.ask("GET", OF_CLUSTER.replace("/cq/", "/none/"))
    assert answer.body["message"] == 'clusterqueue.visibility.kueue.x-k8s.io "none" not found'
    assert api.ask("GET", OF_LOCAL.format("other")).code == 404


def test_discovery_has_it_as_kueues_own_server_has(api: Api) -> None:
    found = api.get("/apis/visibility.kueue.x-k8s.io/v1beta1")["resources"]
    assert [(each["name"], each["verbs"]) for each in found] == [
        ("clusterqueues", []),
        ("clusterqueues/pendingworkloads", ["get"]),
        ("localqueues", []),
        ("localqueues/pendingworkloads", ["get"]),
    ]
