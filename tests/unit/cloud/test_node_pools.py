"""Pools and their machines."""

from typing import Any

from batchyard.api import scheme
from unit.cloud.catalog.cloud_make import ZONE, Cloud, autoscaled, cluster, instance, node_pool


def pool_row(name: str = "pool", machine: str = "e2-medium", **spec: Any) -> dict[str, Any]:
    """A pool as a Cluster lists it."""
    return {"name": name, "machineType": machine, **spec}


def cloud(*rows: dict[str, Any], **spec: Any) -> Cloud:
    """A cloud that begins with these pools."""
    return Cloud(cluster(nodePools=list(rows), **spec))


def status(world: Cloud, name: str = "pool") -> tuple[int, int]:
    """How many machines a pool says it has, and how many are ready."""
    found = world.get(scheme.NODE_POOL, name, "")["status"]
    return found["instances"], found["ready"]


def test_a_world_begins_with_the_nodes_of_its_fixed_pools() -> None:
    world = cloud(pool_row("default-pool", nodeCount=2), pool_row("reserved-np", zones=[ZONE], nodeCount=4))
    assert world.ready_nodes() == 6 + 4
    assert (status(world, "default-pool"), status(world, "reserved-np")) == ((6, 6), (4, 4))
    assert world.kernel.pending() == 0


def test_a_pool_that_comes_later_takes_its_time() -> None:
    world = cloud()
    world.wait(60)
    world.put(node_pool(nodeCount=1))
    assert (world.phases(), world.nodes()) == (["Provisioning"], [])
    world.finish()
    assert status(world) == (1, 1)


def test_an_autoscaled_pool_begins_with_its_machines_once() -> None:
    world = cloud(pool_row(zones=[ZONE], nodeCount=2, autoscaling={"min": 0, "max": 5}))
    assert status(world) == (2, 2)
    world.give_up(world.instances()[0])
    world.finish()
    assert status(world) == (1, 1)


def test_an_autoscaled_pool_makes_no_machines_by_itself() -> None:
    world = cloud(pool_row(autoscaling={"min": 0, "max": 5}))
    assert (world.phases(), status(world)) == ([], (0, 0))


def test_a_fixed_pool_replaces_what_goes() -> None:
    world = cloud(pool_row(zones=[ZONE], nodeCount=2))
    gone = world.instances()[0]
    world.give_up(gone)
    world.finish()
    assert status(world) == (2, 2)
    assert gone["metadata"]["name"] not in world.nodes()


def test_a_fixed_pool_replaces_a_crashed_machine_after_the_repair() -> None:
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


def test_an_autoscaled_pool_gives_a_crashed_machine_up() -> None:
    world = cloud()
    world.put(autoscaled(), instance("a"))
    world.finish()
    world.crash(world.instances()[0])
    world.finish()
    assert (world.phases(), world.nodes()) == ([], [])


def test_a_reservation_with_one_machine_replaces_a_crashed_one() -> None:
    kept = {"name": "r", "machineType": "e2-medium", "zone": ZONE, "count": 1}
    world = cloud(pool_row(zones=[ZONE], nodeCount=1, reservation="r"), reservations=[kept])
    world.crash(world.instances()[0])
    world.finish()
    assert world.phases() == ["Running"]


def test_a_pool_made_smaller_gives_up_the_newest() -> None:
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


def test_a_deleted_pool_goes_when_its_machines_are_gone() -> None:
    world = cloud(pool_row(nodeCount=1))
    world.give_up(world.get(scheme.NODE_POOL, "pool", ""))
    assert world.has(scheme.NODE_POOL, "pool")
    assert len(world.nodes()) == 3
    world.finish()
    assert (world.has(scheme.NODE_POOL, "pool"), world.phases(), world.nodes()) == (False, [], [])


def test_a_pool_says_how_many_of_its_nodes_are_ready() -> None:
    world = cloud(pool_row(zones=[ZONE], nodeCount=2))
    node = world.get(scheme.NODE, world.nodes()[0], "")
    not_ready = {**node["status"]["conditions"][0], "status": "Unknown", "reason": "NodeStatusUnknown"}
    world.say(node, conditions=[not_ready])
    assert status(world) == (2, 1)


def test_more_than_the_reservation_has_waits_and_the_world_ends() -> None:
    kept = {"name": "r", "machineType": "e2-medium", "zone": ZONE, "count": 1}
    world = cloud(pool_row(zones=[ZONE], nodeCount=2, reservation="r"), reservations=[kept])
    world.finish()
    assert world.phases() == ["Failed", "Running"]
    assert status(world) == (2, 1)
