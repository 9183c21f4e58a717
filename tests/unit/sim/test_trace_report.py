"""The report of a trace, on a trace small enough to compute by hand."""

from pathlib import Path

import pytest

from batchyard.base.instant import SECOND
from batchyard.sim.scenario import Scenario
from batchyard.sim.simulate import SimulationOptions
from batchyard.sim.trace_report import PodCounts, TraceReport, TraceRun, UnplacedReason, WaitAgreement
from batchyard.sim.traces import Trace, read_trace
from unit.sim.trace_make import NODES, write_trace

REAL = Path(__file__).parents[4] / "shared" / "traces"


def report_of_run(trace: Trace, until: int | None = None) -> TraceReport:
    """The report of a run, to its end or to this many seconds."""
    run = TraceRun(trace, SimulationOptions(until=None if until is None else until * SECOND))
    run.simulation.advance()
    run.simulation.result()
    return run.report()


@pytest.fixture
def report(tmp_path: Path) -> TraceReport:
    """The report of the small trace."""
    return report_of_run(read_trace(write_trace(tmp_path)))


def test_report_counts_pods_placed_in_run_and_in_trace(report: TraceReport) -> None:
    assert report.pods == PodCounts(5, placed_here=4, placed_there=4, placed_in_both=3, waiting=1, not_created=0)


def test_report_compares_waits_with_trace(report: TraceReport) -> None:
    """Pods a and b start at once (in the trace, b waits 2 s); c arrives at 20 s and waits until b ends at 58 s."""
    waits = report.waits
    assert (waits.here.max, waits.there.max) == (38, 2)
    assert (waits.longer_here, waits.excess_here.max) == (1, 38)
    assert (waits.longer_there, waits.excess_there.max) == (1, 2)
    assert waits.agree == [WaitAgreement(1, 1), WaitAgreement(10, 2), WaitAgreement(60, 3)]


def test_unplaced_reasons_match_placement_messages(report: TraceReport) -> None:
    affinity = "node(s) didn't match Pod's node affinity/selector"
    assert report.unplaced == [UnplacedReason(affinity, 1)]


def test_usage_is_weighted_by_time(report: TraceReport) -> None:
    """Of 3 GPUs, a uses 2 for 100 s, b uses 0.6 for 48 s, and then c uses 0.6 for 180 s."""
    gpu = next(row for row in report.usage if (row.model, row.resource) == ("", "gpu"))
    assert report.duration == 238
    assert gpu.total == 3000
    assert gpu.mean == pytest.approx((2000 * 100 + 600 * 48 + 600 * 180) / 3000 / 238)
    assert (gpu.peak, gpu.peak_at) == (2600 / 3000, 10)
    assert gpu.peak_there == pytest.approx((2000 + 600 + 600 + 500) / 3000)


def test_usage_is_reported_by_model(report: TraceReport) -> None:
    rows = {row.model: row for row in report.usage if row.resource == "gpu"}
    assert list(rows) == ["", "G2", "T4"]
    assert (rows["T4"].peak, rows["G2"].peak, rows["G2"].nodes) == (1.0, 0.6, 1)
    assert rows["T4"].mean_there is None


def test_points_are_evenly_spaced(report: TraceReport) -> None:
    assert [point.at for point in report.points[:3]] == [0, 2, 4]
    at_40 = next(point for point in report.points if point.at == 40)
    assert (at_40.gpu, at_40.waiting) == (2600 / 3000, 2)


def test_fragmentation_is_share_of_gpus_that_mix_cannot_use(tmp_path: Path) -> None:
    """One pod uses 600 of a GPU. Pods of the mix cannot use the other 400, but can use the second GPU."""
    trace = read_trace(write_trace(tmp_path, ("a,1000,1024,1,600,,LS,Succeeded,0,100,0",), NODES[:1]))
    found = report_of_run(trace).fragmentation
    assert (found.mean, found.peak, found.least) == (400 / 1400, 400 / 1400, 0)


def test_report_of_run_that_ends_early(tmp_path: Path) -> None:
    report = report_of_run(read_trace(write_trace(tmp_path)), until=25)
    assert report.pods == PodCounts(5, placed_here=2, placed_there=3, placed_in_both=2, waiting=1, not_created=2)
    assert report.duration == 25


def test_api_document_uses_camel_case_names(report: TraceReport) -> None:
    api_document = report.api_document()
    assert api_document["pods"]["placedInBoth"] == 3
    assert api_document["waits"]["agree"][0] == {"within": 1, "pods": 1}
    assert api_document["waits"]["excessHere"]["p50"] == 38


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="the trace is not available")
def test_real_trace_is_placed_as_recorded() -> None:
    whole = read_trace(REAL)
    pods = whole.pods[:200]
    steps = [step for step in whole.scenario.steps if step.at <= pods[-1].created]
    report = report_of_run(Trace(pods, Scenario(steps, counts=whole.scenario.counts)))
    assert report.pods.placed_in_both == report.pods.placed_there
    assert report.waits.here.max == 0
    for row in report.usage[:3]:
        assert row.mean == pytest.approx(row.mean_there, rel=0.01)
