"""`batchyard simulate`: reads the manifests, runs them, prints what came of it."""

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
from batchyard.cli.options import OnLoop, Output
from batchyard.cli.progress import watched
from batchyard.cli.state_files import UNTIL, state_from, told_runtimes
from batchyard.cli.tables import NOTHING_FOUND, render
from batchyard.controller_runtime.kernel import EndlessInstant
from batchyard.scheduling.kueue_configuration import SIMULATED
from batchyard.scheduling.preemption_loops import PreemptionLoop
from batchyard.sim.event_log import Record
from batchyard.sim.report import Reporter
from batchyard.sim.result import Ending, Result
from batchyard.sim.scenario import VIRTUAL_TIME_MAX, InvalidScenario, Scenario
from batchyard.sim.simulate import OnLoop as WhenLooping
from batchyard.sim.simulate import Options, Simulation, read_scenario
from batchyard.sim.state import State
from batchyard.sim.state_document import is_state
from batchyard.sim.whatif import start_of
from batchyard.sim.world import ignore_record

#: More of one sort are counted, not shown.
LINES_MAX: Final = 20
_YEAR: Final = 365 * 24 * HOUR


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of the command."""

    paths: Sequence[str]
    cluster: Path | None
    until: Duration | None
    seed: int
    events: str | None = None
    on_loop: OnLoop = OnLoop.CONTINUE
    output: Output = Output.TABLE
    #: Where a page of the whole run goes.
    report: Path | None = None
    #: How long pods run for which nothing else gives a run time.
    runtime: Duration | None = None


def run(request: Request) -> None:
    """Do it; exits with 1 where it fails."""
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
    """Write a report; ends the command where that cannot be."""
    try:
        path.write_text(html, "utf-8")
    except OSError as wrong:
        output.fail(f"{path}: the report cannot be written: {wrong.strerror}; name another file with {option}")


def asked_for(request: Request) -> Scenario:
    """The scenario of the arguments."""
    scenario = read([*request.paths, *([str(request.cluster)] if request.cluster else ())])
    if request.cluster is not None and scenario.cluster is None:
        output.fail(f"{request.cluster}: there is no Cluster in this file; give one of cloud.batchyard.dev/v1alpha1")
    return replace(scenario, runtime=request.runtime)


def begun(request: Request) -> tuple[Scenario, State | None]:
    """What is run: manifests, or what comes after a state; manifests beside that come then."""
    states = [path for path in request.paths if is_state(path)]
    if not states:
        return asked_for(request), None
    if len(states) > 1:
        output.fail(f"batchyard: {' and '.join(states)} are two states: give one, and manifests beside it")
    state = told_runtimes(state_from(states[0]))
    rest = [path for path in request.paths if path not in states]
    scenario = read([*rest, *([str(request.cluster)] if request.cluster else ())]) if rest or request.cluster else None
    start = start_of(state)
    if scenario is None:
        return replace(start.scenario, runtime=request.runtime), state
    kueue = start.scenario.kueue if scenario.kueue == SIMULATED else scenario.kueue
    cluster = scenario.cluster or start.cluster
    return replace(scenario, cluster=cluster, kueue=kueue, runtime=request.runtime), state


@contextmanager
def options_of(request: Request, state: State | None = None) -> Iterator[Options]:
    """How to run it, while the event log is open."""
    until = UNTIL if request.until is None and state is not None else request.until
    with _event_sink(request.events) as sink:
        yield Options(until, request.seed, WhenLooping(request.on_loop), sink, state)


def conclude(result: Result) -> None:
    """Say what there is to say of a run; exits with 1 if a loop ended it."""
    for line in said_of(result):
        output.tell(line)
    if result.ending is Ending.LOOP:
        raise SystemExit(1)


def read(paths: Sequence[str]) -> Scenario:
    """The scenario of the paths; says on standard error whatever is to be said of them."""
    try:
        scenario, warnings = read_scenario(paths)
    except InvalidScenario as invalid:
        faults = len(invalid.faults)
        output.fail(f"{invalid}\nbatchyard: {faults} fault{'s' * (faults > 1)}; nothing was run")
    tell_warnings(warnings)
    return scenario


def tell_warnings(warnings: Sequence[str]) -> None:
    """Say what was found odd in manifests that can be run."""
    for line in _first(warnings, "warning"):
        output.tell(line)


def shown(result: Result, form: Output) -> str:
    """The objects and the books in one of the forms; ClusterQueues with all columns: the numbers are in those."""
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


def said_of(result: Result) -> Iterator[str]:
    """What is to be said of a run besides its objects: refusals, loops, and a summary."""
    yield from _first([str(refusal) for refusal in result.refused], "refused")
    yield from _first([f"{fault.path}: when its time came, it met nobody" for fault in result.missed], "fault")
    yield from _first(list(_loops(result.loops)), "loop")
    if result.loops:
        ended = result.ending is Ending.LOOP
        yield f"batchyard: {'the run was ended there' if ended else 'they were left as they were, and the run went on'}"
    if result.ending is Ending.BOUND:
        yield f"batchyard: the run was ended after {VIRTUAL_TIME_MAX // _YEAR} years of virtual time"
    counts = result.counts
    yield (
        f"batchyard: {in_words(result.duration)} of virtual time; Workloads: {counts.finished} finished, "
        f"{counts.admitted} admitted, {counts.pending} pending; {counts.preemptions} preemptions"
    )


def in_words(seconds: float) -> str:
    """A duration as Go writes it: 1h2m3.5s, 250ms."""
    whole = round(seconds * SECOND)
    for unit, name in ((MICROSECOND, "µs"), (MILLISECOND, "ms")):
        if 0 < whole < unit * 1000:
            return f"{whole / unit:g}{name}"
    hours, rest = divmod(whole, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{rest / SECOND:.9g}s" if rest else ""]
    return "".join(parts) or "0s"


def finished(simulation: Simulation) -> Result:
    """What came of a run that is watched to its end."""
    try:
        watched(simulation)
    except EndlessInstant as endless:
        output.fail(f"batchyard: {endless}")
    return simulation.result()


@contextmanager
def _event_sink(name: str | None) -> Iterator[Callable[[Record], None]]:
    """Where records of the event log go, one line of compact JSON each."""
    if name is None:
        yield ignore_record
        return
    try:
        with output.bytes_out() if name == "-" else Path(name).open("wb") as stream:
            yield _line_writer(stream)
    except BrokenPipeError:
        output.end_with_closed_pipe()
    except OSError as wrong:
        output.fail(f"{name}: the event log cannot be written: {wrong.strerror}; name another file with --events")


def _line_writer(stream: BinaryIO) -> Callable[[Record], None]:
    encode = msgspec.json.Encoder().encode

    def write(record: Record) -> None:
        stream.write(encode(record) + b"\n")

    return write


def _loops(loops: Sequence[PreemptionLoop]) -> Iterator[str]:
    """Each loop once, however often it was found."""
    times: dict[str, int] = {}
    for loop in loops:
        times[loop.message] = times.get(loop.message, 0) + 1
    for message, count in times.items():
        yield f"{message}{f' (found {count} times)' if count > 1 else ''}"


def _first(lines: Sequence[str], sort: str) -> Iterator[str]:
    """The first lines of a sort, and how many there are beyond."""
    yield from (f"{sort}: {line}" for line in lines[:LINES_MAX])
    if len(lines) > LINES_MAX:
        yield f"{sort}: and {len(lines) - LINES_MAX} more"
