"""Manifests: reads files of objects and reports every fault with its place.

A fault prints as `file:document kind/name: field.path: problem; remedy`. Documents are counted from 1, without empty
ones.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

from batchyard.api import conversion, defaults, validation, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, annotation, label
from batchyard.api.schema import settle
from batchyard.api.schema.violations import STRICT_SHARE, nearest, shown
from batchyard.api.scheme import CONFIGURATION, JOB, JOB_SET, KINDS, ServedKind, find_kind
from batchyard.api.validation.rules import metadata_faults
from batchyard.api.yaml_documents import Document, read_documents

# --- decode ---
#
# Decoding of user-supplied objects into stored form, with all faults at once.
#
# The steps, in order: look up the kind; validate the structure in the given version and fill in defaults; convert to
# the storage version and fill in its defaults; apply the webhooks' defaults; validate rules between fields.


DEFAULT_NAMESPACE: Final = "default"
#: Kinds of files without metadata, each with the name that its object gets.
_NAMED: Final = {CONFIGURATION: "kueue"}


class DecodedObject(NamedTuple):
    """The object in its storage version and its warnings; or None and its faults."""

    obj: dict[str, Any] | None
    faults: list[FieldError]
    warnings: list[str]


def decode(obj: Any, namespace: str = DEFAULT_NAMESPACE) -> DecodedObject:
    """Decode a new object; `namespace` is used for namespaced objects that name none.

    The given object is not changed. The result is complete, in the storage version, and valid.
    """
    read = complete(obj, namespace)
    if read.obj is None:
        return read
    faults = validation.validate(read.obj)
    return DecodedObject(None if faults else read.obj, faults, read.warnings)


def complete(obj: Any, namespace: str, sound: Obj | None = None) -> DecodedObject:
    """Decode without the rules between fields, because creation and update have different rules.

    `sound` is an object of the kind in its storage version that was decoded before. Parts that are the same Python
    objects in both are not validated again.
    """
    found = _kind_of(obj)
    if isinstance(found, list):
        return DecodedObject(None, found, [])
    info, version = found
    if info.constant in _NAMED and "metadata" not in obj:
        obj = {**obj, "metadata": {"name": _NAMED[info.constant]}}
    warnings = [info.deprecation] if version in info.deprecated_versions else []
    if info.is_idle:
        warnings.append(f"{info.kind} objects are kept, and nothing is done for them yet")
    settled = settle(info, version, obj, sound)
    if settled.obj is None:
        return DecodedObject(None, [*settled.faults, *_metadata_faults(obj, settled.faults)], warnings)
    stored = settled.obj
    if version != info.storage_version:
        settled = settle(info, info.storage_version, conversion.to_storage(stored))
        if settled.obj is None:
            return DecodedObject(None, settled.faults, warnings)
        stored = settled.obj
    stored = _placed(info, stored, namespace, warnings)
    warnings += _queue_warnings(info, stored)
    return DecodedObject(defaults.with_defaults(stored), [], warnings)


def _kind_of(obj: Any) -> tuple[ServedKind, str] | list[FieldError]:
    """Return the kind and version of an object, or the faults if they are unknown."""
    if not isinstance(obj, Mapping):
        return [FieldError("", f"{shown(obj)} is no object", "write fields: apiVersion, kind, metadata, spec")]
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str) or not api_version or not kind:
        return _kind_faults(api_version, kind)
    info = find_kind(api_version, kind)
    return (info, api_version.rpartition("/")[2]) if info else [_unknown_kind(api_version, kind)]


def _kind_faults(api_version: object, kind: object) -> list[FieldError]:
    """Return the faults if apiVersion or kind is not a non-empty string."""
    wanted = {
        "apiVersion": (api_version, _api_version_remedy(kind)),
        "kind": (kind, "set it to the kind of the object, such as Job"),
    }
    faults = []
    for name, (value, remedy) in wanted.items():
        if value is None or value == "":
            faults.append(FieldError(name, "Required value", remedy))
        elif not isinstance(value, str):
            faults.append(FieldError(name, f"Invalid value: {shown(value)}: must be a string", remedy))
    return faults


def _api_version_remedy(kind: object) -> str:
    """Return the remedy for a missing apiVersion: that of the kind with this name, or an example."""
    info = _kinds_by_name().get(str(kind))
    return f"set it to {info.api_version}" if info else "set it to group/version, such as batch/v1"


def _unknown_kind(api_version: str, kind: str) -> FieldError:
    """Return the fault of an unknown kind or version, with the nearest known one."""
    info = _kinds_by_name().get(kind)
    if info is not None:
        served = " or ".join(info.api_version_for(version) for version in reversed(info.versions))
        return FieldError("apiVersion", f"there is no kind {shown(kind)} in {shown(api_version)}", f"use {served}")
    close = nearest(kind, _kinds_by_name(), STRICT_SHARE)
    if close:
        remedy = f"did you mean {close} ({_kinds_by_name()[close].api_version})?"
    else:
        remedy = "remove the document, or apply it elsewhere"
    return FieldError("kind", f"the kind {shown(kind)} of {shown(api_version)} is not known", remedy)


@cache
def _kinds_by_name() -> dict[str, ServedKind]:
    return {info.kind: info for info in KINDS}


def _placed(info: ServedKind, obj: dict[str, Any], namespace: str, warnings: list[str]) -> dict[str, Any]:
    """Set or remove the namespace according to the scope of the kind, as the API server does."""
    metadata = obj["metadata"]
    given = metadata.get("namespace")
    if info.namespaced:
        return obj if given else {**obj, "metadata": {**metadata, "namespace": namespace}}
    if given is None:
        return obj
    if given:
        warnings.append(f"metadata.namespace: {info.kind} has no namespace; {given} is ignored")
    return {**obj, "metadata": {key: value for key, value in metadata.items() if key != "namespace"}}


def _queue_warnings(info: ServedKind, obj: Obj) -> Iterator[str]:
    """Yield a warning for a job whose queue is set by an annotation: Kueue reads only the label."""
    queue = annotation(obj, well_known.QUEUE_NAME) if info.constant in {JOB, JOB_SET} else None
    if queue and not label(obj, well_known.QUEUE_NAME):
        yield (
            f"metadata.annotations[{well_known.QUEUE_NAME}]: the annotation is ignored, so the {info.kind} has no "
            f"queue; set the label {well_known.QUEUE_NAME}: {queue}"
        )


def _metadata_faults(obj: Obj, faults: list[FieldError]) -> list[FieldError]:
    """Return the faults of valid metadata on an otherwise invalid object, so that all faults are reported at once."""
    if any(fault.path.startswith("metadata") for fault in faults):
        return []
    return list(metadata_faults(obj))


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
        kind, name = _written_kind(obj), _name_of(obj)
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
        return _written_kind(document.value), _name_of(document.value)
    kind, name = _KIND_LINE.search(document.text), _NAME_LINE.search(document.text)
    return kind[1] if kind else "", name[1] if name else ""


def _written_kind(obj: Any) -> str:
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
