"""Comparison of two configurations: runs both under one load, and summarizes the differences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final

from batchyard.base.instant import Duration, seconds
from batchyard.sim.compare.figures import OVERALL, in_units, sections_of, together
from batchyard.sim.compare.inputs import VariantPair
from batchyard.sim.compare.runs import ComparedRun, ComparedRuns, run_both
from batchyard.sim.compare.sections import (
    Both,
    Figure,
    Section,
    Unit,
    difference,
    format_figure,
)
from batchyard.sim.simulate import Simulation
from batchyard.sim.time_series import Curve
from batchyard.sim.whatif import API_VERSION, difference_of, run_to_end

# --- changes ---
#
# The Workloads with longer and shorter waits under the second configuration, and a summary in a sentence or two.


#: The number of Workloads named on either side.
SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class WaitChange:
    """A Workload with its waits under both configurations, in seconds."""

    workload: str
    queue: str
    #: The effect of the second configuration on it, in the words of `whatif`.
    effect: str
    waits: tuple[float, float]
    preemptions: tuple[int, int]

    @property
    def longer(self) -> float:
        """Return how much longer it waits under the second."""
        return self.waits[1] - self.waits[0]


@dataclass(frozen=True, slots=True)
class WaitChanges:
    """All Workloads whose wait changes, the largest changes first."""

    better: Sequence[WaitChange]
    worse: Sequence[WaitChange]
    #: The number of Workloads with equal waits.
    same: int
    #: The number of Workloads in one run only, because the other configuration rejected them.
    alone: int


def changes_of(runs: ComparedRuns) -> WaitChanges:
    """Compute the changes of waits between both runs."""
    effects = {row.name: row.effect for row in difference_of(runs.comparison, runs.a.begun).workloads}
    a, b = [{life.view.key: (run, life) for life in run.lives} for run in (runs.a, runs.b)]
    found = []
    for name in sorted(a):
        if name in b:
            sides = a[name], b[name]
            waits = runs.waited_seconds(*sides[0]), runs.waited_seconds(*sides[1])
            preempted = [run.result.waits.preempted(life.obj) for run, life in sides]
            view = sides[0][1].view
            found.append(WaitChange(name, view.queue, effects.get(name, ""), waits, (preempted[0], preempted[1])))
    better = sorted((each for each in found if each.longer < 0), key=lambda each: (each.longer, each.workload))
    worse = sorted((each for each in found if each.longer > 0), key=lambda each: (-each.longer, each.workload))
    return WaitChanges(better, worse, len(found) - len(better) - len(worse), len({**a, **b}) - len(found))


def headline(names: tuple[str, str], sections: Sequence[Section], changes: WaitChanges) -> str:
    """Return the difference from the first to the second in a sentence or two."""
    found = next(section for section in sections if section.name == "overall").rows[0].figures
    if not changes.better and not changes.worse and all(one == other for one, other in found.values()):
        return f"{names[0]} and {names[1]} make no difference to this load."
    parts = [
        *_of_wait(found["meanWait"]),
        *_of_count(found["neverAdmitted"], "never admitted"),
        *_of_makespan(found["makespan"]),
        *_of_count(found["preemptions"], "preemptions"),
        *_of_index(found["fairness"]),
        *_of_cost(found.get("cost", (None, None))),
    ]
    what = "; ".join(parts) or "the totals are equal"
    who = f"{len(changes.better)} Workloads wait less, {len(changes.worse)} longer, {changes.same} as long."
    return f"{names[1]} against {names[0]}: {what}. {who}"


def _of_wait(both: Both) -> list[str]:
    change = difference(both)
    if not change or both[0] is None or both[1] is None:
        return []
    part = f" ({abs(change) / both[0]:.0%})" if both[0] else ""
    return [f"the mean wait goes from {_age(both[0])} to {_age(both[1])}, {_more(change)}{part}"]


def _more(change: float) -> str:
    return f"{_age(abs(change))} {'longer' if change > 0 else 'less'}"


def _of_count(both: Both, what: str) -> list[str]:
    change = difference(both)
    return [f"{what}: {abs(change):.0f} {'more' if change > 0 else 'fewer'}"] if change else []


def _of_makespan(both: Both) -> list[str]:
    change = difference(both)
    return [f"the last ends {_age(abs(change))} {'later' if change > 0 else 'sooner'}"] if change else []


def _of_index(both: Both) -> list[str]:
    change = difference(both)
    if not change or round(abs(change), 2) == 0:
        return []
    return [f"shares are {'fairer' if change > 0 else 'less fair'} ({both[0]:.2f} to {both[1]:.2f})"]


def _of_cost(both: Both) -> list[str]:
    change = difference(both)
    return [f"it costs ${abs(change):,.2f} {'more' if change > 0 else 'less'}"] if change else []


def _age(amount: float) -> str:
    return format_figure(Unit.SECONDS, amount)


# --- repeats ---
#
# The same comparison with several seeds: means, and the 95 % confidence interval of the difference.
#
# Both configurations get the same seeds, so differences are taken per seed; the interval is that of Student's t.


#: The 97.5 % quantiles of Student's t by degrees of freedom, from 1 on; the normal distribution's beyond.
_T: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL: Final = 1.960


@dataclass(frozen=True, slots=True)
class RepeatedFigure:
    """A figure over several seeds."""

    figure: Figure
    means: tuple[float, float]
    #: The mean of the differences, and the half-width of their interval.
    difference: float
    margin: float
    seeds: int

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes zero."""
        return abs(self.difference) > self.margin


def repeat_figure(figure: Figure, values: Sequence[Both]) -> RepeatedFigure | None:
    """Return a figure over all seeds, at least two; None unless every seed has it."""
    known = [(a, b) for a, b in values if a is not None and b is not None]
    if len(known) < len(values) or len(known) < 2:
        return None
    count = len(known)
    changes = [b - a for a, b in known]
    mean = sum(changes) / count
    spread = sqrt(sum((change - mean) ** 2 for change in changes) / (count - 1))
    factor = _T[count - 2] if count - 2 < len(_T) else _NORMAL
    means = sum(a for a, _ in known) / count, sum(b for _, b in known) / count
    return RepeatedFigure(figure, means, mean, factor * spread / sqrt(count), count)


#: The number of intervals in lines.
PARTS: Final = 120
#: Decimal places of figures in a document.
_DIGITS: Final = 9


@dataclass(frozen=True, slots=True)
class ComparisonLine:
    """A number over time in both runs, from the start to the later end: its means over equal intervals."""

    name: str
    a: Sequence[float]
    b: Sequence[float]


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """The options of both runs."""

    until: Duration | None = None
    #: The first seed, and the number of consecutive seeds.
    seed: int = 0
    seeds: int = 1


@dataclass(frozen=True)
class ConfigurationComparison:
    """The results of two configurations under one load; tables and lines are those of the first seed."""

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
        """Return the summary in a sentence or two."""
        return headline(self.names, self.sections, self.changes)

    @property
    def lasts(self) -> float:
        """Return the time until the later end, in seconds."""
        return seconds(self.runs.end - self.runs.a.begun)


def compare_configurations(
    names: tuple[str, str],
    pair: VariantPair,
    settings: ComparisonSettings = ComparisonSettings(),
    finish: Callable[[Simulation], None] = run_to_end,
) -> ConfigurationComparison:
    """Run both with each seed, and summarize; `finish` runs each simulation to its end."""
    runs = run_both(pair, settings.until, settings.seed, finish)
    sections = sections_of(runs)
    more = range(settings.seed + 1, settings.seed + settings.seeds)
    seen = [
        _overall_section(sections),
        *(_overall_section(sections_of(run_both(pair, settings.until, at, finish))) for at in more),
    ]
    repeats = [repeat_figure(figure, [each.get(figure.name, (None, None)) for each in seen]) for figure in OVERALL]
    known_repeats = [each for each in repeats if each is not None]
    return ConfigurationComparison(
        names, runs, settings, sections, changes_of(runs), _lines(runs), known_repeats, pair.warnings
    )


def document_of(found: ConfigurationComparison) -> dict[str, Any]:
    """Return the comparison as a document for programs: times in seconds, costs in dollars."""
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "ConfigurationComparison",
        "names": {"a": found.names[0], "b": found.names[1]},
        "seed": found.settings.seed,
        "seeds": found.settings.seeds,
        "seconds": {"a": _lasted(found.runs.a), "b": _lasted(found.runs.b)},
        "headline": found.headline,
        "figures": {section.name: _section(section) for section in found.sections},
        "changes": {
            "better": [_change(each) for each in found.changes.better[:SHOWN]],
            "worse": [_change(each) for each in found.changes.worse[:SHOWN]],
            "counts": _counts(found.changes),
        },
        "refused": {side: list(map(str, run.result.refused)) for side, run in _sides(found.runs)},
        "loops": {side: [loop.message for loop in run.result.loops] for side, run in _sides(found.runs)},
    }
    if found.repeats:
        document["repeats"] = [_repeat(each) for each in found.repeats]
    return document


def _sides(runs: ComparedRuns) -> tuple[tuple[str, ComparedRun], ...]:
    return ("a", runs.a), ("b", runs.b)


def _overall_section(sections: Sequence[Section]) -> dict[str, Both]:
    return dict(next(section for section in sections if section.name == "overall").rows[0].figures)


def _lasted(run: ComparedRun) -> float:
    return seconds(run.result.now - run.begun)


def _lines(runs: ComparedRuns) -> list[ComparisonLine]:
    """Return the lines of pending Workloads, of Workloads with quota, and of each resource in use."""
    a, b = runs.a, runs.b
    lines = [
        _line("Workloads waiting", runs, a.watch.lives.waiting, b.watch.lives.waiting),
        _line("Workloads with quota", runs, a.watch.lives.running, b.watch.lives.running),
    ]
    used = [together(run, run.watch.lives.used, lambda at: at[2]) for run in (a, b)]
    nothing = Curve(a.begun)
    for name in sorted({**used[0], **used[1]}):
        line = _line(f"{name} in use", runs, *(curves.get(name, nothing) for curves in used))
        lines.append(
            ComparisonLine(line.name, *([in_units(name, value) for value in side] for side in (line.a, line.b)))
        )
    return lines


def _line(name: str, runs: ComparedRuns, a: Curve, b: Curve) -> ComparisonLine:
    return ComparisonLine(name, a.means(runs.end, PARTS), b.means(runs.end, PARTS))


def _section(section: Section) -> list[dict[str, Any]]:
    rows = []
    for row in section.rows:
        a = {name: both[0] for name, both in row.figures.items()}
        b = {name: both[1] for name, both in row.figures.items()}
        change = {name: difference(both) for name, both in row.figures.items()}
        rows.append({"name": row.name, "a": _rounded(a), "b": _rounded(b), "difference": _rounded(change)})
    return rows


def _rounded(figures: dict[str, float | None]) -> dict[str, float]:
    """Return the known figures; integral values as int."""
    return {name: _number(figure) for name, figure in figures.items() if figure is not None}


def _number(figure: float) -> float:
    return int(figure) if figure == int(figure) else round(figure, _DIGITS)


def _change(change: WaitChange) -> dict[str, Any]:
    return {
        "workload": change.workload,
        "queue": change.queue,
        "effect": change.effect,
        "a": {"waitSeconds": _number(change.waits[0]), "preemptions": change.preemptions[0]},
        "b": {"waitSeconds": _number(change.waits[1]), "preemptions": change.preemptions[1]},
        "longerBySeconds": _number(change.longer),
    }


def _counts(changes: WaitChanges) -> dict[str, int]:
    sides = {"better": len(changes.better), "worse": len(changes.worse)}
    return {**sides, "same": changes.same, "inOneAlone": changes.alone}


def _repeat(each: RepeatedFigure) -> dict[str, Any]:
    return {
        "figure": each.figure.name,
        "a": _number(each.means[0]),
        "b": _number(each.means[1]),
        "difference": _number(each.difference),
        "interval95": [_number(each.difference - each.margin), _number(each.difference + each.margin)],
    }
