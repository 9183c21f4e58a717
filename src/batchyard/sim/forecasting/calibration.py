"""Calibration of forecasts: each quantile is shifted until its hit rate equals its level.

A forecast of a wait consists of quantiles at fixed levels. When the outcome is known, the shifts of the levels change.
A start after the quantile raises the shift by a step times the level. A start before it lowers the shift by a step
times one minus the level. A shift is therefore stable only if the quantile is right as often as its level says. This
holds for any load and any error of the forks, without a model of the errors. Each change also moves the opposite level
in the opposite direction, so that intervals become wider instead of moving back and forth.

Shifts are factors on the wait. Steps are a fraction of the usual error of forecasts, larger at first, so that exact
forecasts stay exact. All forecasts have the same weight, because the hit rate counts all of them. One set of shifts
applies to all forecasts of a basis, and a second set to each horizon. A quantile is known to be too early as soon as
its time passes before the start. A forecast has no effect before its outcome is known.

Sources: A. N. Angelopoulos, E. J. Candes and R. J. Tibshirani, Conformal PID Control for Time Series Prediction, 2023
(quantile tracking); I. Gibbs and E. Candes, Adaptive Conformal Inference Under Distribution Shift, 2021; A. N.
Angelopoulos, R. F. Barber and S. Bates, Online Conformal Prediction with Decaying Step Sizes, 2024 (larger steps
first).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log1p
from typing import Final, TypeAlias

from batchyard.api.meta import Obj, find_condition
from batchyard.api.times import parse_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant

#: The quantile levels at which forecasts are corrected: 5 %, 10 %, ... 95 %.
LEVELS: Final = tuple(number / 20 for number in range(1, 20))
MEDIAN: Final = 9
#: The minimum step as a fraction of the usual error, and the exponent by which early steps are larger.
_STEP_SIZE: Final = 0.1
_STEP_EXPONENT: Final = 0.6
#: How much more a level is moved than the opposite level: 0 moves both equally, 1 moves only the level.
_ASYMMETRY: Final = 0.5
#: The number of forecasts over which the usual error is averaged.
_ERROR_WINDOW: Final = 50
#: The largest correction of a wait, in powers of e.
_SHIFT_MAX: Final = 8.0
#: Forecasts of fewer forks are tracked separately, because such small samples have hardly any tails.
_MANY_FORKS_MIN: Final = 9
_HORIZONS: Final = ((10 * MINUTE, "minutes"), (HOUR, "an hour"), (6 * HOUR, "hours"))
_LONGEST_HORIZON: Final = "days"
#: The limits of forecasts without an outcome: their number and their age.
PENDING_MAX: Final = 256
PENDING_FOR: Final = 14 * 24 * HOUR
_NO_SHIFTS: Final = (0.0,) * len(LEVELS)
#: Waits by level, as the logarithm of seconds plus one; None for a level without a known wait.
Waits: TypeAlias = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class QuantileTracker:
    """The corrections of one category of forecasts: a shift for each quantile level, and the forecasts' usual error."""

    shifts: tuple[float, ...] = _NO_SHIFTS
    #: The usual error of the medians before corrections.
    error: float = 0.0
    #: The number of known outcomes of forecasts with a median.
    count: int = 0


@dataclass(frozen=True, slots=True)
class ForecastRecord:
    """A forecast that is kept to compare it with the actual wait of its Workload."""

    workload: str
    uid: str
    at: Instant
    #: The names of the trackers that correct the forecast.
    sorts: tuple[str, ...]
    #: The median before corrections, and the corrected waits by level, possibly not in ascending order.
    median: float | None
    moved: Waits
    #: A bit for each level whose wait is already known to be too short.
    late: int = 0


@dataclass(frozen=True, slots=True)
class Calibration:
    """The corrections of all categories of forecasts, and the forecasts whose Workloads have not started yet."""

    tracks: Mapping[str, QuantileTracker] = field(default_factory=dict)
    #: The forecasts whose outcome is not known yet.
    pending: tuple[ForecastRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class StartOutcome:
    """The outcome of a forecast: when its Workload started (None: not yet), or that it can no longer start."""

    started_at: Instant | None = None
    is_gone: bool = False


def outcome_of(workload: Obj | None, uid: str) -> StartOutcome:
    """Return whether and when the Workload with the uid `uid` was admitted, from the object that now has its name.

    A Workload that is deleted, finished or inactive can no longer start.
    """
    if workload is None or workload["metadata"].get("uid", "") != uid:
        return StartOutcome(is_gone=True)
    condition = find_condition(workload, "Admitted")
    if condition is not None and condition["status"] == "True":
        return StartOutcome(parse_time(condition["lastTransitionTime"]))
    view = workload_view(workload)
    return StartOutcome(is_gone=view.finished or not view.active)


def to_log_wait(wait: Duration | None) -> float | None:
    """Return the logarithm of (1 + the wait in seconds), in which corrections are expressed; None stays None."""
    return None if wait is None else log1p(wait / SECOND)


def wait_of(log_wait: float) -> Duration:
    """Return the wait from its logarithm, the inverse of `to_log_wait`; 0 for a negative logarithm."""
    return max(0, round((exp(log_wait) - 1) * SECOND))


def tracker_names_for(basis: str, fork_waits: Waits, forks: int) -> tuple[str, ...]:
    """Return the names of the QuantileTrackers that correct a forecast; () if it is based on only one simulation.

    `basis` is the source of the run times; `fork_waits` are the waits before corrections; `forks` counts simulations.
    """
    if forks < 2:
        return ()
    median_wait = fork_waits[MEDIAN]
    wait = None if median_wait is None else wait_of(median_wait)
    horizon_name = next((name for bound, name in _HORIZONS if wait is not None and wait < bound), _LONGEST_HORIZON)
    return f"{basis}, {'many' if forks >= _MANY_FORKS_MIN else 'few'} forks", f"{basis}, {horizon_name}"


def correct_waits(calibration: Calibration, tracker_names: Iterable[str], waits: Waits) -> Waits:
    """Return the forecast waits, each corrected by the shifts of the named QuantileTrackers."""
    shifts = [calibration.tracks.get(sort, QuantileTracker()).shifts for sort in tracker_names]
    sums = [sum(each[level] for each in shifts) for level in range(len(waits))]
    return tuple(None if wait is None else wait + _limit_shift(total) for wait, total in zip(waits, sums, strict=True))


def sort_waits(waits: Waits) -> Waits:
    """Return corrected waits in ascending order and without negative values; unknown waits (None) are last."""
    known_waits = sorted(max(0.0, wait) for wait in waits if wait is not None)
    return (*known_waits, *[None] * (len(waits) - len(known_waits)))


def add_forecasts(calibration: Calibration, samples: Sequence[ForecastRecord]) -> Calibration:
    """Return the calibration with the forecasts `samples`, to compare them with their outcomes later.

    Forecasts without trackers are ignored. Of all pending forecasts, the latest 256 are kept.
    """
    new_records = [sample for sample in samples if sample.sorts]
    return replace(calibration, pending=(*calibration.pending, *new_records)[-PENDING_MAX:])


def apply_outcomes(
    calibration: Calibration, now: Instant, outcome_of_record: Callable[[ForecastRecord], StartOutcome]
) -> Calibration:
    """Return the calibration, updated with the outcomes that `outcome_of_record` returns for its pending forecasts.

    Forecasts whose Workloads have started or can no longer start, and those older than 14 days, are dropped.
    """
    trackers, pending_records = dict(calibration.tracks), list[ForecastRecord]()
    for sample in calibration.pending:
        outcome = outcome_of_record(sample)
        if outcome.is_gone or now - sample.at > PENDING_FOR:
            continue
        outcome_update = _outcome_update_of(sample, now, outcome)
        for sort in sample.sorts:
            trackers[sort] = _update_tracker(trackers.get(sort, QuantileTracker()), sample, outcome_update)
        if not outcome_update.is_over:
            pending_records.append(
                replace(sample, late=sample.late | sum(1 << level for level in outcome_update.is_late_by_level))
            )
    return Calibration(trackers, tuple(pending_records))


@dataclass(frozen=True, slots=True)
class _OutcomeUpdate:
    #: The wait of the Workload so far, as the logarithm of seconds plus one.
    log_wait: float
    #: By level with a new result, whether the start is later than the forecast.
    is_late_by_level: Mapping[int, bool]
    #: Whether the Workload has started.
    is_over: bool


def _outcome_update_of(sample: ForecastRecord, now: Instant, outcome: StartOutcome) -> _OutcomeUpdate:
    is_over = outcome.started_at is not None and outcome.started_at <= now
    wait_end = outcome.started_at if is_over and outcome.started_at is not None else now
    log_wait = log1p(max(0, wait_end - sample.at) / SECOND)
    late = sample.late
    waits = [(level, wait) for level, wait in enumerate(sample.moved) if wait is not None and not late >> level & 1]
    is_late_by_level = {level: log_wait > wait for level, wait in waits if is_over or log_wait > wait}
    return _OutcomeUpdate(log_wait, is_late_by_level, is_over)


def _update_tracker(
    tracker: QuantileTracker, sample: ForecastRecord, outcome_update: _OutcomeUpdate
) -> QuantileTracker:
    median = sample.median
    error = 0.0 if median is None else abs(outcome_update.log_wait - median)
    step_size = max(_STEP_SIZE, (1 + tracker.count) ** -_STEP_EXPONENT) * (tracker.error if tracker.count else error)
    shifts = list(tracker.shifts)
    for level, is_late in outcome_update.is_late_by_level.items():
        shift_change = step_size * (is_late - 1 + LEVELS[level])
        shifts[level] = _limit_shift(shifts[level] + shift_change * (1 + _ASYMMETRY) / 2)
        shifts[-1 - level] = _limit_shift(shifts[-1 - level] - shift_change * (1 - _ASYMMETRY) / 2)
    if not outcome_update.is_over or median is None:
        return replace(tracker, shifts=tuple(shifts))
    outcome_count = tracker.count + 1
    averaging_weight = max(1 / outcome_count, 1 / _ERROR_WINDOW)
    return QuantileTracker(tuple(shifts), tracker.error + (error - tracker.error) * averaging_weight, outcome_count)


def _limit_shift(shift: float) -> float:
    return min(max(shift, -_SHIFT_MAX), _SHIFT_MAX)
