"""Regular expressions supplied by users."""

import pytest

from batchyard.api.patterns import find_matches, matches_anywhere, pattern_fault


@pytest.mark.parametrize("pattern", ["", "a|b", r"^\d+$", "[[:alpha:]]", "a(?i)B", r"\z", "(?P<name>a)"])
def test_go_regular_expression_is_accepted(pattern: str) -> None:
    assert not pattern_fault(pattern)


@pytest.mark.parametrize("pattern", ["(", "a**", "(?=a)", r"(a)\1", "[z-a]", "a{1001}", "(?<!a)b"])
def test_invalid_regular_expression_is_rejected(pattern: str) -> None:
    assert pattern_fault(pattern).startswith("error parsing regexp: ")
    assert not matches_anywhere(pattern, "ab")
    with pytest.raises(ValueError, match="error parsing regexp"):
        list(find_matches(pattern, "ab"))


def test_pattern_search_takes_linear_time() -> None:
    assert not matches_anywhere("(x+x+)+y", "x" * 100_000)


@pytest.mark.parametrize(
    ("pattern", "text", "all_of_it"),
    [
        ("a*", "baab", ["", "aa", ""]),
        ("a", "éaéa", ["a", "a"]),
        ("é|ab?", "abé", ["ab", "é"]),
        ("(a)(b)", "xabab", ["ab", "ab"]),
        ("x", "", []),
        ("", "ab", ["", "", ""]),
    ],
)
def test_found_returns_all_matches_from_left_to_right(pattern: str, text: str, all_of_it: list[str]) -> None:
    assert list(find_matches(pattern, text)) == all_of_it
