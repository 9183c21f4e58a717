"""The command `batchyard compare`: simulates two configurations under the same load and prints the differences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Final

import typer

from batchyard.api.printing import Table, format_table
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import Duration
from batchyard.cli import output
from batchyard.cli.commands.simulate import parse_load_factor
from batchyard.cli.figure_tables import two_run_totals
from batchyard.cli.kueue_configuration import select_version
from batchyard.cli.manifest_warnings import Verbose, print_warnings
from batchyard.cli.options import Output, OutputOption, RecordedVersionOption, Seed, to_duration
from batchyard.cli.output import render_document, run_with_progress, write_report
from batchyard.controller_runtime.kernel import EndlessInstant
from batchyard.scheduling.decisions import KueueVersion
from batchyard.sim.compare.comparison import (
    CHANGES_SHOWN_MAX,
    ComparisonSettings,
    ConfigurationComparison,
    RepeatedFigure,
    WaitChange,
    compare_configurations,
    document_of,
)
from batchyard.sim.compare.inputs import ComparedConfiguration, ConfigurationPair, read_pair
from batchyard.sim.compare.page import comparison_page
from batchyard.sim.compare.runs import is_trace, trace_as_jobs
from batchyard.sim.compare.sections import Section, ValuePair, format_change
from batchyard.sim.scenario import InvalidScenario, Source
from batchyard.sim.summary.figure import Unit, format_figure

#: The maximum number of rejected writes of a run that are printed.
REJECTIONS_SHOWN_MAX: Final = 10
#: Sections of the comparison that are printed with `-o wide` only.
_WIDE_ONLY_SECTIONS: Final = frozenset({"quotaByQueue"})


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """The arguments of `batchyard compare`."""

    #: The file or folder of each configuration.
    path_a: str
    path_b: str
    #: The Cluster files of both configurations.
    clusters: tuple[Path | None, Path | None]
    loads: Sequence[str]
    #: The factor on the arrival rate of a trace's pods; None if not set.
    load_factor: Fraction | None
    settings: ComparisonSettings
    output_format: Output
    html: Path | None
    #: The version of Kueue whose decision rules apply to both.
    kueue_version: KueueVersion | None = None


def run(request: CompareRequest) -> None:
    """Simulate both configurations and print the comparison; exit with 1 on failure."""
    names = _display_names(request)
    configurations = _read_variants(request, names)
    print_warnings(configurations.warnings)
    try:
        comparison = compare_configurations(names, configurations, request.settings, run_with_progress)
    except EndlessInstant as error:
        output.fail(f"batchyard: {error}")
    output.write(format_comparison(comparison, request.output_format))
    if request.html is not None:
        write_report(request.html, comparison_page(comparison), "--html")
    for line in _comparison_remarks(comparison):
        output.report_line(line)


def format_comparison(comparison: ConfigurationComparison, output_format: Output) -> str:
    """Format the comparison as tables, JSON or YAML."""
    if not output_format.is_table:
        return render_document(document_of(comparison), output_format)
    section_texts = [f"{comparison.headline}\n"]
    for section in comparison.sections:
        if section.name == "overall":
            section_texts.append(format_table(two_run_totals(comparison.names, section)))
        elif output_format is Output.WIDE or section.name not in _WIDE_ONLY_SECTIONS:
            section_texts.append(f"# {section.title}\n{format_table(_section_table(section))}")
    for title, changes in (("wait less", comparison.changes.shorter), ("wait longer", comparison.changes.longer)):
        if changes:
            total_note = f", of {len(changes)}" if len(changes) > CHANGES_SHOWN_MAX else ""
            section_texts.append(
                f"# Workloads that would {title} with"
                f" {comparison.names[1]}{total_note}\n{_wait_changes_table(comparison, changes[:CHANGES_SHOWN_MAX])}"
            )
    if comparison.repeats:
        section_texts.append(f"# over {comparison.settings.seeds} seeds\n{_repeats_table(comparison)}")
    return "\n".join(section_texts)


def _display_names(request: CompareRequest) -> tuple[str, str]:
    a, b = Path(request.path_a).stem or request.path_a, Path(request.path_b).stem or request.path_b
    if a != b:
        return a, b
    return (request.path_a, request.path_b) if request.path_a != request.path_b else (f"{a} (first)", f"{a} (second)")


def _read_variants(request: CompareRequest, names: tuple[str, str]) -> ConfigurationPair:
    variants = [
        ComparedConfiguration(name, [path, *([str(cluster)] if cluster else [])])
        for name, path, cluster in zip(names, (request.path_a, request.path_b), request.clusters, strict=True)
    ]
    try:
        pair = read_pair(variants[0], variants[1], _read_load_sources(request, variants), request.settings.until)
    except InvalidScenario as invalid:
        output.fail(f"{invalid}\nbatchyard: {count_with_noun(len(invalid.faults), 'fault')}; nothing was run")
    a, b = (replace(each, kueue=select_version(each.kueue, request.kueue_version)) for each in (pair.a, pair.b))
    return pair._replace(a=a, b=b)


def _read_load_sources(request: CompareRequest, variants: Sequence[ComparedConfiguration]) -> Sequence[Source]:
    sources: list[Source] = []
    trace_paths = [path for path in request.loads if is_trace(Path(path))]
    if request.load_factor is not None and not trace_paths:
        remedy = "set the folder of a trace with --trace, or remove --load"
        output.fail(f"batchyard: --load scales a trace, but no --trace is the folder of one: {remedy}")
    for path in request.loads:
        sources += (
            trace_as_jobs(Path(path), request.load_factor or Fraction(1), variants) if path in trace_paths else [path]
        )
    return sources


def _section_table(section: Section) -> Table:
    counting_units = (Unit.COUNT, Unit.AMOUNT)
    candidates = (figure for figure in section.figures if figure.better and figure.unit not in counting_units)
    main_figure = next(candidates, None)
    rows = [[section.row_subject.upper()]]
    for figure in section.figures:
        rows[0] += [figure.title.upper(), *(["CHANGE"] if figure is main_figure else [])]
    for row in section.rows:
        cells = [row.name]
        for figure in section.figures:
            value_pair = row.figures.get(figure.name, (None, None))
            cells.append(_format_values(figure.with_unit_of_row(row.name).unit, value_pair))
            if figure is main_figure:
                cells.append(format_change(figure.with_unit_of_row(row.name), value_pair))
        rows.append(cells)
    return rows


def _format_values(unit: Unit, value_pair: ValuePair) -> str:
    a, b = format_figure(unit, value_pair[0]), format_figure(unit, value_pair[1])
    return a if a == b else f"{a} -> {b}"


def _wait_changes_table(comparison: ConfigurationComparison, changes: Sequence[WaitChange]) -> str:
    header = ["WORKLOAD", "QUEUE", *(f"WAITS WITH {name.upper()}" for name in comparison.names), "CHANGE", "EFFECT"]
    rows = [
        [
            *(change.workload, change.queue),
            *(format_figure(Unit.SECONDS, wait) for wait in change.wait_pair),
            f"{'+' if change.longer_by > 0 else '-'}{format_figure(Unit.SECONDS, abs(change.longer_by))}",
            change.effect,
        ]
        for change in changes
    ]
    return format_table([header, *rows])


def _repeats_table(comparison: ConfigurationComparison) -> str:
    header = ["MEANS", *(name.upper() for name in comparison.names), "CHANGE", "95% INTERVAL", ""]
    return format_table([header, *(_repeat_row(figure) for figure in comparison.repeats if any(figure.means))])


def _repeat_row(comparison: RepeatedFigure) -> list[str]:
    unit, lower, upper = (
        comparison.figure.unit,
        comparison.difference - comparison.margin,
        comparison.difference + comparison.margin,
    )
    bounds = [f"{'-' if bound < 0 else ''}{format_figure(unit, abs(bound))}" for bound in (lower, upper)]
    change_text = format_change(comparison.figure, comparison.means) or "none"
    return [
        *(
            comparison.figure.title,
            format_figure(unit, comparison.means[0]),
            format_figure(unit, comparison.means[1]),
            change_text,
        ),
        *(f"{bounds[0]} to {bounds[1]}", "" if comparison.is_certain or not comparison.margin else "may be chance"),
    ]


def _comparison_remarks(comparison: ConfigurationComparison) -> list[str]:
    lines = []
    for name, side in zip(comparison.names, (comparison.runs.a, comparison.runs.b), strict=True):
        rejections = side.result.refused
        lines += [f"{name}: rejected: {refusal}" for refusal in rejections[:REJECTIONS_SHOWN_MAX]]
        if len(rejections) > REJECTIONS_SHOWN_MAX:
            lines.append(f"{name}: rejected: and {len(rejections) - REJECTIONS_SHOWN_MAX} more")
        loop_messages = dict.fromkeys(loop.message for loop in side.result.loops)
        lines += [f"{name}: loop: {message}" for message in loop_messages]
    overall_section = next(section for section in comparison.sections if section.name == "overall")
    never_admitted_figure = overall_section.rows[0].figures["neverAdmitted"]
    if any(never_admitted_figure):
        run_duration = format_figure(Unit.SECONDS, comparison.run_seconds)
        lines.append(f"batchyard: Workloads never admitted count as waiting until the later end, after {run_duration}")
    if comparison.settings.seeds > 1 and not any(repeat.margin for repeat in comparison.repeats):
        lines.append("batchyard: all seeds gave the same result: this load has no random values")
    return lines


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
        typer.Option(parser=parse_load_factor, metavar="FACTOR", help="Multiply the arrival rate of the trace's pods."),
    ] = None,
    until: Annotated[
        Duration | None,
        typer.Option(parser=to_duration, metavar="DURATION", help="Stop both after this virtual time, such as 2h."),
    ] = None,
    seed: Seed = 0,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Number of seeds for both, starting at --seed.")] = 1,
    output: OutputOption = Output.TABLE,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML report.")] = None,
    kueue_version: RecordedVersionOption = None,
    verbose: Verbose = False,  # noqa: ARG001 - its callback passes it to the warnings
) -> None:
    """Compare two configurations on the same load: waits, utilization, fairness, preemptions, costs."""
    settings = ComparisonSettings(until, seed, seeds)
    version = None if kueue_version is None else KueueVersion(kueue_version.value)
    run(CompareRequest(a, b, (cluster_a, cluster_b), trace or [], load, settings, output, html, version))
