"""The command `batchyard simulate`: runs manifests or a cluster trace in virtual time and prints the result."""

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
from batchyard.cli.cluster_access import DEFAULT_RUN_LENGTH, read_state_file, with_explicit_runtimes
from batchyard.cli.manifest_warnings import Verbose, print_warnings
from batchyard.cli.options import LoopAction, Output, Report, Runtime
from batchyard.cli.output import NOTHING_FOUND, render, render_document, run_with_progress
from batchyard.controller_runtime.kernel import EndlessInstant
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.scheduling.kueue_configuration import SIMULATION_SETTINGS
from batchyard.sim.event_log import Record
from batchyard.sim.recovery import GangLoss
from batchyard.sim.result import Reporter, Result, RunEnding
from batchyard.sim.scenario import VIRTUAL_TIME_MAX, InvalidScenario, Scenario, run_length
from batchyard.sim.simulate import OnLoop as WhenLooping
from batchyard.sim.simulate import Simulation, SimulationOptions, read_scenario
from batchyard.sim.state import State
from batchyard.sim.state_document import is_state
from batchyard.sim.trace_report import DurationStatistics, TraceReport, TraceRun, Usage
from batchyard.sim.traces import NAMESPACE, Trace, add_manifests, parse_load, read_trace
from batchyard.sim.whatif import start_from_state
from batchyard.sim.world import EPOCH, ignore_record

# The accounting of a run as tables and as a document: machine costs, gang recoveries, unscheduled pods.


_COST_COLUMNS: Final = ("MACHINE-HOURS", "ACCELERATOR-HOURS", *(use.upper() for use in USES), "COST")
#: The decimal places of hours, which make them exact to a hundredth of a second.
_HOUR_DECIMAL_PLACES: Final = 6


def costs_tables(statement: Statement) -> str:
    """Return two tables of a run's costs: by pool and by team; the row (unused) has costs of unused machine hours."""
    pools = [["POOL", "PROVISIONING", *_COST_COLUMNS]]
    pools += [[line.pool, line.provisioning, *_cost_cells(lines)] for line, lines in _group_lines(statement.by_pool)]
    team_rows = [["TEAM", *_COST_COLUMNS]]
    team_rows += [[line.team or "(unused)", *_cost_cells(lines)] for line, lines in _group_lines(statement.by_team)]
    team_rows.append(["all", *_cost_cells(statement.by_team)])
    return f"{_table_without_empty_columns(pools)}\n{_table_without_empty_columns(team_rows)}"


def losses_table(losses: Sequence[GangLoss], now: Instant) -> str:
    """Return the table of Workloads (gangs) that lost a machine: recovery time, lost pod time, preempted Workloads."""
    header = ["GANG", "LOST AT", "RECOVERED IN", "LOST POD TIME", "PREEMPTED"]
    return format_table([header, *(_loss_row(loss, now) for loss in losses)])


def unplaced_table(pods: Iterable[Obj]) -> str:
    """Return a table of the pods that were not scheduled to a node, with the reasons; empty if there are none."""
    pod_views = [pod_view(pod) for pod in pods]
    pod_rows = [
        [pod.namespace, pod.name, pod.unschedulable_message]
        for pod in pod_views
        if pod.awaits_node and pod.unschedulable_message
    ]
    return format_table([["NAMESPACE", "POD WITHOUT A NODE", "WHY"], *pod_rows]) if pod_rows else ""


def accounting_document(result: Result) -> dict[str, Any]:
    """Return a run's costs (dollars as exact text) and recoveries from machine losses; empty without machines."""
    if result.costs is None:
        return {}
    costs = {
        "currency": "USD",
        "total": _exact_dollars(result.costs.cents),
        "pools": [
            {"pool": line.pool, "provisioning": line.provisioning, **_use_fields(line)} for line in result.costs.by_pool
        ],
        "teams": [{"team": line.team, **_use_fields(line)} for line in result.costs.by_team],
    }
    return {"costs": costs, "recoveries": [loss.document(EPOCH) for loss in result.losses]}


def _use_fields(line: StatementLine) -> dict[str, Any]:
    return {
        "use": line.use,
        "machineHours": round(line.machine_hours, _HOUR_DECIMAL_PLACES),
        "acceleratorHours": round(line.accelerator_hours, _HOUR_DECIMAL_PLACES),
        "cost": _exact_dollars(line.cents),
    }


def _exact_dollars(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def _table_without_empty_columns(rows: Table) -> str:
    """Format a table without its empty columns."""
    header, *body = rows
    used_columns = [index for index in range(len(header)) if any(row[index] for row in body)]
    return format_table([[row[index] for index in used_columns] for row in rows])


def _group_lines(lines: Sequence[StatementLine]) -> list[tuple[StatementLine, list[StatementLine]]]:
    """Group cost lines by pool, provisioning and team; return each group's first line and all of its lines."""
    lines_by_group: dict[tuple[str, str, str], list[StatementLine]] = {}
    for line in lines:
        lines_by_group.setdefault((line.pool, line.provisioning, line.team), []).append(line)
    return [(group[0], group) for group in lines_by_group.values()]


def _cost_cells(lines: Sequence[StatementLine]) -> list[str]:
    """Return the cells of a cost table row: machine and accelerator hours, the cost of each use, and the total cost."""
    hours = sum(line.machine_hours for line in lines), sum(line.accelerator_hours for line in lines)
    cents_per_use = [sum(line.cents for line in lines if line.use == use) for use in USES]
    return [
        *(f"{hour_count:,.2f}" for hour_count in hours),
        *(_format_dollars(cents) if cents else "" for cents in cents_per_use),
        _format_dollars(sum(cents_per_use)),
    ]


def _format_dollars(cents: int) -> str:
    return f"${cents // 100:,}.{cents % 100:02}"


def _loss_row(loss: GangLoss, now: Instant) -> list[str]:
    recovery_time = format_age((now if loss.recovered_at is None else loss.recovered_at) - loss.lost_at)
    victim_names = ", ".join(victim.gang for victim in loss.victims)
    return [
        loss.gang,
        format_age(loss.lost_at - EPOCH),
        recovery_time if loss.recovered_at is not None else f"not after {recovery_time}",
        format_age(loss.lost_work),
        victim_names or "none",
    ]


#: The maximum number of remarks of one kind that are printed; further remarks are counted.
REMARKS_SHOWN_MAX: Final = 20
_YEAR: Final = 365 * 24 * HOUR


@dataclass(frozen=True, slots=True)
class SimulateRequest:
    """The arguments of `batchyard simulate`."""

    paths: Sequence[str]
    cluster: Path | None
    until: Duration | None
    seed: int
    events: str | None = None
    on_preemption_loop: LoopAction = LoopAction.CONTINUE
    output: Output = Output.TABLE
    #: The file to which the HTML report is written.
    report: Path | None = None
    #: The run time of pods without any other run time setting.
    runtime: Duration | None = None


def run(request: SimulateRequest) -> None:
    """Run the simulation and print its result; exit with 1 on failure."""
    scenario, state = read_scenario_and_state(request)
    with options_of(request, state) as options:
        simulation = Simulation(scenario, options)
        earlier_events = () if state is None else state.added_events()
        reporter = None if request.report is None else Reporter(simulation.world, earlier_events)
        result = run_to_end(simulation)
    if reporter is not None and request.report is not None:
        write_report(request.report, reporter.html(result.now, result.costs))
    if request.events != "-":
        output.write(format_result(result, request.output))
    report_remarks(result)


def write_report(path: Path, html: str, option: str = "--report") -> None:
    """Write an HTML report; the command exits if that fails, and names `option`, with which the user chose the file."""
    try:
        path.write_text(html, "utf-8")
    except OSError as error:
        output.fail(f"{path}: cannot write the report: {error.strerror}; choose another file with {option}")


def requested_scenario(request: SimulateRequest) -> Scenario:
    """Return the scenario (the manifests to simulate) that the arguments name; exit with 1 if it is invalid."""
    scenario = read_scenario_or_exit([*request.paths, *([str(request.cluster)] if request.cluster else ())])
    if request.cluster is not None and scenario.cluster is None:
        output.fail(f"{request.cluster}: this file contains no Cluster of cloud.batchyard.dev/v1alpha1; add one")
    return replace(scenario, runtime=request.runtime)


def read_scenario_and_state(request: SimulateRequest) -> tuple[Scenario, State | None]:
    """Return the scenario to simulate and the cluster state that it starts from, or None without a state file.

    Other manifests are applied to that state.
    """
    states = [path for path in request.paths if is_state(path)]
    if not states:
        return requested_scenario(request), None
    if len(states) > 1:
        output.fail(f"batchyard: {' and '.join(states)} are several states: give one state, and optionally manifests")
    state = with_explicit_runtimes(read_state_file(states[0]))
    manifest_paths = [path for path in request.paths if path not in states]
    scenario = (
        read_scenario_or_exit([*manifest_paths, *([str(request.cluster)] if request.cluster else ())])
        if manifest_paths or request.cluster
        else None
    )
    run_start = start_from_state(state)
    if scenario is None:
        return replace(run_start.scenario, runtime=request.runtime), state
    kueue_settings = run_start.scenario.kueue if scenario.kueue == SIMULATION_SETTINGS else scenario.kueue
    cluster = scenario.cluster or run_start.cluster
    return replace(scenario, cluster=cluster, kueue=kueue_settings, runtime=request.runtime), state


@contextmanager
def options_of(request: SimulateRequest, state: State | None = None) -> Iterator[SimulationOptions]:
    """Yield the options of a simulation run; the run's event log is open until the end of the `with` block."""
    run_length = DEFAULT_RUN_LENGTH if request.until is None and state is not None else request.until
    with _event_sink(request.events) as sink:
        yield SimulationOptions(run_length, request.seed, WhenLooping(request.on_preemption_loop), sink, state)


def report_remarks(result: Result) -> None:
    """Print remarks on a simulation run; exit with 1 if a preemption loop ended the run."""
    for line in run_remarks(result):
        output.report_line(line)
    if result.ending is RunEnding.LOOP:
        raise SystemExit(1)


def read_scenario_or_exit(paths: Sequence[str]) -> Scenario:
    """Return the scenario in the manifests at these paths; print warnings, and exit if a manifest is invalid."""
    try:
        scenario, warnings = read_scenario(paths)
    except InvalidScenario as invalid:
        fault_count = len(invalid.faults)
        output.fail(f"{invalid}\nbatchyard: {fault_count} fault{'s' * (fault_count > 1)}; nothing was run")
    print_warnings(warnings)
    return scenario


def format_result(result: Result, output_format: Output) -> str:
    """Format a run's final objects, then tables of unplaced pods, losses and costs; ClusterQueues get all columns."""
    if output_format in (Output.JSON, Output.YAML):
        return render(result.objects, output_format, now=result.now, extra_fields=accounting_document(result))
    queues = {scheme.CLUSTER_QUEUE: result.objects[scheme.CLUSTER_QUEUE]}
    other_objects = {kind: objs for kind, objs in result.objects.items() if kind != scheme.CLUSTER_QUEUE}
    table_texts = [render(queues, Output.WIDE, now=result.now), render(other_objects, output_format, now=result.now)]
    table_texts.append(unplaced_table(result.objects[scheme.POD]))
    if result.losses:
        table_texts.append(losses_table(result.losses, result.now))
    if result.costs is not None:
        table_texts.append(costs_tables(result.costs))
    return "\n".join(table for table in table_texts if table not in ("", NOTHING_FOUND)) or NOTHING_FOUND


def run_remarks(result: Result) -> Iterator[str]:
    """Yield remarks on a simulation run: rejected writes, faults without effect, preemption loops, and a summary."""
    yield from _first_lines([str(refusal) for refusal in result.refused], "rejected")
    yield from _first_lines(
        [f"{fault.path}: the fault matched no object at its time and had no effect" for fault in result.missed], "fault"
    )
    yield from _first_lines(list(_loop_messages(result.loops)), "loop")
    if result.loops:
        is_stopped = result.ending is RunEnding.LOOP
        yield f"batchyard: {'the run stopped at the loop' if is_stopped else 'the run continued after the loops'}"
    if result.ending is RunEnding.BOUND:
        yield f"batchyard: the run was stopped at the maximum of {VIRTUAL_TIME_MAX // _YEAR} years of virtual time"
    counts = result.counts
    yield (
        f"batchyard: {format_go_duration(result.duration)} of virtual time; Workloads: {counts.finished} finished, "
        f"{counts.admitted} admitted, {counts.pending} pending; {counts.preemptions} preemptions"
    )


def format_go_duration(seconds: float) -> str:
    """Format a duration in Go's notation: 1h2m3.5s, 250ms."""
    microseconds = round(seconds * SECOND)
    for unit, name in ((MICROSECOND, "µs"), (MILLISECOND, "ms")):
        if 0 < microseconds < unit * 1000:
            return f"{microseconds / unit:g}{name}"
    hours, remainder = divmod(microseconds, HOUR)
    minutes, remainder = divmod(remainder, MINUTE)
    amount_by_text = {f"{hours}h": hours, f"{minutes}m": minutes, f"{remainder / SECOND:.9g}s": remainder}
    return "".join(text for text, amount in amount_by_text.items() if amount) or "0s"


def run_to_end(simulation: Simulation) -> Result:
    """Run a simulation to its end with progress output, and return its result."""
    try:
        run_with_progress(simulation)
    except EndlessInstant as error:
        output.fail(f"batchyard: {error}")
    return simulation.result()


@contextmanager
def _event_sink(name: str | None) -> Iterator[Callable[[Record], None]]:
    """Yield a function that writes records to the event log as JSON lines; without a `name`, it does nothing."""
    if name is None:
        yield ignore_record
        return
    try:
        with output.open_binary_output() if name == "-" else Path(name).open("wb") as stream:
            yield _line_writer(stream)
    except BrokenPipeError:
        output.end_with_closed_pipe()
    except OSError as error:
        output.fail(f"{name}: cannot write the event log: {error.strerror}; choose another file with --events")


def _line_writer(stream: BinaryIO) -> Callable[[Record], None]:
    encode = msgspec.json.Encoder().encode

    def write(record: Record) -> None:
        stream.write(encode(record) + b"\n")

    return write


def _loop_messages(loops: Sequence[PreemptionLoop]) -> Iterator[str]:
    """Yield the message of each distinct preemption loop once, with the number of times that it was detected."""
    detection_counts: dict[str, int] = {}
    for loop in loops:
        detection_counts[loop.message] = detection_counts.get(loop.message, 0) + 1
    for message, count in detection_counts.items():
        yield f"{message}{f' (found {count} times)' if count > 1 else ''}"


def _first_lines(lines: Sequence[str], label: str) -> Iterator[str]:
    """Yield the first lines, each prefixed with `label`, and the number of omitted lines."""
    yield from (f"{label}: {line}" for line in lines[:REMARKS_SHOWN_MAX])
    if len(lines) > REMARKS_SHOWN_MAX:
        yield f"{label}: and {len(lines) - REMARKS_SHOWN_MAX} more"


#: Without `-o wide`, the table over time has only every tenth point.
_POINT_STRIDE: Final = 10
_UNKNOWN: Final = "-"


def run_trace(folder: Path, load: Fraction, request: SimulateRequest) -> None:
    """Replay a cluster trace with its arrival rate times `load`, and print a report; exit with 1 on failure."""
    trace = _read_trace_or_exit(folder, load)
    has_manifests = bool(request.paths or request.cluster)
    scenario = add_manifests(trace, requested_scenario(request)) if has_manifests else None
    with options_of(request) as options:
        replay = TraceRun(trace, options, scenario)
        result = run_to_end(replay.simulation)
    if request.events != "-":
        manifests_result = _without_trace(result) if has_manifests else None
        output.write(_format_trace_report(replay.report(), manifests_result, request.output))
    report_remarks(result)


def report_tables(report: TraceReport, *, wide: bool) -> str:
    """Return the report on a replayed trace as tables, separated by empty lines."""
    tables_by_title = {
        "pods" if report.load == 1 else f"pods, {report.load:g} times the arrival rate": _pods_table(report),
        "waits of pods scheduled in both, from creation to binding": _waits_table(report),
        "reasons of pods that were never scheduled": _reasons_table(report),
        "requested share of the allocatable resources": [_USAGE_HEADER, *map(_usage_row, report.usage)],
        "free GPU share that a typical pod cannot use": _fragmentation_table(report),
        "over time": _points_table(report, 1 if wide else _POINT_STRIDE),
    }
    return "\n".join(f"# {title}\n{format_table(rows)}" for title, rows in tables_by_title.items() if len(rows) > 1)


def _read_trace_or_exit(folder: Path, load: Fraction) -> Trace:
    try:
        return read_trace(folder, load)
    except InvalidScenario as invalid:
        lines = [str(fault) for fault in invalid.faults[:REMARKS_SHOWN_MAX]]
        if len(invalid.faults) > REMARKS_SHOWN_MAX:
            lines.append(f"and {len(invalid.faults) - REMARKS_SHOWN_MAX} more")
        fault_count = len(invalid.faults)
        lines.append(f"batchyard: {fault_count} fault{'s' * (fault_count > 1)}; nothing was run")
        output.fail("\n".join(lines))


def _format_trace_report(report: TraceReport, result: Result | None, output_format: Output) -> str:
    """Format the report on a replayed trace, and the final objects of the manifests that ran beside the trace."""
    if output_format.is_table:
        tables = report_tables(report, wide=output_format is Output.WIDE)
        return tables if result is None else f"{tables}\n{format_result(result, output_format)}"
    document: dict[str, Any] = report.api_document()
    if result is not None:
        document["objects"] = {kind: list(objs) for kind, objs in result.objects.items() if objs}
    return render_document(document, output_format)


def _without_trace(result: Result) -> Result:
    """Return the result without the nodes and pods of the replayed trace, which are thousands of uniform rows."""
    pods = [pod for pod in result.objects[scheme.POD] if pod["metadata"]["namespace"] != NAMESPACE]
    return replace(result, objects={**result.objects, scheme.NODE: [], scheme.POD: pods})


_USAGE_HEADER: Final = ["NODES WITH", "NODES", "RESOURCE", "MEAN", "PEAK", "PEAK AT", "MEAN THERE", "PEAK THERE"]


def _pods_table(report: TraceReport) -> Table:
    pods = report.pods
    header = ["PODS", "PLACED HERE", "PLACED THERE", "IN BOTH", "WAITING", "NOT CREATED"]
    pod_counts = pods.total, pods.placed_here, pods.placed_there, pods.placed_in_both, pods.waiting, pods.not_created
    return [header, list(map(str, pod_counts))]


def _waits_table(report: TraceReport) -> Table:
    comparison = report.waits
    pods_in_both = report.pods.placed_in_both
    rows = [
        ["", "PODS", "MEAN", "P50", "P90", "P99", "MAX"],
        ["here", str(pods_in_both), *_statistics_cells(comparison.here)],
        ["in the trace", str(pods_in_both), *_statistics_cells(comparison.there)],
        ["longer here, by", str(comparison.longer_here), *_statistics_cells(comparison.excess_here)],
        ["longer in the trace, by", str(comparison.longer_there), *_statistics_cells(comparison.excess_there)],
    ]
    return rows + [
        [f"alike within {agreement.within}s", str(agreement.pods), *[""] * 5] for agreement in comparison.agree
    ]


def _statistics_cells(statistics: DurationStatistics) -> list[str]:
    quantiles = (statistics.p50, statistics.p90, statistics.p99)
    return [f"{amount:.1f}s" for amount in (statistics.mean, *quantiles, statistics.max)]


def _reasons_table(report: TraceReport) -> Table:
    rows = [[str(row.pods), row.reason] for row in report.unplaced]
    return [["PODS", "REASON"], *rows[:REMARKS_SHOWN_MAX]]


def _usage_row(row: Usage) -> list[str]:
    cells = [_UNKNOWN if share is None else _format_percent(share) for share in (row.mean_there, row.peak_there)]
    mean, peak = _format_percent(row.mean), _format_percent(row.peak)
    return [row.model or "any GPU", str(row.nodes), row.resource, mean, peak, _format_seconds(row.peak_at), *cells]


def _fragmentation_table(report: TraceReport) -> Table:
    fragmentation = report.fragmentation
    share_cells = [_format_percent(share) for share in (fragmentation.mean, fragmentation.peak)]
    cells = [*share_cells, _format_seconds(fragmentation.peak_at), _format_percent(fragmentation.least)]
    return [["MEAN", "PEAK", "PEAK AT", "AT LEAST"], cells]


def _points_table(report: TraceReport, stride: int) -> Table:
    rows = [
        [
            _format_seconds(point.at),
            *map(_format_percent, (point.cpu, point.memory, point.gpu, point.fragmentation)),
            str(point.waiting),
        ]
        for point in report.points[::stride]
    ]
    return [["AFTER", "CPU", "MEMORY", "GPU", "FRAGMENTATION", "WAITING"], *rows]


def _format_percent(share: float) -> str:
    return f"{share:.3%}"


def _format_seconds(seconds: float) -> str:
    return format_age(round(seconds * SECOND))


def parse_run_length(text: str) -> Duration:
    """Parse the maximum virtual time of a simulation run; raise BadParameter if the text is malformed."""
    try:
        return run_length(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_load_factor(text: str) -> Fraction:
    """Parse the factor by which a trace's arrival rate is multiplied; raise BadParameter if it is malformed."""
    try:
        return parse_load(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def simulate(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Manifests: files, folders (*.yaml, *.yml, *.json below), - for stdin."),
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The nodes: pools, limits, capacity, prices.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Replay a cluster trace (CSV of nodes and pods); print a report.")
    ] = None,
    load: Annotated[
        Fraction | None,
        typer.Option(parser=parse_load_factor, metavar="FACTOR", help="Multiply the arrival rate of the trace's pods."),
    ] = None,
    until: Annotated[
        Duration | None,
        typer.Option(
            parser=parse_run_length, metavar="DURATION", help="Stop after this virtual time, such as 2h or 90s."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random values, such as uids.")] = 0,
    events: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the event log as JSON lines; - for stdout, instead of the tables."),
    ] = None,
    on_preemption_loop: Annotated[
        LoopAction, typer.Option("--on-loop", help="On an endless preemption loop: continue, or stop.")
    ] = LoopAction.CONTINUE,
    output: Annotated[Output | None, typer.Option("--output", "-o", help="How to print the objects.")] = None,
    report: Report = None,
    runtime: Runtime = None,
    verbose: Verbose = False,  # noqa: ARG001 - its callback passes it to the warnings
) -> None:
    """Run manifests in virtual time; print the final state of queues, Workloads and Jobs."""
    if events == "-" and output is not None:
        raise typer.BadParameter("--events - writes the event log to standard output: remove --output")
    if not paths and trace is None:
        raise typer.BadParameter("Missing argument 'PATH...'; give manifests, a trace with --trace DIR, or both")
    if load is not None and trace is None:
        raise typer.BadParameter("--load scales a trace: add --trace DIR")

    request = SimulateRequest(
        paths or [], cluster, until, seed, events, on_preemption_loop, output or Output.TABLE, report, runtime
    )
    if report is not None and trace is not None:
        raise typer.BadParameter("--report is for manifests only: --trace prints its own report")
    if trace is None:
        run(request)
    else:
        run_trace(trace, load or Fraction(1), request)
