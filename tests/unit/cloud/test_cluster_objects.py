"""A Cluster as the initial objects of a world."""

from typing import Any

import pytest

from batchyard.cloud.cluster_objects import catalog_errors, initial_objects, pool_errors
from unit.cloud.catalog.cloud_make import ZONE, cluster


def faults(**pool: Any) -> list[str]:
    """Return the faults of a pool."""
    return list(map(str, catalog_errors(cluster(nodePools=[{"name": "p", "machineType": "g2-standard-24", **pool}]))))


def test_cluster_and_its_pools_become_objects() -> None:
    begin = cluster(nodePools=[{"name": "a", "machineType": "e2-medium", "nodeCount": 2}])
    first, pool = initial_objects(begin)
    assert first is begin
    assert (pool["kind"], pool["metadata"]["name"]) == ("NodePool", "a")
    assert pool["spec"] == {"machineType": "e2-medium", "nodeCount": 2}


def test_cluster_without_pools_is_valid() -> None:
    assert len(initial_objects(cluster())) == 1
    assert catalog_errors(cluster()) == []


def test_unknown_machine_types_are_reported_in_each_field() -> None:
    begin = cluster(
        nodePools=[{"name": "a", "machineType": "g2-standard-25"}],
        reservations=[{"name": "r", "machineType": "zz", "zone": ZONE, "count": 1}],
        capacity=[{"machineType": "e2-medium", "zone": ZONE, "count": 1}],
        prices={"a2-highgpu-9g": {"spot": "1"}},
    )
    result = [(fault.path, fault.problem) for fault in catalog_errors(begin)]
    assert result == [
        ("spec.nodePools[0].machineType", "unknown machine type 'g2-standard-25'"),
        ("spec.reservations[0].machineType", "unknown machine type 'zz'"),
        ("spec.prices.a2-highgpu-9g", "unknown machine type 'a2-highgpu-9g'"),
    ]
    assert "did you mean 'g2-standard-" in catalog_errors(begin)[0].remedy


def test_unknown_resource_and_quota_names_are_reported() -> None:
    limits = [{"resource": name, "max": 4} for name in ("cpu", "memory", "nvidia-l4", "nvidia-l5", "nvidia.com/gpu")]
    begin = cluster(
        autoscaling={"autoProvisioning": {"limits": limits}},
        quotas=[{"name": name, "limit": 4} for name in ("cpus", "nvidia-tesla-t4", "e2-medium", "gpus")],
        times={"byMachine": {"g2": {}, "e2-medium": {}, "g3": {}}},
    )
    assert [(fault.path, fault.problem) for fault in catalog_errors(begin)] == [
        ("spec.autoscaling.autoProvisioning.limits[3].resource", "unknown resource 'nvidia-l5'"),
        ("spec.autoscaling.autoProvisioning.limits[4].resource", "unknown resource 'nvidia.com/gpu'"),
        ("spec.quotas[3].name", "unknown quota 'gpus'"),
        ("spec.times.byMachine[g3]", "unknown machine type 'g3'"),
    ]


def test_accelerator_prices_are_valid() -> None:
    assert catalog_errors(cluster(prices={"nvidia-tesla-t4": {"onDemand": "1"}})) == []


def test_custom_machine_types_are_valid() -> None:
    begin = cluster(nodePools=[{"name": "a", "machineType": "box"}], catalog={"box": {"cpu": "4", "memory": "8Gi"}})
    assert catalog_errors(begin) == []


@pytest.mark.parametrize(
    ("pool", "problem"),
    [
        ({"accelerator": {"type": "nvidia-tesla-t4", "count": 1}}, "cannot have 1 nvidia-tesla-t4; it has 2 nvidia-l4"),
        (
            {"machineType": "n1-standard-4", "accelerator": {"type": "nvidia-l4", "count": 1}},
            "it supports nvidia-tesla-t4, nvidia-tesla-p4",
        ),
        ({"machineType": "e2-medium", "accelerator": {"type": "nvidia-l4", "count": 1}}, "it supports no accelerator"),
        ({"machineType": "e2-medium", "placementGroup": "g"}, "machine family e2 supports no compact placement"),
        ({"tpuTopology": "2x4"}, "g2-standard-24 has no TPUs"),
        ({"machineType": "ct5lp-hightpu-4t", "tpuTopology": "1x3"}, "1x3 has 3 chips, but each ct5lp-hightpu-4t has 4"),
        ({"machineType": "ct5lp-hightpu-8t", "tpuTopology": "2x2"}, "2x2 has 4 chips, but each ct5lp-hightpu-8t has 8"),
        ({"labels": {"cloud.google.com/gke-nodepool": "q"}}, "nodes of this pool have p, not q; remove this label"),
        ({"labels": {"kubernetes.io/hostname": "h"}}, "have the node name, not h"),
    ],
)
def test_impossible_pool_is_reported(pool: dict[str, Any], problem: str) -> None:
    (result,) = faults(**pool)
    assert problem in result
    assert result.startswith("spec.nodePools[0].")


@pytest.mark.parametrize(
    "pool",
    [
        {"placementGroup": "g"},
        {"machineType": "a2-highgpu-1g", "accelerator": {"type": "nvidia-tesla-a100", "count": 1}},
        {"machineType": "n1-standard-2", "accelerator": {"type": "nvidia-tesla-t4", "count": 1}},
        {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "2x4"},
        {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "2x2"},
        {"labels": {"cloud.google.com/gke-nodepool": "p", "node.kubernetes.io/own": "x", "team": "a"}},
    ],
)
def test_possible_pool_has_no_faults(pool: dict[str, Any]) -> None:
    assert faults(**pool) == []


def test_separate_pool_is_validated_against_cluster() -> None:
    def reported(**spec: Any) -> list[str]:
        return list(map(str, pool_errors({"metadata": {"name": "p"}, "spec": spec}, cluster())))

    assert reported(machineType="e2-medium", zones=[ZONE]) == []
    assert [fault.partition(";")[0] for fault in reported(machineType="e2-large", zones=["x"])] == [
        "spec.zones[0]: unknown zone 'x'",
        "spec.machineType: unknown machine type 'e2-large'",
    ]
    assert "supports no compact placement" in reported(machineType="e2-medium", placementGroup="g")[0]
    assert "this NodePool has no Cluster" in str(pool_errors({"spec": {}}, None)[0])
