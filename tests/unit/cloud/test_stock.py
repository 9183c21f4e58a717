"""The remaining capacity of the cloud, and its refusals."""

from typing import Any

import pytest

import make
from batchyard.cloud.allocation import (
    AllocationRefusal,
    CapacityKey,
    CapacityPool,
    MachineDemand,
    demand_of,
    validation_refusal,
)
from batchyard.cloud.catalog.machine_types import builtin_catalog
from unit.cloud.catalog.cloud_make import ZONE, cluster, node_pool

CATALOG = builtin_catalog()


def stock(now: float = 0, **spec: Any) -> CapacityPool:
    """Return the capacity of a cluster."""
    return CapacityPool(cluster(**spec), CATALOG, make.at(now))


def demand(pool: dict[str, Any] | None = None, zone: str = ZONE) -> MachineDemand:
    """Return the demand of a machine of a pool."""
    pool = pool or node_pool()
    spec = pool["spec"]
    slot = CapacityKey(pool["metadata"]["name"], zone, spec["machineType"], spec.get("provisioning", "standard"))
    return demand_of(slot, pool, CATALOG)


def code(refusal: AllocationRefusal | None) -> str:
    """Return the code of a refusal; empty if there is none."""
    return "" if refusal is None else refusal.code


def row(count: int, **fields: Any) -> dict[str, Any]:
    """Return a row of the cloud's capacity."""
    return {"machineType": "g2-standard-24", "zone": ZONE, "count": count, **fields}


def test_unlisted_capacity_is_unlimited() -> None:
    assert stock(capacity=[row(0)]).refusal(demand(node_pool(machine="e2-medium")), 10_000) is None
    assert stock(capacity=[row(0)]).refusal(demand(zone="us-central1-b")) is None


def test_exhausted_zone_is_reported() -> None:
    left = stock(capacity=[row(2)])
    assert left.refusal(demand(), 2) is None
    left.reserve(demand())
    refusal = left.refusal(demand(), 2)
    assert refusal is not None
    assert refusal.code == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert refusal.message == (
        "The zone 'projects/batch/zones/us-central1-a' does not have enough resources available to fulfill the request."
        "  Try a different zone, or try again later."
    )


def test_capacity_row_limits_only_its_provisioning() -> None:
    left = stock(capacity=[row(0, provisioning="spot"), row(5)])
    assert code(left.refusal(demand(node_pool(provisioning="spot")))) == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert left.refusal(demand(), 5) is None
    left.reserve(demand(node_pool("other")), 5)
    assert code(left.refusal(demand())) == "ZONE_RESOURCE_POOL_EXHAUSTED"


def test_reserved_machines_are_separate_from_other_capacity() -> None:
    kept = {"name": "r", "machineType": "g2-standard-24", "zone": ZONE, "count": 1}
    left, reserved = stock(capacity=[row(1)], reservations=[kept]), demand(node_pool(reservation="r"))
    left.reserve(demand())
    assert left.refusal(reserved) is None
    left.reserve(reserved)
    assert left.refusal(reserved) == AllocationRefusal(
        "RESERVATION_CAPACITY_EXCEEDED", "Specified reservation [r] does not have available resources for the request."
    )


@pytest.mark.parametrize(
    ("reservation", "expected"),
    [
        ({"name": "other"}, "RESERVATION_NOT_FOUND"),
        ({"machineType": "g2-standard-4"}, "RESERVATION_INCOMPATIBLE"),
        ({"zone": "us-central1-b"}, "RESERVATION_INCOMPATIBLE"),
        ({"end": "59s"}, "RESERVATION_NOT_FOUND"),
        ({"end": "61s"}, ""),
        ({"start": "60s"}, ""),
    ],
)
def test_reservation_must_exist_and_match(reservation: dict[str, str], expected: str) -> None:
    kept = {"name": "r", "machineType": "g2-standard-24", "zone": ZONE, "count": 1, **reservation}
    assert code(stock(60, reservations=[kept]).refusal(demand(node_pool(reservation="r")))) == expected


def test_future_reservation_refusal_reports_start_time() -> None:
    kept = {"name": "r", "machineType": "g2-standard-24", "zone": ZONE, "count": 1, "start": "2h"}
    assert stock(reservations=[kept]).refusal(demand(node_pool(reservation="r"))) == AllocationRefusal(
        "RESERVATION_NOT_READY",
        "GCE future reservation [r] has not started yet, start time: 2026-01-01T02:00:00Z",
        make.at(7200 - 255),
    )


@pytest.mark.parametrize(
    ("name", "limit", "fits"),
    [("nvidia-l4", 8, 4), ("cpus", 50, 2), ("g2-standard-24", 3, 3), ("nvidia-tesla-t4", 0, 100)],
)
def test_quotas_count_cpus_accelerators_and_machines(name: str, limit: int, fits: int) -> None:
    left = stock(quotas=[{"name": name, "limit": limit}])
    assert left.refusal(demand(), fits) is None
    if fits < 100:
        assert left.refusal(demand(), fits + 1) == AllocationRefusal(
            "QUOTA_EXCEEDED", f"Quota '{name}' exceeded.  Limit: {limit}.0 in region us-central1."
        )


def test_quota_counts_all_pools_and_zones() -> None:
    left = stock(quotas=[{"name": "nvidia-l4", "limit": 4}])
    left.reserve(demand(node_pool("a", "g2-standard-4"), "us-central1-b"), 3)
    assert code(left.refusal(demand())) == "QUOTA_EXCEEDED"
    assert left.refusal(demand(node_pool("a", "g2-standard-4"))) is None


def test_compact_placement_group_is_limited_to_one_zone_and_size() -> None:
    compact = node_pool(machine="a2-highgpu-1g", placementGroup="team-a-0")
    left = stock()
    left.reserve(demand(compact))
    assert left.refusal(demand(compact), 149) is None
    assert left.refusal(demand(compact), 150) == AllocationRefusal(
        "LIMIT_EXCEEDED", "Compact placement group team-a-0 holds at most 150 machines."
    )
    assert code(left.refusal(demand(compact, "us-central1-b"))) == "CONDITION_NOT_MET"
    other = node_pool("other", "a2-highgpu-1g", placementGroup="team-b-0")
    assert left.refusal(demand(other, "us-central1-b")) is None


def test_unsupported_family_has_no_compact_placement() -> None:
    assert code(stock().refusal(demand(node_pool(machine="e2-medium", placementGroup="x")))) == "CONDITION_NOT_MET"


def test_unknown_machine_type_or_gpu_is_invalid() -> None:
    unknown = CapacityKey("pool", ZONE, "g2-standard-25", "standard")
    assert code(validation_refusal(unknown, node_pool(machine="g2-standard-25"), CATALOG)) == "INVALID_MACHINE_TYPE"
    t4 = node_pool(machine="e2-medium", accelerator={"type": "nvidia-tesla-t4", "count": 1})
    assert (
        code(validation_refusal(CapacityKey("pool", ZONE, "e2-medium", "standard"), t4, CATALOG)) == "INVALID_GPU_TYPE"
    )
    assert validation_refusal(CapacityKey("pool", ZONE, "g2-standard-24", "standard"), node_pool(), CATALOG) is None
