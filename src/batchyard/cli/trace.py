"""`batchyard simulate --trace`: replays a trace and prints the results beside the trace's own."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.printing import Table, format_table
from batchyard.base.instant import SECOND, format_age
from batchyard.cli import output
from batchyard.cli.options import Output
from batchyard.cli.simulate import SimulateRequest, conclude, finished, options_of, requested_scenario, shown
from batchyard.cli.tables import render_json, render_yaml
from batchyard.sim.result import Result
from batchyard.sim.scenario import InvalidScenario
from batchyard.sim.trace_report import DurationStatistics, TraceReport, TraceRun, Usage
from batchyard.sim.traces import NAMESPACE, Trace, read_trace, with_manifests

#: The most file faults, and reasons for unscheduled pods, that are printed.
LINES_MAX: Final = 20
#: Without `-o wide`, only one in this many points of time is printed.
_STRIDE: Final = 10
_NEVER_KNOWN: Final = "-"


def run(folder: Path, load: Fraction, request: SimulateRequest) -> None:
    """Run the trace with a factor on its load; ends the command with 1 on failure."""
    trace = _read(folder, load)
    with_more = bool(request.paths or request.cluster)
    scenario = with_manifests(trace, requested_scenario(request)) if with_more else None
    with options_of(request) as options:
        replay = TraceRun(trace, options, scenario)
        result = finished(replay.simulation)
    if request.events != "-":
        output.write(_shown(replay.report(), _without_trace(result) if with_more else None, request.output))
    conclude(result)


def report_tables(report: TraceReport, *, wide: bool) -> str:
    """The report as tables, separated by empty lines."""
    parts = {
        "pods" if report.load == 1 else f"pods, {report.load:g} times the arrival rate": _pods(report),
        "waits of pods scheduled in both, from creation to binding": _waits(report),
        "reasons of pods that were never scheduled": _reasons(report),
        "requested share of the allocatable resources": [_USAGE_HEADER, *map(_usage, report.usage)],
        "free GPU share that a typical pod cannot use": _fragmentation(report),
        "over time": _points(report, 1 if wide else _STRIDE),
    }
    return "\n".join(f"# {title}\n{format_table(rows)}" for title, rows in parts.items() if len(rows) > 1)


def _read(folder: Path, load: Fraction) -> Trace:
    try:
        return read_trace(folder, load)
    except InvalidScenario as invalid:
        lines = [str(fault) for fault in invalid.faults[:LINES_MAX]]
        if len(invalid.faults) > LINES_MAX:
            lines.append(f"and {len(invalid.faults) - LINES_MAX} more")
        faults = len(invalid.faults)
        lines.append(f"batchyard: {faults} fault{'s' * (faults > 1)}; nothing was run")
        output.fail("\n".join(lines))


def _shown(report: TraceReport, result: Result | None, form: Output) -> str:
    """The report, and the objects of the manifests that ran beside the trace."""
    if form not in (Output.JSON, Output.YAML):
        tables = report_tables(report, wide=form is Output.WIDE)
        return tables if result is None else f"{tables}\n{shown(result, form)}"
    document: dict[str, Any] = report.api_document()
    if result is not None:
        document["objects"] = {kind: list(objs) for kind, objs in result.objects.items() if objs}
    return render_json(document) if form is Output.JSON else render_yaml(document)


def _without_trace(result: Result) -> Result:
    """Remove the nodes and pods of the trace, which would be thousands of uniform lines."""
    pods = [pod for pod in result.objects[scheme.POD] if pod["metadata"]["namespace"] != NAMESPACE]
    return replace(result, objects={**result.objects, scheme.NODE: [], scheme.POD: pods})


# --- tables ---

_USAGE_HEADER: Final = ["NODES WITH", "NODES", "RESOURCE", "MEAN", "PEAK", "PEAK AT", "MEAN THERE", "PEAK THERE"]


def _pods(report: TraceReport) -> Table:
    pods = report.pods
    header = ["PODS", "PLACED HERE", "PLACED THERE", "IN BOTH", "WAITING", "NOT CREATED"]
    numbers = pods.total, pods.placed_here, pods.placed_there, pods.placed_in_both, pods.waiting, pods.not_created
    return [header, list(map(str, numbers))]


def _waits(report: TraceReport) -> Table:
    waits = report.waits
    both = report.pods.placed_in_both
    rows = [
        ["", "PODS", "MEAN", "P50", "P90", "P99", "MAX"],
        ["here", str(both), *_seconds(waits.here)],
        ["in the trace", str(both), *_seconds(waits.there)],
        ["longer here, by", str(waits.longer_here), *_seconds(waits.excess_here)],
        ["longer in the trace, by", str(waits.longer_there), *_seconds(waits.excess_there)],
    ]
    return rows + [[f"alike within {agreed.within}s", str(agreed.pods), *[""] * 5] for agreed in waits.agree]


def _seconds(spread: DurationStatistics) -> list[str]:
    return [f"{amount:.1f}s" for amount in (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)]


def _reasons(report: TraceReport) -> Table:
    rows = [[str(row.pods), row.reason] for row in report.unplaced]
    return [["PODS", "REASON"], *rows[:LINES_MAX]]


def _usage(row: Usage) -> list[str]:
    there = [_NEVER_KNOWN if share is None else _percent(share) for share in (row.mean_there, row.peak_there)]
    mean, peak = _percent(row.mean), _percent(row.peak)
    return [row.model or "any GPU", str(row.nodes), row.resource, mean, peak, _age(row.peak_at), *there]


def _fragmentation(report: TraceReport) -> Table:
    found = report.fragmentation
    shares = [_percent(share) for share in (found.mean, found.peak)]
    return [["MEAN", "PEAK", "PEAK AT", "AT LEAST"], [*shares, _age(found.peak_at), _percent(found.least)]]


def _points(report: TraceReport, stride: int) -> Table:
    rows = [
        [_age(p.at), *map(_percent, (p.cpu, p.memory, p.gpu, p.fragmentation)), str(p.waiting)]
        for p in report.points[::stride]
    ]
    return [["AFTER", "CPU", "MEMORY", "GPU", "FRAGMENTATION", "WAITING"], *rows]


def _percent(share: float) -> str:
    return f"{share:.3%}"


def _age(seconds: float) -> str:
    return format_age(round(seconds * SECOND))
