"""Calibration of forecasts: each quantile is shifted until its hit rate equals its level.

A forecast of a wait consists of quantiles at fixed levels. When the outcome is known, the shifts of the levels change.
A
start later than the quantile raises the shift by a step times the level; otherwise it falls by a step times the rest to
1. A shift is therefore stable only where the quantile is right as often as its level says. This holds for any load and
any error of the forks, without a model of the errors. Each change also moves the opposite level, in the opposite
direction. Intervals widen rather than drift, because forecasts that are too late in one hour are too early in the next.

Shifts are factors on the wait. Steps are a share of the usual error of forecasts, larger at first, so that exact
forecasts stay exact. Every forecast has the same weight, because the hit rate is that over all forecasts. There is one
set of shifts for all forecasts made alike, and another one on top for each horizon. A quantile is known to be too early
as soon as its time has passed, before the start. No future knowledge is used: a forecast counts from the time when its
outcome is known.

Sources: A. N. Angelopoulos, E. J. Candes and R. J. Tibshirani, Conformal PID Control for Time Series Prediction, 2023
(quantile tracking); I. Gibbs and E. Candes, Adaptive Conformal Inference Under Distribution Shift, 2021; A. N.
Angelopoulos, R. F. Barber and S. Bates, Online Conformal Prediction with Decaying Step Sizes, 2024 (larger ones first).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log1p
from typing import Final, TypeAlias

from batchyard.api.meta import Obj, find_condition
from batchyard.api.times import parse_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant

#: The levels at which forecasts are corrected.
LEVELS: Final = tuple(number / 20 for number in range(1, 20))
MEDIAN: Final = 9
#: The minimum step as a share of the usual error; the n-th step is larger while n is small, by this power of n.
_STEP: Final = 0.1
_CALMING: Final = 0.6
#: How much more a level moves itself than the opposite one: 0 moves both alike, 1 only itself.
_ASIDE: Final = 0.5
#: The number of forecasts over which the usual error is averaged.
_MEMORY: Final = 50
#: The largest correction of a wait, in powers of e.
_SHIFT_MAX: Final = 8.0
#: Forecasts by fewer forks have hardly any tails, so they have tracks of their own.
_MANY_FORKS: Final = 9
_HORIZONS: Final = ((10 * MINUTE, "minutes"), (HOUR, "an hour"), (6 * HOUR, "hours"))
_BEYOND: Final = "days"
#: The limits of pending forecasts: their number and their age.
PENDING_MAX: Final = 256
PENDING_FOR: Final = 14 * 24 * HOUR
_NONE: Final = (0.0,) * len(LEVELS)
#: Waits at the levels, as the logarithm of seconds plus one; None where a start is not reached.
Waits: TypeAlias = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class QuantileTracker:
    """The corrections of one sort of forecasts."""

    shifts: tuple[float, ...] = _NONE
    #: The usual error of their medians before corrections.
    error: float = 0.0
    #: The number of known outcomes.
    count: int = 0


@dataclass(frozen=True, slots=True)
class ForecastRecord:
    """A forecast that is kept until its Workload starts."""

    workload: str
    uid: str
    at: Instant
    #: The tracks that correct it.
    sorts: tuple[str, ...]
    #: The median before corrections, and the waits by level after them, possibly out of order.
    median: float | None
    moved: Waits
    #: The levels already known to be too early, as bits.
    late: int = 0


@dataclass(frozen=True, slots=True)
class Calibration:
    """The tracks, and the forecasts with open outcomes."""

    tracks: Mapping[str, QuantileTracker] = field(default_factory=dict)
    #: Forecasts whose outcome is not known yet.
    pending: tuple[ForecastRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class StartOutcome:
    """The outcome of a Workload: its start, or None while it waits; or that it can no longer start."""

    started: Instant | None = None
    is_gone: bool = False


def outcome_of(workload: Obj | None, uid: str) -> StartOutcome:
    """Return the current outcome of a Workload; a deleted one counts as gone."""
    if workload is None or workload["metadata"].get("uid", "") != uid:
        return StartOutcome(is_gone=True)
    admitted = find_condition(workload, "Admitted")
    if admitted is not None and admitted["status"] == "True":
        return StartOutcome(parse_time(admitted["lastTransitionTime"]))
    view = workload_view(workload)
    return StartOutcome(is_gone=view.finished or not view.active)


def logged(wait: Duration | None) -> float | None:
    """Return a wait on the scale of corrections."""
    return None if wait is None else log1p(wait / SECOND)


def wait_of(logged_wait: float) -> Duration:
    """Return the wait of a value on the scale of corrections."""
    return max(0, round((exp(logged_wait) - 1) * SECOND))


def tracks_of(basis: str, raw: Waits, forks: int) -> tuple[str, ...]:
    """Return the tracks that correct a forecast; none if nothing in it was random."""
    if forks < 2:
        return ()
    median = raw[MEDIAN]
    wait = None if median is None else wait_of(median)
    horizon = next((name for most, name in _HORIZONS if wait is not None and wait < most), _BEYOND)
    return f"{basis}, {'many' if forks >= _MANY_FORKS else 'few'} forks", f"{basis}, {horizon}"


def moved_by(calibration: Calibration, sorts: Iterable[str], raw: Waits) -> Waits:
    """Return the waits of a forecast, each level moved by its shifts."""
    shifts = [calibration.tracks.get(sort, QuantileTracker()).shifts for sort in sorts]
    return tuple(
        None if wait is None else wait + _bounded(sum(each[level] for each in shifts)) for level, wait in enumerate(raw)
    )


def in_order(moved: Waits) -> Waits:
    """Return waits as published: not negative, and in ascending order."""
    known = sorted(max(0.0, wait) for wait in moved if wait is not None)
    return (*known, *[None] * (len(moved) - len(known)))


def remembering(calibration: Calibration, samples: Sequence[ForecastRecord]) -> Calibration:
    """Add forecasts made at one time, dropping the oldest above the limit."""
    drawn = [sample for sample in samples if sample.sorts]
    return replace(calibration, pending=(*calibration.pending, *drawn)[-PENDING_MAX:])


def settled(calibration: Calibration, now: Instant, found: Callable[[ForecastRecord], StartOutcome]) -> Calibration:
    """Apply the outcomes known by now to the pending forecasts; `found` returns the outcome of each."""
    tracks, still = dict(calibration.tracks), list[ForecastRecord]()
    for sample in calibration.pending:
        fate = found(sample)
        if fate.is_gone or now - sample.at > PENDING_FOR:
            continue
        news = _found_out(sample, now, fate)
        for sort in sample.sorts:
            tracks[sort] = _moved(tracks.get(sort, QuantileTracker()), sample, news)
        if not news.is_over:
            still.append(replace(sample, late=sample.late | sum(1 << level for level in news.late)))
    return Calibration(tracks, tuple(still))


@dataclass(frozen=True, slots=True)
class _News:
    """The new information about a forecast."""

    #: How long the Workload has waited.
    waited: float
    #: By level, whether the start comes later.
    late: Mapping[int, bool]
    is_over: bool


def _found_out(sample: ForecastRecord, now: Instant, fate: StartOutcome) -> _News:
    is_over = fate.started is not None and fate.started <= now
    until = fate.started if is_over and fate.started is not None else now
    waited = log1p(max(0, until - sample.at) / SECOND)
    news = [
        (level, wait) for level, wait in enumerate(sample.moved) if wait is not None and not sample.late >> level & 1
    ]
    return _News(waited, {level: waited > wait for level, wait in news if is_over or waited > wait}, is_over)


def _moved(track: QuantileTracker, sample: ForecastRecord, found: _News) -> QuantileTracker:
    median = sample.median
    error = 0.0 if median is None else abs(found.waited - median)
    step = max(_STEP, (1 + track.count) ** -_CALMING) * (track.error if track.count else error)
    shifts = list(track.shifts)
    for level, is_late in found.late.items():
        moved = step * (is_late - 1 + LEVELS[level])
        shifts[level] = _bounded(shifts[level] + moved * (1 + _ASIDE) / 2)
        shifts[-1 - level] = _bounded(shifts[-1 - level] - moved * (1 - _ASIDE) / 2)
    if not found.is_over or median is None:
        return replace(track, shifts=tuple(shifts))
    count = track.count + 1
    share = max(1 / count, 1 / _MEMORY)
    return QuantileTracker(tuple(shifts), track.error + (error - track.error) * share, count)


def _bounded(shift: float) -> float:
    return min(max(shift, -_SHIFT_MAX), _SHIFT_MAX)
