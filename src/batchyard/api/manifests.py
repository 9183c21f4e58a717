"""Manifests: reads files of objects and reports every fault with its place.

A fault prints as `file:document kind/name: field.path: problem; remedy`. Documents are counted from 1, without empty
ones.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from batchyard.api.decode import decode
from batchyard.api.errors import FieldError
from batchyard.api.schema.violations import shown
from batchyard.api.scheme import find_kind
from batchyard.api.yaml_documents import Document, read_documents

_KIND_LINE: Final = re.compile(r"^kind:[ \t]*[\"']?(\w+)", re.MULTILINE)
#: Each line has only one possible match, which prevents catastrophic backtracking.
_NAME_LINE: Final = re.compile(
    r"^metadata:.*\n(?:[ \t]*\n|[ \t]+[^ \t\n].*\n)*?[ \t]+name:[ \t]*[\"']?([\w.-]+)", re.MULTILINE
)


class ManifestFault(NamedTuple):
    """One fault of one document. `kind` and `name` are empty if the document does not contain them."""

    source: str
    document: int
    kind: str
    name: str
    error: FieldError

    def __str__(self) -> str:
        """`file:document kind/name: field.path: problem; remedy`, on one line."""
        who = f" {_word(self.kind)}/{_word(self.name)}" if self.kind or self.name else ""
        return _on_one_line(f"{self.source}:{self.document}{who}: {self.error}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """An object, complete and in its storage version, with its source."""

    obj: dict[str, Any]
    source: str
    document: int
    #: The path in the document if it is an item of a list, else ''.
    at: str = ""

    def fault(self, error: FieldError) -> ManifestFault:
        """Return a fault of this object, found later."""
        return ManifestFault(self.source, self.document, self.obj["kind"], _name_of(self.obj), error)


class InvalidDocument(NamedTuple):
    """An invalid object as written, with its source."""

    value: Any
    source: str
    document: int
    at: str


@dataclass(slots=True)
class Manifests:
    """The result of reading: valid objects in order, the faults of the others, and warnings about valid ones."""

    objects: list[Manifest] = field(default_factory=list)
    faults: list[ManifestFault] = field(default_factory=list)
    odd: list[ManifestFault] = field(default_factory=list)
    #: The invalid objects, as written.
    broken: list[InvalidDocument] = field(default_factory=list)
    #: By file and number, the text of each document and its first line number.
    texts: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)

    @property
    def warnings(self) -> list[str]:
        """The warnings as lines of text."""
        return list(map(str, self.odd))


def read_manifests(sources: Iterable[tuple[str, str]]) -> Manifests:
    """Read texts, each with a name to show. Invalid input is reported as faults and never raises.

    Lists are read as the objects in them.
    """
    manifests = Manifests()
    for source, text in sources:
        for document in read_documents(text):
            _read_document(source, document, manifests)
    return manifests


def _read_document(source: str, document: Document, manifests: Manifests) -> None:
    """Add the objects of a document, or their faults."""
    number = document.number
    manifests.texts[source, number] = document.text, document.line
    if document.faults:
        kind, name = _kind_and_name(document)
        manifests.faults += [ManifestFault(source, number, kind, name, error) for error in document.faults]
        if document.value is None:
            return
    for obj, place in _objects(document.value):
        decoded = decode(obj)
        if decoded.obj is not None and not document.faults:
            manifests.objects.append(Manifest(decoded.obj, source, number, place))
        else:
            manifests.broken.append(InvalidDocument(obj, source, number, place))
        if decoded.obj is not None and not decoded.warnings:
            continue
        kind, name = _kind_of(obj), _name_of(obj)
        for error in decoded.faults:
            placed = error._replace(path=f"{place}.{error.path}" if place and error.path else place or error.path)
            manifests.faults.append(ManifestFault(source, number, kind, name, placed))
        for warning in decoded.warnings:
            manifests.odd.append(ManifestFault(source, number, kind, name, FieldError(place, warning)))


def _objects(value: Any) -> Iterator[tuple[Any, str]]:
    """Yield the objects of a document, each with its path if it is an item of a list."""
    if not _is_list(value):
        yield value, ""
        return
    of = (
        {"apiVersion": value["apiVersion"], "kind": value["kind"].removesuffix("List")}
        if value["kind"] != "List"
        else {}
    )
    for index, item in enumerate(value["items"]):
        yield {**of, **item} if isinstance(item, Mapping) else item, f"items[{index}]"


def _is_list(value: Any) -> bool:
    """Report whether a document is a `List`, or a list of one kind as the API returns it."""
    if not isinstance(value, Mapping) or not isinstance(value.get("items"), list):
        return False
    kind, api_version = value.get("kind"), value.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(api_version, str):
        return False
    return kind == "List" or (kind.endswith("List") and find_kind(api_version, kind.removesuffix("List")) is not None)


def _kind_and_name(document: Document) -> tuple[str, str]:
    """Return the kind and name of a document, from its value or else from its text."""
    if document.value is not None:
        return _kind_of(document.value), _name_of(document.value)
    kind, name = _KIND_LINE.search(document.text), _NAME_LINE.search(document.text)
    return kind[1] if kind else "", name[1] if name else ""


def _kind_of(obj: Any) -> str:
    kind = obj.get("kind") if isinstance(obj, Mapping) else None
    return kind if isinstance(kind, str) else ""


def _name_of(obj: Any) -> str:
    """Return the name of an object, or its generateName prefix."""
    metadata = obj.get("metadata") if isinstance(obj, Mapping) else None
    if not isinstance(metadata, Mapping):
        return ""
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if isinstance(name, str) and name:
        return name
    if isinstance(name, int | float):
        return shown(name)
    return f"{prefix}*" if isinstance(prefix, str) and prefix else ""


def _word(text: str) -> str:
    """Return a kind or name that is one word; `?` for any other."""
    return text if text and text.isprintable() and " " not in text else "?"


def _on_one_line(text: str) -> str:
    """Escape line breaks and other non-printable characters."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
