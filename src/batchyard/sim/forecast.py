"""Start-time forecasts: Monte Carlo forks of a state, each with run times and arrivals drawn at random.

A fork ends when all requested Workloads are admitted, or at its horizon. The sorted start times give the interval. The
number of forks is limited by a number of kernel steps, so that a forecast takes a bounded time and is reproducible.
For a Workload further back in the queue than the forks simulate, the start is extrapolated. It uses the pace of the
later half of the queue's admissions.

A Workload of unknown run time never ends in any fork. If another one does not start because of that, those forks give
no time for it, and the forecast names the Workloads it depends on.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, format_amount, key_of, with_metadata
from batchyard.api.times import format_time
from batchyard.api.views.node import node_view
from batchyard.api.views.workload import WorkloadView, flavor_view, workload_view
from batchyard.apiserver.request import StatusError
from batchyard.base import draw
from batchyard.base.instant import HOUR, SECOND, Duration, Instant
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.kueue_configuration import SIMULATED, KueueSettings
from batchyard.scheduling.quota import available
from batchyard.scheduling.snapshot import Snapshot
from batchyard.sim.event_log import Record
from batchyard.sim.forecasting.arrivals import NAME as ARRIVAL
from batchyard.sim.forecasting.arrivals import ArrivalModel
from batchyard.sim.forecasting.calibration import (
    LEVELS,
    MEDIAN,
    Calibration,
    ForecastRecord,
    Waits,
    in_order,
    logged,
    moved_by,
    tracks_of,
    wait_of,
)
from batchyard.sim.forecasting.quota_only_state import (
    QuotaOnlyState,
    lines_of,
    queues_of,
    reduce_to_quota,
    standalone_workload,
    state_with,
    trees_of,
)
from batchyard.sim.forecasting.run_times import Basis, Estimate, HistoryDraws, RunTimeEstimator, age_of
from batchyard.sim.scenario import Scenario
from batchyard.sim.state import State
from batchyard.sim.whatif import subject_document, workload_of
from batchyard.sim.world import World

FORKS: Final = 40
#: The minimum number of forks of a forecast.
FORKS_MIN: Final = 3
#: The limit of kernel steps in all forks of a forecast, about 15 seconds, and of a forecast by a server, a few seconds.
WORK_MAX: Final = 400_000
OF_SERVER: Final = 50_000
#: The cost of considering the head of a queue, in kernel steps.
_OF_HEAD: Final = 3
#: The number of Workloads sampled at once for calibration.
SAMPLED: Final = 4
HORIZON: Final = 14 * 24 * HOUR
_SLICE: Final = 200
_ROUNDING: Final = 1e-9
_NAMED_MAX: Final = 5
QUANTILES: Final = (("p10", 0.1), ("p50", 0.5), ("p90", 0.9))


def _everything(_namespace: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ForecastOptions:
    """The options of a forecast."""

    seed: int = 0
    forks: int = FORKS
    #: Whether queues share fairly even if the state has fair sharing disabled.
    fair_sharing: bool = False
    horizon: Duration = HORIZON
    work_max: int = WORK_MAX
    expects_arrivals: bool = True
    #: Whether the names of a namespace's Workloads may be shown.
    may_see: Callable[[str], bool] = _everything
    #: The outcomes of earlier forecasts, for corrections; None: no corrections.
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The start time of a Workload, as a distribution."""

    workload: str
    at: Instant
    basis: Basis
    #: The waits from now on, one for each fork in which it started, sorted.
    waits: Sequence[Duration]
    forks: int
    seed: int
    depends_on: Sequence[str] = ()
    #: Whether it runs already.
    has_started: bool = False
    #: The corrected waits at the levels of calibration, not yet in order; () without corrections.
    moved: Waits = ()

    @property
    def within(self) -> float:
        """Return the share of the forks in which it started."""
        return 1.0 if self.has_started else len(self.waits) / self.forks if self.forks else 0.0

    def quantile(self, share: float) -> Duration | None:
        """Return the wait within which it starts with this probability; None if that is not known."""
        if self.has_started:
            return 0
        if not self.moved:
            return self.of_forks(share)
        ordered = in_order(self.moved)
        low, part = divmod(min(max(share * (len(LEVELS) + 1) - 1, 0), len(LEVELS) - 1), 1)
        before, after = (ordered[min(int(low) + more, len(LEVELS) - 1)] for more in (0, part > _ROUNDING))
        return None if before is None or after is None else wait_of(before + (after - before) * part)

    def of_forks(self, share: float) -> Duration | None:
        """Return the wait within which it starts in this share of the forks; None if it starts in fewer."""
        place = min(max(share * (self.forks + 1) - 1, 0), self.forks - 1)
        low = int(place)
        high = low + (place > low)
        if high >= len(self.waits):
            return None
        return round(self.waits[low] + (self.waits[high] - self.waits[low]) * (place - low))

    def corrected_by(self, calibration: Calibration) -> "Forecast":
        """Return the forecast, corrected by the outcomes of earlier ones."""
        raw = self.by_level
        moved = moved_by(calibration, tracks_of(self.basis, raw, self.forks), raw)
        return self if moved == raw else replace(self, moved=moved)

    @property
    def by_level(self) -> Waits:
        """Return the waits of the forks at the levels of calibration."""
        return tuple(logged(self.of_forks(level)) for level in LEVELS)

    def sample(self, uid: str) -> ForecastRecord:
        """Return the record of the forecast for calibration; `uid` is the Workload's."""
        raw = self.by_level
        sorts = tracks_of(self.basis, raw, self.forks)
        return ForecastRecord(self.workload, uid, self.at, sorts, raw[MEDIAN], self.moved or raw)

    def document(self, subject: Mapping[str, str]) -> dict[str, Any]:
        """Return the forecast as a document for programs."""
        found = {name: self.quantile(share) for name, share in QUANTILES}
        known = {name: wait for name, wait in found.items() if wait is not None}
        return {
            "apiVersion": "batchyard.dev/v1alpha1",
            "kind": "Forecast",
            "subject": dict(subject),
            "time": format_time(self.at),
            "startsAt": {n: format_time((self.at + wait) // SECOND * SECOND) for n, wait in known.items()},
            "waitSeconds": {name: round(wait / SECOND, 1) for name, wait in known.items()},
            "within": round(self.within, 3),
            "basis": str(self.basis),
            "isCorrected": bool(self.moved),
            "dependsOn": list(self.depends_on),
            "forks": self.forks,
            "seed": self.seed,
        }


def forecasts(state: State, names: Collection[str], asked: ForecastOptions = ForecastOptions()) -> dict[str, Forecast]:
    """Return the forecasts of Workloads by namespace and name; finished ones are left out."""
    return ForecastRunner(state, asked).forecasts_by_name(names)


def samples(state: State, asked: ForecastOptions, count: int = SAMPLED) -> list[ForecastRecord]:
    """Return forecasts for `count` pending Workloads, sampled by the instant and their names alone."""
    waiting = [view.key for line in lines_of(state, queues_of(state)).waiting.values() for view in line]
    drawn = nsmallest(count, waiting, lambda name: draw(state.at, "sample", name))
    found = forecasts(state, drawn, asked)
    return [each.sample(state.objects[_key(name)]["metadata"]["uid"]) for name, each in found.items()]


@dataclass(slots=True)
class _ForkRun:
    """The results of one fork."""

    #: The time of each Workload's admission, from the start of the fork.
    starts: dict[str, Duration] = field(default_factory=dict)
    #: The admissions in order: ClusterQueue, Workload, time.
    admissions: list[tuple[str, str, Duration]] = field(default_factory=list)
    #: The work done, in kernel steps.
    work: int = 0
    #: Whether the fork stopped at the limit of steps.
    was_cut: bool = False


class _ForkRunTimes:
    """The random run times of one fork."""

    def __init__(self, estimate: Callable[[str, Obj], Estimate], now: Instant, seed: int) -> None:
        self._estimate = estimate
        self._now = now
        self._seed = seed
        self._lengths: dict[int, HistoryDraws] = {}

    def length(self, name: str, obj: Obj) -> Duration | None:
        """Return the total run time of an existing Workload; None if it is unknown."""
        return self._next(self._estimate(name, obj), age_of(obj, self._now) or 0)

    def length_of_new(self, like: Obj) -> Duration | None:
        """Return the run time of a new Workload that is like another."""
        return self._next(self._estimate(workload_view(like).key, like), 0)

    def _next(self, estimate: Estimate, age: Duration) -> Duration | None:
        history = estimate.history
        if history is None:
            return estimate.draw(0.5, age)
        lengths = self._lengths.get(id(history))
        if lengths is None:
            lengths = self._lengths[id(history)] = history.forked(self._seed)
        return estimate.bounded(lengths.next(age), age)


class ForecastRunner:
    """Runs the forks of one state, and computes forecasts from them."""

    def __init__(self, state: State, asked: ForecastOptions) -> None:
        self._state = state
        self._asked = asked
        self._queues = queues_of(state)
        self._runtimes = RunTimeEstimator(state)
        self._lines = lines_of(state, self._queues)
        self._estimates: dict[str, Estimate] = {}

    def forecasts_by_name(self, names: Collection[str]) -> dict[str, Forecast]:
        """Return the forecasts of these Workloads."""
        views = {name: view for name in names if (view := self._view(name)) is not None and not view.finished}
        waiting = [name for name, view in views.items() if not view.admitted]
        forecasts_by_name = {name: self._started(name) for name, view in views.items() if view.admitted}
        if waiting:
            kept = reduce_to_quota(self._state, self._queues, self._lines, waiting)
            runs = self._forked(kept, waiting, self._arrivals(waiting))
            forecasts_by_name |= {name: self._forecast(name, kept, runs) for name in waiting}
        return {name: forecasts_by_name[name] for name in views}

    def _view(self, name: str) -> WorkloadView | None:
        obj = self._state.objects.get(_key(name))
        return None if obj is None else workload_view(obj)

    def _started(self, name: str) -> Forecast:
        return Forecast(name, self._state.at, Basis.MANIFEST, (), 0, self._asked.seed, has_started=True)

    def _arrivals(self, names: Sequence[str]) -> ArrivalModel | None:
        queues = dict.fromkeys(self._lines.places.get(name, ("", 0))[0] for name in names)
        trees = [self._queues.trees.get(queue) for queue in queues]
        arrivals = ArrivalModel(self._state, self._queues, trees)
        return arrivals if self._asked.expects_arrivals and arrivals.are_expected else None

    def _forked(self, kept: QuotaOnlyState, names: Sequence[str], arrivals: ArrivalModel | None) -> list[_ForkRun]:
        """Run the forks: as many as the limit of steps allows, or one if nothing is random."""
        is_certain = arrivals is None and all(self._estimate(n, o).history is None for n, o in kept.workloads.items())
        forks = 1 if is_certain else self._asked.forks
        runs: list[_ForkRun] = []
        work = 0
        while len(runs) < forks and (len(runs) < FORKS_MIN or work < self._asked.work_max):
            runs.append(self._run(len(runs), kept, names, arrivals))
            work += runs[-1].work
        return runs

    def _run(self, number: int, kept: QuotaOnlyState, names: Sequence[str], arrivals: ArrivalModel | None) -> _ForkRun:
        """Run one fork, until all requested Workloads are admitted or nothing more can happen."""
        run, seed, asked = _ForkRun(), self._asked.seed * 1000 + number, self._asked
        drawn = _ForkRunTimes(self._estimate, self._state.at, seed)
        workloads = [standalone_workload(obj, drawn.length(name, obj)) for name, obj in kept.workloads.items()]
        steps = [] if arrivals is None else arrivals.steps(drawn.length_of_new, asked.horizon, seed)
        kueue = self._state.kueue.sharing_fairly() if asked.fair_sharing else self._state.kueue
        scenario = Scenario(steps, kueue=kueue)
        missing = dict.fromkeys(self._last_seen(name, kept) for name in names)

        def note(record: Record) -> None:
            if record["event"] == "Admitted":
                name, at = record["workload"], round(record["time"] * SECOND)
                run.starts.setdefault(name, at)
                run.admissions.append((record["clusterQueue"], name, at))
                missing.pop(name, None)

        world = World(scenario, sink=note, seed=seed, state=state_with(self._state, kept.objects, workloads))
        most = max(1, asked.work_max // FORKS_MIN)
        until = self._state.at + asked.horizon
        while missing and not run.was_cut:
            done = world.kernel.run(until, steps_max=_SLICE)
            run.work = world.kernel.steps + _OF_HEAD * len(kept.last) * _cycles(world)
            if done < _SLICE:
                break
            run.was_cut = run.work >= most
        return run

    def _last_seen(self, name: str, kept: QuotaOnlyState) -> str:
        """Return the Workload whose start ends a fork for `name`: itself, or the last one simulated of its queue."""
        return name if name in kept.workloads else kept.last.get(self._lines.places.get(name, ("", 0))[0], name)

    def _estimate(self, name: str, obj: Obj) -> Estimate:
        known = self._estimates.get(name)
        if known is None:
            known = self._estimates[name] = self._runtimes.estimate(obj)
        return known

    # --- results ---

    def _forecast(self, name: str, kept: QuotaOnlyState, runs: Sequence[_ForkRun]) -> Forecast:
        found = [run.starts.get(name) for run in runs]
        queue, place = self._lines.places.get(name, ("", 0))
        is_beyond = name not in kept.workloads
        is_extrapolated = [is_beyond or (start is None and run.was_cut) for start, run in zip(found, runs, strict=True)]
        if any(is_extrapolated):
            paced = [_extrapolate_start(run, queue, place) for run in runs]
            found = [pace if by else start for pace, by, start in zip(paced, is_extrapolated, found, strict=True)]
        waits = sorted(wait for wait in found if wait is not None)
        depends_on = self._depends_on(name, kept, is_certain=len(waits) == len(runs))
        if any(is_extrapolated):
            depends_on.append(
                f"{place} Workloads are ahead of it: extrapolated from the pace at which the first of them start"
            )
        forecast = Forecast(name, self._state.at, self._basis(kept), waits, len(runs), self._asked.seed, depends_on)
        return forecast if self._asked.calibration is None else forecast.corrected_by(self._asked.calibration)

    def _basis(self, kept: QuotaOnlyState) -> Basis:
        """Return the weakest basis of the run times involved."""
        found = {self._estimate(name, obj).basis for name, obj in kept.workloads.items()}
        return next((basis for basis in (Basis.UNKNOWN, Basis.HISTORY) if basis in found), Basis.MANIFEST)

    def _depends_on(self, name: str, kept: QuotaOnlyState, *, is_certain: bool) -> list[str]:
        """Return the unknowns that the forecast depends on, as texts."""
        unknown = [
            view
            for view in self._lines.holding
            if view.key in kept.workloads and self._estimate(view.key, kept.workloads[view.key]).basis is Basis.UNKNOWN
        ]
        may_see = self._asked.may_see
        names = [view.key if may_see(view.namespace) else "a Workload" for view in unknown[:_NAMED_MAX]]
        texts = [
            f"{name} holds {_held(view)} and its run time is unknown"
            for name, view in zip(names, unknown, strict=False)
        ]
        if len(unknown) > _NAMED_MAX:
            texts.append(f"{len(unknown) - _NAMED_MAX} more with unknown run times are running")
        why = self._why(name)
        if not is_certain and why:
            texts.append(f"it waits because: {why}")
        return texts

    def _why(self, name: str) -> str:
        condition = find_condition(self._state.objects[_key(name)], "QuotaReserved")
        return str(condition["message"]) if condition else ""


def _key(name: str) -> Key:
    """Return the key of a Workload by namespace and name."""
    return Key(scheme.WORKLOAD, *name.split("/", 1))


def _cycles(world: World) -> int:
    """Return the number of scheduling cycles requested so far."""
    return next(load.adds for load in world.platform.runner.loads() if load.name == Scheduler.name)


def _extrapolate_start(run: _ForkRun, queue: str, place: int) -> Duration | None:
    """Extrapolate when a queue reaches a place beyond the simulated ones; None if the queue does not advance."""
    times = [at for each, name, at in run.admissions if each == queue and f"/{ARRIVAL}-" not in name]
    half = len(times) // 2
    if not half or times[-1] <= times[half - 1]:
        return None
    pace = (times[-1] - times[half - 1]) / (len(times) - half)
    return round(times[-1] + (place + 1 - len(times)) * pace)


def _held(view: WorkloadView) -> str:
    amounts: dict[str, int] = {}
    for holding in view.holdings:
        for resource, amount in holding.usage:
            amounts[resource] = amounts.get(resource, 0) + amount
    return " and ".join(f"{format_amount(resource, amount)} {resource}" for resource, amount in sorted(amounts.items()))


# --- dry run warnings ---
#
# Dry-run warnings: the immediate effects of a change of queues, for `--dry-run=server`.
#
# Both states, without and with the change, are settled for one instant of a simulated world. The warnings name the
# Workloads that are admitted, preempted or evicted in only one of them. They also name Workloads that use more quota
# than remains, and quota that exceeds the nodes' capacity.


#: The kernel steps for each of the two states; Workloads further back in the queue are not considered.
STEPS_MAX: Final = 20_000
_SHOWN_NAMES_MAX: Final = 3


@dataclass(slots=True)
class _Moment:
    """The events of one instant, and the overuse after it."""

    admitted: dict[str, None] = field(default_factory=dict)
    preempted: dict[str, None] = field(default_factory=dict)
    evicted: dict[str, None] = field(default_factory=dict)
    #: By ClusterQueue, flavor and resource: the excess of usage, and the Workloads to remove.
    over: dict[tuple[str, str, str], tuple[int, Sequence[str]]] = field(default_factory=dict)


def warnings_of(there: State, changed: Obj, may_see: Callable[[str], bool]) -> list[str]:
    """Return the warnings about an object that is about to be stored, naming Workloads of visible namespaces only."""
    numbered = with_metadata(changed, resourceVersion=str(there.revision + 1))
    before = _settled(there)
    state = replace(there, revision=there.revision + 1, objects={**there.objects, key_of(changed): numbered})
    after = _settled(state)
    warnings = [
        *_change_text("would be admitted at once", before.admitted, after.admitted, may_see),
        *_change_text("would be preempted at once", before.preempted, after.preempted, may_see),
        *_change_text("would be evicted at once", before.evicted, after.evicted, may_see),
        *_change_text(
            "would be admitted at once without the change, and not with it", after.admitted, before.admitted, may_see
        ),
    ]
    for place, (amount, names) in after.over.items():
        if amount > before.over.get(place, (0, ()))[0]:
            queue, flavor, resource = place
            who = _named(names, may_see)
            more = f"{format_amount(resource, amount)} {resource} of flavor {flavor} more than it then may"
            warnings.append(
                f"ClusterQueue {queue} would use {more}: {who} would no longer fit; no other Workload is admitted there"
            )
    return [*warnings, *_beyond_nodes(state, changed)]


def _settled(state: State) -> _Moment:
    """Settle a state for an instant."""
    queues = queues_of(state)
    kept = reduce_to_quota(state, queues, lines_of(state, queues), None)
    moment = _Moment()
    tables = {"Admitted": moment.admitted, "Preempted": moment.preempted, "Evicted": moment.evicted}

    def note(record: Record) -> None:
        table = tables.get(record["event"])
        if table is not None:
            table[record["workload"]] = None

    workloads = [standalone_workload(obj, None) for obj in kept.workloads.values()]
    world = World(Scenario((), kueue=state.kueue), sink=note, state=state_with(state, kept.objects, workloads))
    world.kernel.run(state.at, steps_max=STEPS_MAX)
    snapshot = world.platform.index.snapshot
    snapshot.settle()
    for queue in snapshot.queues.values():
        moment.over |= _overuse(queue, snapshot)
    return moment


def _overuse(queue: ClusterQueue, snapshot: Snapshot) -> dict[tuple[str, str, str], tuple[int, Sequence[str]]]:
    """Return the excess usage of a ClusterQueue, and the Workloads to remove: the first in the order of preemption."""
    found: dict[tuple[str, str, str], tuple[int, Sequence[str]]] = {}
    for fr, used in enumerate(queue.node.usage):
        over = min(used, -available(queue.node, fr)) if used > 0 else 0
        if over <= 0:
            continue
        names, left = [], over
        for held in queue.ranked():
            amount = dict(held.usage).get(fr, 0)
            if amount and left > 0:
                names.append(held.key)
                left -= amount
        found[queue.name, *snapshot.names[fr]] = over, names
    return found


def _change_text(
    what: str, before: Mapping[str, None], after: Mapping[str, None], may_see: Callable[[str], bool]
) -> Iterator[str]:
    names = [name for name in after if name not in before]
    if names:
        yield f"{_named(names, may_see)} {what}"


def _named(names: Sequence[str], may_see: Callable[[str], bool]) -> str:
    """Return the first visible names, and the number of others."""
    seen = [name for name in names if may_see(name.partition("/")[0])][:_SHOWN_NAMES_MAX]
    more = len(names) - len(seen)
    if not seen:
        return f"{more} Workload{'s' * (more > 1)}"
    return ", ".join(seen) + (f" and {more} more" if more else "")


def _beyond_nodes(state: State, changed: Obj) -> Iterator[str]:
    """Yield a warning if the total quota of a flavor exceeds the capacity of the nodes; nothing without nodes."""
    if key_of(changed).kind not in {scheme.CLUSTER_QUEUE, scheme.COHORT}:
        return
    nodes = [node_view(node) for node in state.of_kind(scheme.NODE)]
    flavors = {flavor["metadata"]["name"]: flavor_view(flavor) for flavor in state.of_kind(scheme.RESOURCE_FLAVOR)}
    snapshot = trees_of(state)
    own = snapshot.queues[changed["metadata"]["name"]].node if key_of(changed).kind == scheme.CLUSTER_QUEUE else None
    own = own or snapshot.cohorts[changed["metadata"]["name"]]
    for fr in own.nominal if nodes else ():
        flavor, resource = snapshot.names[fr]
        labels = flavors[flavor].labels if flavor in flavors else {}
        of_flavor = [node for node in nodes if labels.items() <= node.labels.items()]
        there = sum(node.allocatable.get(resource, 0) for node in of_flavor)
        every = [*(queue.node for queue in snapshot.queues.values()), *snapshot.cohorts.values()]
        quota = sum(node.nominal.get(fr, 0) for node in every)
        if own.nominal[fr] and quota > there:
            whole = f"quota for {resource} in flavor {flavor} would be {format_amount(resource, quota)} in all"
            yield f"{whole}; the existing nodes have {format_amount(resource, there)}"


# --- service ---
#
# Forecasts and warnings for a server, from its current objects, restricted to what a user may see.


#: The kinds that a forecast needs.
KINDS: Final = (
    *(scheme.NAMESPACE, scheme.RESOURCE_FLAVOR, scheme.TOPOLOGY, scheme.COHORT, scheme.CLUSTER_QUEUE),
    *(scheme.LOCAL_QUEUE, scheme.LIMIT_RANGE, scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS),
    *(scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET),
)
Listed = Callable[[str], Iterable[Obj]]
MaySee = Callable[[str], bool]


class ForecastAnswers:
    """Answers forecasts and warnings with these scheduler settings."""

    def __init__(self, kueue: KueueSettings = SIMULATED) -> None:
        self._kueue = kueue

    def forecast_of(
        self, listed: Listed, at: Instant, subject: Key, seed: int, may_see: MaySee, calibration: Calibration
    ) -> Mapping[str, Any]:
        """Return the forecast of a subject as a document; raises Refused if it has no Workload or has ended.

        `may_see` returns whether names of a namespace's Workloads may be shown.
        """
        state = self._state(listed, at, KINDS)
        name = workload_of(state.objects, subject)
        asked = ForecastOptions(seed, work_max=OF_SERVER, may_see=may_see, calibration=calibration)
        found = None if name is None else forecasts(state, [name], asked).get(name)
        if found is None:
            problem = "has no Workload" if name is None else "has ended"
            raise StatusError(
                404, "NotFound", f'{subject.kind} "{subject.name}" {problem}: it will not start', {"name": subject.name}
            )
        return found.document(subject_document(subject))

    def samples_of(self, listed: Listed, at: Instant, calibration: Calibration) -> Sequence[ForecastRecord]:
        """Return forecasts for a random sample of pending Workloads, to be compared with their outcomes."""
        return samples(self._state(listed, at, KINDS), ForecastOptions(work_max=OF_SERVER, calibration=calibration))

    def warnings_for(self, listed: Listed, at: Instant, changed: Obj, may_see: MaySee) -> Sequence[str]:
        """Return the warnings about a changed object."""
        return warnings_of(self._state(listed, at, (*KINDS, scheme.NODE)), changed, may_see)

    def _state(self, listed: Listed, at: Instant, kinds: Sequence[str]) -> State:
        objects = {key_of(obj): obj for kind in kinds for obj in listed(kind)}
        return State(at, _revision(objects), objects, kueue=self._kueue)


def _revision(objects: Mapping[Key, Obj]) -> int:
    return max((int(obj["metadata"]["resourceVersion"]) for obj in objects.values()), default=0)
