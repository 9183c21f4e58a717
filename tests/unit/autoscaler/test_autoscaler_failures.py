"""What the autoscaler does when machines do not come."""

from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import with_metadata, with_path
from batchyard.autoscaler.expander import read_backoffs
from batchyard.autoscaler.index import BACKOFFS, STATUS
from batchyard.cloud.catalog.instances import new_instance
from unit.autoscaler.scaling_make import ZONES, Scaled, cluster, pod, pool

A, B, _ = ZONES
HOUR = {"min": "1h", "typical": "1h", "max": "1h"}


def none_left(*zones: str, machine: str = "e2-standard-4", count: int = 0) -> list[dict[str, Any]]:
    return [{"machineType": machine, "zone": zone, "count": count} for zone in zones]


def backoffs(world: Scaled) -> dict[str, float]:
    """The backoffs that are kept: for how many minutes each was meant."""
    status = world.client.get(STATUS)
    kept = {} if status is None else read_backoffs(status["data"][BACKOFFS])
    return {key: backoff.duration / 60_000_000 for key, backoff in kept.items()}


def test_another_zone_is_tried_at_the_next_look() -> None:
    world = Scaled(cluster([pool(zones=[A, B])], capacity=none_left(A)))
    world.put(pod("p", cpu="3"))
    world.run(60)
    assert (world.zones(), world.place("p") != "", backoffs(world)) == ({B: 1}, True, {f"pool/{A}": 5})


def test_another_pool_is_tried_too() -> None:
    world = Scaled(cluster([pool("one"), pool("two", "e2-standard-8")], capacity=none_left(A)))
    world.put(pod("p", cpu="3"))
    world.run(60)
    assert len(world.nodes("two")) == 1


def test_who_fails_is_told_on_the_pool() -> None:
    world = Scaled(cluster([pool()], capacity=none_left(A)))
    world.put(pod("p", cpu="3"))
    world.run(60)
    ((name, message),) = world.reported("FailedToScaleUpGroup")
    assert name == "pool"
    assert "does not have enough resources available" in message
    assert world.reported("NotTriggerScaleUp") == [
        ("p", "pod didn't trigger scale-up: 1 in backoff after failed scale-up")
    ]


def test_a_group_is_tried_again_once_capacity_is_there() -> None:
    world = Scaled(cluster([pool()], capacity=none_left(A)))
    world.put(pod("p", cpu="3"))
    world.run(60)
    world.put(with_path(world.get(scheme.CLUSTER, "batch", ""), ("spec", "capacity"), []))
    world.run(319)
    assert world.machines() == []
    world.run(400)
    assert world.place("p")


def test_nothing_is_asked_for_without_end() -> None:
    world = Scaled(cluster([pool(), pool("spot", provisioning="spot")], capacity=none_left(A, count=1)))
    world.put(pod("p", cpu="3"), pod("q", cpu="3"), *[pod(f"g{n}", cpu="3", gang="g") for n in range(2)])
    assert world.finish() < 7 * 24 * 3600


def test_a_slice_is_not_asked_for_without_end_where_only_a_part_of_it_is_left() -> None:
    machine = "ct5lp-hightpu-4t"
    slices = pool("slice", machine, most=2, tpuTopology="2x4")
    world = Scaled(cluster([slices], capacity=none_left(A, machine=machine, count=1)))
    world.put(*[pod(f"p{n}", requests={"google.com/tpu": "4"}) for n in range(2)])
    world.run(24 * 3600)
    assert len(world.reported("FailedToScaleUpGroup")) == 1


def test_a_backoff_outlives_the_autoscaler() -> None:
    world = Scaled(cluster([pool()], capacity=none_left(A)))
    world.put(pod("p", cpu="3"))
    world.run(60)
    again = world.restarted()
    again.put(with_path(again.get(scheme.CLUSTER, "batch", ""), ("spec", "capacity"), []))
    again.run(310)
    assert again.machines() == []
    again.run(400)
    assert again.place("p")


def test_machines_that_take_too_long_are_given_up() -> None:
    world = Scaled(cluster([pool()], times={"boot": HOUR}, autoscaling={"maxNodeProvisionTime": "2m"}))
    world.put(pod("p", cpu="3"))
    world.run(129)
    assert len(world.machines()) == 1
    world.run(140)
    assert (world.machines(), backoffs(world)) == ([], {f"pool/{A}": 5})
    ((_, message),) = world.reported("ScaleUpTimedOut")
    assert message.endswith("failed to register within 2m0s")


def test_a_slice_that_fails_is_given_up_whole() -> None:
    capacity = none_left(A, machine="ct5lp-hightpu-4t", count=1)
    slices = pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", most=2)
    world = Scaled(cluster([slices], capacity=capacity))
    world.put(pod("p", requests={"google.com/tpu": "4"}))
    world.run(60)
    assert (world.machines(), list(backoffs(world))) == ([], [f"pool/{A}"])


def test_a_slice_asked_for_by_half_is_completed() -> None:
    slices = pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", most=2)
    world = Scaled(cluster([slices]))
    made = world.get(scheme.NODE_POOL, "pool", "")
    half = new_instance(made, A, world.get(scheme.CLUSTER, "batch", ""))
    world.put(with_metadata(half, name="half"), pod("p", requests={"google.com/tpu": "4"}))
    world.run(100)
    assert (len(world.nodes()), world.place("p") != "", backoffs(world)) == (2, True, {})
    assert "half" in world.nodes()


def test_a_gang_that_failed_is_tried_again_only_where_all_may_come() -> None:
    world = Scaled(cluster([pool()], capacity=none_left(A, count=1)))
    world.put(*[pod(f"g{number}", cpu="3", gang="g") for number in range(2)])
    world.run(3 * 3600)
    assert world.machines() == []
    assert [name for name, _ in world.reported("TriggeredScaleUp")] == ["g0", "g1"]


def test_a_reservation_that_has_not_begun_is_waited_for() -> None:
    reserved = {"name": "r", "machineType": "e2-standard-4", "zone": A, "count": 2, "start": "2h"}
    world = Scaled(cluster([pool(reservation="r")], reservations=[reserved]))
    world.put(pod("p", cpu="3"))
    world.run(5390)
    assert len(world.reported("TriggeredScaleUp")) == 1
    world.run(3 * 3600)
    assert world.place("p")


def test_a_gang_that_failed_is_not_tried_again_where_zones_share_too_small_a_quota() -> None:
    world = Scaled(cluster([pool(zones=[A, B])], quotas=[{"name": "cpus", "limit": 7}]))
    world.put(*[pod(f"g{number}", cpu="3", gang="g") for number in range(2)])
    world.run(300)
    asked = len(world.reported("TriggeredScaleUp"))
    world.run(24 * 3600)
    assert (world.machines(), len(world.reported("TriggeredScaleUp"))) == ([], asked)


def test_a_gang_that_failed_gets_no_new_pool_whose_zones_share_too_small_a_quota() -> None:
    limits = [{"resource": name, "max": 1000} for name in ("cpu", "memory")]
    begin = cluster(autoscaling={"autoProvisioning": {"limits": limits}}, quotas=[{"name": "cpus", "limit": 7}])
    world = Scaled(begin)
    world.put(*[pod(f"g{number}", cpu="3", gang="g") for number in range(2)])
    world.run(300)
    asked = len(world.reported("TriggeredScaleUp"))
    world.put(pod("late", cpu="100"))
    world.run(1000)
    assert len(world.reported("TriggeredScaleUp")) == asked
