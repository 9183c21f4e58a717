"""Assertions that stay on: what must hold, whatever the input."""

from typing import NoReturn


class InvariantError(AssertionError):
    """A law of ours does not hold: a defect of batchyard, never of its input."""


def invariant(holds: bool, law: str) -> None:
    """Raise InvariantError naming the law unless it holds."""
    if not holds:
        raise InvariantError(law)


def unreachable(value: object) -> NoReturn:
    """Mark a place no value can reach."""
    raise InvariantError(f"unreachable: {value!r}")
