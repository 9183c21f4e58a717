"""Measures what observers cost the scheduling cycle: metrics, the decision ledger, the dashboard's history.

    python benchmarks/observers.py LOAD.yaml [--runs N]

Runs the load in virtual time on a cluster without nodes: without observers, with each one, and with all of them. Prints
the CPU seconds of one thread as medians of the runs: the decisions of the cycles, the application and recording of the
decisions, and the whole run. On a live platform another thread writes the rows of the ledger to a file; this time is a
separate column.
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
OBSERVERS: Final = {"none": (), "metrics": (METRICS,), "ledger": (LEDGER,), "history": (HISTORY,)}
ALL: Final = (METRICS, LEDGER, HISTORY)
ROWS: Final = 1000


class CycleTimes(NamedTuple):
    """The number of cycles of a run, and the CPU seconds of its parts."""

    cycles: int
    decisions: float
    application: float
    total: float
    ledger_file: float


class CycleStopwatch:
    """A CycleObserver that measures the CPU time of cycles, including a wrapped observer."""

    def __init__(self, observer: CycleObserver) -> None:
        self._observer = observer
        self._last = 0.0
        self.cycles, self.decisions, self.application = 0, 0.0, 0.0

    def begin(self) -> None:
        """Start the measurement of a cycle."""
        self._last = time.thread_time()
        self._observer.begin()

    def end_decisions(self) -> None:
        """Record the time of the decisions."""
        self._observer.end_decisions()
        now = time.thread_time()
        self.decisions += now - self._last
        self._last = now

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """Record the time of the application of the decisions."""
        self._observer.end(cycle, decisions)
        self.application += time.thread_time() - self._last
        self.cycles += 1


class ObservedWorld(World):
    """A simulated platform with some of the observers of a live platform."""

    def __init__(self, scenario: Scenario, observers: Sequence[str]) -> None:
        self.entries: list[DecisionRecord] = []
        self._observers = observers
        super().__init__(scenario)
        if HISTORY in observers:
            history = PlatformHistory(self.kernel.now, self.platform.index.cluster_queue_of)
            self.client.subscribe(history.observe)

    def _start_platform(self) -> WiredPlatform:
        metrics = ServerMetrics()
        observer: CycleObserver = CycleLog(metrics.cycles, None) if METRICS in self._observers else NoCycleObserver()
        self.stopwatch = CycleStopwatch(observer)
        sink = DecisionLog(self._record, self.entries.append) if LEDGER in self._observers else self._record
        runtime = (BareWorkloads(), SimulatedKubelets(container_delays_of(self.scenario.cluster, 0), with_nodes=False))
        loop = metrics.cycles.count_preemption_loop if METRICS in self._observers else self._record_preemption_loop
        ports = PlatformPorts(self.kernel, self.client, runtime, (), sink, loop, cycle_observer=self.stopwatch)
        platform = build_platform(replace(ports, history=changes_reader(self.store)), self._settings)
        if METRICS in self._observers:
            metrics.begin(ObservedPlatform(platform, self.client, self.kernel.now, fair_sharing=False), ())
        return platform


def run(scenario: Scenario, observers: Sequence[str]) -> CycleTimes:
    """Run the scenario with these observers; return its times."""
    start = time.thread_time()
    world = ObservedWorld(scenario, observers)
    world.run_until(None)
    world.flush_batched_writes()
    end = time.thread_time()
    with tempfile.TemporaryDirectory() as folder:
        file = LedgerFile(Path(folder) / "ledger")
        for first in range(0, len(world.entries), ROWS):
            file.append(world.entries[first : first + ROWS])
        file.close()
    watch = world.stopwatch
    return CycleTimes(watch.cycles, watch.decisions, watch.application, end - start, time.thread_time() - end)


def main() -> None:
    """Run each combination of observers, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("load", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    logging.disable(logging.DEBUG)
    scenario, _ = read_scenario([arguments.load])
    choices = {**OBSERVERS, "all": ALL}
    times: dict[str, list[CycleTimes]] = {name: [] for name in choices}
    gc.disable()  # the collector also runs rarely in a platform
    for _ in range(arguments.runs):
        for name, observers in choices.items():
            times[name].append(run(scenario, observers))
            gc.collect()
    print("| observers | cycles | decisions | application | whole run | ledger file |")
    for name, runs in times.items():
        medians = (f"{statistics.median(each[i] for each in runs):.2f}" for i in range(1, 5))
        print(f"| {name} | {runs[0].cycles} | {' | '.join(medians)} |")


if __name__ == "__main__":
    main()
