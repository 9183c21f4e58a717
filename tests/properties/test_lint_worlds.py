"""What lint says can never be is never seen in a simulation of the same objects: it raises no false alarm."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.api import scheme
from batchyard.api.conditions import is_true
from batchyard.api.meta import group_kind
from batchyard.core.lint.findings import Finding, Severity
from batchyard.sim.generate import Bounds, Draws, SeededDraws, random_objects, scenario_of
from batchyard.sim.generate_cluster import random_cluster_scenario
from batchyard.sim.lint import lint
from batchyard.sim.scenario import Scenario
from batchyard.sim.world import World
from properties.worlds import Drawn, examples

#: Errors of work that is never admitted.
NEVER_ADMITTED = (
    *("unknown-local-queue", "uncovered-resource", "exceeds-quota", "no-matching-flavor", "unknown-priority-class"),
)
#: Errors of work none of whose pods ever gets a node.
NEVER_PLACED = ("pod-larger-than-node", "no-such-node", "untolerated-taint", "queued-pool-without-check")
#: Nobody edits anything: lint looks at one state of the objects.
STILL = Bounds(queues_max=4, workloads_max=10, edits_max=0)


def admitted(world: World) -> set[str]:
    """The names of what was ever admitted, and of the Jobs and JobSets it was made for."""
    found = set()
    for workload in world.objects(scheme.WORKLOAD):
        if is_true(workload.get("status") or {}, "QuotaReserved") or (workload.get("status") or {}).get("admission"):
            owners = workload["metadata"].get("ownerReferences") or ()
            found |= {workload["metadata"]["name"], *(owner["name"] for owner in owners)}
    return found


def errors(objects: list[Any], rules: tuple[str, ...]) -> list[Finding]:
    report = lint(objects)
    return [f for f in report.findings if f.severity is Severity.ERROR and f.rule in rules]


def false_alarms(draws: Draws) -> list[str]:
    """What lint rules out and the simulation lets in."""
    fair_sharing, objects = random_objects(draws, STILL)
    told = {f"{f.namespace}/{f.name}": f.rule for f in errors(objects, NEVER_ADMITTED)}
    let_in: set[str] = set()

    def note(record: dict[str, Any]) -> None:
        if record["event"] == "QuotaReserved":
            let_in.add(str(record))

    world = World(scenario_of(objects, fair_sharing=fair_sharing), sink=note)
    world.run()
    return [f"{name}: {rule}" for name, rule in told.items() if any(name in record for record in let_in)]


@settings(max_examples=examples() // 2)
@given(data=st.data())
def test_what_lint_rules_out_is_never_admitted(data: st.DataObject) -> None:
    assert false_alarms(Drawn(data)) == []
