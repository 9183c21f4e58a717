"""Invariants: assertions that stay enabled."""


class InvariantError(AssertionError):
    """A violated invariant: a defect of batchyard, never of its input."""


def invariant(holds: bool, law: str) -> None:
    """Raise InvariantError with this text unless it holds."""
    if not holds:
        raise InvariantError(law)
