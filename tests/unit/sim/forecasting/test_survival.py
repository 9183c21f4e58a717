"""Kaplan and Meier's estimate, by hand."""

import pytest

from batchyard.sim.forecasting.run_times import SurvivalFunction


def test_without_anybody_going_on_it_is_the_share_that_lasted_longer() -> None:
    survival = SurvivalFunction([10, 20, 20, 40])
    assert [survival.left_after(age) for age in (9, 10, 20, 39, 40)] == [1, 0.75, 0.25, 0.25, 0]


def test_what_goes_on_counts_for_as_long_as_it_has() -> None:
    survival = SurvivalFunction([10, 30], going_on=[20, 20])
    assert [survival.left_after(age) for age in (10, 30)] == [0.75, 0]
    assert SurvivalFunction([10, 30], going_on=[5]).left_after(10) == 0.5


def test_the_lower_the_chance_the_longer_it_lasts() -> None:
    survival = SurvivalFunction([10, 20, 30, 40])
    assert [survival.draw(chance) for chance in (0.9, 0.6, 0.4, 0.1)] == [10, 20, 30, 40]


def test_who_has_lasted_so_long_lasts_longer() -> None:
    survival = SurvivalFunction([10, 20, 30, 40])
    assert [survival.draw(chance, age=25) for chance in (0.9, 0.4)] == [30, 40]


@pytest.mark.parametrize(("chance", "lasts"), [(0.5, 200), (0.25, 400)])
def test_beyond_all_that_was_seen_it_lasts_as_long_again_every_second_time(chance: float, lasts: int) -> None:
    assert SurvivalFunction([10, 20]).draw(chance, age=100) == lasts


def test_what_is_left_of_those_who_go_on_lasts_beyond_the_last_that_ended() -> None:
    survival = SurvivalFunction([10], going_on=[50])
    assert survival.draw(0.9) == 10
    assert survival.draw(0.25) > 10


def test_what_counts_more_is_as_if_it_had_been_seen_more_often() -> None:
    weighed = SurvivalFunction([10, 20], [15], ([2, 1], [3]))
    plain = SurvivalFunction([10, 10, 20], [15, 15, 15])
    assert [weighed.left_after(age) for age in (5, 10, 20)] == [plain.left_after(age) for age in (5, 10, 20)]


def test_beyond_all_ends_a_lesser_power_lasts_longer() -> None:
    survival = SurvivalFunction([10, 20], going_on=[200])
    assert survival.draw(0.5, 100, power=0.5) == 400
    assert SurvivalFunction([10, 20]).power(0.5, 0.5) > survival.power(0.5, 0.5)
