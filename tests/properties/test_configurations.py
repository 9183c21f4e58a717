"""Comparison is symmetric: a configuration equals itself, and a swapped comparison negates all differences."""

from collections.abc import Mapping
from typing import Any

import pytest

from batchyard.sim.compare.comparison import ComparisonSettings, compare_configurations, document_of
from batchyard.sim.compare.inputs import ConfigurationPair
from batchyard.sim.random_clusters import random_cluster_scenario
from batchyard.sim.random_worlds import SeededDraws, WorldBounds, random_scenario
from batchyard.sim.scenario import Scenario

UNTIL = 3_600_000_000


def compare_scenarios(a: Scenario, b: Scenario) -> dict[str, Any]:
    return document_of(compare_configurations(("a", "b"), ConfigurationPair(a, b, ()), ComparisonSettings(UNTIL)))


def rows(found: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(section, row) for section, reported in found["figures"].items() for row in reported]


@pytest.mark.parametrize("seed", range(4))
def test_configuration_compared_with_itself_shows_no_differences(seed: int) -> None:
    draws = SeededDraws(seed)
    scenario = random_cluster_scenario(draws) if seed % 2 else random_scenario(draws, WorldBounds())
    result = compare_scenarios(scenario, scenario)
    assert all(not any(row["difference"].values()) for _, row in rows(result))
    assert (result["changes"]["better"], result["changes"]["worse"]) == ([], [])


@pytest.mark.parametrize("seed", range(6))
def test_swapped_comparison_negates_all_differences(seed: int) -> None:
    a, b = (random_scenario(SeededDraws(seed), WorldBounds(fair_sharing=fair)) for fair in (False, True))
    there, back = compare_scenarios(a, b), compare_scenarios(b, a)
    assert [(section, row["name"]) for section, row in rows(there)] == [(s, row["name"]) for s, row in rows(back)]
    for (_, one), (_, other) in zip(rows(there), rows(back), strict=True):
        assert (one["a"], one["b"]) == (other["b"], other["a"])
        assert one["difference"] == {name: -value for name, value in other["difference"].items()}
    assert [each["workload"] for each in there["changes"]["better"]] == [
        each["workload"] for each in back["changes"]["worse"]
    ]
