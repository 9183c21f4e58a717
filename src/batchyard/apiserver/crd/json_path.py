"""JSON paths of columns and fields in CustomResourceDefinitions: `.spec.items[?(@.name=="a")].size`.

Source: k8s.io/client-go, util/jsonpath. Filters are limited to comparisons of one field with a constant.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

Step: TypeAlias = Callable[[Any], Iterable[Any]]

_FIELD_PATTERN: Final = re.compile(r"\.?((?:[^\\.\[\]]|\\.)+)")
_QUOTED_FIELD_PATTERN: Final = re.compile(r"\.?\[(?:'([^']*)'|\"([^\"]*)\")\]")
_INDEX_PATTERN: Final = re.compile(r"\.?\[(-?[0-9]+)\]")
_SLICE_PATTERN: Final = re.compile(r"\.?\[(-?[0-9]*):(-?[0-9]*)(?::([1-9][0-9]*))?\]")
_ALL_ITEMS_PATTERN: Final = re.compile(r"\.?\[\*\]|\.\*")
_FILTER: Final = re.compile(r"\.?\[\?\(\s*@\.?([\w.\-/]+)\s*(==|!=)\s*(?:'([^']*)'|\"([^\"]*)\"|([\w.\-]+))\s*\)\]")


class InvalidJsonPath(ValueError):  # noqa: N818 - named after the condition
    """The text is not a supported JSON path."""


def parse_json_path(text: str) -> Sequence[Step]:
    """Parse a JSON path into steps. Raises InvalidJsonPath if it is malformed or not supported."""
    remaining_text, steps = text.strip().removeprefix("$"), []
    while remaining_text:
        step, step_length = _parse_first_step(remaining_text, text)
        steps.append(step)
        remaining_text = remaining_text[step_length:]
    return steps


def values_at(obj: Any, path: Sequence[Step]) -> list[Any]:
    """Return all values of an object at a JSON path."""
    values = [obj]
    for step in path:
        values = [nested_value for value in values for nested_value in step(value)]
    return values


def _parse_first_step(remaining_text: str, path: str) -> tuple[Step, int]:
    for pattern, make_step in _STEP_MAKERS:
        match = pattern.match(remaining_text)
        if match:
            return make_step(match), match.end()
    raise InvalidJsonPath(f"cannot parse {remaining_text!r} in {path!r}")


def _field_step(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, Mapping) and name in value:
            yield value[name]

    return step


def _index_step(item_index: int) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if isinstance(value, list) and -len(value) <= item_index < len(value):
            yield value[item_index]

    return step


def _slice_step(match: re.Match[str]) -> Step:
    part = slice(*(int(text) if text else None for text in match.groups()))

    def step(value: Any) -> Iterable[Any]:
        return value[part] if isinstance(value, list) else ()

    return step


def _all_items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()


def _filter_step(match: re.Match[str]) -> Step:
    names, is_equal = match[1].split("."), match[2] == "=="
    expected_text = next(text for text in match.groups()[2:] if text is not None)

    def step(value: Any) -> Iterator[Any]:
        return (each for each in _all_items(value) if (_nested_text(each, names) == expected_text) is is_equal)

    return step


def _nested_text(value: Any, names: Sequence[str]) -> str | None:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


_STEP_MAKERS: Final[Sequence[tuple[re.Pattern[str], Callable[[re.Match[str]], Step]]]] = (
    (_QUOTED_FIELD_PATTERN, lambda match: _field_step(match[1] if match[1] is not None else match[2])),
    (_INDEX_PATTERN, lambda match: _index_step(int(match[1]))),
    (_SLICE_PATTERN, _slice_step),
    (_ALL_ITEMS_PATTERN, lambda _match: _all_items),
    (_FILTER, _filter_step),
    (_FIELD_PATTERN, lambda match: _field_step(match[1].replace("\\", ""))),
)
