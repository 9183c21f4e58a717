"""Suggestions of similar names."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.api.schema.violations import LOOSE_EDIT_RATIO, STRICT_EDIT_RATIO, edit_distance, find_nearest_name

short_texts = st.text(alphabet="abcd", max_size=6)


@pytest.mark.parametrize(
    ("one", "other", "edits"),
    [("", "", 0), ("abc", "", 3), ("abc", "abd", 1), ("abc", "acb", 1), ("kitten", "sitting", 3), ("ab", "b", 1)],
)
def test_edit_distance_counts_edits(one: str, other: str, edits: int) -> None:
    assert edit_distance(one, other) == edits


@settings(deadline=None)
@given(short_texts, short_texts)
def test_edit_distance_is_symmetric_and_bounded(one: str, other: str) -> None:
    assert edit_distance(one, other) == edit_distance(other, one)
    assert (edit_distance(one, other) == 0) is (one == other)
    assert edit_distance(one, other) <= max(len(one), len(other))


@pytest.mark.parametrize(
    ("written", "share", "meant"),
    [
        ("preemtion", STRICT_EDIT_RATIO, "preemption"),
        ("queueing_strategy", STRICT_EDIT_RATIO, "queueingStrategy"),
        ("QueueingStrategy", STRICT_EDIT_RATIO, "queueingStrategy"),
        ("keu", STRICT_EDIT_RATIO, "key"),
        ("queue", STRICT_EDIT_RATIO, None),
        ("queue", LOOSE_EDIT_RATIO, "queueingStrategy"),
        ("reclaimOutOfCohort", LOOSE_EDIT_RATIO, "reclaimWithinCohort"),
        ("zzz", LOOSE_EDIT_RATIO, None),
        ("k", LOOSE_EDIT_RATIO, None),
        ("", LOOSE_EDIT_RATIO, None),
        ("-", LOOSE_EDIT_RATIO, None),
        ("x" * 1000, LOOSE_EDIT_RATIO, None),
    ],
)
def test_nearest_returns_only_similar_name(written: str, share: float, meant: str | None) -> None:
    assert find_nearest_name(written, ["preemption", "queueingStrategy", "reclaimWithinCohort", "key"], share) == meant


def test_nearest_returns_first_of_equally_similar_names() -> None:
    assert find_nearest_name("nameC", ["nameA", "nameB"]) == "nameA"


def test_nearest_prefers_fewer_edits_to_common_prefix() -> None:
    assert (
        find_nearest_name("priorityClassName", ["priority", "priorityClassRef"], LOOSE_EDIT_RATIO) == "priorityClassRef"
    )
