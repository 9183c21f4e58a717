"""Decisions leave time for others."""

import sys
from threading import Event

import pytest

from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant
from batchyard.metrics.registry import number
from batchyard.server.clocks.wall import ticks
from batchyard.server.platform import decision_throttle
from batchyard.server.platform.decision_throttle import DecisionThrottle, wanted_cpu


class Machine:
    """Its clock, and how much of it the thread wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now: Instant = SECOND
        self.wanted = 0.0
        self.share = 0.0
        monkeypatch.setattr(decision_throttle, "wall_clock", lambda: self.now)
        monkeypatch.setattr(decision_throttle, "wanted_cpu", lambda: self.wanted)
        self.pace = DecisionThrottle(lambda: 60 * self.now, speed=60)

    def go_on(self, duration: Duration) -> None:
        """Time passes, in which the thread is so busy."""
        self.now += duration
        self.wanted += duration * self.share / SECOND

    def decide(self, milliseconds: int) -> None:
        """A decision takes so long."""
        self.pace.take(lambda: self.go_on(milliseconds * MILLISECOND))

    def rest(self, idle_after: int = sys.maxsize) -> float:
        """After how many milliseconds the next may begin, asked for as often as that says."""
        began = self.now
        while (then := self.pace.next_turn()) > 60 * self.now:
            if self.now - began >= idle_after * MILLISECOND:
                self.share = 0.0
            self.go_on(then // 60 - self.now)
        return (self.now - began) / MILLISECOND


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("took", "share", "rest"),
    [(10, 0.1, 10), (90, 0.1, 90), (5000, 0.1, 200), (10, 1.0, 400), (90, 1.0, 1000), (5000, 1.0, 1000)],
)
def test_a_decision_is_followed_by_a_rest_up_to_a_bound(machine: Machine, took: int, share: float, rest: int) -> None:
    machine.share = share
    machine.go_on(SECOND)  # in which the thread did what else there was to do
    machine.decide(took)
    assert machine.rest() == rest
    machine.decide(took)
    reported = "".join(machine.pace.texts())
    assert "\nbatchyard_turns_total 2\n" in reported
    for part, milliseconds in {"work": 2 * took, "rest": rest}.items():
        assert f'\nbatchyard_turn_seconds_total{{part="{part}"}} {number(milliseconds / 1000)}\n' in reported


def test_a_long_rest_ends_once_the_thread_has_nothing_to_do(machine: Machine) -> None:
    machine.share = 1.0
    machine.go_on(SECOND)
    machine.decide(20)
    assert machine.rest(idle_after=100) == 120  # it is looked at each 20 ms


def test_a_platform_whose_time_waits_for_others_decides_without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.pace = DecisionThrottle(lambda: 60 * machine.now, speed=60, waits=lambda: True)
    machine.share = 1.0
    machine.go_on(SECOND)
    machine.decide(20)
    assert machine.rest() == 0


def test_nothing_is_waited_for_before_the_first() -> None:
    assert DecisionThrottle(lambda: SECOND, speed=1).next_turn() < SECOND


def test_a_thread_that_computes_wants_a_cpu_and_one_that_sleeps_does_not() -> None:
    before, began = wanted_cpu(), ticks()
    while ticks() - began < 0.05:
        pass
    after = wanted_cpu()
    assert after - before >= 0.04
    Event().wait(0.2)
    assert wanted_cpu() - after < 0.15
