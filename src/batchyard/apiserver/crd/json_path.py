"""JSON paths of columns and fields in CustomResourceDefinitions: `.spec.items[?(@.name=="a")].size`.

Source: k8s.io/client-go, util/jsonpath. Filters are limited to comparisons of one field with a constant.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

Step: TypeAlias = Callable[[Any], Iterable[Any]]

_FIELD: Final = re.compile(r"\.?((?:[^\\.\[\]]|\\.)+)")
_QUOTED: Final = re.compile(r"\.?\[(?:'([^']*)'|\"([^\"]*)\")\]")
_INDEX: Final = re.compile(r"\.?\[(-?[0-9]+)\]")
_ALL: Final = re.compile(r"\.?\[\*\]|\.\*")
_FILTER: Final = re.compile(r"\.?\[\?\(\s*@\.?([\w.\-/]+)\s*(==|!=)\s*(?:'([^']*)'|\"([^\"]*)\"|([\w.\-]+))\s*\)\]")


class BadPath(ValueError):  # noqa: N818 - named after the condition
    """A malformed path."""


def path_of(text: str) -> Sequence[Step]:
    """Parse a path into steps. Raises BadPath if it is malformed."""
    rest, steps = text.strip().removeprefix("$"), []
    while rest:
        step, length = _first_step(rest, text)
        steps.append(step)
        rest = rest[length:]
    return steps


def values_at(obj: Any, path: Sequence[Step]) -> list[Any]:
    """Return all values at a path."""
    values = [obj]
    for step in path:
        values = [inner for value in values for inner in step(value)]
    return values


def _first_step(rest: str, whole: str) -> tuple[Step, int]:
    for pattern, make in _STEPS:
        found = pattern.match(rest)
        if found:
            return make(found), found.end()
    raise BadPath(f"{whole!r} cannot be parsed from {rest!r} on")


def _field(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, Mapping) and name in value:
            yield value[name]

    return step


def _index(number: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= number < len(value):
            yield value[number]

    return step


def _every(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()


def _filter(found: re.Match[str]) -> Step:
    names, is_equal = found[1].split("."), found[2] == "=="
    wanted = next(text for text in found.groups()[2:] if text is not None)

    def step(value: Any) -> Iterator[Any]:
        return (each for each in _every(value) if (_text(each, names) == wanted) is is_equal)

    return step


def _text(value: Any, names: Sequence[str]) -> str | None:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


_STEPS: Final[Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], Step]]]] = (
    (_QUOTED, lambda found: _field(found[1] if found[1] is not None else found[2])),
    (_INDEX, lambda found: _index(int(found[1]))),
    (_ALL, lambda _found: _every),
    (_FILTER, _filter),
    (_FIELD, lambda found: _field(found[1].replace("\\", ""))),
)
