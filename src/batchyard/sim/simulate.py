"""Simulation of manifests in virtual time.

    from batchyard import simulate

    result = simulate("examples/first-steps")
    for workload in result.workloads:
        print(workload.owner, workload.status, f"waited {workload.waited} s")

`simulate` runs a simulation in one call. `Simulation` runs it in slices, for callers that show progress.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from batchyard.api import scheme
from batchyard.api.errors import FieldError
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj, controller_of, key_of
from batchyard.api.times import parse_time
from batchyard.api.views.pods import pod_view
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Duration, Instant, duration_seconds
from batchyard.base.primitives import rare_garbage_collection
from batchyard.jobs.kinds import INTEGRATIONS
from batchyard.scheduling.workload.adjustments import MissingPriorityClass, resolve_priority
from batchyard.scheduling.workload.lifecycle import is_finished
from batchyard.sim.event_log import Event, Record, event_of
from batchyard.sim.recovery import RunAccounting
from batchyard.sim.result import Result, RunEnding, WorkloadCounts, describe_rejected_write
from batchyard.sim.scenario import (
    VIRTUAL_TIME_MAX,
    FileFault,
    InvalidScenario,
    Scenario,
    Source,
    make_scenario,
    parse_run_duration,
    read_sources,
)
from batchyard.sim.shrinkings import ShrinkTracker
from batchyard.sim.state import State
from batchyard.sim.world import StoppedByPreemptionLoop, WaitTracker, World, do_nothing, ignore_record

KINDS_SHOWN: Final = (
    *(scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.WORKLOAD, scheme.NODE, scheme.PROVISIONING_REQUEST),
    *(scheme.JOB_SET, scheme.JOB, scheme.BUDGET),
)


class PreemptionLoopAction(StrEnum):
    """What a simulation does when Workloads preempt each other endlessly: continue, or stop."""

    CONTINUE = "continue"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The options of a simulation: its end, seed, reaction to preemption loops, event log and initial state."""

    #: The time at which the run stops; overrides the scenario's horizon.
    until: Duration | None = None
    #: Determines the generated uids, and thereby the decisions that depend on uids.
    seed: int = 0
    on_preemption_loop: PreemptionLoopAction = PreemptionLoopAction.CONTINUE
    #: Called with each record of the event log as it happens.
    sink: Callable[[Record], None] = ignore_record
    #: The initial state, at whose instant the run starts; None: no objects.
    state: State | None = None


@rare_garbage_collection()
def simulate(
    *sources: Source,
    until: str | float | None = None,
    seed: int = 0,
    on_preemption_loop: str = PreemptionLoopAction.CONTINUE,
    events: Callable[[Event], None] | None = None,
    record: bool = True,
) -> Result:
    """Simulate manifests in virtual time, and return the result.

    Sources are files, folders (all manifests below them), manifest text (multi-line YAML, or JSON), or objects as
    dicts. `until` is the time at which the run ends (`"2h"`, or seconds). Without `until`, the run ends at the horizon
    of the scenario, or when no more events are scheduled. With `on_preemption_loop="stop"`, the run also ends when
    Workloads preempt each other endlessly. `events` is called with each event as it happens. With `record=False`, the
    result contains no events, which saves time and memory in large runs.

    Raise InvalidScenario with all errors in the sources, ValueError for an invalid `until` or `on_preemption_loop`.

    >>> result = simulate("examples/first-steps")
    >>> [(workload.owner, workload.status, workload.waited) for workload in result.workloads]
    [('train-a', 'finished', 0), ('train-b', 'finished', 0), ('train-c', 'finished', 28)]
    """
    kept_events: list[Event] = []
    sinks: list[Callable[[Event], None]] = [kept_events.append] if record else []
    if events is not None:
        sinks.append(events)
    scenario, warnings = read_scenario(sources)
    sink = _event_emitter(sinks) if sinks else ignore_record
    options = SimulationOptions(
        None if until is None else parse_run_duration(until), seed, PreemptionLoopAction(on_preemption_loop), sink
    )
    simulation = Simulation(scenario, options)
    simulation.advance()
    return replace(simulation.result(), events=tuple(kept_events), warnings=tuple(warnings))


def read_scenario(sources: Iterable[Source]) -> tuple[Scenario, Sequence[str]]:
    """Return the scenario in files, folders, texts and objects, and the warnings about the manifests.

    Raise InvalidScenario with all errors.
    """
    source_errors: list[FileFault] = []
    manifests = read_manifests(read_sources(sources, source_errors))
    return make_scenario(manifests, source_errors), manifests.warnings


def _endless_cron_jobs() -> FileFault:
    remedy = "set spec.horizon in the Scenario, or the option --until"
    return FileFault("the simulation", FieldError("", "CronJobs start Jobs forever, so the run needs an end", remedy))


class Simulation:
    """A simulation of a scenario that runs in slices; the number of slices does not affect the result."""

    def __init__(self, scenario: Scenario, options: SimulationOptions = SimulationOptions()) -> None:
        self.scenario = scenario
        self.horizon = scenario.horizon if options.until is None else options.until
        if self.horizon is None and options.state is None and "CronJob" in scenario.counts:
            raise InvalidScenario([_endless_cron_jobs()])
        stop_on_loop = options.on_preemption_loop is PreemptionLoopAction.STOP
        sink, seed = options.sink, options.seed
        self.world = World(scenario, sink=sink, seed=seed, stop_on_loop=stop_on_loop, state=options.state)
        self._start = self.world.start
        earlier_workloads = () if options.state is None else options.state.of_kind(scheme.WORKLOAD)
        self._finished_earlier = {each["metadata"]["uid"] for each in earlier_workloads if is_finished(each)}
        self._accounting = self._open_accounting(options.state)
        self._shrinkings = self._watch_shrinkings(options.state)
        self._end = self._start + (VIRTUAL_TIME_MAX if self.horizon is None else self.horizon)
        self._ending: RunEnding | None = None
        self._result: Result | None = None
        if self.horizon is not None:
            self.world.kernel.call_at(self._end, do_nothing)

    def advance(self, steps_max: int | None = None) -> bool:
        """Run at most `steps_max` kernel steps (None: to the end); return whether the simulation has not ended yet."""
        if self._ending is not None:
            return False
        kernel = self.world.kernel
        try:
            steps_done = kernel.run(self._end, steps_max=steps_max)
        except StoppedByPreemptionLoop:
            self._ending = RunEnding.LOOP
            return False
        if steps_max is not None and steps_done == steps_max:
            return True
        self._ending = self._find_ending()
        return False

    def interrupt(self) -> None:
        """End the simulation now, between two slices; without effect if it has ended."""
        self._ending = self._ending or RunEnding.INTERRUPTED

    def result(self) -> Result:
        """Return the result of the ended simulation. The first call flushes pending writes and ends the event log."""
        assert self._ending is not None, "the run has not ended: call advance() until it returns False"
        if self._result is None:
            self._result = self._make_result(self._ending)
        return self._result

    def _open_accounting(self, state: State | None) -> RunAccounting | None:
        clusters = () if state is None else state.of_kind(scheme.CLUSTER)
        if self.scenario.cluster is None and not clusters:
            return None
        accounting = RunAccounting(self.world.client, self.world.kernel)
        if state is not None:
            accounting.add_initial_objects(state.added_events())
        return accounting

    def _watch_shrinkings(self, state: State | None) -> ShrinkTracker | None:
        if not self.scenario.kueue.policy.rules.partial_preemption:
            return None
        tracker, kernel = ShrinkTracker(), self.world.kernel
        if state is not None:
            tracker.observe(state.added_events(), kernel.now())
        self.world.client.subscribe(lambda events: tracker.observe(events, kernel.now()))
        return tracker

    def _make_result(self, run_ending: RunEnding) -> Result:
        world, accounting = self.world, self._accounting
        world.flush_batched_writes()
        workloads = world.objects(scheme.WORKLOAD)
        now = self._event_log_end_time(workloads)
        world.log.record_end(world.client, now)
        return Result(
            scenario=self.scenario.name,
            duration=duration_seconds(now - self._start),
            ending=run_ending,
            events=(),
            loops=tuple(world.loops),
            refused=tuple(describe_rejected_write(*each) for each in world.rejected_writes),
            missed=tuple(world.missed_faults),
            warnings=(),
            counts=_count_workloads(workloads, world.waits, self._finished_earlier),
            objects={**{kind: world.objects(kind) for kind in KINDS_SHOWN}, scheme.POD: _pods_shown(world)},
            now=now,
            waits=world.waits,
            costs=None if accounting is None else accounting.cost_statement(now),
            losses=() if accounting is None else tuple(accounting.recoveries.losses),
            shrinkings=None if self._shrinkings is None else tuple(self._shrinkings.finish(now)),
            rejected_pods={cause: tuple(keys) for cause, keys in world.rejected_pods.items()},
            jobs_without_class=_jobs_by_missing_priority_class(world, workloads),
        )

    def _find_ending(self) -> RunEnding:
        if self.horizon is not None:
            return RunEnding.HORIZON
        return RunEnding.IDLE if self.world.kernel.next_instant() is None else RunEnding.BOUND

    def _event_log_end_time(self, workloads: Sequence[Obj]) -> Instant:
        """Return the time at which the event log ends.

        It is when a horizon, a preemption loop or an interrupt ended the run, otherwise the time of the last event.
        Status that controllers write shortly after the last event does not count as an event.
        """
        if self._ending in (RunEnding.HORIZON, RunEnding.LOOP, RunEnding.INTERRUPTED):
            return self.world.kernel.now()
        last_step_time = max((self._start + step.at for step in self.scenario.steps), default=self._start)
        last_charge_time = self._start if self._accounting is None else self._accounting.ledger.charged_until
        last_change_times = map(_last_change_time, (*workloads, *self.world.objects(scheme.JOB)))
        return max((last_step_time, self.world.log.last_record_at, last_charge_time, *last_change_times))


def _event_emitter(sinks: Sequence[Callable[[Event], None]]) -> Callable[[Record], None]:
    def emit_event(record: Record) -> None:
        event = event_of(record)
        for sink in sinks:
            sink(event)

    return emit_event


def _pods_shown(world: World) -> list[Obj]:
    return [
        pod for pod in world.objects(scheme.POD) if controller_of(pod) is None or pod_view(pod).unschedulable_message
    ]


def _jobs_by_missing_priority_class(world: World, workloads: Sequence[Obj]) -> dict[Key, list[Key]]:
    owner_uids = {owner["uid"] for workload in workloads if (owner := controller_of(workload)) is not None}
    jobs_by_class: dict[Key, list[Key]] = {}
    for kind, integration in INTEGRATIONS.items():
        for job in world.objects(kind):
            if job["metadata"]["uid"] in owner_uids or not world.scenario.kueue.managed_jobs.names(job):
                continue
            priority = resolve_priority(job, integration.pod_class(job), world.client)
            if isinstance(priority, MissingPriorityClass) and integration.completion(job) is None:
                jobs_by_class.setdefault(priority.key, []).append(key_of(job))
    return jobs_by_class


def _last_change_time(obj: Obj) -> Instant:
    status = obj.get("status") or {}
    change_times = [c["lastTransitionTime"] for c in status.get("conditions") or () if c["status"] == "True"]
    return max(map(parse_time, [*change_times, obj["metadata"]["creationTimestamp"]]))


def _count_workloads(
    workloads: Sequence[Obj], tracker: WaitTracker, finished_earlier: Collection[str]
) -> WorkloadCounts:
    """Count Workloads by state; `finished_earlier` holds the uids of those that had finished at the start."""
    unfinished = [workload_view(each) for each in workloads if not is_finished(each)]
    with_quota = [view for view in unfinished if view.quota_reserved]
    admitted_count = sum(view.admitted for view in with_quota)
    return WorkloadCounts(
        finished=len(workloads) - len(unfinished),
        admitted=admitted_count,
        pending=len(unfinished) - len(with_quota),
        preemptions=tracker.preemptions,
        evictions=tracker.evictions,
        awaiting_checks=len(with_quota) - admitted_count,
        finished_before=sum(each["metadata"]["uid"] in finished_earlier for each in workloads),
    )
