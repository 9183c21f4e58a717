"""A platform that crashes after any of its writes comes to the same end; conflicts change nothing either."""

from pathlib import Path

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.base.instant import HOUR
from batchyard.scheduling.workload.lifecycle import is_finished
from batchyard.sim.faults.faults import WriteFaults
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World

EXAMPLES = Path(__file__).parents[3] / "examples"


def ends(name: str, trouble: WriteFaults | None = None, crash_after: int | None = None) -> dict[str, object]:
    """How the Workloads and Jobs of an example end, in a world with so much trouble."""
    files = sorted((EXAMPLES / name).rglob("*.yaml"))
    manifests = read_manifests((path.name, path.read_text("utf-8")) for path in files)
    world = World(make_scenario(manifests), trouble=trouble)
    if trouble is not None and crash_after is not None:
        trouble.on_write = lambda count: world.crash() if count == crash_after else None
    world.run_until(HOUR)
    ends: dict[str, object] = {}
    for workload in world.objects(scheme.WORKLOAD):
        ends[workload["metadata"]["name"]] = is_finished(workload)
    for job in world.objects(scheme.JOB):
        status = job["status"]
        ends[job["metadata"]["name"]] = (status["succeeded"], [c["type"] for c in status["conditions"]])
    return ends


@pytest.mark.parametrize("name", ["first-steps", "preemption"])
def test_a_crash_after_any_write_changes_no_end(name: str) -> None:
    wanted, counted = ends(name), WriteFaults()
    writes: list[int] = []
    counted.on_write = writes.append
    assert ends(name, counted) == wanted
    assert len(writes) > 30
    differing = [count for count in writes if ends(name, WriteFaults(), count) != wanted]
    assert differing == []


def test_conflicts_change_no_end() -> None:
    trouble = WriteFaults()
    trouble.conflicts = 0.3
    assert ends("preemption", trouble) == ends("preemption")
