"""Traces of Workload lifetimes, recorded from simulated Workloads."""

from pathlib import Path

import pytest

import make
from batchyard.api.meta import Obj, key_of
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.interfaces.controller import TraceSpan
from batchyard.scheduling.workload import evictions, lifecycle
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
    result = workload_trace_id(uid)
    assert result == (trace or result)
    assert (len(result), len(root_span_id(uid))) == (32, 16)
    assert int(result, 16) > 0


def workload_spans(*steps: tuple[float, Obj], before: Obj | None = None) -> list[TraceSpan]:
    """The spans of a Workload with these states, each with its time; `before` is the state before the first event."""
    spans, times = list[TraceSpan](), iter([make.at(seconds) for seconds, _ in steps])
    tracer = WorkloadTracer(lambda: next(times), spans.append)
    for number, (_, obj) in enumerate(steps):
        event_type = EventType.ADDED if before is None else EventType.MODIFIED
        tracer.observe([WatchEvent(event_type, key_of(obj), obj, before, number)])
        before = obj
    return spans


def phases_of(spans: list[TraceSpan]) -> list[tuple[str, float, float]]:
    """The names of the spans, with start and end in seconds from the beginning."""
    return [(span.name, (span.start - make.NOW) / SECOND, (span.end - make.NOW) / SECOND) for span in spans]


PENDING = make.workload("w")
RESERVED = lifecycle.reserve_quota(PENDING, make.admission(), make.at(5), admitted=False, checks=["check"])
ADMITTED = lifecycle.reserve_quota(PENDING, make.admission(), make.at(5), admitted=True)
FINISHED = lifecycle.finish(ADMITTED, "Succeeded", "", make.at(20))


def test_admission_checks_are_phase_of_their_own() -> None:
    spans = workload_spans((0, PENDING), (5, RESERVED), (9, ADMITTED), (20, FINISHED))
    assert phases_of(spans) == [("queued", 0, 5), ("admission checks", 5, 9), ("running", 9, 20), ("workload", 0, 20)]


def test_tracer_that_starts_late_takes_start_of_phase_from_status() -> None:
    assert phases_of(workload_spans((9, ADMITTED), (20, FINISHED), before=RESERVED))[0] == ("running", 5, 20)
    assert phases_of(workload_spans((3, PENDING), (5, ADMITTED), before=PENDING))[0] == ("queued", 0, 5)


def test_eviction_without_preemptor_has_event_but_no_link() -> None:
    evicted = evictions.evict(ADMITTED, reason="Deactivated", message="stopped by a user", now=make.at(9))
    spans = workload_spans((5, ADMITTED), (9, evicted), (12, evictions.release_after_eviction(evicted, make.at(12))))
    assert [span.name for span in spans] == ["running", "stopping"]
    assert spans[0].links == ()
    ((_, name, attributes),) = spans[0].events
    assert (name, dict(attributes)) == ("evicted", {"reason": "Deactivated", "message": "stopped by a user"})
