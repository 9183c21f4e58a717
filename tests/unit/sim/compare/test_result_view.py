"""The result page of a report, and totals of an earlier run from its report or its JSON output."""

import json

import pytest

from batchyard.sim.compare.result_view import compare_with_earlier, earlier_totals, result_view
from batchyard.sim.result import Reporter
from batchyard.sim.simulate import Simulation, read_scenario
from batchyard.sim.summary.run_summary import RunSummary, summarize_run, summary_document
from batchyard.sim.summary.run_watch import RunWatch, WatchedSimulation
from unit.sim.forks_make import queue, workload

LOAD = [workload("one", 30), workload("two", 30), workload("three", 30)]


def run(cpus: int) -> tuple[RunSummary, str]:
    """Return the summary and the report of a run with a quota."""
    simulation = Simulation(read_scenario([*queue(cpus), *LOAD])[0])
    watch, reporter = RunWatch(simulation.world), Reporter(simulation.world)
    simulation.advance()
    result = simulation.result()
    summary = summarize_run(WatchedSimulation(result, watch, result.now))
    return summary, reporter.html(result.now, result.costs, result_view(summary))


def test_totals_are_equal_from_report_and_from_json() -> None:
    summary, html = run(1)
    from_json = earlier_totals(json.dumps({"kind": "List", "summary": summary_document(summary)}))
    assert earlier_totals(html) == from_json == summary_document(summary)["overall"]


def test_cards_show_change_and_its_direction() -> None:
    _, html = run(1)
    summary, _ = run(2)
    comparison = compare_with_earlier(summary, earlier_totals(html), "a.html")
    view = result_view(summary, comparison)
    cards = {card["title"]: card for card in view["cards"]}
    assert (cards["mean wait"]["value"], cards["mean wait"]["before"]) == ("10s", "30s")
    assert (cards["mean wait"]["change"], cards["mean wait"]["rating"]) == ("-20s", "better")
    assert view["comparedWith"] == "a.html"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kind: List", "the file is neither a report nor JSON"),
        ("{}", "the file contains no summary of a run"),
        ('{"summary": {"overall": {"finished": "3"}}}', "the file contains no summary of a run"),
        (
            '<script type="application/json" id="report">{"models": {}}</script>',
            "the file contains no summary of a run",
        ),
    ],
)
def test_file_without_totals_is_rejected(text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        earlier_totals(text)
