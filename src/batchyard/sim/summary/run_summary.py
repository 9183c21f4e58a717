"""The summary of a run: a conclusion, its figures in total and by group, and why Workloads are pending."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from batchyard.api.meta import Key
from batchyard.api.scheme import JOB, kind_info
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import HOUR, SECOND, duration_seconds
from batchyard.scheduling.workload.lifecycle import Status
from batchyard.sim.result import Result, RunEnding, WorkloadResult
from batchyard.sim.summary import run_tables
from batchyard.sim.summary.figure import Figure, Figures, FigureTable, Unit, format_figure
from batchyard.sim.summary.run_watch import WatchedSimulation
from batchyard.sim.time_series import Curve

#: The number of intervals in a series over time.
INTERVAL_COUNT: Final = 120
#: Decimal places of figures in a document.
_DECIMAL_PLACES: Final = 9
#: How many causes of rejected pods, and how many of their names, a summary shows.
_CAUSES_SHOWN_MAX: Final = 5
_NAMES_SHOWN_MAX: Final = 3


class SummaryGrouping(StrEnum):
    """The property by which a summary groups Workloads."""

    QUEUE = "queue"
    TEAM = "team"
    PRIORITY = "priority"
    FLAVOR = "flavor"


_GROUPINGS: Final[Mapping[SummaryGrouping, run_tables.Grouping]] = {
    SummaryGrouping.QUEUE: run_tables.queue_of,
    SummaryGrouping.TEAM: run_tables.team_of,
    SummaryGrouping.PRIORITY: run_tables.priority_of,
    SummaryGrouping.FLAVOR: run_tables.flavors_text_of,
}


@dataclass(frozen=True)
class RunSummary:
    """The summary of a run: totals, its Workloads by group, the usage of quota and nodes, and pending Workloads."""

    run: WatchedSimulation
    grouping: SummaryGrouping
    overall: FigureTable
    groups: FigureTable
    #: Quota by flavor and by queue, nodes and fairness; without empty tables.
    tables: Sequence[FigureTable]
    #: The pending Workloads, the longest wait first.
    pending: Sequence[WorkloadResult]

    @property
    def figures(self) -> Figures:
        """Return the totals of the run by name."""
        return self.overall.rows["all"]

    @property
    def is_interrupted(self) -> bool:
        """Return whether the user interrupted the run."""
        return self.run.result.ending is RunEnding.INTERRUPTED


def summarize_run(run: WatchedSimulation, grouping: SummaryGrouping = SummaryGrouping.QUEUE) -> RunSummary:
    """Return the summary of a run, with its Workloads grouped by queue, team, priority class or flavor."""
    title = {SummaryGrouping.QUEUE: "ClusterQueue", SummaryGrouping.PRIORITY: "priority class"}.get(grouping, grouping)
    groups = run_tables.outcome_table(run, grouping, title, _GROUPINGS[grouping])
    tables = (
        run_tables.flavor_quota_table(run),
        run_tables.queue_quota_table(run),
        run_tables.machines_table(run),
        run_tables.fairness_table(run),
        run_tables.topology_table(run),
        run_tables.shrinking_table(run),
    )
    pending = [row for row in run.result.workloads if row.status == Status.PENDING]
    pending.sort(key=lambda row: -row.waited)
    overall = run_tables.overall_table(run)
    figures = [run_tables.EVICTED_WORK_FIGURE if each.name == "cutShort" else each for each in overall.figures]
    known_tables = [table for table in tables if table.rows]
    return RunSummary(run, grouping, replace(overall, figures=figures), groups, known_tables, pending)


def conclusion_of(summary: RunSummary) -> list[str]:
    """Return sentences about the outcome of a run, its waits, lost work, usage, rejections and cost."""
    figures = summary.figures
    if not figures["workloads"]:
        return ["The run had no Workloads.", *_rejection_sentences(summary.run.result)]
    sentences = [_outcome_sentence(summary), _wait_sentence(figures)]
    sentences += [*_loss_sentences(summary), *_shrinking_sentences(figures), *_usage_sentences(summary)]
    sentences += _rejection_sentences(summary.run.result)
    if figures.get("cost"):
        sentences.append(f"The machines cost {format_figure(Unit.DOLLARS, figures['cost'])}.")
    return sentences


def _rejection_sentences(result: Result) -> list[str]:
    sentences = [
        f"{_names_text(jobs, 'job')} {select_verb(len(jobs), 'has', 'have')} no Workload, because"
        f" {kind_info(key.kind).kind} {key.name} does not exist: add it to the files."
        for key, jobs in result.jobs_without_class.items()
    ]
    for cause, keys in result.rejected_pods.items():
        jobs, bare_pods = [each for each in keys if each.kind == JOB], [each for each in keys if each.kind != JOB]
        texts = [*([f"pods of {_names_text(jobs, 'Job')}"] if jobs else ())]
        texts += [_names_text(bare_pods, "pod")] if bare_pods else []
        sentences.append(f"The API server rejected {' and '.join(texts)}: {cause.rstrip('.')}.")
    omitted_count = len(sentences) - _CAUSES_SHOWN_MAX
    more = [f"Pods or Workloads are missing for {count_with_noun(omitted_count, 'more cause')}."]
    return [*sentences[:_CAUSES_SHOWN_MAX], *(more if omitted_count > 0 else ())]


def _names_text(keys: Sequence[Key], noun: str) -> str:
    names = [*map(str, keys[:_NAMES_SHOWN_MAX]), *(["..."] if len(keys) > _NAMES_SHOWN_MAX else [])]
    return f"{count_with_noun(len(keys), noun)} ({', '.join(names)})"


def _loss_sentences(summary: RunSummary) -> list[str]:
    figures = summary.figures
    has_machines = "lostHours" in figures
    lost_seconds = (figures["lostHours"] or 0) * HOUR / SECOND if has_machines else figures["evictedWork"]
    preemption_count = int(figures["preemptions"] or 0)
    cause_counts = {
        "preemption": preemption_count,
        "other eviction" if preemption_count else "eviction": int(figures["evictions"] or 0) - preemption_count,
        "machine loss": len(summary.run.result.losses),
    }
    causes = [count_with_noun(count, noun) for noun, count in cause_counts.items() if count]
    if not causes and not lost_seconds:
        return []
    # Without machines it is unknown how much of the interrupted work was saved.
    outcome = "machine time was lost" if has_machines else "work was interrupted"
    lost_text = f"{_seconds_text(lost_seconds)} of {outcome}"
    return [f"{', '.join(causes)}; {lost_text}." if causes else f"{lost_text} because pods failed or were deleted."]


def _shrinking_sentences(figures: Figures) -> list[str]:
    count = int(figures.get("partialPreemptions") or 0)
    pod_time = _seconds_text((figures.get("lostPodHours") or 0) * HOUR / SECOND)
    return [f"{count_with_noun(count, 'partial preemption')}; {pod_time} of pod time was lost."] if count else []


def _outcome_sentence(summary: RunSummary) -> str:
    figures = summary.figures
    names = ("workloads", "finished", "admitted", "awaitingChecks", "pending")
    total, finished, admitted, awaiting, pending = (int(figures[name] or 0) for name in names)
    length = _seconds_text(duration_seconds(summary.run.result.now - summary.run.start_time))
    prefix = f"Interrupted after {length}: " if summary.is_interrupted else ""
    if total == finished:
        subjects = {1: "the only Workload", 2: "both Workloads"}
        text = f"{subjects.get(total, f'all {total:,} Workloads')} finished"
        text += f", the last after {_seconds_text(figures['makespan'])}"
    else:
        text = f"{finished:,} of {count_with_noun(total, 'Workload')} finished within {length}"
        text += f", {admitted:,} still with quota" if admitted else ""
        text += f", {awaiting:,} waiting for admission checks" if awaiting else ""
        text += f", {pending:,} pending" if pending else ""
    return f"{prefix}{text}." if prefix else f"{text[:1].upper()}{text[1:]}."


def _wait_sentence(figures: Figures) -> str:
    if not figures["maxWait"]:
        return "No Workload waited for quota."
    waits = [_seconds_text(figures[name]) for name in ("meanWait", "p90Wait", "maxWait")]
    never_admitted_count = int(figures["neverAdmitted"] or 0)
    suffix = (
        f"; {count_with_noun(never_admitted_count, 'Workload')} {select_verb(never_admitted_count, 'was', 'were')}"
        " never admitted"
        if never_admitted_count
        else ""
    )
    return f"Waits for quota: mean {waits[0]}, p90 {waits[1]}, longest {waits[2]}{suffix}."


def _usage_sentences(summary: RunSummary) -> list[str]:
    sentences = []
    for name, noun in (("quotaByFlavor", "quota"), ("machines", "node capacity")):
        table = next((table for table in summary.tables if table.name == name), None)
        use_by_row = {row: figures["meanUse"] or 0 for row, figures in table.rows.items()} if table else {}
        if use_by_row:
            row = max(use_by_row, key=lambda row: use_by_row[row])
            sentences.append(f"The most used {noun} ({row}) was {use_by_row[row]:.0%} in use.")
    fairness = next((table for table in summary.tables if table.name == "fairness"), None)
    if fairness is not None and len(fairness.rows) > 1 and summary.figures["fairness"] is not None:
        sentences.append(f"Fairness among teams (Jain's index, at most 1): {summary.figures['fairness']:.2f}.")
    return sentences


def _seconds_text(seconds: float | None) -> str:
    return format_figure(Unit.SECONDS, seconds)


def summary_document(summary: RunSummary) -> dict[str, Any]:
    """Return a summary as a JSON document: its conclusion, its tables, and the pending Workloads."""
    result = summary.run.result
    return {
        "conclusion": " ".join(conclusion_of(summary)),
        "ending": result.ending.value,
        "durationSeconds": _rounded(result.duration),
        "by": summary.grouping.value,
        "overall": _row_document(summary.overall.figures, summary.figures),
        "groups": _table_document(summary.groups),
        **{table.name: _table_document(table) for table in summary.tables},
        "pending": [
            {
                "namespace": row.namespace,
                "name": row.name,
                "owner": row.owner,
                "queue": row.queue,
                "waitSeconds": _rounded(row.waited),
                "reason": row.why,
            }
            for row in summary.pending
        ],
    }


def _table_document(table: FigureTable) -> list[dict[str, Any]]:
    return [{"name": name, **_row_document(table.figures, row)} for name, row in table.rows.items()]


def _row_document(figures: Sequence[Figure], row: Figures) -> dict[str, float]:
    document = {}
    for figure in figures:
        value = row.get(figure.name)
        if value is not None:
            document[field_name(figure)] = _rounded(value)
    return document


def field_name(figure: Figure) -> str:
    """Return the name of a figure's field in the document of a summary; it ends in `Seconds` if that is the unit."""
    return f"{figure.name}Seconds" if figure.unit is Unit.SECONDS else figure.name


def _rounded(value: float) -> float:
    return int(value) if value == int(value) else round(value, _DECIMAL_PLACES)


def series_document(run: WatchedSimulation) -> list[dict[str, Any]]:
    """Return numbers over time as JSON documents, one for each series.

    The series are Workloads without and with quota, mean waits, and the usage of quota and nodes as shares of 1. Each
    series has the means over 120 equal intervals of the run.
    """
    records, end = run.watch.workload_records, run.result.now
    series = [_series("Workloads pending", "count", records.waiting_curve.means(end, INTERVAL_COUNT), "waiting")]
    series.append(
        _series("Workloads with quota", "count", records.quota_holder_curve.means(end, INTERVAL_COUNT), "running")
    )
    series.append(_series("mean wait of Workloads that start", "seconds", _waits_over_time(run), "waiting"))
    quota = run_tables.sum_curves(run, run.watch.nominal_quota, lambda quota_key: quota_key[2])
    used = run_tables.sum_curves(run, records.usage_curves, lambda quota_key: quota_key[2])
    series += _share_series("quota in use", quota, used, run)
    machines = run.watch.machines
    by_resource = [
        _sum_curves_by_resource(curves, run) for curves in (machines.allocatable_curves, machines.request_curves)
    ]
    return series + _share_series("of nodes requested", by_resource[0], by_resource[1], run)


def _waits_over_time(run: WatchedSimulation) -> list[float]:
    """Return, by interval, the mean wait in seconds of the Workloads that first got quota in that interval.

    An interval without such Workloads repeats the previous value.
    """
    length = max(1, run.result.now - run.start_time)
    waits: list[list[float]] = [[] for _ in range(INTERVAL_COUNT)]
    for record in run.workload_records:
        if record.first_start is not None:
            index = min(INTERVAL_COUNT - 1, (record.first_start - run.start_time) * INTERVAL_COUNT // length)
            waits[index].append(duration_seconds(record.first_start - record.created_at))
    means: list[float] = []
    for interval_waits in waits:
        last_mean = means[-1] if means else 0.0
        means.append(sum(interval_waits) / len(interval_waits) if interval_waits else last_mean)
    return means


def _sum_curves_by_resource(curves: Mapping[tuple[str, str], Curve], run: WatchedSimulation) -> dict[str, Curve]:
    groups: dict[str, list[Curve]] = {}
    for (_, resource), curve in curves.items():
        groups.setdefault(resource, []).append(curve)
    return {resource: Curve.sum_of(group, run.start_time) for resource, group in sorted(groups.items())}


def _share_series(
    title: str, totals: Mapping[str, Curve], used: Mapping[str, Curve], run: WatchedSimulation
) -> list[dict[str, Any]]:
    series = []
    for resource, total in totals.items():
        total_means = total.means(run.result.now, INTERVAL_COUNT)
        used_means = used.get(resource, Curve(run.start_time)).means(run.result.now, INTERVAL_COUNT)
        shares = [amount / whole if whole else 0.0 for amount, whole in zip(used_means, total_means, strict=True)]
        if any(total_means):
            series.append(_series(f"{resource} {title}", "share", shares, ""))
    return series


def _series(name: str, unit: str, values: Sequence[float], kind: str) -> dict[str, Any]:
    return {"name": name, "unit": unit, "kind": kind, "values": [round(value, 4) for value in values]}
