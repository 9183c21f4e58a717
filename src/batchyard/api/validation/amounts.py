"""Rules of single quantities."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from batchyard.api import quantity
from batchyard.api.errors import FieldError
from batchyard.api.validation import faults


def nano(value: str | int | float) -> int | None:
    """A quantity in billionths, or None where it is none."""
    return None if isinstance(value, str) and len(value) > quantity.LENGTH_MAX else _nano(value)


@lru_cache(maxsize=65536)
def _nano(value: str | int | float) -> int | None:
    try:
        return quantity.parse(value)
    except ValueError:
        return None


def amount_faults(value: Any, path: str) -> Iterator[FieldError]:
    """An amount is a quantity and not negative."""
    amount = nano(value)
    if amount is None:
        message = "must be a quantity: a number with an optional suffix"
        yield faults.invalid(path, value, message, "write it as 500m, 2, 1.5, 10Gi or 1e3")
    elif amount < 0:
        yield faults.invalid(path, quantity.canonical(value), faults.NEGATIVE, "give 0 or more")


def exceeds(value: Any, limit: Any) -> bool:
    """Whether an amount is larger than another; what is no quantity does not compare."""
    amount, bound = nano(value), nano(limit)
    return amount is not None and bound is not None and amount > bound


def shown(value: Any) -> str:
    """An amount as Kubernetes prints it."""
    return str(value) if nano(value) is None else quantity.canonical(value)
