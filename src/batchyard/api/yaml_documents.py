"""Parses YAML and JSON documents as Kubernetes does, reports all errors, and finds the line numbers of fields.

A text is split at `---` first, so that documents after an unreadable one are still parsed. A document that starts with
`{` is parsed as JSON first, which is many times faster. Ambiguous scalars are resolved like Kubernetes does: times are
strings, 1:30 is a string, 1e3 is a number, and whole numbers are integers in any notation.

Resource use is bounded: nesting and the expansion of anchors are limited.
"""

import base64
import binascii
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from batchyard.api.errors import FieldError
from batchyard.api.schema.violations import PathStep, format_path, format_value
from batchyard.base.primitives import memoized_if_short

# Scalars of YAML, as Kubernetes reads them: YAML 1.1 converted to JSON.
#
# Source of the rules: sigs.k8s.io/yaml. Differences from PyYAML: no sexagesimal numbers, no times, `1e3` is a number,
# and a whole number is an integer.


_YAML_NULL_TEXTS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_YAML_TRUE_TEXTS: Final = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_YAML_FALSE_TEXTS: Final = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
_INTEGER_PATTERN: Final = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)", re.ASCII)
_FLOAT_PATTERN: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NOT_FINITE_PATTERN: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_TAG_PREFIX: Final = "tag:yaml.org,2002:"
_INTEGER_DIGITS_MAX: Final = 100
_FLOAT_AS_INTEGER_LIMIT: Final = 1e21


class BadScalarError(ValueError):
    """A YAML scalar is invalid, or has no equivalent in JSON. The message has the form `problem; remedy`."""


def scalar_value(text: str, tag: str | None, is_plain: bool) -> Any:
    """Return the Python value of a YAML scalar from its text and tag, if any; raise BadScalarError if it is invalid.

    `is_plain` is true for an unquoted scalar.
    """
    if tag is None:
        return _plain_scalar_value(text) if is_plain else text
    name = tag.removeprefix(_TAG_PREFIX)
    if name in {"str", "!"}:
        return text
    if name == "binary":
        return _decode_binary(text)
    value = _plain_scalar_value(text)
    if name == "float" and type(value) is int:
        return value
    expected_type = {"null": type(None), "bool": bool, "int": int, "float": float}.get(name)
    if expected_type is None:
        raise BadScalarError(f"the tag {tag} is not supported; remove the tag")
    if type(value) is not expected_type:
        raise BadScalarError(f"{text!r} is not a valid {name}; remove the tag, or change the value")
    return value


@memoized_if_short(maxsize=65536)
def _plain_scalar_value(text: str) -> Any:
    if text in _YAML_NULL_TEXTS:
        return None
    if text in _YAML_TRUE_TEXTS or text in _YAML_FALSE_TEXTS:
        return text in _YAML_TRUE_TEXTS
    if text[0] not in "+-.0123456789":
        return text
    if _INTEGER_PATTERN.fullmatch(text):
        return _parse_integer(text)
    if _FLOAT_PATTERN.fullmatch(text):
        return _parse_float(text)
    if _NOT_FINITE_PATTERN.fullmatch(text):
        raise BadScalarError(f'{text} is not a number in JSON; write a finite number, or "{text}" in quotes')
    return text


def _parse_integer(text: str) -> int:
    digits = text.replace("_", "")
    if len(digits) > _INTEGER_DIGITS_MAX:
        raise BadScalarError(f"a number of {len(digits)} digits is too large; put the value in quotes if it is text")
    sign, digits = (-1, digits[1:]) if digits[0] == "-" else (1, digits.removeprefix("+"))
    is_octal = digits[0] == "0" and digits[1:].isdigit()
    return sign * (int(digits, 8) if is_octal else int(digits, 0))


def _parse_float(text: str) -> float | int:
    value = float(text)
    if math.isinf(value):
        raise BadScalarError(f"the number {text} is too large; put the value in quotes if it is text")
    return int(value) if value.is_integer() and abs(value) < _FLOAT_AS_INTEGER_LIMIT else value


def _decode_binary(text: str) -> str:
    try:
        return base64.b64decode(text).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise BadScalarError(
            "the !!binary value is not base64 of UTF-8 text; correct the value, or remove the tag"
        ) from None


#: The maximum nesting depth: manifests need less, and Python's recursion limit is much higher.
NESTING_MAX: Final = 100
#: The maximum number of values in a document from a client; real objects, at most 1.5 MiB, have far fewer.
VALUES_MAX: Final = 200_000
#: The maximum number of errors reported for one document. Source: sigs.k8s.io/json, kubernetes_patch.go.
FAULTS_MAX: Final = 100
#: The maximum number of values that anchors and aliases may expand to in one document.
ALIASED_VALUES_MAX: Final = 100_000

_SEPARATOR_PATTERN: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
#: All bytes except brackets; and the change of the nesting depth for each bracket.
_NON_BRACKET_BYTES: Final = bytes(set(range(256)) - set(b"[]{}"))
_DEPTH_CHANGE_BY_BRACKET: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_REMEDY_BY_SYNTAX_PROBLEM: Final = (
    ("mapping values are not allowed", "check the indentation, and put texts that contain ': ' in quotes"),
    ("found a tab character", "indent with spaces, never with tabs"),
    ("cannot start any token", "put texts that start with one of @ ` % in quotes, and indent with spaces, not tabs"),
    ("unexpected end of stream", "add the missing closing quote"),
    ("did not find expected '-' indicator", "indent all items of the list equally, and their fields below them"),
    ("did not find expected key", "indent this line like the other fields of the same object"),
    ("could not find expected ':'", "write `name: value`, with a space after the colon"),
    ("did not find expected ',' or", "add the missing closing bracket, or a comma between the values"),
    ("did not find expected node content", "add the missing closing bracket"),
    ("control characters", "remove the control characters, and save the file as UTF-8"),
    ("<document start>", "put a line with --- between documents"),
)
#: The beginning of an action of Go's templates (Helm) and of Jinja.
_TEMPLATE_ACTION_PATTERN: Final = re.compile(r"\{\{[^{}\n]{1,60}\}\}|\{%[^{}\n]{1,60}%\}")
_GENERAL_SYNTAX_REMEDY: Final = "check quotes, colons and indentation in this line"


class Document(NamedTuple):
    """A non-empty YAML or JSON document of a file: its number from 1, text, parsed value, and syntax errors.

    The value is None if the text cannot be parsed. A duplicate field, for example, is an error, but leaves a value.
    """

    number: int
    text: str
    value: Any
    faults: Sequence[FieldError]
    #: The line of the file at which the text starts, counted from 1.
    line: int


def read_documents(text: str, values_max: int | None = None) -> Iterator[Document]:
    """Parse all non-empty documents of a text; a YAML document with more than `values_max` values gets an error."""
    document_number = 0
    for chunk, line in _split_at_separators(text.removeprefix("\ufeff")):
        for document_text, first_line, value, errors in _parse_chunk(chunk, line, values_max):
            if value is not None or errors:
                document_number += 1
                yield Document(document_number, document_text, value, errors, first_line)


def _split_at_separators(text: str) -> Iterator[tuple[str, int]]:
    """Split a text at its `---` lines; yield each non-empty chunk with the number of its first line.

    Directives (`%YAML 1.1`) stay with the document that they open.
    """
    start, line, directives = 0, 1, ""
    for separator in chain(_SEPARATOR_PATTERN.finditer(text), (None,)):
        end = separator.start() if separator else len(text)
        chunk = text[start:end]
        if not _is_empty_chunk(chunk):
            yield directives + chunk, line - directives.count("\n")
            directives = ""
        elif "%" in chunk:
            directives = chunk + "---"
        line += chunk.count("\n")
        start = end + 3


def _is_empty_chunk(chunk: str) -> bool:
    content = chunk.lstrip()
    if not content or content[0] not in "#%":
        return not content
    return all(not line or line.isspace() or line.lstrip()[0] in "#%" for line in chunk.splitlines())


def _parse_chunk(
    chunk: str, first_line: int, values_max: int | None
) -> Iterator[tuple[str, int, Any, Sequence[FieldError]]]:
    """Parse the text between two `---` lines to one document, or to one per line if all lines are JSON objects.

    Yields text, first line number, value and errors of each document.
    """
    content = chunk.strip()
    is_json = content.startswith("{")
    value = _read_json_chunk(content) if is_json else None
    if value is not None:
        yield chunk, first_line, value, ()
    elif is_json and "\n{" in content and (lines := _json_lines(chunk, first_line)):
        for line, number in lines:
            value = _read_json_chunk(line)
            yield line, number, *((value, ()) if value is not None else _read_yaml_chunk(line, number, values_max))
    else:
        yield chunk, first_line, *_read_yaml_chunk(chunk, first_line, values_max)


def _json_lines(chunk: str, first_line: int) -> list[tuple[str, int]] | None:
    lines = [(line, number) for number, line in enumerate(chunk.splitlines(), first_line) if line.strip()]
    return lines if all(line[0] == "{" and line.rstrip()[-1] == "}" for line, _ in lines) else None


def _read_yaml_chunk(chunk: str, first_line: int, values_max: int | None) -> tuple[Any, Sequence[FieldError]]:
    builder = _DocumentBuilder(first_line, values_max)
    try:
        value, errors = builder.build(chunk), builder.faults
    except yaml.YAMLError as error:
        value, errors = None, [_syntax_fault(error, first_line, chunk)]
    except UnicodeEncodeError:
        return None, [FieldError("", "the text contains invalid Unicode", "save the file as UTF-8")]
    template_error = _template_error(chunk, first_line) if errors else None
    return (value, errors) if template_error is None else (None, [template_error])


def _template_error(chunk: str, first_line: int) -> FieldError | None:
    action = _TEMPLATE_ACTION_PATTERN.search(chunk)
    if action is None:
        return None
    problem = f"the document is a template, not YAML: it contains {action[0]}"
    remedy = "render the template first, for example with `helm template CHART > manifests.yaml`, and use the result"
    return FieldError("", problem, remedy, line=first_line + chunk.count("\n", 0, action.start()))


def _read_json_chunk(chunk: str) -> Any:
    if is_too_deep(chunk):
        return None
    try:
        encoded_chunk = chunk.encode()
        value = msgspec.json.decode(encoded_chunk)
        # Encoding restores the text, except if a field is duplicate or numbers or escapes have another form; only then
        # the slower check is needed.
        if msgspec.json.encode(value) != msgspec.json.format(encoded_chunk, indent=-1):
            json.loads(chunk, object_pairs_hook=_reject_duplicate_fields)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return value


def _reject_duplicate_fields(name_value_pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(name_value_pairs)
    if len(fields) < len(name_value_pairs):
        repeated_name = Counter(name for name, _ in name_value_pairs).most_common(1)[0][0]
        raise ValueError(f"a JSON object sets the field {repeated_name} twice; remove one of the two")
    return fields


def is_too_deep(json_text: str) -> bool:
    """Return whether brackets in a JSON text are nested more than NESTING_MAX levels deep."""
    bracket_count = json_text.count("[") + json_text.count("{")
    return bracket_count > NESTING_MAX and nesting_depth(json_text.encode(errors="replace")) > NESTING_MAX


def nesting_depth(text: bytes) -> int:
    """Return the maximum nesting depth of brackets in a JSON text, given as bytes."""
    bracket_bytes = remove_json_strings(text).translate(None, _NON_BRACKET_BYTES)
    return max(accumulate(map(_DEPTH_CHANGE_BY_BRACKET.__getitem__, bracket_bytes)), default=0)


def remove_json_strings(text: bytes) -> bytes:
    """Return a JSON text without its string literals, so that only syntax, numbers and keywords remain."""
    return b"".join(text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _syntax_fault(error: yaml.YAMLError, first_line: int, chunk: str) -> FieldError:
    if isinstance(error, _LimitExceededError):
        return FieldError("", error.problem, error.remedy, line=first_line + error.line)
    if isinstance(error, yaml.MarkedYAMLError):
        error_mark, problem = error.problem_mark, error.problem or "the text is not valid YAML"
        context = f" {error.context}" if error.context else ""
        line = error_mark.line if error_mark else 0
    else:
        problem, context = getattr(error, "reason", str(error)), ""
        line = chunk.count("\n", 0, getattr(error, "position", 0))
    line = min(line, chunk.rstrip().count("\n"))
    remedy = next((remedy for part, remedy in _REMEDY_BY_SYNTAX_PROBLEM if part in problem), _GENERAL_SYNTAX_REMEDY)
    return FieldError("", f"{problem}{context}", remedy, line=first_line + line)


class _LimitExceededError(yaml.YAMLError):
    def __init__(self, event: yaml.Event, problem: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        #: The line in the document at which the limit is exceeded, from 0.
        self.line: int = event.start_mark.line if event.start_mark else 0


class _OpenCollection:
    __slots__ = ("anchor", "key", "merged_fields", "size", "value")

    def __init__(self, value: list[Any] | dict[str, Any], anchor: str | None) -> None:
        self.value = value
        self.anchor = anchor
        self.key: str | None = None
        self.merged_fields: dict[str, Any] = {}
        self.size = 1


class _DocumentBuilder:
    """Builds the Python value of one YAML document from the events of the YAML parser, without recursion."""

    def __init__(self, first_line: int, values_max: int | None) -> None:
        self.first_line = first_line
        self._values_left = sys.maxsize if values_max is None else values_max
        self.faults: list[FieldError] = []
        self._frames: list[_OpenCollection] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._aliased_values = 0
        self._result: Any = None

    def build(self, chunk: str) -> Any:
        for event in yaml.parse(chunk, Loader=yaml.CSafeLoader):
            self._values_left -= 1
            if self._values_left < 0:
                raise _LimitExceededError(event, "the document has too many values", "split it into smaller ones")
            if isinstance(event, yaml.ScalarEvent):
                self._add_value(self._parse_scalar(event), 1, event, event.anchor)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._open_collection(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                closed_collection = self._frames.pop()
                if isinstance(closed_collection.value, dict) and closed_collection.merged_fields:
                    closed_collection.value = {**closed_collection.merged_fields, **closed_collection.value}
                self._add_value(closed_collection.value, closed_collection.size, event, closed_collection.anchor)
            elif isinstance(event, yaml.AliasEvent):
                self._add_value(*self._resolve_alias(event), event, None)
        return self._result

    def _open_collection(self, event: yaml.CollectionStartEvent) -> None:
        if len(self._frames) >= NESTING_MAX:
            problem = f"values are nested more than {NESTING_MAX} levels deep"
            raise _LimitExceededError(event, problem, "reduce the nesting")
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        expected_tag = "tag:yaml.org,2002:map" if is_mapping else "tag:yaml.org,2002:seq"
        if event.tag not in (None, "!", expected_tag):
            self._record_fault(event, f"the tag {event.tag} is not supported", "remove the tag")
        if is_mapping and self._frames and self._awaits_key(self._frames[-1]):
            self._record_fault(event, "an object cannot be the name of a field", "quote the name if it contains braces")
        self._frames.append(_OpenCollection({} if is_mapping else [], event.anchor))

    def _resolve_alias(self, event: yaml.AliasEvent) -> tuple[Any, int]:
        anchor = event.anchor
        if anchor not in self._anchors:
            self._record_fault(
                event, f"the anchor &{anchor} is not defined before *{anchor}", "define the anchor, or quote the text"
            )
            return "", 1
        value, value_count = self._anchors[anchor]
        self._aliased_values += value_count
        if self._aliased_values > ALIASED_VALUES_MAX:
            problem = f"aliases expand to more than {ALIASED_VALUES_MAX} values"
            raise _LimitExceededError(event, problem, "use fewer aliases")
        return value, value_count

    def _parse_scalar(self, event: yaml.ScalarEvent) -> Any:
        try:
            return scalar_value(event.value, event.tag, event.implicit[0])
        except BadScalarError as error:
            problem, _, remedy = str(error).rpartition("; ")
            self._record_fault(event, problem, remedy)
            return ""

    def _add_value(self, value: Any, value_count: int, event: yaml.Event, anchor: str | None) -> None:
        if anchor:
            self._anchors[anchor] = (value, value_count)
        if not self._frames:
            self._result = value
            return
        open_collection = self._frames[-1]
        open_collection.size += value_count
        if isinstance(open_collection.value, list):
            open_collection.value.append(value)
        elif open_collection.key is None:
            open_collection.key = self._field_name(value, open_collection, event)
        else:
            self._set_field(open_collection, open_collection.key, value, event)
            open_collection.key = None

    def _awaits_key(self, open_collection: _OpenCollection) -> bool:
        return isinstance(open_collection.value, dict) and open_collection.key is None

    def _field_name(self, value: Any, open_collection: _OpenCollection, event: yaml.Event) -> str:
        if isinstance(value, str):
            if value in open_collection.value:
                self._record_fault(event, f"the field {format_value(value)} is set twice", "remove one of the two")
            return value
        name = format_value(value)
        if not isinstance(value, list | dict):
            self._record_fault(event, f"the field name {name} is not a string", f'put the value in quotes: "{name}"')
        elif isinstance(value, list):
            self._record_fault(event, "a list cannot be the name of a field", "quote the name if it contains brackets")
        return name

    def _set_field(self, open_collection: _OpenCollection, key: str, value: Any, event: yaml.Event) -> None:
        assert isinstance(open_collection.value, dict)
        if key != "<<":
            open_collection.value[key] = value
            return
        for merged_object in reversed(value) if isinstance(value, list) else (value,):
            if isinstance(merged_object, dict):
                open_collection.merged_fields.update(merged_object)
            else:
                self._record_fault(
                    event,
                    "<< must merge an object or a list of objects",
                    "write `<<: *name`, where &name marks an object",
                )

    def _record_fault(self, event: yaml.Event, problem: str, remedy: str) -> None:
        if len(self.faults) >= FAULTS_MAX:
            return
        mark = event.start_mark
        line = self.first_line + (mark.line if mark else 0)
        self.faults.append(FieldError(format_path(self._field_path()), problem, remedy, line=line))

    def _field_path(self) -> tuple[PathStep, ...]:
        path_steps: list[PathStep] = []
        for frame in self._frames:
            if isinstance(frame.value, list):
                path_steps.append(len(frame.value))
            elif frame.key is not None:
                path_steps.append(frame.key)
        return tuple(path_steps)


# Line numbers of fields in their file.


_PATH_STEP_PATTERN: Final = re.compile(r"\[([^\]]*+)(?:\]|\Z)|([^.\[\]]+)")
#: Fields that have another path in the oldest supported API version, by their current paths.
_OLD_FIELD_NAMES: Final = {
    "spec.cohortName": "spec.cohort",
    "spec.admissionChecksStrategy.admissionChecks": "spec.admissionChecks",
}


class DocumentLines:
    """Finds the line number of a field in the text of a YAML document; parses the text on first use."""

    def __init__(self, text: str, first_line: int) -> None:
        """Keep the text of a YAML document that starts at line `first_line` of its file."""
        self._text = text
        self._first = first_line
        self._start = 0
        self._root: Any = None

    def line_of(self, path: str) -> int:
        """Return the line number of a field such as `spec.groups[0].name`, or of its closest existing parent."""
        if not self._start:
            self._parse()
        line, depth = self._find_deepest(path)
        old = next((old for new, old in _OLD_FIELD_NAMES.items() if path.startswith(new)), None)
        if old is not None:
            old_line, old_depth = self._find_deepest(old)
            line = old_line if old_depth >= depth else line
        return line

    def locate(self, error: FieldError, item_path: str = "") -> tuple[int, FieldError]:
        """Return the line number of an error in the object at `item_path`, and the error without a line number.

        An empty `item_path` means the whole document.
        """
        line = error.line or self.line_of(".".join(filter(None, (item_path, error.path))))
        return line, error._replace(line=0)

    def _parse(self) -> None:
        self._start = self._first + _blank_line_count(self._text)
        try:
            self._root = yaml.compose(self._text, Loader=yaml.CSafeLoader)
        except yaml.YAMLError:
            self._root = None

    def _find_deepest(self, path: str) -> tuple[int, int]:
        """Return the line number of the deepest existing field on a path, and how many fields of the path exist.

        If the whole path exists, its length in characters is returned instead of the number of fields.
        """
        node, line = self._root, self._start
        for depth, (key, name) in enumerate(_PATH_STEP_PATTERN.findall(path)):
            child = _find_child_node(node, key or name)
            if child is None:
                return line, depth
            line, node = self._first + child[0], child[1]
        return line, len(path)


def _blank_line_count(text: str) -> int:
    """Return the number of blank, comment, `---` and directive lines before the first content of a text."""
    lines = enumerate(line.strip() for line in text.splitlines())
    return next((count for count, line in lines if line and not line.startswith(("#", "---", "%"))), 0)


def _find_child_node(node: Any, step: str) -> tuple[int, Any] | None:
    if isinstance(node, yaml.SequenceNode) and step.isdecimal() and int(step) < len(node.value):
        list_item = node.value[int(step)]
        return list_item.start_mark.line, list_item
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark.line, value
    return None
