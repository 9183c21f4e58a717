"""Label and field selectors of lists and watches.

Source: k8s.io/apimachinery, pkg/fields/selector.go.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Obj, Requirement, group_kind
from batchyard.api.scheme import ServedKind
from batchyard.api.validation import rules
from batchyard.apiserver.request import ApiRequest, StatusError, bad_request

#: An operator, or a word without operators and spaces.
_TOKEN_PATTERN: Final = re.compile(r"==|!=|[=!<>(),]|[^\s=!<>(),]++")
_OPERATOR_TOKENS: Final = frozenset({"", "==", "!=", *"=!<>(),"})
_SINGLE_VALUE_OPERATORS: Final = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
_LIST_OPERATORS: Final = {"in": "In", "notin": "NotIn"}
_TERM_ENDS: Final = ("", ",")
_SELECTOR_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_SUPPORTED_OPERATORS_TEXT: Final = "in, notin, =, ==, !=, gt, lt"


def parse_label_selector(text: str) -> tuple[Requirement, ...]:
    """Parse the requirements of a label selector. Raises StatusError if it is malformed."""
    lexemes = iter([*_TOKEN_PATTERN.findall(text), ""])
    requirements: list[Requirement] = []
    lexeme = next(lexemes)
    while lexeme:
        requirement, end = _parse_requirement(lexeme, lexemes)
        if end not in _TERM_ENDS:
            raise bad_request(f"found '{end}', expected: ',' or 'end of string'")
        requirements.append(requirement)
        if not end:
            break
        lexeme = next(lexemes)
        if lexeme in _OPERATOR_TOKENS and lexeme != "!":
            raise bad_request(f"found '{lexeme}', expected: identifier after ','")
    return tuple(requirements)


def _parse_requirement(lexeme: str, lexemes: Iterator[str]) -> tuple[Requirement, str]:
    is_negated = lexeme == "!"
    key = next(lexemes) if is_negated else lexeme
    if key in _OPERATOR_TOKENS:
        raise _parse_error(f"found '{key}', expected: identifier")
    for problem in rules.qualified_name_errors(key):
        raise _parse_error(f'Invalid value: "{key}": {problem}')
    operator = next(lexemes)
    if is_negated or operator in _TERM_ENDS:
        return Requirement(key, "DoesNotExist" if is_negated else "Exists", ()), operator
    if operator in _LIST_OPERATORS:
        values = tuple(_parse_values(lexemes))
        end = next(lexemes)
    elif operator in _SINGLE_VALUE_OPERATORS:
        value = next(lexemes)
        end = value if value in _TERM_ENDS else next(lexemes)
        values = ("" if value in _TERM_ENDS else value,)
    else:
        raise _parse_error(f"found '{operator}', expected: {_SUPPORTED_OPERATORS_TEXT}")
    _check_operator_values(key, operator, values)
    return Requirement(key, _LIST_OPERATORS.get(operator) or _SINGLE_VALUE_OPERATORS[operator], values), end


def _parse_values(lexemes: Iterator[str]) -> Iterator[str]:
    """Yield the values in parentheses; an empty value between two separators is yielded too."""
    if (lexeme := next(lexemes)) != "(":
        raise _parse_error(f"found '{lexeme}' expected: '('")
    last_lexeme, lexeme = ",", next(lexemes)
    while lexeme != ")":
        if lexeme in _OPERATOR_TOKENS and lexeme != ",":
            raise _parse_error(f"found '{lexeme}', expected: ',', ')' or identifier")
        if (lexeme == ",") == (last_lexeme == ","):
            if lexeme != ",":
                raise _parse_error(f"found '{lexeme}', expected: ',' or ')'")
            yield ""
        if lexeme != ",":
            yield lexeme
        last_lexeme, lexeme = lexeme, next(lexemes)
    if last_lexeme == ",":
        yield ""


def _check_operator_values(key: str, operator: str, values: tuple[str, ...]) -> None:
    for index, value in enumerate(values):
        if value in _OPERATOR_TOKENS and value:
            raise _parse_error(f"found '{value}', expected: identifier")
        if operator in "<>" and not _SELECTOR_INTEGER.fullmatch(value):
            problem = "for 'Gt', 'Lt' operators, the value must be an integer"
            raise _parse_error(f'values[{index}]: Invalid value: "{value}": {problem}')
        for problem in rules.label_value_errors(value):
            raise _parse_error(f'values[{index}][{key}]: Invalid value: "{value}": {problem}')


def _parse_error(problem: str) -> StatusError:
    return bad_request(f"unable to parse requirement: {problem}")


_TERM_PATTERN: Final = re.compile(r"(.*?)(!=|==|=)(.*)", re.DOTALL)
#: The terms of a field selector; an escaped comma does not separate terms.
_TERMS_PATTERN: Final = re.compile(r"(?:[^\\,]|\\.?)+", re.DOTALL)
_ESCAPED_PATTERN: Final = re.compile(r"\\([\\,=])")
_UNESCAPED_PATTERN: Final = re.compile(r"(?:[^\\,=]|\\[\\,=])*")

#: Selectable fields by kind, besides name and namespace.
_SELECTABLE_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    scheme.POD: (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.nominatedNodeName",
        "status.phase",
        "status.podIP",
    ),
    scheme.NODE: ("spec.unschedulable",),
    scheme.JOB: ("status.successful",),
    scheme.NAMESPACE: ("status.phase",),
    scheme.SECRET: ("type",),
    scheme.SERVICE: ("spec.clusterIP", "spec.type"),
    scheme.REPLICATION_CONTROLLER: ("status.replicas",),
    scheme.EVENT: (
        *(f"involvedObject.{field}" for field in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion")),
        *("involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"),
    ),
}

#: The names in `events.k8s.io`. Source: Kubernetes's pkg/apis/events/v1/conversion.go.
_EVENT_FIELDS: Final[Mapping[str, str]] = {
    field.replace("involvedObject", "regarding").replace("reportingComponent", "reportingController"): field
    for field in _SELECTABLE_FIELDS[scheme.EVENT]
}

#: The values of absent fields.
_ABSENT_FIELD_VALUES: Final = {
    "spec.hostNetwork": "false",
    "spec.type": "ClusterIP",
    "spec.unschedulable": "false",
    "status.replicas": "0",
    "status.succeeded": "0",
}


class LabelTerms:
    """The requirements of a label selector, grouped so that one set operation checks many of them.

    A selector may have thousands of terms and is compared with every object of a list.
    """

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self.is_empty = not requirements
        self._required_labels: set[tuple[str, str]] = set()
        self._excluded_labels: set[tuple[str, str]] = set()
        self._required_keys: set[str] = set()
        self._excluded_keys: set[str] = set()
        self._other_requirements: list[Requirement] = []
        for each in requirements:
            match each.operator, len(each.values):
                case ["In", 1]:
                    self._required_labels.add((each.key, each.values[0]))
                case ["NotIn", _]:
                    self._excluded_labels.update((each.key, value) for value in each.values)
                case ["Exists", _]:
                    self._required_keys.add(each.key)
                case ["DoesNotExist", _]:
                    self._excluded_keys.add(each.key)
                case _:
                    self._other_requirements.append(each._replace(values=tuple(dict.fromkeys(each.values))))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet all requirements of the selector."""
        keys, items = labels.keys(), labels.items()
        return (
            self._required_labels <= items
            and self._required_keys <= keys
            and self._excluded_keys.isdisjoint(keys)
            and self._excluded_labels.isdisjoint(items)
            and all(each.matches(labels) for each in self._other_requirements)
        )


class Selection(NamedTuple):
    """The label and field selectors of a request; an object must match all of them."""

    labels: LabelTerms
    #: The field terms: path, whether the field must equal the value (or else differ), and the value.
    fields: tuple[tuple[str, bool, str], ...]

    @property
    def selects_all(self) -> bool:
        """Whether every object is selected."""
        return self.labels.is_empty and not self.fields

    def accepts(self, obj: Obj) -> bool:
        """Return whether the selectors match an object."""
        if not self.labels.is_empty and not self.labels.matches(obj["metadata"].get("labels") or {}):
            return False
        return all((_field_value(obj, path) == value) is is_equality for path, is_equality, value in self.fields)


def parse_selection(request: ApiRequest, served_kind: ServedKind) -> Selection:
    """Parse the label and field selectors of a request.

    Raises StatusError if a selector is malformed, or names a field that the kind does not support.
    """
    labels = LabelTerms(parse_label_selector(request.query.get("labelSelector", "")))
    return Selection(labels, tuple(_field_terms(request.query.get("fieldSelector", ""), served_kind)))


def selected_name(request: ApiRequest) -> str:
    """Return the object name that the field selector of a request requires; '' if it requires no valid name."""
    for term in _TERMS_PATTERN.findall(request.query.get("fieldSelector", "")):
        match = _TERM_PATTERN.fullmatch(term)
        if match is not None and match[1] == "metadata.name" and match[2] != "!=":
            name = _ESCAPED_PATTERN.sub(r"\1", match[3])
            return "" if rules.path_segment_errors(name) else name
    return ""


def _field_terms(text: str, served_kind: ServedKind) -> Iterator[tuple[str, bool, str]]:
    known_fields = _selectable_field_paths(served_kind)
    for term in _TERMS_PATTERN.findall(text):
        match = _TERM_PATTERN.fullmatch(term)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        if _UNESCAPED_PATTERN.fullmatch(match[3]) is None:
            raise bad_request(f"invalid field selector: invalid escape sequence or unescaped character: {match[3]}")
        if match[1] not in known_fields:
            raise bad_request(f"field label not supported: {match[1]}")
        yield known_fields[match[1]], match[2] != "!=", _ESCAPED_PATTERN.sub(r"\1", match[3])


def _selectable_field_paths(served_kind: ServedKind) -> Mapping[str, str]:
    if served_kind.group == "events.k8s.io":
        kind_fields = _EVENT_FIELDS
    else:
        kind_fields = {
            name: name for name in _SELECTABLE_FIELDS.get(served_kind.constant, served_kind.selectable_fields)
        }
    return {"metadata.name": "metadata.name", "metadata.namespace": "metadata.namespace", **kind_fields}


def _field_value(obj: Obj, path: str) -> str:
    value: Any = obj
    if path == "status.successful" and group_kind(obj) == scheme.JOB:
        path = "status.succeeded"
    if path == "source":
        # Source: Kubernetes's pkg/registry/core/event/strategy.go: newer clients omit the older field.
        return _field_value(obj, "source.component") or _field_value(obj, "reportingComponent")
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return _ABSENT_FIELD_VALUES.get(path, "")
    return str(value)
