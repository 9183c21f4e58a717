"""Assertions that stay on."""

import pytest

from batchyard.base import InvariantError, invariant


def test_a_law_that_holds_says_nothing() -> None:
    invariant(True, "one is one")


def test_a_law_that_does_not_hold_is_named() -> None:
    with pytest.raises(InvariantError, match=r"^one is two$"):
        invariant(False, "one is two")


def test_a_broken_law_is_a_failed_assertion() -> None:
    assert issubclass(InvariantError, AssertionError)
