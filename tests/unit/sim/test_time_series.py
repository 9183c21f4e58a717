"""A number over time."""

from batchyard.sim.time_series import Gauge


def test_gauge_mean_is_weighted_by_time() -> None:
    gauge = Gauge(100)
    gauge.set(4, 100)
    gauge.add(4, 130)
    gauge.set(0, 140)
    assert gauge.mean(200) == (4 * 30 + 8 * 10) / 100
    assert (gauge.peak, gauge.peak_at) == (8, 130)


def test_gauge_ignores_value_replaced_at_same_instant() -> None:
    gauge = Gauge(0)
    gauge.set(9, 10)
    gauge.set(1, 10)
    assert (gauge.mean(20), gauge.peak) == (0.5, 1)


def test_gauge_mean_over_zero_time_is_current_value() -> None:
    gauge = Gauge(5)
    gauge.set(3, 5)
    assert gauge.mean(5) == 3
