"""`batchyard simulate`: runs manifests in virtual time and prints the result."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from batchyard.api import scheme
from batchyard.base.instant import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, Duration
from batchyard.cli import output
from batchyard.cli.books import books_of, costs_tables, losses_table, unplaced_table
from batchyard.cli.options import LoopAction, Output
from batchyard.cli.progress import watched
from batchyard.cli.state_files import UNTIL, state_from, with_explicit_runtimes
from batchyard.cli.tables import NOTHING_FOUND, render
from batchyard.controller_runtime.kernel import EndlessInstant
from batchyard.scheduling.kueue_configuration import SIMULATED
from batchyard.scheduling.preemption_loops import PreemptionLoop
from batchyard.sim.event_log import Record
from batchyard.sim.report import Reporter
from batchyard.sim.result import Result, RunEnding
from batchyard.sim.scenario import VIRTUAL_TIME_MAX, InvalidScenario, Scenario
from batchyard.sim.simulate import OnLoop as WhenLooping
from batchyard.sim.simulate import Simulation, SimulationOptions, read_scenario
from batchyard.sim.state import State
from batchyard.sim.state_document import is_state
from batchyard.sim.whatif import start_of
from batchyard.sim.world import ignore_record

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
    state = with_explicit_runtimes(state_from(states[0]))
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
