"""References to variables in texts: `$(NAME)`, as pods have them in values, commands and paths.

Source: third_party/forked/golang/expansion, and the words of the API about `$$`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, lookup: Callable[[str], str | None]) -> str:
    """The text with `$(NAME)` replaced by what the lookup says, once, from left to right.

    What comes in is not looked through again. A name that the lookup does not know stays as it is written, and so does
    a `$(` that nothing closes. `$$` is one `$`.
    """

    def replaced(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "$"
        value = lookup(name)
        return match.group(0) if value is None else value

    closed = text.rfind(")") + 1  # behind it nothing is: each `$(` there would be sought an end for
    return _REFERENCE.sub(replaced, text[:closed]) + text[closed:].replace("$$", "$")


def expand_path(text: str, variables: Mapping[str, str]) -> tuple[str, list[str]]:
    """A path with its references replaced, and the names, sorted, that have no value or an empty one."""
    missing: dict[str, None] = {}

    def lookup(name: str) -> str:
        value = variables.get(name, "")
        if not value:
            missing[name] = None
        return value

    return expand(text, lookup), sorted(missing)
