"""The autoscaler grows pools for pods that wait, where and when it should."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.autoscaler.index import ScalingIndex
from unit.autoscaler.scaling_make import ZONES, Scaled, cluster, pod, pool

A, B, C = ZONES
TPU: Any = {"requests": {"google.com/tpu": "4"}}


def looks(world: Scaled) -> int:
    return sum(lane.reconciles for lane in world.runner._queue.lanes if lane.controller.name == "autoscaler")


def test_pods_that_wait_get_nodes_at_the_next_look() -> None:
    world = Scaled(cluster([pool()]))
    world.run(3)
    world.put(pod("p", cpu="3"), pod("q", cpu="3"))
    world.run(9)
    assert world.machines() == []
    world.run(10)
    assert len(world.machines("pool")) == 2
    world.run(30)
    assert all(world.place(name) for name in ("p", "q"))


def test_nodes_that_are_coming_are_not_asked_for_again() -> None:
    slow = {"min": "5m", "typical": "5m", "max": "5m"}
    world = Scaled(cluster([pool()], times={"boot": slow}))
    world.put(pod("p", cpu="3"))
    world.run(20)
    world.put(pod("q", cpu="500m"), pod("r", cpu="3"))
    world.run(280)
    assert len(world.machines()) == 2


def test_pods_are_told_which_group_grows() -> None:
    world = Scaled(cluster([pool(most=24)]))
    world.put(pod("p", cpu="3"), pod("q", cpu="3"))
    world.run(10)
    group = world.machines()[0].rpartition("-")[0]
    message = f"pod triggered scale-up: [{{{group}-grp 0->2 (max: 24)}}]"
    assert world.reported("TriggeredScaleUp") == [("p", message), ("q", message)]


def test_pods_that_no_pool_fits_are_told_once() -> None:
    world = Scaled(cluster([pool(), pool("large", "e2-standard-8")]))
    world.put(pod("p", cpu="20"))
    world.run(10)
    world.put(pod("q", cpu="1"))
    world.run(60)
    assert world.reported("NotTriggerScaleUp") == [("p", "pod didn't trigger scale-up: 2 Insufficient cpu")]


def test_pods_with_accelerators_are_given_time_to_come_together() -> None:
    world = Scaled(cluster([pool(machine="g2-standard-24")]))
    world.put(pod("p", gpu=2))
    world.run(25)
    world.put(pod("q", gpu=2))
    world.run(29)
    assert world.machines() == []
    world.run(30)
    assert len(world.machines()) == 2


def test_a_gang_gets_all_its_nodes_or_none() -> None:
    world = Scaled(cluster([pool(most=3)]))
    world.put(*[pod(f"{gang}{number}", cpu="3", gang=gang) for gang in "ab" for number in range(2)])
    world.run(100)
    assert (len(world.machines()), [world.place(name) != "" for name in ("a0", "a1", "b0", "b1")]) == (
        2,
        [True, True, False, False],
    )


@pytest.mark.parametrize(("policy", "zones"), [("BALANCED", {A: 2, B: 1, C: 1}), ("ANY", {A: 4})])
def test_zones_are_kept_alike_or_the_first_is_filled(policy: str, zones: dict[str, int]) -> None:
    world = Scaled(cluster([pool(policy=policy, zones=list(ZONES))]))
    world.put(*[pod(f"p{number}", cpu="3") for number in range(4)])
    world.run(10)
    assert world.zones() == zones


def test_a_slice_comes_whole_for_one_pod() -> None:
    world = Scaled(cluster([pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", most=2)]))
    world.put(pod("p", **TPU))
    world.run(60)
    assert (len(world.machines()), world.place("p") != "") == (2, True)


def test_expendable_pods_get_no_nodes() -> None:
    world = Scaled(cluster([pool()]))
    expendable = pod("p", cpu="3")
    world.put({**expendable, "spec": {**expendable["spec"], "priority": -11}})
    world.run(60)
    assert world.machines() == []


def test_a_pool_is_never_below_its_least() -> None:
    world = Scaled(cluster([pool(nodeCount=1, autoscaling={"min": 1, "max": 3})]))
    world.run(60)
    (name,) = world.machines()
    world.delete(scheme.INSTANCE, name, "")
    world.run(120)
    assert world.machines() != [name]
    assert len(world.nodes()) == 1


def test_a_cluster_of_fixed_pools_costs_nothing() -> None:
    fixed: dict[str, Any] = pool(nodeCount=1)
    del fixed["autoscaling"]
    world = Scaled(cluster([fixed]))
    world.put(pod("p", cpu="3"), pod("q", cpu="3"))
    world.run(60)
    assert (looks(world), world.reported("NotTriggerScaleUp")) == (0, [])


def test_machines_on_their_way_are_no_reason_to_look() -> None:
    minute = {"min": "1m", "typical": "1m", "max": "1m"}
    world = Scaled(cluster([pool()], times=dict.fromkeys(("provisioning", "boot", "network"), minute)))
    world.put(pod("p", cpu="3"))
    world.run(30)
    before = looks(world)
    world.run(180)
    assert (len(world.nodes()), looks(world)) == (1, before)
    world.run(210)
    assert looks(world) > before


def test_an_index_reads_what_it_missed_once_something_scales() -> None:
    world = Scaled(cluster([pool()]))
    world.put(pod("p", cpu="3"))
    world.run(60)
    index = ScalingIndex()
    again = world.restarted()
    assert (again.place("p"), index.is_needed) == (world.place("p"), False)
    again.put(pod("q", cpu="500m"), pod("r", cpu="3"))
    again.run(100)
    assert again.place("q") == again.place("p")
    assert len(again.machines()) == 2
