"""Decisions leave time for other work."""

import sys
from threading import Event

import pytest

from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant
from batchyard.metrics.registry import format_value
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.server.platform import decision_throttle
from batchyard.server.platform.decision_throttle import DecisionThrottle, thread_cpu_demand_seconds


class ThrottledMachine:
    """The clock of a machine, and the CPU time that the thread would use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now: Instant = SECOND
        self.wanted = 0.0
        self.share = 0.0
        monkeypatch.setattr(decision_throttle, "wall_clock", lambda: self.now)
        monkeypatch.setattr(decision_throttle, "thread_cpu_demand_seconds", lambda: self.wanted)
        self.pace = DecisionThrottle(lambda: 60 * self.now, speed=60)

    def advance(self, duration: Duration) -> None:
        """Advance time while the thread uses its share of the CPU."""
        self.now += duration
        self.wanted += duration * self.share / SECOND

    def decide(self, milliseconds: int) -> None:
        """Make a decision of this duration."""
        self.pace.run_reconcile(lambda: self.advance(milliseconds * MILLISECOND))

    def rest(self, idle_after: int = sys.maxsize) -> float:
        """Return the milliseconds until the next decision may begin."""
        began = self.now
        while (then := self.pace.next_turn()) > 60 * self.now:
            if self.now - began >= idle_after * MILLISECOND:
                self.share = 0.0
            self.advance(then // 60 - self.now)
        return (self.now - began) / MILLISECOND


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> ThrottledMachine:
    return ThrottledMachine(monkeypatch)


@pytest.mark.parametrize(
    ("took", "share", "rest"),
    [(10, 0.1, 10), (90, 0.1, 90), (5000, 0.1, 200), (10, 1.0, 400), (90, 1.0, 1000), (5000, 1.0, 1000)],
)
def test_decision_is_followed_by_bounded_pause(machine: ThrottledMachine, took: int, share: float, rest: int) -> None:
    machine.share = share
    machine.advance(SECOND)  # for the other work of the thread
    machine.decide(took)
    assert machine.rest() == rest
    machine.decide(took)
    reported = "".join(machine.pace.texts())
    assert "\nbatchyard_turns_total 2\n" in reported
    for part, milliseconds in {"work": 2 * took, "rest": rest}.items():
        assert f'\nbatchyard_turn_seconds_total{{part="{part}"}} {format_value(milliseconds / 1000)}\n' in reported


def test_long_pause_ends_when_thread_is_idle(machine: ThrottledMachine) -> None:
    machine.share = 1.0
    machine.advance(SECOND)
    machine.decide(20)
    assert machine.rest(idle_after=100) == 120  # the throttle checks each 20 ms


def test_externally_paced_platform_decides_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = ThrottledMachine(monkeypatch)
    machine.pace = DecisionThrottle(lambda: 60 * machine.now, speed=60, is_disabled=lambda: True)
    machine.share = 1.0
    machine.advance(SECOND)
    machine.decide(20)
    assert machine.rest() == 0


def test_first_decision_runs_without_delay() -> None:
    assert DecisionThrottle(lambda: SECOND, speed=1).next_turn() < SECOND


def test_wanted_cpu_grows_with_computation_and_not_with_sleep() -> None:
    before, began = thread_cpu_demand_seconds(), monotonic_seconds()
    while monotonic_seconds() - began < 0.05:
        pass
    after = thread_cpu_demand_seconds()
    assert after - before >= 0.04
    Event().wait(0.2)
    assert thread_cpu_demand_seconds() - after < 0.15
