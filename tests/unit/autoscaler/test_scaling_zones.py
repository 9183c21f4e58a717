"""The spread of new nodes over zones."""

from typing import Any

from batchyard.autoscaler.scale_up import spread_nodes
from unit.autoscaler.scaling_make_core import A, B, C, cluster, fleet, groups, pool


def shares(count: int, sizes: dict[str, int] | None = None, policy: str = "BALANCED", **spec: Any) -> dict[str, int]:
    result = groups(pool(policy=policy, bounds=spec.pop("bounds", {"max": 10})))
    given = spread_nodes(result, count, fleet(result, sizes), cluster(**spec))
    return {group.name.zone: more for group, more in given.items()}


def row(zone: str, count: int) -> dict[str, Any]:
    return {"machineType": "e2-standard-4", "zone": zone, "count": count}


def test_balanced_policy_equalizes_zones() -> None:
    assert shares(7) == {A: 3, B: 2, C: 2}
    assert shares(3, {A: 2}) == {B: 2, C: 1}


def test_balanced_policy_respects_zone_maximum() -> None:
    assert shares(20, {A: 9}) == {A: 1, B: 10, C: 9}


def test_spread_respects_total_maximum() -> None:
    assert sum(shares(9, {A: 1}, bounds={"max": 10, "totalMax": 5}).values()) == 4
    assert sum(shares(9, {A: 1}, "ANY", bounds={"max": 10, "totalMax": 5}).values()) == 4


def test_any_policy_selects_first_zone_with_capacity_for_all() -> None:
    assert shares(5, policy="ANY") == {A: 5}
    assert shares(5, policy="ANY", capacity=[row(A, 4)]) == {B: 5}


def test_any_policy_combines_zones_if_no_zone_fits_all() -> None:
    assert shares(9, policy="ANY", capacity=[row(A, 2), row(B, 5), row(C, 3)]) == {A: 1, B: 5, C: 3}


def test_any_policy_requests_remainder_beyond_known_capacity() -> None:
    assert shares(4, policy="ANY", capacity=[row(A, 0), row(B, 0), row(C, 1)]) == {A: 2, B: 1, C: 1}
