"""What lint says can never be is never seen in a simulation of the same objects: it raises no false alarm."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.lint.findings import Severity
from batchyard.lint.registry import lint
from batchyard.sim.event_log import Record
from batchyard.sim.random_worlds.cluster import random_cluster_scenario
from batchyard.sim.random_worlds.queues import RandomSource, SeededDraws, WorldBounds, random_objects, scenario_of
from batchyard.sim.scenario import Scenario
from batchyard.sim.world import World
from properties.worlds import STEPS_MAX, Drawn, examples

#: Errors of work that is never admitted.
NEVER_ADMITTED = ("unknown-local-queue", "uncovered-resource", "exceeds-quota", "no-matching-flavor")
#: Errors of work none of whose pods ever gets a node.
NEVER_PLACED = (
    "pod-larger-than-node",
    "no-such-node",
    "untolerated-taint",
    "too-few-nodes",
    "queued-pool-without-check",
)
#: Nobody edits anything: lint looks at one state of the objects.
STILL = WorldBounds(queues_max=4, workloads_max=10, edits_max=0)


def ruled_out(objects: Iterable[Mapping[str, Any]], rules: tuple[str, ...]) -> dict[str, str]:
    """What lint says can never be: the rule by `namespace/name` of the work."""
    findings = lint(objects).findings
    return {f"{f.namespace}/{f.name}": f.rule for f in findings if f.severity is Severity.ERROR and f.rule in rules}


def happened(scenario: Scenario, event: str, field: str) -> list[str]:
    """Whom an event is told of, when a scenario is run to its end."""
    records: list[Record] = []
    World(scenario, sink=records.append).kernel.run(steps_max=STEPS_MAX)
    return [str(record[field]) for record in records if record["event"] == event]


def false_alarms(reported: Mapping[str, str], seen: Iterable[str]) -> list[str]:
    """The work that was ruled out, and happened: itself, its Workload, or a pod of it."""
    names = list(seen)
    found = []
    for who, rule in reported.items():
        namespace, _, name = who.partition("/")
        starts = (f"{namespace}/job-{name}-", f"{namespace}/jobset-{name}-", f"{who}-")
        found += [f"{rule} of {who}" for each in names if each == who or each.startswith(starts)]
    return found


def false_alarms_of(draws: RandomSource) -> list[str]:
    fair_sharing, objects = random_objects(draws, STILL)
    reported = ruled_out(objects, NEVER_ADMITTED)
    return false_alarms(
        reported, happened(scenario_of(objects, fair_sharing=fair_sharing), "QuotaReserved", "workload")
    )


@settings(max_examples=examples() // 4)
@given(data=st.data())
def test_what_lint_rules_out_is_never_admitted(data: st.DataObject) -> None:
    assert false_alarms_of(Drawn(data)) == []


@pytest.mark.parametrize("seed", range(3000, 3030))
def test_what_lint_rules_out_is_never_admitted_in_worlds_of_a_seed(seed: int) -> None:
    assert false_alarms_of(SeededDraws(seed)) == []


@pytest.mark.parametrize("seed", range(3100, 3120))
def test_what_lint_rules_out_never_gets_a_node(seed: int) -> None:
    scenario = random_cluster_scenario(SeededDraws(seed))
    objects = [obj for step in scenario.steps for obj in step.apply]
    assert false_alarms(ruled_out(objects, NEVER_PLACED), happened(scenario, "PodBound", "pod")) == []


def test_worlds_of_a_seed_have_something_to_rule_out() -> None:
    worlds = [random_objects(SeededDraws(seed), STILL)[1] for seed in range(3000, 3030)]
    rules = {rule for objects in worlds for rule in ruled_out(objects, NEVER_ADMITTED).values()}
    assert {"exceeds-quota", "no-matching-flavor"} <= rules
