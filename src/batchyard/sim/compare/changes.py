"""The Workloads with longer and shorter waits under the second configuration, and a summary in a sentence or two."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from batchyard.sim.compare.formatting import format_figure
from batchyard.sim.compare.runs import ComparedRuns
from batchyard.sim.compare.sections import Both, Section, Unit, difference
from batchyard.sim.difference import difference_of

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
