"""Draws fixed by a seed and names."""

from batchyard.base import draw, triangular
from batchyard.base.instant import SECOND


def test_equal_names_draw_alike_and_others_differ() -> None:
    assert draw(7, "node-a", "boot") == draw(7, "node-a", "boot")
    assert len({draw(7, "node-a", "boot"), draw(8, "node-a", "boot"), draw(7, "node-b", "boot"), draw(7, "x")}) == 4


def test_names_do_not_run_into_each_other() -> None:
    assert draw(1, "ab", "c") != draw(1, "a", "bc")


def test_draws_fill_their_range_evenly() -> None:
    tenths = [draw(0, str(n)) * 10 >> 52 for n in range(10_000)]
    assert all(900 < tenths.count(tenth) < 1100 for tenth in range(10))


def test_a_duration_stays_between_its_bounds_and_gathers_at_the_typical_one() -> None:
    drawn = [triangular(10 * SECOND, 20 * SECOND, 60 * SECOND, 3, str(n)) for n in range(4_000)]
    assert all(10 * SECOND <= duration <= 60 * SECOND for duration in drawn)
    mean = sum(drawn) / len(drawn) / SECOND
    assert 29 < mean < 31  # of a triangle: a third of the sum of its corners
    below_typical = sum(duration < 20 * SECOND for duration in drawn) / len(drawn)
    assert 0.18 < below_typical < 0.22


def test_a_duration_without_width_is_itself() -> None:
    assert triangular(5, 5, 5, 0, "a") == 5


def test_the_typical_duration_may_be_a_bound() -> None:
    assert {triangular(0, 0, 9, 0, str(n)) <= 9 for n in range(99)} == {True}
    assert {triangular(0, 9, 9, 0, str(n)) <= 9 for n in range(99)} == {True}
