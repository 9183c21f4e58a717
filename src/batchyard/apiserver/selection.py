"""Which objects a list or a watch is about: label and field selectors as the query has them.

Source: k8s.io/apimachinery, pkg/fields/selector.go.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Obj, group_kind
from batchyard.api.scheme import ServedKind
from batchyard.api.selectors import Requirement
from batchyard.api.validation import names
from batchyard.apiserver.label_selectors import requirements_of
from batchyard.apiserver.request import Request, bad_request

_TERM: Final = re.compile(r"(.*?)(!=|==|=)(.*)", re.DOTALL)
#: The terms of a field selector; what a backslash escapes ends none of them.
_TERMS: Final = re.compile(r"(?:[^\\,]|\\.?)+", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\([\\,=])")
_UNESCAPED: Final = re.compile(r"(?:[^\\,=]|\\[\\,=])*")

#: The fields of kinds that can be selected by, beside name and namespace.
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

#: How `events.k8s.io` names them. Source: Kubernetes's pkg/apis/events/v1/conversion.go.
_FIELDS_OF_EVENTS: Final[Mapping[str, str]] = {
    field.replace("involvedObject", "regarding").replace("reportingComponent", "reportingController"): field
    for field in _FIELDS[scheme.EVENT]
}

#: What fields are that are not told.
_UNTOLD: Final = {
    "spec.hostNetwork": "false",
    "spec.type": "ClusterIP",
    "spec.unschedulable": "false",
    "status.replicas": "0",
    "status.succeeded": "0",
}


class LabelTerms:
    """The requirements of a label selector, sorted so that one operation checks all of the same kind.

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
        """Whether labels meet all requirements."""
        keys, items = labels.keys(), labels.items()
        return (
            self._equal <= items
            and self._present <= keys
            and self._absent.isdisjoint(keys)
            and self._unequal.isdisjoint(items)
            and all(each.matches(labels) for each in self._others)
        )


class Selection(NamedTuple):
    """Label selectors and field selectors, all of which must hold."""

    labels: LabelTerms
    fields: tuple[tuple[str, bool, str], ...]

    @property
    def is_all(self) -> bool:
        """Whether every object is selected."""
        return self.labels.is_empty and not self.fields

    def accepts(self, obj: Obj) -> bool:
        """Whether an object is selected."""
        if not self.labels.is_empty and not self.labels.match(obj["metadata"].get("labels") or {}):
            return False
        return all((_field(obj, path) == value) is wanted for path, wanted, value in self.fields)


def selection_of(request: Request, info: ServedKind) -> Selection:
    """What a request selects of a kind; Refused if it cannot be read."""
    labels = LabelTerms(requirements_of(request.query.get("labelSelector", "")))
    return Selection(labels, tuple(_field_terms(request.query.get("fieldSelector", ""), info)))


def name_selected(request: Request) -> str:
    """The one name that objects must have to be selected; nothing where they may have others."""
    for term in _TERMS.findall(request.query.get("fieldSelector", "")):
        found = _TERM.fullmatch(term)
        if found is not None and found[1] == "metadata.name" and found[2] != "!=":
            name = _ESCAPED.sub(r"\1", found[3])
            return "" if names.path_segment(name) else name
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
    """The names that a kind's fields have for who selects by them, each with its place in what is stored."""
    if info.group == "events.k8s.io":
        own = _FIELDS_OF_EVENTS
    else:
        own = {name: name for name in _FIELDS.get(info.constant, info.selectable_fields)}
    return {"metadata.name": "metadata.name", "metadata.namespace": "metadata.namespace", **own}


def _field(obj: Obj, path: str) -> str:
    """The value of a field as selectors compare it."""
    value: Any = obj
    if path == "status.successful" and group_kind(obj) == scheme.JOB:
        path = "status.succeeded"
    if path == "source":
        # Source: Kubernetes's pkg/registry/core/event/strategy.go: newer clients leave the older field out.
        return _field(obj, "source.component") or _field(obj, "reportingComponent")
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return _UNTOLD.get(path, "")
    return str(value)
