"""Estimates of Workloads' run times: from manifests, else from the history of similar Workloads, else unknown.

Manifests give a run time by annotation, or by the sleeping time of their containers. The history is searched in these
groups, and in each of them the last 300 started Workloads:
- Workloads of the LocalQueue with the same name, apart from numbers, and the same requests;
- Workloads of the LocalQueue with the same name;
- Workloads of the LocalQueue with the same requests;
- all Workloads of the LocalQueue;
- all Workloads.

`maximumExecutionTimeSeconds` and `activeDeadlineSeconds` limit estimates without a run time in a manifest. A run lasts
from the admission to the end, so that it includes the start of the pods. Estimates from manifests are lengthened by the
median time by which ended runs exceeded their manifests.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from heapq import nlargest
from itertools import accumulate, repeat
from math import exp, log
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_of, find_condition, key_of, owner_key, with_metadata
from batchyard.api.times import parse_time
from batchyard.api.views.pods import is_terminal
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import HOUR, SECOND, Duration, Instant, format_duration
from batchyard.kubelet.simulated import durations
from batchyard.scheduling.workload.lifecycle import is_finished
from batchyard.sim.forecasting.arrivals import BlockBootstrap, random_fraction, random_weights
from batchyard.sim.state import State

# Kaplan-Meier estimate of durations, from work that has ended and work that is still running.
#
# Running work is censored at its age: its duration is known to be longer. Beyond the last observed end, work of age t
# reaches k times t with probability 1/k, as for work of which only the age is known. The exponent of 1/k depends on the
# ages of work that ran longer than all observed ends (`draw_tail_exponent`).
#
# Source: E. L. Kaplan and P. Meier, Nonparametric Estimation from Incomplete Observations, 1958.


#: Longer than any forecast.
_DURATION_MAX: Final = 10 * 365 * 24 * HOUR
_EXPONENT_MAX: Final = 40.0
_POWER_MIN: Final = 0.01


class SurvivalFunction:
    """Survival function of run times (Kaplan-Meier): the fraction of runs that last longer than each observed end."""

    __slots__ = ("_ends", "_log_beyond_last_end", "_survival_fractions")

    def __init__(
        self,
        ended_durations: Iterable[Duration],
        running_ages: Iterable[Duration] = (),
        random_weights: tuple[Iterable[float], Iterable[float]] | None = None,
    ) -> None:
        """Estimate from the durations of ended runs, the ages of current runs, and the weights of both (default 1)."""
        weight_by_end: dict[Duration, float] = {}
        ended_weights, running_weights = (repeat(1.0), repeat(1.0)) if random_weights is None else random_weights
        for duration, weight in zip(ended_durations, ended_weights, strict=False):
            weight_by_end[duration] = weight_by_end.get(duration, 0.0) + weight
        running = sorted(zip(running_ages, running_weights, strict=False))
        ages, censored_weights = ([age for age, _ in running], [0.0, *accumulate(weight for _, weight in running)])
        self._ends = sorted(weight_by_end)
        self._survival_fractions: list[float] = []  #  the fraction that lasts longer than each of the ends
        total_weight, fraction = censored_weights[-1] + sum(weight_by_end.values()), 1.0
        ended_weight = 0.0
        for end in self._ends:
            at_risk_now = total_weight - ended_weight - censored_weights[bisect_left(ages, end)]
            ended_weight += weight_by_end[end]
            # After the last end the fraction is exactly 0, regardless of rounding errors.
            fraction *= 1 - weight_by_end[end] / at_risk_now if at_risk_now > weight_by_end[end] * (1 + 1e-9) else 0.0
            self._survival_fractions.append(fraction)
        last_end = max(1, self._ends[-1]) if self._ends else 1
        self._log_beyond_last_end = (
            sum(weight * log(age / last_end) for age, weight in running if age > last_end) if self._ends else 0.0
        )

    def draw_tail_exponent(self, *random_fractions: float) -> float:
        """Return a random exponent for the tail beyond the longest observed run, from random numbers between 0 and 1.

        The exponent is uncertain, because no end in the tail was observed. It is drawn from the posterior of a gamma
        prior with mean one, given the ages beyond the last end. The count of random numbers is the prior's weight: each
        weighs as much as one observed end.
        """
        return max(-sum(map(log, random_fractions)) / (len(random_fractions) + self._log_beyond_last_end), _POWER_MIN)

    def surviving_fraction(self, age: Duration) -> float:
        """Return the fraction of runs that last longer than `age`."""
        position = bisect_right(self._ends, age)
        return self._survival_fractions[position - 1] if position else 1.0

    def fraction_interval(self, duration: Duration) -> tuple[float, float]:
        """Return two fractions of runs: those longer than `duration`, and those at least as long."""
        position = bisect_left(self._ends, duration)
        return self.surviving_fraction(duration), self._survival_fractions[position - 1] if position else 1.0

    def draw(self, random_fraction: float, age: Duration = 0, tail_exponent: float = 1.0) -> Duration:
        """Return the duration that the fraction `random_fraction` of the runs that reached `age` exceeds.

        Beyond the last observed end, the fraction of longer runs falls with the power `tail_exponent` of the duration.
        """
        fraction_at_age = self.surviving_fraction(age)
        target_fraction = fraction_at_age * random_fraction
        first_position = bisect_right(self._ends, age)
        for position in range(first_position, len(self._ends)):
            if self._survival_fractions[position] <= target_fraction:
                return self._ends[position]
        tail_start = max(age, self._ends[-1] if self._ends else 0, 1)
        last_fraction = self._survival_fractions[-1] if first_position < len(self._ends) else fraction_at_age
        tail_fraction = min(1.0, target_fraction / last_fraction) if last_fraction else random_fraction
        growth_exponent = min(-log(tail_fraction) / tail_exponent, _EXPONENT_MAX)
        return round(min(tail_start * exp(growth_exponent), max(tail_start, _DURATION_MAX)))


#: The maximum size of a history; only the latest starts count, because run times change over the months.
HISTORY_MAX: Final = 300
#: The minimum number of ended runs in a history.
ENDED_MIN: Final = 5
#: The smallest probability that is drawn.
_FRACTION_MIN: Final = 1e-9
_KIND_BY_OWNER: Final[Mapping[str, str]] = {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}
_NUMBER_PATTERN: Final = re.compile(r"\d+")
#: Matches the name of a Workload, which Kueue derives from the name of its job.
_JOB_NAME_PATTERN: Final = re.compile(r"(?:job|jobset)-(.*)-[0-9a-f]{5}")
_GroupKey: TypeAlias = tuple[str, ...]


class EstimateBasis(StrEnum):
    """The source of an estimated run time: manifest, history of similar Workloads, or unknown."""

    MANIFEST = "manifest"
    HISTORY = "history"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated run time of a Workload, counted from its admission."""

    basis: EstimateBasis
    runtime: Duration = 0
    history: "RunHistory | None" = None
    #: The maximum run time by the manifests; None: unlimited.
    time_max: Duration | None = None

    def draw(self, random_fraction: float, age: Duration) -> Duration | None:
        """Return the run time that the fraction `random_fraction` of similar runs exceeds, at least `age`.

        A run time from the manifest is not random. Without that and a history, return the maximum run time, if any.
        """
        if self.basis is EstimateBasis.MANIFEST:
            return max(self.runtime, age)
        if self.history is not None:
            return self.limit_run_time(self.history.survival.draw(random_fraction, age), age)
        return None if self.time_max is None else max(age, self.time_max)

    def limit_run_time(self, run_time: Duration, age: Duration) -> Duration:
        """Return a drawn run time, limited to the Workload's maximum run time but not below `age`."""
        return run_time if self.time_max is None else max(age, min(run_time, self.time_max))


class _ObservedRun(NamedTuple):
    """A past or current run of a Workload: its start, its duration so far, and whether it has ended."""

    started: Instant
    age: Duration
    has_ended: bool


class RunHistory:
    """The runs of similar Workloads in the order of their starts, and of less similar Workloads with a small weight.

    The less similar Workloads contribute rare events, such as runs that last for days, which a few similar runs may
    lack.
    """

    def __init__(self, name: str, runs: Sequence[_ObservedRun], wider_runs: Sequence[_ObservedRun] = ()) -> None:
        self._name = name
        self._runs = runs
        self._wider_runs = wider_runs
        self._wider_weight = min(1.0, ENDED_MIN / len(wider_runs)) if wider_runs else 0.0
        #: The number of ended runs.
        self.ended_count = sum(run.has_ended for run in runs)
        self.survival = self._survival([1.0] * len(runs), [1.0] * len(wider_runs))

    def draws_for_fork(self, seed: int) -> "HistoryDraws":
        """Return a generator of random run times from this history, for one simulation (fork) of a forecast."""
        weights_by_group = (
            random_weights(len(self._runs), seed, "history", self._name),
            random_weights(len(self._wider_runs), seed, "wider"),
        )
        return HistoryDraws(self._name, self._survival(*weights_by_group), self._fraction_intervals, seed)

    def _survival(self, run_weights: Sequence[float], wider_weights: Sequence[float]) -> SurvivalFunction:
        rows = [*zip(self._runs, run_weights, strict=True)]
        rows += [(run, each * self._wider_weight) for run, each in zip(self._wider_runs, wider_weights, strict=True)]
        return _fit_survival(rows)

    @cached_property
    def _fraction_intervals(self) -> Sequence[tuple[float, float]]:
        """Return for each run two fractions of runs: those that last longer, and those that last at least as long.

        The end of a run in progress is unknown: its interval is from 0 to the fraction of runs that last longer than
        its age.
        """
        own_survival = _fit_survival([(run, 1.0) for run in self._runs])
        fractions = [own_survival.fraction_interval(run.age) for run in self._runs]
        runs_and_fractions = zip(self._runs, fractions, strict=True)
        return [interval if run.has_ended else (0.0, interval[0]) for run, interval in runs_and_fractions]


def _fit_survival(weighted_runs: Sequence[tuple[_ObservedRun, float]]) -> SurvivalFunction:
    ended_runs = [(run.age, each) for run, each in weighted_runs if run.has_ended]
    current_runs = [(run.age, each) for run, each in weighted_runs if not run.has_ended]
    run_weights = ([each for _, each in ended_runs], [each for _, each in current_runs])
    return SurvivalFunction((age for age, _ in ended_runs), (age for age, _ in current_runs), run_weights)


class HistoryDraws:
    """Generator of random run times for one simulation of a forecast, drawn in blocks from a history of runs."""

    def __init__(
        self, name: str, survival: SurvivalFunction, fraction_intervals: Sequence[tuple[float, float]], seed: int
    ) -> None:
        self._survival = survival
        self._fraction_intervals = fraction_intervals
        self._positions = BlockBootstrap(len(fraction_intervals), seed, "runs", name)
        self._name = name
        self._seed = seed
        random_fractions = random_fraction(seed, "power", name), random_fraction(seed, "power too", name)
        self._tail_exponent = survival.draw_tail_exponent(*random_fractions)
        self._draw_count = 0

    def next_run_time(self, age: Duration) -> Duration:
        """Return the next random total run time, for a Workload that has already run for `age`."""
        lower, upper = self._fraction_intervals[self._positions.next_index()]
        random_value = random_fraction(self._seed, "length", self._name, str(self._draw_count))
        self._draw_count += 1
        return self._survival.draw(max(lower + (upper - lower) * random_value, _FRACTION_MIN), age, self._tail_exponent)


class RunTimeEstimator:
    """Estimates the run times of a state's Workloads from their manifests and from earlier runs."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._cluster = state.cluster
        self._runs_by_group: dict[_GroupKey, list[_ObservedRun]] = {}
        self._latest_runs_by_group: dict[_GroupKey, Sequence[_ObservedRun]] = {}
        self._histories: dict[_GroupKey, RunHistory] = {}
        overruns: list[Duration] = []
        for workload in state.of_kind(scheme.WORKLOAD):
            age = age_of(workload, state.at)
            if age is not None:
                overruns += self._record_run(workload, age)
        self._median_overrun = sorted(overruns)[len(overruns) // 2] if overruns else 0

    def estimate(self, workload: Obj) -> Estimate:
        """Return the estimated run time of a Workload."""
        runtime = explicit_runtime(workload, self._state.objects, self._cluster)
        if runtime is not None:
            return Estimate(EstimateBasis.MANIFEST, runtime + self._median_overrun)
        time_max = _run_time_max(workload, self._state.objects)
        group_keys = _group_keys(workload)
        for position, group in enumerate(group_keys):
            history = self._history(group, group_keys[position + 1 :])
            if history.ended_count >= ENDED_MIN:
                return Estimate(EstimateBasis.HISTORY, 0, history, time_max)
        return Estimate(EstimateBasis.UNKNOWN, 0, None, time_max)

    def _history(self, group: _GroupKey, wider_groups: Sequence[_GroupKey]) -> RunHistory:
        history = self._histories.get(group)
        if history is None:
            group_runs = self._latest_runs(group)
            runs_of_wider_groups = map(self._latest_runs, wider_groups)
            wider_runs = next((runs for runs in runs_of_wider_groups if len(runs) > len(group_runs)), ())
            history = self._histories[group] = RunHistory(repr(group), group_runs, wider_runs)
        return history

    def _latest_runs(self, group: _GroupKey) -> Sequence[_ObservedRun]:
        latest_runs = self._latest_runs_by_group.get(group)
        if latest_runs is None:
            latest_runs = self._latest_runs_by_group[group] = nlargest(HISTORY_MAX, self._runs_by_group.get(group, ()))[
                ::-1
            ]
        return latest_runs

    def _record_run(self, workload: Obj, age: Duration) -> Sequence[Duration]:
        """Record a Workload's run; return by how much it exceeded the run time in the manifest, in a tuple.

        The tuple is empty if the run has not ended or the manifest has no run time.
        """
        admission, has_ended = find_condition(workload, "Admitted"), is_finished(workload)
        assert admission is not None, "a Workload that has run has the condition Admitted"
        run = _ObservedRun(parse_time(admission["lastTransitionTime"]), age, has_ended)
        for group in _group_keys(workload):
            self._runs_by_group.setdefault(group, []).append(run)
        runtime = explicit_runtime(workload, self._state.objects, self._cluster) if has_ended else None
        return () if runtime is None else (max(0, age - runtime),)


def age_of(workload: Obj, now: Instant) -> Duration | None:
    """Return how long a Workload has run since its admission, up to its end; None if it is not admitted."""
    admission = find_condition(workload, "Admitted")
    if admission is None or admission["status"] != "True":
        return None
    finished_condition = find_condition(workload, "Finished")
    end_time = now if finished_condition is None else parse_time(finished_condition["lastTransitionTime"])
    return max(0, end_time - parse_time(admission["lastTransitionTime"]))


def explicit_runtime(workload: Obj, objects: Mapping[Key, Obj], cluster: Obj | None) -> Duration | None:
    """Return the run time that a Workload's manifests or the Cluster object state; None if unknown or unlimited."""
    runtime = durations.annotated_runtime(workload)
    owner = owner_of(workload, objects)
    if runtime is not None or owner is None:
        return runtime
    pod_runtime, default_time = durations.annotated_runtime(owner), _run_time_by_cluster(owner, cluster)
    if owner["kind"] == "Job":
        return _run_time_of_job(owner["spec"], pod_runtime, default_time)
    if owner["kind"] == "JobSet":
        job_templates = [row["template"] for row in owner["spec"].get("replicatedJobs") or ()]
    else:
        job_templates = [{"spec": {"template": each["template"]}} for each in workload["spec"]["podSets"]]
    job_times = [
        _run_time_of_job(job["spec"], _runtime_or_default(durations.template_runtime(job), pod_runtime), default_time)
        for job in job_templates
    ]
    known_times = [each for each in job_times if each is not None]
    return max(known_times) if known_times and len(known_times) == len(job_times) else None


def round_count_of(owner: Obj) -> int:
    """Return a Job's completions divided by its parallelism, rounded up, at least 1; 1 for other owners."""
    return _round_count(owner["spec"]) if owner["kind"] == "Job" else 1


def _run_time_by_cluster(owner: Obj, cluster: Obj | None) -> Duration | None:
    metadata = owner["metadata"]
    named_time = durations.named_runtime(cluster, [f"{metadata.get('namespace') or ''}/{metadata['name']}"])
    return durations.default_runtime(cluster) if named_time is None else named_time


def _run_time_of_job(
    spec: Mapping[str, object], pod_runtime: Duration | None, default_time: Duration | None
) -> Duration | None:
    template: Mapping[str, Mapping[str, Sequence[Obj]]] = spec["template"]  # type: ignore[assignment]
    container = template["spec"]["containers"][0]
    pod_runtime = _runtime_or_default(durations.template_runtime(template), pod_runtime)
    if pod_runtime is None:
        command_line = (tuple(container.get(field) or ()) for field in ("command", "args"))
        pod_runtime = durations.sleep_time_of_command(container.get("image") or "", *command_line)
    pod_runtime = _runtime_or_default(pod_runtime, default_time)
    if pod_runtime is None or pod_runtime >= durations.UNLIMITED_RUNTIME:
        return None
    return pod_runtime * _round_count(spec)


def _runtime_or_default(runtime: Duration | None, default: Duration | None) -> Duration | None:
    return default if runtime is None else runtime


def _round_count(spec: Mapping[str, object]) -> int:
    parallelism, completions = spec.get("parallelism") or 1, spec.get("completions") or 1
    assert isinstance(parallelism, int)
    assert isinstance(completions, int)
    return max(1, -(-completions // parallelism))


def _run_time_max(workload: Obj, objects: Mapping[Key, Obj]) -> Duration | None:
    owner = owner_of(workload, objects)
    time_limits = [workload["spec"].get("maximumExecutionTimeSeconds")]
    time_limits += [] if owner is None else [owner["spec"].get("activeDeadlineSeconds")]
    known_limits = [limit for limit in time_limits if limit is not None]
    return min(known_limits) * SECOND if known_limits else None


def owner_of(workload: Obj, objects: Mapping[Key, Obj]) -> Obj | None:
    """Return the Job, JobSet or job of a custom kind in `objects` that owns a Workload; None if there is none."""
    owner = controller_of(workload)
    if owner is None:
        return None
    key = owner_key(owner, workload["metadata"].get("namespace") or "")
    is_job = owner["kind"] in _KIND_BY_OWNER or not scheme.is_built_in(key.kind)
    return objects.get(key._replace(kind=_KIND_BY_OWNER.get(owner["kind"], key.kind))) if is_job else None


def _group_keys(workload: Obj) -> Sequence[_GroupKey]:
    """Return the keys of the groups of similar Workloads to which a Workload belongs, the most similar first."""
    view = workload_view(workload)
    name_match = _JOB_NAME_PATTERN.fullmatch(view.name)
    name_stem = _NUMBER_PATTERN.sub("#", name_match[1] if name_match else view.name)
    requests_text = repr([(each.count, sorted(each.template.requests)) for each in view.pod_sets])
    return (
        (view.queue, "named", name_stem, requests_text),
        (view.queue, "named", name_stem),
        (view.queue, requests_text),
        (view.queue,),
        (),
    )


# Explicit run times for all work of a state, for worlds that start from clusters with real work.
#
# A simulated pod without a run time takes a minute, unlike a real pod. Therefore jobs and Workloads without a run time
# get the median of their history. Work of unknown run time never ends, and neither do pods without a job.


#: Longer than any forecast.
NEVER_ENDS: Final = 10 * 365 * 24 * HOUR
_JOB_KINDS: Final = frozenset({"Job", "JobSet"})


def with_runtimes(state: State) -> tuple[State, list[str]]:
    """Return the state with run times for its unfinished work, and the sorted names of Workloads that never end.

    Where no run time is stated, one is added to the job of each unfinished Workload (to the Workload if it has no
    job), and to each unfinished pod without a job. The names are those of Workloads with quota and an unknown run time.
    """
    estimator, unknown_names = RunTimeEstimator(state), list[str]()
    new_objects: dict[Key, Obj] = {}
    cluster = state.cluster
    for workload in state.of_kind(scheme.WORKLOAD):
        view = workload_view(workload)
        if view.finished or explicit_runtime(workload, state.objects, cluster) is not None:
            continue
        runtime = estimator.estimate(workload).draw(0.5, age_of(workload, state.at) or 0)
        if runtime is None and view.quota_reserved:
            unknown_names.append(view.key)
        owner = owner_of(workload, state.objects)
        annotated_object = workload if owner is None else owner
        new_objects[key_of(annotated_object)] = _annotate_runtime(
            annotated_object, NEVER_ENDS if runtime is None else max(1, runtime // round_count_of(annotated_object))
        )
    new_objects |= {key_of(pod): _annotate_runtime(pod, NEVER_ENDS) for pod in _pods_without_job(state)}
    return replace(state, objects={**state.objects, **new_objects}), sorted(unknown_names)


def _pods_without_job(state: State) -> Iterable[Obj]:
    for pod in state.of_kind(scheme.POD):
        owner = controller_of(pod)
        if is_terminal(pod) or (owner is not None and owner["kind"] in _JOB_KINDS):
            continue
        if annotation(pod, well_known.RUNTIME) is None:
            yield pod


def _annotate_runtime(obj: Obj, runtime: Duration) -> Obj:
    annotations = {**(obj["metadata"].get("annotations") or {}), well_known.RUNTIME: format_duration(runtime)}
    return with_metadata(obj, annotations=annotations)
