"""Auto-provisioned pools: created for pods that fit no pool, within limits, and deleted when empty."""

from typing import Any

from batchyard.api import scheme
from unit.autoscaler.scaling_make import ZONES, AutoscalerStage, Obj, cluster, pod, pool

A, B, C = ZONES
GROUPS = ("team-a-0-compact", "team-b-0-compact")
A100 = "a2-highgpu-1g"


def limits(**most: int) -> dict[str, Any]:
    """The auto-provisioning limits of a Cluster."""
    most = {"cpu": 1000, "memory": 4000, "nvidia-tesla-a100": 100, "tpu-v5-lite-podslice": 64} | most
    return {"autoProvisioning": {"limits": [{"resource": name, "max": count} for name, count in most.items()]}}


def with_auto_provisioning(*pools: Obj, most: dict[str, int] | None = None, **spec: Any) -> AutoscalerStage:
    """A cluster with auto-provisioning."""
    return AutoscalerStage(
        cluster(pools, autoscaling={"profile": "optimize-utilization", **limits(**(most or {}))}, **spec)
    )


def compact(group: str, number: int) -> Obj:
    """A pod of a compact placement group, on a spot machine with an A100."""
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
    """A pod of a slice with exclusive placement of its Job in one node pool, as JobSet sets it."""
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


def test_auto_provisioning_creates_pool_named_after_placement_group() -> None:
    world = with_auto_provisioning(pool("small", "e2-medium", 2))
    world.put(*[compact(group, number) for group in GROUPS for number in range(2)])
    world.run(60)
    assert world.pools() == ["small", *GROUPS]
    for group in GROUPS:
        assert [world.place(f"{group}-{number}") for number in range(2)] == world.nodes(group)
        assert world.nodes(group)[0].startswith(f"gke-batch-{group}-")
        assert world.get(scheme.NODE_POOL, group, "")["spec"]["placementGroup"] == group


def test_auto_provisioned_pool_is_deleted_with_last_node() -> None:
    world = with_auto_provisioning()
    world.put(*[compact(GROUPS[0], number) for number in range(2)])
    world.run(60)
    world.end(f"{GROUPS[0]}-0")
    world.run(300)
    assert (world.pools(), len(world.nodes())) == ([GROUPS[0]], 1)
    world.end(f"{GROUPS[0]}-1")
    world.finish()
    assert (world.pools(), world.machines(), world.nodes()) == ([], [], [])


def test_auto_provisioning_creates_pool_for_each_slice() -> None:
    world = with_auto_provisioning()
    world.put(*[tpu(slice_, number) for slice_ in ("s0", "s1", "s2") for number in range(2)])
    world.run(100)
    assert [len(world.nodes(name)) for name in world.pools()] == [2, 2, 2]
    homes = [world.place(f"{slice_}-{number}") for slice_ in ("s0", "s1", "s2") for number in range(2)]
    assert sorted(homes) == world.nodes()


def test_auto_provisioning_selects_cheapest_machine_that_fits() -> None:
    world = with_auto_provisioning()
    world.put(pod("p", cpu="3"))
    world.run(60)
    (name,) = world.pools()
    assert world.get(scheme.NODE_POOL, name, "")["spec"]["machineType"] == "e2-standard-4"
    assert world.place("p") in world.nodes(name)


def test_autoscaler_prefers_existing_pool_to_new_pool() -> None:
    world = with_auto_provisioning(pool("big", "e2-standard-16"))
    world.put(pod("p", cpu="3"))
    world.run(60)
    assert (world.pools(), len(world.nodes("big"))) == (["big"], 1)


def test_auto_provisioning_respects_cluster_limits() -> None:
    world = with_auto_provisioning(most={"nvidia-tesla-a100": 1})
    world.put(*[compact(GROUPS[0], number) for number in range(2)])
    world.run(60)
    assert (world.pools(), world.machines()) == ([], [])
    assert {name for name, _ in world.reported("NotTriggerScaleUp")} == {f"{GROUPS[0]}-0", f"{GROUPS[0]}-1"}


def test_cluster_limits_count_machines_of_other_pools() -> None:
    fixed = {"name": "fixed", "machineType": A100, "zones": [A], "nodeCount": 2}
    world = with_auto_provisioning(fixed, most={"nvidia-tesla-a100": 3})
    world.put(*[compact(GROUPS[0], number) for number in range(2)])
    world.run(60)
    assert world.pools() == ["fixed"]


def test_auto_provisioning_tries_another_zone_after_stockout() -> None:
    world = with_auto_provisioning(capacity=[{"machineType": A100, "zone": A, "count": 0}])
    world.put(*[compact(GROUPS[0], number) for number in range(2)])
    world.run(100)
    assert world.zones() == {B: 2}
    assert all(world.place(f"{GROUPS[0]}-{number}") for number in range(2))


def test_auto_provisioning_deletes_pools_without_capacity_in_any_zone() -> None:
    world = with_auto_provisioning(capacity=[{"machineType": A100, "zone": zone, "count": 0} for zone in ZONES])
    world.put(*[compact(GROUPS[0], number) for number in range(2)])
    world.finish()
    assert (world.pools(), world.machines()) == ([], [])


def test_autoscaler_keeps_empty_user_pool() -> None:
    world = with_auto_provisioning(pool("own", "e2-standard-4"))
    world.put(pod("p", cpu="3"))
    world.run(60)
    world.end("p")
    world.finish()
    assert (world.pools(), world.machines()) == (["own"], [])
