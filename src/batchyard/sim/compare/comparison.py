"""Comparison of two configurations under one load: simulates both, and shows how waits and other figures differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Final

from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import Duration, duration_seconds
from batchyard.sim.compare.inputs import ConfigurationPair
from batchyard.sim.compare.runs import ComparedRun, ComparedRuns, run_both
from batchyard.sim.compare.sections import Section, ValuePair, difference, pair_tables
from batchyard.sim.simulate import Simulation
from batchyard.sim.summary import run_tables
from batchyard.sim.summary.figure import Figure, FigureTable, Unit, format_figure
from batchyard.sim.summary.run_tables import OVERALL_FIGURES, sum_curves, to_display_units
from batchyard.sim.time_series import Curve
from batchyard.sim.whatif import API_VERSION, difference_of, run_to_end

# The Workloads whose waits differ under the second configuration, and a summary in one or two sentences.


#: The number of Workloads shown with shorter waits, and with longer waits.
CHANGES_SHOWN_MAX: Final = 10
#: The number of jobs shown that were preempted in part.
SHRINKINGS_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class WaitChange:
    """A Workload whose time without quota differs between two configurations, with both waits in seconds."""

    workload: str
    queue: str
    #: The effect of the second configuration on the Workload, as named by `batchyard whatif`.
    effect: str
    wait_pair: tuple[float, float]
    preemption_counts: tuple[int, int]

    @property
    def longer_by(self) -> float:
        """Return how many seconds longer the Workload waits under the second configuration."""
        return self.wait_pair[1] - self.wait_pair[0]


@dataclass(frozen=True, slots=True)
class WaitChanges:
    """The Workloads whose waits are shorter or longer under the second configuration, the largest change first."""

    shorter: Sequence[WaitChange]
    longer: Sequence[WaitChange]
    #: The number of Workloads with equal waits.
    equal_count: int
    #: The number of Workloads that exist in one run only.
    unmatched_count: int


def wait_changes_of(runs: ComparedRuns) -> WaitChanges:
    """Return the Workloads whose waits differ between the runs of both configurations."""
    effect_by_workload = {row.name: row.effect for row in difference_of(runs.comparison, runs.a.start_time).workloads}
    a, b = [{record.view.key: (run, record) for record in run.workload_records} for run in (runs.a, runs.b)]
    changes = []
    for name in sorted(a):
        if name in b:
            run_records = a[name], b[name]
            waits = [run.waited_seconds(record) for run, record in run_records]
            counts = [run.result.waits.preemption_count(record.obj) for run, record in run_records]
            view = run_records[0][1].view
            changes.append(
                WaitChange(
                    name, view.queue, effect_by_workload.get(name, ""), (waits[0], waits[1]), (counts[0], counts[1])
                )
            )
    shorter = sorted((each for each in changes if each.longer_by < 0), key=lambda each: (each.longer_by, each.workload))
    longer = sorted((each for each in changes if each.longer_by > 0), key=lambda each: (-each.longer_by, each.workload))
    return WaitChanges(shorter, longer, len(changes) - len(shorter) - len(longer), len({**a, **b}) - len(changes))


def headline(names: tuple[str, str], sections: Sequence[Section], changes: WaitChanges) -> str:
    """Return, in one or two sentences, how the second configuration differs from the first."""
    figures = next(section for section in sections if section.name == "overall").rows[0].figures
    if not changes.shorter and not changes.longer and all(first == second for first, second in figures.values()):
        return f"{names[0]} and {names[1]} make no difference to this load."
    difference_texts = [
        *_wait_sentence(figures["meanWait"]),
        *_count_text(figures["neverAdmitted"], "never admitted"),
        *_makespan_text(figures["makespan"]),
        *_count_text(figures["preemptions"], "preemptions"),
        *_count_text(figures.get("partialPreemptions", (None, None)), "partial preemptions"),
        *_fairness_text(figures["fairness"]),
        *_cost_text(figures.get("cost", (None, None))),
    ]
    difference_text = "; ".join(difference_texts) or "the totals are equal"
    shorter_count = len(changes.shorter)
    shorter_text = f"{count_with_noun(shorter_count, 'Workload')} {select_verb(shorter_count, 'waits', 'wait')} less"
    waits_text = f"{shorter_text}, {len(changes.longer)} longer, {changes.equal_count} as long."
    return f"{names[1]} against {names[0]}: {difference_text}. {waits_text}"


def _wait_sentence(value_pair: ValuePair) -> list[str]:
    wait_difference = difference(value_pair)
    if not wait_difference or value_pair[0] is None or value_pair[1] is None:
        return []
    percentage_text = f" ({abs(wait_difference) / value_pair[0]:.0%})" if value_pair[0] else ""
    old_wait, new_wait = _duration_text(value_pair[0]), _duration_text(value_pair[1])
    return [f"the mean wait goes from {old_wait} to {new_wait}, {_more_or_less(wait_difference)}{percentage_text}"]


def _more_or_less(change: float) -> str:
    return f"{_duration_text(abs(change))} {'longer' if change > 0 else 'less'}"


def _count_text(value_pair: ValuePair, title: str) -> list[str]:
    change = difference(value_pair)
    return [f"{title}: {abs(change):.0f} {'more' if change > 0 else 'fewer'}"] if change else []


def _makespan_text(value_pair: ValuePair) -> list[str]:
    change = difference(value_pair)
    return [f"the last ends {_duration_text(abs(change))} {'later' if change > 0 else 'sooner'}"] if change else []


def _fairness_text(value_pair: ValuePair) -> list[str]:
    change = difference(value_pair)
    if not change or round(abs(change), 2) == 0:
        return []
    return [f"shares are {'fairer' if change > 0 else 'less fair'} ({value_pair[0]:.2f} to {value_pair[1]:.2f})"]


def _cost_text(value_pair: ValuePair) -> list[str]:
    change = difference(value_pair)
    return [f"it costs ${abs(change):,.2f} {'more' if change > 0 else 'less'}"] if change else []


def _duration_text(seconds: float) -> str:
    return format_figure(Unit.SECONDS, seconds)


# Figures of comparisons with several seeds: means, and the 95 % confidence interval of the difference.
#
# Both configurations run with the same seeds, so the differences are paired. The interval uses Student's t.


#: The 97.5 % quantiles of Student's t by degrees of freedom, from 1 on; the normal distribution's beyond.
_T_QUANTILES: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL_QUANTILE: Final = 1.960


@dataclass(frozen=True, slots=True)
class RepeatedFigure:
    """The means of a compared figure over several random seeds, with their difference and its confidence interval."""

    figure: Figure
    means: tuple[float, float]
    #: The mean of the differences, and half the width of their confidence interval.
    difference: float
    margin: float
    seed_count: int

    @property
    def is_certain(self) -> bool:
        """Whether the confidence interval of the difference excludes zero."""
        return abs(self.difference) > self.margin


def average_over_seeds(figure: Figure, values: Sequence[ValuePair]) -> RepeatedFigure | None:
    """Return a figure's means and mean difference over all seeds, from its values in both runs for each seed.

    Return None if there are fewer than two seeds, or if a value is unknown.
    """
    value_pairs = [(a, b) for a, b in values if a is not None and b is not None]
    if len(value_pairs) < len(values) or len(value_pairs) < 2:
        return None
    seed_count = len(value_pairs)
    differences = [b - a for a, b in value_pairs]
    mean_difference = sum(differences) / seed_count
    deviation = sqrt(sum((change - mean_difference) ** 2 for change in differences) / (seed_count - 1))
    t_quantile = _T_QUANTILES[seed_count - 2] if seed_count - 2 < len(_T_QUANTILES) else _NORMAL_QUANTILE
    means = sum(a for a, _ in value_pairs) / seed_count, sum(b for _, b in value_pairs) / seed_count
    return RepeatedFigure(figure, means, mean_difference, t_quantile * deviation / sqrt(seed_count), seed_count)


#: The number of intervals in a line over time.
INTERVAL_COUNT: Final = 120
#: Decimal places of figures in a document.
_DECIMAL_PLACES: Final = 9


@dataclass(frozen=True, slots=True)
class ComparisonLine:
    """A number over time in both runs (a line of the chart): its means over equal intervals of the longer run."""

    name: str
    a: Sequence[float]
    b: Sequence[float]


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """The simulated time and the random seeds of a comparison."""

    until: Duration | None = None
    #: The first seed, and the number of consecutive seeds.
    seed: int = 0
    seeds: int = 1


@dataclass(frozen=True)
class ConfigurationComparison:
    """The results of two configurations under one load; with several seeds, tables and lines show the first seed."""

    names: tuple[str, str]
    runs: ComparedRuns
    settings: ComparisonSettings
    sections: Sequence[Section]
    changes: WaitChanges
    lines: Sequence[ComparisonLine]
    #: The figures over all seeds; empty with a single seed.
    repeats: Sequence[RepeatedFigure]
    warnings: Sequence[str]

    @property
    def headline(self) -> str:
        """Return the summary of the comparison in one or two sentences."""
        return headline(self.names, self.sections, self.changes)

    @property
    def run_seconds(self) -> float:
        """Return the duration of the longer run in seconds."""
        return duration_seconds(self.runs.end - self.runs.a.start_time)


def compare_configurations(
    names: tuple[str, str],
    pair: ConfigurationPair,
    settings: ComparisonSettings = ComparisonSettings(),
    finish: Callable[[Simulation], None] = run_to_end,
) -> ConfigurationComparison:
    """Simulate both configurations once per seed, and compare the runs; `finish` runs a simulation to its end."""
    runs = run_both(pair, settings.until, settings.seed, finish)
    sections = sections_of(runs)
    further_seeds = range(settings.seed + 1, settings.seed + settings.seeds)
    overall_by_seed = [
        _overall_figures(sections),
        *(_overall_figures(sections_of(run_both(pair, settings.until, seed, finish))) for seed in further_seeds),
    ]
    repeated_figures = [
        average_over_seeds(figure, [overall.get(figure.name, (None, None)) for overall in overall_by_seed])
        for figure in OVERALL_FIGURES
    ]
    known_repeats = [each for each in repeated_figures if each is not None]
    return ConfigurationComparison(
        names,
        runs,
        settings,
        sections,
        wait_changes_of(runs),
        _make_comparison_lines(runs),
        known_repeats,
        pair.warnings,
    )


def document_of(comparison: ConfigurationComparison) -> dict[str, Any]:
    """Return the comparison as a JSON document.

    At most ten Workloads with shorter waits are listed, and ten with longer waits.
    """
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "ConfigurationComparison",
        "names": {"a": comparison.names[0], "b": comparison.names[1]},
        "seed": comparison.settings.seed,
        "seeds": comparison.settings.seeds,
        "seconds": {"a": _run_seconds(comparison.runs.a), "b": _run_seconds(comparison.runs.b)},
        "headline": comparison.headline,
        "figures": {section.name: _section_document(section) for section in comparison.sections},
        "changes": {
            "better": [_change_document(each) for each in comparison.changes.shorter[:CHANGES_SHOWN_MAX]],
            "worse": [_change_document(each) for each in comparison.changes.longer[:CHANGES_SHOWN_MAX]],
            "counts": _change_counts(comparison.changes),
        },
        "refused": {side: list(map(str, run.result.refused)) for side, run in _runs_by_side(comparison.runs)},
        "loops": {side: [loop.message for loop in run.result.loops] for side, run in _runs_by_side(comparison.runs)},
    }
    if comparison.repeats:
        document["repeats"] = [_repeat_document(each) for each in comparison.repeats]
    return document


def _runs_by_side(runs: ComparedRuns) -> tuple[tuple[str, ComparedRun], ...]:
    return ("a", runs.a), ("b", runs.b)


def _overall_figures(sections: Sequence[Section]) -> dict[str, ValuePair]:
    return dict(next(section for section in sections if section.name == "overall").rows[0].figures)


def _run_seconds(run: ComparedRun) -> float:
    return duration_seconds(run.result.now - run.start_time)


def _make_comparison_lines(runs: ComparedRuns) -> list[ComparisonLine]:
    a, b = runs.a, runs.b
    lines = [
        _make_comparison_line(
            "Workloads waiting", runs, a.watch.workload_records.waiting_curve, b.watch.workload_records.waiting_curve
        ),
        _make_comparison_line(
            "Workloads with quota",
            runs,
            a.watch.workload_records.quota_holder_curve,
            b.watch.workload_records.quota_holder_curve,
        ),
    ]
    used_by_run = [
        sum_curves(run, run.watch.workload_records.usage_curves, lambda quota_key: quota_key[2]) for run in (a, b)
    ]
    empty_curve = Curve(a.start_time)
    for name in sorted({**used_by_run[0], **used_by_run[1]}):
        line = _make_comparison_line(f"{name} in use", runs, *(curves.get(name, empty_curve) for curves in used_by_run))
        lines.append(
            ComparisonLine(
                line.name,
                *([to_display_units(name, value) for value in interval_means] for interval_means in (line.a, line.b)),
            )
        )
    return lines


def _make_comparison_line(name: str, runs: ComparedRuns, first_curve: Curve, second_curve: Curve) -> ComparisonLine:
    return ComparisonLine(
        name, first_curve.means(runs.end, INTERVAL_COUNT), second_curve.means(runs.end, INTERVAL_COUNT)
    )


def _section_document(section: Section) -> list[dict[str, Any]]:
    row_documents = []
    for row in section.rows:
        first_values = {name: value_pair[0] for name, value_pair in row.figures.items()}
        second_values = {name: value_pair[1] for name, value_pair in row.figures.items()}
        differences = {name: difference(value_pair) for name, value_pair in row.figures.items()}
        row_documents.append(
            {
                "name": row.name,
                "a": _known_values(first_values),
                "b": _known_values(second_values),
                "difference": _known_values(differences),
            }
        )
    return row_documents


def _known_values(figures: dict[str, float | None]) -> dict[str, float]:
    return {name: _round_value(figure) for name, figure in figures.items() if figure is not None}


def _round_value(figure: float) -> float:
    return int(figure) if figure == int(figure) else round(figure, _DECIMAL_PLACES)


def _change_document(wait_change: WaitChange) -> dict[str, Any]:
    return {
        "workload": wait_change.workload,
        "queue": wait_change.queue,
        "effect": wait_change.effect,
        "a": {"waitSeconds": _round_value(wait_change.wait_pair[0]), "preemptions": wait_change.preemption_counts[0]},
        "b": {"waitSeconds": _round_value(wait_change.wait_pair[1]), "preemptions": wait_change.preemption_counts[1]},
        "longerBySeconds": _round_value(wait_change.longer_by),
    }


def _change_counts(changes: WaitChanges) -> dict[str, int]:
    counts = {"better": len(changes.shorter), "worse": len(changes.longer)}
    return {**counts, "same": changes.equal_count, "inOneAlone": changes.unmatched_count}


def _repeat_document(repeated: RepeatedFigure) -> dict[str, Any]:
    return {
        "figure": repeated.figure.name,
        "a": _round_value(repeated.means[0]),
        "b": _round_value(repeated.means[1]),
        "difference": _round_value(repeated.difference),
        "interval95": [
            _round_value(repeated.difference - repeated.margin),
            _round_value(repeated.difference + repeated.margin),
        ],
    }


# The tables of a comparison: the tables of both runs side by side, and waits by the size of Workloads.
#
# The size of a Workload is its request relative to the largest request of the load, in the resource with the largest
# ratio. A ratio up to a tenth is small, and up to a half is medium.


SMALL, MEDIUM, LARGE = "small", "medium", "large"
_SIZES: Final = (SMALL, MEDIUM, LARGE)
_SMALL_FRACTION_MAX: Final = 0.1
_MEDIUM_FRACTION_MAX: Final = 0.5
#: The tables that need one run each, in display order after those of waits.
_TABLES: Final[tuple[Callable[[ComparedRun], FigureTable], ...]] = (
    run_tables.fairness_table,
    run_tables.flavor_quota_table,
    run_tables.queue_quota_table,
    run_tables.machines_table,
    run_tables.pools_table,
    run_tables.teams_table,
    run_tables.topology_table,
    run_tables.shrinking_table,
)


def sections_of(runs: ComparedRuns) -> list[Section]:
    """Return all nonempty tables of a comparison."""
    size = _size_by_workload(runs)
    groupings = (
        ("team", "team", run_tables.team_of),
        ("clusterQueue", "ClusterQueue", run_tables.queue_of),
        ("priorityClass", "priority class", run_tables.priority_of),
        ("size", "size", lambda workload_record: size.get(workload_record.view.key, SMALL)),
    )
    with_shrinkings = any(run.result.shrinkings is not None for run in (runs.a, runs.b))
    totals = [run_tables.overall_table(run, with_shrinkings=with_shrinkings) for run in (runs.a, runs.b)]
    tables: list[tuple[FigureTable, FigureTable]] = [(totals[0], totals[1])]
    tables += [
        (run_tables.waits_table(runs.a, *grouping), run_tables.waits_table(runs.b, *grouping)) for grouping in groupings
    ]
    tables += [(table_of(runs.a), table_of(runs.b)) for table_of in _TABLES]
    sections = [_sort_rows(pair_tables(*pair), *pair) for pair in tables]
    return [section for section in sections if section.rows]


def _sort_rows(section: Section, a: FigureTable, b: FigureTable) -> Section:
    """Return a section with its rows by size, or for topologies, by level; other sections are sorted by name.

    Of the jobs that were preempted in part, those with the largest change of lost pod time are kept.
    """
    if section.name == run_tables.SHRINKING_TABLE:
        return _largest_shrinkings(section)
    if section.name == run_tables.TOPOLOGY_TABLE:
        names = list({**a.rows, **b.rows})
        return replace(section, rows=sorted(section.rows, key=lambda row: names.index(row.name)))
    if section.name == "size":
        return replace(section, rows=sorted(section.rows, key=lambda row: _SIZES.index(row.name)))
    return section


def _largest_shrinkings(section: Section) -> Section:
    rows = []
    for row in section.rows:  # a job without partial preemptions in one run has no row there
        pairs = {name: (a or 0, b or 0) for name, (a, b) in row.figures.items()}
        rows.append(replace(row, figures=pairs))
    rows.sort(key=lambda row: -abs(difference(row.figures["lostPodTime"]) or 0))
    title = section.title
    if len(rows) > SHRINKINGS_SHOWN_MAX:
        title += f" ({SHRINKINGS_SHOWN_MAX} of {len(rows)}: the largest changes of lost pod time)"
    return replace(section, rows=rows[:SHRINKINGS_SHOWN_MAX], title=title)


def _size_by_workload(runs: ComparedRuns) -> dict[str, str]:
    requests_by_workload: dict[str, dict[str, int]] = {}
    largest_requests: dict[str, int] = {}
    for workload_record in (*runs.a.workload_records, *runs.b.workload_records):
        requests = requests_by_workload.setdefault(workload_record.view.key, {})
        for resource, amount in workload_record.requests.items():
            requests[resource] = max(requests.get(resource, 0), amount)
            largest_requests[resource] = max(largest_requests.get(resource, 0), amount)
    return {name: _size_class(requests, largest_requests) for name, requests in requests_by_workload.items()}


def _size_class(requests: Mapping[str, int], largest_requests: Mapping[str, int]) -> str:
    largest_ratio = max(
        (amount / largest_requests[resource] for resource, amount in requests.items() if largest_requests[resource]),
        default=0.0,
    )
    return SMALL if largest_ratio <= _SMALL_FRACTION_MAX else MEDIUM if largest_ratio <= _MEDIUM_FRACTION_MAX else LARGE
