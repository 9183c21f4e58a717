"""Changes of a Cluster's node pools on a running platform."""

from typing import Any

from batchyard.api import scheme
from batchyard.cloud.cluster_pools import ClusterPoolsController
from batchyard.controller_runtime.runner import Runner
from unit.cloud.catalog.cloud_make import ZONE, CloudStage, Obj, cluster, node_pool


def row(name: str, count: int = 1, machine: str = "e2-medium", **spec: Any) -> Obj:
    """Return a pool of fixed size as a Cluster lists it."""
    return {"name": name, "machineType": machine, "zones": [ZONE], "nodeCount": count, **spec}


class ClusterStage(CloudStage):
    """A cloud whose Cluster changes."""

    def __init__(self, begin: Obj) -> None:
        super().__init__()
        Runner(self.kernel, self.client, [ClusterPoolsController()], self._record)
        self.put(begin)

    def change(self, **spec: Any) -> None:
        """Replace fields of the Cluster's spec."""
        stored = self.get(scheme.CLUSTER, "batch", "")
        self.put({**stored, "spec": {**stored["spec"], **spec}})

    def resize(self, name: str, count: int) -> None:
        """Set the size of a NodePool, as a user does with kubectl patch."""
        stored = self.get(scheme.NODE_POOL, name, "")
        self.put({**stored, "spec": {**stored["spec"], "nodeCount": count}})

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all NodePools."""
        return {obj["metadata"]["name"]: obj["spec"]["nodeCount"] for obj in self.client.list(scheme.NODE_POOL)}


def test_rows_create_change_and_delete_node_pools() -> None:
    world = ClusterStage(cluster(nodePools=[row("a"), row("b")]))
    assert world.sizes() == {"a": 1, "b": 1}
    world.change(nodePools=[row("a", 3), row("c", 2)])
    world.finish()
    assert world.sizes() == {"a": 3, "c": 2}
    assert world.ready_nodes() == 5
    messages = [event.message for event in world.events if event.regarding.kind == scheme.CLUSTER]
    assert messages[2:] == ["updated node pool a", "created node pool c", "deleted node pool b"]


def test_changed_node_pool_is_kept_until_its_row_changes() -> None:
    world = ClusterStage(cluster(nodePools=[row("a"), row("b")]))
    world.resize("a", 4)
    world.delete(scheme.NODE_POOL, "b", "")
    world.finish()
    world.change(zones=[ZONE])
    assert world.sizes() == {"a": 4}
    world.change(nodePools=[row("a", 2), row("b", 2)])
    assert world.sizes() == {"a": 2, "b": 2}


def test_cluster_without_list_keeps_node_pools() -> None:
    world = ClusterStage(cluster(nodePools=[row("a")]))
    stored = world.get(scheme.CLUSTER, "batch", "")
    world.put({**stored, "spec": cluster()["spec"]})
    world.put(node_pool("own", nodeCount=1))
    world.change(nodePools=[row("a", 2)])
    assert world.sizes() == {"a": 2, "own": 1}


def test_new_row_waits_until_deleted_node_pool_of_its_name_is_gone() -> None:
    world = ClusterStage(cluster(nodePools=[row("a")]))
    world.change(nodePools=[])
    world.change(nodePools=[row("a", 2)])
    assert "deletionTimestamp" in world.get(scheme.NODE_POOL, "a", "")["metadata"]
    world.finish()
    assert world.sizes() == {"a": 2}


def test_conflict_with_other_machine_type_is_an_event() -> None:
    world = ClusterStage(cluster(nodePools=[]))
    world.put(node_pool("a", nodeCount=1))
    world.change(nodePools=[row("a", 2)])
    assert world.sizes() == {"a": 1}
    (event,) = [each for each in world.events if each.type == "Warning"]
    assert event.message == "node pool a keeps its machineType; give the changed pool another name"


def test_malformed_record_counts_as_none() -> None:
    begin = cluster(nodePools=[row("a")])
    annotations = {"cloud.batchyard.dev/applied-node-pools": "{"}
    world = ClusterStage({**begin, "metadata": {**begin["metadata"], "annotations": annotations}})
    assert world.sizes() == {"a": 1}
