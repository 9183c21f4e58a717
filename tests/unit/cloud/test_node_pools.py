"""Pools and their machines."""

from typing import Any

from batchyard.api import scheme
from unit.cloud.catalog.cloud_make import ZONE, CloudStage, autoscaled, cluster, instance, node_pool


def pool_row(name: str = "pool", machine: str = "e2-medium", **spec: Any) -> dict[str, Any]:
    """Return a pool as a Cluster lists it."""
    return {"name": name, "machineType": machine, **spec}


def cloud(*rows: dict[str, Any], **spec: Any) -> CloudStage:
    """Return a cloud with these initial pools."""
    return CloudStage(cluster(nodePools=list(rows), **spec))


def status(world: CloudStage, name: str = "pool") -> tuple[int, int]:
    """Return the numbers of machines and of ready machines in the status of a pool."""
    result = world.get(scheme.NODE_POOL, name, "")["status"]
    return result["instances"], result["ready"]


def test_fixed_pools_have_all_nodes_at_start() -> None:
    world = cloud(pool_row("default-pool", nodeCount=2), pool_row("reserved-np", zones=[ZONE], nodeCount=4))
    assert world.ready_nodes() == 6 + 4
    assert (status(world, "default-pool"), status(world, "reserved-np")) == ((6, 6), (4, 4))
    assert world.kernel.pending_count() == 0


def test_later_pool_takes_time_to_provision() -> None:
    world = cloud()
    world.wait(60)
    world.put(node_pool(nodeCount=1))
    assert (world.phases(), world.nodes()) == (["Provisioning"], [])
    world.finish()
    assert status(world) == (1, 1)


def test_autoscaled_pool_creates_initial_machines_once() -> None:
    world = cloud(pool_row(zones=[ZONE], nodeCount=2, autoscaling={"min": 0, "max": 5}))
    assert status(world) == (2, 2)
    world.give_up(world.instances()[0])
    world.finish()
    assert status(world) == (1, 1)


def test_autoscaled_pool_creates_no_machines_by_default() -> None:
    world = cloud(pool_row(autoscaling={"min": 0, "max": 5}))
    assert (world.phases(), status(world)) == ([], (0, 0))


def test_fixed_pool_replaces_deleted_machine() -> None:
    world = cloud(pool_row(zones=[ZONE], nodeCount=2))
    gone = world.instances()[0]
    world.give_up(gone)
    world.finish()
    assert status(world) == (2, 2)
    assert gone["metadata"]["name"] not in world.nodes()


def test_fixed_pool_replaces_crashed_machine_after_repair() -> None:
    world = cloud(pool_row(zones=[ZONE], nodeCount=1), times={"repair": "5m"})
    world.wait(10)
    crashed = world.instances()[0]
    world.crash(crashed)
    world.wait(299)
    assert world.phases() == ["Crashed"]
    world.wait(1)
    assert world.phases() == ["Provisioning"]
    world.finish()
    assert world.ready_nodes() == 1
    assert world.nodes() != [crashed["metadata"]["name"]]


def test_autoscaled_pool_deletes_crashed_machine() -> None:
    world = cloud()
    world.put(autoscaled(), instance("a"))
    world.finish()
    world.crash(world.instances()[0])
    world.finish()
    assert (world.phases(), world.nodes()) == ([], [])


def test_crashed_machine_is_replaced_within_its_reservation() -> None:
    kept = {"name": "r", "machineType": "e2-medium", "zone": ZONE, "count": 1}
    world = cloud(pool_row(zones=[ZONE], nodeCount=1, reservation="r"), reservations=[kept])
    world.crash(world.instances()[0])
    world.finish()
    assert world.phases() == ["Running"]


def test_reduced_pool_deletes_newest_machines() -> None:
    row = pool_row(zones=[ZONE], nodeCount=2)
    world = cloud(row, capacity=[{"machineType": "e2-medium", "zone": ZONE, "count": 3}])
    first = set(world.nodes())
    pool = world.get(scheme.NODE_POOL, "pool", "")
    world.put({**pool, "spec": {**pool["spec"], "nodeCount": 4}})
    world.finish()
    assert world.phases() == ["Failed", "Running", "Running", "Running"]
    pool = world.get(scheme.NODE_POOL, "pool", "")
    world.put({**pool, "spec": {**pool["spec"], "nodeCount": 2}})
    world.finish()
    assert set(world.nodes()) == first


def test_deleted_pool_is_removed_after_its_machines() -> None:
    world = cloud(pool_row(nodeCount=1))
    world.give_up(world.get(scheme.NODE_POOL, "pool", ""))
    assert world.has(scheme.NODE_POOL, "pool")
    assert len(world.nodes()) == 3
    world.finish()
    assert (world.has(scheme.NODE_POOL, "pool"), world.phases(), world.nodes()) == (False, [], [])


def test_pool_status_counts_ready_nodes() -> None:
    world = cloud(pool_row(zones=[ZONE], nodeCount=2))
    node = world.get(scheme.NODE, world.nodes()[0], "")
    not_ready = {**node["status"]["conditions"][0], "status": "Unknown", "reason": "NodeStatusUnknown"}
    world.say(node, conditions=[not_ready])
    assert status(world) == (2, 1)


def test_machine_beyond_reservation_stays_failed() -> None:
    kept = {"name": "r", "machineType": "e2-medium", "zone": ZONE, "count": 1}
    world = cloud(pool_row(zones=[ZONE], nodeCount=2, reservation="r"), reservations=[kept])
    world.finish()
    assert world.phases() == ["Failed", "Running"]
    assert status(world) == (2, 1)
