"""Regular expressions written by users, in the syntax of Go: RE2 matches in time linear in the length of the text.

Python's own regular expressions can take exponential time, so they are used only for patterns in this code. RE2 is
loaded on first use.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any


def pattern_fault(pattern: str) -> str:
    """Return the error message for an invalid regular expression; '' if it is valid."""
    try:
        _compile_pattern(pattern)
    except ValueError as error:
        return str(error)
    return ""


def matches_anywhere(pattern: str, text: str) -> bool:
    """Return whether a regular expression matches anywhere in a text; False if the expression is invalid."""
    try:
        return _compile_pattern(pattern).search(text) is not None
    except ValueError:
        return False


def find_matches(pattern: str, text: str) -> Iterator[str]:
    """Yield all matches of a regular expression in a text, from left to right.

    An empty match directly after the previous match is skipped. Raises ValueError if the expression is invalid. Source:
    Go's regexp.FindAllString.
    """
    end = -1
    for match in _compile_pattern(pattern).finditer(text):
        if match.end() > match.start() or match.start() != end:
            yield match[0]
        end = match.end()


@lru_cache(maxsize=1024)
def _compile_pattern(pattern: str) -> Any:
    import re2  # noqa: PLC0415 - loaded on first use

    re2_options = re2.Options()
    re2_options.log_errors = False
    try:
        return re2.compile(pattern, re2_options)
    except re2.error as error:
        raise ValueError(f"error parsing regexp: {error.args[0].decode('utf-8', 'replace')}") from error
