"""Times of the machine in the platform's, whichever clock is set meanwhile."""

from batchyard.base.instant import HOUR, MINUTE, SECOND, Instant
from batchyard.server.local_node.run_dirs import NodeTimes

NOON = 12 * HOUR


class Clock:
    """A clock that is what it is set to."""

    def __init__(self, now: Instant) -> None:
        self.now = now

    def __call__(self) -> Instant:
        return self.now


def test_clocks_that_agree_to_two_seconds_are_taken_for_equal() -> None:
    times = NodeTimes(Clock(NOON + SECOND), Clock(NOON))
    state = {"phase": "Running", "startedAt": NOON - MINUTE}
    assert times.state(state) == state
    assert times.there(NOON) == NOON


def test_a_platform_whose_time_is_ahead_sees_what_happens_in_its_own_time() -> None:
    times = NodeTimes(Clock(NOON + HOUR), Clock(NOON))
    reported = {
        "phase": "Exited",
        "startedAt": NOON - 5,
        "finishedAt": NOON,
        "exceeded": {"volume": "v", "at": NOON - 1},
    }
    seen = {"startedAt": NOON + HOUR - 5, "finishedAt": NOON + HOUR, "exceeded": {"volume": "v", "at": NOON + HOUR - 1}}
    assert times.state(reported) == {"phase": "Exited", **seen}
    assert times.state({"phase": "Exited", "startedAt": 0}) == {"phase": "Exited", "startedAt": 0}


def test_a_wish_to_end_is_told_in_the_machines_time_and_read_in_the_platforms() -> None:
    times = NodeTimes(Clock(NOON + HOUR), Clock(NOON))
    run = {"status": {}, "stop": {"at": NOON + HOUR, "grace": 3, "why": ""}}
    reported = times.stopped_there(run)
    assert reported["stop"] == {"at": NOON, "grace": 3, "why": ""}
    assert times.run(reported) == run


def test_what_was_told_stays_what_it_was_when_the_machines_clock_is_set_back() -> None:
    ours, machine = Clock(NOON), Clock(NOON)
    times = NodeTimes(ours, machine)
    began = times.state({"startedAt": NOON - MINUTE})
    ours.now, machine.now = NOON + SECOND, NOON + SECOND - HOUR
    assert times.state({"startedAt": NOON - MINUTE}) == began
    assert times.state({"finishedAt": NOON + SECOND - HOUR}) == {"finishedAt": NOON + SECOND}
