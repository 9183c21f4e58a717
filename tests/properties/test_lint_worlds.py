"""Lint reports no false errors: excluded work never starts in a simulation of the same objects."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.lint.findings import Severity
from batchyard.lint.registry import lint
from batchyard.sim.event_log import Record
from batchyard.sim.random_clusters import random_cluster_scenario
from batchyard.sim.random_worlds import RandomSource, SeededDraws, WorldBounds, random_objects, scenario_of
from batchyard.sim.scenario import Scenario
from batchyard.sim.world import World
from properties.worlds import STEPS_MAX, HypothesisDraws, examples

#: Errors of work that cannot be admitted.
NEVER_ADMITTED = ("unknown-local-queue", "uncovered-resource", "exceeds-quota", "no-matching-flavor")
#: Errors of work whose pods cannot get a node.
NEVER_PLACED = (
    "pod-larger-than-node",
    "no-such-node",
    "untolerated-taint",
    "too-few-nodes",
    "queued-pool-without-check",
)
#: There are no edits: lint checks one state of the objects.
STILL = WorldBounds(queues_max=4, workloads_max=10, edits_max=0)


def lint_exclusions(objects: Iterable[Mapping[str, Any]], rules: tuple[str, ...]) -> dict[str, str]:
    """Return the rules by which lint excludes work, by `namespace/name`."""
    findings = lint(objects).findings
    return {f"{f.namespace}/{f.name}": f.rule for f in findings if f.severity is Severity.ERROR and f.rule in rules}


def subjects_of(scenario: Scenario, event: str, field: str) -> list[str]:
    """Run a scenario to its end; return the subjects of an event."""
    records: list[Record] = []
    World(scenario, sink=records.append).kernel.run(steps_max=STEPS_MAX)
    return [str(record[field]) for record in records if record["event"] == event]


def false_alarms(reported: Mapping[str, str], seen: Iterable[str]) -> list[str]:
    """Return the excluded work that started: the object, its Workload, or one of its pods."""
    names = list(seen)
    result = []
    for who, rule in reported.items():
        namespace, _, name = who.partition("/")
        starts = (f"{namespace}/job-{name}-", f"{namespace}/jobset-{name}-", f"{who}-")
        result += [f"{rule} of {who}" for each in names if each == who or each.startswith(starts)]
    return result


def false_alarms_of(draws: RandomSource) -> list[str]:
    fair_sharing, objects = random_objects(draws, STILL)
    reported = lint_exclusions(objects, NEVER_ADMITTED)
    return false_alarms(
        reported, subjects_of(scenario_of(objects, fair_sharing=fair_sharing), "QuotaReserved", "workload")
    )


@settings(max_examples=examples() // 4)
@given(data=st.data())
def test_workload_excluded_by_lint_is_never_admitted(data: st.DataObject) -> None:
    assert false_alarms_of(HypothesisDraws(data)) == []


@pytest.mark.parametrize("seed", range(3000, 3030))
def test_workload_excluded_by_lint_is_never_admitted_in_seeded_worlds(seed: int) -> None:
    assert false_alarms_of(SeededDraws(seed)) == []


@pytest.mark.parametrize("seed", range(3100, 3120))
def test_pod_excluded_by_lint_is_never_bound(seed: int) -> None:
    scenario = random_cluster_scenario(SeededDraws(seed))
    objects = [obj for step in scenario.steps for obj in step.apply]
    assert false_alarms(lint_exclusions(objects, NEVER_PLACED), subjects_of(scenario, "PodBound", "pod")) == []


def test_seeded_worlds_contain_excluded_workloads() -> None:
    worlds = [random_objects(SeededDraws(seed), STILL)[1] for seed in range(3000, 3030)]
    rules = {rule for objects in worlds for rule in lint_exclusions(objects, NEVER_ADMITTED).values()}
    assert {"exceeds-quota", "no-matching-flavor"} <= rules
