"""Two runs of one load with one seed, each under its configuration: whatever differs comes of the configurations."""

from collections.abc import Callable
from dataclasses import dataclass

from batchyard.base.instant import Duration, Instant, seconds
from batchyard.sim.configurations.inputs import Pair
from batchyard.sim.configurations.lives import Life
from batchyard.sim.configurations.watch import Watch
from batchyard.sim.result import Result
from batchyard.sim.scenario import Scenario
from batchyard.sim.simulate import Simulation
from batchyard.sim.whatif import Comparison, Course, Start, course, to_its_end


@dataclass(frozen=True)
class Run:
    """One of them, once it has ended."""

    course: Course
    watch: Watch
    begun: Instant

    @property
    def result(self) -> Result:
        """What it came to."""
        return self.course.result

    @property
    def lives(self) -> list[Life]:
        """What became of its Workloads, in the order in which they came."""
        return list(self.watch.lives.lives.values())


@dataclass(frozen=True)
class Runs:
    """Both."""

    a: Run
    b: Run

    @property
    def end(self) -> Instant:
        """The later end: until then those wait that never get quota, in either."""
        return max(self.a.result.now, self.b.result.now)

    @property
    def comparison(self) -> Comparison:
        """Both as a change from the first to the second."""
        return Comparison(self.a.course, self.b.course)

    def waited(self, run: Run, life: Life) -> Duration:
        """How long a Workload was without quota in all, again after evictions too; to the later end if it still is."""
        end = life.gone if life.gone is not None else self.end
        return run.result.waits.waited(life.obj, end)

    def waited_seconds(self, run: Run, life: Life) -> float:
        """The same in seconds."""
        return seconds(self.waited(run, life))


def run_both(
    pair: Pair, until: Duration | None = None, seed: int = 0, finish: Callable[[Simulation], None] = to_its_end
) -> Runs:
    """Run both; `finish` takes a simulation to its end, and may show how far it is."""
    return Runs(_run(pair.a, until, seed, finish), _run(pair.b, until, seed, finish))


def _run(scenario: Scenario, until: Duration | None, seed: int, finish: Callable[[Simulation], None]) -> Run:
    watches: list[Watch] = []

    def watched(simulation: Simulation) -> None:
        watches.append(Watch(simulation.world))
        finish(simulation)

    told = course(Start(scenario), None, until, seed, watched)
    return Run(told, watches[0], watches[0].begun)
