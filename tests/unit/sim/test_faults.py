"""Faults as scenarios write them: when they come, what they do, and what is wrong with them."""

from itertools import islice
from typing import Any

import pytest

from batchyard.api.errors import FieldError
from batchyard.api.manifests import read_manifests
from batchyard.base.instant import HOUR, MINUTE
from batchyard.sim.faults import (
    Action,
    Conflicts,
    Drain,
    Fail,
    ReclaimSpot,
    Restart,
    ScheduledFault,
    SlowBoot,
    Stockout,
)
from batchyard.sim.faults import read_faults as read
from batchyard.sim.scenario import InvalidScenario, make_scenario

HEAD = "apiVersion: sim.batchyard.dev/v1alpha1\nkind: Scenario\nmetadata: {name: s}\nspec:\n  faults:\n"


def read_one(**given: Any) -> ScheduledFault:
    wrong: list[FieldError] = []
    (fault,) = read([given], wrong)
    assert wrong == []
    return fault


@pytest.mark.parametrize(
    ("given", "action"),
    [
        ({"fail": {"pool": "spot-np", "count": 3}}, Fail(pool="spot-np", count=3)),
        ({"fail": {"jobSet": "team/train"}}, Fail(job_set="team/train")),
        ({"reclaimSpot": {"pool": "spot-np"}}, ReclaimSpot("spot-np")),
        ({"stockout": {"machine": "a2", "zone": "z", "for": "30m"}}, Stockout("a2", 30 * MINUTE, "z")),
        ({"slowBoot": {"machine": "g2", "times": 4, "for": "1h"}}, SlowBoot("g2", 4, HOUR)),
        ({"drain": {"node": "n"}}, Drain("n")),
        ({"conflicts": {"percent": 20, "for": "5m"}}, Conflicts(20, 5 * MINUTE)),
        ({"restart": True}, Restart()),
    ],
)
def test_a_fault_does_what_it_says(given: dict[str, Any], action: Action) -> None:
    fault = read_one(at="10m", **given)
    assert fault.action == action
    assert list(fault.times()) == [10 * MINUTE]


def test_faults_at_random_have_their_mean_and_depend_on_the_seed_alone() -> None:
    fault = read_one(every={"mean": "2h", "seed": 7}, fail={"pool": "p"})
    times = list(islice(fault.times(), 2000))
    assert times == sorted(times)
    assert 1.8 * HOUR < times[-1] / len(times) < 2.2 * HOUR
    assert times == list(islice(read_one(every={"mean": "2h", "seed": 7}, fail={"pool": "p"}).times(), 2000))
    assert times != list(islice(read_one(every={"mean": "2h", "seed": 8}, fail={"pool": "p"}).times(), 2000))


def test_faults_at_random_end_when_they_are_told_to() -> None:
    fault = read_one(every={"mean": "1h", "until": "10h"}, restart=True)
    times = list(fault.times())
    assert 0 < len(times) < 40
    assert times[-1] <= 10 * HOUR


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("{fail: {pool: p}}", "spec.faults[0]: exactly one of at and every says when"),
        ("{at: 1m, every: {mean: 1h}, restart: true}", "spec.faults[0]: exactly one of at and every"),
        ("{every: {mean: 0s}, restart: true}", "spec.faults[0].every.mean: a mean of nothing"),
        ("{at: 1m}", "spec.faults[0]: nothing goes wrong; name one of fail, reclaimSpot"),
        ("{at: 1m, restart: true, fail: {pool: p}}", "spec.faults[0]: fail, restart are too many"),
        ("{at: 1m, fail: {count: 2}}", "spec.faults[0].fail: nothing is named that fails; name one of node, pool"),
        ("{at: 1m, fail: {node: n, pool: p}}", "spec.faults[0].fail: node, pool are too many"),
        ("{at: 1m, conflicts: {percent: 100, for: 1m}}", "spec.faults[0].conflicts.percent"),
        ("{at: 1m, fial: {node: n}}", "spec.faults[0].fial"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(fault: str, said: str) -> None:
    with pytest.raises(InvalidScenario) as told:
        make_scenario(read_manifests([("s.yaml", f"{HEAD}  - {fault}\n")]))
    assert str(told.value).startswith(f"s.yaml:1 Scenario/s: {said}")
