"""Each change that `why` proposes admits the Workload, and one unit less does not.

There is an explanation for each Workload in each state.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.sim.random_worlds import SeededDraws, WorldBounds
from batchyard.sim.scenario import Scenario
from properties.proposed_changes import admits, lasting_scenario, one_less, waiting, world_at_query
from properties.worlds import HypothesisDraws, examples

SMALL = WorldBounds(queues_max=4, workloads_max=12, edits_max=0)
#: The number of explained Workloads of each world: each change runs in separate worlds.
ASKED_MAX = 2
CORPUS = [
    pytest.param(2, id="later Workload preempts and overtakes"),
    pytest.param(22, id="admitted Workload is preempted and returns smaller"),
    pytest.param(54, id="one of three proposed deletions is not needed"),
    pytest.param(113, id="Job whose Workload ignores its node selector"),
    pytest.param(146, id="change applies to JobSet instead of Workload"),
]


def wrong_proposals(scenario: Scenario, most: int = ASKED_MAX) -> list[str]:
    """Return the proposed changes that do not admit the Workload, and those that are larger than necessary."""
    world, broken = world_at_query(scenario), list[str]()
    for key in waiting(world)[:most]:
        reported = world.platform.explainer.why(key, world.kernel.now())
        assert reported is not None
        assert reported["summary"]
        for change in filter(lambda each: each["apply"], reported.get("changes", [])):
            if not admits(scenario, key, change["apply"]):
                broken.append(f"{key.name} is not admitted: {change['text']}")
            broken += [
                f"{key.name} needs less: {change['text']}"
                for less in one_less(change, world)
                if admits(scenario, key, less)
            ]
    return broken


@settings(max_examples=max(1, examples() // 6))
@given(data=st.data())
def test_proposed_change_admits_and_one_unit_less_does_not(data: st.DataObject) -> None:
    assert wrong_proposals(lasting_scenario(HypothesisDraws(data), SMALL)) == []


@pytest.mark.parametrize("fair_sharing", [False, True])
@pytest.mark.parametrize("seed", range(3000, 3008))
def test_proposals_are_minimal_in_seeded_worlds(seed: int, fair_sharing: bool) -> None:
    bounds = replace(SMALL, fair_sharing=fair_sharing)
    assert wrong_proposals(lasting_scenario(SeededDraws(seed), bounds)) == []


@pytest.mark.parametrize("seed", CORPUS)
def test_proposals_are_minimal_in_regression_worlds(seed: int) -> None:
    bounds = replace(SMALL, workloads_max=14)
    assert wrong_proposals(lasting_scenario(SeededDraws(seed), bounds), most=14) == []
