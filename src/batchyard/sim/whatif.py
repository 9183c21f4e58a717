"""What-if analysis: runs the same state twice, with and without a change, and compares both.

The change is applied when the other work of its instant is done. Both runs use the same seed, so every difference is
caused by the change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj, controller_of, group_kind, key_of
from batchyard.api.scheme import kind_info
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import SECOND, Duration, seconds
from batchyard.scheduling.kueue_configuration import KueueSettings
from batchyard.scheduling.workload.lifecycle import is_finished
from batchyard.sim.event_log import Record
from batchyard.sim.forecasting.run_times import age_of
from batchyard.sim.result import RejectedWrite, Result
from batchyard.sim.scenario import FileFault, Scenario, ScenarioStep, Source, make_scenario, read_sources
from batchyard.sim.simulate import Simulation, SimulationOptions
from batchyard.sim.state import State
from batchyard.sim.world import World


@dataclass(frozen=True, slots=True)
class RunStart:
    """The common start of both runs: a state, or the time `at` of a scenario."""

    scenario: Scenario
    state: State | None = None
    at: Duration = 0

    @property
    def cluster(self) -> Obj | None:
        """Return the Cluster that describes the nodes."""
        return self.scenario.cluster


def start_of(state: State, *, fair_sharing: bool = False) -> RunStart:
    """Return a state as the start; fair sharing is on if the state or the caller says so."""
    clusters = state.of_kind(scheme.CLUSTER)
    kueue = state.kueue.sharing_fairly() if fair_sharing else state.kueue
    return RunStart(Scenario((), kueue=kueue, cluster=clusters[0] if clusters else None), state)


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """The change, with times counted from the start of both runs."""

    steps: Sequence[ScenarioStep]
    #: Kueue's Configuration from then on; None: unchanged.
    kueue: KueueSettings | None = None


@dataclass(frozen=True, slots=True)
class WorkloadTimeline:
    """The life of a Workload in a run; times are in seconds from the start of both runs."""

    queue: str
    #: The time of creation; 0 if it existed before.
    since: float = 0.0
    #: The time of the first admission; None if never; negative if before the start.
    starts: float | None = None
    ends: float | None = None
    preemptions: int = 0
    #: The Workload that preempted it first.
    by: str = ""
    is_there: bool = True


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One of the two runs."""

    result: Result
    #: The event log from the start of both runs, with times counted from there.
    log: Sequence[Record]
    stories: Mapping[str, WorkloadTimeline] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both runs: without the change, and with it."""

    without: RunRecord
    changed: RunRecord

    @property
    def refused(self) -> Sequence[RejectedWrite]:
        """Return the writes of the change that the API rejected."""
        known = list(map(str, self.without.result.refused))
        return [refusal for refusal in self.changed.result.refused if str(refusal) not in known]


def read_change(
    sources: Iterable[Source], deleted: Sequence[Key], start: RunStart
) -> tuple[PlannedChange, Sequence[str]]:
    """Read the change that manifests describe, and objects to delete at once; return it with the warnings.

    Raises InvalidScenario with all errors.
    """
    unread: list[FileFault] = []
    manifests = read_manifests(read_sources(sources, unread))
    scenario = make_scenario(manifests, unread, start.cluster)
    kinds = {group_kind(each.obj) for each in manifests.objects}
    kueue = scenario.kueue if scheme.CONFIGURATION in kinds else None
    if kueue is None and scheme.SCENARIO in kinds:
        kueue = replace(start.scenario.kueue, policy=scenario.kueue.policy)
    steps = [*([ScenarioStep(0, (), deleted)] if deleted else ()), *scenario.steps]
    return PlannedChange(_together(steps), kueue), manifests.warnings


def compare(start: RunStart, change: PlannedChange, until: Duration | None = None, seed: int = 0) -> Comparison:
    """Run both; `until` counts from the change."""
    if change.kueue is not None and change.kueue != start.scenario.kueue and start.state is None:
        start = _stopped(start, seed)
    return Comparison(course(start, None, until, seed), course(start, change, until, seed))


def run_to_end(simulation: Simulation) -> None:
    """Run a simulation to its end."""
    simulation.advance()


def course(
    start: RunStart,
    change: PlannedChange | None,
    until: Duration | None = None,
    seed: int = 0,
    finish: Callable[[Simulation], None] = run_to_end,
) -> RunRecord:
    """Run from a start, with a change or without; `finish` advances the simulation, and may observe it."""
    scenario = start.scenario
    if change is not None:
        later = [step._replace(at=start.at + step.at) for step in change.steps]
        kueue = scenario.kueue if change.kueue is None else change.kueue
        scenario = replace(scenario, steps=_together([*scenario.steps, *later]), kueue=kueue)
    log: list[Record] = []
    horizon = None if until is None else start.at + until
    simulation = Simulation(scenario, SimulationOptions(horizon, seed, sink=log.append, state=start.state))
    finish(simulation)
    result = simulation.result()
    later_log = [shifted for each in log if (shifted := _since(start.at, each))["time"] >= 0]
    return RunRecord(result, later_log, _stories(start, result, log))


def _since(began: Duration, record: Record) -> Record:
    """Return a log record with its time counted from `began`."""
    return {**record, "time": seconds(round(record["time"] * SECOND) - began)}


def _together(steps: Iterable[ScenarioStep]) -> list[ScenarioStep]:
    """Merge the steps of each moment into one, in order of time."""
    by_moment: dict[Duration, ScenarioStep] = {}
    for step in steps:
        known = by_moment.get(step.at, ScenarioStep(step.at, (), ()))
        by_moment[step.at] = ScenarioStep(step.at, (*known.apply, *step.apply), (*known.delete, *step.delete))
    return [by_moment[at] for at in sorted(by_moment)]


def _stopped(start: RunStart, seed: int) -> RunStart:
    """Return the state of a scenario at its moment, with the steps that follow."""
    scenario = start.scenario
    world = World(scenario, seed=seed)
    world.run_until(start.at)
    rest = [step._replace(at=step.at - start.at) for step in scenario.steps if step.at > start.at]
    return RunStart(replace(scenario, steps=rest, faults=()), world.state())


# --- lives of Workloads ---


def _stories(start: RunStart, result: Result, log: Sequence[Record]) -> dict[str, WorkloadTimeline]:
    """Return the life of each Workload that existed after the start, by namespace and name."""
    timelines: dict[str, _TimelineBuilder] = {}
    if start.state is not None:
        for obj in start.state.of_kind(scheme.WORKLOAD):
            if not is_finished(obj):
                age = age_of(obj, start.state.at)
                timelines[_name(obj)] = _TimelineBuilder(_queue(obj), starts=None if age is None else -seconds(age))
    queues = {_name(row.obj): f"{row.namespace}/{row.queue}" for row in result.workloads}
    for record in log:
        name = record.get("workload")
        if name is None:
            continue
        if record["event"] == "Deleted":
            timelines.setdefault(name, _TimelineBuilder("")).is_there = False
            continue
        story = timelines.setdefault(name, _TimelineBuilder(""))
        story.note(record, _since(start.at, record)["time"])
    return {
        name: WorkloadTimeline(
            each.queue or queues.get(name, ""), *each.times, each.preemptions, each.by, each.is_there
        )
        for name, each in timelines.items()
        if each.ends is None or each.ends > 0
    }


@dataclass(slots=True)
class _TimelineBuilder:
    """The life of a Workload, while the log is read."""

    queue: str
    since: float = 0.0
    starts: float | None = None
    ends: float | None = None
    preemptions: int = 0
    by: str = ""
    is_there: bool = True

    @property
    def times(self) -> tuple[float, float | None, float | None]:
        """Return the times of creation, admission and end."""
        return self.since, self.starts, self.ends

    def note(self, record: Record, at: float) -> None:
        """Apply a log record of the Workload."""
        match record["event"]:
            case "Created":
                self.since, self.starts, self.ends, self.is_there = max(0.0, at), None, None, True
            case "Admitted":
                if self.starts is None:
                    self.starts = at
            case "Finished":
                self.ends = at
            case "Preempted" | "Evicted" if at < 0:
                self.starts = None
            case "Preempted":
                self.preemptions += 1
                self.by = self.by or record["by"]


def _name(obj: Obj) -> str:
    return str(key_of(obj))


def _queue(obj: Obj) -> str:
    return workload_view(obj).queue


# --- unread kinds ---
#
# The consequences for an answer when objects of a kind could not be read.


#: The suffix of the API groups that only a batchyard platform has.
_OURS: Final = ".batchyard.dev"
#: Without these kinds no answer is possible.
NEEDED: Final = (scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.RESOURCE_FLAVOR, scheme.WORKLOAD)
_COSTS: Final = {
    scheme.NAMESPACE: "namespaceSelectors match by the namespace's name only",
    scheme.COHORT: "Cohorts count as having no quota of their own and no parents",
    scheme.TOPOLOGY: "racks and blocks are unknown",
    scheme.ADMISSION_CHECK: "queues with AdmissionChecks count as inactive",
    scheme.PROVISIONING_REQUEST_CONFIG: "the settings of provisioning checks are unknown",
    scheme.PROVISIONING_REQUEST: "Workloads that wait for provisioned capacity are unknown",
    scheme.POD_TEMPLATE: "the capacity of ProvisioningRequests is unknown",
    scheme.LIMIT_RANGE: "violations of LimitRanges are not detected",
    scheme.PRIORITY_CLASS: "new jobs get no priority from a PriorityClass; existing ones keep theirs",
    scheme.WORKLOAD_PRIORITY_CLASS: "new jobs get no priority from one; existing ones keep theirs",
    scheme.JOB: "run times come from history only, and Jobs cannot be queried",
    scheme.JOB_SET: "JobSets cannot be queried, and their run times come from history only",
    scheme.POD: "nodes count as empty, and pods cannot be queried",
    scheme.NODE: "only quota is considered, no machines",
    scheme.POD_DISRUPTION_BUDGET: "pods count as having no disruption budgets",
    scheme.RESOURCE_QUOTA: "ResourceQuotas do not limit new pods",
}


def consequence_of(kind: str) -> str:
    """Return the consequence of an unread kind, as a text."""
    info = kind_info(kind)
    name = f"{info.plural}.{info.group}" if info.group else info.plural
    return f"{name}: {_COSTS.get(kind, 'their content is ignored')}"


def consequences_of(kinds: Iterable[str]) -> list[str]:
    """Return the consequences of several unread kinds."""
    found = list(kinds)
    own = [kind for kind in found if kind.endswith(_OURS)]
    texts = [consequence_of(kind) for kind in found if kind not in own]
    names = ", ".join(kind_info(kind).plural for kind in own)
    return (
        [*texts, f"{names}: if this is a batchyard platform, the autoscaling of machines is unknown"] if own else texts
    )


# --- subjects ---
#
# The subject of a query: a Workload, or that of a Job or a JobSet.


#: The kinds that a query may name.
KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET)


def workload_of(objects: Mapping[Key, Obj], subject: Key) -> str | None:
    """Return the Workload of a subject, by namespace and name, or None; of several the unfinished or latest one."""
    if subject.kind == scheme.WORKLOAD:
        return str(subject) if subject in objects else None
    kind = kind_info(subject.kind).kind
    found = []
    for key, obj in objects.items():
        if key.kind != scheme.WORKLOAD or key.namespace != subject.namespace:
            continue
        owner = controller_of(obj)
        if owner is not None and owner["kind"] == kind and owner["name"] == subject.name:
            found.append(workload_view(obj))
    found.sort(key=lambda view: (view.finished, -view.created, view.key))
    return found[0].key if found else None


def subject_document(subject: Key) -> dict[str, str]:
    """Return a subject as documents name it."""
    return {"kind": kind_info(subject.kind).kind, "namespace": subject.namespace, "name": subject.name}
