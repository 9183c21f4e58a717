"""What became of forecasts, and how the next are corrected: each quantile moves until it is right as often as it says.

A forecast of a wait is told by quantiles at fixed levels. When it is found out, the shifts of the levels move: up by a
step times the level where the start came later than told, down by a step times the rest where it did not. So a shift
stands still only where the quantile is right as often as its level says, whatever the load and however forks err; no
model of the errors is needed. A level that moves takes the level opposite along, the other way: intervals become wider
rather than wander, for what was too late in one hour is too early in the next.

Shifts are factors on the wait. Steps are a share of the error that forecasts usually have, larger at first; so what is
foretold exactly stays exact. Every forecast counts alike, for it is of all forecasts that so many are to be right.
There is one set of shifts for all that are made alike, and one on top of it for each horizon. That a quantile was too
early is known as soon as its time has passed, before the start. Nothing is known of the future: a forecast counts from
when it is found out.

Sources: A. N. Angelopoulos, E. J. Candes and R. J. Tibshirani, Conformal PID Control for Time Series Prediction, 2023
(quantile tracking); I. Gibbs and E. Candes, Adaptive Conformal Inference Under Distribution Shift, 2021; A. N.
Angelopoulos, R. F. Barber and S. Bates, Online Conformal Prediction with Decaying Step Sizes, 2024 (larger ones first).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log1p
from typing import Final, TypeAlias

from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant

#: At which levels forecasts are corrected.
LEVELS: Final = tuple(number / 20 for number in range(1, 20))
MEDIAN: Final = 9
#: A step, as a share of the usual error; the n-th is larger while n is small, by this power of n.
_STEP: Final = 0.1
_CALMING: Final = 0.6
#: How much more a level moves itself than the opposite one: 0 moves both alike, 1 only itself.
_ASIDE: Final = 0.5
#: The usual error is that of about so many.
_MEMORY: Final = 50
#: No wait is corrected by more than this, in powers of e.
_SHIFT_MAX: Final = 8.0
#: Forecasts by fewer forks have no tails to speak of: they err in their own way.
_MANY_FORKS: Final = 9
_HORIZONS: Final = ((10 * MINUTE, "minutes"), (HOUR, "an hour"), (6 * HOUR, "hours"))
_BEYOND: Final = "days"
#: So many forecasts are remembered at most until they are found out, and for so long.
PENDING_MAX: Final = 256
PENDING_FOR: Final = 14 * 24 * HOUR
_NONE: Final = (0.0,) * len(LEVELS)
#: Waits at the levels, as the logarithm of seconds and one; None where a start is not reached.
Waits: TypeAlias = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Track:
    """How forecasts of one sort are corrected."""

    shifts: tuple[float, ...] = _NONE
    #: By how much their medians were wrong before they were corrected, usually.
    error: float = 0.0
    #: How many were found out.
    count: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """A forecast that is remembered until its Workload starts."""

    workload: str
    uid: str
    at: Instant
    #: Of which tracks it is.
    sorts: tuple[str, ...]
    #: The median before it was corrected, and the waits by level after that, in whatever order they were then.
    median: float | None
    moved: Waits
    #: Of which levels it is known already that they were too early, as bits.
    late: int = 0


@dataclass(frozen=True, slots=True)
class Calibration:
    """What is remembered."""

    tracks: Mapping[str, Track] = field(default_factory=dict)
    #: Those that are not yet found out.
    pending: tuple[Sample, ...] = ()


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a Workload: when it started, None while it waits; or that it never will."""

    started: Instant | None = None
    is_gone: bool = False


def fate_of(workload: Obj | None, uid: str) -> Fate:
    """What became of a Workload, as it is now; of who is not there any more it is not known."""
    if workload is None or workload["metadata"].get("uid", "") != uid:
        return Fate(is_gone=True)
    admitted = find_condition(workload, "Admitted")
    if admitted is not None and admitted["status"] == "True":
        return Fate(parse_time(admitted["lastTransitionTime"]))
    view = workload_view(workload)
    return Fate(is_gone=view.finished or not view.active)


def logged(wait: Duration | None) -> float | None:
    """A wait as it is corrected."""
    return None if wait is None else log1p(wait / SECOND)


def wait_of(logged_wait: float) -> Duration:
    """The wait of which that is the logarithm."""
    return max(0, round((exp(logged_wait) - 1) * SECOND))


def sorts_of(basis: str, raw: Waits, forks: int) -> tuple[str, ...]:
    """Which tracks correct a forecast; none if nothing was drawn for it."""
    if forks < 2:
        return ()
    median = raw[MEDIAN]
    wait = None if median is None else wait_of(median)
    horizon = next((name for most, name in _HORIZONS if wait is not None and wait < most), _BEYOND)
    return f"{basis}, {'many' if forks >= _MANY_FORKS else 'few'} forks", f"{basis}, {horizon}"


def moved_by(calibration: Calibration, sorts: Iterable[str], raw: Waits) -> Waits:
    """The waits of a forecast, each level moved by its shifts."""
    shifts = [calibration.tracks.get(sort, Track()).shifts for sort in sorts]
    return tuple(
        None if wait is None else wait + _bounded(sum(each[level] for each in shifts)) for level, wait in enumerate(raw)
    )


def in_order(moved: Waits) -> Waits:
    """Waits as they are told: none below nothing, and none below that of a lower level."""
    known = sorted(max(0.0, wait) for wait in moved if wait is not None)
    return (*known, *[None] * (len(moved) - len(known)))


def remembering(calibration: Calibration, samples: Sequence[Sample]) -> Calibration:
    """With forecasts that were made at one time, the oldest forgotten where there are too many."""
    drawn = [sample for sample in samples if sample.sorts]
    return replace(calibration, pending=(*calibration.pending, *drawn)[-PENDING_MAX:])


def settled(calibration: Calibration, now: Instant, found: Callable[[Sample], Fate]) -> Calibration:
    """With what is known by now of those that pend, as `found` tells what became of them."""
    tracks, still = dict(calibration.tracks), list[Sample]()
    for sample in calibration.pending:
        fate = found(sample)
        if fate.is_gone or now - sample.at > PENDING_FOR:
            continue
        news = _found_out(sample, now, fate)
        for sort in sample.sorts:
            tracks[sort] = _moved(tracks.get(sort, Track()), sample, news)
        if not news.is_over:
            still.append(replace(sample, late=sample.late | sum(1 << level for level in news.late)))
    return Calibration(tracks, tuple(still))


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of a forecast that was not before."""

    #: How long the Workload has waited.
    waited: float
    #: By level whether the start comes later.
    late: Mapping[int, bool]
    is_over: bool


def _found_out(sample: Sample, now: Instant, fate: Fate) -> _Found:
    is_over = fate.started is not None and fate.started <= now
    until = fate.started if is_over and fate.started is not None else now
    waited = log1p(max(0, until - sample.at) / SECOND)
    news = [
        (level, wait) for level, wait in enumerate(sample.moved) if wait is not None and not sample.late >> level & 1
    ]
    return _Found(waited, {level: waited > wait for level, wait in news if is_over or waited > wait}, is_over)


def _moved(track: Track, sample: Sample, found: _Found) -> Track:
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
    return Track(tuple(shifts), track.error + (error - track.error) * share, count)


def _bounded(shift: float) -> float:
    return min(max(shift, -_SHIFT_MAX), _SHIFT_MAX)
