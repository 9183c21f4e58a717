"""Laws of jobs of all kinds in random worlds with preemption, write conflicts and crashes.

More worlds: `python tools/worlds.py 0 1000 --kinds --conflicts 0.2 --crash-every 61`.
"""

import pytest

from properties.kind_worlds import kind_violations


@pytest.mark.parametrize("seed", range(12))
def test_worlds_of_all_kinds_keep_all_invariants(seed: int) -> None:
    assert kind_violations(seed) == ""


@pytest.mark.parametrize("seed", range(100, 108))
def test_worlds_of_all_kinds_keep_invariants_despite_conflicts_and_crashes(seed: int) -> None:
    assert kind_violations(seed, conflicts=0.2, crash_every=31) == ""
