"""Small worlds with their expected events.

A scenario `NAME.yaml` is a list of manifests with the times at which they are applied; `NAME.expected.yaml` beside it
lists the events of each instant (in any order), and the running and pending Workloads at the end.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import find_condition
from batchyard.api.views.workload import workload_view
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World

HERE = Path(__file__).parent
SCENARIOS = {
    f"{path.parent.name}/{path.stem}": path
    for path in sorted(HERE.glob("*/*.yaml"))
    if not path.stem.endswith(".expected")
}


def run(path: Path) -> tuple[World, list[Mapping[str, Any]]]:
    """Run a scenario; return the world and its event log."""
    records: list[Mapping[str, Any]] = []
    world = World(make_scenario(read_manifests([(path.name, path.read_text("utf-8"))])), sink=records.append)
    world.run_until(world.scenario.horizon)
    world.flush_batched_writes()
    return world, records


def line(record: Mapping[str, Any]) -> str:
    """Return a record as a short text; '' if it is irrelevant."""
    name = record.get("workload", "").partition("/")[2]
    match record["event"]:
        case "QuotaReserved":
            return f"{name} gets {record['clusterQueue']}: {', '.join(map(_pod_set, record['podSets']))}"
        case "Preempted":
            return f"{record['by'].partition('/')[2]} preempts {name} ({record['reason']})"
        case "Evicted":
            return f"{name} is evicted ({record['reason']})"
        case "Finished":
            return f"{name} finished"
        case "PreemptionLoop":
            return f"loop in {record['cohort']}"
        case _:
            return ""


def _pod_set(pod_set: Mapping[str, Any]) -> str:
    """Return `2 spot`, or `driver 2 spot` if the pod set is not the main one."""
    flavors = "+".join(dict.fromkeys(pod_set["flavors"].values()))
    reported = f"{pod_set['count']} {flavors}"
    return reported if pod_set["name"] == "main" else f"{pod_set['name']} {reported}"


def events_by_instant(records: list[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the events of each instant."""
    result: dict[str, list[str]] = {}
    for record in records:
        reported = line(record)
        if reported:
            result.setdefault(f"{record['time']:g}s", []).append(reported)
    return {instant: sorted(lines) for instant, lines in result.items()}


def ending(world: World) -> dict[str, Any]:
    """Return the running Workloads at the end, and the reasons of the pending ones."""
    views = [(obj, workload_view(obj)) for obj in world.objects(scheme.WORKLOAD)]
    runs = [view.name for _, view in views if view.quota_reserved and not view.finished]
    waits = {}
    for obj, view in views:
        if not view.quota_reserved and not view.finished:
            condition = find_condition(obj, "QuotaReserved")
            waits[view.name] = condition["reason"] if condition else ""
    return {name: value for name, value in (("runs", runs), ("waits", waits)) if value}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_matches_expectation(name: str) -> None:
    path = SCENARIOS[name]
    expected = yaml.safe_load(path.with_suffix(".expected.yaml").read_text("utf-8"))
    world, records = run(path)
    result: dict[str, Any] = events_by_instant(records)
    if end := ending(world):
        result["end"] = end
    assert result == {when: sorted(what) if isinstance(what, list) else what for when, what in expected.items()}
    assert not world.rejected_writes


def test_each_scenario_has_expectation_and_vice_versa() -> None:
    expected = sorted(HERE.glob("*/*.expected.yaml"))
    assert expected == [path.with_suffix(".expected.yaml") for path in SCENARIOS.values()]
