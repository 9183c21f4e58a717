"""The controllers of the cloud may crash before any of their writes: their replacements continue."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.cloud.catalog.instances import phase_of
from batchyard.cloud.cluster_objects import initial_objects
from unit.cloud.catalog.cloud_make import (
    ZONE,
    CloudStage,
    ControllerCrashError,
    autoscaled,
    cluster,
    instance,
    resize_request,
)

pytestmark = pytest.mark.slow

TPU = "ct5lp-hightpu-4t"
SLICE = {"zones": [ZONE], "tpuTopology": "2x4"}
SCALED = {"autoscaling": {"min": 0, "max": 9}, "zones": [ZONE]}

Step = tuple[float, Callable[[CloudStage], None]]


def begin() -> dict[str, Any]:
    """Return a cluster with pools of each kind and little capacity."""
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


def one_of(world: CloudStage, pool: str) -> list[Mapping[str, Any]]:
    """Return the first machine of a pool, if it has any."""
    return list(world.instances(pool))[:1]


def ask_for_slice(world: CloudStage) -> None:
    """Request a slice, as an autoscaler does."""
    pool = autoscaled("scaled-slice", TPU, **SLICE)
    world.put(instance("tpu-a", pool), instance("tpu-b", pool))


def request_more_than_capacity(world: CloudStage) -> None:
    """Create two ResizeRequests; there is capacity for one of them."""
    world.put(resize_request("first", "dws", 2, maxRunDuration="1h"), resize_request("second", "dws", 1))


def crash_slices(world: CloudStage) -> None:
    """Crash a machine of each slice, and one of a fixed pool."""
    for pool in ("fixed", "slice", "scaled-slice"):
        for result in one_of(world, pool):
            world.crash(result)


def reclaim_spot(world: CloudStage) -> None:
    """Reclaim a Spot machine."""
    for result in one_of(world, "spot"):
        world.say(result, stopAt=world.stamp(30))


def give_up_pool(world: CloudStage) -> None:
    """Delete a pool."""
    world.give_up(world.get(scheme.NODE_POOL, "slice", ""))


STORY: list[Step] = [
    (10, ask_for_slice),
    (10, request_more_than_capacity),
    (300, crash_slices),
    (50, reclaim_spot),
    (3000, give_up_pool),
]


def play(lives: int | None) -> CloudStage:
    """Play the story; the controllers crash once, after this many writes, and are replaced."""
    world = CloudStage()
    world.controllers.left = lives

    def alive(work: Callable[[], object]) -> None:
        nonlocal world
        try:
            work()
        except ControllerCrashError:
            world = world.restarted()

    alive(lambda: world.put(*initial_objects(begin())))
    for seconds, step in STORY:
        alive(partial(CloudStage.wait, world, seconds))
        alive(partial(step, world))
    alive(world.finish)
    world.finish()
    return world


def summary(world: CloudStage) -> dict[str, Any]:
    """Return the final state without names and times."""
    running = [obj["metadata"]["name"] for obj in world.instances() if phase_of(obj) == "Running"]
    return {
        "machines": [(obj["spec"]["pool"], phase_of(obj)) for obj in world.instances()],
        "nodes of no machine": sorted(set(world.nodes()) ^ set(running)),
        "ready": world.ready_nodes(),
        "requests": [obj["status"]["state"] for obj in world.client.list(scheme.RESIZE_REQUEST)],
        "pools": [obj["metadata"]["name"] for obj in world.client.list(scheme.NODE_POOL)],
    }


def test_story_without_crash_has_expected_outcome() -> None:
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
def test_outcome_is_independent_of_controller_crash(part: int) -> None:
    expected = play(None)
    for lives in range(part, expected.controllers.written, 4):
        result = summary(play(lives))
        assert result == summary(expected), f"they died before write {lives}"
