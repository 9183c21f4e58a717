"""The calibration of forecasts by their outcomes: intervals reach their stated coverage and use no future data."""

from collections.abc import Callable
from math import exp, log, log1p
from statistics import NormalDist

import msgspec
import pytest

import make
from batchyard.api.meta import Obj
from batchyard.base.instant import HOUR, MINUTE, SECOND, Instant
from batchyard.sim.forecasting.arrivals import random_fraction
from batchyard.sim.forecasting.calibration import (
    LEVELS,
    PENDING_FOR,
    PENDING_MAX,
    Calibration,
    ForecastRecord,
    StartOutcome,
    Waits,
    add_forecasts,
    apply_outcomes,
    correct_waits,
    outcome_of,
    sort_waits,
    tracker_names_for,
)

SORTS = ("history, many forks", "history, an hour")
WAITS: StartOutcome = StartOutcome()


def normal(seed: int, *names: str) -> float:
    return NormalDist().inv_cdf(random_fraction(seed, *names))


def spread(median: float, width: float) -> Waits:
    """The waits of forks with a log-normal distribution."""
    return tuple(max(0.0, log(median) + width * NormalDist().inv_cdf(level)) for level in LEVELS)


def load(count: int, wrong: float, believed: float, bias: float = 0.0) -> list[tuple[Waits, float]]:
    """A sequence of forecasts, each with the true wait; errors of neighbors are correlated."""
    error, result = 0.0, []
    for number in range(count):
        error = 0.5 * error + (1 - 0.5**2) ** 0.5 * wrong * normal(1, "error", str(number))
        median = 1000 * exp(normal(1, "median", str(number)))
        result.append((spread(median, believed), median * exp(error + bias)))
    return result


def corrected_forecasts(forecasts: list[tuple[Waits, float]], every: int = 2 * HOUR) -> list[tuple[Waits, float]]:
    """The same forecasts as reported, each corrected with the outcomes known at its time."""
    calibration, reported = Calibration(), []
    starts = [number * every + round(wait * SECOND) for number, (_, wait) in enumerate(forecasts)]
    for number, (raw, wait) in enumerate(forecasts):
        now = number * every
        calibration = apply_outcomes(calibration, now, lambda s, now=now: outcome_at(starts[int(s.uid)], now))  # type: ignore[misc]
        result = correct_waits(calibration, SORTS, raw)
        calibration = add_forecasts(calibration, [ForecastRecord("ns/w", str(number), now, SORTS, raw[9], result)])
        reported.append((sort_waits(result), wait))
    return reported


def outcome_at(starts: Instant, now: Instant) -> StartOutcome:
    return StartOutcome(starts if starts <= now else None)


def coverage(reported: list[tuple[Waits, float]], low: int = 1, high: int = 17) -> float:
    """The share of true waits between two levels, given by their indexes; by default p10 and p90."""
    return sum((waits[low] or 0) <= log1p(wait) <= (waits[high] or 0) for waits, wait in reported) / len(reported)


@pytest.mark.parametrize(("believed", "bias"), [(0.25, 0.0), (2.0, 0.0), (0.25, 1.0), (0.8, -1.0)])
def test_intervals_cover_stated_share_on_stationary_load(believed: float, bias: float) -> None:
    forecasts = load(900, 0.8, believed, bias)
    assert not 0.7 < coverage(forecasts) < 0.9 or believed == 0.8
    reported = corrected_forecasts(forecasts)[300:]
    assert 0.75 <= coverage(reported) <= 0.85
    assert 0.45 <= coverage(reported, 4, 14) <= 0.55


def test_intervals_adapt_after_load_changes() -> None:
    forecasts = load(500, 0.3, 0.3) + load(500, 1.5, 0.3)
    assert 0.75 <= coverage(corrected_forecasts(forecasts)[600:]) <= 0.85


def test_accurate_forecasts_are_changed_little() -> None:
    reported = corrected_forecasts(load(600, 0.8, 0.8))
    widths = [(waits[17] or 0) - (waits[1] or 0) for waits, _ in reported]
    assert 0.75 <= coverage(reported) <= 0.85
    assert sum(widths) / len(widths) == pytest.approx(0.8 * 2 * 1.2816, rel=0.15)


def test_exact_forecasts_stay_exact() -> None:
    raw: Waits = (log1p(600.0),) * len(LEVELS)
    assert all(result == raw for result, _ in corrected_forecasts([(raw, 600.0)] * 50))


def single_record(reported: Waits, at: Instant = 0) -> Calibration:
    return add_forecasts(Calibration(), [ForecastRecord("team/w", "uid", at, SORTS, reported[9], reported)])


def shifts(calibration: Calibration) -> list[float]:
    return list(calibration.tracks[SORTS[0]].shifts)


def test_empty_calibration_corrects_nothing() -> None:
    assert correct_waits(Calibration(), SORTS, spread(600, 1)) == spread(600, 1)


def test_calibration_does_not_use_future_start() -> None:
    started: Callable[[ForecastRecord], StartOutcome] = lambda _: StartOutcome(started_at=HOUR)  # noqa: E731 - as it is passed
    before = single_record(spread(6000, 0.1))
    assert apply_outcomes(before, MINUTE, started).pending == before.pending
    assert shifts(apply_outcomes(before, MINUTE, started)) == [0.0] * len(LEVELS)


def test_early_quantile_is_corrected_once_its_time_has_passed() -> None:
    waiting = apply_outcomes(single_record(spread(600, 1)), 9 * MINUTE, lambda _: WAITS)
    assert waiting.pending[0].late == 2**9 - 1
    assert shifts(waiting)[8] > 0 > shifts(waiting)[10]
    assert shifts(apply_outcomes(waiting, 9 * MINUTE, lambda _: WAITS)) == shifts(waiting)


def test_correction_shifts_opposite_level_by_less() -> None:
    late = shifts(apply_outcomes(single_record(spread(600, 0.01)), HOUR, lambda _: WAITS))
    assert late[17] > -late[1] > 0 or late[17] > late[1] > 0
    result = apply_outcomes(single_record(spread(600, 1)), HOUR, lambda _: StartOutcome(started_at=SECOND))
    assert shifts(result)[1] < 0 < shifts(result)[17]


def test_deleted_and_long_pending_workloads_are_forgotten() -> None:
    assert not apply_outcomes(single_record(spread(600, 1)), MINUTE, lambda _: StartOutcome(is_gone=True)).pending
    assert not apply_outcomes(single_record(spread(600, 1)), PENDING_FOR + 1, lambda _: WAITS).pending


def test_number_of_pending_records_is_bounded() -> None:
    sample = ForecastRecord("team/w", "uid", 0, SORTS, None, spread(600, 1))
    assert len(add_forecasts(Calibration(), [sample] * (PENDING_MAX + 5)).pending) == PENDING_MAX


def test_forecast_without_forks_is_not_corrected() -> None:
    assert tracker_names_for("manifest", spread(600, 1), 1) == ()
    assert not add_forecasts(Calibration(), [ForecastRecord("team/w", "uid", 0, (), None, spread(600, 1))]).pending


def test_few_forks_and_horizons_are_corrected_separately() -> None:
    assert tracker_names_for("history", spread(700, 0), 40) == ("history, many forks", "history, an hour")
    assert tracker_names_for("history", (None,) * len(LEVELS), 3) == ("history, few forks", "history, days")


def test_corrected_waits_are_sorted_and_unreached_levels_stay_none() -> None:
    known = apply_outcomes(single_record(spread(600, 1)), HOUR, lambda _: StartOutcome(started_at=SECOND))
    result = sort_waits(correct_waits(known, SORTS, (*spread(600, 0.001)[:-1], None)))
    known_waits = [wait for wait in result if wait is not None]
    assert (known_waits, result[-1]) == (sorted(known_waits), None)


def test_calibration_round_trips_through_json() -> None:
    known = apply_outcomes(single_record(spread(600, 1)), 9 * MINUTE, lambda _: WAITS)
    again = msgspec.json.decode(msgspec.json.encode(known), type=Calibration)
    assert correct_waits(again, SORTS, spread(99, 1)) == correct_waits(known, SORTS, spread(99, 1))
    assert again.pending[0].moved == known.pending[0].moved


def workload_with_condition(status: str) -> Obj:
    result = make.workload("w")
    condition = {"type": "Admitted", "status": status, "lastTransitionTime": "1970-01-01T00:01:00Z", "reason": "r"}
    return {**result, "metadata": {**result["metadata"], "uid": "u"}, "status": {"conditions": [condition]}}


def test_start_outcome_is_read_from_conditions() -> None:
    assert outcome_of(workload_with_condition("True"), "u") == StartOutcome(started_at=MINUTE)
    assert outcome_of(workload_with_condition("False"), "u") == StartOutcome()
    assert outcome_of(workload_with_condition("True"), "another").is_gone
    assert outcome_of(None, "u").is_gone
    inactive = workload_with_condition("False")
    assert outcome_of({**inactive, "spec": {**inactive["spec"], "active": False}}, "u").is_gone
