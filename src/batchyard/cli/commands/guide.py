"""`batchyard guide`: plays the reference architecture's guide and compares each table with its published figures."""

import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Protocol

import typer

from batchyard.api import printing, scheme
from batchyard.api.meta import Obj
from batchyard.base.instant import Instant, format_age
from batchyard.cli import output
from batchyard.cli.commands.live_guide import DifferentRow, LiveGuide, platform
from batchyard.cli.commands.simulate import print_warnings, write_report
from batchyard.cli.options import GuideStepName, Output, Report
from batchyard.cli.options import speed as factor
from batchyard.cli.output import render_json, render_yaml
from batchyard.cli.platform.render import write
from batchyard.cli.platform.target import read_source, sound_platform
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render
from batchyard.sim.guide import Guide, GuideObservation, examples_folder, played_steps, pool_of, unfinished_of
from batchyard.sim.recovery import RunAccounting
from batchyard.sim.result import Reporter, rejected_write
from batchyard.sim.scenario import InvalidScenario

# --- guide rows ---
#
# The table rows of a guide by name, without the names and ages that differ between runs.


class Played(Protocol):
    """A guide that was played, in a simulated world or on a running platform."""

    @property
    def initial(self) -> Mapping[str, int]:
        """The number of nodes of each pool before the first step."""

    @property
    def began(self) -> Instant:
        """The instant at which the guide began."""

    def now(self) -> Instant:
        """The current time in the guide."""

    def objects(self, kind: str) -> Sequence[Obj]:
        """All objects of a kind."""


def rows_of(seen: Sequence[GuideObservation], guide: Played) -> Mapping[str, str]:
    """The rows of all steps (`STEP: NAME`) and of all Jobs (`NAMESPACE/NAME`), as text by name."""
    rows: dict[str, str] = {}
    for each in seen:
        found = {**queue_rows(each.cluster_queues, each.now), **node_rows(each.nodes, each.nodes_now)}
        rows |= {f"{each.step.name}: {name}": cells for name, cells in found.items()}
    for job in guide.objects(scheme.JOB):
        name, status, completions, *_ = printing.row(job, now=guide.now(), wide=False)
        rows[f"{job['metadata']['namespace']}/{name}"] = f"{status} {completions}"
    return rows


def queue_rows(cluster_queues: Sequence[Obj], now: Instant) -> Mapping[str, str]:
    """The cells of each ClusterQueue by its name."""
    _, *rows = printing.table(scheme.CLUSTER_QUEUE, cluster_queues, now=now, wide=True, namespaces=False)
    return {name: " ".join(filter(None, cells)) for name, *cells in rows}


def node_rows(nodes: Sequence[Obj], now: Instant) -> Mapping[str, str]:
    """The number of nodes of each kind: pool, status, roles, version."""
    counts = Counter(_kind_of_node(node, now) for node in nodes)
    return {kind: f"{count} nodes" for kind, count in counts.items()}


def _kind_of_node(node: Obj, now: Instant) -> str:
    _, status, roles, _, version, *_ = printing.row(node, now=now, wide=False)
    return f"{pool_of(node)} {status} {roles} {version}"


def run(
    manifests: Path | None,
    step: str | None,
    form: Output,
    live: float | None,
    report: Path | None = None,
    rendered: Path | None = None,
) -> None:
    """Play the guide in a simulation and, if `live` is set, on a platform at that speed.

    `rendered` is the folder of a rendered platform. Ends with 1 in three cases: a row that quota alone decides differs
    from the guide, a Job does not end, or a row of the live platform differs from the simulation without a late timing
    as its reason.
    """
    folder = manifests or examples_folder()
    if folder is None:
        output.fail("batchyard: the package contains no examples; give their folder with --manifests DIR")
    try:
        guide = Guide(folder, played_steps(step), rendered)
    except InvalidScenario as invalid:
        output.fail(f"{invalid}\nbatchyard: the guide cannot be played")
    print_warnings(guide.warnings)
    reporter, books = Reporter(guide.world), RunAccounting(guide.world.client, guide.world.kernel)
    seen = _played(guide)
    if report is not None:
        write_report(report, reporter.html(guide.now(), books.statement(guide.now())))
    if live is None:
        _show(seen, guide, step, form)
        return

    _end_as_by_ctrl_c()
    with platform(guide.cluster, live) as started:
        played = LiveGuide(guide, started, time_waits=live != 1)
        seen_live = list(played.play(played_steps(step)))
        simulated = rows_of(seen, guide)
        differ = played.timings.differences(simulated, rows_of(seen_live, played))
        _print_timings(played, len(simulated), differ, live)
        _show(seen_live, played, step, form, _live_document(played, differ))
        if not all(row.is_explained for row in differ):
            output.fail("batchyard: rows differ from the simulation although no timing was missed")


def _end_as_by_ctrl_c() -> None:
    """Handle SIGTERM and SIGHUP as Ctrl-C, so that the started platform is stopped too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _played(guide: Guide) -> Sequence[GuideObservation]:
    return list(guide.play())


def _show(
    seen: Sequence[GuideObservation],
    guide: Played,
    step: str | None,
    form: Output,
    live: Mapping[str, Any] | None = None,
) -> None:
    output.write(_shown(seen if step is None else seen[-1:], guide, form, live))
    if isinstance(guide, Guide):
        for write, error in guide.world.refused:
            output.report_line(f"refused: {rejected_write(write, error)}")
    _conclude(seen, guide, whole=step is None)


def _print_timings(played: LiveGuide, rows: int, differ: Sequence[DifferentRow], speed: float) -> None:
    """Report each row that differs from the simulation with its reason, and each missed timing."""
    for row in differ:
        output.report_line(f"batchyard: {row}")
    for timing in played.timings.missed:
        output.report_line(f"batchyard: missed timing: {timing}")
    output.report_line(f"batchyard: {rows - len(differ)} of {rows} table rows equal those of the simulation")
    if played.timings.missed:
        slower = played.timings.speed_for(speed)
        output.report_line(f"batchyard: the machine was too slow for --speed {speed:g}x; try --speed {slower:g}x")


def _shown(seen: Sequence[GuideObservation], guide: Played, form: Output, live: Mapping[str, Any] | None) -> str:
    """The steps and the final Jobs in one of the output formats; JSON and YAML also have the live report."""
    document = {**_document(seen, guide), **({} if live is None else {"live": live})}
    if form is Output.JSON:
        return render_json(document)
    if form is Output.YAML:
        return render_yaml(document)
    return "".join([*(_step_table(each, guide.began) for each in seen), _jobs_table(guide)])


def _step_table(seen: GuideObservation, began: Instant) -> str:
    """The tables after a step: the queues, and later the nodes."""
    queues = f"# {seen.step.name}: queues after {format_age(seen.now - began)}\n{printing.format_table(_beside(seen))}"
    nodes = printing.table(scheme.NODE, seen.nodes, now=seen.nodes_now, wide=False, namespaces=False)
    title = f"# {seen.step.name}: nodes after {format_age(seen.nodes_now - began)}"
    return f"{queues}\n{title}\n{printing.format_table(_pools(seen))}\n{printing.format_table(nodes)}\n"


def _pools(seen: GuideObservation) -> printing.Table:
    """The ready nodes of each pool beside the guide's published counts."""
    saw = seen.step.nodes
    rows = [[pool, str(count), *_beside_pool(count, saw, pool)] for pool, count in seen.pools.items()]
    total, all_saw = sum(seen.pools.values()), None if saw is None else {"": sum(saw.values())}
    missing = [[pool, "0", *_beside_pool(0, saw, pool)] for pool in saw or () if pool not in seen.pools]
    header = ["POOL", "READY NODES", "GUIDE NODES", "AGREES"]
    return [header, *rows, *missing, ["all", str(total), *_beside_pool(total, all_saw, "")]]


def _beside_pool(count: int, saw: Mapping[str, int] | None, pool: str) -> list[str]:
    return ["", ""] if saw is None else [str(saw.get(pool, 0)), "yes" if count == saw.get(pool, 0) else "no"]


def _beside(seen: GuideObservation) -> printing.Table:
    """`kubectl get clusterqueues -o wide` beside the guide's published counts."""
    header, *rows = printing.table(scheme.CLUSTER_QUEUE, seen.cluster_queues, now=seen.now, wide=True, namespaces=False)
    compared = [_compared(seen, obj["metadata"]["name"]) for obj in seen.cluster_queues]
    beside = [[*row, *cells] for row, cells in zip(rows, compared, strict=True)]
    return [[*header, "GUIDE PENDING", "GUIDE ADMITTED", "AGREES"], *beside]


def _compared(seen: GuideObservation, queue: str) -> list[str]:
    saw, is_exact = seen.step.saw(queue), seen.step.is_exact(queue)
    agrees = seen.rows[queue] == saw
    message = ("yes" if agrees else "no") if not is_exact else ("yes, exact" if agrees else "NO (exact)")
    return [str(saw.pending), str(saw.admitted), message]


def _jobs(guide: Played) -> Sequence[Obj]:
    return guide.objects(scheme.JOB)


def _jobs_table(guide: Played) -> str:
    """`kubectl get jobs -A`."""
    now = guide.now()
    return printing.format_table(printing.table(scheme.JOB, _jobs(guide), now=now, wide=False, namespaces=True))


def _document(seen: Sequence[GuideObservation], guide: Played) -> dict[str, Any]:
    """The steps and Jobs in the format of the guide's published figures."""
    now = guide.now()
    return {
        "initialNodes": guide.initial,
        "steps": [
            {
                "name": each.step.name,
                "clusterQueues": {name: row._asdict() for name, row in each.rows.items()},
                "nodes": each.pools,
            }
            for each in seen
        ],
        "jobs": [_job(job, now) for job in _jobs(guide)],
    }


def _live_document(played: LiveGuide, differ: Sequence[DifferentRow]) -> Mapping[str, Any]:
    return {
        "missedTimings": [timing.document() for timing in played.timings.missed],
        "differentRows": [row._asdict() for row in differ],
    }


def _job(job: Obj, now: Instant) -> dict[str, str]:
    _, _, completions, duration, age = printing.row(job, now=now, wide=False)
    metadata = job["metadata"]
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "completions": completions,
        "duration": duration,
        "ageAtEnd": age,
    }


def _conclude(seen: Sequence[GuideObservation], guide: Played, *, whole: bool) -> None:
    """Report the agreement with the guide; ends the command with 1 if an exact row or a Job differs."""
    exact = sum(len(each.exact) for each in seen)
    wrong = [f"{each.step.name}: {queue}" for each in seen for queue in each.wrong]
    found = _jobs(guide)
    jobs, unfinished = len(found), len(unfinished_of(found))
    output.report_line(
        f"batchyard: {exact - len(wrong)} of {exact} rows that quota alone decides (exact) agree with the guide, the "
        f"others depend on the time of the reading; {jobs - unfinished} of {jobs} Jobs are complete; nodes after each "
        f"step: {', '.join(str(sum(each.pools.values())) for each in seen)}"
    )
    differ = sum(each.rows[name] != each.step.saw(name) for each in seen for name in each.rows) - len(wrong)
    if differ:
        output.report_line(
            f"batchyard: {differ} of the others differ from the guide; examples/refarch/README.md explains why"
        )
    if wrong or (whole and unfinished):
        output.fail(f"batchyard: differs from the guide: {', '.join(wrong) or 'some Jobs did not end'}")


# --- guide ---
#
# The reference architecture's guide on a platform.yaml: renders the platform and plays the guide on it.


def run_for_platform(
    file: str, manifests: Path | None, step: str | None, form: Output, live: float | None, report: Path | None
) -> None:
    """Play the guide on a platform.yaml, or on the platform of the manifests folder; exits with 1 on failure."""
    if not file:
        run(manifests, step, form, live, report)
        return
    with _rendered(sound_platform(read_source(file), "")) as folder:
        run(manifests, step, form, live, report, folder)


def play(platform: PlatformModel, form: Output) -> None:
    """Simulate the whole guide on a platform."""
    with _rendered(platform) as folder:
        run(None, None, form, None, rendered=folder)


@contextmanager
def _rendered(platform: PlatformModel) -> Iterator[Path]:
    """A temporary folder with the rendered platform."""
    with TemporaryDirectory(prefix="batchyard-platform-") as name:
        write(render(platform), Path(name), overwrite=False)
        yield Path(name)


# --- guide ---
#
# The options of `batchyard guide`.


def guide(
    manifests: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder with the reference architecture's layout; default: our example."),
    ] = None,
    platform: Annotated[
        str, typer.Option(metavar="FILE", help="A platform.yaml to use instead of the folder's platform.")
    ] = "",
    step: Annotated[
        GuideStepName | None, typer.Option(help="Play up to this step and show the state after it.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
    live: Annotated[
        bool, typer.Option("--live", help="Play it on a running platform by kubectl; report differences.")
    ] = False,
    speed: Annotated[
        float,
        typer.Option(parser=factor, metavar="FACTOR", show_default="60x", help="With --live: the speed of time."),
    ] = 60.0,
    report: Report = None,
) -> None:
    """Play the reference architecture's guide; print its queues after each step beside the published figures.

    Exits with 1 if a row that quota alone decides differs, a Job does not end, or a live row differs without a reason.
    """
    if live and report is not None:
        raise typer.BadParameter("--report is for simulations: leave out --live, whose platform has a dashboard")

    run_for_platform(platform, manifests, step, output, speed if live else None, report)
