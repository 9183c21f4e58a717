"""Conversion of machine times to platform times, also when one of the clocks is set."""

from batchyard.base.instant import HOUR, MINUTE, SECOND, Instant
from batchyard.server.local_node.run_dirs import NodeTimes

NOON = 12 * HOUR


class SettableClock:
    """A settable clock."""

    def __init__(self, now: Instant) -> None:
        self.now = now

    def __call__(self) -> Instant:
        return self.now


def test_clocks_within_two_seconds_count_as_equal() -> None:
    times = NodeTimes(SettableClock(NOON + SECOND), SettableClock(NOON))
    state = {"phase": "Running", "startedAt": NOON - MINUTE}
    assert times.convert_state(state) == state
    assert times.to_machine_time(NOON) == NOON


def test_node_times_are_converted_to_platform_time() -> None:
    times = NodeTimes(SettableClock(NOON + HOUR), SettableClock(NOON))
    reported = {
        "phase": "Exited",
        "startedAt": NOON - 5,
        "finishedAt": NOON,
        "exceeded": {"volume": "v", "at": NOON - 1},
    }
    seen = {"startedAt": NOON + HOUR - 5, "finishedAt": NOON + HOUR, "exceeded": {"volume": "v", "at": NOON + HOUR - 1}}
    assert times.convert_state(reported) == {"phase": "Exited", **seen}
    assert times.convert_state({"phase": "Exited", "startedAt": 0}) == {"phase": "Exited", "startedAt": 0}


def test_stop_time_is_converted_to_node_time_and_back() -> None:
    times = NodeTimes(SettableClock(NOON + HOUR), SettableClock(NOON))
    run = {"status": {}, "stop": {"at": NOON + HOUR, "grace": 3, "why": ""}}
    reported = times.with_machine_stop_time(run)
    assert reported["stop"] == {"at": NOON, "grace": 3, "why": ""}
    assert times.convert_run(reported) == run


def test_reported_times_stay_unchanged_when_node_clock_is_set_back() -> None:
    ours, machine = SettableClock(NOON), SettableClock(NOON)
    times = NodeTimes(ours, machine)
    began = times.convert_state({"startedAt": NOON - MINUTE})
    ours.now, machine.now = NOON + SECOND, NOON + SECOND - HOUR
    assert times.convert_state({"startedAt": NOON - MINUTE}) == began
    assert times.convert_state({"finishedAt": NOON + SECOND - HOUR}) == {"finishedAt": NOON + SECOND}
