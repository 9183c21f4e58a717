"""Slices of TPUs: all their machines or none."""

from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import is_true
from unit.cloud.catalog.cloud_make import ZONE, CloudStage, autoscaled, cluster, instance

SLICE = {"name": "tpu", "machineType": "ct5lp-hightpu-4t", "zones": [ZONE], "tpuTopology": "2x4"}


def cloud(**spec: Any) -> CloudStage:
    """Return a cloud with one initial slice of two machines."""
    return CloudStage(cluster(nodePools=[{**SLICE, **spec}]))


def autoscaled_slice() -> CloudStage:
    """Return a cloud with one autoscaled slice of two ready machines."""
    world = CloudStage(cluster())
    pool = autoscaled("tpu", "ct5lp-hightpu-4t", tpuTopology="2x4")
    world.put(pool, instance("a", pool), instance("b", pool))
    world.finish()
    assert world.ready_nodes() == 2
    return world


def names(world: CloudStage) -> list[str]:
    """Return the names of all machines."""
    return [obj["metadata"]["name"] for obj in world.instances()]


def test_slice_has_number_of_machines_of_its_topology() -> None:
    assert cloud().ready_nodes() == 2
    assert cloud(tpuTopology="4x4").ready_nodes() == 4
    assert cloud(nodeCount=0).ready_nodes() == 0


def test_autoscaled_slice_starts_empty_without_node_count() -> None:
    bounds = {"min": 0, "max": 2}
    assert cloud(autoscaling=bounds).ready_nodes() == 0
    assert cloud(autoscaling=bounds, nodeCount=2).ready_nodes() == 2


def test_crash_of_one_machine_crashes_whole_slice() -> None:
    world = cloud()
    world.crash(world.instances()[1])
    assert world.phases() == ["Crashed", "Crashed"]
    first, second = world.instances()
    assert first["status"]["since"] == second["status"]["since"]


def test_fixed_slice_is_recreated_after_repair() -> None:
    world = cloud()
    before = names(world)
    world.crash(world.instances()[0])
    world.finish()
    assert (world.phases(), world.ready_nodes()) == (["Running", "Running"], 2)
    assert not set(before) & set(names(world))


def test_autoscaled_slice_is_recreated_after_repair() -> None:
    world = autoscaled_slice()
    world.crash(world.instances()[0])
    world.wait(599)
    assert world.phases() == ["Crashed", "Crashed"]
    world.wait(1)
    assert world.phases() == ["Provisioning", "Provisioning"]
    world.finish()
    assert world.ready_nodes() == 2
    assert not is_true(world.get(scheme.NODE_POOL, "tpu", ""), "Recreating")


def test_deletion_of_one_machine_deletes_autoscaled_slice() -> None:
    world = autoscaled_slice()
    world.give_up(world.instances()[0])
    world.finish()
    assert (names(world), world.nodes()) == ([], [])


def test_deletion_of_one_machine_recreates_fixed_slice() -> None:
    world = cloud()
    before = names(world)
    world.give_up(world.instances()[0])
    world.finish()
    assert world.ready_nodes() == 2
    assert not set(before) & set(names(world))


def test_whole_slice_stops_together() -> None:
    world = autoscaled_slice()
    world.say(world.instances()[0], stopAt=world.stamp(30))
    assert world.phases() == ["Stopping", "Stopping"]
    world.finish()
    assert (names(world), world.nodes()) == ([], [])


def test_reclaimed_fixed_slice_waits_for_capacity() -> None:
    world = cloud(provisioning="spot")
    row = {"machineType": "ct5lp-hightpu-4t", "zone": ZONE, "count": 0}
    world.change_cluster(capacity=[row])
    world.say(world.instances()[0], stopAt=world.stamp(30))
    world.finish()
    assert world.phases() == ["Failed", "Failed"]
    world.change_cluster(capacity=[{**row, "count": 2}])
    world.finish()
    assert world.ready_nodes() == 2


def test_partially_failed_fixed_slice_is_recreated_with_capacity() -> None:
    world = cloud()
    before = names(world)
    world.change_cluster(capacity=[{"machineType": "ct5lp-hightpu-4t", "zone": ZONE, "count": 1}])
    world.say(world.instances()[0], phase="Failed", since=world.stamp())
    world.finish()
    assert world.phases() == ["Failed", "Failed"]
    world.change_cluster(capacity=[])
    world.finish()
    assert (world.ready_nodes(), set(before) & set(names(world))) == (2, set())


def test_slice_that_crashes_during_boot_is_recreated_again() -> None:
    world = autoscaled_slice()
    world.crash(world.instances()[0])
    world.wait(620)
    world.crash(world.instances()[0])
    assert world.phases() == ["Crashed", "Crashed"]
    world.finish()
    assert world.ready_nodes() == 2
