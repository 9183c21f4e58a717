"""The life of a machine and of its Node."""

from typing import Any

import pytest

from batchyard.api import scheme, well_known
from batchyard.api.views.node import node_view
from unit.cloud.catalog.cloud_make import ZONE, CloudStage, autoscaled, cluster, instance, resize_request

SPREAD_OF_10 = {"min": "10s", "typical": "10s", "max": "10s"}
TIMES = dict.fromkeys(("provisioning", "boot", "registration", "drivers", "network", "shutdown"), SPREAD_OF_10)


def cloud(pool: dict[str, Any] | None = None, **spec: Any) -> CloudStage:
    """Return a cloud with one autoscaled pool, steps of ten seconds, and one requested machine."""
    world = CloudStage(cluster(times=TIMES, **spec))
    world.wait(1)
    world.put(pool or autoscaled())
    world.put(instance("a", pool))
    return world


def phase(world: CloudStage) -> str:
    """Return the phase of the machine; empty if it is deleted."""
    return world.phases()[0] if world.phases() else ""


def test_machine_boots_registers_and_installs_drivers() -> None:
    world = cloud()
    seen = []
    for _ in range(6):
        seen.append((phase(world), len(world.nodes()), world.ready_nodes()))
        world.wait(10)
    assert seen == [
        ("Provisioning", 0, 0),
        ("Booting", 0, 0),
        ("Booting", 0, 0),
        ("Running", 1, 0),
        ("Running", 1, 1),
        ("Running", 1, 1),
    ]
    assert world.kernel.pending_count() == 0
    assert world.reasons() == ["NodeReady"]


def test_node_has_name_of_machine_and_not_ready_taint() -> None:
    world = cloud()
    world.wait(30)
    (node,) = world.client.list(scheme.NODE)
    view = node_view(node)
    assert (view.name, view.labels["topology.kubernetes.io/zone"]) == ("a", ZONE)
    assert [taint.key for taint in view.taints] == ["nvidia.com/gpu", "node.kubernetes.io/not-ready"]


def test_step_times_differ_by_machine_and_seed_only() -> None:
    def ready_after(name: str, seed: int) -> int:
        world = CloudStage(cluster(), seed)
        world.wait(1)
        world.put(autoscaled())
        world.put(instance(name))
        world.finish()
        return world.kernel.now()

    assert ready_after("a", 1) == ready_after("a", 1)
    assert len({ready_after("a", 1), ready_after("b", 1), ready_after("a", 2)}) == 3


def test_initial_machine_is_ready_at_once() -> None:
    world = CloudStage(cluster(times=TIMES))
    pool = autoscaled()
    initial = instance("a", pool)
    initial["metadata"]["annotations"] = {well_known.INITIAL_INSTANCE: "true"}
    world.put(pool, initial)
    assert (phase(world), world.ready_nodes(), world.kernel.pending_count()) == ("Running", 1, 0)


def test_changed_boot_time_applies_to_booting_machine() -> None:
    world = cloud()
    world.wait(5)
    slow = {"min": "100s", "typical": "100s", "max": "100s"}
    world.change_cluster(times={**TIMES, "boot": slow})
    world.wait(100)
    assert phase(world) == "Booting"
    world.finish()
    assert world.ready_nodes() == 1


def test_deleted_machine_shuts_down_with_its_node() -> None:
    world = cloud()
    world.wait(60)
    world.give_up(instance("a"))
    assert (phase(world), world.nodes()) == ("Running", ["a"])
    world.wait(9)
    assert (phase(world), world.nodes()) == ("Running", ["a"])
    world.wait(1)
    assert (phase(world), world.nodes()) == ("", [])


@pytest.mark.parametrize("seconds", [0, 15])
def test_machine_without_node_is_deleted_at_once(seconds: int) -> None:
    world = cloud()
    world.wait(seconds)
    world.give_up(instance("a"))
    assert phase(world) == ""
    world.finish()
    assert world.nodes() == []


def test_reclaimed_machine_stops_after_notice_period() -> None:
    world = cloud(autoscaled(provisioning="spot"))
    world.wait(60)
    world.say(world.instances()[0], stopAt=world.stamp(30))
    assert (phase(world), world.nodes()) == ("Stopping", ["a"])
    world.wait(29)
    assert (phase(world), world.nodes()) == ("Stopping", ["a"])
    world.wait(1)
    assert (phase(world), world.nodes(), world.kernel.pending_count()) == ("", [], 0)


def test_stopping_node_does_not_become_ready() -> None:
    world = cloud()
    world.wait(35)
    assert (len(world.nodes()), world.ready_nodes()) == (1, 0)
    world.say(world.instances()[0], stopAt=world.stamp(30))
    world.wait(25)
    assert (phase(world), world.ready_nodes()) == ("Stopping", 0)


def test_machine_reclaimed_during_boot_never_registers() -> None:
    world = cloud()
    world.wait(15)
    world.say(world.instances()[0], stopAt=world.stamp(5))
    world.finish()
    assert (phase(world), world.nodes()) == ("", [])


def test_machine_stops_after_max_run_duration() -> None:
    world = cloud(autoscaled(maxRunDuration="10m"))
    world.wait(30)
    assert world.instances()[0]["status"]["stopAt"] == world.stamp(600)
    world.wait(569)
    assert (phase(world), world.ready_nodes()) == ("Running", 1)
    world.wait(1)
    assert phase(world) == "Stopping"
    world.finish()
    assert (phase(world), world.nodes()) == ("", [])


def test_deleted_stopping_machine_is_removed_when_off() -> None:
    world = cloud()
    world.wait(60)
    world.say(world.instances()[0], stopAt=world.stamp(30))
    world.wait(25)
    world.give_up(instance("a"))
    world.wait(4)
    assert phase(world) == "Stopping"
    world.wait(1)
    assert phase(world) == ""


def test_crashed_machine_keeps_node_until_repair_timeout() -> None:
    world = cloud()
    world.wait(60)
    world.crash(world.instances()[0])
    world.wait(599)
    assert (phase(world), world.nodes()) == ("Crashed", ["a"])
    world.wait(1)
    assert (phase(world), world.nodes(), world.kernel.pending_count()) == ("", [], 0)


def test_node_of_unknown_status_is_not_changed() -> None:
    world = cloud()
    world.wait(60)
    node = world.get(scheme.NODE, "a", "")
    unknown = {**node["status"]["conditions"][0], "status": "Unknown", "reason": "NodeStatusUnknown"}
    world.say(node, conditions=[unknown])
    world.say(world.instances()[0], conditions=[])
    assert world.get(scheme.NODE, "a", "")["status"]["conditions"] == [unknown]


def test_node_of_resize_request_has_its_label() -> None:
    pool = autoscaled("dws", provisioning="queued")
    world = CloudStage(cluster())
    world.put(pool, resize_request("rr", "dws"))
    world.wait(600)
    (node,) = world.client.list(scheme.NODE)
    assert node["metadata"]["labels"]["autoscaling.gke.io/provisioning-request"] == "rr"


def test_node_of_vanished_instance_is_deleted() -> None:
    world = cloud()
    world.wait(60)
    world.put({**world.instances()[0], "metadata": {**world.instances()[0]["metadata"], "finalizers": []}})
    world.give_up(instance("a"))
    assert (phase(world), world.nodes()) == ("", [])
