"""Assertions that stay on: what must hold, whatever the input."""


class InvariantError(AssertionError):
    """A law of ours does not hold: a defect of batchyard, never of its input."""


def invariant(holds: bool, law: str) -> None:
    """Raise InvariantError naming the law unless it holds."""
    if not holds:
        raise InvariantError(law)
