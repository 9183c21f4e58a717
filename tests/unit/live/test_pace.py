"""Decisions leave time for others."""

from threading import Event

import pytest

from batchyard.base.instant import MILLISECOND, SECOND, Instant
from batchyard.live import pace
from batchyard.live.clock import ticks
from batchyard.live.own_cpu import wanted_cpu
from batchyard.live.pace import Pace
from batchyard.metrics.families import number


def paced(monkeypatch: pytest.MonkeyPatch, now: list[Instant], share: float) -> Pace:
    """Of a thread that is so busy."""
    monkeypatch.setattr(pace, "wall_clock", lambda: now[0])
    monkeypatch.setattr(pace, "wanted_cpu", lambda: now[0] * share / SECOND)
    return Pace(lambda: 7 * SECOND, speed=60)


@pytest.mark.parametrize(
    ("took", "share", "rest"),
    [(10, 0.1, 20), (90, 0.1, 180), (5000, 0.1, 200), (10, 1.0, 60), (90, 1.0, 400), (5000, 1.0, 400)],
)
def test_a_decision_is_followed_by_a_longer_rest_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, took: int, share: float, rest: int
) -> None:
    now = [SECOND]
    turns = paced(monkeypatch, now, share)
    now[0] += SECOND  # in which the thread did what else there was to do
    turns.take(lambda: now.__setitem__(0, now[0] + took * MILLISECOND))
    assert turns.next_turn() == 7 * SECOND + 60 * rest * MILLISECOND
    told = "".join(turns.texts())
    assert "\nbatchyard_turns_total 1\n" in told
    for part, milliseconds in {"work": took, "rest": rest}.items():
        assert f'\nbatchyard_turn_seconds_total{{part="{part}"}} {number(milliseconds / 1000)}\n' in told


def test_nothing_is_waited_for_before_the_first() -> None:
    assert Pace(lambda: SECOND, speed=1).next_turn() < SECOND


def test_a_thread_that_computes_wants_a_cpu_and_one_that_sleeps_does_not() -> None:
    before, began = wanted_cpu(), ticks()
    while ticks() - began < 0.05:
        pass
    after = wanted_cpu()
    assert after - before >= 0.04
    Event().wait(0.2)
    assert wanted_cpu() - after < 0.15
