"""A platform with nodes that crashes after any of its writes still completes all work, and breaks no invariant.

These tests crash at every 17th write, beginning with a different write in each world. `python tools/crashes.py` crashes
at every write.
"""

import pytest

from sim_worlds.small_worlds import WORLDS, play

EVERY = 17
#: The autoscaler requests a slice machine by machine: without the second write there is no slice.
ON_DEMAND = "a JobSet on an autoscaled slice"


@pytest.mark.parametrize(("first", "name"), [*enumerate(WORLDS, 1)])
def test_work_completes_after_crash_following_any_write(first: int, name: str) -> None:
    end, writes = play(name)
    assert (end.broken, end.unfinished, writes > 80) == ([], [], True)
    differing = {count: again for count in range(first, writes + 1, EVERY) if (again := play(name, [count])[0]) != end}
    assert differing == {}


@pytest.mark.parametrize("name", [name for name in WORLDS if name != ON_DEMAND])
def test_outcome_is_unchanged_by_crash_after_each_write(name: str) -> None:
    assert play(name, range(1, 1000))[0] == play(name)[0]


def test_high_priority_job_set_takes_slice_of_low_priority_job_set() -> None:
    end, _ = play("a JobSet that loses a machine and takes another's slice")
    assert [name.rpartition("-")[0] for name in end.preempted] == ["jobset-low"]
