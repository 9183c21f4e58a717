"""What `why` proposes admits the Workload in a world that is changed so, and one unit less does not.

Also: whoever is asked about, whatever its state, there is an answer.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.sim.random_worlds.queues import SeededDraws, WorldBounds
from batchyard.sim.scenario import Scenario
from properties.proposed import admits, asked, lasting_scenario, one_less, waiting
from properties.worlds import Drawn, examples

SMALL = WorldBounds(queues_max=4, workloads_max=12, edits_max=0)
#: Of each world so many Workloads are asked about: each change is tried in worlds of its own.
ASKED_MAX = 2
CORPUS = [
    pytest.param(2, id="one behind it preempts its way past"),
    pytest.param(22, id="one admitted on the way is preempted and comes back smaller"),
    pytest.param(54, id="of three that are to end one can be spared once another is"),
    pytest.param(113, id="a Job whose Workload does not follow its node selector"),
    pytest.param(146, id="a JobSet is changed itself, not its Workload"),
]


def broken_promises(scenario: Scenario, most: int = ASKED_MAX) -> list[str]:
    """The changes that do not do, and those of which less would."""
    world, broken = asked(scenario), list[str]()
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
def test_every_proposed_change_admits_and_one_unit_less_does_not(data: st.DataObject) -> None:
    assert broken_promises(lasting_scenario(Drawn(data), SMALL)) == []


@pytest.mark.parametrize("fair_sharing", [False, True])
@pytest.mark.parametrize("seed", range(3000, 3008))
def test_proposals_hold_in_worlds_of_a_seed(seed: int, fair_sharing: bool) -> None:
    bounds = replace(SMALL, fair_sharing=fair_sharing)
    assert broken_promises(lasting_scenario(SeededDraws(seed), bounds)) == []


@pytest.mark.parametrize("seed", CORPUS)
def test_worlds_in_which_a_proposal_once_failed(seed: int) -> None:
    bounds = replace(SMALL, workloads_max=14)
    assert broken_promises(lasting_scenario(SeededDraws(seed), bounds), most=14) == []
