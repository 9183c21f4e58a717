"""Amounts of resources in text for people: cpu in cores, memory in the largest binary unit; one spelling per amount."""

from functools import lru_cache
from typing import Final

from batchyard.api import meta

_BYTE_RESOURCES: Final = ("memory", "ephemeral-storage")
_BYTE_UNITS: Final = (
    ("Ei", 1 << 60),
    ("Pi", 1 << 50),
    ("Ti", 1 << 40),
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
)


@lru_cache(maxsize=65536)
def readable_amount(resource: str, amount: int) -> str:
    """Format an integer amount of a resource, in the units of `meta.amount`, as a quantity with at most three decimals.

    19,500 thousandths of a cpu are `19.5`. An amount of bytes that needs more decimals keeps its canonical form. An
    unlimited amount is `<unlimited>`.
    """
    if meta.is_unlimited(amount):
        return meta.format_amount(resource, amount)
    if resource == "cpu":
        return _format_thousandths(amount)
    if resource in _BYTE_RESOURCES or resource.startswith("hugepages-"):
        suffix, size = next((unit for unit in _BYTE_UNITS if abs(amount) >= unit[1]), ("", 1))
        thousandths, remainder = divmod(amount * 1000, size)
        return meta.format_amount(resource, amount) if remainder else f"{_format_thousandths(thousandths)}{suffix}"
    return str(amount)


def readable_quantity(resource: str, quantity: str) -> str:
    """Format a quantity as `readable_amount` does; an empty text or an unlimited amount is unchanged."""
    is_amount = quantity and not quantity.startswith("<")
    return readable_amount(resource, meta.amount(resource, quantity)) if is_amount else quantity


def _format_thousandths(number: int) -> str:
    whole, fraction = divmod(abs(number), 1000)
    sign = "-" if number < 0 else ""
    return f"{sign}{whole}.{fraction:03}".rstrip("0").rstrip(".")
