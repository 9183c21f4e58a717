"""YAML and JSON documents: parsed as Kubernetes does, with all faults reported.

Documents are split at `---` first, so that an unreadable document does not hide those after it. A document that starts
with `{` is tried as JSON, which is many times faster. Ambiguous scalars are resolved like Kubernetes does: times are
strings, 1:30 is a string, 1e3 is a number, and whole numbers are integers in any notation.

Resource use is bounded: nesting and the expansion of anchors are limited.
"""

import base64
import binascii
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from batchyard.api.errors import FieldError
from batchyard.api.schema.violations import Step, path_text, shown
from batchyard.base.memory import memoized_if_short

# --- yaml scalars ---
#
# Scalars of YAML, as Kubernetes reads them: YAML 1.1 converted to JSON.
#
# Source of the rules: sigs.k8s.io/yaml. Differences from PyYAML: no sexagesimal numbers, no times, `1e3` is a number,
# and a whole number is an integer.


_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE: Final = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
_INTEGER: Final = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_PREFIX: Final = "tag:yaml.org,2002:"
_DIGITS_MAX: Final = 100
_WHOLE_BELOW: Final = 1e21


class BadScalarError(ValueError):
    """The value does not match its tag, or is not possible in JSON. The message has the problem and the remedy."""


def scalar_value(text: str, tag: str | None, is_plain: bool) -> Any:
    """Return the value of a scalar from its text, its tag if any, and whether it is unquoted."""
    if tag is None:
        return _plain_value(text) if is_plain else text
    name = tag.removeprefix(_PREFIX)
    if name in {"str", "!"}:
        return text
    if name == "binary":
        return _binary(text)
    value = _plain_value(text)
    if name == "float" and type(value) is int:
        return value
    wanted = {"null": type(None), "bool": bool, "int": int, "float": float}.get(name)
    if wanted is None:
        raise BadScalarError(f"the tag {tag} means nothing here; leave the tag out")
    if type(value) is not wanted:
        raise BadScalarError(f"{text!r} is no {name}; leave out the tag, or change the value")
    return value


@memoized_if_short(maxsize=65536)
def _plain_value(text: str) -> Any:
    """Return the value of an unquoted text."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text[0] not in "+-.0123456789":
        return text
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if _FLOAT.fullmatch(text):
        return _number(text)
    if _NOT_FINITE.fullmatch(text):
        raise BadScalarError(f'{text} is no number that JSON can hold; write a number, or "{text}" in quotes')
    return text


def _integer(text: str) -> int:
    digits = text.replace("_", "")
    if len(digits) > _DIGITS_MAX:
        raise BadScalarError(f"a number of {len(digits)} digits is too large; put it in quotes if it is a text")
    sign, digits = (-1, digits[1:]) if digits[0] == "-" else (1, digits.removeprefix("+"))
    is_octal = digits[0] == "0" and digits[1:].isdigit()
    return sign * (int(digits, 8) if is_octal else int(digits, 0))


def _number(text: str) -> float | int:
    value = float(text)
    if math.isinf(value):
        raise BadScalarError(f"{text} is too large for a number; put it in quotes if it is a text")
    return int(value) if value.is_integer() and abs(value) < _WHOLE_BELOW else value


def _binary(text: str) -> str:
    try:
        return base64.b64decode(text).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise BadScalarError("a !!binary value is not base64 of a text; leave the tag out") from None


#: Far deeper than any manifest, and far from the recursion limit.
NESTING_MAX: Final = 100
#: The maximum number of values in a document of a client: an object of 1.5 MiB, the maximum size, has far fewer.
VALUES_MAX: Final = 200_000
#: The maximum number of reported faults of one document. Source: sigs.k8s.io/json, kubernetes_patch.go.
FAULTS_MAX: Final = 100
#: The maximum number of values that anchors and aliases may expand to in one document.
ALIASED_VALUES_MAX: Final = 100_000

_SEPARATOR: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
#: All bytes except brackets, and how a bracket changes the depth.
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_REMEDIES: Final = (
    ("mapping values are not allowed", "check the indentation, and put texts that hold ': ' in quotes"),
    ("found a tab character", "indent with spaces, never with tabs"),
    ("cannot start any token", "put texts that start with one of @ ` % in quotes, and indent with spaces, not tabs"),
    ("unexpected end of stream", "close the quotes"),
    ("did not find expected '-' indicator", "indent all items of the list alike, and its fields below them"),
    ("did not find expected key", "align this line with the fields it belongs to"),
    ("could not find expected ':'", "write `name: value`, with a space after the colon"),
    ("did not find expected ',' or", "close the bracket, or put a comma between the values"),
    ("did not find expected node content", "close the bracket"),
    ("control characters", "save the file as plain UTF-8 text"),
    ("<document start>", "put a line with --- between documents"),
)
_GENERAL_REMEDY: Final = "check quotes, colons and indentation there"


class Document(NamedTuple):
    """A non-empty document: its number from 1, its text, its value, and the faults of the text.

    There is a value despite faults if only parts are invalid, such as a duplicate field.
    """

    number: int
    text: str
    value: Any
    faults: Sequence[FieldError]
    #: The line of the file at which the text starts, counted from 1.
    line: int


def read_documents(text: str, values_max: int | None = None) -> Iterator[Document]:
    """Yield all non-empty documents of a text; a YAML document with more values than `values_max` has a fault."""
    number = 0
    for chunk, line in _chunks(text.removeprefix("\ufeff")):
        for part, first_line, value, faults in _parts(chunk, line, values_max):
            if value is not None or faults:
                number += 1
                yield Document(number, part, value, faults, first_line)


def _chunks(text: str) -> Iterator[tuple[str, int]]:
    """Yield the chunks between separators, each with its first line number; blank chunks and comments are omitted.

    Directives (`%YAML 1.1`) stay with the document that they open.
    """
    start, line, directives = 0, 1, ""
    for separator in chain(_SEPARATOR.finditer(text), (None,)):
        end = separator.start() if separator else len(text)
        chunk = text[start:end]
        if not _is_empty(chunk):
            yield directives + chunk, line - directives.count("\n")
            directives = ""
        elif "%" in chunk:
            directives = chunk + "---"
        line += chunk.count("\n")
        start = end + 3


def _is_empty(chunk: str) -> bool:
    """Report whether a chunk has only blanks, comments and directives."""
    content = chunk.lstrip()
    if not content or content[0] not in "#%":
        return not content
    return all(not line or line.isspace() or line.lstrip()[0] in "#%" for line in chunk.splitlines())


def _parts(chunk: str, first_line: int, values_max: int | None) -> Iterator[tuple[str, int, Any, Sequence[FieldError]]]:
    """Yield text, first line, value and faults of each document: the chunk, or its lines if all are JSON objects."""
    content = chunk.strip()
    is_json = content.startswith("{")
    value = _read_json(content) if is_json else None
    if value is not None:
        yield chunk, first_line, value, ()
    elif is_json and "\n{" in content and (lines := _json_lines(chunk, first_line)):
        for line, number in lines:
            value = _read_json(line)
            yield line, number, *((value, ()) if value is not None else _read_yaml(line, number, values_max))
    else:
        yield chunk, first_line, *_read_yaml(chunk, first_line, values_max)


def _json_lines(chunk: str, first_line: int) -> list[tuple[str, int]] | None:
    """Return the lines of a chunk with their numbers if every line is a JSON object, else None."""
    lines = [
        (line, number) for number, line in enumerate(chunk.splitlines(), first_line) if line and not line.isspace()
    ]
    return lines if all(line[0] == "{" and line.rstrip()[-1] == "}" for line, _ in lines) else None


def _read_yaml(chunk: str, first_line: int, values_max: int | None) -> tuple[Any, Sequence[FieldError]]:
    """Return the value of a YAML document, and the faults of its text."""
    builder = _Builder(first_line, values_max)
    try:
        return builder.build(chunk), builder.faults
    except yaml.YAMLError as wrong:
        return None, [_syntax_fault(wrong, first_line, chunk)]
    except UnicodeEncodeError:
        return None, [FieldError("", "the text has an incomplete character", "save the file as plain UTF-8 text")]


def _read_json(chunk: str) -> Any:
    """Return the value of a JSON document; None if it is invalid, nested too deeply, or may have a duplicate field."""
    if is_too_deep(chunk):
        return None
    try:
        encoded = chunk.encode()
        value = msgspec.json.decode(encoded)
        # Encoding restores the text, except if a field is duplicate or numbers or escapes have another form; only then
        # the slower check is needed.
        if msgspec.json.encode(value) != msgspec.json.format(encoded, indent=-1):
            json.loads(chunk, object_pairs_hook=_unique)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is set twice")
    return fields


def is_too_deep(chunk: str) -> bool:
    """Report whether a JSON text is nested deeper than NESTING_MAX."""
    return chunk.count("[") + chunk.count("{") > NESTING_MAX and nesting(chunk.encode(errors="replace")) > NESTING_MAX


def nesting(text: bytes) -> int:
    """Return the nesting depth of brackets in a JSON text."""
    brackets = outside_strings(text).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def outside_strings(text: bytes) -> bytes:
    """Return a JSON text without its strings."""
    return b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _syntax_fault(wrong: yaml.YAMLError, first_line: int, chunk: str) -> FieldError:
    """Return a YAML error as a fault with the line in the file and a remedy."""
    if isinstance(wrong, yaml.MarkedYAMLError):
        mark, problem = wrong.problem_mark, wrong.problem or "the text is not YAML"
        context = f" {wrong.context}" if wrong.context else ""
        line = mark.line if mark else 0
    else:
        problem, context = getattr(wrong, "reason", str(wrong)), ""
        line = chunk.count("\n", 0, getattr(wrong, "position", 0))
    line = min(line, chunk.rstrip().count("\n"))
    remedy = next((remedy for part, remedy in _REMEDIES if part in problem), _GENERAL_REMEDY)
    return FieldError(f"line {first_line + line}", f"{problem}{context}", remedy)


class _TooMuchError(yaml.YAMLError):
    """The document exceeds a limit."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.reason = problem


class _Frame:
    """A list or mapping under construction."""

    __slots__ = ("anchor", "key", "merged", "size", "value")

    def __init__(self, value: list[Any] | dict[str, Any], anchor: str | None) -> None:
        self.value = value
        self.anchor = anchor
        self.key: str | None = None
        self.merged: dict[str, Any] = {}
        self.size = 1


class _Builder:
    """Builds the value of one document from YAML events, without recursion."""

    def __init__(self, first_line: int, values_max: int | None) -> None:
        self.first_line = first_line
        self._values_left = sys.maxsize if values_max is None else values_max
        self.faults: list[FieldError] = []
        self._frames: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._aliased = 0
        self._result: Any = None

    def build(self, chunk: str) -> Any:
        """Return the value of the document; YAMLError if it is invalid."""
        for event in yaml.parse(chunk, Loader=yaml.CSafeLoader):
            self._values_left -= 1
            if self._values_left < 0:
                raise _TooMuchError("too many values")
            if isinstance(event, yaml.ScalarEvent):
                self._add(self._scalar(event), 1, event, event.anchor)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._open(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                frame = self._frames.pop()
                if isinstance(frame.value, dict) and frame.merged:
                    frame.value = {**frame.merged, **frame.value}
                self._add(frame.value, frame.size, event, frame.anchor)
            elif isinstance(event, yaml.AliasEvent):
                self._add(*self._alias(event), event, None)
        return self._result

    def _open(self, event: yaml.CollectionStartEvent) -> None:
        if len(self._frames) >= NESTING_MAX:
            raise _TooMuchError(f"nested more than {NESTING_MAX} deep")
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        wanted = "tag:yaml.org,2002:map" if is_mapping else "tag:yaml.org,2002:seq"
        if event.tag not in (None, "!", wanted):
            self._fault(event, f"the tag {event.tag} means nothing here", "leave the tag out")
        if is_mapping and self._frames and self._awaits_key(self._frames[-1]):
            self._fault(event, "a mapping is no name of a field", "put texts in braces in quotes")
        self._frames.append(_Frame({} if is_mapping else [], event.anchor))

    def _alias(self, event: yaml.AliasEvent) -> tuple[Any, int]:
        if event.anchor not in self._anchors:
            self._fault(event, f"there is no anchor &{event.anchor} before *{event.anchor}", "define it, or use quotes")
            return "", 1
        value, size = self._anchors[event.anchor]
        self._aliased += size
        if self._aliased > ALIASED_VALUES_MAX:
            raise _TooMuchError(f"anchors multiply to more than {ALIASED_VALUES_MAX} values")
        return value, size

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        try:
            return scalar_value(event.value, event.tag, event.implicit[0])
        except BadScalarError as wrong:
            problem, _, remedy = str(wrong).rpartition("; ")
            self._fault(event, problem, remedy)
            return ""

    def _add(self, value: Any, size: int, event: yaml.Event, anchor: str | None) -> None:
        """Add a finished value to its parent."""
        if anchor:
            self._anchors[anchor] = (value, size)
        if not self._frames:
            self._result = value
            return
        frame = self._frames[-1]
        frame.size += size
        if isinstance(frame.value, list):
            frame.value.append(value)
        elif frame.key is None:
            frame.key = self._key(value, frame, event)
        else:
            self._set(frame, frame.key, value, event)
            frame.key = None

    def _awaits_key(self, frame: _Frame) -> bool:
        return isinstance(frame.value, dict) and frame.key is None

    def _key(self, value: Any, frame: _Frame, event: yaml.Event) -> str:
        """Return a value as the name of a field."""
        if isinstance(value, str):
            if value in frame.value:
                self._fault(event, f"the field {shown(value)} is set twice", "remove one of them")
            return value
        if not isinstance(value, list | dict):
            self._fault(event, f"the name {shown(value)} is not a string", f'put it in quotes: "{shown(value)}"')
        elif isinstance(value, list):
            self._fault(event, "a list is no name of a field", "put texts in brackets in quotes")
        return shown(value)

    def _set(self, frame: _Frame, key: str, value: Any, event: yaml.Event) -> None:
        assert isinstance(frame.value, dict)
        if key != "<<":
            frame.value[key] = value
            return
        for source in reversed(value) if isinstance(value, list) else (value,):
            if isinstance(source, dict):
                frame.merged.update(source)
            else:
                self._fault(event, "<< merges mappings only", "write << : *anchor, the anchor being on a mapping")

    def _fault(self, event: yaml.Event, problem: str, remedy: str) -> None:
        """Record a fault with its path and line, up to FAULTS_MAX."""
        if len(self.faults) >= FAULTS_MAX:
            return
        mark = event.start_mark
        line = self.first_line + (mark.line if mark else 0)
        path = path_text(self._path())
        placed = (path, f"{problem} (line {line})") if path else (f"line {line}", problem)
        self.faults.append(FieldError(*placed, remedy))

    def _path(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        for frame in self._frames:
            if isinstance(frame.value, list):
                steps.append(len(frame.value))
            elif frame.key is not None:
                steps.append(frame.key)
        return tuple(steps)


# --- lines ---
#
# The line of a field in its file.


_STEP: Final = re.compile(r"\[([^\]]*+)(?:\]|\Z)|([^.\[\]]+)")
#: The names of fields in the oldest supported version, by their current names.
_OLD_NAMES: Final = {
    "spec.cohortName": "spec.cohort",
    "spec.admissionChecksStrategy.admissionChecks": "spec.admissionChecks",
}


class DocumentLines:
    """The lines of one document's fields."""

    def __init__(self, text: str, first: int) -> None:
        """Parse the text of a document that starts at this line of its file."""
        self._first = first
        self._start = first + _blank_lines(text)
        try:
            self._root: Any = yaml.compose(text, Loader=yaml.CSafeLoader)
        except yaml.YAMLError:
            self._root = None

    def of(self, path: str) -> int:
        """Return the line, from 1, of a field such as `spec.groups[0].name`, or of its closest existing parent."""
        found, depth = self._find(path)
        old = next((old for new, old in _OLD_NAMES.items() if path.startswith(new)), None)
        if old is not None:
            older, further = self._find(old)
            found = older if further >= depth else found
        return found

    def _find(self, path: str) -> tuple[int, int]:
        """Return the line, and the number of steps of the path that exist."""
        node, line = self._root, self._start
        for depth, (key, name) in enumerate(_STEP.findall(path)):
            below = _child(node, key or name)
            if below is None:
                return line, depth
            line, node = self._first + below[0], below[1]
        return line, len(path)


def _blank_lines(text: str) -> int:
    """Return the number of lines before the first content."""
    lines = enumerate(line.strip() for line in text.splitlines())
    return next((count for count, line in lines if line and not line.startswith(("#", "---", "%"))), 0)


def _child(node: Any, step: str) -> tuple[int, Any] | None:
    """Return the line of a field or item, relative to the start of the text, and its value; None if it is missing."""
    if isinstance(node, yaml.SequenceNode) and step.isdecimal() and int(step) < len(node.value):
        item = node.value[int(step)]
        return item.start_mark.line, item
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark.line, value
    return None
