"""Estimates of run times: from the manifests, else from the history of similar Workloads, else unknown.

Manifests give it by annotation, or by the sleeping time of their containers. The history is searched in this order, of
each group the last 300 that started:
- those of the queue with the same name apart from numbers and with the same requests;
- those of the queue with that name;
- those of the queue with the same requests;
- all of the queue;
- all Workloads.

`maximumExecutionTimeSeconds` and `activeDeadlineSeconds` bound every estimate. A run lasts from the admission to the
end, so that history includes the time until pods run. Estimates from manifests are lengthened by the median by which
ended runs exceeded theirs.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from heapq import nlargest
from itertools import accumulate, repeat
from math import exp, log
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_of, find_condition, key_of, with_metadata
from batchyard.api.times import parse_time
from batchyard.api.views.pods import is_terminal
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import HOUR, SECOND, Duration, Instant, duration_text
from batchyard.kubelet.simulated.durations import (
    FOR_EVER,
    annotated_runtime,
    default_runtime,
    named_runtime,
    sleeping_time,
)
from batchyard.scheduling.workload.lifecycle import is_finished
from batchyard.sim.forecasting.arrivals import BlockBootstrap, chance, weights
from batchyard.sim.state import State

# --- kaplan meier ---
#
# Kaplan-Meier estimate of durations, from work that has ended and work that is still running.
#
# Running work is censored at its age: its duration is known to be longer. Beyond the last observed end, work of age t
# reaches k times t with probability 1/k, as for work of which only the age is known. The exponent of 1/k may differ,
# according to the work that ran past all observed ends (`power`).
#
# Source: E. L. Kaplan and P. Meier, Nonparametric Estimation from Incomplete Observations, 1958.


#: Longer than any forecast.
_LONGEST: Final = 10 * 365 * 24 * HOUR
_LOG_MAX: Final = 40.0
_POWER_MIN: Final = 0.01


class SurvivalFunction:
    """The survival function of durations, as its steps at the observed ends."""

    __slots__ = ("_beyond", "_ends", "_left", "ended")

    def __init__(
        self,
        ended: Iterable[Duration],
        going_on: Iterable[Duration] = (),
        weights: tuple[Iterable[float], Iterable[float]] | None = None,
    ) -> None:
        """Estimate from the durations of ended work, the ages of running work, and the weights of both."""
        deaths: dict[Duration, float] = {}
        of_ended, of_going_on = (repeat(1.0), repeat(1.0)) if weights is None else weights
        #: The number of observed ends.
        self.ended = 0
        for duration, weight in zip(ended, of_ended, strict=False):
            deaths[duration] = deaths.get(duration, 0.0) + weight
            self.ended += 1
        censored = sorted(zip(going_on, of_going_on, strict=False))
        ages, lost = [age for age, _ in censored], [0.0, *accumulate(weight for _, weight in censored)]
        self._ends = sorted(deaths)
        self._left: list[float] = []  #  the share that lasts longer than each of the ends
        at_risk, left = lost[-1] + sum(deaths.values()), 1.0
        gone = 0.0
        for end in self._ends:
            still = at_risk - gone - lost[bisect_left(ages, end)]
            gone += deaths[end]
            # After the last end the share is exactly 0, regardless of rounding errors.
            left *= 1 - deaths[end] / still if still > deaths[end] * (1 + 1e-9) else 0.0
            self._left.append(left)
        last = max(1, self._ends[-1]) if self._ends else 1
        self._beyond = sum(weight * log(age / last) for age, weight in censored if age > last) if self._ends else 0.0

    def power(self, *chances: float) -> float:
        """Return the exponent of the tail in one fork, from random numbers between 0 and 1.

        No end in the tail was observed, so that the exponent is uncertain, and the same throughout a fork. It is drawn
        from the
        posterior of a gamma prior of mean one. The prior weighs as much as one end for each random number, and the
        posterior
        follows from the ages beyond the last end.
        """
        return max(-sum(map(log, chances)) / (len(chances) + self._beyond), _POWER_MIN)

    def left_after(self, age: Duration) -> float:
        """Return the share that lasts longer than `age`."""
        place = bisect_right(self._ends, age)
        return self._left[place - 1] if place else 1.0

    def longer_than(self, duration: Duration) -> tuple[float, float]:
        """Return the shares that last longer than `duration`, and at least `duration`."""
        place = bisect_left(self._ends, duration)
        return self.left_after(duration), self._left[place - 1] if place else 1.0

    def draw(self, chance: float, age: Duration = 0, power: float = 1.0) -> Duration:
        """Return the total duration that a share `chance` (0 < c < 1) of everything of age `age` exceeds.

        The duration includes the age.
        """
        known = self.left_after(age)
        wanted = known * chance
        first = bisect_right(self._ends, age)
        for place in range(first, len(self._ends)):
            if self._left[place] <= wanted:
                return self._ends[place]
        oldest = max(age, self._ends[-1] if self._ends else 0, 1)
        least = self._left[-1] if first < len(self._ends) else known
        share = min(1.0, wanted / least) if least else chance
        return round(min(oldest * exp(min(-log(share) / power, _LOG_MAX)), max(oldest, _LONGEST)))


#: The size of a history: only the latest starts, because workloads change over time.
RECENT: Final = 300
#: The minimum of ended runs in a history.
ENDED_MIN: Final = 5
#: The minimum of a probability.
_LEAST: Final = 1e-9
_OWNERS: Final[Mapping[str, str]] = {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}
_NUMBERS: Final = re.compile(r"\d+")
#: Matches the name of a Workload, which Kueue derives from the name of its job.
_OF_JOB: Final = re.compile(r"(?:job|jobset)-(.*)-[0-9a-f]{5}")
_Group: TypeAlias = tuple[str, ...]


class Basis(StrEnum):
    """The source of a run time."""

    MANIFEST = "manifest"
    HISTORY = "history"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated run time of a Workload, from its admission on."""

    basis: Basis
    runtime: Duration = 0
    history: "RunHistory | None" = None
    bound: Duration | None = None

    def draw(self, chance: float, age: Duration) -> Duration | None:
        """Return a random total run time for a run of age `age`; None if it is unknown."""
        if self.basis is Basis.MANIFEST:
            return max(self.runtime, age)
        if self.history is not None:
            return self.bounded(self.history.survival.draw(chance, age), age)
        return None if self.bound is None else max(age, self.bound)

    def bounded(self, drawn: Duration, age: Duration) -> Duration:
        """Limit a random run time to the time that the Workload may run."""
        return drawn if self.bound is None else max(age, min(drawn, self.bound))


class _Run(NamedTuple):
    """An observed run: its start, its duration so far, and whether it has ended."""

    started: Instant
    age: Duration
    has_ended: bool


class RunHistory:
    """Similar runs in the order of their starts, and those of a wider group with a small weight.

    A few runs contain little about rare events such as runs that last for days; the wider group does.
    """

    def __init__(self, name: str, runs: Sequence[_Run], wider: Sequence[_Run] = ()) -> None:
        self._name = name
        self._runs = runs
        self._wider = wider
        self._share = min(1.0, ENDED_MIN / len(wider)) if wider else 0.0
        #: The number of ended runs.
        self.ended = sum(run.has_ended for run in runs)
        self.survival = self._survival([1.0] * len(runs), [1.0] * len(wider))

    def forked(self, seed: int) -> "HistoryDraws":
        """Return the run times that the history gives in a fork of this seed."""
        counts = (weights(len(self._runs), seed, "history", self._name), weights(len(self._wider), seed, "wider"))
        return HistoryDraws(self._name, self._survival(*counts), self._shares, seed)

    def _survival(self, counts: Sequence[float], of_wider: Sequence[float]) -> SurvivalFunction:
        rows = [*zip(self._runs, counts, strict=True)]
        rows += [(run, each * self._share) for run, each in zip(self._wider, of_wider, strict=True)]
        return _weighed(rows)

    @cached_property
    def _shares(self) -> Sequence[tuple[float, float]]:
        """Return for each run the interval of quantiles that it stands for; the longest is at 0."""
        alone = _weighed([(run, 1.0) for run in self._runs])
        found = [alone.longer_than(run.age) for run in self._runs]
        return [shares if run.has_ended else (0.0, shares[0]) for run, shares in zip(self._runs, found, strict=True)]


def _weighed(rows: Sequence[tuple[_Run, float]]) -> SurvivalFunction:
    ended, going_on = ([(run.age, each) for run, each in rows if run.has_ended is over] for over in (True, False))
    counts = ([each for _, each in ended], [each for _, each in going_on])
    return SurvivalFunction((age for age, _ in ended), (age for age, _ in going_on), counts)


class HistoryDraws:
    """The run times of one history in one fork, drawn in stretches, from the history as reweighted by that fork."""

    def __init__(self, name: str, survival: SurvivalFunction, shares: Sequence[tuple[float, float]], seed: int) -> None:
        self._survival = survival
        self._shares = shares
        self._places = BlockBootstrap(len(shares), seed, "runs", name)
        self._name = name
        self._seed = seed
        self._power = survival.power(chance(seed, "power", name), chance(seed, "power too", name))
        self._drawn = 0

    def next(self, age: Duration) -> Duration:
        """Return the total length of the next run, of age `age`."""
        least, most = self._shares[self._places.next()]
        within = chance(self._seed, "length", self._name, str(self._drawn))
        self._drawn += 1
        return self._survival.draw(max(least + (most - least) * within, _LEAST), age, self._power)


class RunTimeEstimator:
    """Estimates the run times of a state's Workloads from its manifests and its history."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._cluster = state.cluster
        self._runs: dict[_Group, list[_Run]] = {}
        self._recent: dict[_Group, Sequence[_Run]] = {}
        self._histories: dict[_Group, RunHistory] = {}
        longer: list[Duration] = []
        for workload in state.of_kind(scheme.WORKLOAD):
            age = age_of(workload, state.at)
            if age is not None:
                longer += self._note(workload, age)
        self._lag = sorted(longer)[len(longer) // 2] if longer else 0

    def estimate(self, workload: Obj) -> Estimate:
        """Return the estimate of a Workload."""
        runtime = explicit_runtime(workload, self._state.objects, self._cluster)
        if runtime is not None:
            return Estimate(Basis.MANIFEST, runtime + self._lag)
        bound = _bound(workload, self._state.objects)
        groups = _groups(workload)
        for place, group in enumerate(groups):
            history = self._history(group, groups[place + 1 :])
            if history.ended >= ENDED_MIN:
                return Estimate(Basis.HISTORY, 0, history, bound)
        return Estimate(Basis.UNKNOWN, 0, None, bound)

    def _history(self, group: _Group, wider: Sequence[_Group]) -> RunHistory:
        known = self._histories.get(group)
        if known is None:
            own = self._last(group)
            beside = next((found for each in wider if len(found := self._last(each)) > len(own)), ())
            known = self._histories[group] = RunHistory(repr(group), own, beside)
        return known

    def _last(self, group: _Group) -> Sequence[_Run]:
        """Return the runs of a group that started last, in order."""
        known = self._recent.get(group)
        if known is None:
            known = self._recent[group] = nlargest(RECENT, self._runs.get(group, ()))[::-1]
        return known

    def _note(self, workload: Obj, age: Duration) -> Sequence[Duration]:
        """Record a run; return by how much it exceeded the run time of its manifests, if that is known."""
        admitted, has_ended = find_condition(workload, "Admitted"), is_finished(workload)
        assert admitted is not None, "a Workload with an age was admitted"
        run = _Run(parse_time(admitted["lastTransitionTime"]), age, has_ended)
        for group in _groups(workload):
            self._runs.setdefault(group, []).append(run)
        runtime = explicit_runtime(workload, self._state.objects, self._cluster) if has_ended else None
        return () if runtime is None else (max(0, age - runtime),)


def age_of(workload: Obj, now: Instant) -> Duration | None:
    """Return how long a Workload has run, or ran; None if it is not admitted."""
    admitted = find_condition(workload, "Admitted")
    if admitted is None or admitted["status"] != "True":
        return None
    finished = find_condition(workload, "Finished")
    until = now if finished is None else parse_time(finished["lastTransitionTime"])
    return max(0, until - parse_time(admitted["lastTransitionTime"]))


def explicit_runtime(workload: Obj, objects: Mapping[Key, Obj], cluster: Obj | None) -> Duration | None:
    """Return the run time of a Workload by its manifests or the Cluster; None if they give none."""
    runtime = annotated_runtime(workload)
    owner = owner_of(workload, objects)
    if runtime is not None or owner is None:
        return runtime
    of_pod, other = annotated_runtime(owner), _by_cluster(owner, cluster)
    if owner["kind"] == "Job":
        return _of_job(owner["spec"], of_pod, other)
    rows = owner["spec"].get("replicatedJobs") or ()
    found = [_of_job(row["template"]["spec"], of_pod, other) for row in rows]
    times = [each for each in found if each is not None]
    return max(times) if times and len(times) == len(found) else None


def rounds_of(owner: Obj) -> int:
    """Return how many pods run one after the other in a Job with more completions than parallelism."""
    return _rounds(owner["spec"]) if owner["kind"] == "Job" else 1


def _by_cluster(owner: Obj, cluster: Obj | None) -> Duration | None:
    """Return the Cluster's run time for the pods of a job without one."""
    metadata = owner["metadata"]
    named = named_runtime(cluster, [f"{metadata.get('namespace') or ''}/{metadata['name']}"])
    return default_runtime(cluster) if named is None else named


def _of_job(spec: Mapping[str, object], of_pod: Duration | None, other: Duration | None) -> Duration | None:
    """Return the run time of a Job from that of its pods, else from their sleeping time, else from `other`."""
    template: Mapping[str, Mapping[str, Sequence[Obj]]] = spec["template"]  # type: ignore[assignment]
    container = template["spec"]["containers"][0]
    if of_pod is None:
        line = (tuple(container.get(field) or ()) for field in ("command", "args"))
        of_pod = sleeping_time(container.get("image") or "", *line)
    of_pod = other if of_pod is None else of_pod
    if of_pod is None or of_pod >= FOR_EVER:
        return None
    return of_pod * _rounds(spec)


def _rounds(spec: Mapping[str, object]) -> int:
    parallelism, completions = spec.get("parallelism") or 1, spec.get("completions") or 1
    assert isinstance(parallelism, int)
    assert isinstance(completions, int)
    return max(1, -(-completions // parallelism))


def _bound(workload: Obj, objects: Mapping[Key, Obj]) -> Duration | None:
    """Return the limit of a Workload's run time."""
    owner = owner_of(workload, objects)
    limits = [workload["spec"].get("maximumExecutionTimeSeconds")]
    limits += [] if owner is None else [owner["spec"].get("activeDeadlineSeconds")]
    found = [limit for limit in limits if limit is not None]
    return min(found) * SECOND if found else None


def owner_of(workload: Obj, objects: Mapping[Key, Obj]) -> Obj | None:
    """Return the Job or JobSet of a Workload, if it exists."""
    owner = controller_of(workload)
    kind = None if owner is None else _OWNERS.get(owner["kind"])
    if owner is None or kind is None:
        return None
    return objects.get(Key(kind, workload["metadata"].get("namespace") or "", owner["name"]))


def _groups(workload: Obj) -> Sequence[_Group]:
    """Return the groups of similar Workloads, the closest first."""
    view = workload_view(workload)
    of_job = _OF_JOB.fullmatch(view.name)
    stem = _NUMBERS.sub("#", of_job[1] if of_job else view.name)
    asked = repr([(each.count, sorted(each.template.requests)) for each in view.pod_sets])
    return (view.queue, "named", stem, asked), (view.queue, "named", stem), (view.queue, asked), (view.queue,), ()


# --- annotated run times ---
#
# A state with an explicit run time for everything, for worlds that start from clusters with real work.
#
# A simulated pod without a run time takes a minute, unlike a real one. Therefore jobs and Workloads without one get the
# median by their history. Those of unknown run time never end, and neither do pods that belong to no job.


#: Longer than any forecast.
NEVER_ENDS: Final = 10 * 365 * 24 * HOUR
_OF_JOBS: Final = frozenset({"Job", "JobSet"})


def with_runtimes(state: State) -> tuple[State, list[str]]:
    """Return the state with all run times, and the running Workloads whose run time is unknown."""
    runtimes, unknown = RunTimeEstimator(state), list[str]()
    changed: dict[Key, Obj] = {}
    cluster = state.cluster
    for workload in state.of_kind(scheme.WORKLOAD):
        view = workload_view(workload)
        if view.finished or explicit_runtime(workload, state.objects, cluster) is not None:
            continue
        drawn = runtimes.estimate(workload).draw(0.5, age_of(workload, state.at) or 0)
        if drawn is None and view.quota_reserved:
            unknown.append(view.key)
        owner = owner_of(workload, state.objects)
        what = workload if owner is None else owner
        changed[key_of(what)] = _saying(what, NEVER_ENDS if drawn is None else max(1, drawn // rounds_of(what)))
    changed |= {key_of(pod): _saying(pod, NEVER_ENDS) for pod in _of_no_job(state)}
    return State(state.at, state.revision, {**state.objects, **changed}, state.applied), sorted(unknown)


def _of_no_job(state: State) -> Iterable[Obj]:
    """Yield the pods that belong to no job and have no run time."""
    for pod in state.of_kind(scheme.POD):
        owner = controller_of(pod)
        if is_terminal(pod) or (owner is not None and owner["kind"] in _OF_JOBS):
            continue
        if annotation(pod, well_known.RUNTIME) is None:
            yield pod


def _saying(obj: Obj, runtime: Duration) -> Obj:
    annotations = {**(obj["metadata"].get("annotations") or {}), well_known.RUNTIME: duration_text(runtime)}
    return with_metadata(obj, annotations=annotations)
