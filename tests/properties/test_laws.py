"""The invariants hold in random worlds: Cohort trees, limits, flavors, policies, edits, Jobs, JobSets and Workloads.

The corpus keeps each world that once broke an invariant.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.api.well_known import PREEMPT_MIN_RUNTIME, RECLAIM_MIN_RUNTIME, VICTIMS
from batchyard.sim.random_worlds import SeededDraws, WorldBounds, random_objects, random_scenario, scenario_of
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


def with_preemption_settings(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the objects; all ClusterQueues protect their Workloads for some time, and prefer cheap victims."""
    times = {PREEMPT_MIN_RUNTIME: "7s", RECLAIM_MIN_RUNTIME: "20s", VICTIMS: "cheapest"}
    for obj in objects:
        if obj["kind"] == "ClusterQueue":
            obj["metadata"]["annotations"] = {**(obj["metadata"].get("annotations") or {}), **times}
    return objects


@pytest.mark.parametrize("seed", range(3000, 3030))
def test_protected_workloads_are_not_preempted_in_random_worlds(seed: int) -> None:
    fair_sharing, objects = random_objects(SeededDraws(seed), SMALL)
    scenario = scenario_of(with_preemption_settings(objects), fair_sharing=fair_sharing)
    assert invariant_violations(scenario) == ""
    if seed % 3 == 0:
        assert violations_with_faults(scenario, conflicts=0.2, crash_every=9) == ""


@pytest.mark.parametrize("seed", CORPUS)
def test_regression_worlds_keep_all_invariants(seed: int) -> None:
    assert invariant_violations(random_scenario(SeededDraws(seed))) == ""


@pytest.mark.parametrize("seed", LOOPING)
def test_preemption_loop_is_reported_and_run_ends(seed: int) -> None:
    scenario = random_scenario(SeededDraws(seed), WorldBounds(workloads_max=14))
    assert invariant_violations(scenario) == ""
    assert any(record["event"] == "PreemptionLoop" and record["steps"] for record in event_log(scenario))
