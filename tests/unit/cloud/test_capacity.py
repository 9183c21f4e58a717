"""Who gets a machine, and who waits."""

from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import with_metadata
from unit.cloud.catalog.cloud_make import ZONE, Cloud, autoscaled, cluster, instance, node_pool, resize_request

L4 = "g2-standard-24"
EXHAUSTED = "ZONE_RESOURCE_POOL_EXHAUSTED"


def row(count: int, machine: str = L4, **fields: Any) -> dict[str, Any]:
    """A row of the cloud's capacity."""
    return {"machineType": machine, "zone": ZONE, "count": count, **fields}


def cloud(*pools: dict[str, Any], **spec: Any) -> Cloud:
    """A cloud some seconds after its beginning, with pools that were added later."""
    world = Cloud(cluster(**spec))
    world.wait(5)
    world.put(*pools)
    return world


def test_an_instance_gets_a_machine_or_fails_at_once() -> None:
    world = cloud(autoscaled(), capacity=[row(1)])
    world.put(instance("a"), instance("b"))
    assert world.phases() == ["Failed", "Provisioning"]
    assert world.error("b")[0] == EXHAUSTED
    world.finish()
    assert world.phases() == ["Failed", "Running"]


def test_the_first_come_are_the_first_served() -> None:
    world = cloud(autoscaled(), capacity=[row(2)])
    late = instance("a")
    late["metadata"]["creationTimestamp"] = world.stamp(1)
    world.put(late, instance("c"), instance("b"))
    assert [world.get(scheme.INSTANCE, name, "")["status"]["phase"] for name in "abc"] == [
        "Failed",
        "Provisioning",
        "Provisioning",
    ]


def test_instances_of_no_pool_go() -> None:
    world = cloud()
    world.put(instance("a"))
    assert world.phases() == []


def test_a_failed_instance_of_an_autoscaled_pool_stays_failed() -> None:
    world = cloud(autoscaled(), capacity=[row(0)])
    world.put(instance("a"))
    world.change_cluster(capacity=[])
    assert world.phases() == ["Failed"]


def test_a_pool_without_autoscaler_tries_again_when_there_is_capacity() -> None:
    world = cloud(node_pool(nodeCount=2), capacity=[row(0)])
    assert world.phases() == ["Failed", "Failed"]
    world.finish()
    world.change_cluster(capacity=[row(1)])
    assert world.phases() == ["Failed", "Provisioning"]
    world.finish()
    assert world.ready_nodes() == 1


def test_a_machine_given_back_serves_who_waits() -> None:
    world = cloud(autoscaled("first"), node_pool("second", nodeCount=1), capacity=[row(1)])
    assert world.phases("second") == ["Provisioning"]
    world.finish()
    world.put(node_pool("third", nodeCount=1))
    assert world.phases("third") == ["Failed"]
    world.give_up(world.get(scheme.NODE_POOL, "second", ""))
    world.finish()
    assert (world.phases("second"), world.phases("third")) == ([], ["Running"])


def test_a_future_reservation_is_waited_for() -> None:
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


def test_a_window_is_given_by_date_and_length() -> None:
    window = {"start": "2026-01-01T01:00:00Z", "duration": "2h"}
    kept = {"name": "r", "machineType": L4, "zone": ZONE, "count": 1, **window}
    world = cloud(node_pool(nodeCount=1, reservation="r"), reservations=[kept])
    world.wait(3580)
    assert world.ready_nodes() == 0
    world.wait(20)
    assert world.ready_nodes() == 1
    world.wait(7170)
    assert world.phases() == ["Stopping"]


def test_what_a_reservation_ends_with_is_stopped_and_not_found_again() -> None:
    kept = {"name": "r", "machineType": L4, "zone": ZONE, "count": 1, "end": "1h"}
    world = Cloud(
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


def test_a_machine_that_boots_when_its_reservation_ends_never_comes() -> None:
    kept = {"name": "r", "machineType": L4, "zone": ZONE, "count": 1, "end": "10s"}
    world = cloud(node_pool(nodeCount=1, reservation="r"), reservations=[kept])
    assert world.phases() == ["Provisioning"]
    world.wait(10)
    assert (world.phases(), world.nodes()) == (["Failed"], [])


# --- slices ---


def slice_pool(**spec: Any) -> dict[str, Any]:
    """A slice of two machines that an autoscaler looks after."""
    return autoscaled("tpu", "ct5lp-hightpu-4t", tpuTopology="2x4", **spec)


def test_a_slice_gets_all_its_machines_or_none() -> None:
    world = cloud(slice_pool(), capacity=[row(1, "ct5lp-hightpu-4t")])
    world.put(instance("a", slice_pool()), instance("b", slice_pool()))
    assert world.phases() == ["Failed", "Failed"]
    assert (world.error("a")[0], world.error("b")[0]) == (EXHAUSTED, EXHAUSTED)
    world.give_up(world.instances()[0])
    world.change_cluster(capacity=[row(2, "ct5lp-hightpu-4t")])
    world.put(instance("c", slice_pool()), instance("d", slice_pool()))
    assert world.phases() == ["Provisioning", "Provisioning"]


def test_a_part_of_a_slice_waits_for_the_rest() -> None:
    world = cloud(slice_pool())
    world.put(instance("a", slice_pool()))
    assert world.phases() == [""]
    world.put(instance("b", slice_pool()))
    assert world.phases() == ["Provisioning", "Provisioning"]


def test_more_than_a_slice_is_refused() -> None:
    world = cloud(slice_pool())
    world.put(*[instance(name, slice_pool()) for name in "abc"])
    message = "A slice of 2x4 has 2 machines in one zone, all or none of them."
    assert world.error("c") == ("INVALID_ARGUMENT", message)


def test_a_fixed_slice_waits_for_all_its_machines() -> None:
    fixed = node_pool("tpu", "ct5lp-hightpu-4t", tpuTopology="2x4")
    world = cloud(fixed, capacity=[row(1, "ct5lp-hightpu-4t")])
    assert world.phases() == ["Failed", "Failed"]
    world.change_cluster(capacity=[row(2, "ct5lp-hightpu-4t")])
    assert world.phases() == ["Provisioning", "Provisioning"]


# --- ResizeRequests ---


def queued() -> dict[str, Any]:
    """A pool with queued provisioning."""
    return autoscaled("dws", "a3-highgpu-8g", provisioning="queued")


def state(world: Cloud, name: str) -> str:
    """The state of a ResizeRequest."""
    found: str = world.get(scheme.RESIZE_REQUEST, name, "")["status"]["state"]
    return found


def test_a_resize_request_gets_all_its_machines_at_once() -> None:
    world = cloud(queued(), capacity=[row(4, "a3-highgpu-8g", provisioning="queued")])
    world.put(resize_request("rr", "dws", 3, maxRunDuration="2h"))
    assert (world.phases(), state(world, "rr")) == (["Provisioning"] * 3, "ACCEPTED")
    assert {obj["spec"]["resizeRequest"] for obj in world.instances()} == {"rr"}
    world.wait(600)
    assert (world.phases(), state(world, "rr")) == (["Running"] * 3, "SUCCEEDED")
    world.finish()
    assert (world.phases(), world.nodes()) == ([], [])  # their run duration is over


def test_machines_of_a_request_before_it_do_not_count_for_a_resize_request_of_that_name() -> None:
    world = cloud(queued(), capacity=[row(2, "a3-highgpu-8g", provisioning="queued")])
    world.put(resize_request("rr", "dws"))
    world.wait(600)
    world.delete(scheme.RESIZE_REQUEST, "rr", "")
    world.put(with_metadata(resize_request("rr", "dws"), uid="another"))
    assert (sorted(world.phases()), state(world, "rr")) == (["Provisioning", "Running"], "ACCEPTED")


def test_a_resize_request_waits_without_disturbing_others() -> None:
    world = cloud(queued(), autoscaled(), capacity=[row(2, "a3-highgpu-8g")])
    world.put(resize_request("large", "dws", 3))
    world.put(resize_request("small", "dws", 2), instance("other"))
    assert (state(world, "large"), state(world, "small")) == ("ACCEPTED", "ACCEPTED")
    assert world.phases() == ["Provisioning"] * 3
    world.finish()
    assert (state(world, "large"), state(world, "small")) == ("ACCEPTED", "SUCCEEDED")
    (condition,) = world.get(scheme.RESIZE_REQUEST, "large", "")["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Provisioned", "False", EXHAUSTED)


def test_a_resize_request_is_tried_again_when_capacity_is_free() -> None:
    world = cloud(queued(), autoscaled("now", "a3-highgpu-8g"), capacity=[row(1, "a3-highgpu-8g")])
    first = instance("first", autoscaled("now", "a3-highgpu-8g"))
    world.put(first)
    world.put(resize_request("rr", "dws"))
    world.wait(3 * 86_400)
    assert (world.phases("dws"), state(world, "rr")) == ([], "ACCEPTED")
    world.give_up(first)
    world.wait(600)
    assert (world.phases("dws"), state(world, "rr")) == (["Running"], "SUCCEEDED")


def test_a_resize_request_that_is_served_goes_before_instances() -> None:
    world = cloud(queued(), autoscaled("now", "a3-highgpu-8g"), capacity=[row(1, "a3-highgpu-8g")])
    late = instance("late", autoscaled("now", "a3-highgpu-8g"))
    late["metadata"]["creationTimestamp"] = world.stamp(1)
    world.put(resize_request("rr", "dws"), late)
    assert (world.phases("dws"), world.phases("now")) == (["Provisioning"], ["Failed"])


def test_a_resize_request_for_what_will_never_be_fails() -> None:
    world = cloud(queued(), quotas=[{"name": "nvidia-h100-80gb", "limit": 8}])
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


def test_a_resize_request_that_is_withdrawn_waits_no_more() -> None:
    world = cloud(queued(), capacity=[row(0, "a3-highgpu-8g")])
    world.put(resize_request("rr", "dws"))
    world.give_up(resize_request("rr", "dws"))
    world.change_cluster(capacity=[])
    assert world.phases() == []


def test_a_resize_request_one_of_whose_machines_fails_fails_as_a_whole() -> None:
    world = cloud(queued())
    world.put(resize_request("rr", "dws", 2))
    error = {"code": "OTHER", "message": "why"}
    world.say(world.instances()[0], phase="Failed", error=error)
    assert (state(world, "rr"), world.phases()) == ("FAILED", [])
    assert world.get(scheme.RESIZE_REQUEST, "rr", "")["status"]["error"] == error


def test_an_instance_given_up_before_it_was_served_gets_nothing() -> None:
    world = cloud(autoscaled(), capacity=[row(0)])
    world.put(instance("a"))
    world.give_up(instance("a"))
    assert world.phases() == []
