"""Regular expressions as Go reads them: by RE2, which also bounds how long a match may take.

They are the `matches` of the Common Expression Language, whose library is loaded when the first one is needed.
"""

from functools import cache
from typing import Any


def pattern_fault(pattern: str) -> str:
    """What is wrong with a pattern; '' if nothing is."""
    found = _evaluated("", pattern)
    return "" if isinstance(found, bool) else str(found)


def matches(text: str, pattern: str) -> bool:
    """Whether a pattern is found somewhere in a text."""
    return _evaluated(text, pattern) is True


def _evaluated(text: str, pattern: str) -> Any:
    return _program().eval(data={"text": text, "pattern": pattern}).plain_value()


@cache
def _program() -> Any:
    from cel_expr_python import cel  # noqa: PLC0415 - loaded where it is needed

    strings = {"text": cel.Type.STRING, "pattern": cel.Type.STRING}
    return cel.NewEnv(variables=strings).compile("text.matches(pattern)")
