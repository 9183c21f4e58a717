"""The output of `batchyard simulate`: the summary of the run, final objects, and remarks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from batchyard.api import scheme
from batchyard.api.printing import format_table, table
from batchyard.api.scheme import kind_info
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND
from batchyard.cli.accounting_tables import accounting_document, costs_tables, losses_table, unschedulable_pods_table
from batchyard.cli.figure_tables import figure_table_text, format_bounded_table, two_run_totals
from batchyard.cli.options import Output
from batchyard.cli.output import NOTHING_FOUND, render
from batchyard.dashboard.models.reasons import shorten_reason
from batchyard.lint.findings import UNKNOWN_NAMESPACE, LintFinding, Severity
from batchyard.lint.registry import LintReport
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.sim.compare.sections import Section
from batchyard.sim.result import Result, RunEnding, WorkloadResult
from batchyard.sim.run_time_rules import UnknownRunTimes
from batchyard.sim.scenario import VIRTUAL_TIME_MAX
from batchyard.sim.summary.figure import FigureTable, Unit, format_figure
from batchyard.sim.summary.run_summary import RunSummary, conclusion_of, summary_document

#: The maximum number of remarks of one kind that are printed; further remarks are counted.
REMARKS_SHOWN_MAX: Final = 20
#: The maximum number of lint findings that are printed before a run.
_FINDINGS_SHOWN_MAX: Final = 3
_YEAR: Final = 365 * 24 * HOUR
#: The kinds of objects that users look for first.
_JOB_KINDS: Final = (scheme.JOB, scheme.JOB_SET)
#: Tables of the summary that are printed with `-o wide` only.
_WIDE_ONLY_TABLES: Final = frozenset({"quotaByQueue"})


def format_result(
    result: Result, output_format: Output, summary: RunSummary | None = None, comparison: Section | None = None
) -> str:
    """Format a run: its summary, pending Workloads, jobs, usage of quota and nodes, losses, costs, and other objects.

    `comparison` holds the totals of an earlier run beside those of this run; only the table formats print it.
    """
    if output_format in (Output.JSON, Output.YAML):
        extra_fields = accounting_document(result)
        if summary is not None:
            extra_fields["summary"] = summary_document(summary)
        return render(result.objects, output_format, now=result.now, extra_fields=extra_fields)
    is_wide = output_format is Output.WIDE
    has_rejections = result.jobs_without_class or result.rejected_pods
    if summary is not None and not summary.figures["workloads"] and not has_rejections:
        summary = None
    texts = [] if summary is None else _conclusion_texts(summary, comparison, wide=is_wide)
    texts += _object_tables(result, _JOB_KINDS, wide=is_wide)
    texts += [] if summary is None else _usage_texts(summary, wide=is_wide)
    texts.append(unschedulable_pods_table(result.objects[scheme.POD], wide=is_wide))
    if result.losses:
        texts.append(losses_table(result.losses, result.now, wide=is_wide))
    if result.costs is not None:
        texts.append(costs_tables(result.costs))
    other_kinds = dict.fromkeys([scheme.CLUSTER_QUEUE, *(kind for kind in result.objects if kind not in _JOB_KINDS)])
    texts += _object_tables(result, other_kinds, wide=is_wide)
    return "\n".join(text for text in texts if text) or NOTHING_FOUND


def _object_tables(result: Result, kinds: Iterable[str], *, wide: bool) -> list[str]:
    return [_objects_table(result, kind, wide=wide) for kind in kinds if result.objects.get(kind)]


def _objects_table(result: Result, kind: str, *, wide: bool) -> str:
    has_all_columns = wide or kind == scheme.CLUSTER_QUEUE
    info = kind_info(kind)
    rows = table(kind, result.objects[kind], now=result.now, wide=has_all_columns, namespaces=info.namespaced)
    return format_bounded_table(rows, wide=wide, noun=info.kind)


def _conclusion_texts(summary: RunSummary, comparison: Section | None, *, wide: bool) -> list[str]:
    texts = ["\n".join(("# summary", *conclusion_of(summary), ""))]
    if comparison is not None:
        totals = format_table(two_run_totals(("before", "now"), comparison))
        texts.append(f"# compared with {comparison.note}\n{totals}")
    return [*texts, _pending_text(summary.pending, wide=wide)] if summary.pending else texts


def _usage_texts(summary: RunSummary, *, wide: bool) -> list[str]:
    texts = [figure_table_text(summary.groups, wide=wide)] if summary.groups.rows else []
    for figure_table in summary.tables:
        has_one_row = figure_table.name == "fairness" and len(figure_table.rows) < 2
        if wide or not (figure_table.name in _WIDE_ONLY_TABLES or has_one_row):
            shown_table = figure_table if wide else _without_unused_machines(figure_table)
            if wide or shown_table.rows:
                texts.append(figure_table_text(shown_table, wide=wide))
    return texts


def _without_unused_machines(figure_table: FigureTable) -> FigureTable:
    if figure_table.name != "machines":
        return figure_table
    return replace(figure_table, rows={name: row for name, row in figure_table.rows.items() if row["meanUse"]})


def _pending_text(pending: Sequence[WorkloadResult], *, wide: bool) -> str:
    rows = [["NAMESPACE", "PENDING", "QUEUE", "WAITED", "WHY"]]
    for row in pending:
        reason = row.why if wide else str(shorten_reason(row.why))
        cells = [row.namespace, row.owner, row.cluster_queue or row.queue, format_figure(Unit.SECONDS, row.waited)]
        rows.append([*cells, reason or "waits for its turn in its queue"])
    return f"# pending Workloads\n{format_bounded_table(rows, wide=wide, noun='pending Workload')}"


def lint_remarks(report: LintReport, paths: Sequence[str]) -> Iterator[str]:
    """Yield remarks on a lint report: one with the numbers of findings, then at most three errors and warnings.

    The most severe findings come first. Without findings, yield nothing.
    """
    counts = [(report.count(severity), severity.value) for severity in Severity]
    counts_text = ", ".join(count_with_noun(count, name) for count, name in counts if count)
    if not counts_text:
        return
    yield f"lint: {counts_text}; `batchyard lint {' '.join(paths)}` lists all, with fixes"
    severities = list(Severity)
    findings = [
        finding
        for finding in report.findings
        if finding.severity is not Severity.NOTE and finding.rule != UNKNOWN_NAMESPACE  # a remark of the run
    ]
    findings.sort(key=lambda finding: severities.index(finding.severity))
    yield from map(_finding_line, findings[:_FINDINGS_SHOWN_MAX])


def _finding_line(finding: LintFinding) -> str:
    location = f"{finding.source}:{finding.line}" if finding.line else finding.source
    subject = "/".join(part for part in (finding.kind, finding.namespace, finding.name) if part)
    return f"lint: {location}: {finding.severity.value}: {subject}: {finding.problem.partition('. ')[0]}"


def run_time_remarks(unknown: UnknownRunTimes) -> Iterator[str]:
    """Yield remarks on jobs without a run time, and on Workloads without one, which never finish."""
    if unknown.unknown_job_count:
        yield (
            f"batchyard: {unknown.unknown_job_count:,} of {count_with_noun(unknown.job_count, 'Job')} have no run time;"
            " 60s assumed: set --default-runtime, --runtimes or the annotation batchyard.dev/runtime"
        )
    if unknown.unknown_workload_count:
        yield (
            f"batchyard: {unknown.unknown_workload_count:,} of {count_with_noun(unknown.workload_count, 'Workload')} "
            "without a Job have no run time and hold quota until they are deleted: set --runtimes or the annotation "
            "batchyard.dev/runtime"
        )


def run_remarks(result: Result) -> Iterator[str]:
    """Yield remarks on a run: rejected writes, faults without effect, preemption loops, an early end, and counts."""
    yield from first_lines([str(refusal) for refusal in result.refused], "rejected")
    yield from first_lines(
        [f"{fault.path}: the fault matched no object at its time and had no effect" for fault in result.missed], "fault"
    )
    yield from first_lines(list(_loop_messages(result.loops)), "loop")
    if result.loops:
        is_stopped = result.ending is RunEnding.LOOP
        yield f"batchyard: {'the run stopped at the loop' if is_stopped else 'the run continued after the loops'}"
    if result.ending is RunEnding.BOUND:
        yield f"batchyard: the run was stopped at the maximum of {VIRTUAL_TIME_MAX // _YEAR} years of virtual time"
    if result.ending is RunEnding.INTERRUPTED:
        yield "batchyard: interrupted: the results are those up to the interrupt"
    counts = result.counts
    earlier_text = f"{counts.finished_before} finished before, " if counts.finished_before else ""
    waiting_text = f"{counts.awaiting_checks} waiting for admission checks, " if counts.awaiting_checks else ""
    duration = format_figure(Unit.SECONDS, result.duration)
    yield (
        f"batchyard: {duration} of virtual time; Workloads: "
        f"{counts.finished - counts.finished_before} finished, {earlier_text}{counts.admitted} admitted, "
        f"{waiting_text}{counts.pending} pending; "
        f"{count_with_noun(counts.preemptions, 'preemption')}"
    )


def format_go_duration(seconds: float) -> str:
    """Format a duration in seconds in Go's notation: 1h2m3.5s, 250ms."""
    microseconds = round(seconds * SECOND)
    for unit, name in ((MICROSECOND, "µs"), (MILLISECOND, "ms")):
        if 0 < microseconds < unit * 1000:
            return f"{microseconds / unit:g}{name}"
    hours, remainder = divmod(microseconds, HOUR)
    minutes, remainder = divmod(remainder, MINUTE)
    amount_by_text = {f"{hours}h": hours, f"{minutes}m": minutes, f"{remainder / SECOND:.9g}s": remainder}
    return "".join(text for text, amount in amount_by_text.items() if amount) or "0s"


def _loop_messages(loops: Sequence[PreemptionLoop]) -> Iterator[str]:
    detection_counts: dict[str, int] = {}
    for loop in loops:
        detection_counts[loop.message] = detection_counts.get(loop.message, 0) + 1
    for message, count in detection_counts.items():
        yield f"{message}{f' (found {count} times)' if count > 1 else ''}"


def first_lines(lines: Sequence[str], label: str) -> Iterator[str]:
    """Yield the first REMARKS_SHOWN_MAX lines, and the number of omitted lines, each prefixed with `label`."""
    yield from (f"{label}: {line}" for line in lines[:REMARKS_SHOWN_MAX])
    if len(lines) > REMARKS_SHOWN_MAX:
        yield f"{label}: and {len(lines) - REMARKS_SHOWN_MAX} more"
