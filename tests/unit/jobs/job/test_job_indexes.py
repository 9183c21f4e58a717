"""Completion indexes as texts and as spans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.jobs.job import spec
from batchyard.jobs.job.spec import Spans

INDEXES = st.frozensets(st.integers(0, 30))


def spans(of: frozenset[int]) -> Spans:
    return spec.with_indexes((), sorted(of))


def members(of: Spans) -> set[int]:
    return {index for index in range(-1, 40) if spec.contains(of, index)}


@pytest.mark.parametrize(
    ("text", "of"),
    [("", ()), ("3", (3,)), ("0,1", (0, 1)), ("0-2", (0, 1, 2)), ("0-2,5,7,8,10-12", (0, 1, 2, 5, 7, 8, 10, 11, 12))],
)
def test_three_in_a_row_are_a_range(text: str, of: tuple[int, ...]) -> None:
    assert spec.written(spans(frozenset(of))) == text
    assert spec.parsed(text, 13) == spans(frozenset(of))


def test_what_lies_beyond_the_completions_is_left_out() -> None:
    assert spec.parsed("0,3-8,11", 6) == ((0, 0), (3, 5))
    assert spec.parsed("3", 3) == ()


def test_parts_that_say_nothing_are_left_out() -> None:
    assert spec.parsed("x,1-,4-2,6", 10) == ((6, 6),)
    assert spec.parsed(None, 10) == ()


@given(INDEXES, INDEXES)
def test_spans_are_the_sets_they_stand_for(one: frozenset[int], other: frozenset[int]) -> None:
    assert members(spans(one)) == one
    assert spec.total(spans(one)) == len(one)
    assert spec.union(spans(one), spans(other)) == spans(one | other)
    assert spec.in_common(spans(one), spans(other)) == len(one & other)
    assert spec.with_indexes(spans(one), other) == spans(one | other)
    assert spec.parsed(spec.written(spans(one)), 31) == spans(one)


@given(INDEXES, st.integers(0, 40), st.integers(31, 35))
def test_the_first_indexes_that_are_missing_are_found(taken: frozenset[int], count: int, completions: int) -> None:
    free = [index for index in range(completions) if index not in taken]
    assert spec.first_missing(spans(taken), count, completions) == free[:count]
