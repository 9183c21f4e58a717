"""Figures of runs as text: amounts have the unit of their resource."""

import pytest

from batchyard.sim.summary.figure import Figure, Unit, format_figure


@pytest.mark.parametrize(
    ("row", "value", "text"),
    [
        ("default memory", 64, "64Gi"),
        ("team default memory", 1.5, "1.5Gi"),
        ("default memory", 2048, "2Ti"),
        ("default memory", 0.25, "256Mi"),
        ("default memory", 0, "0"),
        ("default memory", None, "-"),
        ("default ephemeral-storage", 10 * 2**30, "10Gi"),
        ("default hugepages-2Mi", 2048, "2Ki"),
        ("default cpu", 1500.5, "1,500.5"),
        ("default nvidia.com/gpu", 8, "8"),
    ],
)
def test_amount_has_unit_of_resource_in_row(row: str, value: float | None, text: str) -> None:
    assert format_figure(Figure("nominal", "quota", Unit.AMOUNT).with_unit_of_row(row).unit, value) == text


def test_other_figures_keep_their_unit_in_row() -> None:
    figure = Figure("meanUse", "of it", Unit.SHARE)
    assert figure.with_unit_of_row("default memory") is figure
