"""The text of metric families."""

import math

import pytest

from batchyard.metrics.registry import COUNTER, GAUGE, HISTOGRAM, Counters, Histograms, Metric, format_value, gauge_text

COUNT = Metric("seen_total", COUNTER, "What was seen", ("queue", "role"))
TIME = Metric("took_seconds", HISTOGRAM, "How long", ("queue",), (1.0, 2.5))


def all_of(family: Counters | Histograms) -> str:
    return "".join(family.texts())


def test_counters_yield_series_in_chunks_of_100() -> None:
    counters = Counters(COUNT, "alone")
    for place in range(250):
        counters.add((str(place),))
    head, *parts = counters.texts()
    assert head == COUNT.header_lines()
    assert [len(part.splitlines()) for part in parts] == [100, 100, 50]


def test_counters_include_constant_labels() -> None:
    counters = Counters(COUNT, "alone")
    counters.add(("a",))
    counters.add(("a",), 2)
    assert all_of(counters) == (
        '# HELP seen_total What was seen\n# TYPE seen_total counter\nseen_total{queue="a",role="alone"} 3\n'
    )


def test_counters_report_changed_value() -> None:
    counters = Counters(COUNT, "alone")
    counters.add(("a",))
    before = all_of(counters)
    counters.set(("a",), 7)
    assert (before[-2:], all_of(counters)[-2:]) == ("1\n", "7\n")


def test_family_without_series_has_empty_text() -> None:
    assert (all_of(Counters(COUNT)), all_of(Histograms(TIME)), gauge_text(COUNT, [])) == ("", "", "")


def test_histogram_buckets_are_cumulative_up_to_their_bound() -> None:
    histograms = Histograms(TIME)
    for value in (0.5, 1, 2, 99):
        histograms.observe(("a",), value)
    reported = all_of(histograms).splitlines()[2:]
    assert reported == [
        'took_seconds_bucket{queue="a",le="1"} 2',
        'took_seconds_bucket{queue="a",le="2.5"} 3',
        'took_seconds_bucket{queue="a",le="+Inf"} 4',
        'took_seconds_sum{queue="a"} 102.5',
        'took_seconds_count{queue="a"} 4',
    ]


def test_histogram_without_labels_has_only_bucket_label() -> None:
    histograms = Histograms(TIME._replace(labels=()))
    histograms.observe((), 3)
    assert all_of(histograms).splitlines()[2:] == [
        'took_seconds_bucket{le="1"} 0',
        'took_seconds_bucket{le="2.5"} 0',
        'took_seconds_bucket{le="+Inf"} 1',
        "took_seconds_sum 3",
        "took_seconds_count 1",
    ]


def test_forget_removes_series_of_deleted_queue() -> None:
    counters, histograms = Counters(COUNT, "alone"), Histograms(TIME)
    for queue in ("a", "b"):
        counters.add((queue,))
        histograms.observe((queue,), 1)
    counters.forget(queue="a")
    histograms.forget(queue="a")
    assert 'queue="a"' not in all_of(counters) + all_of(histograms)
    assert 'queue="b"' in all_of(counters)


def test_label_values_are_escaped() -> None:
    assert gauge_text(Metric("x", GAUGE, "h", ("a",)), [(('say "no"\\\n',), 1)]).endswith(
        'x{a="say \\"no\\"\\\\\\n"} 1\n'
    )


@pytest.mark.parametrize(
    ("value", "reported"),
    [(1, "1"), (2.0, "2"), (0.25, "0.25"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (1e16, "1e+16")],
)
def test_numbers_use_prometheus_notation(value: float, reported: str) -> None:
    assert format_value(value) == reported
