"""`batchyard compare`: two configurations under the same load, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Final

import typer

from batchyard.api.printing import Table, format_table
from batchyard.base.instant import Duration
from batchyard.cli import output
from batchyard.cli.commands.simulate import load_factor, print_warnings, write_report
from batchyard.cli.options import Output, OutputOption, Seed, duration
from batchyard.cli.output import render_json, render_yaml, watched
from batchyard.controller_runtime.kernel import EndlessInstant
from batchyard.sim.compare.comparison import (
    SHOWN,
    ComparisonSettings,
    ConfigurationComparison,
    RepeatedFigure,
    WaitChange,
    compare_configurations,
    document_of,
)
from batchyard.sim.compare.inputs import Variant, VariantPair, read_pair
from batchyard.sim.compare.page import page
from batchyard.sim.compare.runs import as_jobs, is_trace
from batchyard.sim.compare.sections import Both, Section, Unit, format_change, format_figure
from batchyard.sim.scenario import InvalidScenario, Source

#: The most rejected writes of a run that are printed.
LINES_MAX: Final = 10
#: Sections that are printed with `-o wide` only.
_WIDE: Final = frozenset({"quotaByQueue"})


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """The arguments of the command."""

    a: str
    b: str
    clusters: tuple[Path | None, Path | None]
    loads: Sequence[str]
    #: The factor on the arrival rate of a trace's pods; None: not given.
    factor: Fraction | None
    settings: ComparisonSettings
    form: Output
    html: Path | None


def run(request: CompareRequest) -> None:
    """Run the comparison; ends the command with 1 on failure."""
    names = _names(request)
    pair = _pair(request, names)
    print_warnings(pair.warnings)
    try:
        found = compare_configurations(names, pair, request.settings, watched)
    except EndlessInstant as endless:
        output.fail(f"batchyard: {endless}")
    output.write(shown(found, request.form))
    if request.html is not None:
        write_report(request.html, page(found), "--html")
    for line in _comparison_remarks(found):
        output.report_line(line)


def shown(found: ConfigurationComparison, form: Output) -> str:
    """Format the comparison."""
    if form is Output.JSON:
        return render_json(document_of(found))
    if form is Output.YAML:
        return render_yaml(document_of(found))
    parts = [f"{found.headline}\n"]
    for section in found.sections:
        if section.name == "overall":
            parts.append(format_table(_overall(found.names, section)))
        elif form is Output.WIDE or section.name not in _WIDE:
            parts.append(f"# {section.title}\n{format_table(_table(section))}")
    for title, changes in (("wait less", found.changes.better), ("wait longer", found.changes.worse)):
        if changes:
            beyond = f", of {len(changes)}" if len(changes) > SHOWN else ""
            parts.append(
                f"# Workloads that would {title} with {found.names[1]}{beyond}\n{_changes(found, changes[:SHOWN])}"
            )
    if found.repeats:
        parts.append(f"# over {found.settings.seeds} seeds\n{_repeats(found)}")
    return "\n".join(parts)


def _names(request: CompareRequest) -> tuple[str, str]:
    """The display names: the stems of the paths, or the whole paths if the stems are equal."""
    a, b = Path(request.a).stem or request.a, Path(request.b).stem or request.b
    if a != b:
        return a, b
    return (request.a, request.b) if request.a != request.b else (f"{a} (first)", f"{a} (second)")


def _pair(request: CompareRequest, names: tuple[str, str]) -> VariantPair:
    sides = [
        Variant(name, [path, *([str(cluster)] if cluster else [])])
        for name, path, cluster in zip(names, (request.a, request.b), request.clusters, strict=True)
    ]
    try:
        return read_pair(sides[0], sides[1], _load(request, sides), request.settings.until)
    except InvalidScenario as invalid:
        faults = len(invalid.faults)
        output.fail(f"{invalid}\nbatchyard: {faults} fault{'s' * (faults > 1)}; nothing was run")


def _load(request: CompareRequest, sides: Sequence[Variant]) -> Sequence[Source]:
    """The load of both sides: manifests, and traces converted to Jobs."""
    loads: list[Source] = []
    traces = [path for path in request.loads if is_trace(Path(path))]
    if request.factor is not None and not traces:
        output.fail("batchyard: --load scales a trace: give its folder with --trace")
    for path in request.loads:
        loads += as_jobs(Path(path), request.factor or Fraction(1), sides) if path in traces else [path]
    return loads


def _overall(names: tuple[str, str], section: Section) -> Table:
    """The overall table: a row per metric that is not zero in both runs."""
    rows = [["", *(name.upper() for name in names), "CHANGE"]]
    (row,) = section.rows
    for figure in section.figures:
        both = row.figures[figure.name]
        if any(both):
            rows.append(
                [figure.title, *(format_figure(figure.unit, value) for value in both), format_change(figure, both)]
            )
    return rows


def _table(section: Section) -> Table:
    """A section as a table, with a change column after its first metric that has a better direction."""
    main = next((figure for figure in section.figures if figure.good and figure.unit is not Unit.COUNT), None)
    rows = [[section.about.upper()]]
    for figure in section.figures:
        rows[0] += [figure.title.upper(), *(["CHANGE"] if figure is main else [])]
    for row in section.rows:
        cells = [row.name]
        for figure in section.figures:
            both = row.figures.get(figure.name, (None, None))
            cells += [_cell(figure.unit, both), *([format_change(figure, both)] if figure is main else [])]
        rows.append(cells)
    return rows


def _cell(unit: Unit, both: Both) -> str:
    """Both values as `A -> B`, or one if they are equal."""
    a, b = format_figure(unit, both[0]), format_figure(unit, both[1])
    return a if a == b else f"{a} -> {b}"


def _changes(found: ConfigurationComparison, changes: Sequence[WaitChange]) -> str:
    header = ["WORKLOAD", "QUEUE", *(f"WAITS WITH {name.upper()}" for name in found.names), "CHANGE", "EFFECT"]
    rows = [
        [
            *(each.workload, each.queue),
            *(format_figure(Unit.SECONDS, wait) for wait in each.waits),
            f"{'+' if each.longer > 0 else '-'}{format_figure(Unit.SECONDS, abs(each.longer))}",
            each.effect,
        ]
        for each in changes
    ]
    return format_table([header, *rows])


def _repeats(found: ConfigurationComparison) -> str:
    header = ["MEANS", *(name.upper() for name in found.names), "CHANGE", "95% INTERVAL", ""]
    return format_table([header, *(_repeat(each) for each in found.repeats if any(each.means))])


def _repeat(each: RepeatedFigure) -> list[str]:
    unit, low, high = each.figure.unit, each.difference - each.margin, each.difference + each.margin
    ends = [f"{'-' if end < 0 else ''}{format_figure(unit, abs(end))}" for end in (low, high)]
    change = format_change(each.figure, each.means) or "none"
    return [
        *(each.figure.title, format_figure(unit, each.means[0]), format_figure(unit, each.means[1]), change),
        *(f"{ends[0]} to {ends[1]}", "" if each.is_certain or not each.margin else "may be chance"),
    ]


def _comparison_remarks(found: ConfigurationComparison) -> list[str]:
    """Further lines: rejected writes, loops, and remarks on the figures."""
    lines = []
    for name, side in zip(found.names, (found.runs.a, found.runs.b), strict=True):
        refused = side.result.refused
        lines += [f"{name}: rejected: {refusal}" for refusal in refused[:LINES_MAX]]
        if len(refused) > LINES_MAX:
            lines.append(f"{name}: rejected: and {len(refused) - LINES_MAX} more")
        loops = dict.fromkeys(loop.message for loop in side.result.loops)
        lines += [f"{name}: loop: {message}" for message in loops]
    never = next(section for section in found.sections if section.name == "overall").rows[0].figures["neverAdmitted"]
    if any(never):
        until = format_figure(Unit.SECONDS, found.lasts)
        lines.append(
            f"batchyard: Workloads that were never admitted count as waiting until the later end, after {until}"
        )
    if found.settings.seeds > 1 and not any(each.margin for each in found.repeats):
        lines.append("batchyard: all seeds gave the same result: this load has no random values")
    return lines


# --- compare ---
#
# The options of `batchyard compare`.


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A configuration: a file of manifests, or a folder.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The configuration to compare it with.")],
    trace: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="The load of both: manifests, or a folder of a trace (CSV); repeatable."),
    ] = None,
    cluster_a: Annotated[Path | None, typer.Option(metavar="FILE", help="The nodes of A.")] = None,
    cluster_b: Annotated[Path | None, typer.Option(metavar="FILE", help="The nodes of B.")] = None,
    load: Annotated[
        Fraction | None,
        typer.Option(parser=load_factor, metavar="FACTOR", help="Multiply the arrival rate of the trace's pods."),
    ] = None,
    until: Annotated[
        Duration | None,
        typer.Option(parser=duration, metavar="DURATION", help="Stop both after this virtual time, such as 2h."),
    ] = None,
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds to run both with, from --seed on.")] = 1,
    output: OutputOption = Output.TABLE,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML report.")] = None,
) -> None:
    """Compare two configurations on the same load: waits, utilisation, fairness, preemptions, costs."""
    settings = ComparisonSettings(until, seed, seeds)
    run(CompareRequest(a, b, (cluster_a, cluster_b), trace or [], load, settings, output, html))
