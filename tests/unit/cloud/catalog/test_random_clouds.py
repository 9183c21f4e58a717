"""Invariants of the cloud under random requests and failures."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.api import scheme
from batchyard.cloud.catalog.instances import is_being_deleted, phase_of
from batchyard.interfaces.client import WatchEvent
from unit.cloud.catalog.cloud_make import ZONE, CloudStage, autoscaled, cluster, instance, resize_request

L4, TPU = "g2-standard-24", "ct5lp-hightpu-4t"
SCALED = {"autoscaling": {"min": 0, "max": 9}, "zones": [ZONE]}
POOLS: Sequence[dict[str, Any]] = (
    {"name": "fixed", "machineType": L4, "zones": [ZONE], "nodeCount": 2},
    {"name": "reserved", "machineType": L4, "zones": [ZONE], "nodeCount": 2, "reservation": "r"},
    {"name": "slice", "machineType": TPU, "zones": [ZONE], "tpuTopology": "2x4"},
    {"name": "scaled", "machineType": L4, **SCALED},
    {"name": "scaled-slice", "machineType": TPU, "tpuTopology": "2x4", **SCALED},
    {"name": "queued", "machineType": L4, "provisioning": "queued", **SCALED},
)
IN_USE = {"Provisioning", "Booting", "Running", "Stopping", "Crashed"}

Act = Callable[[CloudStage, int], None]


def begin() -> dict[str, Any]:
    """Return a cluster with little capacity."""
    return cluster(
        nodePools=list(POOLS),
        reservations=[{"name": "r", "machineType": L4, "zone": ZONE, "count": 1, "start": "10m", "end": "2h"}],
        capacity=[row(L4, 4), row(TPU, 3)],
        quotas=[{"name": "nvidia-l4", "limit": 10}],
    )


def row(machine: str, count: int) -> dict[str, Any]:
    """Return a row of the cloud's capacity."""
    return {"machineType": machine, "zone": ZONE, "count": count}


def ask(world: CloudStage, number: int) -> None:
    """Request a machine, as an autoscaler does."""
    world.put(instance(f"asked-{world.kernel.steps}", autoscaled("scaled", L4)))


def ask_for_slice(world: CloudStage, number: int) -> None:
    """Request a slice, as an autoscaler does, if there is none."""
    pool = autoscaled("scaled-slice", TPU, tpuTopology="2x4")
    if not world.instances("scaled-slice"):
        world.put(*(instance(f"tpu-{world.kernel.steps}-{host}", pool) for host in "ab"))


def request(world: CloudStage, number: int) -> None:
    """Create a ResizeRequest for several machines."""
    world.put(resize_request(f"rr-{world.kernel.steps}", "queued", 1 + number % 3, maxRunDuration="30m"))


def choose_machine(world: CloudStage, number: int) -> list[Mapping[str, Any]]:
    """Return one of the machines, if there are any."""
    result = world.instances()
    return [result[number % len(result)]] if result else []


def give_up(world: CloudStage, number: int) -> None:
    """Delete a machine."""
    world.give_up(*choose_machine(world, number))


def crash(world: CloudStage, number: int) -> None:
    """Crash a machine."""
    for result in choose_machine(world, number):
        if phase_of(result) in IN_USE:
            world.crash(result)


def reclaim(world: CloudStage, number: int) -> None:
    """Reclaim a machine."""
    for result in choose_machine(world, number):
        if phase_of(result) in IN_USE:
            world.say(result, stopAt=world.stamp(30))


def restock(world: CloudStage, number: int) -> None:
    """Change the capacity of the cloud."""
    world.change_cluster(capacity=[row(L4, number % 6), row(TPU, number % 5)])


ACTS: Sequence[Act] = (ask, ask_for_slice, request, give_up, crash, reclaim, restock)


def used_machines(world: CloudStage, machine: str) -> int:
    """Count the machines of a type in use outside of reservations."""
    return sum(
        obj["spec"]["machineType"] == machine
        and obj["spec"]["pool"] != "reserved"
        and phase_of(obj) in IN_USE
        and not (phase_of(obj) == "Crashed" and is_being_deleted(obj))
        for obj in world.instances()
    )


def check_assignment(world: CloudStage, event: WatchEvent) -> None:
    """Check that each assigned machine is within the capacity."""
    if event.key.kind != scheme.INSTANCE or phase_of(event.obj) != "Provisioning" or event.old is None:
        return
    if phase_of(event.old) == "Provisioning":
        return
    machine, (result,) = event.obj["spec"]["machineType"], world.client.list(scheme.CLUSTER)
    if event.obj["spec"]["pool"] == "reserved":
        assert sum(phase_of(obj) in IN_USE and not is_being_deleted(obj) for obj in world.instances("reserved")) <= 1
    else:
        assert used_machines(world, machine) <= next(
            r["count"] for r in result["spec"]["capacity"] if r["machineType"] == machine
        )


def check(world: CloudStage) -> None:
    """Check the invariants that hold when no work is due."""
    for name in ("slice", "scaled-slice"):
        hosts = [obj for obj in world.instances(name) if not is_being_deleted(obj)]
        assert sum(phase_of(obj) in IN_USE for obj in hosts) in {0, 2}
    assert set(world.nodes()) <= {obj["metadata"]["name"] for obj in world.instances()}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 59), st.integers(0, 900)), max_size=25))
def test_cloud_invariants_hold_under_random_actions(acts: list[tuple[Act, int, int]]) -> None:
    world = CloudStage(begin())
    world.store.listen(partial(check_assignment, world))
    for act, number, seconds in acts:
        act(world, number)
        check(world)
        world.wait(seconds)
        check(world)
    world.finish()
    assert set(world.phases()) <= {"Running", "Failed"}
    assert not any(map(is_being_deleted, world.instances()))
    assert world.ready_nodes() == len(world.nodes()) == world.phases().count("Running")
    assert len(world.phases("fixed")) == len(world.phases("slice")) == 2
    again = world.restarted()
    assert again.controllers.written == 0
