"""The laws hold in random worlds: Cohort trees, limits, flavors, policies, edits, Jobs and JobSets among Workloads.

A world that once broke a law stays in the corpus for ever.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.sim.random_worlds.queues import SeededDraws, WorldBounds, random_scenario
from properties.worlds import SMALL, Drawn, broken_laws, event_log, examples, troubled_laws

CORPUS = [
    pytest.param(34, id="a head whose victims free too few pods stays in front of others"),
    pytest.param(5161, id="a blocked head leaves with its LocalQueue"),
    pytest.param(5207, id="a tree gets another root while quota lies free unnoticed"),
    pytest.param(5222, id="Cohorts move while quota lies free unnoticed"),
]

SEEDS = range(1000, 1060)
LOOPING = [302]
"""Seeds of worlds in which Workloads preempt each other for ever."""


@pytest.mark.parametrize("fair_sharing", [False, True])
@settings(max_examples=examples() // 2)
@given(data=st.data())
def test_random_worlds_keep_all_laws(data: st.DataObject, fair_sharing: bool) -> None:
    bounds = replace(SMALL, fair_sharing=fair_sharing)
    assert broken_laws(random_scenario(Drawn(data), bounds)) == ""


@pytest.mark.parametrize("seed", SEEDS)
def test_worlds_of_a_seed_keep_all_laws(seed: int) -> None:
    assert broken_laws(random_scenario(SeededDraws(seed))) == ""


@pytest.mark.parametrize("seed", range(2000, 2030))
def test_worlds_keep_all_laws_through_conflicts_and_crashes(seed: int) -> None:
    scenario = random_scenario(SeededDraws(seed), SMALL)
    assert troubled_laws(scenario, conflicts=0.2, crash_every=7 + seed % 20) == ""


@pytest.mark.parametrize("seed", CORPUS)
def test_worlds_that_once_broke_a_law_keep_them_all(seed: int) -> None:
    assert broken_laws(random_scenario(SeededDraws(seed))) == ""


@pytest.mark.parametrize("seed", LOOPING)
def test_worlds_that_loop_say_so_and_come_to_an_end(seed: int) -> None:
    scenario = random_scenario(SeededDraws(seed), WorldBounds(workloads_max=14))
    assert broken_laws(scenario) == ""
    assert any(record["event"] == "PreemptionLoop" and record["steps"] for record in event_log(scenario))
