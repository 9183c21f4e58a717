"""Regular expressions that come from users, as Go reads them: by RE2, which takes a time linear in the text.

Python's own can take longer than anybody waits, for a short pattern and a short text: they are for our own patterns
alone. The library is loaded when the first one is needed.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any


def pattern_fault(pattern: str) -> str:
    """What is wrong with a pattern; '' if nothing is."""
    try:
        _compiled(pattern)
    except ValueError as error:
        return str(error)
    return ""


def is_found(pattern: str, text: str) -> bool:
    """Whether a pattern is found somewhere in a text; one that is no pattern is found nowhere."""
    try:
        return _compiled(pattern).search(text) is not None
    except ValueError:
        return False


def found(pattern: str, text: str) -> Iterator[str]:
    """All of a text that a pattern fits, from left to right; ValueError if it is no pattern.

    What fits nothing, and is next to what was found before, is not told again. Source: Go's regexp.FindAllString.
    """
    end = -1
    for match in _compiled(pattern).finditer(text):
        if match.end() > match.start() or match.start() != end:
            yield match[0]
        end = match.end()


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    import re2  # noqa: PLC0415 - loaded where it is needed

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"error parsing regexp: {error.args[0].decode('utf-8', 'replace')}") from error
