"""Regular expressions that come from users."""

import pytest

from batchyard.api.patterns import found, is_found, pattern_fault


@pytest.mark.parametrize("pattern", ["", "a|b", r"^\d+$", "[[:alpha:]]", "a(?i)B", r"\z", "(?P<name>a)"])
def test_what_go_takes_for_a_pattern_is_one(pattern: str) -> None:
    assert not pattern_fault(pattern)


@pytest.mark.parametrize("pattern", ["(", "a**", "(?=a)", r"(a)\1", "[z-a]", "a{1001}", "(?<!a)b"])
def test_what_go_does_not_is_told_and_found_nowhere(pattern: str) -> None:
    assert pattern_fault(pattern).startswith("error parsing regexp: ")
    assert not is_found(pattern, "ab")
    with pytest.raises(ValueError, match="error parsing regexp"):
        list(found(pattern, "ab"))


def test_no_pattern_takes_longer_than_its_text() -> None:
    assert not is_found("(x+x+)+y", "x" * 100_000)


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
def test_all_that_is_found_is_told_from_left_to_right(pattern: str, text: str, all_of_it: list[str]) -> None:
    assert list(found(pattern, text)) == all_of_it
