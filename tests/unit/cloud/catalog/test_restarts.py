"""The controllers of the cloud may die before any of their writes: others go on where they stopped."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.cloud.catalog.instances import phase_of
from batchyard.cloud.cluster_objects import initial_objects
from unit.cloud.catalog.cloud_make import ZONE, Cloud, Died, autoscaled, cluster, instance, resize_request

TPU = "ct5lp-hightpu-4t"
SLICE = {"zones": [ZONE], "tpuTopology": "2x4"}
SCALED = {"autoscaling": {"min": 0, "max": 9}, "zones": [ZONE]}

Step = tuple[float, Callable[[Cloud], None]]


def begin() -> dict[str, Any]:
    """A cluster with pools of every kind, short of capacity."""
    return cluster(
        nodePools=[
            {"name": "fixed", "machineType": "e2-medium", "zones": [ZONE], "nodeCount": 2},
            {"name": "slice", "machineType": TPU, **SLICE},
            {"name": "scaled-slice", "machineType": TPU, **SCALED, **SLICE},
            {"name": "spot", "machineType": "g2-standard-24", "provisioning": "spot", "nodeCount": 1, **SCALED},
            {"name": "dws", "machineType": "a3-highgpu-8g", "provisioning": "queued", **SCALED},
        ],
        capacity=[{"machineType": "a3-highgpu-8g", "zone": ZONE, "count": 2}],
    )


def one_of(world: Cloud, pool: str) -> list[Mapping[str, Any]]:
    """The first machine of a pool, if it has one."""
    return list(world.instances(pool))[:1]


def ask_for_slice(world: Cloud) -> None:
    """An autoscaler asks for a slice."""
    pool = autoscaled("scaled-slice", TPU, **SLICE)
    world.put(instance("tpu-a", pool), instance("tpu-b", pool))


def ask_for_more_than_there_is(world: Cloud) -> None:
    """Two ResizeRequests of which one can be served."""
    world.put(resize_request("first", "dws", 2, maxRunDuration="1h"), resize_request("second", "dws", 1))


def crash_slices(world: Cloud) -> None:
    """A machine of each slice is lost, and one of a fixed pool."""
    for pool in ("fixed", "slice", "scaled-slice"):
        for found in one_of(world, pool):
            world.crash(found)


def reclaim_spot(world: Cloud) -> None:
    """The cloud wants a Spot machine back."""
    for found in one_of(world, "spot"):
        world.say(found, stopAt=world.stamp(30))


def give_up_pool(world: Cloud) -> None:
    """A pool is deleted."""
    world.give_up(world.get(scheme.NODE_POOL, "slice", ""))


STORY: list[Step] = [
    (10, ask_for_slice),
    (10, ask_for_more_than_there_is),
    (300, crash_slices),
    (50, reclaim_spot),
    (3000, give_up_pool),
]


def play(lives: int | None) -> Cloud:
    """Play the story; the controllers die before a write and are replaced."""
    world = Cloud()
    world.controllers.left = lives

    def alive(work: Callable[[], object]) -> None:
        nonlocal world
        try:
            work()
        except Died:
            world = world.restarted()

    alive(lambda: world.put(*initial_objects(begin())))
    for seconds, step in STORY:
        alive(partial(Cloud.wait, world, seconds))
        alive(partial(step, world))
    alive(world.finish)
    world.finish()
    return world


def summary(world: Cloud) -> dict[str, Any]:
    """What is there in the end, names and times aside."""
    running = [obj["metadata"]["name"] for obj in world.instances() if phase_of(obj) == "Running"]
    return {
        "machines": [(obj["spec"]["pool"], phase_of(obj)) for obj in world.instances()],
        "nodes of no machine": sorted(set(world.nodes()) ^ set(running)),
        "ready": world.ready_nodes(),
        "requests": [obj["status"]["state"] for obj in world.client.list(scheme.RESIZE_REQUEST)],
        "pools": [obj["metadata"]["name"] for obj in world.client.list(scheme.NODE_POOL)],
    }


def test_the_story_ends_well_without_a_death() -> None:
    world = play(None)
    assert summary(world) == {
        "machines": [("fixed", "Running")] * 2 + [("scaled-slice", "Running")] * 2,
        "nodes of no machine": [],
        "ready": 4,
        "requests": ["SUCCEEDED", "SUCCEEDED"],
        "pools": ["dws", "fixed", "scaled-slice", "spot"],
    }
    assert world.controllers.written > 100


@pytest.mark.parametrize("part", range(4))
def test_it_ends_alike_whichever_write_the_controllers_die_before(part: int) -> None:
    expected = play(None)
    for lives in range(part, expected.controllers.written, 4):
        found = summary(play(lives))
        assert found == summary(expected), f"they died before write {lives}"
