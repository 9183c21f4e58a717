"""The command `batchyard guide`: simulates Google's guide to its GKE batch reference architecture step by step.

The queues and nodes after each step are compared with the figures that the guide publishes.
"""

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from batchyard.api import printing, scheme
from batchyard.api.meta import Obj, is_true
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import Instant, format_age
from batchyard.cli import output
from batchyard.cli.commands.guide_story import format_next_steps, format_story
from batchyard.cli.manifest_warnings import print_warnings, remember_verbosity
from batchyard.cli.options import GuideStepName, Output, Report, parse_speed
from batchyard.cli.output import render_document, write_report
from batchyard.sim.guide import Guide, GuideObservation, examples_folder, guide_steps_up_to, pool_of
from batchyard.sim.scenario import InvalidScenario

if TYPE_CHECKING:
    from batchyard.cli.commands.live_guide import DifferentRow, LiveGuide
    from batchyard.provision.model import PlatformModel

# The output rows of a guide by name, without object names and ages, which differ between runs.


class PlayedGuide(Protocol):
    """A run of the reference architecture's guide, in a simulation or on a live platform."""

    @property
    def initial_node_counts(self) -> Mapping[str, int]:
        """The number of nodes of each pool before the first step."""

    @property
    def start_time(self) -> Instant:
        """The virtual time at which the guide's run began."""

    def now(self) -> Instant:
        """Return the virtual time: the current one of a simulation, that of the last read of a live platform."""

    def objects(self, kind: str) -> Sequence[Obj]:
        """Return all objects of a kind as of `now()`."""


def guide_rows(observations: Sequence[GuideObservation], guide: PlayedGuide) -> Mapping[str, str]:
    """Return the output rows of all steps (key `STEP: NAME`) and of all Jobs (key `NAMESPACE/NAME`), as text by key."""
    rows: dict[str, str] = {}
    for observation in observations:
        rows_by_queue = queue_rows(observation.cluster_queues, observation.now)
        step_rows = {**rows_by_queue, **node_rows(observation.nodes, observation.nodes_now)}
        rows |= {f"{observation.step.name}: {name}": cells for name, cells in step_rows.items()}
    for job in guide.objects(scheme.JOB):
        name, status, completions, *_ = printing.row(job, now=guide.now(), wide=False)
        rows[f"{job['metadata']['namespace']}/{name}"] = f"{status} {completions}"
    return rows


def queue_rows(cluster_queues: Sequence[Obj], now: Instant) -> Mapping[str, str]:
    """Return the cells that `kubectl get clusterqueues -o wide` shows of each ClusterQueue, as text by queue name."""
    _, *rows = printing.table(scheme.CLUSTER_QUEUE, cluster_queues, now=now, wide=True, namespaces=False)
    return {name: " ".join(filter(None, cells)) for name, *cells in rows}


def node_rows(nodes: Sequence[Obj], now: Instant) -> Mapping[str, str]:
    """Count the nodes with the same pool, status, roles and version; return texts such as `4 nodes` by these fields."""
    node_counts = Counter(_describe_node(node, now) for node in nodes)
    return {kind: count_with_noun(count, "node") for kind, count in node_counts.items()}


def _describe_node(node: Obj, now: Instant) -> str:
    _, status, roles, _, version, *_ = printing.row(node, now=now, wide=False)
    return f"{pool_of(node)} {status} {roles} {version}"


def run(
    manifests: Path | None,
    step: str | None,
    output_format: Output,
    live_speed: float | None,
    report: Path | None = None,
    platform_dir: Path | None = None,
) -> None:
    """Simulate the guide; if `live_speed` is set, also run it on a live platform at that speed.

    The format `table` prints the story of a simulation, `wide` all tables. `platform_dir` is a rendered platform
    folder. The command exits with 1 in these cases:

    - The guide cannot be run.
    - A row that quota alone decides differs from the guide.
    - `step` is None, and a Job is not complete at the end.
    - A live row differs from the simulation although each Job ran, and the state was read, without any delay.
    """
    folder = manifests or examples_folder()
    if folder is None:
        output.fail("batchyard: this installation contains no example manifests; set their folder with --manifests DIR")
    try:
        guide = Guide(folder, guide_steps_up_to(step), platform_dir)
    except InvalidScenario as invalid:
        output.fail(f"{invalid}\nbatchyard: the guide was not run; fix these manifests first")
    print_warnings(guide.warnings)
    write_requested_report = _report_writer(guide, report)
    observations, preemption_totals = [], []
    for observation in guide.play():
        observations.append(observation)
        preemption_totals.append(guide.world.waits.preemptions)
    write_requested_report()
    if live_speed is None and output_format is Output.TABLE:
        output.write(format_story(observations, preemption_totals, guide.initial_node_counts, guide.start_time))
        _report_rejections_and_agreement(observations, guide, is_complete=step is None)
        output.write(format_next_steps())
        return
    if live_speed is None:
        _print_guide(observations, guide, step, output_format)
        return
    _play_live(guide, observations, step, output_format, live_speed)


def _report_writer(guide: Guide, path: Path | None) -> Callable[[], None]:
    """Start to record the simulation for an HTML report; return a function that writes it, or nothing without a path.

    Without a report, the modules of the dashboard are not loaded, and the costs are not computed.
    """
    if path is None:
        return lambda: None
    from batchyard.sim.recovery import RunAccounting  # noqa: PLC0415 - only for a report
    from batchyard.sim.result import Reporter  # noqa: PLC0415 - only for a report

    reporter, accounting = Reporter(guide.world), RunAccounting(guide.world.client, guide.world.kernel)
    return lambda: write_report(path, reporter.html(guide.now(), accounting.cost_statement(guide.now())))


def _play_live(
    guide: Guide, observations: Sequence[GuideObservation], step: str | None, output_format: Output, speed: float
) -> None:
    from batchyard.cli.commands.live_guide import LiveGuide, run_platform_process  # noqa: PLC0415 - loads the platform

    _treat_signals_as_ctrl_c()
    with run_platform_process(guide.cluster, speed) as live_platform:
        live_guide = LiveGuide(guide, live_platform, stops_clock=speed != 1)
        live_observations = list(live_guide.play(guide_steps_up_to(step)))
        simulated_rows = guide_rows(observations, guide)
        different_rows = live_guide.timings.explain_differences(
            simulated_rows, guide_rows(live_observations, live_guide)
        )
        _print_timings(live_guide, len(simulated_rows), different_rows, speed)
        _print_guide(live_observations, live_guide, step, output_format, _live_document(live_guide, different_rows))
        if not all(row.is_explained for row in different_rows):
            problem = "some rows differ from the simulation although no Job or reading was late"
            output.fail(f"batchyard: {problem}; the messages above name the rows")


def _treat_signals_as_ctrl_c() -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that these signals also stop the live platform."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _print_guide(
    observations: Sequence[GuideObservation],
    guide: PlayedGuide,
    step: str | None,
    output_format: Output,
    live_document: Mapping[str, Any] | None = None,
) -> None:
    output.write(
        _format_guide(observations if step is None else observations[-1:], guide, output_format, live_document)
    )
    _report_rejections_and_agreement(observations, guide, is_complete=step is None)


def _report_rejections_and_agreement(
    observations: Sequence[GuideObservation], guide: PlayedGuide, *, is_complete: bool
) -> None:
    if isinstance(guide, Guide) and guide.world.rejected_writes:
        from batchyard.sim.result import describe_rejected_write  # noqa: PLC0415 - loads the dashboard

        for write, error in guide.world.rejected_writes:
            output.report_line(f"rejected write: {describe_rejected_write(write, error)}")
    _report_agreement(observations, guide, is_complete=is_complete)


def _print_timings(
    live_guide: "LiveGuide", row_count: int, different_rows: Sequence["DifferentRow"], speed: float
) -> None:
    for row in different_rows:
        output.report_line(f"batchyard: {row}")
    for timing in live_guide.timings.missed_timings:
        output.report_line(f"batchyard: late: {timing}")
    equal_row_count = row_count - len(different_rows)
    output.report_line(f"batchyard: {equal_row_count} of {row_count} table rows equal those of the simulation")
    if live_guide.timings.missed_timings:
        slower_speed = live_guide.timings.tolerable_speed(speed)
        output.report_line(f"batchyard: the machine was too slow for --speed {speed:g}x; try --speed {slower_speed:g}x")


def _format_guide(
    observations: Sequence[GuideObservation],
    guide: PlayedGuide,
    output_format: Output,
    live_document: Mapping[str, Any] | None,
) -> str:
    if output_format.is_table:
        return "".join(
            [*(_step_table(observation, guide.start_time) for observation in observations), _jobs_table(guide)]
        )
    document = _guide_document(observations, guide)
    return render_document(document if live_document is None else {**document, "live": live_document}, output_format)


def _step_table(observation: GuideObservation, run_start: Instant) -> str:
    queues = (
        f"# {observation.step.name}: queues after"
        f" {format_age(observation.now - run_start)}\n{printing.format_table(_queues_table(observation))}"
    )
    nodes = printing.table(scheme.NODE, observation.nodes, now=observation.nodes_now, wide=False, namespaces=False)
    title = f"# {observation.step.name}: nodes after {format_age(observation.nodes_now - run_start)}"
    return f"{queues}\n{title}\n{printing.format_table(_pools_table(observation))}\n{printing.format_table(nodes)}\n"


def _pools_table(observation: GuideObservation) -> printing.Table:
    counts = observation.step.nodes
    rows = [[pool, str(count), *_published_cells(count, counts, pool)] for pool, count in observation.pools.items()]
    node_total = sum(observation.pools.values())
    published_total = None if counts is None else {"": sum(counts.values())}
    missing_pools = [pool for pool in counts or () if pool not in observation.pools]
    missing_rows = [[pool, "0", *_published_cells(0, counts, pool)] for pool in missing_pools]
    header = ["POOL", "READY NODES", "GUIDE NODES", "AGREES"]
    return [header, *rows, *missing_rows, ["all", str(node_total), *_published_cells(node_total, published_total, "")]]


def _published_cells(count: int, guide_counts: Mapping[str, int] | None, pool: str) -> list[str]:
    if guide_counts is None:
        return ["", ""]
    return [str(guide_counts.get(pool, 0)), "yes" if count == guide_counts.get(pool, 0) else "no"]


def _queues_table(observation: GuideObservation) -> printing.Table:
    queues, now = observation.cluster_queues, observation.now
    header, *rows = printing.table(scheme.CLUSTER_QUEUE, queues, now=now, wide=True, namespaces=False)
    published_cells = [_published_queue_cells(observation, obj["metadata"]["name"]) for obj in queues]
    combined_rows = [[*row, *cells] for row, cells in zip(rows, published_cells, strict=True)]
    return [[*header, "GUIDE PENDING", "GUIDE ADMITTED", "AGREES"], *combined_rows]


def _published_queue_cells(observation: GuideObservation, queue: str) -> list[str]:
    guide_row, is_exact = observation.step.published_row(queue), observation.step.has_exact_row(queue)
    agrees = observation.rows[queue] == guide_row
    agreement_cell = ("yes" if agrees else "no") if not is_exact else ("yes, exact" if agrees else "NO (exact)")
    return [str(guide_row.pending), str(guide_row.admitted), agreement_cell]


def _jobs(guide: PlayedGuide) -> Sequence[Obj]:
    return guide.objects(scheme.JOB)


def _jobs_table(guide: PlayedGuide) -> str:
    now = guide.now()
    return printing.format_table(printing.table(scheme.JOB, _jobs(guide), now=now, wide=False, namespaces=True))


def _guide_document(observations: Sequence[GuideObservation], guide: PlayedGuide) -> dict[str, Any]:
    now = guide.now()
    return {
        "initialNodes": guide.initial_node_counts,
        "steps": [
            {
                "name": observation.step.name,
                "clusterQueues": {name: row._asdict() for name, row in observation.rows.items()},
                "nodes": observation.pools,
            }
            for observation in observations
        ],
        "jobs": [_job_document(job, now) for job in _jobs(guide)],
    }


def _live_document(live_guide: "LiveGuide", different_rows: Sequence["DifferentRow"]) -> Mapping[str, Any]:
    missed_timings = [timing.document() for timing in live_guide.timings.missed_timings]
    return {"missedTimings": missed_timings, "differentRows": [row._asdict() for row in different_rows]}


def _job_document(job: Obj, now: Instant) -> dict[str, str]:
    _, _, completions, duration, age = printing.row(job, now=now, wide=False)
    metadata = job["metadata"]
    key = {"namespace": metadata["namespace"], "name": metadata["name"]}
    return {**key, "completions": completions, "duration": duration, "ageAtEnd": age}


def _report_agreement(observations: Sequence[GuideObservation], guide: PlayedGuide, *, is_complete: bool) -> None:
    """Print how many rows agree with the guide; exit with 1 if a row that quota alone decides differs.

    Also exit with 1 if the whole guide was played (`is_complete`) and a Job did not complete.
    """
    exact_count = sum(len(observation.queues_with_exact_rows) for observation in observations)
    wrong_rows = [f"{each.step.name}: {queue}" for each in observations for queue in each.queues_with_wrong_rows]
    all_jobs = _jobs(guide)
    job_count, completed_count = len(all_jobs), sum(is_true(job, "Complete") for job in all_jobs)
    output.report_line(
        f"batchyard: {exact_count - len(wrong_rows)} of {exact_count} rows that quota alone decides (exact) agree with "
        f"the guide, the other rows depend on the reading time; {completed_count} of {job_count} Jobs are "
        "complete; nodes after each "
        f"step: {', '.join(str(sum(observation.pools.values())) for observation in observations)}"
    )
    other_difference_count = sum(
        observation.rows[name] != observation.step.published_row(name)
        for observation in observations
        for name in observation.rows
    ) - len(wrong_rows)
    if other_difference_count:
        output.report_line(
            f"batchyard: {other_difference_count} of the other rows differ from the guide; examples/refarch/README.md"
            " explains why"
        )
    if wrong_rows or (is_complete and completed_count < job_count):
        row_message = f"rows that differ from the guide: {', '.join(wrong_rows)}"
        jobs_message = f"{count_with_noun(job_count - completed_count, 'Job')} did not complete"
        output.fail(f"batchyard: {row_message if wrong_rows else jobs_message}; -o wide prints all tables")


def run_for_platform(
    file: str, manifests: Path | None, step: str | None, output_format: Output, speed: float | None, report: Path | None
) -> None:
    """Run the guide on the platform that the platform file `file` defines.

    If `file` is '', run it on the platform in the folder `manifests`.
    """
    if not file:
        run(manifests, step, output_format, speed, report)
        return
    from batchyard.cli.platform.target import read_source, read_valid_platform  # noqa: PLC0415 - loads the renderer

    with _render_temporarily(read_valid_platform(read_source(file), "")) as folder:
        run(manifests, step, output_format, speed, report, folder)


def play_on_platform(platform: "PlatformModel", output_format: Output) -> None:
    """Simulate the whole reference architecture guide on a platform, and print the queues, nodes and Jobs."""
    with _render_temporarily(platform) as folder:
        run(None, None, _wide_instead_of_table(output_format), None, platform_dir=folder)


def _wide_instead_of_table(output_format: Output) -> Output:
    return Output.WIDE if output_format is Output.TABLE else output_format


@contextmanager
def _render_temporarily(platform: "PlatformModel") -> Iterator[Path]:
    from batchyard.cli.platform.render import write_platform_files  # noqa: PLC0415 - loads the renderer
    from batchyard.provision.render import render  # noqa: PLC0415 - loads the renderer

    with TemporaryDirectory(prefix="batchyard-platform-") as name:
        write_platform_files(render(platform), Path(name), overwrite=False)
        yield Path(name)


def guide(
    manifests: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder with the reference architecture's layout; default: our example."),
    ] = None,
    platform: Annotated[
        str, typer.Option(metavar="FILE", help="A platform.yaml to use instead of the folder's platform.")
    ] = "",
    step: Annotated[GuideStepName | None, typer.Option(help="Stop after this step and show the state.")] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="How to print it; table: the story, wide: all tables.")
    ] = Output.TABLE,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", callback=remember_verbosity, help="Print all tables, compared with the guide's."
        ),
    ] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Run it with kubectl on a running platform; report differences.")
    ] = False,
    speed: Annotated[
        float,
        typer.Option(parser=parse_speed, metavar="FACTOR", show_default="60x", help="With --live: the speed of time."),
    ] = 60.0,
    report: Report = None,
) -> None:
    """Simulate the reference architecture's guide, and print what each step does, why, and which figures show it.

    Exits with 1 if a Job does not end, if a row that depends only on quota differs from the guide, or if a row of the
    live run differs without a known reason.
    """
    if live and report is not None:
        raise typer.BadParameter("--report is for simulations: remove --live, or remove --report")

    output_format = _wide_instead_of_table(output) if verbose or live else output
    run_for_platform(platform, manifests, step, output_format, speed if live else None, report)
