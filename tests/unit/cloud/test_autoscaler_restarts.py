"""The controllers may crash before any of their writes: the outcome is the same."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import pytest

from batchyard.api import scheme
from batchyard.cloud.cluster_objects import initial_objects
from unit.autoscaler.scaling_make import (
    ZONES,
    AutoscalerStage,
    Obj,
    cluster,
    pod,
    pod_template,
    pool,
    provisioning_request,
    says,
)
from unit.cloud.catalog.cloud_make import ControllerCrashError

pytestmark = pytest.mark.slow

HASTY = {"unneededTime": "1m", "profile": "optimize-utilization"}


class AutoscalerScenario(NamedTuple):
    """The initial cluster, the actions with their delays in seconds, and the duration of the run."""

    begin: Obj
    steps: Sequence[tuple[float, Callable[[AutoscalerStage], None]]]
    until: float


def put(*objects: Any) -> Callable[[AutoscalerStage], None]:
    return lambda world: world.put(*objects)


def end(*names: str) -> Callable[[AutoscalerStage], None]:
    return lambda world: world.end(*names)


def stop_moving(world: AutoscalerStage) -> None:
    """Remove the evicted pod: this world has no kubelet."""
    assert "deletionTimestamp" in world.get(scheme.POD, "r")["metadata"]
    world.remove("r")


def gang(count: int) -> list[Obj]:
    return [pod(f"g{number}", cpu="3", gang="g") for number in range(count)]


def new_pool() -> AutoscalerScenario:
    limits = [{"resource": name, "max": 100} for name in ("cpu", "memory")]
    begin = cluster(autoscaling={"autoProvisioning": {"limits": limits}})
    return AutoscalerScenario(begin, [(3, put(*gang(3)))], 100)


def failure() -> AutoscalerScenario:
    capacity = [{"machineType": "e2-standard-4", "zone": ZONES[0], "count": 0}]
    pods = [pod(f"p{number}", cpu="3") for number in range(3)]
    return AutoscalerScenario(cluster([pool(zones=list(ZONES[:2]))], capacity=capacity), [(3, put(*pods))], 300)


def slice_scenario() -> AutoscalerScenario:
    slices = pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", most=2)
    return AutoscalerScenario(cluster([slices]), [(3, put(pod("p", requests={"google.com/tpu": "4"})))], 100)


def scale_down_scenario() -> AutoscalerScenario:
    return AutoscalerScenario(cluster([pool()], autoscaling=HASTY), [(3, put(*gang(2))), (60, end("g0", "g1"))], 600)


def drain_scenario() -> AutoscalerScenario:
    begin = cluster([pool(nodeCount=1), pool("big", "e2-standard-8", nodeCount=1)], autoscaling=HASTY)
    only_small: Any = {"nodeSelector": {"cloud.google.com/gke-nodepool": "pool"}}
    only_big: Any = {"nodeSelector": {"cloud.google.com/gke-nodepool": "big"}}
    pods = [pod("p", cpu="2", **only_small), pod("r", cpu="1"), pod("q", cpu="4", **only_big)]
    pods.append(pod("s", cpu="3500m", **only_big))
    return AutoscalerScenario(begin, [(30, put(*pods)), (60, end("p", "q")), (400, stop_moving)], 600)


def queued_request_scenario() -> AutoscalerScenario:
    accelerator = {"type": "nvidia-tesla-t4", "count": 1}
    pools = [pool("dws", "n1-standard-2", 2, provisioning="queued", accelerator=accelerator, policy="ANY")]
    template = pod_template(cpu="100m", memory="100Mi", gpu=1)
    return AutoscalerScenario(cluster(pools), [(3, put(template, provisioning_request(count=2)))], 1500)


def play(story: AutoscalerScenario, lives: int | None = None) -> AutoscalerStage:
    """Play a story; the controllers crash once, after this many writes. Return the world at the end."""
    world = AutoscalerStage()
    world.controllers.left = lives

    def alive(work: Callable[[AutoscalerStage], None]) -> None:
        nonlocal world
        try:
            work(world)
        except ControllerCrashError:
            world = world.restarted()

    alive(put(*initial_objects(story.begin)))
    for seconds, act in story.steps:
        alive(partial(AutoscalerStage.run, seconds=seconds))
        world.run(seconds)
        alive(act)
    alive(partial(AutoscalerStage.run, seconds=story.until))
    world.run(story.until)
    return world


def outcome(world: AutoscalerStage) -> Any:
    """Return the final state without names and times."""
    places = {obj["metadata"]["name"]: world.place(obj["metadata"]["name"]) for obj in world.client.list(scheme.POD)}
    requests = world.client.list(scheme.PROVISIONING_REQUEST)
    return {
        "pools": world.pools(),
        "nodes": Counter(name.rpartition("-")[0] for name in world.nodes()),
        "machines": Counter(name.rpartition("-")[0] for name in world.machines()),
        "zones": world.zones(),
        "pods": {name: place.rpartition("-")[0] for name, place in places.items()},
        "requests": [[says(obj, kind) for kind in ("Provisioned", "BookingExpired")] for obj in requests],
    }


@pytest.mark.parametrize(
    "reported", [new_pool, failure, slice_scenario, scale_down_scenario, drain_scenario, queued_request_scenario]
)
def test_outcome_is_independent_of_controller_crash(reported: Callable[[], AutoscalerScenario]) -> None:
    expected = play(reported())
    for lives in range(expected.controllers.written):
        assert outcome(play(reported(), lives)) == outcome(expected), f"they died before write {lives}"


@pytest.mark.parametrize(
    ("reported", "nodes"),
    [(new_pool, 3), (failure, 3), (scale_down_scenario, 0), (drain_scenario, 1), (queued_request_scenario, 0)],
)
def test_stories_end_with_expected_number_of_nodes(reported: Callable[[], AutoscalerScenario], nodes: int) -> None:
    world = play(reported())
    assert (len(world.nodes()), len(world.machines())) == (nodes, nodes)
