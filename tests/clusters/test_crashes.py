"""A platform with nodes that crashes after any of its writes still brings all work to a good end, and breaks no law.

Every thirteenth write is tried here, with another first one for each world; `python tools/crashes.py` tries them all.
"""

import pytest

from clusters.small_worlds import WORLDS, play

EVERY = 13


@pytest.mark.parametrize(("first", "name"), [*enumerate(WORLDS, 1)])
def test_all_comes_to_a_good_end_whichever_write_the_platform_crashes_after(first: int, name: str) -> None:
    end, writes = play(name)
    assert (end.broken, end.unfinished, writes > 80) == ([], [], True)
    differing = {count: again for count in range(first, writes + 1, EVERY) if (again := play(name, count)[0]) != end}
    assert differing == {}


def test_who_loses_a_machine_gets_the_slice_of_the_other() -> None:
    end, _ = play("a JobSet that loses a machine and takes another's slice")
    assert [name.rpartition("-")[0] for name in end.preempted] == ["jobset-low"]
