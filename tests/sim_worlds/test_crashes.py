"""A platform with nodes that crashes after any of its writes still brings all work to a good end, and breaks no law.

Every seventeenth write is tried here, with another first one for each world; `python tools/crashes.py` tries them all.
"""

import pytest

from sim_worlds.small_worlds import WORLDS, play

EVERY = 17
#: A slice is asked for machine by machine: whoever never comes to the second write does not get it.
ON_DEMAND = "a JobSet on a slice that comes when it is asked for"


@pytest.mark.parametrize(("first", "name"), [*enumerate(WORLDS, 1)])
def test_all_comes_to_a_good_end_whichever_write_the_platform_crashes_after(first: int, name: str) -> None:
    end, writes = play(name)
    assert (end.broken, end.unfinished, writes > 80) == ([], [], True)
    differing = {count: again for count in range(first, writes + 1, EVERY) if (again := play(name, [count])[0]) != end}
    assert differing == {}


@pytest.mark.parametrize("name", [name for name in WORLDS if name != ON_DEMAND])
def test_all_comes_to_a_good_end_though_the_platform_crashes_after_each_of_its_writes(name: str) -> None:
    assert play(name, range(1, 1000))[0] == play(name)[0]


def test_who_loses_a_machine_gets_the_slice_of_the_other() -> None:
    end, _ = play("a JobSet that loses a machine and takes another's slice")
    assert [name.rpartition("-")[0] for name in end.preempted] == ["jobset-low"]
