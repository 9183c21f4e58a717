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
_TOKEN: Final = re.compile(r"==|!=|[=!<>(),]|[^\s=!<>(),]++")
_SIGNS: Final = frozenset({"", "==", "!=", *"=!<>(),"})
_OF_ONE: Final = {"=": "In", "==": "In", "!=": "NotIn", ">": "Gt", "<": "Lt"}
_OF_MANY: Final = {"in": "In", "notin": "NotIn"}
_ENDS: Final = ("", ",")
_SELECTOR_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_OPERATORS: Final = "in, notin, =, ==, !=, gt, lt"


def requirements_of(text: str) -> tuple[Requirement, ...]:
    """Parse the requirements of a label selector. Raises Refused if it is malformed."""
    words = iter([*_TOKEN.findall(text), ""])
    found: list[Requirement] = []
    word = next(words)
    while word:
        requirement, end = _requirement(word, words)
        if end not in _ENDS:
            raise bad_request(f"found '{end}', expected: ',' or 'end of string'")
        found.append(requirement)
        if not end:
            break
        word = next(words)
        if word in _SIGNS and word != "!":
            raise bad_request(f"found '{word}', expected: identifier after ','")
    return tuple(found)


def _requirement(word: str, words: Iterator[str]) -> tuple[Requirement, str]:
    """Parse a requirement that starts with a word; return it and the word after it."""
    is_denied = word == "!"
    key = next(words) if is_denied else word
    if key in _SIGNS:
        raise _unread(f"found '{key}', expected: identifier")
    for problem in rules.qualified_name(key):
        raise _unread(f'Invalid value: "{key}": {problem}')
    operator = next(words)
    if is_denied or operator in _ENDS:
        return Requirement(key, "DoesNotExist" if is_denied else "Exists", ()), operator
    if operator in _OF_MANY:
        values = tuple(_values(words))
        end = next(words)
    elif operator in _OF_ONE:
        value = next(words)
        end = value if value in _ENDS else next(words)
        values = ("" if value in _ENDS else value,)
    else:
        raise _unread(f"found '{operator}', expected: {_OPERATORS}")
    _check_values(key, operator, values)
    return Requirement(key, _OF_MANY.get(operator) or _OF_ONE[operator], values), end


def _values(words: Iterator[str]) -> Iterator[str]:
    """Yield the values in parentheses; an empty value between separators counts too."""
    if (word := next(words)) != "(":
        raise _unread(f"found '{word}' expected: '('")
    before, word = ",", next(words)
    while word != ")":
        if word in _SIGNS and word != ",":
            raise _unread(f"found '{word}', expected: ',', ')' or identifier")
        if (word == ",") == (before == ","):
            if word != ",":
                raise _unread(f"found '{word}', expected: ',' or ')'")
            yield ""
        if word != ",":
            yield word
        before, word = word, next(words)
    if before == ",":
        yield ""


def _check_values(key: str, operator: str, values: tuple[str, ...]) -> None:
    for number, value in enumerate(values):
        if value in _SIGNS and value:
            raise _unread(f"found '{value}', expected: identifier")
        if operator in "<>" and not _SELECTOR_INTEGER.fullmatch(value):
            problem = "for 'Gt', 'Lt' operators, the value must be an integer"
            raise _unread(f'values[{number}]: Invalid value: "{value}": {problem}')
        for problem in rules.label_value(value):
            raise _unread(f'values[{number}][{key}]: Invalid value: "{value}": {problem}')


def _unread(problem: str) -> StatusError:
    return bad_request(f"unable to parse requirement: {problem}")


_TERM: Final = re.compile(r"(.*?)(!=|==|=)(.*)", re.DOTALL)
#: The terms of a field selector; an escaped comma does not separate terms.
_TERMS: Final = re.compile(r"(?:[^\\,]|\\.?)+", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\([\\,=])")
_UNESCAPED: Final = re.compile(r"(?:[^\\,=]|\\[\\,=])*")

#: Selectable fields by kind, besides name and namespace.
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
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
_FIELDS_OF_EVENTS: Final[Mapping[str, str]] = {
    field.replace("involvedObject", "regarding").replace("reportingComponent", "reportingController"): field
    for field in _FIELDS[scheme.EVENT]
}

#: The values of absent fields.
_ABSENT_VALUES: Final = {
    "spec.hostNetwork": "false",
    "spec.type": "ClusterIP",
    "spec.unschedulable": "false",
    "status.replicas": "0",
    "status.succeeded": "0",
}


class LabelTerms:
    """The requirements of a label selector, grouped so that one set operation checks all of the same kind.

    A selector may have thousands of terms and is compared with every object of a list.
    """

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self.is_empty = not requirements
        self._equal: set[tuple[str, str]] = set()
        self._unequal: set[tuple[str, str]] = set()
        self._present: set[str] = set()
        self._absent: set[str] = set()
        self._others: list[Requirement] = []
        for each in requirements:
            match each.operator, len(each.values):
                case "In", 1:
                    self._equal.add((each.key, each.values[0]))
                case "NotIn", _:
                    self._unequal.update((each.key, value) for value in each.values)
                case "Exists", _:
                    self._present.add(each.key)
                case "DoesNotExist", _:
                    self._absent.add(each.key)
                case _:
                    self._others.append(each._replace(values=tuple(dict.fromkeys(each.values))))

    def match(self, labels: Mapping[str, str]) -> bool:
        """Report whether labels meet all requirements."""
        keys, items = labels.keys(), labels.items()
        return (
            self._equal <= items
            and self._present <= keys
            and self._absent.isdisjoint(keys)
            and self._unequal.isdisjoint(items)
            and all(each.matches(labels) for each in self._others)
        )


class Selection(NamedTuple):
    """Label and field selectors, all of which must match."""

    labels: LabelTerms
    fields: tuple[tuple[str, bool, str], ...]

    @property
    def is_all(self) -> bool:
        """Whether every object is selected."""
        return self.labels.is_empty and not self.fields

    def accepts(self, obj: Obj) -> bool:
        """Report whether an object is selected."""
        if not self.labels.is_empty and not self.labels.match(obj["metadata"].get("labels") or {}):
            return False
        return all((_field(obj, path) == value) is wanted for path, wanted, value in self.fields)


def selection_of(request: ApiRequest, info: ServedKind) -> Selection:
    """Parse the selectors of a request for a kind. Raises Refused if they are malformed."""
    labels = LabelTerms(requirements_of(request.query.get("labelSelector", "")))
    return Selection(labels, tuple(_field_terms(request.query.get("fieldSelector", ""), info)))


def name_selected(request: ApiRequest) -> str:
    """Return the name that the field selector requires; '' if it does not determine one."""
    for term in _TERMS.findall(request.query.get("fieldSelector", "")):
        found = _TERM.fullmatch(term)
        if found is not None and found[1] == "metadata.name" and found[2] != "!=":
            name = _ESCAPED.sub(r"\1", found[3])
            return "" if rules.path_segment(name) else name
    return ""


def _field_terms(text: str, info: ServedKind) -> Iterator[tuple[str, bool, str]]:
    known = _known_fields(info)
    for term in _TERMS.findall(text):
        found = _TERM.fullmatch(term)
        if found is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        if _UNESCAPED.fullmatch(found[3]) is None:
            raise bad_request(f"invalid field selector: invalid escape sequence or unescaped character: {found[3]}")
        if found[1] not in known:
            raise bad_request(f"field label not supported: {found[1]}")
        yield known[found[1]], found[2] != "!=", _ESCAPED.sub(r"\1", found[3])


def _known_fields(info: ServedKind) -> Mapping[str, str]:
    """Return the selectable fields of a kind: names in selectors to paths in stored objects."""
    if info.group == "events.k8s.io":
        own = _FIELDS_OF_EVENTS
    else:
        own = {name: name for name in _FIELDS.get(info.constant, info.selectable_fields)}
    return {"metadata.name": "metadata.name", "metadata.namespace": "metadata.namespace", **own}


def _field(obj: Obj, path: str) -> str:
    """Return the value of a field as selectors compare it."""
    value: Any = obj
    if path == "status.successful" and group_kind(obj) == scheme.JOB:
        path = "status.succeeded"
    if path == "source":
        # Source: Kubernetes's pkg/registry/core/event/strategy.go: newer clients omit the older field.
        return _field(obj, "source.component") or _field(obj, "reportingComponent")
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return _ABSENT_VALUES.get(path, "")
    return str(value)
