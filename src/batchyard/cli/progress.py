"""Progress bars on standard error for long runs on a terminal.

A simulation's bar shows the larger of two fractions: virtual time up to the horizon (without one, up to the last
submission), and Workloads that have quota.
"""

import sys
from time import monotonic
from typing import TYPE_CHECKING, Final

from batchyard.base.instant import format_age
from batchyard.sim.simulate import Simulation

if TYPE_CHECKING:
    from rich.progress import Progress

#: The work items between two readings of the clock: some hundredths of a second.
SLICE: Final = 2_000
PATIENCE_SECONDS: Final = 1.0


def watched(simulation: Simulation) -> None:
    """Run a simulation to its end, with a progress bar if it takes long and standard error is a terminal."""
    if not sys.stderr.isatty():
        simulation.advance()
        return
    begun = monotonic()
    while monotonic() - begun < PATIENCE_SECONDS:
        if not simulation.advance(SLICE):
            return
    with _bar() as bar:
        task = bar.add_task("simulating", total=1.0)
        while simulation.advance(SLICE):
            bar.update(task, completed=fraction_done(simulation), description=_description(simulation))


def fraction_done(simulation: Simulation) -> float:
    """The estimated progress of the run, between 0 and 1."""
    waits, known = simulation.world.waits, _known(simulation)
    by_workloads = (waits.admissions - waits.evictions) / known if known else 0.0
    end = simulation.horizon or max((step.at for step in simulation.scenario.steps), default=0)
    by_time = simulation.world.now() / end if end else 0.0
    return max(0.0, min(0.99, max(by_workloads, by_time)))


def _description(simulation: Simulation) -> str:
    waits, known = simulation.world.waits, _known(simulation)
    so_far = f"{format_age(simulation.world.now())} of virtual time"
    return f"{so_far}, {waits.admissions - waits.evictions:,} of {known:,} placed" if known else so_far


def _known(simulation: Simulation) -> int:
    """The number of Workloads and jobs in the scenario."""
    return sum(simulation.scenario.counts.get(kind, 0) for kind in ("Workload", "Job", "JobSet"))


def _bar() -> "Progress":
    from rich.console import Console  # noqa: PLC0415 - only for long runs
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - only for long runs

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


class Counting:
    """The number of objects read, shown on a terminal."""

    def __init__(self, what: str, parts: int) -> None:
        self._what = what
        self._parts = parts
        self._count = 0
        self._seen: dict[str, None] = {}
        self._bar: Progress | None = None

    def __enter__(self) -> "Counting":
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
            self._bar.add_task(self._what, total=self._parts)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, part: str, count: int) -> None:
        """Add a number of objects of a part."""
        self._count += count
        self._seen[part] = None
        if self._bar is not None:
            (task,) = self._bar.task_ids
            message = f"{self._what} {part}: {self._count:,} objects"
            self._bar.update(task, completed=len(self._seen), description=message)
