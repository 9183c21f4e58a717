"""Runs manifests in virtual time and returns the result.

    from batchyard import simulate

    result = simulate("examples/first-steps")
    for workload in result.workloads:
        print(workload.owner, workload.status, f"waited {workload.waited} s")

`simulate` does it in one call. `Simulation` does the same in slices, for callers that show progress.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, controller_of
from batchyard.api.times import parse_time
from batchyard.api.views.pods import pod_view
from batchyard.base.instant import Duration, Instant, seconds
from batchyard.base.memory import rare_collections
from batchyard.scheduling.workload.lifecycle import has_quota_reservation, is_finished
from batchyard.sim.event_log import Event, Record, event_of
from batchyard.sim.recovery import RunAccounting
from batchyard.sim.result import Result, RunEnding, WorkloadCounts, rejected_write
from batchyard.sim.scenario import (
    VIRTUAL_TIME_MAX,
    FileFault,
    Scenario,
    Source,
    make_scenario,
    read_sources,
    run_length,
)
from batchyard.sim.state import State
from batchyard.sim.world import StoppedByLoop, WaitTracker, World, ignore_record, let_time_pass

KINDS_SHOWN: Final = (
    *(scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.WORKLOAD, scheme.NODE, scheme.PROVISIONING_REQUEST),
    *(scheme.JOB_SET, scheme.JOB, scheme.BUDGET),
)


class OnLoop(StrEnum):
    """The reaction to Workloads that preempt each other endlessly: continue, or end the run."""

    CONTINUE = "continue"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The options of a run."""

    #: Stops the run here; overrides the scenario's horizon.
    until: Duration | None = None
    #: Fixes the generated uids, and the decisions that depend on uids alone.
    seed: int = 0
    on_loop: OnLoop = OnLoop.CONTINUE
    #: Called with each record of the event log as it happens.
    sink: Callable[[Record], None] = ignore_record
    #: The initial state, from whose instant times count; None: empty.
    state: State | None = None


@rare_collections()
def simulate(
    *sources: Source,
    until: str | float | None = None,
    seed: int = 0,
    on_loop: str = OnLoop.CONTINUE,
    events: Callable[[Event], None] | None = None,
    record: bool = True,
) -> Result:
    """Run manifests in virtual time.

    Sources are files, folders (all manifests below), texts of manifests (of more than one line, or JSON), or objects as
    dicts. `until` ends the run (`"2h"`, or seconds). Without it the run ends at the scenario's horizon, or when no more
    events are scheduled. `events` is called with each event as it happens. `record=False` keeps no events in the
    result,
    which saves time and memory in large runs.

    Raises InvalidScenario with all errors in the sources.

    >>> result = simulate("examples/first-steps")
    >>> [(workload.owner, workload.status, workload.waited) for workload in result.workloads]
    [('train-a', 'finished', 0), ('train-b', 'finished', 0), ('train-c', 'finished', 28)]
    """
    kept: list[Event] = []
    sinks: list[Callable[[Event], None]] = [kept.append] if record else []
    if events is not None:
        sinks.append(events)
    scenario, warnings = read_scenario(sources)
    sink = _to_events(sinks) if sinks else ignore_record
    options = SimulationOptions(None if until is None else run_length(until), seed, OnLoop(on_loop), sink)
    simulation = Simulation(scenario, options)
    simulation.advance()
    return replace(simulation.result(), events=tuple(kept), warnings=tuple(warnings))


def read_scenario(sources: Iterable[Source]) -> tuple[Scenario, Sequence[str]]:
    """Read the scenario of files, folders, texts and objects; return it with the warnings."""
    unread: list[FileFault] = []
    manifests = read_manifests(read_sources(sources, unread))
    return make_scenario(manifests, unread), manifests.warnings


class Simulation:
    """One run of a scenario, in any number of slices: the result does not depend on them."""

    def __init__(self, scenario: Scenario, options: SimulationOptions = SimulationOptions()) -> None:
        self.scenario = scenario
        stop = options.on_loop is OnLoop.STOP
        self.world = World(scenario, sink=options.sink, seed=options.seed, stop_on_loop=stop, state=options.state)
        self._start = self.world.start
        self._books = self._opened(options.state)
        self.horizon = scenario.horizon if options.until is None else options.until
        self._end = self._start + (VIRTUAL_TIME_MAX if self.horizon is None else self.horizon)
        self._ending: RunEnding | None = None
        self._result: Result | None = None
        if self.horizon is not None:
            self.world.kernel.call_at(self._end, let_time_pass)

    def advance(self, steps_max: int | None = None) -> bool:
        """Run at most `steps_max` kernel steps; return whether the run continues."""
        if self._ending is not None:
            return False
        kernel = self.world.kernel
        try:
            done = kernel.run(self._end, steps_max=steps_max)
        except StoppedByLoop:
            self._ending = RunEnding.LOOP
            return False
        if steps_max is not None and done == steps_max:
            return True
        self._ending = self._why_ended()
        return False

    def result(self) -> Result:
        """Return the result. The first call flushes pending writes and ends the event log."""
        assert self._ending is not None, "a run has a result once it has ended"
        if self._result is None:
            self._result = self._settled(self._ending)
        return self._result

    def _opened(self, state: State | None) -> RunAccounting | None:
        """Return the books of a world with machines; None without machines."""
        there = () if state is None else state.of_kind(scheme.CLUSTER)
        if self.scenario.cluster is None and not there:
            return None
        books = RunAccounting(self.world.client, self.world.kernel)
        if state is not None:
            books.recall(state.shown())
        return books

    def _settled(self, ending: RunEnding) -> Result:
        world, books = self.world, self._books
        world.settle()
        workloads = world.objects(scheme.WORKLOAD)
        now = self._end_of_log(workloads)
        world.log.final(world.client, now)
        return Result(
            scenario=self.scenario.name,
            duration=seconds(now - self._start),
            ending=ending,
            events=(),
            loops=tuple(world.loops),
            refused=tuple(rejected_write(*refused) for refused in world.refused),
            missed=tuple(world.missed),
            warnings=(),
            counts=_counts(workloads, world.waits),
            objects={**{kind: world.objects(kind) for kind in KINDS_SHOWN}, scheme.POD: _pods_shown(world)},
            now=now,
            waits=world.waits,
            costs=None if books is None else books.statement(now),
            losses=() if books is None else tuple(books.recoveries.losses),
        )

    def _why_ended(self) -> RunEnding:
        if self.horizon is not None:
            return RunEnding.HORIZON
        return RunEnding.IDLE if self.world.kernel.next_instant() is None else RunEnding.BOUND

    def _end_of_log(self, workloads: Sequence[Obj]) -> Instant:
        """Return the end of the log: the horizon, or the instant of a loop that ended the run, else the last event.

        Some controllers write reports a moment later, which do not count as events.
        """
        if self._ending in (RunEnding.HORIZON, RunEnding.LOOP):
            return self.world.kernel.now()
        last = max((self._start + step.at for step in self.scenario.steps), default=self._start)
        charged = self._start if self._books is None else self._books.ledger.last
        changed = map(_last_change, (*workloads, *self.world.objects(scheme.JOB)))
        return max((last, self.world.log.last, charged, *changed))


def _to_events(sinks: Sequence[Callable[[Event], None]]) -> Callable[[Record], None]:
    def emit(record: Record) -> None:
        event = event_of(record)
        for sink in sinks:
            sink(event)

    return emit


def _pods_shown(world: World) -> list[Obj]:
    """Return the pods without a controller, and those that fit no node."""
    return [pod for pod in world.objects(scheme.POD) if controller_of(pod) is None or pod_view(pod).unplaced]


def _last_change(obj: Obj) -> Instant:
    """Return when a Workload or Job was created or a condition last became true; pending reasons do not count."""
    status = obj.get("status") or {}
    times = [c["lastTransitionTime"] for c in status.get("conditions") or () if c["status"] == "True"]
    return max(map(parse_time, [*times, obj["metadata"]["creationTimestamp"]]))


def _counts(workloads: Sequence[Obj], waits: WaitTracker) -> WorkloadCounts:
    finished = sum(map(is_finished, workloads))
    admitted = sum(has_quota_reservation(obj) and not is_finished(obj) for obj in workloads)
    return WorkloadCounts(finished, admitted, len(workloads) - finished - admitted, waits.preemptions, waits.evictions)
