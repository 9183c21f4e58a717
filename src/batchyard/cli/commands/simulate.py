"""`batchyard simulate`: runs manifests in virtual time and prints the result."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
import typer

from batchyard.accounting.accounts import USES, Statement, StatementLine
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.printing import Table, format_table
from batchyard.api.views.pods import pod_view
from batchyard.base.instant import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, Duration, Instant, format_age
from batchyard.cli import output
from batchyard.cli.cluster_access import UNTIL, state_in, with_explicit_runtimes
from batchyard.cli.options import LoopAction, Output, Report, Runtime
from batchyard.cli.output import NOTHING_FOUND, render, render_json, render_yaml, watched
from batchyard.controller_runtime.kernel import EndlessInstant
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.scheduling.kueue_configuration import SIMULATED
from batchyard.sim.event_log import Record
from batchyard.sim.recovery import Loss
from batchyard.sim.result import Reporter, Result, RunEnding
from batchyard.sim.scenario import VIRTUAL_TIME_MAX, InvalidScenario, Scenario, run_length
from batchyard.sim.simulate import OnLoop as WhenLooping
from batchyard.sim.simulate import Simulation, SimulationOptions, read_scenario
from batchyard.sim.state import State
from batchyard.sim.state_document import is_state
from batchyard.sim.trace_report import DurationStatistics, TraceReport, TraceRun, Usage
from batchyard.sim.traces import NAMESPACE, Trace, load_of, read_trace, with_manifests
from batchyard.sim.whatif import start_of
from batchyard.sim.world import EPOCH, ignore_record

# --- accounting tables ---
#
# The accounting of a run: machine costs, gang recoveries, unscheduled pods; as tables, and as a document.


_FIGURES: Final = ("MACHINE-HOURS", "ACCELERATOR-HOURS", *(use.upper() for use in USES), "COST")
#: The decimal places of hours: exact to a hundredth of a second.
_DIGITS: Final = 6


def costs_tables(statement: Statement) -> str:
    """The costs of each pool and then of each team, by use; hours that no team used are listed as (unused)."""
    pools = [["POOL", "PROVISIONING", *_FIGURES]]
    pools += [[line.pool, line.provisioning, *_figures(lines)] for line, lines in _grouped(statement.by_pool)]
    teams = [["TEAM", *_FIGURES]]
    teams += [[line.team or "(unused)", *_figures(lines)] for line, lines in _grouped(statement.by_team)]
    teams.append(["all", *_figures(statement.by_team)])
    return f"{_table(pools)}\n{_table(teams)}"


def losses_table(losses: Sequence[Loss], now: Instant) -> str:
    """The gangs that lost a machine: time to recovery, lost work, and preempted gangs."""
    header = ["GANG", "LOST AT", "RECOVERED IN", "LOST POD TIME", "PREEMPTED"]
    return format_table([header, *(_loss(loss, now) for loss in losses)])


def unplaced_table(pods: Iterable[Obj]) -> str:
    """The pods without a node and the reasons; empty if all have one."""
    views = [pod_view(pod) for pod in pods]
    rows = [[pod.namespace, pod.name, pod.unplaced] for pod in views if pod.awaits_node and pod.unplaced]
    return format_table([["NAMESPACE", "POD WITHOUT A NODE", "WHY"], *rows]) if rows else ""


def books_of(result: Result) -> dict[str, Any]:
    """The same as a document, if the world has machines: dollars as exact text, times in seconds."""
    if result.costs is None:
        return {}
    costs = {
        "currency": "USD",
        "total": _amount(result.costs.cents),
        "pools": [
            {"pool": line.pool, "provisioning": line.provisioning, **_use(line)} for line in result.costs.by_pool
        ],
        "teams": [{"team": line.team, **_use(line)} for line in result.costs.by_team],
    }
    return {"costs": costs, "recoveries": [loss.document(EPOCH) for loss in result.losses]}


def _use(line: StatementLine) -> dict[str, Any]:
    return {
        "use": line.use,
        "machineHours": round(line.machine_hours, _DIGITS),
        "acceleratorHours": round(line.accelerator_hours, _DIGITS),
        "cost": _amount(line.cents),
    }


def _amount(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def _table(rows: Table) -> str:
    """A table without its empty columns."""
    header, *body = rows
    kept = [index for index in range(len(header)) if any(row[index] for row in body)]
    return format_table([[row[index] for index in kept] for row in rows])


def _grouped(lines: Sequence[StatementLine]) -> list[tuple[StatementLine, list[StatementLine]]]:
    """The lines of each pool or team, with the first line of each."""
    groups: dict[tuple[str, str, str], list[StatementLine]] = {}
    for line in lines:
        groups.setdefault((line.pool, line.provisioning, line.team), []).append(line)
    return [(group[0], group) for group in groups.values()]


def _figures(lines: Sequence[StatementLine]) -> list[str]:
    """Total hours, then the cost of each use, then the sum."""
    hours = sum(line.machine_hours for line in lines), sum(line.accelerator_hours for line in lines)
    costs = [sum(line.cents for line in lines if line.use == use) for use in USES]
    return [
        *(f"{each:,.2f}" for each in hours),
        *(_dollars(cents) if cents else "" for cents in costs),
        _dollars(sum(costs)),
    ]


def _dollars(cents: int) -> str:
    return f"${cents // 100:,}.{cents % 100:02}"


def _loss(loss: Loss, now: Instant) -> list[str]:
    took = format_age((now if loss.whole_at is None else loss.whole_at) - loss.lost_at)
    victims = ", ".join(victim.gang for victim in loss.victims)
    return [
        loss.gang,
        format_age(loss.lost_at - EPOCH),
        took if loss.whole_at is not None else f"not after {took}",
        format_age(loss.lost_work),
        victims or "none",
    ]


#: The most lines of one sort that are printed; the rest is counted.
LINES_MAX: Final = 20
_YEAR: Final = 365 * 24 * HOUR


@dataclass(frozen=True, slots=True)
class SimulateRequest:
    """The arguments of the command."""

    paths: Sequence[str]
    cluster: Path | None
    until: Duration | None
    seed: int
    events: str | None = None
    on_loop: LoopAction = LoopAction.CONTINUE
    output: Output = Output.TABLE
    #: The file of the HTML report.
    report: Path | None = None
    #: The run time of pods for which nothing else sets one.
    runtime: Duration | None = None


def run(request: SimulateRequest) -> None:
    """Run the simulation; ends the command with 1 on failure."""
    scenario, state = begun(request)
    with options_of(request, state) as options:
        simulation = Simulation(scenario, options)
        shown_before = () if state is None else state.shown()
        reporter = None if request.report is None else Reporter(simulation.world, shown_before)
        result = finished(simulation)
    if reporter is not None and request.report is not None:
        write_report(request.report, reporter.html(result.now, result.costs))
    if request.events != "-":
        output.write(shown(result, request.output))
    conclude(result)


def write_report(path: Path, html: str, option: str = "--report") -> None:
    """Write a report; ends the command if that fails."""
    try:
        path.write_text(html, "utf-8")
    except OSError as wrong:
        output.fail(f"{path}: cannot write the report: {wrong.strerror}; choose another file with {option}")


def requested_scenario(request: SimulateRequest) -> Scenario:
    """The scenario given by the arguments."""
    scenario = read([*request.paths, *([str(request.cluster)] if request.cluster else ())])
    if request.cluster is not None and scenario.cluster is None:
        output.fail(f"{request.cluster}: no Cluster of cloud.batchyard.dev/v1alpha1 in this file")
    return replace(scenario, runtime=request.runtime)


def begun(request: SimulateRequest) -> tuple[Scenario, State | None]:
    """The scenario to run, and the state it starts from, if any. Manifests beside a state are applied to it."""
    states = [path for path in request.paths if is_state(path)]
    if not states:
        return requested_scenario(request), None
    if len(states) > 1:
        output.fail(f"batchyard: {' and '.join(states)} are more than one state: give one, and manifests beside it")
    state = with_explicit_runtimes(state_in(states[0]))
    rest = [path for path in request.paths if path not in states]
    scenario = read([*rest, *([str(request.cluster)] if request.cluster else ())]) if rest or request.cluster else None
    start = start_of(state)
    if scenario is None:
        return replace(start.scenario, runtime=request.runtime), state
    kueue = start.scenario.kueue if scenario.kueue == SIMULATED else scenario.kueue
    cluster = scenario.cluster or start.cluster
    return replace(scenario, cluster=cluster, kueue=kueue, runtime=request.runtime), state


@contextmanager
def options_of(request: SimulateRequest, state: State | None = None) -> Iterator[SimulationOptions]:
    """The options of a run, with the event log open."""
    until = UNTIL if request.until is None and state is not None else request.until
    with _event_sink(request.events) as sink:
        yield SimulationOptions(until, request.seed, WhenLooping(request.on_loop), sink, state)


def conclude(result: Result) -> None:
    """Print the remarks on a run; ends the command with 1 if a loop ended it."""
    for line in run_remarks(result):
        output.report_line(line)
    if result.ending is RunEnding.LOOP:
        raise SystemExit(1)


def read(paths: Sequence[str]) -> Scenario:
    """The scenario of the paths; prints warnings, and ends the command on faults."""
    try:
        scenario, warnings = read_scenario(paths)
    except InvalidScenario as invalid:
        faults = len(invalid.faults)
        output.fail(f"{invalid}\nbatchyard: {faults} fault{'s' * (faults > 1)}; nothing was run")
    print_warnings(warnings)
    return scenario


def print_warnings(warnings: Sequence[str]) -> None:
    """Print warnings about valid manifests."""
    for line in _first(warnings, "warning"):
        output.report_line(line)


def shown(result: Result, form: Output) -> str:
    """Format the objects and accounting tables; ClusterQueues with all columns, which have the counts."""
    if form in (Output.JSON, Output.YAML):
        return render(result.objects, form, now=result.now, besides=books_of(result))
    queues = {scheme.CLUSTER_QUEUE: result.objects[scheme.CLUSTER_QUEUE]}
    others = {kind: objs for kind, objs in result.objects.items() if kind != scheme.CLUSTER_QUEUE}
    tables = [render(queues, Output.WIDE, now=result.now), render(others, form, now=result.now)]
    tables.append(unplaced_table(result.objects[scheme.POD]))
    if result.losses:
        tables.append(losses_table(result.losses, result.now))
    if result.costs is not None:
        tables.append(costs_tables(result.costs))
    return "\n".join(table for table in tables if table not in ("", NOTHING_FOUND)) or NOTHING_FOUND


def run_remarks(result: Result) -> Iterator[str]:
    """Remarks on a run: rejected writes, loops, and a summary."""
    yield from _first([str(refusal) for refusal in result.refused], "rejected")
    yield from _first([f"{fault.path}: it matched no object when it was due" for fault in result.missed], "fault")
    yield from _first(list(_loops(result.loops)), "loop")
    if result.loops:
        ended = result.ending is RunEnding.LOOP
        yield f"batchyard: {'the run was ended there' if ended else 'the run continued in spite of them'}"
    if result.ending is RunEnding.BOUND:
        yield f"batchyard: the run was ended after {VIRTUAL_TIME_MAX // _YEAR} years of virtual time"
    counts = result.counts
    yield (
        f"batchyard: {in_words(result.duration)} of virtual time; Workloads: {counts.finished} finished, "
        f"{counts.admitted} admitted, {counts.pending} pending; {counts.preemptions} preemptions"
    )


def in_words(seconds: float) -> str:
    """Format a duration in Go's notation: 1h2m3.5s, 250ms."""
    whole = round(seconds * SECOND)
    for unit, name in ((MICROSECOND, "µs"), (MILLISECOND, "ms")):
        if 0 < whole < unit * 1000:
            return f"{whole / unit:g}{name}"
    hours, rest = divmod(whole, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{rest / SECOND:.9g}s" if rest else ""]
    return "".join(parts) or "0s"


def finished(simulation: Simulation) -> Result:
    """The result of a run to its end, with progress output."""
    try:
        watched(simulation)
    except EndlessInstant as endless:
        output.fail(f"batchyard: {endless}")
    return simulation.result()


@contextmanager
def _event_sink(name: str | None) -> Iterator[Callable[[Record], None]]:
    """A writer of event log records, one line of compact JSON each."""
    if name is None:
        yield ignore_record
        return
    try:
        with output.bytes_out() if name == "-" else Path(name).open("wb") as stream:
            yield _line_writer(stream)
    except BrokenPipeError:
        output.end_with_closed_pipe()
    except OSError as wrong:
        output.fail(f"{name}: cannot write the event log: {wrong.strerror}; choose another file with --events")


def _line_writer(stream: BinaryIO) -> Callable[[Record], None]:
    encode = msgspec.json.Encoder().encode

    def write(record: Record) -> None:
        stream.write(encode(record) + b"\n")

    return write


def _loops(loops: Sequence[PreemptionLoop]) -> Iterator[str]:
    """Each distinct loop once, with the number of detections."""
    times: dict[str, int] = {}
    for loop in loops:
        times[loop.message] = times.get(loop.message, 0) + 1
    for message, count in times.items():
        yield f"{message}{f' (found {count} times)' if count > 1 else ''}"


def _first(lines: Sequence[str], sort: str) -> Iterator[str]:
    """The first lines of a sort, and the number of the rest."""
    yield from (f"{sort}: {line}" for line in lines[:LINES_MAX])
    if len(lines) > LINES_MAX:
        yield f"{sort}: and {len(lines) - LINES_MAX} more"


# --- traces ---


#: Without `-o wide`, only one in this many points of time is printed.
_STRIDE: Final = 10
_NEVER_KNOWN: Final = "-"


def run_trace(folder: Path, load: Fraction, request: SimulateRequest) -> None:
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


def length(text: str) -> Duration:
    """Parse the length of a run."""
    try:
        return run_length(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def load_factor(text: str) -> Fraction:
    """Parse the factor of a load."""
    try:
        return load_of(text)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None


def simulate(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Manifests: files, folders (*.yaml, *.yml, *.json below), - for stdin."),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The nodes: pools, limits, capacity, prices."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Replay a cluster trace (CSV of nodes and pods); print a report."),
    ] = None,
    load: Annotated[
        Fraction | None,
        typer.Option(parser=load_factor, metavar="FACTOR", help="Multiply the arrival rate of the trace's pods."),
    ] = None,
    until: Annotated[
        Duration | None,
        typer.Option(parser=length, metavar="DURATION", help="Stop after this virtual time, such as 2h or 90s."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random values, such as uids.")] = 0,
    events: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the event log as JSON lines; - for stdout, instead of the tables."),
    ] = None,
    on_loop: Annotated[
        LoopAction, typer.Option(help="On an endless preemption loop: continue, or stop.")
    ] = LoopAction.CONTINUE,
    output: Annotated[Output | None, typer.Option("--output", "-o", help="How to print the objects.")] = None,
    report: Report = None,
    runtime: Runtime = None,
) -> None:
    """Run manifests in virtual time; print the final state of queues, Workloads and Jobs."""
    if events == "-" and output is not None:
        raise typer.BadParameter("--events - writes the event log to standard output: leave out --output")
    if not paths and trace is None:
        raise typer.BadParameter("Missing argument 'PATH...'; give manifests, a trace with --trace DIR, or both")
    if load is not None and trace is None:
        raise typer.BadParameter("--load scales a trace: add --trace DIR")

    request = SimulateRequest(
        paths or [], cluster, until, seed, events, on_loop, output or Output.TABLE, report, runtime
    )
    if report is not None and trace is not None:
        raise typer.BadParameter("--report is for manifests only: --trace prints its own report")
    if trace is None:
        run(request)
    else:
        run_trace(trace, load or Fraction(1), request)
