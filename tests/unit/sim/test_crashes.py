"""A crash after any write leads to the same final state; so do conflicts."""

from pathlib import Path

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.base.instant import HOUR
from batchyard.scheduling.workload.lifecycle import is_finished
from batchyard.sim.faults import WriteFaults
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[3] / "examples"


def final_state(name: str, trouble: WriteFaults | None = None, crash_after: int | None = None) -> dict[str, object]:
    """The final state of the Workloads and Jobs of an example, in a world with these write faults."""
    files = sorted((EXAMPLES / name).rglob("*.yaml"))
    manifests = read_manifests((path.name, path.read_text("utf-8")) for path in files)
    world = World(make_scenario(manifests), write_faults=trouble)
    if trouble is not None and crash_after is not None:
        trouble.on_write = lambda count: world.crash() if count == crash_after else None
    world.run_until(HOUR)
    result: dict[str, object] = {}
    for workload in world.objects(scheme.WORKLOAD):
        result[workload["metadata"]["name"]] = is_finished(workload)
    for job in world.objects(scheme.JOB):
        status = job["status"]
        result[job["metadata"]["name"]] = (status["succeeded"], [c["type"] for c in status["conditions"]])
    return result


@pytest.mark.parametrize("name", ["first-steps", "preemption"])
def test_crash_after_any_write_does_not_change_final_state(name: str) -> None:
    expected, counted = final_state(name), WriteFaults()
    writes: list[int] = []
    counted.on_write = writes.append
    assert final_state(name, counted) == expected
    assert len(writes) > 30
    differing = [count for count in writes if final_state(name, WriteFaults(), count) != expected]
    assert differing == []


def test_conflicts_do_not_change_final_state() -> None:
    trouble = WriteFaults()
    trouble.conflict_rate = 0.3
    assert final_state("preemption", trouble) == final_state("preemption")
