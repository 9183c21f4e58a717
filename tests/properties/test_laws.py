"""The invariants hold in random worlds: Cohort trees, limits, flavors, policies, edits, Jobs, JobSets and Workloads.

The corpus keeps each world that once broke an invariant.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.sim.random_worlds import SeededDraws, WorldBounds, random_scenario
from properties.worlds import SMALL, HypothesisDraws, event_log, examples, invariant_violations, violations_with_faults

CORPUS = [
    pytest.param(34, id="head whose victims free too few pods blocks others"),
    pytest.param(5161, id="blocked head is deleted with its LocalQueue"),
    pytest.param(5207, id="tree gets another root while quota is free"),
    pytest.param(5222, id="Cohorts move while quota is free"),
]

SEEDS = range(1000, 1060)
LOOPING = [302]
"""Seeds of worlds in which Workloads preempt each other endlessly."""


@pytest.mark.parametrize("fair_sharing", [False, True])
@settings(max_examples=examples() // 2)
@given(data=st.data())
def test_random_worlds_keep_all_invariants(data: st.DataObject, fair_sharing: bool) -> None:
    bounds = replace(SMALL, fair_sharing=fair_sharing)
    assert invariant_violations(random_scenario(HypothesisDraws(data), bounds)) == ""


@pytest.mark.parametrize("seed", SEEDS)
def test_seeded_worlds_keep_all_invariants(seed: int) -> None:
    assert invariant_violations(random_scenario(SeededDraws(seed))) == ""


@pytest.mark.parametrize("seed", range(2000, 2030))
def test_worlds_keep_invariants_despite_conflicts_and_crashes(seed: int) -> None:
    scenario = random_scenario(SeededDraws(seed), SMALL)
    assert violations_with_faults(scenario, conflicts=0.2, crash_every=7 + seed % 20) == ""


@pytest.mark.parametrize("seed", CORPUS)
def test_regression_worlds_keep_all_invariants(seed: int) -> None:
    assert invariant_violations(random_scenario(SeededDraws(seed))) == ""


@pytest.mark.parametrize("seed", LOOPING)
def test_preemption_loop_is_reported_and_run_ends(seed: int) -> None:
    scenario = random_scenario(SeededDraws(seed), WorldBounds(workloads_max=14))
    assert invariant_violations(scenario) == ""
    assert any(record["event"] == "PreemptionLoop" and record["steps"] for record in event_log(scenario))
