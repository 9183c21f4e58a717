"""The eviction rate for nodes that are not ready."""

import pytest

from batchyard.base.instant import SECOND
from batchyard.nodes.health import ZoneState, are_all_zones_down, eviction_interval, zone_state

NORMAL, PARTIAL, FULL = ZoneState.NORMAL, ZoneState.PARTIAL_DISRUPTION, ZoneState.FULL_DISRUPTION


@pytest.mark.parametrize(
    ("ready", "unready", "state"),
    [(0, 0, NORMAL), (3, 0, NORMAL), (0, 1, FULL), (1, 2, NORMAL), (2, 3, PARTIAL), (9, 11, PARTIAL), (10, 10, NORMAL)],
)
def test_zone_is_disrupted_when_most_nodes_are_not_ready(ready: int, unready: int, state: ZoneState) -> None:
    assert zone_state(ready, unready) is state


def test_partially_disrupted_zone_stops_or_slows_eviction_by_size() -> None:
    assert eviction_interval(PARTIAL, 50) is None
    assert eviction_interval(PARTIAL, 51) == 100 * SECOND
    assert eviction_interval(NORMAL, 3) == eviction_interval(FULL, 3) == 10 * SECOND


def test_cluster_is_lost_only_when_every_zone_is_fully_disrupted() -> None:
    assert are_all_zones_down([FULL, FULL])
    assert not are_all_zones_down([FULL, NORMAL])
