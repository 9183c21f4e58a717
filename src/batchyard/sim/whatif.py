"""What-if analysis: simulates a state with and without a change, and computes the differences.

The change is applied after all other work of the same instant. Both runs use the same seed, so that the change causes
every difference.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj, controller_of, group_kind, key_of
from batchyard.api.scheme import kind_info
from batchyard.api.times import format_time
from batchyard.api.views.workload import workload_view
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import SECOND, Duration, Instant, duration_seconds
from batchyard.scheduling.kueue_configuration import KueueSettings
from batchyard.scheduling.workload.lifecycle import is_finished
from batchyard.sim.event_log import Record
from batchyard.sim.forecasting.run_times import age_of
from batchyard.sim.result import RejectedWrite, Result
from batchyard.sim.scenario import FileFault, Scenario, ScenarioStep, Source, make_scenario, read_sources
from batchyard.sim.shrinkings import ShrinkTotals, totals_by_name
from batchyard.sim.simulate import Simulation, SimulationOptions
from batchyard.sim.state import State
from batchyard.sim.world import World


@dataclass(frozen=True, slots=True)
class RunStart:
    """The common start of the simulations with and without a change: a state, or a scenario at the time `at`."""

    scenario: Scenario
    state: State | None = None
    at: Duration = 0

    @property
    def cluster(self) -> Obj | None:
        """The Cluster object that describes the nodes; None without one."""
        return self.scenario.cluster


def start_from_state(state: State, *, fair_sharing: bool = False) -> RunStart:
    """Return the start of a simulation that continues from a platform's state; `fair_sharing` turns fair sharing on."""
    clusters = state.of_kind(scheme.CLUSTER)
    kueue_settings = state.kueue.with_fair_sharing() if fair_sharing else state.kueue
    return RunStart(Scenario((), kueue=kueue_settings, cluster=clusters[0] if clusters else None), state)


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """The change of a what-if analysis: scenario steps, and Kueue settings if they change."""

    steps: Sequence[ScenarioStep]
    #: The changed settings of Kueue's Configuration; None: unchanged.
    kueue: KueueSettings | None = None


@dataclass(frozen=True, slots=True)
class WorkloadTimeline:
    """When a Workload was created, started and ended, in seconds since both runs began, and its preemptions."""

    queue: str
    #: The time of creation; 0 if the Workload existed at the start.
    created_at: float = 0.0
    #: The time of the first admission; None: never; negative: before the start.
    started_at: float | None = None
    ended_at: float | None = None
    preemptions: int = 0
    #: The Workload that preempted this one first; '' if none did.
    preempted_by: str = ""
    #: Whether the Workload still exists at the end of the run.
    exists: bool = True
    #: The topology domains that its pods got last, as text.
    domains: str = ""
    #: Its partial preemptions; None without any.
    shrunk: ShrinkTotals | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A finished simulation, with or without the change: result, event log, and timelines of its Workloads."""

    result: Result
    #: The event log after the start of both runs, with times counted from that start.
    log: Sequence[Record]
    timelines: Mapping[str, WorkloadTimeline] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The finished simulations without and with the change."""

    without: RunRecord
    changed: RunRecord

    @property
    def refused(self) -> Sequence[RejectedWrite]:
        """Return the writes that the API server rejected only in the simulation with the change."""
        known_refusals = list(map(str, self.without.result.refused))
        return [refusal for refusal in self.changed.result.refused if str(refusal) not in known_refusals]


def read_change(
    sources: Iterable[Source], deleted_keys: Sequence[Key], run_start: RunStart
) -> tuple[PlannedChange, Sequence[str]]:
    """Return the change that manifests and the keys of deleted objects describe, and warnings about the manifests.

    Raise InvalidScenario with all errors.
    """
    source_errors: list[FileFault] = []
    manifests = read_manifests(read_sources(sources, source_errors))
    scenario = make_scenario(manifests, source_errors, run_start.cluster)
    kinds = {group_kind(each.obj) for each in manifests.objects}
    version = run_start.scenario.kueue.policy.rules.version
    kueue_settings = scenario.kueue.with_version(version) if scheme.CONFIGURATION in kinds else None
    if kueue_settings is None and scheme.SCENARIO in kinds:
        policy = replace(run_start.scenario.kueue.policy, fair_sharing=scenario.kueue.policy.fair_sharing)
        kueue_settings = replace(run_start.scenario.kueue, policy=policy)
    steps = [*([ScenarioStep(0, (), deleted_keys)] if deleted_keys else ()), *scenario.steps]
    return PlannedChange(_merge_steps(steps), kueue_settings), manifests.warnings


def compare(start: RunStart, change: PlannedChange, horizon: Duration | None = None, seed: int = 0) -> Comparison:
    """Simulate `start` without and with a change; both simulations end at `horizon`, counted from the change.

    Without `horizon`, each ends at the scenario's horizon, or when no more events are scheduled.
    """
    has_new_settings = change.kueue is not None and change.kueue != start.scenario.kueue
    # The history before the change must not follow the new settings, or topologies that do not exist yet.
    if start.state is None and (has_new_settings or _adds_first_topology(start.scenario, change)):
        start = run_until_start(start, seed)
    return Comparison(
        simulate_from_start(start, None, horizon, seed), simulate_from_start(start, change, horizon, seed)
    )


def run_to_end(simulation: Simulation) -> None:
    """Run a simulation to its end."""
    simulation.advance()


def simulate_from_start(
    start: RunStart,
    change: PlannedChange | None,
    run_length: Duration | None = None,
    seed: int = 0,
    finish: Callable[[Simulation], None] = run_to_end,
) -> RunRecord:
    """Simulate `start`, with `change` unless it is None, for `run_length` from the change on (None: to the end).

    `finish` runs the simulation to its end, and may observe it.
    """
    scenario = start.scenario
    if change is not None:
        later_steps = [step._replace(at=start.at + step.at) for step in change.steps]
        kueue_settings = scenario.kueue if change.kueue is None else change.kueue
        scenario = replace(scenario, steps=_merge_steps([*scenario.steps, *later_steps]), kueue=kueue_settings)
        scenario = _with_counted_topologies(scenario, change)
    log: list[Record] = []
    horizon = None if run_length is None else start.at + run_length
    simulation = Simulation(scenario, SimulationOptions(horizon, seed, sink=log.append, state=start.state))
    finish(simulation)
    result = simulation.result()
    later_log = [shifted_record for each in log if (shifted_record := _shift_record(start.at, each))["time"] >= 0]
    return RunRecord(result, later_log, _timelines(start, result, log))


def _adds_first_topology(scenario: Scenario, change: PlannedChange) -> bool:
    return "Topology" not in scenario.counts and any(
        obj["kind"] == "Topology" for step in change.steps for obj in step.apply
    )


def _with_counted_topologies(scenario: Scenario, change: PlannedChange) -> Scenario:
    """Return the scenario with the Topologies and Nodes of a change counted, if the change has Topologies.

    The counts enable topology-aware scheduling. Other changes do not affect which parts of the platform run.
    """
    kinds = [obj["kind"] for step in change.steps for obj in step.apply]
    if "Topology" not in kinds:
        return scenario
    added = {kind: scenario.counts.get(kind, 0) + kinds.count(kind) for kind in ("Topology", "Node") if kind in kinds}
    return replace(scenario, counts={**scenario.counts, **added})


def _shift_record(start_offset: Duration, record: Record) -> Record:
    return {**record, "time": duration_seconds(round(record["time"] * SECOND) - start_offset)}


def _merge_steps(steps: Iterable[ScenarioStep]) -> list[ScenarioStep]:
    step_by_moment: dict[Duration, ScenarioStep] = {}
    for step in steps:
        old = step_by_moment.get(step.at, ScenarioStep(step.at, (), ()))
        step_by_moment[step.at] = ScenarioStep(step.at, (*old.apply, *step.apply), (*old.delete, *step.delete))
    return [step_by_moment[at] for at in sorted(step_by_moment)]


def run_until_start(start: RunStart, seed: int) -> RunStart:
    """Simulate a scenario until `start.at`; return a RunStart with the state reached and the remaining scenario.

    The remaining scenario has only the later steps and faults. Faults in effect at `start.at` are part of the state,
    and end at their original time.
    """
    scenario = start.scenario
    world = World(scenario, seed=seed)
    world.run_until(start.at)
    later_steps = [step._replace(at=step.at - start.at) for step in scenario.steps if step.at > start.at]
    later_faults = [replace(fault, elapsed=start.at) for fault in scenario.faults]
    horizon = None if scenario.horizon is None else max(0, scenario.horizon - start.at)
    return RunStart(replace(scenario, steps=later_steps, faults=later_faults, horizon=horizon), world.state())


def _timelines(start: RunStart, result: Result, log: Sequence[Record]) -> dict[str, WorkloadTimeline]:
    timelines: dict[str, _TimelineBuilder] = {}
    if start.state is not None:
        for obj in start.state.of_kind(scheme.WORKLOAD):
            age_at_start = age_of(obj, start.state.at)
            started_at = None if age_at_start is None else -duration_seconds(age_at_start)
            ended_at = 0.0 if is_finished(obj) else None  # left out below, unless it is created again
            timelines[_name_of(obj)] = _TimelineBuilder(_queue_of(obj), started_at=started_at, ended_at=ended_at)
    queues = {_name_of(row.obj): f"{row.namespace}/{row.queue}" for row in result.workloads}
    for record in log:
        name = record.get("workload")
        if name is None:
            continue
        if record["event"] == "Deleted":
            timelines.setdefault(name, _TimelineBuilder("")).exists = False
            continue
        timeline = timelines.setdefault(name, _TimelineBuilder(""))
        timeline.record_event(record, _shift_record(start.at, record)["time"])
    change_time = result.now - round(result.duration * SECOND) + start.at
    shrunk = totals_by_name(result.shrinkings or (), result.now, change_time)
    return {
        name: WorkloadTimeline(
            each.queue or queues.get(name, ""),
            *each.lifecycle_times,
            each.preemptions,
            each.preempted_by,
            each.exists,
            each.domains,
            shrunk.get(name),
        )
        for name, each in timelines.items()
        if each.ended_at is None or each.ended_at > 0
    }


@dataclass(slots=True)
class _TimelineBuilder:
    queue: str
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    preemptions: int = 0
    preempted_by: str = ""
    exists: bool = True
    domains: str = ""

    @property
    def lifecycle_times(self) -> tuple[float, float | None, float | None]:
        """When the Workload was created, first admitted and finished; None if that did not happen.

        Times are in seconds since the start of the simulations.
        """
        return self.created_at, self.started_at, self.ended_at

    def record_event(self, record: Record, at: float) -> None:
        match record["event"]:
            case "Created":
                self.created_at, self.started_at, self.ended_at, self.exists = max(0.0, at), None, None, True
            case "Admitted":
                if self.started_at is None:
                    self.started_at = at
            case "QuotaReserved" | "Reassigned":
                assignments = [each.get("topologyAssignment") or {} for each in record["podSets"]]
                domains = [domain for each in assignments for domain in each.get("domains", ())]
                self.domains = ", ".join(f"{'/'.join(each['values'])}: {each['count']}" for each in domains)
            case "Finished":
                self.ended_at = at
            case "Preempted" | "Evicted" if at < 0:
                self.started_at = None
            case "Preempted":
                self.preemptions += 1
                self.preempted_by = self.preempted_by or record["by"]


def _name_of(obj: Obj) -> str:
    return str(key_of(obj))


def _queue_of(obj: Obj) -> str:
    return workload_view(obj).queue


# The subject of a query: a Workload, or the Workload of a Job or JobSet.


#: The kinds that a query may name.
SUBJECT_KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET)


def workload_of(objects: Mapping[Key, Obj], subject: Key) -> str | None:
    """Return `namespace/name` of a Workload or of a job's Workload; None if there is none.

    Of several Workloads of a job, the latest unfinished one is returned, or the latest if all are finished.
    """
    if subject.kind == scheme.WORKLOAD:
        return str(subject) if subject in objects else None
    kind = kind_info(subject.kind).kind
    owned_workloads = []
    for key, obj in objects.items():
        if key.kind != scheme.WORKLOAD or key.namespace != subject.namespace:
            continue
        owner = controller_of(obj)
        if owner is not None and owner["kind"] == kind and owner["name"] == subject.name:
            owned_workloads.append(workload_view(obj))
    owned_workloads.sort(key=lambda view: (view.finished, -view.created, view.key))
    return owned_workloads[0].key if owned_workloads else None


def subject_document(subject: Key) -> dict[str, str]:
    """Return the kind, namespace and name of an object as a part of a JSON document."""
    return {"kind": kind_info(subject.kind).kind, "namespace": subject.namespace, "name": subject.name}


# The difference between two runs with the same start: as a summary, as rows, and as a JSON document.


API_VERSION: Final = "batchyard.dev/v1alpha1"
#: Decimal places of seconds in documents: microseconds, as instants.
_DECIMAL_PLACES: Final = 6


@dataclass(frozen=True, slots=True)
class WorkloadDifference:
    """A Workload whose timelines in both runs differ; the timeline in a run without this Workload is None."""

    name: str
    queue: str
    without: WorkloadTimeline | None
    changed: WorkloadTimeline | None

    @property
    def sooner_by(self) -> float | None:
        """Return how many seconds earlier the Workload starts with the change; None unless it starts in both runs."""
        start_without = None if self.without is None else self.without.started_at
        start_with = None if self.changed is None else self.changed.started_at
        return None if start_without is None or start_with is None else start_without - start_with

    @property
    def effect(self) -> str:
        """Return the effect of the change on the Workload, as a short text."""
        without_change, with_change = self.without, self.changed
        if without_change is None:
            return "new"
        if with_change is None or (without_change.exists and not with_change.exists):
            return "gone"
        if without_change.started_at is None and with_change.started_at is not None:
            return "starts"
        if without_change.started_at is not None and with_change.started_at is None:
            return "does not start"
        if with_change.preemptions != without_change.preemptions:
            return "preempted" if with_change.preemptions > without_change.preemptions else "not preempted"
        shrink_counts = shrink_count(without_change), shrink_count(with_change)
        if shrink_counts[0] != shrink_counts[1]:
            return "shrunk" if shrink_counts[1] > shrink_counts[0] else "not shrunk"
        start_shift = self.sooner_by or 0
        if without_change.ended_at is not None and with_change.ended_at is None and start_shift >= 0:
            return "does not finish"
        if without_change.ended_at is None and with_change.ended_at is not None and start_shift <= 0:
            return "finishes"
        if start_shift:
            return "sooner" if start_shift > 0 else "later"
        if without_change.ended_at == with_change.ended_at and without_change.domains != with_change.domains:
            return "placed elsewhere"
        return "ends at another time"


@dataclass(frozen=True, slots=True)
class QueueDifference:
    """The mean wait in seconds and the number of pending Workloads of a LocalQueue, without and with the change."""

    name: str
    waited_without: float
    waited_changed: float
    pending_without: int
    pending_changed: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The effects of a change on Workloads, queues and costs, over `seconds` seconds from the instant `start_time`."""

    start_time: Instant
    seconds: float
    workloads: Sequence[WorkloadDifference]
    queues: Sequence[QueueDifference]
    comparison: Comparison

    @property
    def summary(self) -> str:
        """Return the effects of the change as one line of text."""
        counts: dict[str, int] = {}
        for row in self.workloads:
            counts[row.effect] = counts.get(row.effect, 0) + 1
        count_changes = {
            "preemption": _count_change(self.workloads, _preemption_count),
            "partial preemption": _count_change(self.workloads, shrink_count),
        }
        shown_counts = [(counts[effect], verbs) for effect, *verbs in _EFFECT_VERBS if effect in counts]
        texts = [f"{count:,} {select_verb(count, *verbs)}" for count, verbs in shown_counts]
        if shown_counts:
            count, verbs = shown_counts[0]
            texts[0] = f"{count_with_noun(count, 'Workload')} {select_verb(count, *verbs)}"
        for noun, change in count_changes.items():
            if change:
                texts.append(count_with_noun(abs(change), f"{'more' if change > 0 else 'fewer'} {noun}"))
        costs_in_cents = [_cost_cents(run.result) for run in (self.comparison.changed, self.comparison.without)]
        if costs_in_cents[0] != costs_in_cents[1]:
            texts.append(f"{_format_dollars(costs_in_cents[0] - costs_in_cents[1])} for machines")
        return ", ".join(texts) or "the change affects no Workload"


#: The effects in the order of the summary, each with a verb for one Workload and for several.
_EFFECT_VERBS: Final = (
    ("new", "is new", "are new"),
    ("gone", "is gone", "are gone"),
    ("starts", "starts only with the change", "start only with the change"),
    ("does not start", "no longer starts", "no longer start"),
    ("preempted", "is preempted only with the change", "are preempted only with the change"),
    ("not preempted", "is no longer preempted", "are no longer preempted"),
    ("shrunk", "is shrunk only with the change", "are shrunk only with the change"),
    ("not shrunk", "is no longer shrunk", "are no longer shrunk"),
    ("finishes", "finishes only with the change", "finish only with the change"),
    ("does not finish", "no longer finishes", "no longer finish"),
    ("sooner", "starts sooner", "start sooner"),
    ("later", "starts later", "start later"),
    ("ends at another time", "ends at another time", "end at another time"),
    ("placed elsewhere", "gets other topology domains", "get other topology domains"),
)


def difference_of(comparison: Comparison, start_time: Instant) -> Difference:
    """Return the differences between both simulations, which begin at the instant `start_time`."""
    without, changed = comparison.without, comparison.changed
    workload_differences = []
    for name in sorted({**without.timelines, **changed.timelines}):
        timelines = without.timelines.get(name), changed.timelines.get(name)
        if timelines[0] != timelines[1]:
            queue = next((timeline.queue for timeline in timelines if timeline is not None and timeline.queue), "")
            workload_differences.append(WorkloadDifference(name, queue, *timelines))
    run_seconds = max(duration_seconds(run.result.now - start_time) for run in (without, changed))
    return Difference(start_time, run_seconds, workload_differences, _queue_rows(comparison, run_seconds), comparison)


def document_of(difference: Difference) -> dict[str, Any]:
    """Return the effects of a change as a JSON document."""
    without_change, with_change = difference.comparison.without.result, difference.comparison.changed.result
    return {
        "apiVersion": API_VERSION,
        "kind": "Comparison",
        "time": format_time(difference.start_time),
        "seconds": round(difference.seconds, _DECIMAL_PLACES),
        "summary": difference.summary,
        "workloads": [_workload_document(row) for row in difference.workloads],
        "queues": [_queue_document(row) for row in difference.queues],
        "nodes": {"without": _nodes_document(without_change), "changed": _nodes_document(with_change)},
        "costs": {
            "currency": "USD",
            "without": _format_cents(_cost_cents(without_change)),
            "changed": _format_cents(_cost_cents(with_change)),
        },
        "refused": list(map(str, difference.comparison.refused)),
    }


def machine_hours(result: Result) -> float:
    """Return the total billed machine hours of a simulation; 0 without a cluster."""
    return 0.0 if result.costs is None else sum(line.machine_hours for line in result.costs.by_pool)


def _cost_cents(result: Result) -> int:
    return 0 if result.costs is None else result.costs.cents


def _format_cents(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def _format_dollars(cents: int) -> str:
    return f"{'+' if cents > 0 else '-'}${_format_cents(abs(cents))}"


def _count_change(rows: Sequence[WorkloadDifference], count_of: Callable[[WorkloadTimeline | None], int]) -> int:
    return sum(count_of(row.changed) - count_of(row.without) for row in rows)


def shrink_count(timeline: WorkloadTimeline | None) -> int:
    """Return how often a Workload was shrunk by a partial preemption."""
    return 0 if timeline is None or timeline.shrunk is None else timeline.shrunk.shrink_count


def _preemption_count(timeline: WorkloadTimeline | None) -> int:
    return 0 if timeline is None else timeline.preemptions


def _queue_rows(comparison: Comparison, run_seconds: float) -> list[QueueDifference]:
    old, new = (dict(_waits_by_queue(run.timelines, run_seconds)) for run in (comparison.without, comparison.changed))
    no_waits = (0.0, 0)
    rows = []
    for name in sorted({**old, **new}):
        wait_without, wait_changed = old.get(name, no_waits), new.get(name, no_waits)
        if wait_without != wait_changed:
            rows.append(QueueDifference(name, wait_without[0], wait_changed[0], wait_without[1], wait_changed[1]))
    return rows


def _waits_by_queue(
    timelines: Mapping[str, WorkloadTimeline], length: float
) -> Iterator[tuple[str, tuple[float, int]]]:
    timelines_by_queue: dict[str, list[WorkloadTimeline]] = {}
    for timeline in timelines.values():
        if timeline.queue and timeline.exists:
            timelines_by_queue.setdefault(timeline.queue, []).append(timeline)
    for queue, queue_timelines in timelines_by_queue.items():
        waits = [(length if each.started_at is None else each.started_at) - each.created_at for each in queue_timelines]
        positive_waits = [each for each in waits if each > 0]
        yield (
            queue,
            (sum(positive_waits) / len(queue_timelines), sum(each.started_at is None for each in queue_timelines)),
        )


def _workload_document(difference: WorkloadDifference) -> dict[str, Any]:
    document: dict[str, Any] = {"name": difference.name, "queue": difference.queue, "effect": difference.effect}
    for side, timeline in (("without", difference.without), ("changed", difference.changed)):
        if timeline is not None:
            document[side] = _timeline_document(timeline)
    return (
        document
        if difference.sooner_by is None
        else {**document, "startsSooner": round(difference.sooner_by, _DECIMAL_PLACES)}
    )


def _timeline_document(timeline: WorkloadTimeline) -> dict[str, Any]:
    times = {"startsAfter": timeline.started_at, "endsAfter": timeline.ended_at}
    document: dict[str, Any] = {name: round(time, _DECIMAL_PLACES) for name, time in times.items() if time is not None}
    preemptor_fields = {"preemptedBy": timeline.preempted_by} if timeline.preempted_by else {}
    domains_field = {"domains": timeline.domains} if timeline.domains else {}
    shrunk_field = {} if timeline.shrunk is None else {"partialPreemptions": timeline.shrunk.document()}
    return {**document, "preemptions": timeline.preemptions, **preemptor_fields, **domains_field, **shrunk_field}


def _queue_document(difference: QueueDifference) -> dict[str, Any]:
    return {
        "queue": difference.name,
        "without": {
            "waitSeconds": round(difference.waited_without, _DECIMAL_PLACES),
            "pending": difference.pending_without,
        },
        "changed": {
            "waitSeconds": round(difference.waited_changed, _DECIMAL_PLACES),
            "pending": difference.pending_changed,
        },
    }


def _nodes_document(result: Result) -> dict[str, Any]:
    return {"atEnd": len(result.objects[scheme.NODE]), "machineHours": round(machine_hours(result), _DECIMAL_PLACES)}
