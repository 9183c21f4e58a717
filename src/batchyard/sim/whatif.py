"""What a change would make of a platform: the same state goes on twice, once with the change, and both are compared.

The change comes when the rest of its instant is done. Both runs have one seed, so whatever differs comes of the change.
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
from batchyard.sim.files import Source, read_sources
from batchyard.sim.forecasting.run_times import age_of
from batchyard.sim.result import Refusal, Result
from batchyard.sim.scenario import FileFault, Scenario, Step, make_scenario
from batchyard.sim.simulate import Options, Simulation
from batchyard.sim.state import State
from batchyard.sim.world import World


@dataclass(frozen=True, slots=True)
class Start:
    """Where both runs begin: with a state, or `at` so long after the start of a scenario."""

    scenario: Scenario
    state: State | None = None
    at: Duration = 0

    @property
    def cluster(self) -> Obj | None:
        """What describes the nodes then."""
        return self.scenario.cluster


def start_of(state: State, *, fair_sharing: bool = False) -> Start:
    """A state with which both runs begin; queues share fairly if it says so, or whoever asks."""
    clusters = state.of_kind(scheme.CLUSTER)
    kueue = state.kueue.sharing_fairly() if fair_sharing else state.kueue
    return Start(Scenario((), kueue=kueue, cluster=clusters[0] if clusters else None), state)


@dataclass(frozen=True, slots=True)
class Change:
    """What is done, counted from the moment at which both runs begin."""

    steps: Sequence[Step]
    #: What Kueue's Configuration says from then on; None: as before.
    kueue: KueueSettings | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """What became of a Workload in a run; times are seconds from where both began."""

    queue: str
    #: When it came; 0 if it was there before.
    since: float = 0.0
    #: When it was admitted first; None: it was not. Below 0: it was before.
    starts: float | None = None
    ends: float | None = None
    preemptions: int = 0
    #: The Workload that preempted it first.
    by: str = ""
    is_there: bool = True


@dataclass(frozen=True, slots=True)
class Course:
    """One of the two runs."""

    result: Result
    #: The event log from where both began, its times counted from there.
    log: Sequence[Record]
    stories: Mapping[str, Story] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both runs: without the change, and with it."""

    without: Course
    changed: Course

    @property
    def refused(self) -> Sequence[Refusal]:
        """What of the change the API refused."""
        known = list(map(str, self.without.result.refused))
        return [refusal for refusal in self.changed.result.refused if str(refusal) not in known]


def read_change(sources: Iterable[Source], deleted: Sequence[Key], start: Start) -> tuple[Change, Sequence[str]]:
    """The change that manifests describe, and objects to delete at once; what is to be said about it.

    InvalidScenario with everything that is wrong.
    """
    unread: list[FileFault] = []
    manifests = read_manifests(read_sources(sources, unread))
    scenario = make_scenario(manifests, unread, start.cluster)
    kinds = {group_kind(each.obj) for each in manifests.objects}
    kueue = scenario.kueue if scheme.CONFIGURATION in kinds else None
    if kueue is None and scheme.SCENARIO in kinds:
        kueue = replace(start.scenario.kueue, policy=scenario.kueue.policy)
    steps = [*([Step(0, (), deleted)] if deleted else ()), *scenario.steps]
    return Change(_together(steps), kueue), manifests.warnings


def compare(start: Start, change: Change, until: Duration | None = None, seed: int = 0) -> Comparison:
    """Run both, for so long after the change."""
    if change.kueue is not None and change.kueue != start.scenario.kueue and start.state is None:
        start = _stopped(start, seed)
    return Comparison(course(start, None, until, seed), course(start, change, until, seed))


def to_its_end(simulation: Simulation) -> None:
    """Run it."""
    simulation.advance()


def course(
    start: Start,
    change: Change | None,
    until: Duration | None = None,
    seed: int = 0,
    finish: Callable[[Simulation], None] = to_its_end,
) -> Course:
    """What becomes of a start, with a change or without; `finish` runs it, and may watch."""
    scenario = start.scenario
    if change is not None:
        later = [step._replace(at=start.at + step.at) for step in change.steps]
        kueue = scenario.kueue if change.kueue is None else change.kueue
        scenario = replace(scenario, steps=_together([*scenario.steps, *later]), kueue=kueue)
    log: list[Record] = []
    horizon = None if until is None else start.at + until
    simulation = Simulation(scenario, Options(horizon, seed, sink=log.append, state=start.state))
    finish(simulation)
    result = simulation.result()
    later_log = [told for each in log if (told := _since(start.at, each))["time"] >= 0]
    return Course(result, later_log, _stories(start, result, log))


def _since(began: Duration, record: Record) -> Record:
    """A record of a run with its time counted from later on."""
    return {**record, "time": seconds(round(record["time"] * SECOND) - began)}


def _together(steps: Iterable[Step]) -> list[Step]:
    """The steps in order of time, those of one moment as one."""
    by_moment: dict[Duration, Step] = {}
    for step in steps:
        known = by_moment.get(step.at, Step(step.at, (), ()))
        by_moment[step.at] = Step(step.at, (*known.apply, *step.apply), (*known.delete, *step.delete))
    return [by_moment[at] for at in sorted(by_moment)]


def _stopped(start: Start, seed: int) -> Start:
    """The state of a scenario at its moment, with what it still does after that."""
    scenario = start.scenario
    world = World(scenario, seed=seed)
    world.run_until(start.at)
    rest = [step._replace(at=step.at - start.at) for step in scenario.steps if step.at > start.at]
    return Start(replace(scenario, steps=rest, faults=()), world.state())


# --- what became of whom ---


def _stories(start: Start, result: Result, log: Sequence[Record]) -> dict[str, Story]:
    """What became of each Workload that was there at any time after both began, by namespace and name."""
    told: dict[str, _Telling] = {}
    if start.state is not None:
        for obj in start.state.of_kind(scheme.WORKLOAD):
            if not is_finished(obj):
                age = age_of(obj, start.state.at)
                told[_name(obj)] = _Telling(_queue(obj), starts=None if age is None else -seconds(age))
    queues = {_name(row.obj): f"{row.namespace}/{row.queue}" for row in result.workloads}
    for record in log:
        name = record.get("workload")
        if name is None:
            continue
        if record["event"] == "Deleted":
            told.setdefault(name, _Telling("")).is_there = False
            continue
        story = told.setdefault(name, _Telling(""))
        story.note(record, _since(start.at, record)["time"])
    return {
        name: Story(each.queue or queues.get(name, ""), *each.times, each.preemptions, each.by, each.is_there)
        for name, each in told.items()
        if each.ends is None or each.ends > 0
    }


@dataclass(slots=True)
class _Telling:
    """A story that is not over."""

    queue: str
    since: float = 0.0
    starts: float | None = None
    ends: float | None = None
    preemptions: int = 0
    by: str = ""
    is_there: bool = True

    @property
    def times(self) -> tuple[float, float | None, float | None]:
        """When it came, was admitted, and ended."""
        return self.since, self.starts, self.ends

    def note(self, record: Record, at: float) -> None:
        """Something happened to the Workload."""
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


# --- unread ---
#
# What it costs an answer that some kind of objects could not be read.


#: Kinds that only a platform of batchyard has.
_OURS: Final = ".batchyard.dev"
#: Without these nothing can be said at all.
NEEDED: Final = (scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.RESOURCE_FLAVOR, scheme.WORKLOAD)
_COSTS: Final = {
    scheme.NAMESPACE: "namespaceSelectors are matched by names alone",
    scheme.COHORT: "Cohorts have no quota of their own, and only the parents that queues name",
    scheme.TOPOLOGY: "nothing is known of racks and blocks",
    scheme.ADMISSION_CHECK: "queues with AdmissionChecks are taken for inactive",
    scheme.PROVISIONING_REQUEST_CONFIG: "checks that ask for capacity are not looked into",
    scheme.PROVISIONING_REQUEST: "who waits for capacity on request is not known",
    scheme.POD_TEMPLATE: "what capacity was asked for is not known",
    scheme.LIMIT_RANGE: "whoever breaks the limits of his namespace is taken to be in order",
    scheme.PRIORITY_CLASS: "new jobs get no priority of a PriorityClass; those that are there keep theirs",
    scheme.WORKLOAD_PRIORITY_CLASS: "new jobs get no priority of one; those that are there keep theirs",
    scheme.JOB: "run times come from history alone, and Jobs cannot be asked about",
    scheme.JOB_SET: "JobSets cannot be asked about, and their run times come from history alone",
    scheme.POD: "nodes are taken to be empty, and pods cannot be asked about",
    scheme.NODE: "only quota is looked at, no machines",
    scheme.POD_DISRUPTION_BUDGET: "pods are taken to have no disruption budgets",
    scheme.RESOURCE_QUOTA: "new pods are not held back by ResourceQuotas",
}


def cost_of(kind: str) -> str:
    """What is not known without a kind, for people."""
    info = kind_info(kind)
    name = f"{info.plural}.{info.group}" if info.group else info.plural
    return f"{name}: {_COSTS.get(kind, 'what they say is not looked at')}"


def told_of(kinds: Iterable[str]) -> list[str]:
    """The same of several."""
    found = list(kinds)
    own = [kind for kind in found if kind.endswith(_OURS)]
    told = [cost_of(kind) for kind in found if kind not in own]
    names = ", ".join(kind_info(kind).plural for kind in own)
    return (
        [*told, f"{names}: nothing of machines that come and go, if this is a platform of batchyard"] if own else told
    )


# --- subjects ---
#
# Whom a question is about: a Workload, or that of a Job or a JobSet.


#: The kinds that may be asked about.
KINDS: Final = (scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET)


def workload_of(objects: Mapping[Key, Obj], subject: Key) -> str | None:
    """The Workload of a subject, by namespace and name; None if it has none. Of several the one that goes on."""
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


def subjects_told_of(subject: Key) -> dict[str, str]:
    """A subject as documents name it."""
    return {"kind": kind_info(subject.kind).kind, "namespace": subject.namespace, "name": subject.name}
