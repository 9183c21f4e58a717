"""The autoscaler scales up pools for pending pods."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import with_path
from batchyard.autoscaler.index import ScalingIndex
from unit.autoscaler.scaling_make import ZONES, AutoscalerStage, cluster, pod, pool

A, B, C = ZONES
TPU: Any = {"requests": {"google.com/tpu": "4"}}


def autoscaler_reconciles(world: AutoscalerStage) -> int:
    return sum(queue.reconciles for queue in world.runner._queue.queues if queue.controller.name == "autoscaler")


def test_autoscaler_scales_up_for_pending_pods_at_next_scan() -> None:
    world = AutoscalerStage(cluster([pool()]))
    world.run(3)
    world.put(pod("p", cpu="3"), pod("q", cpu="3"))
    world.run(9)
    assert world.machines() == []
    world.run(10)
    assert len(world.machines("pool")) == 2
    world.run(30)
    assert all(world.place(name) for name in ("p", "q"))


def test_autoscaler_counts_upcoming_nodes() -> None:
    slow = {"min": "5m", "typical": "5m", "max": "5m"}
    world = AutoscalerStage(cluster([pool()], times={"boot": slow}))
    world.put(pod("p", cpu="3"))
    world.run(20)
    world.put(pod("q", cpu="500m"), pod("r", cpu="3"))
    world.run(280)
    assert len(world.machines()) == 2


def test_triggered_scale_up_event_names_node_group() -> None:
    world = AutoscalerStage(cluster([pool(most=24)]))
    world.put(pod("p", cpu="3"), pod("q", cpu="3"))
    world.run(10)
    group = world.machines()[0].rpartition("-")[0]
    message = f"pod triggered scale-up: [{{{group}-grp 0->2 (max: 24)}}]"
    assert world.reported("TriggeredScaleUp") == [("p", message), ("q", message)]


def test_not_trigger_scale_up_event_is_reported_once() -> None:
    world = AutoscalerStage(cluster([pool(), pool("large", "e2-standard-8")]))
    world.put(pod("p", cpu="20"))
    world.run(10)
    world.put(pod("q", cpu="1"))
    world.run(60)
    assert world.reported("NotTriggerScaleUp") == [("p", "pod didn't trigger scale-up: 2 Insufficient cpu")]


def test_autoscaler_delays_scale_up_of_accelerator_pods() -> None:
    world = AutoscalerStage(cluster([pool(machine="g2-standard-24")]))
    world.put(pod("p", gpu=2))
    world.run(25)
    world.put(pod("q", gpu=2))
    world.run(29)
    assert world.machines() == []
    world.run(30)
    assert len(world.machines()) == 2


def test_autoscaler_scales_up_for_complete_gang_only() -> None:
    world = AutoscalerStage(cluster([pool(most=3)]))
    world.put(*[pod(f"{gang}{number}", cpu="3", gang=gang) for gang in "ab" for number in range(2)])
    world.run(100)
    assert (len(world.machines()), [world.place(name) != "" for name in ("a0", "a1", "b0", "b1")]) == (
        2,
        [True, True, False, False],
    )


@pytest.mark.parametrize(("policy", "zones"), [("BALANCED", {A: 2, B: 1, C: 1}), ("ANY", {A: 4})])
def test_autoscaler_spreads_nodes_over_zones_by_location_policy(policy: str, zones: dict[str, int]) -> None:
    world = AutoscalerStage(cluster([pool(policy=policy, zones=list(ZONES))]))
    world.put(*[pod(f"p{number}", cpu="3") for number in range(4)])
    world.run(10)
    assert world.zones() == zones


def test_autoscaler_creates_all_hosts_of_tpu_slice_for_single_pod() -> None:
    world = AutoscalerStage(cluster([pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", most=2)]))
    world.put(pod("p", **TPU))
    world.run(60)
    assert (len(world.machines()), world.place("p") != "") == (2, True)


def test_autoscaler_ignores_expendable_pods() -> None:
    world = AutoscalerStage(cluster([pool()]))
    expendable = pod("p", cpu="3")
    world.put({**expendable, "spec": {**expendable["spec"], "priority": -11}})
    world.run(60)
    assert world.machines() == []


def test_autoscaler_keeps_minimum_size_of_pool() -> None:
    world = AutoscalerStage(cluster([pool(nodeCount=1, autoscaling={"min": 1, "max": 3})]))
    world.run(60)
    (name,) = world.machines()
    world.delete(scheme.INSTANCE, name, "")
    world.run(120)
    assert world.machines() != [name]
    assert len(world.nodes()) == 1


def test_autoscaler_does_not_reconcile_without_autoscaled_pools() -> None:
    fixed: dict[str, Any] = pool(nodeCount=1)
    del fixed["autoscaling"]
    world = AutoscalerStage(cluster([fixed]))
    world.put(pod("p", cpu="3"), pod("q", cpu="3"))
    world.run(60)
    assert (autoscaler_reconciles(world), world.reported("NotTriggerScaleUp")) == (0, [])


def test_autoscaler_skips_scan_once_no_pool_is_autoscaled() -> None:
    world = AutoscalerStage(cluster([pool()]))
    world.run(3)
    world.put(pod("p", cpu="3"))
    world.put(with_path(world.get(scheme.NODE_POOL, "pool", ""), ("spec", "autoscaling"), None))
    world.run(60)
    assert (autoscaler_reconciles(world) > 0, world.machines(), world.reported("NotTriggerScaleUp")) == (True, [], [])


def test_autoscaler_does_not_reconcile_for_booting_machines() -> None:
    minute = {"min": "1m", "typical": "1m", "max": "1m"}
    world = AutoscalerStage(cluster([pool()], times=dict.fromkeys(("provisioning", "boot", "network"), minute)))
    world.put(pod("p", cpu="3"))
    world.run(30)
    before = autoscaler_reconciles(world)
    world.run(180)
    assert (len(world.nodes()), autoscaler_reconciles(world)) == (1, before)
    world.run(210)
    assert autoscaler_reconciles(world) > before


def test_restarted_autoscaler_counts_existing_nodes() -> None:
    world = AutoscalerStage(cluster([pool()]))
    world.put(pod("p", cpu="3"))
    world.run(60)
    index = ScalingIndex()
    again = world.restarted()
    assert (again.place("p"), index.is_needed) == (world.place("p"), False)
    again.put(pod("q", cpu="500m"), pod("r", cpu="3"))
    again.run(100)
    assert again.place("q") == again.place("p")
    assert len(again.machines()) == 2
