"""HCL output in the format of `terraform fmt`: two spaces of indent, aligned equals signs."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

Value: TypeAlias = "str | int | bool | Sequence[Value] | Mapping[str, Value]"

_INDENT = "  "
#: Maximum line width; longer values are split over several lines.
_WIDTH = 110
#: Escapes in quoted strings; `${` and `%{` begin expressions.
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def assignments(values: Mapping[str, Value], depth: int = 0) -> str:
    """Return lines of NAME = VALUE; adjacent one-line values are aligned, as `terraform fmt` does."""
    lines = [(_name(name), _value(value, depth)) for name, value in values.items()]
    return "".join(
        f"{_INDENT * depth}{name.ljust(width)} = {text}\n" for width, rows in _aligned(lines) for name, text in rows
    )


def _aligned(lines: Sequence[tuple[str, str]]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Group adjacent one-line values with their common width; a multi-line value is a group of its own."""
    for is_long, run in groupby(lines, key=lambda line: "\n" in line[1]):
        rows = list(run)
        if is_long:
            yield from ((len(name), [(name, text)]) for name, text in rows)
        else:
            yield max(len(name) for name, _ in rows), rows


def _value(value: Value, depth: int) -> str:
    """Return a value, over several lines if one is too short."""
    short = _on_one_line(value)
    if not isinstance(value, (Mapping, Sequence)) or isinstance(value, str) or not value:
        return short
    if isinstance(value, Mapping):
        nests = any(isinstance(each, Mapping) and each for each in value.values())
        if not nests and len(value) < 4 and len(short) + len(_INDENT) * depth < _WIDTH:
            return short
        return f"{{\n{assignments(value, depth + 1)}{_INDENT * depth}}}"
    if all(not isinstance(each, Mapping) for each in value) and len(short) + len(_INDENT) * depth < _WIDTH:
        return short
    inner = _INDENT * (depth + 1)
    rows = "".join(f"{inner}{_value(each, depth + 1)},\n" for each in value)
    return f"[\n{rows}{_INDENT * depth}]"


def _on_one_line(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Mapping):
        rows = ", ".join(f"{_name(name)} = {_on_one_line(each)}" for name, each in value.items())
        return f"{{ {rows} }}" if rows else "{}"
    return f"[{', '.join(map(_on_one_line, value))}]"


def quoted(text: str) -> str:
    """Return an HCL string literal without expressions."""
    escaped = "".join(_ESCAPES.get(letter, letter) for letter in text)
    return f'"{escaped.replace("${", "$${").replace("%{", "%%{")}"'


def _name(name: str) -> str:
    """Return a name: identifiers bare, others (with dots or slashes) quoted."""
    letters = name.replace("_", "a").replace("-", "a")
    return name if letters.isascii() and letters.isalnum() and letters[0].isalpha() else quoted(name)
