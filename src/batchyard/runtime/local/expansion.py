"""References to variables in texts: `$(NAME)`, as pods have them in values, commands and paths.

Source: third_party/forked/golang/expansion, and the words of the API about `$$`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from batchyard.runtime.local.errors import InputError

#: Characters of one text that a process can be given, and of all its variables or its command. Source: execve(2) of
#: Linux (MAX_ARG_STRLEN, and a quarter of the usual bound of a stack).
LONGEST: Final = 128 * 1024
TOTAL: Final = 2 * 1024 * 1024
_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, lookup: Callable[[str], str | None]) -> str:
    """The text with `$(NAME)` replaced by what the lookup says, once, from left to right.

    What comes in is not looked through again. A name that the lookup does not know stays as it is written, and so does
    a `$(` that nothing closes. `$$` is one `$`. InputError where that is longer than any process can be given:
    texts that refer to each other could grow without bound.
    """
    length = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal length
        name = match.group(1)
        value = "$" if name is None else lookup(name)
        if value is None:
            return match.group(0)
        length += len(value)
        if length > LONGEST:
            raise too_long()
        return value

    closed = text.rfind(")") + 1  # behind it nothing is: each `$(` there would be sought an end for
    return _REFERENCE.sub(replaced, text[:closed]) + text[closed:].replace("$$", "$")


def too_long() -> InputError:
    """What is told, in the words of execve(2), of more than a process can be given."""
    return InputError("argument list too long")


def expand_path(text: str, variables: Mapping[str, str]) -> tuple[str, list[str]]:
    """A path with its references replaced, and the names, sorted, that have no value or an empty one."""
    missing: dict[str, None] = {}

    def lookup(name: str) -> str:
        value = variables.get(name, "")
        if not value:
            missing[name] = None
        return value

    return expand(text, lookup), sorted(missing)
