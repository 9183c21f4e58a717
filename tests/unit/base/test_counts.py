"""Counts with their nouns."""

import pytest

from batchyard.base.counts import count_with_noun, pluralize, select_verb


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "pod", "0 pods"),
        (1, "pod", "1 pod"),
        (1200, "Workload", "1,200 Workloads"),
        (2, "capacity entry", "2 capacity entries"),
        (1, "capacity entry", "1 capacity entry"),
        (2, "day", "2 days"),
        (2, "machine loss", "2 machine losses"),
    ],
)
def test_noun_agrees_with_its_count(count: int, noun: str, text: str) -> None:
    assert count_with_noun(count, noun) == text


def test_plural_and_verb_agree_with_count() -> None:
    assert [pluralize("node", count) for count in (0, 1, 2)] == ["nodes", "node", "nodes"]
    assert [select_verb(count, "waits", "wait") for count in (0, 1, 2)] == ["wait", "waits", "wait"]
