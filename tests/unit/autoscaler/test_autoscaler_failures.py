"""The autoscaler handles machines that fail to start."""

from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import with_metadata, with_path
from batchyard.autoscaler.expander import parse_backoffs
from batchyard.autoscaler.index import BACKOFFS_CONFIG_MAP, BACKOFFS_FIELD
from batchyard.cloud.catalog.instances import new_instance
from unit.autoscaler.scaling_make import ZONES, AutoscalerStage, cluster, pod, pool

A, B, _ = ZONES
HOUR = {"min": "1h", "typical": "1h", "max": "1h"}


def capacity_rows(*zones: str, machine: str = "e2-standard-4", count: int = 0) -> list[dict[str, Any]]:
    return [{"machineType": machine, "zone": zone, "count": count} for zone in zones]


def backoffs(world: AutoscalerStage) -> dict[str, float]:
    """The stored backoffs, in minutes."""
    status = world.client.get(BACKOFFS_CONFIG_MAP)
    kept = {} if status is None else parse_backoffs(status["data"][BACKOFFS_FIELD])
    return {key: backoff.duration / 60_000_000 for key, backoff in kept.items()}


def test_autoscaler_tries_another_zone_after_stockout() -> None:
    world = AutoscalerStage(cluster([pool(zones=[A, B])], capacity=capacity_rows(A)))
    world.put(pod("p", cpu="3"))
    world.run(60)
    assert (world.zones(), world.place("p") != "", backoffs(world)) == ({B: 1}, True, {f"pool/{A}": 5})


def test_autoscaler_tries_another_pool_after_stockout() -> None:
    world = AutoscalerStage(cluster([pool("one"), pool("two", "e2-standard-8")], capacity=capacity_rows(A)))
    world.put(pod("p", cpu="3"))
    world.run(60)
    assert len(world.nodes("two")) == 1


def test_failed_scale_up_event_is_reported_on_pool() -> None:
    world = AutoscalerStage(cluster([pool()], capacity=capacity_rows(A)))
    world.put(pod("p", cpu="3"))
    world.run(60)
    ((name, message),) = world.reported("FailedToScaleUpGroup")
    assert name == "pool"
    assert "does not have enough resources available" in message
    assert world.reported("NotTriggerScaleUp") == [
        ("p", "pod didn't trigger scale-up: 1 in backoff after failed scale-up")
    ]


def test_autoscaler_retries_group_after_backoff() -> None:
    world = AutoscalerStage(cluster([pool()], capacity=capacity_rows(A)))
    world.put(pod("p", cpu="3"))
    world.run(60)
    world.put(with_path(world.get(scheme.CLUSTER, "batch", ""), ("spec", "capacity"), []))
    world.run(319)
    assert world.machines() == []
    world.run(400)
    assert world.place("p")


def test_autoscaler_stops_retrying_pods_without_capacity() -> None:
    world = AutoscalerStage(cluster([pool(), pool("spot", provisioning="spot")], capacity=capacity_rows(A, count=1)))
    world.put(pod("p", cpu="3"), pod("q", cpu="3"), *[pod(f"g{n}", cpu="3", gang="g") for n in range(2)])
    assert world.finish() < 7 * 24 * 3600


def test_autoscaler_does_not_retry_slice_that_exceeds_remaining_capacity() -> None:
    machine = "ct5lp-hightpu-4t"
    slices = pool("slice", machine, most=2, tpuTopology="2x4")
    world = AutoscalerStage(cluster([slices], capacity=capacity_rows(A, machine=machine, count=1)))
    world.put(*[pod(f"p{n}", requests={"google.com/tpu": "4"}) for n in range(2)])
    world.run(24 * 3600)
    assert len(world.reported("FailedToScaleUpGroup")) == 1


def test_backoff_survives_restart_of_autoscaler() -> None:
    world = AutoscalerStage(cluster([pool()], capacity=capacity_rows(A)))
    world.put(pod("p", cpu="3"))
    world.run(60)
    again = world.restarted()
    again.put(with_path(again.get(scheme.CLUSTER, "batch", ""), ("spec", "capacity"), []))
    again.run(310)
    assert again.machines() == []
    again.run(400)
    assert again.place("p")


def test_autoscaler_deletes_machine_after_provision_timeout() -> None:
    world = AutoscalerStage(cluster([pool()], times={"boot": HOUR}, autoscaling={"maxNodeProvisionTime": "2m"}))
    world.put(pod("p", cpu="3"))
    world.run(129)
    assert len(world.machines()) == 1
    world.run(140)
    assert (world.machines(), backoffs(world)) == ([], {f"pool/{A}": 5})
    ((_, message),) = world.reported("ScaleUpTimedOut")
    assert message.endswith("failed to register within 2m0s")


def test_autoscaler_deletes_all_hosts_of_failed_slice() -> None:
    capacity = capacity_rows(A, machine="ct5lp-hightpu-4t", count=1)
    slices = pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", most=2)
    world = AutoscalerStage(cluster([slices], capacity=capacity))
    world.put(pod("p", requests={"google.com/tpu": "4"}))
    world.run(60)
    assert (world.machines(), list(backoffs(world))) == ([], [f"pool/{A}"])


def test_autoscaler_completes_partly_created_slice() -> None:
    slices = pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", most=2)
    world = AutoscalerStage(cluster([slices]))
    created = world.get(scheme.NODE_POOL, "pool", "")
    half = new_instance(created, A, world.get(scheme.CLUSTER, "batch", ""))
    world.put(with_metadata(half, name="half"), pod("p", requests={"google.com/tpu": "4"}))
    world.run(100)
    assert (len(world.nodes()), world.place("p") != "", backoffs(world)) == (2, True, {})
    assert "half" in world.nodes()


def test_failed_host_of_incomplete_slice_causes_no_backoff() -> None:
    slices = pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", most=2)
    world = AutoscalerStage(cluster([slices]))
    half = new_instance(world.get(scheme.NODE_POOL, "pool", ""), A, world.get(scheme.CLUSTER, "batch", ""))
    failed = {"phase": "Failed", "error": {"code": "OTHER", "message": "broken"}}
    world.put({**with_metadata(half, name="half"), "status": failed}, pod("p", requests={"google.com/tpu": "4"}))
    world.run(200)
    assert (backoffs(world), world.reported("FailedToScaleUpGroup")) == ({}, [])
    assert (len(world.nodes()), "half" in world.machines(), world.place("p") != "") == (2, False, True)


def test_autoscaler_does_not_retry_gang_without_capacity_for_all_pods() -> None:
    world = AutoscalerStage(cluster([pool()], capacity=capacity_rows(A, count=1)))
    world.put(*[pod(f"g{number}", cpu="3", gang="g") for number in range(2)])
    world.run(3 * 3600)
    assert world.machines() == []
    assert [name for name, _ in world.reported("TriggeredScaleUp")] == ["g0", "g1"]


def test_autoscaler_retries_after_start_of_reservation() -> None:
    reserved = {"name": "r", "machineType": "e2-standard-4", "zone": A, "count": 2, "start": "2h"}
    world = AutoscalerStage(cluster([pool(reservation="r")], reservations=[reserved]))
    world.put(pod("p", cpu="3"))
    world.run(5390)
    assert len(world.reported("TriggeredScaleUp")) == 1
    world.run(3 * 3600)
    assert world.place("p")


def test_autoscaler_does_not_retry_gang_above_regional_quota() -> None:
    world = AutoscalerStage(cluster([pool(zones=[A, B])], quotas=[{"name": "cpus", "limit": 7}]))
    world.put(*[pod(f"g{number}", cpu="3", gang="g") for number in range(2)])
    world.run(300)
    request = len(world.reported("TriggeredScaleUp"))
    world.run(24 * 3600)
    assert (world.machines(), len(world.reported("TriggeredScaleUp"))) == ([], request)


def test_auto_provisioning_does_not_retry_gang_above_regional_quota() -> None:
    limits = [{"resource": name, "max": 1000} for name in ("cpu", "memory")]
    begin = cluster(autoscaling={"autoProvisioning": {"limits": limits}}, quotas=[{"name": "cpus", "limit": 7}])
    world = AutoscalerStage(begin)
    world.put(*[pod(f"g{number}", cpu="3", gang="g") for number in range(2)])
    world.run(300)
    request = len(world.reported("TriggeredScaleUp"))
    world.put(pod("late", cpu="100"))
    world.run(1000)
    assert len(world.reported("TriggeredScaleUp")) == request
