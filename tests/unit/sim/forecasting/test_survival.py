"""The Kaplan-Meier estimate, computed by hand."""

import pytest

from batchyard.sim.forecasting.run_times import SurvivalFunction


def test_survival_without_censoring_is_share_that_lasted_longer() -> None:
    survival = SurvivalFunction([10, 20, 20, 40])
    assert [survival.surviving_fraction(age) for age in (9, 10, 20, 39, 40)] == [1, 0.75, 0.25, 0.25, 0]


def test_censored_runs_count_until_their_age() -> None:
    survival = SurvivalFunction([10, 30], running_ages=[20, 20])
    assert [survival.surviving_fraction(age) for age in (10, 30)] == [0.75, 0]
    assert SurvivalFunction([10, 30], running_ages=[5]).surviving_fraction(10) == 0.5


def test_lower_chance_draws_longer_run() -> None:
    survival = SurvivalFunction([10, 20, 30, 40])
    assert [survival.draw(chance) for chance in (0.9, 0.6, 0.4, 0.1)] == [10, 20, 30, 40]


def test_draw_is_longer_than_given_age() -> None:
    survival = SurvivalFunction([10, 20, 30, 40])
    assert [survival.draw(chance, age=25) for chance in (0.9, 0.4)] == [30, 40]


@pytest.mark.parametrize(("chance", "lasts"), [(0.5, 200), (0.25, 400)])
def test_draw_beyond_all_observations_doubles_age_with_each_half_chance(chance: float, lasts: int) -> None:
    assert SurvivalFunction([10, 20]).draw(chance, age=100) == lasts


def test_draw_beyond_last_end_uses_censored_runs() -> None:
    survival = SurvivalFunction([10], running_ages=[50])
    assert survival.draw(0.9) == 10
    assert survival.draw(0.25) > 10


def test_weight_equals_repeated_observation() -> None:
    weighed = SurvivalFunction([10, 20], [15], ([2, 1], [3]))
    plain = SurvivalFunction([10, 10, 20], [15, 15, 15])
    assert [weighed.surviving_fraction(age) for age in (5, 10, 20)] == [
        plain.surviving_fraction(age) for age in (5, 10, 20)
    ]


def test_lower_power_draws_longer_run_beyond_last_end() -> None:
    survival = SurvivalFunction([10, 20], running_ages=[200])
    assert survival.draw(0.5, 100, tail_exponent=0.5) == 400
    assert SurvivalFunction([10, 20]).draw_tail_exponent(0.5, 0.5) > survival.draw_tail_exponent(0.5, 0.5)
