"""Start-time forecasts of pending Workloads by Monte Carlo simulation, and dry-run warnings about queue changes.

A forecast simulates a state in several forks, each with random run times and arrivals. A fork ends when all requested
Workloads are admitted, or at the horizon. Quantiles of the start times give the interval. A limit of kernel steps
bounds the length and the number of forks, so that a forecast takes a bounded time and is reproducible. Forks simulate
only the front of a long queue. Later starts are extrapolated from the rate of the second half of the simulated
admissions.

A Workload of unknown run time never ends in a fork. The forecasts of Workloads that wait for it name it as a
dependency.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.amounts import readable_amount
from batchyard.api.meta import Key, Obj, find_condition, key_of, with_metadata
from batchyard.api.times import format_second, format_time
from batchyard.api.views.node import flavor_view, node_view
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.apiserver.request import StatusError
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import HOUR, SECOND, Duration, Instant
from batchyard.base.primitives import draw_integer
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.kueue_configuration import SIMULATION_SETTINGS, KueueSettings
from batchyard.scheduling.quota import available
from batchyard.scheduling.snapshot import Snapshot
from batchyard.sim.event_log import Record
from batchyard.sim.forecasting.arrivals import ARRIVAL_NAME, ArrivalModel
from batchyard.sim.forecasting.calibration import (
    LEVELS,
    MEDIAN,
    Calibration,
    ForecastRecord,
    Waits,
    correct_waits,
    sort_waits,
    to_log_wait,
    tracker_names_for,
    wait_of,
)
from batchyard.sim.forecasting.quota_only_state import (
    QuotaOnlyState,
    make_state,
    pending_order_of,
    queues_of,
    reduce_to_quota,
    standalone_workload,
    trees_of,
)
from batchyard.sim.forecasting.run_times import Estimate, EstimateBasis, HistoryDraws, RunTimeEstimator, age_of
from batchyard.sim.scenario import Scenario
from batchyard.sim.state import State
from batchyard.sim.whatif import subject_document, workload_of
from batchyard.sim.world import World

FORKS_DEFAULT: Final = 40
#: The minimum number of forks of a forecast.
FORKS_MIN: Final = 3
#: The limit of kernel steps in all forks of a forecast: about 15 seconds by default, a few seconds in a server.
WORK_MAX: Final = 400_000
SERVER_WORK_MAX: Final = 50_000
#: The cost in kernel steps of a scheduling decision about the head of a queue.
_HEAD_COST: Final = 3
#: The number of Workloads sampled at once for calibration.
SAMPLE_SIZE: Final = 4
HORIZON: Final = 14 * 24 * HOUR
_STEPS_PER_SLICE: Final = 200
_ROUNDING: Final = 1e-9
_NAMES_MAX: Final = 5
QUANTILES: Final = (("p10", 0.1), ("p50", 0.5), ("p90", 0.9))


def _may_see_all(_namespace: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ForecastOptions:
    """The options of a forecast: seed, number of forks, horizon, limit of simulation steps, and corrections."""

    seed: int = 0
    forks: int = FORKS_DEFAULT
    #: Whether fair sharing is on even if the state has it disabled.
    fair_sharing: bool = False
    horizon: Duration = HORIZON
    work_max: int = WORK_MAX
    expects_arrivals: bool = True
    #: Reports whether the names of a namespace's Workloads may be shown.
    may_see: Callable[[str], bool] = _may_see_all
    #: The calibration by earlier forecasts; None: no corrections.
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of when a Workload starts: a distribution of waits, from many random simulations (forks)."""

    workload: str
    at: Instant
    basis: EstimateBasis
    #: The further waits in ascending order, one for each fork in which the Workload started, also by extrapolation.
    waits: Sequence[Duration]
    forks: int
    seed: int
    depends_on: Sequence[str] = ()
    #: Whether the Workload is already admitted.
    has_started: bool = False
    #: The corrected waits at the calibration levels, possibly not in ascending order; () without corrections.
    corrected_waits: Waits = ()

    @property
    def started_fraction(self) -> float:
        """Return the fraction of the forks (random simulations) in which the Workload started."""
        return 1.0 if self.has_started else len(self.waits) / self.forks if self.forks else 0.0

    def quantile(self, probability: float) -> Duration | None:
        """Return the wait within which the Workload starts with this probability; None if unknown."""
        if self.has_started:
            return 0
        if not self.corrected_waits:
            return self.quantile_of_forks(probability)
        sorted_waits = sort_waits(self.corrected_waits)
        lower_index, remainder = divmod(min(max(probability * (len(LEVELS) + 1) - 1, 0), len(LEVELS) - 1), 1)
        lower_wait, upper_wait = (
            sorted_waits[min(int(lower_index) + offset, len(LEVELS) - 1)] for offset in (0, remainder > _ROUNDING)
        )
        if lower_wait is None or upper_wait is None:
            return None
        return wait_of(lower_wait + (upper_wait - lower_wait) * remainder)

    def quantile_of_forks(self, fraction: float) -> Duration | None:
        """Return the wait within which the Workload starts in a fraction of the forks (random simulations).

        The result is None if the Workload starts in too few forks, or if there are no forks.
        """
        position = max(min(fraction * (self.forks + 1) - 1, self.forks - 1), 0)
        lower_index = int(position)
        upper_index = lower_index + (position > lower_index)
        if upper_index >= len(self.waits):
            return None
        return round(
            self.waits[lower_index] + (self.waits[upper_index] - self.waits[lower_index]) * (position - lower_index)
        )

    def correct_by(self, calibration: Calibration) -> "Forecast":
        """Return the forecast, corrected by the errors of earlier forecasts."""
        fork_waits = self.log_waits_by_level
        corrected_waits = correct_waits(calibration, tracker_names_for(self.basis, fork_waits, self.forks), fork_waits)
        return self if corrected_waits == fork_waits else replace(self, corrected_waits=corrected_waits)

    @property
    def log_waits_by_level(self) -> Waits:
        """Return the logarithm of the forks' wait at each quantile in LEVELS, uncorrected (see `to_log_wait`)."""
        return tuple(to_log_wait(self.quantile_of_forks(level)) for level in LEVELS)

    def calibration_record(self, uid: str) -> ForecastRecord:
        """Return the forecast as a record, to be compared with the actual start of the Workload, whose uid is `uid`."""
        fork_waits = self.log_waits_by_level
        tracker_names = tracker_names_for(self.basis, fork_waits, self.forks)
        return ForecastRecord(
            self.workload, uid, self.at, tracker_names, fork_waits[MEDIAN], self.corrected_waits or fork_waits
        )

    def document(self, subject: Mapping[str, str]) -> dict[str, Any]:
        """Return the forecast of `subject` (the fields kind, namespace, name) as a JSON document."""
        wait_by_name = {name: self.quantile(probability) for name, probability in QUANTILES}
        known_waits = {name: wait for name, wait in wait_by_name.items() if wait is not None}
        return {
            "apiVersion": "batchyard.dev/v1alpha1",
            "kind": "Forecast",
            "subject": dict(subject),
            "time": format_time(self.at),
            "startsAt": {n: format_second(self.at + wait) for n, wait in known_waits.items()},
            "waitSeconds": {name: round(wait / SECOND, 1) for name, wait in known_waits.items()},
            "within": round(self.started_fraction, 3),
            "basis": str(self.basis),
            "isCorrected": bool(self.corrected_waits),
            "dependsOn": list(self.depends_on),
            "forks": self.forks,
            "seed": self.seed,
        }


def forecast_workloads(
    state: State, names: Collection[str], options: ForecastOptions = ForecastOptions()
) -> dict[str, Forecast]:
    """Return the forecast of each Workload in `names`, by `namespace/name`; finished or unknown ones are omitted."""
    return ForecastRunner(state, options).forecasts_by_name(names)


def sample_forecasts(state: State, options: ForecastOptions, count: int = SAMPLE_SIZE) -> list[ForecastRecord]:
    """Return records of the forecasts of up to `count` pending Workloads, picked at random but reproducibly."""
    pending_by_queue = pending_order_of(state, queues_of(state)).waiting_by_queue
    pending_keys = [view.key for views in pending_by_queue.values() for view in views]
    sampled_names = nsmallest(count, pending_keys, lambda name: draw_integer(state.at, "sample", name))
    forecast_by_name = forecast_workloads(state, sampled_names, options)
    return [
        each.calibration_record(state.objects[_workload_key(name)]["metadata"]["uid"])
        for name, each in forecast_by_name.items()
    ]


@dataclass(slots=True)
class _ForkRun:
    """One random simulation for a forecast (a fork): the Workloads that it admitted, and its number of loop steps."""

    #: The time of each Workload's admission, from the start of the fork.
    start_by_workload: dict[str, Duration] = field(default_factory=dict)
    #: The admissions in order: ClusterQueue, Workload, time.
    admissions: list[tuple[str, str, Duration]] = field(default_factory=list)
    #: The work done, in kernel steps.
    kernel_steps: int = 0
    #: Whether the fork stopped at the limit of steps.
    is_cut_short: bool = False


class _ForkRunTimes:
    def __init__(self, estimate: Callable[[str, Obj], Estimate], now: Instant, seed: int) -> None:
        self._estimate = estimate
        self._now = now
        self._seed = seed
        self._draws_by_history: dict[int, HistoryDraws] = {}

    def run_time(self, name: str, obj: Obj) -> Duration | None:
        return self._next_run_time(self._estimate(name, obj), age_of(obj, self._now) or 0)

    def new_run_time(self, template: Obj) -> Duration | None:
        return self._next_run_time(self._estimate(workload_view(template).key, template), 0)

    def _next_run_time(self, estimate: Estimate, age: Duration) -> Duration | None:
        history = estimate.history
        if history is None:
            return estimate.draw(0.5, age)
        history_draws = self._draws_by_history.get(id(history))
        if history_draws is None:
            history_draws = self._draws_by_history[id(history)] = history.draws_for_fork(self._seed)
        return estimate.limit_run_time(history_draws.next_run_time(age), age)


class ForecastRunner:
    """Simulates a state several times with random arrivals and run times, and computes forecasts from that."""

    def __init__(self, state: State, options: ForecastOptions) -> None:
        self._state = state
        self._options = options
        self._queues = queues_of(state)
        self._run_time_estimator = RunTimeEstimator(state)
        self._pending_order = pending_order_of(state, self._queues)
        self._estimates: dict[str, Estimate] = {}

    def forecasts_by_name(self, names: Collection[str]) -> dict[str, Forecast]:
        """Return the forecast of each unfinished Workload in `names`, by `namespace/name`."""
        views = {name: view for name in names if (view := self._workload_view(name)) is not None and not view.finished}
        pending_names = [name for name, view in views.items() if not view.admitted]
        forecasts_by_name = {name: self._started_forecast(name) for name, view in views.items() if view.admitted}
        if pending_names:
            quota_state = reduce_to_quota(self._state, self._queues, self._pending_order, pending_names)
            fork_runs = self._run_forks(quota_state, pending_names, self._arrival_model(pending_names))
            forecasts_by_name |= {name: self._make_forecast(name, quota_state, fork_runs) for name in pending_names}
        return {name: forecasts_by_name[name] for name in views}

    def _workload_view(self, name: str) -> WorkloadView | None:
        obj = self._state.objects.get(_workload_key(name))
        return None if obj is None else workload_view(obj)

    def _started_forecast(self, name: str) -> Forecast:
        return Forecast(name, self._state.at, EstimateBasis.MANIFEST, (), 0, self._options.seed, has_started=True)

    def _arrival_model(self, names: Sequence[str]) -> ArrivalModel | None:
        queues = dict.fromkeys(self._pending_order.positions.get(name, ("", 0))[0] for name in names)
        quota_trees = [self._queues.trees.get(queue) for queue in queues]
        arrival_model = ArrivalModel(self._state, self._queues, quota_trees)
        return arrival_model if self._options.expects_arrivals and arrival_model.are_arrivals_expected else None

    def _run_forks(self, state: QuotaOnlyState, names: Sequence[str], arrivals: ArrivalModel | None) -> list[_ForkRun]:
        """Run the random simulations of a forecast: as many as the options request, but only one if nothing is random.

        From the third on, no more are started once their kernel steps together reach the limit of the options.
        """
        is_certain = arrivals is None and all(self._estimate(n, o).history is None for n, o in state.workloads.items())
        forks = 1 if is_certain else self._options.forks
        fork_runs: list[_ForkRun] = []
        step_count = 0
        while len(fork_runs) < forks and (len(fork_runs) < FORKS_MIN or step_count < self._options.work_max):
            fork_runs.append(self._run_fork(len(fork_runs), state, names, arrivals))
            step_count += fork_runs[-1].kernel_steps
        return fork_runs

    def _run_fork(
        self, fork_number: int, quota_state: QuotaOnlyState, names: Sequence[str], arrivals: ArrivalModel | None
    ) -> _ForkRun:
        run, seed, options = _ForkRun(), self._options.seed * 1000 + fork_number, self._options
        run_times = _ForkRunTimes(self._estimate, self._state.at, seed)
        workloads = quota_state.workloads
        forked_workloads = [standalone_workload(obj, run_times.run_time(name, obj)) for name, obj in workloads.items()]
        arrival_steps = [] if arrivals is None else arrivals.steps(run_times.new_run_time, options.horizon, seed)
        kueue = self._state.kueue.with_fair_sharing() if options.fair_sharing else self._state.kueue
        scenario = Scenario(arrival_steps, kueue=kueue)
        unstarted_names = dict.fromkeys(self._last_simulated_name(name, quota_state) for name in names)

        def record_event(record: Record) -> None:
            if record["event"] == "Admitted":
                name, at = record["workload"], round(record["time"] * SECOND)
                run.start_by_workload.setdefault(name, at)
                run.admissions.append((record["clusterQueue"], name, at))
                unstarted_names.pop(name, None)

        state = make_state(self._state, quota_state.objects, forked_workloads)
        world = World(scenario, sink=record_event, seed=seed, state=state)
        work_limit = max(1, options.work_max // FORKS_MIN)
        horizon = self._state.at + options.horizon
        while unstarted_names and not run.is_cut_short:
            steps_done = world.kernel.run(horizon, steps_max=_STEPS_PER_SLICE)
            run.kernel_steps = world.kernel.steps + _HEAD_COST * len(quota_state.last_by_queue) * _cycle_count(world)
            if steps_done < _STEPS_PER_SLICE:
                break
            run.is_cut_short = run.kernel_steps >= work_limit
        return run

    def _last_simulated_name(self, name: str, quota_state: QuotaOnlyState) -> str:
        queue = self._pending_order.positions.get(name, ("", 0))[0]
        return name if name in quota_state.workloads else quota_state.last_by_queue.get(queue, name)

    def _estimate(self, name: str, obj: Obj) -> Estimate:
        estimate = self._estimates.get(name)
        if estimate is None:
            estimate = self._estimates[name] = self._run_time_estimator.estimate(obj)
        return estimate

    # --- results ---

    def _make_forecast(self, name: str, quota_state: QuotaOnlyState, runs: Sequence[_ForkRun]) -> Forecast:
        fork_starts = [run.start_by_workload.get(name) for run in runs]
        queue, position = self._pending_order.positions.get(name, ("", 0))
        is_not_simulated = name in self._pending_order.positions and name not in quota_state.workloads
        starts_and_runs = zip(fork_starts, runs, strict=True)
        is_extrapolated = [is_not_simulated or (start is None and run.is_cut_short) for start, run in starts_and_runs]
        if any(is_extrapolated):
            extrapolated_starts = [_extrapolate_start(run, queue, position) for run in runs]
            start_estimates = zip(extrapolated_starts, is_extrapolated, fork_starts, strict=True)
            fork_starts = [estimated if is_estimated else start for estimated, is_estimated, start in start_estimates]
        sorted_waits = sorted(wait for wait in fork_starts if wait is not None)
        depends_on = self._depends_on(name, quota_state, is_certain=len(sorted_waits) == len(runs))
        if any(is_extrapolated):
            order_text = f"{count_with_noun(position, 'Workload')} {select_verb(position, 'is', 'are')} ahead of it"
            depends_on.append(f"{order_text}: its start is extrapolated from the starts of the first of them")
        basis = self._basis(quota_state)
        forecast = Forecast(name, self._state.at, basis, sorted_waits, len(runs), self._options.seed, depends_on)
        return forecast if self._options.calibration is None else forecast.correct_by(self._options.calibration)

    def _basis(self, quota_state: QuotaOnlyState) -> EstimateBasis:
        workload_bases = {self._estimate(name, obj).basis for name, obj in quota_state.workloads.items()}
        return next(
            (basis for basis in (EstimateBasis.UNKNOWN, EstimateBasis.HISTORY) if basis in workload_bases),
            EstimateBasis.MANIFEST,
        )

    def _depends_on(self, name: str, quota_state: QuotaOnlyState, *, is_certain: bool) -> list[str]:
        unknown_views = [
            view
            for view in self._pending_order.workloads_with_quota
            if view.key in quota_state.workloads
            and self._estimate(view.key, quota_state.workloads[view.key]).basis is EstimateBasis.UNKNOWN
        ]
        may_see = self._options.may_see
        names = [view.key if may_see(view.namespace) else "a Workload" for view in unknown_views[:_NAMES_MAX]]
        dependency_texts = [
            f"{name} holds {_describe_held_quota(view)} and its run time is unknown"
            for name, view in zip(names, unknown_views, strict=False)
        ]
        if len(unknown_views) > _NAMES_MAX:
            dependency_texts.append(f"{len(unknown_views) - _NAMES_MAX} more running Workloads have unknown run times")
        pending_message = self._pending_message(name)
        if not is_certain and pending_message:
            dependency_texts.append(f"it waits because: {pending_message}")
        return dependency_texts

    def _pending_message(self, name: str) -> str:
        condition = find_condition(self._state.objects[_workload_key(name)], "QuotaReserved")
        return str(condition["message"]) if condition else ""


def _workload_key(name: str) -> Key:
    return Key(scheme.WORKLOAD, *name.split("/", 1))


def _cycle_count(world: World) -> int:
    return next(queue.adds for queue in world.platform.runner.queue_stats() if queue.name == Scheduler.name)


def _extrapolate_start(run: _ForkRun, queue: str, position: int) -> Duration | None:
    admission_times = [at for each, name, at in run.admissions if each == queue and f"/{ARRIVAL_NAME}-" not in name]
    half_count = len(admission_times) // 2
    if not half_count or admission_times[-1] <= admission_times[half_count - 1]:
        return None
    time_per_start = (admission_times[-1] - admission_times[half_count - 1]) / (len(admission_times) - half_count)
    return round(admission_times[-1] + (position + 1 - len(admission_times)) * time_per_start)


def _describe_held_quota(view: WorkloadView) -> str:
    amounts: dict[str, int] = {}
    for holding in view.admitted_pod_sets:
        for resource, amount in holding.usage:
            amounts[resource] = amounts.get(resource, 0) + amount
    return " and ".join(
        f"{readable_amount(resource, amount)} {resource}" for resource, amount in sorted(amounts.items())
    )


# Warnings about the immediate effects of a queue change, for `--dry-run=server`.
#
# The states without and with the change are simulated for one instant each. The warnings name the Workloads that are
# admitted, preempted or evicted in only one of both states. Other warnings name Workloads that exceed the remaining
# quota, and quota that exceeds the capacity of the nodes.


#: The limit of kernel steps for each of the two states; later effects are not considered.
STEPS_MAX: Final = 20_000
_SHOWN_NAMES_MAX: Final = 3
_LOST_ADMISSION_TEXT: Final = "would be admitted at once without the change, but not with it"


@dataclass(slots=True)
class _ImmediateEffects:
    admitted: dict[str, None] = field(default_factory=dict)
    preempted: dict[str, None] = field(default_factory=dict)
    evicted: dict[str, None] = field(default_factory=dict)
    #: By ClusterQueue, flavor and resource: the usage above the quota, and the Workloads that no longer fit.
    excess_by_quota: dict[tuple[str, str, str], tuple[int, Sequence[str]]] = field(default_factory=dict)


def dry_run_warnings(old_state: State, new_object: Obj, may_see: Callable[[str], bool]) -> list[str]:
    """Return warnings about the immediate effects of storing `new_object`, for example on admission and preemption.

    Workload names are hidden if `may_see` returns False for their namespace.
    """
    stored_object = with_metadata(new_object, resourceVersion=str(old_state.revision + 1))
    old_effects = _simulate_instant(old_state)
    objects = {**old_state.objects, key_of(new_object): stored_object}
    new_state = replace(old_state, revision=old_state.revision + 1, objects=objects)
    new_effects = _simulate_instant(new_state)
    warnings = [
        *_describe_new_names("would be admitted at once", old_effects.admitted, new_effects.admitted, may_see),
        *_describe_new_names("would be preempted at once", old_effects.preempted, new_effects.preempted, may_see),
        *_describe_new_names("would be evicted at once", old_effects.evicted, new_effects.evicted, may_see),
        *_describe_new_names(_LOST_ADMISSION_TEXT, new_effects.admitted, old_effects.admitted, may_see),
    ]
    for quota_key, (amount, names) in new_effects.excess_by_quota.items():
        if amount > old_effects.excess_by_quota.get(quota_key, (0, ()))[0]:
            queue, flavor, resource = quota_key
            shown_names = _shorten_names(names, may_see)
            excess_text = (
                f"{readable_amount(resource, amount)} {resource} of flavor {flavor} more than its quota allows"
            )
            warnings.append(
                f"ClusterQueue {queue} would use {excess_text}: "
                f"{shown_names} would no longer fit; it admits no other Workload"
            )
    return [*warnings, *_quota_above_nodes(new_state, new_object)]


def _simulate_instant(state: State) -> _ImmediateEffects:
    queues = queues_of(state)
    quota_state = reduce_to_quota(state, queues, pending_order_of(state, queues), None)
    effects = _ImmediateEffects()
    names_by_event = {"Admitted": effects.admitted, "Preempted": effects.preempted, "Evicted": effects.evicted}

    def record_event(record: Record) -> None:
        workload_names = names_by_event.get(record["event"])
        if workload_names is not None:
            workload_names[record["workload"]] = None

    workloads = [standalone_workload(obj, None) for obj in quota_state.workloads.values()]
    scenario = Scenario((), kueue=state.kueue)
    world = World(scenario, sink=record_event, state=make_state(state, quota_state.objects, workloads))
    world.kernel.run(state.at, steps_max=STEPS_MAX)
    snapshot = world.platform.index.snapshot
    snapshot.rebuild_if_changed()
    for queue in snapshot.queues.values():
        effects.excess_by_quota |= _exceeded_quota(queue, snapshot)
    return effects


def _exceeded_quota(queue: ClusterQueue, snapshot: Snapshot) -> dict[tuple[str, str, str], tuple[int, Sequence[str]]]:
    excess_by_resource: dict[tuple[str, str, str], tuple[int, Sequence[str]]] = {}
    for fr, used in enumerate(queue.node.usage):
        excess = min(used, -available(queue.node, fr)) if used > 0 else 0
        if excess <= 0:
            continue
        names, remaining_excess = [], excess
        for admitted_workload in queue.ranked_workloads():
            used_amount = dict(admitted_workload.usage).get(fr, 0)
            if used_amount and remaining_excess > 0:
                names.append(admitted_workload.key)
                remaining_excess -= used_amount
        excess_by_resource[queue.name, *snapshot.flavor_resource_names[fr]] = excess, names
    return excess_by_resource


def _describe_new_names(
    predicate: str, old_names: Mapping[str, None], new_names: Mapping[str, None], may_see: Callable[[str], bool]
) -> Iterator[str]:
    names = [name for name in new_names if name not in old_names]
    if names:
        yield f"{_shorten_names(names, may_see)} {predicate}"


def _shorten_names(names: Sequence[str], may_see: Callable[[str], bool]) -> str:
    visible_names = [name for name in names if may_see(name.partition("/")[0])][:_SHOWN_NAMES_MAX]
    hidden_count = len(names) - len(visible_names)
    if not visible_names:
        return count_with_noun(hidden_count, "Workload")
    return ", ".join(visible_names) + (f" and {hidden_count} more" if hidden_count else "")


def _quota_above_nodes(state: State, new_object: Obj) -> Iterator[str]:
    if key_of(new_object).kind not in {scheme.CLUSTER_QUEUE, scheme.COHORT}:
        return
    nodes = [node_view(node) for node in state.of_kind(scheme.NODE)]
    flavors = {flavor["metadata"]["name"]: flavor_view(flavor) for flavor in state.of_kind(scheme.RESOURCE_FLAVOR)}
    snapshot = trees_of(state)
    name, is_cluster_queue = new_object["metadata"]["name"], key_of(new_object).kind == scheme.CLUSTER_QUEUE
    changed_quota_node = snapshot.queues[name].node if is_cluster_queue else snapshot.cohorts[name]
    for fr in changed_quota_node.nominal if nodes else ():
        flavor, resource = snapshot.flavor_resource_names[fr]
        flavor_labels = flavors[flavor].labels if flavor in flavors else {}
        flavor_nodes = [node for node in nodes if flavor_labels.items() <= node.labels.items()]
        node_capacity = sum(node.allocatable.get(resource, 0) for node in flavor_nodes)
        quota_nodes = [*(queue.node for queue in snapshot.queues.values()), *snapshot.cohorts.values()]
        quota = sum(node.nominal.get(fr, 0) for node in quota_nodes)
        if changed_quota_node.nominal[fr] and quota > node_capacity:
            quota_text = f"quota for {resource} in flavor {flavor} would be {readable_amount(resource, quota)} in all"
            yield f"{quota_text}; the existing nodes have {readable_amount(resource, node_capacity)}"


# Forecasts and warnings for the API server, from its current objects. Names that the user may not see are hidden.


#: The kinds that a forecast needs.
FORECAST_KINDS: Final = (
    *(scheme.NAMESPACE, scheme.RESOURCE_FLAVOR, scheme.TOPOLOGY, scheme.COHORT, scheme.CLUSTER_QUEUE),
    *(scheme.LOCAL_QUEUE, scheme.LIMIT_RANGE, scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS),
    *(scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.PREEMPTION_CONFIG),
)
#: The end of the message about an object that has no forecast.
NO_START: Final = "there is no start to forecast"
KindLister = Callable[[str], Iterable[Obj]]
MaySee = Callable[[str], bool]


class ForecastAnswers:
    """Computes forecasts and dry-run warnings for the API server, with the scheduler settings `kueue`."""

    def __init__(self, kueue: KueueSettings = SIMULATION_SETTINGS) -> None:
        self._kueue = kueue

    def forecast_of(
        self, list_kind: KindLister, at: Instant, subject: Key, seed: int, may_see: MaySee, calibration: Calibration
    ) -> Mapping[str, Any]:
        """Return the forecast of a Workload or job as a document; raise StatusError if it has ended or has no Workload.

        `may_see` reports whether the names of a namespace's Workloads may be shown.
        """
        state = self._state(list_kind, at, FORECAST_KINDS)
        name = workload_of(state.objects, subject)
        options = ForecastOptions(seed, work_max=SERVER_WORK_MAX, may_see=may_see, calibration=calibration)
        forecast = None if name is None else forecast_workloads(state, [name], options).get(name)
        if forecast is None:
            problem = "has no Workload" if name is None else "has ended"
            message = f'{subject.kind} "{subject.name}" {problem}: {NO_START}'
            raise StatusError(404, "NotFound", message, {"name": subject.name})
        return forecast.document(subject_document(subject))

    def sample_forecasts(
        self, list_kind: KindLister, at: Instant, calibration: Calibration
    ) -> Sequence[ForecastRecord]:
        """Return forecasts of up to four random pending Workloads, to compare them with the actual starts later."""
        options = ForecastOptions(work_max=SERVER_WORK_MAX, calibration=calibration)
        return sample_forecasts(self._state(list_kind, at, FORECAST_KINDS), options)

    def warnings_for(self, list_kind: KindLister, at: Instant, new_object: Obj, may_see: MaySee) -> Sequence[str]:
        """Return the dry-run warnings about storing `new_object`.

        Workload names are hidden if `may_see` returns False for their namespace.
        """
        return dry_run_warnings(self._state(list_kind, at, (*FORECAST_KINDS, scheme.NODE)), new_object, may_see)

    def _state(self, list_kind: KindLister, at: Instant, kinds: Sequence[str]) -> State:
        if any(list_kind(scheme.TOPOLOGY)):
            kinds = (*kinds, scheme.NODE, scheme.POD)
        objects = {key_of(obj): obj for kind in kinds for obj in list_kind(kind)}
        revision = max((int(obj["metadata"]["resourceVersion"]) for obj in objects.values()), default=0)
        return State(at, revision, objects, kueue=self._kueue)
