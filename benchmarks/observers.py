"""What those who look on cost the scheduling cycle: metrics, the decision ledger, the page's history.

    python benchmarks/observers.py LOAD.yaml [--runs N]

The load runs in virtual time, without nodes, once with nobody looking on and once with each of them and with all, in
turn. CPU seconds of one thread: what the cycles took to decide, what they took to apply what was decided (where each
decision is recorded), and all of the run; medians of the runs. The ledger's rows are written to a file by another
thread where a platform is live: that is counted by itself.
"""

import argparse
import gc
import logging
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from batchyard.dashboard.history import PlatformHistory
from batchyard.interfaces.controller import DecisionRecord
from batchyard.kubelet.simulated.durations import BareWorkloads
from batchyard.kubelet.simulated.kubelet import SimulatedKubelets, container_delays_of
from batchyard.scheduling.controller import CycleObserver, NoCycleObserver
from batchyard.scheduling.cycle import Cycle
from batchyard.scheduling.decisions import Decision
from batchyard.server.logging.ledger import LedgerFile
from batchyard.server.logging.logs import CycleLog, DecisionLog
from batchyard.server.metrics import ObservedPlatform, ServerMetrics
from batchyard.sim.scenario import Scenario
from batchyard.sim.simulate import read_scenario
from batchyard.sim.world import World
from batchyard.store.memory import changes_reader
from batchyard.wiring import PlatformPorts, WiredPlatform, build_platform

METRICS, LEDGER, HISTORY = "metrics", "ledger", "history"
CHOICES: Final = {"nobody": (), "metrics": (METRICS,), "ledger": (LEDGER,), "history": (HISTORY,)}
ALL: Final = (METRICS, LEDGER, HISTORY)
ROWS: Final = 1000


class Took(NamedTuple):
    """CPU seconds of a run, and how many cycles it had."""

    cycles: int
    deciding: float
    applying: float
    whole: float
    writing: float


class Stopwatch:
    """What cycles take, those who are told of them included. A CycleWatch before another."""

    def __init__(self, watch: CycleObserver) -> None:
        self._watch = watch
        self._at = 0.0
        self.cycles, self.deciding, self.applying = 0, 0.0, 0.0

    def begin(self) -> None:
        """There are heads."""
        self._at = time.thread_time()
        self._watch.begin()

    def decide(self) -> None:
        """All is decided."""
        self._watch.decide()
        now = time.thread_time()
        self.deciding += now - self._at
        self._at = now

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """All is applied."""
        self._watch.end(cycle, decisions)
        self.applying += time.thread_time() - self._at
        self.cycles += 1


class Watched(World):
    """A world as those see it who look on."""

    def __init__(self, scenario: Scenario, those: Sequence[str]) -> None:
        self.entries: list[DecisionRecord] = []
        self._those = those
        super().__init__(scenario)
        if HISTORY in those:
            history = PlatformHistory(self.kernel.now, self.platform.index.cluster_queue_of)
            self.client.subscribe(history.observe)

    def _start_platform(self) -> WiredPlatform:
        figures = ServerMetrics()
        watch: CycleObserver = CycleLog(figures.cycles, None) if METRICS in self._those else NoCycleObserver()
        self.stopwatch = Stopwatch(watch)
        sink = DecisionLog(self._record, self.entries.append) if LEDGER in self._those else self._record
        runtime = (BareWorkloads(), SimulatedKubelets(container_delays_of(self.scenario.cluster, 0), with_nodes=False))
        loop = figures.cycles.loop if METRICS in self._those else self._on_loop
        ports = PlatformPorts(self.kernel, self.client, runtime, (), sink, loop, cycle_observer=self.stopwatch)
        platform = build_platform(replace(ports, history=changes_reader(self.store)), self._settings)
        if METRICS in self._those:
            figures.begin(ObservedPlatform(platform, self.client, self.kernel.now, fair_sharing=False), ())
        return platform


def run(scenario: Scenario, those: Sequence[str]) -> Took:
    """One run."""
    began = time.thread_time()
    world = Watched(scenario, those)
    world.run_until(None)
    world.settle()
    ran = time.thread_time()
    with tempfile.TemporaryDirectory() as folder:
        file = LedgerFile(Path(folder) / "ledger")
        for first in range(0, len(world.entries), ROWS):
            file.append(world.entries[first : first + ROWS])
        file.close()
    watch = world.stopwatch
    return Took(watch.cycles, watch.deciding, watch.applying, ran - began, time.thread_time() - ran)


def main() -> None:
    """Run, and print the table's rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    logging.disable(logging.DEBUG)
    scenario, _ = read_scenario([arguments.load])
    choices = {**CHOICES, "all": ALL}
    took: dict[str, list[Took]] = {name: [] for name in choices}
    gc.disable()  # the kernel lets the collector run rarely too
    for _ in range(arguments.runs):
        for name, those in choices.items():
            took[name].append(run(scenario, those))
            gc.collect()
    print("| who looks on | cycles | deciding | applying | the whole run | writing the ledger's rows |")
    for name, runs in took.items():
        deciding, applying, whole, writing = (statistics.median(each[i] for each in runs) for i in range(1, 5))
        print(f"| {name} | {runs[0].cycles} | {deciding:.2f} | {applying:.2f} | {whole:.2f} | {writing:.2f} |")


if __name__ == "__main__":
    main()
