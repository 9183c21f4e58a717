"""What-if analysis: runs the same state twice, with and without a change, and compares both.

The change is applied when the other work of its instant is done. Both runs use the same seed, so every difference is
caused by the change.
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
from batchyard.base.instant import SECOND, Duration, Instant, seconds
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


# --- Workload timelines ---


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


# --- difference ---
#
# The difference between two runs with the same start: as a summary, as rows, and as a document for programs.


API_VERSION: Final = "batchyard.dev/v1alpha1"
#: Decimal places of seconds in documents: microseconds, as instants.
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class WorkloadDifference:
    """A Workload that differs between the runs; None for a run in which it does not exist."""

    name: str
    queue: str
    without: WorkloadTimeline | None
    changed: WorkloadTimeline | None

    @property
    def sooner(self) -> float | None:
        """Return how many seconds earlier it starts with the change; None unless it starts in both runs."""
        before = None if self.without is None else self.without.starts
        after = None if self.changed is None else self.changed.starts
        return None if before is None or after is None else before - after

    @property
    def effect(self) -> str:
        """Return the effect of the change on it, in a word or two."""
        old, new = self.without, self.changed
        if old is None:
            return "new"
        if new is None or (old.is_there and not new.is_there):
            return "gone"
        if old.starts is None and new.starts is not None:
            return "starts"
        if old.starts is not None and new.starts is None:
            return "does not start"
        if new.preemptions != old.preemptions:
            return "preempted" if new.preemptions > old.preemptions else "not preempted"
        if self.sooner:
            return "sooner" if self.sooner > 0 else "later"
        return "other end"


@dataclass(frozen=True, slots=True)
class QueueDifference:
    """The mean wait of the Workloads of a LocalQueue from the start on, in seconds, and how many are pending."""

    name: str
    waited_without: float
    waited_changed: float
    pending_without: int
    pending_changed: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences between two runs: Workloads, queues and costs. `began` and `seconds` give the time span."""

    began: Instant
    seconds: float
    workloads: Sequence[WorkloadDifference]
    queues: Sequence[QueueDifference]
    comparison: Comparison

    @property
    def summary(self) -> str:
        """Return the difference in one line."""
        effects: dict[str, int] = {}
        for row in self.workloads:
            effects[row.effect] = effects.get(row.effect, 0) + 1
        preemptions = _preempted(self.workloads)
        parts = [f"{effects[effect]} {words}" for effect, words in _WORDS if effect in effects]
        parts += [f"{abs(preemptions)} {'more' if preemptions > 0 else 'fewer'} preemptions"] if preemptions else []
        cents = [_cents(course.result) for course in (self.comparison.changed, self.comparison.without)]
        if cents[0] != cents[1]:
            parts.append(f"{_dollars(cents[0] - cents[1])} for machines")
        return ", ".join(parts) or "nothing changes for any Workload"


_WORDS: Final = (
    ("new", "new"),
    ("gone", "gone"),
    ("starts", "start that would not"),
    ("does not start", "do not start that would"),
    ("preempted", "preempted that would not be"),
    ("not preempted", "not preempted that would be"),
    ("sooner", "start sooner"),
    ("later", "start later"),
    ("other end", "end at another time"),
)


def difference_of(comparison: Comparison, began: Instant) -> Difference:
    """Compute the difference; `began` is the instant at which both runs began."""
    old, new = comparison.without, comparison.changed
    rows = []
    for name in sorted({**old.stories, **new.stories}):
        stories = old.stories.get(name), new.stories.get(name)
        if stories[0] != stories[1]:
            queue = next((story.queue for story in stories if story is not None and story.queue), "")
            rows.append(WorkloadDifference(name, queue, *stories))
    lasts = max(seconds(course.result.now - began) for course in (old, new))
    return Difference(began, lasts, rows, _queue_rows(comparison, lasts), comparison)


def document_of(difference: Difference) -> dict[str, Any]:
    """Return the difference as a document for programs."""
    old, new = difference.comparison.without.result, difference.comparison.changed.result
    return {
        "apiVersion": API_VERSION,
        "kind": "Comparison",
        "time": format_time(difference.began),
        "seconds": round(difference.seconds, _DIGITS),
        "summary": difference.summary,
        "workloads": [_workload(row) for row in difference.workloads],
        "queues": [_queue_difference(row) for row in difference.queues],
        "nodes": {"without": _nodes(old), "changed": _nodes(new)},
        "costs": {"currency": "USD", "without": _amount(_cents(old)), "changed": _amount(_cents(new))},
        "refused": list(map(str, difference.comparison.refused)),
    }


def machine_hours(result: Result) -> float:
    """Return the billed machine hours."""
    return 0.0 if result.costs is None else sum(line.machine_hours for line in result.costs.by_pool)


def _cents(result: Result) -> int:
    return 0 if result.costs is None else result.costs.cents


def _amount(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def _dollars(cents: int) -> str:
    return f"{'+' if cents > 0 else '-'}${_amount(abs(cents))}"


def _preempted(rows: Sequence[WorkloadDifference]) -> int:
    """Return how many more preemptions occur with the change."""
    return sum(_preemptions(row.changed) - _preemptions(row.without) for row in rows)


def _preemptions(story: WorkloadTimeline | None) -> int:
    return 0 if story is None else story.preemptions


def _queue_rows(comparison: Comparison, lasts: float) -> list[QueueDifference]:
    """Return the queues whose waits differ between the runs."""
    old, new = (dict(_waits(course.stories, lasts)) for course in (comparison.without, comparison.changed))
    no_waits = (0.0, 0)
    rows = []
    for name in sorted({**old, **new}):
        before, after = old.get(name, no_waits), new.get(name, no_waits)
        if before != after:
            rows.append(QueueDifference(name, before[0], after[0], before[1], after[1]))
    return rows


def _waits(stories: Mapping[str, WorkloadTimeline], lasts: float) -> Iterator[tuple[str, tuple[float, int]]]:
    """Yield the mean wait and the number of pending Workloads by queue."""
    by_queue: dict[str, list[WorkloadTimeline]] = {}
    for story in stories.values():
        if story.queue and story.is_there:
            by_queue.setdefault(story.queue, []).append(story)
    for queue, found in by_queue.items():
        waited = [(lasts if each.starts is None else each.starts) - each.since for each in found]
        late = [each for each in waited if each > 0]
        yield queue, (sum(late) / len(found), sum(each.starts is None for each in found))


def _workload(row: WorkloadDifference) -> dict[str, Any]:
    document: dict[str, Any] = {"name": row.name, "queue": row.queue, "effect": row.effect}
    for side, story in (("without", row.without), ("changed", row.changed)):
        if story is not None:
            document[side] = _story(story)
    return document if row.sooner is None else {**document, "startsSooner": round(row.sooner, _DIGITS)}


def _story(story: WorkloadTimeline) -> dict[str, Any]:
    times = {"startsAfter": story.starts, "endsAfter": story.ends}
    document: dict[str, Any] = {name: round(time, _DIGITS) for name, time in times.items() if time is not None}
    by = {"preemptedBy": story.by} if story.by else {}
    return {**document, "preemptions": story.preemptions, **by}


def _queue_difference(row: QueueDifference) -> dict[str, Any]:
    return {
        "queue": row.name,
        "without": {"waitSeconds": round(row.waited_without, _DIGITS), "pending": row.pending_without},
        "changed": {"waitSeconds": round(row.waited_changed, _DIGITS), "pending": row.pending_changed},
    }


def _nodes(result: Result) -> dict[str, Any]:
    return {"atEnd": len(result.objects[scheme.NODE]), "machineHours": round(machine_hours(result), _DIGITS)}
