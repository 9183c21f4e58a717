"""How fast nodes that are not ready are given up."""

import pytest

from batchyard.base.instant import SECOND
from batchyard.nodes.health import ZoneState, eviction_interval, is_everything_lost, zone_state

NORMAL, PARTIAL, FULL = ZoneState.NORMAL, ZoneState.PARTIAL_DISRUPTION, ZoneState.FULL_DISRUPTION


@pytest.mark.parametrize(
    ("ready", "unready", "state"),
    [
        (0, 0, NORMAL),
        (3, 0, NORMAL),
        (0, 1, FULL),
        (1, 2, NORMAL),
        (2, 3, PARTIAL),
        (9, 11, PARTIAL),
        (10, 10, NORMAL),
    ],
)
def test_a_zone_is_disrupted_when_most_of_it_is_not_ready(ready: int, unready: int, state: ZoneState) -> None:
    assert zone_state(ready, unready) is state


def test_a_small_zone_that_is_partly_disrupted_gives_up_no_node_and_a_large_one_few() -> None:
    assert eviction_interval(PARTIAL, 50) is None
    assert eviction_interval(PARTIAL, 51) == 100 * SECOND
    assert eviction_interval(NORMAL, 3) == eviction_interval(FULL, 3) == 10 * SECOND


def test_everything_is_lost_when_every_zone_is() -> None:
    assert is_everything_lost([FULL, FULL])
    assert not is_everything_lost([FULL, NORMAL])
