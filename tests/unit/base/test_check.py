"""Invariants that are checked in every run."""

import pytest

from batchyard.base.primitives import InvariantError, invariant


def test_true_invariant_raises_no_error() -> None:
    invariant(True, "one is one")


def test_false_invariant_raises_error_with_its_message() -> None:
    with pytest.raises(InvariantError, match=r"^one is two$"):
        invariant(False, "one is two")
