"""Draws determined by a seed and names."""

from batchyard.base.instant import SECOND
from batchyard.base.primitives import draw_integer, draw_triangular


def test_draw_is_equal_for_equal_seed_and_names_only() -> None:
    assert draw_integer(7, "node-a", "boot") == draw_integer(7, "node-a", "boot")
    assert (
        len(
            {
                draw_integer(7, "node-a", "boot"),
                draw_integer(8, "node-a", "boot"),
                draw_integer(7, "node-b", "boot"),
                draw_integer(7, "x"),
            }
        )
        == 4
    )


def test_draw_separates_adjacent_names() -> None:
    assert draw_integer(1, "ab", "c") != draw_integer(1, "a", "bc")


def test_draws_are_uniformly_distributed() -> None:
    tenths = [draw_integer(0, str(n)) * 10 >> 52 for n in range(10_000)]
    assert all(900 < tenths.count(tenth) < 1100 for tenth in range(10))


def test_triangular_duration_stays_in_bounds_and_peaks_at_typical_value() -> None:
    drawn = [draw_triangular(10 * SECOND, 20 * SECOND, 60 * SECOND, 3, str(n)) for n in range(4_000)]
    assert all(10 * SECOND <= duration <= 60 * SECOND for duration in drawn)
    mean = sum(drawn) / len(drawn) / SECOND
    assert 29 < mean < 31  # the mean of a triangular distribution is a third of the sum of its corners
    below_typical = sum(duration < 20 * SECOND for duration in drawn) / len(drawn)
    assert 0.18 < below_typical < 0.22


def test_triangular_duration_with_equal_bounds_returns_bound() -> None:
    assert draw_triangular(5, 5, 5, 0, "a") == 5


def test_triangular_duration_accepts_typical_value_equal_to_bound() -> None:
    assert {draw_triangular(0, 0, 9, 0, str(n)) <= 9 for n in range(99)} == {True}
    assert {draw_triangular(0, 9, 9, 0, str(n)) <= 9 for n in range(99)} == {True}
