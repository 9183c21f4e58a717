"""Pools that the autoscaler makes: for pods that no pool fits, within limits, and only while they are of use."""

from typing import Any

from batchyard.api import scheme
from unit.autoscaler.scaling_make import ZONES, Obj, Scaled, cluster, pod, pool

A, B, C = ZONES
GROUPS = ("team-a-0-compact", "team-b-0-compact")
A100 = "a2-highgpu-1g"


def limits(**most: int) -> dict[str, Any]:
    """What a Cluster says of the pools that may be made."""
    most = {"cpu": 1000, "memory": 4000, "nvidia-tesla-a100": 100, "tpu-v5-lite-podslice": 64} | most
    return {"autoProvisioning": {"limits": [{"resource": name, "max": count} for name, count in most.items()]}}


def making(*pools: Obj, most: dict[str, int] | None = None, **spec: Any) -> Scaled:
    """A world in which pools are made."""
    return Scaled(cluster(pools, autoscaling={"profile": "optimize-utilization", **limits(**(most or {}))}, **spec))


def compact(group: str, number: int) -> Obj:
    """One of the pods that want to be near each other, on spot machines with an A100 each."""
    keys = {
        "placement-group": group,
        "cloud.google.com/gke-placement-group": group,
        "cloud.google.com/gke-spot": "true",
    }
    return pod(
        f"{group}-{number}",
        cpu="10",
        gpu=1,
        gang=group,
        tolerations=[{"key": key, "value": value, "effect": "NoSchedule"} for key, value in keys.items()],
        nodeSelector={**keys, "cloud.google.com/gke-accelerator": "nvidia-tesla-a100"},
    )


def tpu(slice_: str, number: int) -> Obj:
    """A pod of a slice, which wants all the slice in one pool, and no other there: as JobSets do that own a pool."""
    key, topology = {"key": "job-key", "operator": "In", "values": [slice_]}, "cloud.google.com/gke-nodepool"
    others: list[Obj] = [{"key": "job-key", "operator": "Exists"}, {**key, "operator": "NotIn"}]

    def term(*expressions: Obj) -> Obj:
        selector = {"matchExpressions": list(expressions)}
        only = {"labelSelector": selector, "topologyKey": topology, "namespaceSelector": {}}
        return {"requiredDuringSchedulingIgnoredDuringExecution": [only]}

    chips = {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice", "cloud.google.com/gke-tpu-topology": "2x4"}
    return pod(
        f"{slice_}-{number}",
        gang="job",
        requests={"google.com/tpu": "4"},
        nodeSelector=chips,
        labels={"job-key": slice_},
        affinity={"podAffinity": term(key), "podAntiAffinity": term(*others)},
    )


def test_each_placement_group_gets_a_pool_of_its_name() -> None:
    world = making(pool("small", "e2-medium", 2))
    world.put(*[compact(group, number) for group in GROUPS for number in range(2)])
    world.run(60)
    assert world.pools() == ["small", *GROUPS]
    for group in GROUPS:
        assert [world.place(f"{group}-{number}") for number in range(2)] == world.nodes(group)
        assert world.nodes(group)[0].startswith(f"gke-batch-{group}-")
        assert world.get(scheme.NODE_POOL, group, "")["spec"]["placementGroup"] == group


def test_a_pool_goes_with_its_last_node() -> None:
    world = making()
    world.put(*[compact(GROUPS[0], number) for number in range(2)])
    world.run(60)
    world.end(f"{GROUPS[0]}-0")
    world.run(300)
    assert (world.pools(), len(world.nodes())) == ([GROUPS[0]], 1)
    world.end(f"{GROUPS[0]}-1")
    world.finish()
    assert (world.pools(), world.machines(), world.nodes()) == ([], [], [])


def test_each_slice_gets_a_pool() -> None:
    world = making()
    world.put(*[tpu(slice_, number) for slice_ in ("s0", "s1", "s2") for number in range(2)])
    world.run(100)
    assert [len(world.nodes(name)) for name in world.pools()] == [2, 2, 2]
    homes = [world.place(f"{slice_}-{number}") for slice_ in ("s0", "s1", "s2") for number in range(2)]
    assert sorted(homes) == world.nodes()


def test_the_cheapest_machine_that_fits_is_taken() -> None:
    world = making()
    world.put(pod("p", cpu="3"))
    world.run(60)
    (name,) = world.pools()
    assert world.get(scheme.NODE_POOL, name, "")["spec"]["machineType"] == "e2-standard-4"
    assert world.place("p") in world.nodes(name)


def test_a_pool_that_fits_comes_before_a_new_one() -> None:
    world = making(pool("big", "e2-standard-16"))
    world.put(pod("p", cpu="3"))
    world.run(60)
    assert (world.pools(), len(world.nodes("big"))) == (["big"], 1)


def test_limits_of_the_cluster_are_kept() -> None:
    world = making(most={"nvidia-tesla-a100": 1})
    world.put(*[compact(GROUPS[0], number) for number in range(2)])
    world.run(60)
    assert (world.pools(), world.machines()) == ([], [])
    assert {name for name, _ in world.reported("NotTriggerScaleUp")} == {f"{GROUPS[0]}-0", f"{GROUPS[0]}-1"}


def test_machines_of_other_pools_count_against_the_limits() -> None:
    fixed = {"name": "fixed", "machineType": A100, "zones": [A], "nodeCount": 2}
    world = making(fixed, most={"nvidia-tesla-a100": 3})
    world.put(*[compact(GROUPS[0], number) for number in range(2)])
    world.run(60)
    assert world.pools() == ["fixed"]


def test_another_zone_is_tried_where_the_first_has_none() -> None:
    world = making(capacity=[{"machineType": A100, "zone": A, "count": 0}])
    world.put(*[compact(GROUPS[0], number) for number in range(2)])
    world.run(100)
    assert world.zones() == {B: 2}
    assert all(world.place(f"{GROUPS[0]}-{number}") for number in range(2))


def test_where_no_zone_has_any_no_pool_is_left() -> None:
    world = making(capacity=[{"machineType": A100, "zone": zone, "count": 0} for zone in ZONES])
    world.put(*[compact(GROUPS[0], number) for number in range(2)])
    world.finish()
    assert (world.pools(), world.machines()) == ([], [])


def test_a_pool_somebody_made_is_not_deleted() -> None:
    world = making(pool("own", "e2-standard-4"))
    world.put(pod("p", cpu="3"))
    world.run(60)
    world.end("p")
    world.finish()
    assert (world.pools(), world.machines()) == (["own"], [])
