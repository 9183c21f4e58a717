"""Decisions leave time for others."""

import pytest

from batchyard.base.instant import MILLISECOND, SECOND
from batchyard.live import pace
from batchyard.live.pace import Pace
from batchyard.metrics.families import number


@pytest.mark.parametrize(("took", "rest"), [(10, 20), (90, 180), (5000, 200)])
def test_a_decision_is_followed_by_a_longer_rest_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, took: int, rest: int
) -> None:
    clock = iter((0, took * MILLISECOND))
    monkeypatch.setattr(pace, "wall_clock", lambda: next(clock))
    turns = Pace(lambda: 7 * SECOND, speed=60)
    turns.take(lambda: None)
    assert turns.next_turn() == 7 * SECOND + 60 * rest * MILLISECOND
    told = "".join(turns.texts())
    assert "\nbatchyard_turns_total 1\n" in told
    for part, milliseconds in {"work": took, "rest": rest}.items():
        assert f'\nbatchyard_turn_seconds_total{{part="{part}"}} {number(milliseconds / 1000)}\n' in told


def test_nothing_is_waited_for_before_the_first() -> None:
    assert Pace(lambda: SECOND, speed=1).next_turn() < SECOND
