"""Constructors for the Kubernetes API's types of faults, each with a remedy.

Source: k8s.io/apimachinery/pkg/util/validation/field.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from batchyard.api import quantity
from batchyard.api.errors import FieldError

#: Schema rules show a value by its type.
_BY_TYPE: Final = ('Invalid value: "object": ', 'Invalid value: "array": ')
NEGATIVE: Final = "must be greater than or equal to 0"
IMMUTABLE: Final = "field is immutable"
_VALUE_LENGTH_MAX: Final = 200


def printed(value: Any) -> str:
    """Format a value for a message: as JSON, long ones truncated."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _VALUE_LENGTH_MAX else f"{text[:_VALUE_LENGTH_MAX]}..."


def denied_by(webhook: str, found: Iterable[FieldError]) -> Iterator[FieldError]:
    """Mark faults as reported by a webhook; faults of schema rules stay the API's."""
    for fault in found:
        yield fault if fault.problem.startswith(_BY_TYPE) else fault._replace(webhook=webhook)


def invalid(path: str, value: Any, message: str, remedy: str) -> FieldError:
    """Return a fault for an invalid value."""
    return FieldError(path, f"Invalid value: {printed(value)}: {message}", remedy)


def invalid_here(path: str, message: str, remedy: str) -> FieldError:
    """Return a fault for an invalid place, without its value."""
    return FieldError(path, f"Invalid value: {message}", remedy)


def broken_rule(path: str, schema_type: str, message: str, remedy: str) -> FieldError:
    """Return a fault for a violated x-kubernetes-validations rule; the API server shows only the type of the value."""
    return invalid(path, schema_type, message, remedy)


def immutable(path: str, value: Any, remedy: str = "") -> FieldError:
    """Return a fault for a changed immutable field."""
    return invalid(path, value, IMMUTABLE, remedy or "keep the value it has, or delete the object and recreate it")


def required(path: str, message: str, remedy: str) -> FieldError:
    """Return a fault for a missing required field."""
    return FieldError(path, f"Required value: {message}" if message else "Required value", remedy)


def forbidden(path: str, message: str, remedy: str) -> FieldError:
    """Return a fault for a forbidden field or change."""
    return FieldError(path, f"Forbidden: {message}", remedy)


def duplicate(path: str, value: Any, remedy: str) -> FieldError:
    """Return a fault for a value that already exists."""
    return FieldError(path, f"Duplicate value: {printed(value)}", remedy)


def not_found(path: str, value: Any, remedy: str) -> FieldError:
    """Return a fault for a reference to a missing object."""
    return FieldError(path, f"Not found: {printed(value)}", remedy)


def unsupported(path: str, value: Any, supported: Iterable[str], remedy: str = "") -> FieldError:
    """Return a fault for a value outside of an enumeration."""
    shown = ", ".join(printed(each) for each in supported)
    choice = remedy or (f"use one of {shown}" if shown else "leave it out: there is nothing to choose from")
    return FieldError(path, f"Unsupported value: {printed(value)}: supported values: {shown}", choice)


def too_long(path: str, bytes_max: int, remedy: str) -> FieldError:
    """Return a fault for a text of too many bytes."""
    return FieldError(path, f"Too long: may not be more than {bytes_max} bytes", remedy)


def too_many(path: str, count: int, count_max: int, remedy: str) -> FieldError:
    """Return a fault for a list of too many items."""
    return FieldError(path, f"Too many: {count}: must have at most {count_max} items", remedy)


# --- amounts ---
#
# Rules of single quantities.


def nano(value: str | int | float) -> int | None:
    """Return a quantity in billionths, or None if it is invalid."""
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
        yield invalid(path, value, message, "write it as 500m, 2, 1.5, 10Gi or 1e3")
    elif amount < 0:
        yield invalid(path, quantity.canonical(value), NEGATIVE, "give 0 or more")


def exceeds(value: Any, limit: Any) -> bool:
    """Report whether an amount exceeds another; an invalid quantity does not compare."""
    amount, bound = nano(value), nano(limit)
    return amount is not None and bound is not None and amount > bound


def shown(value: Any) -> str:
    """Format an amount like Kubernetes."""
    return str(value) if nano(value) is None else quantity.canonical(value)
