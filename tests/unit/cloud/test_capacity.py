"""Assignment of machines to Instances and ResizeRequests."""

from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import with_metadata
from unit.cloud.catalog.cloud_make import ZONE, CloudStage, autoscaled, cluster, instance, node_pool, resize_request

L4 = "g2-standard-24"
EXHAUSTED = "ZONE_RESOURCE_POOL_EXHAUSTED"


def row(count: int, machine: str = L4, **fields: Any) -> dict[str, Any]:
    """Return a row of the cloud's capacity."""
    return {"machineType": machine, "zone": ZONE, "count": count, **fields}


def cloud(*pools: dict[str, Any], **spec: Any) -> CloudStage:
    """Return a cloud some seconds after its start, with pools that were added later."""
    world = CloudStage(cluster(**spec))
    world.wait(5)
    world.put(*pools)
    return world


def test_instance_is_provisioned_or_fails_at_once() -> None:
    world = cloud(autoscaled(), capacity=[row(1)])
    world.put(instance("a"), instance("b"))
    assert world.phases() == ["Failed", "Provisioning"]
    assert world.error("b")[0] == EXHAUSTED
    world.finish()
    assert world.phases() == ["Failed", "Running"]


def test_older_instances_are_provisioned_first() -> None:
    world = cloud(autoscaled(), capacity=[row(2)])
    late = instance("a")
    late["metadata"]["creationTimestamp"] = world.stamp(1)
    world.put(late, instance("c"), instance("b"))
    assert [world.get(scheme.INSTANCE, name, "")["status"]["phase"] for name in "abc"] == [
        "Failed",
        "Provisioning",
        "Provisioning",
    ]


def test_instance_of_missing_pool_is_deleted() -> None:
    world = cloud()
    world.put(instance("a"))
    assert world.phases() == []


def test_failed_instance_of_autoscaled_pool_stays_failed() -> None:
    world = cloud(autoscaled(), capacity=[row(0)])
    world.put(instance("a"))
    world.change_cluster(capacity=[])
    assert world.phases() == ["Failed"]


def test_fixed_pool_retries_when_capacity_becomes_available() -> None:
    world = cloud(node_pool(nodeCount=2), capacity=[row(0)])
    assert world.phases() == ["Failed", "Failed"]
    world.finish()
    world.change_cluster(capacity=[row(1)])
    assert world.phases() == ["Failed", "Provisioning"]
    world.finish()
    assert world.ready_nodes() == 1


def test_released_machine_is_assigned_to_waiting_pool() -> None:
    world = cloud(autoscaled("first"), node_pool("second", nodeCount=1), capacity=[row(1)])
    assert world.phases("second") == ["Provisioning"]
    world.finish()
    world.put(node_pool("third", nodeCount=1))
    assert world.phases("third") == ["Failed"]
    world.give_up(world.get(scheme.NODE_POOL, "second", ""))
    world.finish()
    assert (world.phases("second"), world.phases("third")) == ([], ["Running"])


def test_fixed_pool_waits_for_future_reservation() -> None:
    kept = {"name": "r", "machineType": L4, "zone": ZONE, "count": 1, "start": "1h", "end": "3h"}
    world = cloud(node_pool(nodeCount=1, reservation="r"), reservations=[kept])
    (failed,) = world.instances()
    assert world.error(failed["metadata"]["name"])[0] == "RESERVATION_NOT_READY"
    world.wait(3000)
    assert world.phases() == ["Failed"]
    world.wait(580)
    assert (world.phases(), world.ready_nodes()) == (["Running"], 0)
    world.wait(20)
    assert (world.phases(), world.ready_nodes()) == (["Running"], 1)


def test_reservation_window_accepts_start_time_and_duration() -> None:
    window = {"start": "2026-01-01T01:00:00Z", "duration": "2h"}
    kept = {"name": "r", "machineType": L4, "zone": ZONE, "count": 1, **window}
    world = cloud(node_pool(nodeCount=1, reservation="r"), reservations=[kept])
    world.wait(3580)
    assert world.ready_nodes() == 0
    world.wait(20)
    assert world.ready_nodes() == 1
    world.wait(7170)
    assert world.phases() == ["Stopping"]


def test_machine_stops_at_end_of_reservation_and_is_not_replaced() -> None:
    kept = {"name": "r", "machineType": L4, "zone": ZONE, "count": 1, "end": "1h"}
    world = CloudStage(
        cluster(
            reservations=[kept],
            nodePools=[{"name": "p", "machineType": L4, "zones": [ZONE], "nodeCount": 1, "reservation": "r"}],
        )
    )
    world.wait(3569)
    assert world.phases() == ["Running"]
    world.wait(2)
    assert world.phases() == ["Stopping"]
    world.finish()
    assert (world.phases(), world.nodes()) == (["Failed"], [])
    (failed,) = world.instances()
    assert world.error(failed["metadata"]["name"])[0] == "RESERVATION_NOT_FOUND"


def test_machine_booting_at_end_of_reservation_fails() -> None:
    kept = {"name": "r", "machineType": L4, "zone": ZONE, "count": 1, "end": "10s"}
    world = cloud(node_pool(nodeCount=1, reservation="r"), reservations=[kept])
    assert world.phases() == ["Provisioning"]
    world.wait(10)
    assert (world.phases(), world.nodes()) == (["Failed"], [])


# --- slices ---


def slice_pool(**spec: Any) -> dict[str, Any]:
    """Return an autoscaled slice of two machines."""
    return autoscaled("tpu", "ct5lp-hightpu-4t", tpuTopology="2x4", **spec)


def test_slice_is_provisioned_completely_or_not_at_all() -> None:
    world = cloud(slice_pool(), capacity=[row(1, "ct5lp-hightpu-4t")])
    world.put(instance("a", slice_pool()), instance("b", slice_pool()))
    assert world.phases() == ["Failed", "Failed"]
    assert (world.error("a")[0], world.error("b")[0]) == (EXHAUSTED, EXHAUSTED)
    world.give_up(world.instances()[0])
    world.change_cluster(capacity=[row(2, "ct5lp-hightpu-4t")])
    world.put(instance("c", slice_pool()), instance("d", slice_pool()))
    assert world.phases() == ["Provisioning", "Provisioning"]


def test_partial_slice_waits_for_remaining_instances() -> None:
    world = cloud(slice_pool())
    world.put(instance("a", slice_pool()))
    assert world.phases() == [""]
    world.put(instance("b", slice_pool()))
    assert world.phases() == ["Provisioning", "Provisioning"]


def test_instance_beyond_slice_size_is_rejected() -> None:
    world = cloud(slice_pool())
    world.put(*[instance(name, slice_pool()) for name in "abc"])
    message = "A slice of 2x4 requires 2 machines of one type in one zone."
    assert world.error("c") == ("INVALID_ARGUMENT", message)


def test_fixed_slice_waits_for_capacity_of_all_machines() -> None:
    fixed = node_pool("tpu", "ct5lp-hightpu-4t", tpuTopology="2x4")
    world = cloud(fixed, capacity=[row(1, "ct5lp-hightpu-4t")])
    assert world.phases() == ["Failed", "Failed"]
    world.change_cluster(capacity=[row(2, "ct5lp-hightpu-4t")])
    assert world.phases() == ["Provisioning", "Provisioning"]


# --- ResizeRequests ---


def queued_pool() -> dict[str, Any]:
    """Return a pool with queued provisioning."""
    return autoscaled("dws", "a3-highgpu-8g", provisioning="queued")


def state(world: CloudStage, name: str) -> str:
    """Return the state of a ResizeRequest."""
    result: str = world.get(scheme.RESIZE_REQUEST, name, "")["status"]["state"]
    return result


def test_resize_request_is_provisioned_completely() -> None:
    world = cloud(queued_pool(), capacity=[row(4, "a3-highgpu-8g", provisioning="queued")])
    world.put(resize_request("rr", "dws", 3, maxRunDuration="2h"))
    assert (world.phases(), state(world, "rr")) == (["Provisioning"] * 3, "ACCEPTED")
    assert {obj["spec"]["resizeRequest"] for obj in world.instances()} == {"rr"}
    world.wait(600)
    assert (world.phases(), state(world, "rr")) == (["Running"] * 3, "SUCCEEDED")
    world.finish()
    assert (world.phases(), world.nodes()) == ([], [])  # their run duration is over


def test_resize_request_ignores_machines_of_earlier_request_of_same_name() -> None:
    world = cloud(queued_pool(), capacity=[row(2, "a3-highgpu-8g", provisioning="queued")])
    world.put(resize_request("rr", "dws"))
    world.wait(600)
    world.delete(scheme.RESIZE_REQUEST, "rr", "")
    world.put(with_metadata(resize_request("rr", "dws"), uid="another"))
    assert (sorted(world.phases()), state(world, "rr")) == (["Provisioning", "Running"], "ACCEPTED")


def test_waiting_resize_request_blocks_no_other_requests() -> None:
    world = cloud(queued_pool(), autoscaled(), capacity=[row(2, "a3-highgpu-8g")])
    world.put(resize_request("large", "dws", 3))
    world.put(resize_request("small", "dws", 2), instance("other"))
    assert (state(world, "large"), state(world, "small")) == ("ACCEPTED", "ACCEPTED")
    assert world.phases() == ["Provisioning"] * 3
    world.finish()
    assert (state(world, "large"), state(world, "small")) == ("ACCEPTED", "SUCCEEDED")
    (condition,) = world.get(scheme.RESIZE_REQUEST, "large", "")["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Provisioned", "False", EXHAUSTED)


def test_resize_request_is_retried_when_capacity_becomes_free() -> None:
    world = cloud(queued_pool(), autoscaled("now", "a3-highgpu-8g"), capacity=[row(1, "a3-highgpu-8g")])
    first = instance("first", autoscaled("now", "a3-highgpu-8g"))
    world.put(first)
    world.put(resize_request("rr", "dws"))
    world.wait(3 * 86_400)
    assert (world.phases("dws"), state(world, "rr")) == ([], "ACCEPTED")
    world.give_up(first)
    world.wait(600)
    assert (world.phases("dws"), state(world, "rr")) == (["Running"], "SUCCEEDED")


def test_resize_request_is_served_before_later_instances() -> None:
    world = cloud(queued_pool(), autoscaled("now", "a3-highgpu-8g"), capacity=[row(1, "a3-highgpu-8g")])
    late = instance("late", autoscaled("now", "a3-highgpu-8g"))
    late["metadata"]["creationTimestamp"] = world.stamp(1)
    world.put(resize_request("rr", "dws"), late)
    assert (world.phases("dws"), world.phases("now")) == (["Provisioning"], ["Failed"])


def test_unsatisfiable_resize_request_fails() -> None:
    world = cloud(queued_pool(), quotas=[{"name": "nvidia-h100-80gb", "limit": 8}])
    world.put(
        resize_request("quota", "dws", 2),
        resize_request("pool", "none"),
        resize_request("zone", "dws", zone="us-central1-b"),
    )
    errors = {name: world.get(scheme.RESIZE_REQUEST, name, "")["status"] for name in ("quota", "pool", "zone")}
    assert {status["state"] for status in errors.values()} == {"FAILED"}
    codes = {name: status["error"]["code"] for name, status in errors.items()}
    assert codes == {"quota": "QUOTA_EXCEEDED", "pool": "INVALID_ARGUMENT", "zone": "INVALID_ARGUMENT"}
    assert world.phases() == []


def test_deleted_resize_request_creates_no_instances() -> None:
    world = cloud(queued_pool(), capacity=[row(0, "a3-highgpu-8g")])
    world.put(resize_request("rr", "dws"))
    world.give_up(resize_request("rr", "dws"))
    world.change_cluster(capacity=[])
    assert world.phases() == []


def test_resize_request_fails_completely_when_one_machine_fails() -> None:
    world = cloud(queued_pool())
    world.put(resize_request("rr", "dws", 2))
    error = {"code": "OTHER", "message": "why"}
    world.say(world.instances()[0], phase="Failed", error=error)
    assert (state(world, "rr"), world.phases()) == ("FAILED", [])
    assert world.get(scheme.RESIZE_REQUEST, "rr", "")["status"]["error"] == error


def test_deleted_unserved_instance_gets_no_machine() -> None:
    world = cloud(autoscaled(), capacity=[row(0)])
    world.put(instance("a"))
    world.give_up(instance("a"))
    assert world.phases() == []
