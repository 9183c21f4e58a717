"""Completion indexes as text and as spans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.jobs.job import spec
from batchyard.jobs.job.spec import Spans

INDEXES = st.frozensets(st.integers(0, 30))


def spans(of: frozenset[int]) -> Spans:
    return spec.with_indexes((), sorted(of))


def members(of: Spans) -> set[int]:
    return {index for index in range(-1, 40) if spec.spans_contain(of, index)}


@pytest.mark.parametrize(
    ("text", "of"),
    [("", ()), ("3", (3,)), ("0,1", (0, 1)), ("0-2", (0, 1, 2)), ("0-2,5,7,8,10-12", (0, 1, 2, 5, 7, 8, 10, 11, 12))],
)
def test_three_consecutive_indexes_are_written_as_range(text: str, of: tuple[int, ...]) -> None:
    assert spec.format_indexes(spans(frozenset(of))) == text
    assert spec.parse_indexes(text, 13) == spans(frozenset(of))


def test_parsed_omits_indexes_beyond_completions() -> None:
    assert spec.parse_indexes("0,3-8,11", 6) == ((0, 0), (3, 5))
    assert spec.parse_indexes("3", 3) == ()


def test_parsed_omits_invalid_parts() -> None:
    assert spec.parse_indexes("x,1-,4-2,6", 10) == ((6, 6),)
    assert spec.parse_indexes(None, 10) == ()


@given(INDEXES, INDEXES)
def test_span_operations_agree_with_sets(one: frozenset[int], other: frozenset[int]) -> None:
    assert members(spans(one)) == one
    assert spec.index_count(spans(one)) == len(one)
    assert spec.index_union(spans(one), spans(other)) == spans(one | other)
    assert spec.count_common(spans(one), spans(other)) == len(one & other)
    assert spec.with_indexes(spans(one), other) == spans(one | other)
    assert spec.parse_indexes(spec.format_indexes(spans(one)), 31) == spans(one)


@given(INDEXES, st.integers(0, 40), st.integers(31, 35))
def test_first_missing_returns_lowest_free_indexes(taken: frozenset[int], count: int, completions: int) -> None:
    free = [index for index in range(completions) if index not in taken]
    assert spec.unused_indexes(spans(taken), count, completions) == free[:count]
