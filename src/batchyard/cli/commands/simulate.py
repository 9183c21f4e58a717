"""The command `batchyard simulate`: runs manifests or a cluster trace in virtual time and prints the result."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, NoReturn, TypeAlias

import msgspec
import typer

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Manifest, ManifestFault, Manifests, read_manifests
from batchyard.api.meta import Key
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import Duration
from batchyard.cli import output
from batchyard.cli.cluster_access import DEFAULT_RUN_LENGTH, SourceTexts, read_source_texts, with_explicit_runtimes
from batchyard.cli.kueue_configuration import select_version
from batchyard.cli.main import INTERRUPTED_EXIT_CODE
from batchyard.cli.manifest_warnings import Verbose, print_warnings
from batchyard.cli.options import LoopAction, Output, RecordedVersionOption, Report, to_duration
from batchyard.cli.output import render_document, run_until_interrupted, write_report
from batchyard.cli.simulation_output import (
    REMARKS_SHOWN_MAX,
    first_lines,
    format_result,
    lint_remarks,
    run_remarks,
    run_time_remarks,
)
from batchyard.cli.trace_tables import fill_table, report_tables
from batchyard.controller_runtime.kernel import EndlessInstant
from batchyard.lint.findings import Severity
from batchyard.lint.references import unknown_cluster_queue, unknown_local_queue
from batchyard.lint.registry import index_manifests, lint_manifests
from batchyard.placement.gpu_policies import GpuPolicyName
from batchyard.scheduling.decisions import KueueVersion
from batchyard.scheduling.kueue_configuration import SIMULATION_SETTINGS
from batchyard.sim.compare.result_view import (
    EARLIER_RESULT_LENGTH_MAX,
    compare_with_earlier,
    earlier_totals,
    result_view,
)
from batchyard.sim.event_log import Record
from batchyard.sim.result import Reporter, Result, RunEnding
from batchyard.sim.run_time_rules import parse_run_time_rules, unknown_run_times, with_run_times
from batchyard.sim.scenario import FileFault, InvalidScenario, Scenario, make_scenario, parse_run_duration
from batchyard.sim.simulate import PreemptionLoopAction, Simulation, SimulationOptions
from batchyard.sim.state import State
from batchyard.sim.summary.run_summary import SummaryGrouping, summarize_run
from batchyard.sim.summary.run_watch import RunWatch, WatchedSimulation
from batchyard.sim.trace_fill import FillRun, fill_trace, gpu_placement_for
from batchyard.sim.trace_report import TraceReport, TraceRun
from batchyard.sim.traces import NAMESPACE, Trace, merge_trace, parse_load, read_trace
from batchyard.sim.whatif import start_from_state
from batchyard.sim.world import ignore_record, undefined_namespaces

#: The maximum number of documents that are linted before a run; the check takes a fraction of the run's time.
LINTED_DOCUMENTS_MAX: Final = 5_000
#: The number of undefined Namespaces that a remark names.
_NAMES_SHOWN_MAX: Final = 3
#: The kinds of objects that run pods or hold quota.
_WORK_KINDS: Final = ("Job", "JobSet", "Pod", "Workload")
#: The kinds of which controllers create Jobs or pods.
_CONTROLLED_KINDS: Final = (
    *("CronJob", "Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet"),
)


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
    #: The file with run times of jobs by name pattern.
    runtimes: Path | None = None
    grouping: SummaryGrouping = SummaryGrouping.QUEUE
    #: Whether jobs may name queues that do not exist.
    is_lenient: bool = True
    #: The report or the JSON output of an earlier run, to compare with.
    compare_with: Path | None = None
    #: The version of Kueue whose decision rules apply.
    kueue_version: KueueVersion | None = None


@dataclass(frozen=True, slots=True)
class SimulationInput:
    """The input of a simulation: the scenario, the initial cluster state (None for an empty one), and the manifests."""

    scenario: Scenario
    state: State | None
    manifests: Manifests


def run(request: SimulateRequest) -> None:
    """Run the simulation and print its result; exit with 1 on failure, and with 130 after an interrupt."""
    earlier = None if request.compare_with is None else _read_earlier_totals(request.compare_with)
    simulation_input = read_input(request)
    scenario, state = simulation_input.scenario, simulation_input.state
    for line in input_remarks(simulation_input, request):
        output.report_line(line)
    del simulation_input  # the texts of the manifests, which no later step needs
    with open_options(request, state) as options:
        try:
            simulation = Simulation(scenario, options)
        except InvalidScenario as invalid:
            _fail_with_faults(invalid.faults)
        earlier_events = () if state is None else state.added_events()
        watch = RunWatch(simulation.world, earlier_events)
        reporter = None if request.report is None else Reporter(simulation.world, earlier_events)
        result = run_to_end(simulation)
    summary = summarize_run(WatchedSimulation(result, watch, result.now), request.grouping)
    comparison = None if earlier is None else compare_with_earlier(summary, earlier, str(request.compare_with))
    if reporter is not None and request.report is not None:
        write_report(request.report, reporter.html(result.now, result.costs, result_view(summary, comparison)))
    if request.events != "-":
        output.write(format_result(result, request.output, summary, comparison))
    report_remarks(result)


def _read_earlier_totals(path: Path) -> Mapping[str, float]:
    remedy = "--compare-with needs a file written by --report or --output json"
    try:
        if path.stat().st_size > EARLIER_RESULT_LENGTH_MAX:
            output.fail(f"{path}: the file is larger than {EARLIER_RESULT_LENGTH_MAX >> 20} MiB; {remedy}")
        return earlier_totals(path.read_text("utf-8"))
    except OSError as error:
        output.fail(f"{path}: cannot be read: {error.strerror}; check the path in --compare-with and its permissions")
    except ValueError as error:
        output.fail(f"{path}: {error}; {remedy}")


def read_requested_scenario(request: SimulateRequest) -> Scenario:
    """Return the scenario (the manifests to simulate) that the arguments name; exit with 1 if it is invalid."""
    return read_input(request).scenario


def read_scenario_and_state(request: SimulateRequest, texts: SourceTexts) -> tuple[Scenario, State | None]:
    """Return the scenario in `texts`, and the cluster state from which the simulation starts (None without a state)."""
    simulation_input = read_input(request, texts)
    return simulation_input.scenario, simulation_input.state


def read_input(request: SimulateRequest, texts: SourceTexts | None = None) -> SimulationInput:
    """Read the files that the arguments name, or use their `texts` if set; exit with 1 if the input is invalid.

    Manifests beside a state file are applied to that state.
    """
    texts = texts or read_source_texts([*request.paths, *([str(request.cluster)] if request.cluster else [])])
    state = texts.state()
    state = None if state is None else with_explicit_runtimes(state)
    manifests, scenario = _read_manifests_or_exit(texts)
    if not request.is_lenient:
        _check_queue_names(manifests, state)
    if request.cluster is not None and scenario.cluster is None:
        output.fail(f"{request.cluster}: this file contains no Cluster of cloud.batchyard.dev/v1alpha1; add one")
    if state is not None:
        run_start = start_from_state(state)
        kueue_settings = run_start.scenario.kueue
        if scenario.kueue != SIMULATION_SETTINGS:
            version = kueue_settings.recorded_version
            kueue_settings = scenario.kueue if version is None else scenario.kueue.with_recorded_version(version)
        scenario = replace(scenario, cluster=scenario.cluster or run_start.cluster, kueue=kueue_settings)
    kueue = select_version(scenario.kueue, request.kueue_version)
    scenario = replace(_with_requested_run_times(scenario, request), runtime=request.runtime, kueue=kueue)
    return SimulationInput(scenario, state, manifests)


def read_scenario_or_exit(texts: SourceTexts) -> Scenario:
    """Return the scenario in the manifests; print warnings, and exit if a manifest is invalid."""
    return _read_manifests_or_exit(texts)[1]


def _read_manifests_or_exit(texts: SourceTexts) -> tuple[Manifests, Scenario]:
    manifests = read_manifests(texts.manifests)
    try:
        scenario = make_scenario(manifests, texts.file_faults)
    except InvalidScenario as invalid:
        _fail_with_faults(invalid.faults)
    print_warnings(manifests.warnings)
    return manifests, scenario


def _fail_with_faults(faults: Sequence[ManifestFault | FileFault], remedy: str = "") -> NoReturn:
    lines = [*map(str, faults), f"batchyard: {count_with_noun(len(faults), 'fault')}; nothing was run{remedy}"]
    output.fail("\n".join(lines))


def _check_queue_names(manifests: Manifests, state: State | None) -> None:
    state_manifests = [] if state is None else [Manifest(dict(obj), "", 0) for obj in state.objects.values()]
    linted_manifests = index_manifests([*state_manifests, *manifests.objects])
    faults: dict[str, ManifestFault] = {}
    fault_count = 0
    for result in (*unknown_local_queue(linted_manifests), *unknown_cluster_queue(linted_manifests)):
        if not result.manifest.source:  # an object of the state
            continue
        fault_count += 1
        fix = "add it to the files" if result.severity is Severity.NOTE else result.fix
        fault = result.manifest.fault(FieldError(result.path, result.problem, fix))
        faults.setdefault(result.problem, fault)
    if faults:
        lines = [*first_lines(list(map(str, faults.values())), "fault")]
        objects_text = f"{count_with_noun(fault_count, 'object')} {select_verb(fault_count, 'names', 'name')}"
        lines.append(f"batchyard: {objects_text} a queue that does not exist; nothing was run")
        lines.append("batchyard: --lenient runs them nevertheless: they wait until the end")
        output.fail("\n".join(lines))


def _with_requested_run_times(scenario: Scenario, request: SimulateRequest) -> Scenario:
    path = request.runtimes
    if path is None:
        return scenario
    try:
        rules = parse_run_time_rules(str(path), path.read_text("utf-8"))
    except InvalidScenario as invalid:
        _fail_with_faults(invalid.faults)
    except UnicodeDecodeError as error:
        output.fail(f"{path}: the file is not text: byte {error.start} is not UTF-8; save the file as UTF-8")
    except OSError as error:
        output.fail(f"{path}: cannot be read: {error.strerror}; choose another file with --runtimes")
    timed_scenario, unused_rules = with_run_times(scenario, rules, request.seed)
    unused_lines = [f"{rule.location}: {rule.pattern!r} is the first match of no job" for rule in unused_rules]
    for line in first_lines(unused_lines, "runtimes"):
        output.report_line(line)
    return timed_scenario


def input_remarks(simulation_input: SimulationInput, request: SimulateRequest) -> Iterator[str]:
    """Yield remarks on a run's input: undefined Namespaces, lint findings, missing jobs and unknown run times."""
    manifests = simulation_input.manifests
    yield from _namespace_remarks(simulation_input)
    if simulation_input.state is None:
        paths = [*request.paths, *([str(request.cluster)] if request.cluster else ())]
        if len(manifests.texts) <= LINTED_DOCUMENTS_MAX:
            source_names = list(dict.fromkeys(source for source, _ in manifests.texts))
            yield from lint_remarks(lint_manifests(manifests, source_names), paths)
        else:
            yield f"batchyard: {len(manifests.texts):,} documents are not linted before the run: use `batchyard lint`"
        custom_kinds = [info.kind for info in manifests.job_kinds]
        if not any(
            kind in simulation_input.scenario.counts for kind in (*_WORK_KINDS, *_CONTROLLED_KINDS, *custom_kinds)
        ):
            kinds = ", ".join(_WORK_KINDS)
            yield f"batchyard: {' '.join(paths)}: no jobs to run; add files with objects of these kinds: {kinds}"
    yield from run_time_remarks(unknown_run_times(simulation_input.scenario))


def _namespace_remarks(simulation_input: SimulationInput) -> Iterator[str]:
    state_objects = () if simulation_input.state is None else simulation_input.state.objects
    names = undefined_namespaces(simulation_input.scenario.steps)
    names = [name for name in names if Key(scheme.NAMESPACE, "", name) not in state_objects]
    if names:
        more = f" and {len(names) - _NAMES_SHOWN_MAX} more" if len(names) > _NAMES_SHOWN_MAX else ""
        names_text = f"{select_verb(len(names), 'Namespace', 'Namespaces')} {', '.join(names[:_NAMES_SHOWN_MAX])}{more}"
        yield (
            f"batchyard: the files do not define {names_text}: the run creates {select_verb(len(names), 'it', 'them')};"
            f" for `kubectl apply`, run `kubectl create namespace {names[0]}` first"
        )


@contextmanager
def open_options(request: SimulateRequest, state: State | None = None) -> Iterator[SimulationOptions]:
    """Yield the options of a simulation run; the run's event log is open until the end of the `with` block."""
    run_length = DEFAULT_RUN_LENGTH if request.until is None and state is not None else request.until
    with _event_sink(request.events) as sink:
        yield SimulationOptions(run_length, request.seed, PreemptionLoopAction(request.on_preemption_loop), sink, state)


def report_remarks(result: Result) -> None:
    """Print remarks on a simulation run; exit with 1 if a preemption loop ended it, with 130 if the user did."""
    for line in run_remarks(result):
        output.report_line(line)
    if result.ending is RunEnding.LOOP:
        raise SystemExit(1)
    if result.ending is RunEnding.INTERRUPTED:
        raise SystemExit(INTERRUPTED_EXIT_CODE)


def run_to_end(simulation: Simulation) -> Result:
    """Run a simulation to its end or an interrupt with progress output; exit with 1 if time does not advance."""
    try:
        run_until_interrupted(simulation)
        return simulation.result()
    except EndlessInstant as error:
        output.fail(f"batchyard: {error}")


@contextmanager
def _event_sink(name: str | None) -> Iterator[Callable[[Record], None]]:
    if name is None:
        yield ignore_record
        return
    try:
        with output.open_binary_output() if name == "-" else Path(name).open("wb") as stream:
            yield _line_writer(stream)
    except BrokenPipeError:
        output.end_with_closed_pipe()
    except OSError as error:
        target = "standard output" if name == "-" else name
        output.fail(f"{target}: cannot write the event log: {error.strerror}; choose another file with --events")


def _line_writer(stream: BinaryIO) -> Callable[[Record], None]:
    encode = msgspec.json.Encoder().encode

    def write(record: Record) -> None:
        stream.write(encode(record) + b"\n")

    return write


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """The options of `batchyard simulate` for a cluster trace."""

    folder: Path
    #: The factor for the arrival rate of the pods.
    load: Fraction = Fraction(1)
    #: The fraction of all GPUs up to which pods request GPUs if they fill the nodes; None: the trace is replayed.
    fill: Fraction | None = None
    gpu_placement: GpuPolicyName | None = None


def run_trace(trace_request: TraceRequest, request: SimulateRequest) -> None:
    """Simulate a cluster trace, and print a report; exit with 1 on failure.

    The trace is replayed, or if `fill` is set, its pods arrive until they request that fraction of all GPUs.
    """
    trace = _read_trace_or_exit(trace_request.folder, trace_request.load)
    policy = trace_request.gpu_placement
    if policy is not None:
        scenario = replace(trace.scenario, gpu_placement=gpu_placement_for(trace, policy))
        trace = replace(trace, scenario=scenario)
    if trace_request.fill is None:
        _replay_trace(trace, request)
    else:
        _fill_nodes(trace, trace_request.fill, request)


def _fill_nodes(trace: Trace, fraction: Fraction, request: SimulateRequest) -> None:
    try:
        fill = fill_trace(trace, fraction, request.seed)
    except ValueError as error:
        output.fail(f"batchyard: --fill: {error}")
    with open_options(request) as options:
        fill_run = FillRun(fill, options)
        result = run_to_end(fill_run.simulation)
    if request.events != "-":
        report = fill_run.report()
        is_table, is_wide = request.output.is_table, request.output is Output.WIDE
        output.write(
            fill_table(report, wide=is_wide) if is_table else render_document(report.api_document(), request.output)
        )
    report_remarks(result)


def _replay_trace(trace: Trace, request: SimulateRequest) -> None:
    has_manifests = bool(request.paths or request.cluster)
    scenario = merge_trace(trace, read_requested_scenario(request)) if has_manifests else None
    with open_options(request) as options:
        replay = TraceRun(trace, options, scenario)
        result = run_to_end(replay.simulation)
    if request.events != "-":
        manifests_result = _without_trace(result) if has_manifests else None
        output.write(_format_trace_report(replay.report(), manifests_result, request.output))
    report_remarks(result)


def _read_trace_or_exit(folder: Path, load: Fraction) -> Trace:
    try:
        return read_trace(folder, load)
    except InvalidScenario as invalid:
        lines = [str(fault) for fault in invalid.faults[:REMARKS_SHOWN_MAX]]
        if len(invalid.faults) > REMARKS_SHOWN_MAX:
            lines.append(f"and {len(invalid.faults) - REMARKS_SHOWN_MAX} more")
        fault_count = len(invalid.faults)
        lines.append(f"batchyard: {count_with_noun(fault_count, 'fault')}; nothing was run")
        output.fail("\n".join(lines))


def _format_trace_report(report: TraceReport, result: Result | None, output_format: Output) -> str:
    if output_format.is_table:
        tables = report_tables(report, wide=output_format is Output.WIDE)
        return tables if result is None else f"{tables}\n{format_result(result, output_format)}"
    document: dict[str, Any] = report.api_document()
    if result is not None:
        document["objects"] = {kind: list(objs) for kind, objs in result.objects.items() if objs}
    return render_document(document, output_format)


def _without_trace(result: Result) -> Result:
    """Remove all nodes, and the pods of the replayed trace: they would be thousands of uniform rows."""
    pods = [pod for pod in result.objects[scheme.POD] if pod["metadata"]["namespace"] != NAMESPACE]
    return replace(result, objects={**result.objects, scheme.NODE: [], scheme.POD: pods})


def parse_run_length(text: str) -> Duration:
    """Parse the maximum virtual time of a simulation run; raise BadParameter if the text is malformed."""
    try:
        return parse_run_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_load_factor(text: str) -> Fraction:
    """Parse the factor by which a trace's arrival rate is multiplied; raise BadParameter if it is malformed."""
    try:
        return parse_load(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


ManifestPaths: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="PATH", help="Manifests: files, folders (*.yaml, *.yml, *.json below), - for stdin."),
]
ClusterFile: TypeAlias = Annotated[
    Path | None, typer.Option("--cluster", metavar="FILE", help="The nodes: pools, limits, capacity, prices.")
]
TraceFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option("--trace", metavar="DIR", help="Replay a cluster trace (CSV of nodes and pods); print a report."),
]
FillPercent: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1, max=1000, metavar="PERCENT", help="Fill the trace's nodes: pods that never end request PERCENT of GPUs."
    ),
]
GpuPlacementPolicy: TypeAlias = Annotated[
    GpuPolicyName | None,
    typer.Option(help="How pods of the trace get nodes and GPUs.", show_default="kube-scheduler's scores"),
]
LoadFactor: TypeAlias = Annotated[
    Fraction | None,
    typer.Option(parser=parse_load_factor, metavar="FACTOR", help="Multiply the arrival rate of the trace's pods."),
]
RunLength: TypeAlias = Annotated[
    Duration | None,
    typer.Option(parser=parse_run_length, metavar="DURATION", help="Stop after this virtual time, such as 2h or 90s."),
]
EventsFile: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Write the event log as JSON lines; - for stdout, instead of the tables."),
]
OnLoop: TypeAlias = Annotated[
    LoopAction, typer.Option("--on-loop", help="On an endless preemption loop: continue, or stop.")
]
ResultFormat: TypeAlias = Annotated[Output | None, typer.Option("--output", "-o", help="How to print the result.")]
EarlierResult: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Show changes from another run: its report, or its output as JSON.")
]
DefaultRuntime: TypeAlias = Annotated[
    Duration | None,
    typer.Option(
        parser=to_duration,
        metavar="DURATION",
        help="Run time of jobs without a run time of their own.",
        show_default="from the Cluster, else 1m",
    ),
]
OldRuntime: TypeAlias = Annotated[Duration | None, typer.Option("--runtime", parser=to_duration, hidden=True)]
RuntimesFile: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Run times by name: CSV rows such as train-*,uniform(5m,20m).")
]
By: TypeAlias = Annotated[SummaryGrouping, typer.Option(help="What the summary groups Workloads by.")]
Lenient: TypeAlias = Annotated[bool, typer.Option("--lenient", help="Allow jobs to name queues that do not exist.")]


def simulate(
    paths: ManifestPaths = None,
    cluster: ClusterFile = None,
    trace: TraceFolder = None,
    load: LoadFactor = None,
    fill: FillPercent = None,
    gpu_placement: GpuPlacementPolicy = None,
    until: RunLength = None,
    seed: Annotated[int, typer.Option(help="Seed of all random values, such as uids.")] = 0,
    events: EventsFile = None,
    on_preemption_loop: OnLoop = LoopAction.CONTINUE,
    output_format: ResultFormat = None,
    by: By = SummaryGrouping.QUEUE,
    report: Report = None,
    compare_with: EarlierResult = None,
    default_runtime: DefaultRuntime = None,
    runtime: OldRuntime = None,
    runtimes: RuntimesFile = None,
    lenient: Lenient = False,
    kueue_version: RecordedVersionOption = None,
    verbose: Verbose = False,  # noqa: ARG001 - its callback passes it to the warnings
) -> None:
    """Run manifests in virtual time, and print a summary and the final state of queues, Workloads and Jobs."""
    if events == "-" and output_format is not None:
        raise typer.BadParameter("--events - writes the event log to standard output: remove --output")
    if not paths and trace is None:
        raise typer.BadParameter("nothing to simulate: add manifests (PATH...), a trace with --trace DIR, or both")
    if trace is None:
        _reject_trace_options({"--load": load, "--fill": fill, "--gpu-placement": gpu_placement})
    if fill is not None and (paths or cluster is not None or load is not None):
        option = "PATH" if paths else "--cluster" if cluster is not None else "--load"
        raise typer.BadParameter(f"--fill takes nodes and pods from the trace alone: remove {option}")
    if trace is not None and (report is not None or compare_with is not None):
        option = "--report" if report is not None else "--compare-with"
        raise typer.BadParameter(f"{option} is for manifests only, and --trace prints its own report: remove {option}")
    if runtime is not None:
        output.report_line("batchyard: --runtime is the old name of --default-runtime")
    request = SimulateRequest(
        paths=paths or [],
        cluster=cluster,
        until=until,
        seed=seed,
        events=events,
        on_preemption_loop=on_preemption_loop,
        output=output_format or Output.TABLE,
        report=report,
        runtime=runtime if default_runtime is None else default_runtime,
        runtimes=runtimes,
        grouping=by,
        is_lenient=lenient or trace is not None,
        compare_with=compare_with,
        kueue_version=None if kueue_version is None else KueueVersion(kueue_version.value),
    )
    if trace is None:
        run(request)
    else:
        fill_fraction = None if fill is None else Fraction(fill, 100)
        run_trace(TraceRequest(trace, load or Fraction(1), fill_fraction, gpu_placement), request)


def _reject_trace_options(values_by_option: Mapping[str, object]) -> None:
    for option, value in values_by_option.items():
        if value is not None:
            raise typer.BadParameter(f"{option} is for traces: add --trace DIR, or remove {option}")
