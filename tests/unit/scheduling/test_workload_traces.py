"""Traces of Workload lifetimes, recorded from simulated Workloads."""

from pathlib import Path

import pytest

from batchyard.base.instant import SECOND
from batchyard.interfaces.controller import TraceSpan
from batchyard.scheduling.workload_traces import WorkloadTracer, root_span_id, workload_trace_id
from batchyard.sim.simulate import read_scenario
from batchyard.sim.world import World

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_example(*parts: str) -> tuple[list[TraceSpan], World]:
    """Run an example; return its spans and its world."""
    scenario, _ = read_scenario([EXAMPLES.joinpath(*parts)])
    world, spans = World(scenario), list[TraceSpan]()
    world.client.subscribe(WorkloadTracer(world.kernel.now, spans.append).observe)
    world.run_until(None)
    return spans, world


@pytest.mark.parametrize("example", ["first-steps", "preemption", "cohort-borrowing"])
def test_phases_cover_workload_span_without_gap(example: str) -> None:
    spans, world = run_example(example)
    roots = [span for span in spans if not span.parent]
    workloads = {w["metadata"]["uid"] for w in world.objects("Workload.kueue.x-k8s.io")}
    assert {workload_trace_id(uid) for uid in workloads} == {root.trace_id for root in roots}
    for root in roots:
        phases = sorted(
            (s for s in spans if s.parent == root.id and s.trace_id == root.trace_id), key=lambda s: s.start
        )
        assert [phase.start for phase in phases] == [root.start, *(phase.end for phase in phases[:-1])]
        assert phases[-1].end == root.end
        assert len({phase.id for phase in phases}) == len(phases)


def test_preemption_span_links_to_span_of_preemptor() -> None:
    spans, _ = run_example("preemption")
    evicted = [span for span in spans if span.links]
    lives = {(span.trace_id, span.id): span for span in spans if not span.parent}
    assert evicted
    for span in evicted:
        ((trace, root),) = span.links
        preemptor = lives[trace, root].attributes["kueue.workload.name"]
        assert str(preemptor).startswith(("job-release", "job-deadline"))
        assert span.events[0].attributes["reason"] == "Preempted"
        assert (span.name, span.end > span.start) == ("running", True)


def test_workload_span_has_queue_and_flavor_attributes() -> None:
    spans, _ = run_example("first-steps")
    life = next(span for span in spans if not span.parent)
    assert life.attributes["kueue.cluster_queue.name"]
    assert life.attributes["kueue.pod_set.main.flavors"]
    assert (life.end - life.start) % SECOND == 0


@pytest.mark.parametrize(
    ("uid", "trace"),
    [("4057EF00-0000-4000-8000-000000000001", "4057ef00000040008000000000000001"), ("a", None), ("0" * 32, None)],
)
def test_trace_ids_are_hexadecimal_and_never_zero(uid: str, trace: str | None) -> None:
    found = workload_trace_id(uid)
    assert found == (trace or found)
    assert (len(found), len(root_span_id(uid))) == (32, 16)
    assert int(found, 16) > 0
