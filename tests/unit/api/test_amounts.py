"""Amounts for people: one spelling for each amount, from which the exact quantity can be read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.api import meta
from batchyard.api.amounts import readable_amount, readable_quantity


@pytest.mark.parametrize(
    ("resource", "quantity", "text"),
    [
        ("cpu", "19500m", "19.5"),
        ("cpu", "8", "8"),
        ("cpu", "8000m", "8"),
        ("cpu", "1m", "0.001"),
        ("cpu", "-500m", "-0.5"),
        ("memory", "1536Mi", "1.5Gi"),
        ("memory", "64Gi", "64Gi"),
        ("memory", "1000Mi", "1000Mi"),
        ("memory", "33000Mi", "33000Mi"),
        ("memory", "1", "1"),
        ("memory", "0", "0"),
        ("hugepages-2Mi", "2560Mi", "2.5Gi"),
        ("nvidia.com/gpu", "1k", "1000"),
        ("cpu", "", ""),
        ("cpu", "<unlimited>", "<unlimited>"),
    ],
)
def test_quantities_are_written_for_people(resource: str, quantity: str, text: str) -> None:
    assert readable_quantity(resource, quantity) == text


@given(st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]), st.integers(-(1 << 40), 1 << 50))
def test_text_is_a_quantity_of_the_same_amount(resource: str, amount: int) -> None:
    assert meta.amount(resource, readable_amount(resource, amount)) == amount
