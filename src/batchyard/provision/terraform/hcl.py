"""Values as HCL, written as `terraform fmt` leaves them: two spaces, equals signs of neighbouring lines aligned."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

Value: TypeAlias = "str | int | bool | Sequence[Value] | Mapping[str, Value]"

_INDENT = "  "
#: Of a line at most: a value that is longer is written over several.
_WIDTH = 110
#: What a quoted string may not hold as it is; `${` and `%{` begin expressions.
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def assignments(values: Mapping[str, Value], depth: int = 0) -> str:
    """Lines of NAME = VALUE, each ended; neighbours that take one line are aligned, as `terraform fmt` aligns them."""
    lines = [(_name(name), _value(value, depth)) for name, value in values.items()]
    return "".join(
        f"{_INDENT * depth}{name.ljust(width)} = {text}\n" for width, rows in _aligned(lines) for name, text in rows
    )


def _aligned(lines: Sequence[tuple[str, str]]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """Runs of neighbours with the width of their names; what takes several lines stands for itself."""
    for is_long, run in groupby(lines, key=lambda line: "\n" in line[1]):
        rows = list(run)
        if is_long:
            yield from ((len(name), [(name, text)]) for name, text in rows)
        else:
            yield max(len(name) for name, _ in rows), rows


def _value(value: Value, depth: int) -> str:
    """A value, over several lines where one is too short for it."""
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
    """A string as HCL writes it; nothing in it is an expression."""
    escaped = "".join(_ESCAPES.get(letter, letter) for letter in text)
    return f'"{escaped.replace("${", "$${").replace("%{", "%%{")}"'


def _name(name: str) -> str:
    """A name as it may be written: identifiers bare, others (with dots or slashes) quoted."""
    letters = name.replace("_", "a").replace("-", "a")
    return name if letters.isascii() and letters.isalnum() and letters[0].isalpha() else quoted(name)
