"""`batchyard guide`: plays the reference architecture's guide and compares each table with its published figures."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchyard.api import printing, scheme
from batchyard.api.meta import Obj
from batchyard.base.instant import Instant, format_age
from batchyard.cli import output
from batchyard.cli.guide_rows import Played, rows_of
from batchyard.cli.guide_timings import DifferentRow
from batchyard.cli.options import Output
from batchyard.cli.simulate import print_warnings, write_report
from batchyard.cli.tables import render_json, render_yaml
from batchyard.sim.accounting import RunAccounting
from batchyard.sim.guide import Guide, GuideObservation, examples_folder, played_steps, unfinished_of
from batchyard.sim.report import Reporter
from batchyard.sim.result import rejected_write
from batchyard.sim.scenario import InvalidScenario

if TYPE_CHECKING:
    from batchyard.cli.live_guide import LiveGuide


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
    from batchyard.cli.live_guide import LiveGuide, platform  # noqa: PLC0415 - loads the platform

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


def _print_timings(played: "LiveGuide", rows: int, differ: Sequence[DifferentRow], speed: float) -> None:
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


def _live_document(played: "LiveGuide", differ: Sequence[DifferentRow]) -> Mapping[str, Any]:
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
