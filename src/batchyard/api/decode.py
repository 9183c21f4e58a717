"""From an object as somebody wrote it to the object as batchyard holds it, or to all that is wrong with it.

In this order: its kind is known; its structure is sound in the version it is written in, and completed there; it is
converted to the storage version, and completed there; defaults of webhooks; rules between fields.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from batchyard.api import conversion, defaults, validation, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj, annotation, label
from batchyard.api.schema import settle
from batchyard.api.schema.violations import STRICT_SHARE, nearest, shown
from batchyard.api.scheme import CONFIGURATION, JOB, JOB_SET, KINDS, ServedKind, find_kind
from batchyard.api.validation.metadata import metadata_faults

DEFAULT_NAMESPACE: Final = "default"
#: Kinds of files that have no metadata, and what is one is called among objects.
_NAMED: Final = {CONFIGURATION: "kueue"}


class Decoded(NamedTuple):
    """The object in its storage version, or None and its faults."""

    obj: dict[str, Any] | None
    faults: list[FieldError]
    warnings: list[str]


def decode(obj: Any, namespace: str = DEFAULT_NAMESPACE) -> Decoded:
    """Decode one new object; `namespace` is that of objects which should have one and name none.

    The object given is not changed. The result is complete, in the storage version, and keeps every rule of its kind.
    """
    read = complete(obj, namespace)
    if read.obj is None:
        return read
    faults = validation.validate(read.obj)
    return Decoded(None if faults else read.obj, faults, read.warnings)


def complete(obj: Any, namespace: str, sound: Obj | None = None) -> Decoded:
    """The same without the rules between fields: a new object and one that takes another's place keep not the same.

    `sound` is one of the kind in its storage version that was decoded before: of what is the very same in both, what
    was found then still holds.
    """
    found = _kind_of(obj)
    if isinstance(found, list):
        return Decoded(None, found, [])
    info, version = found
    if info.constant in _NAMED and "metadata" not in obj:
        obj = {**obj, "metadata": {"name": _NAMED[info.constant]}}
    warnings = [info.deprecation] if version in info.deprecated_versions else []
    if info.is_idle:
        warnings.append(f"{info.kind} objects are kept, and nothing is done for them yet")
    settled = settle(info, version, obj, sound)
    if settled.obj is None:
        return Decoded(None, [*settled.faults, *_metadata_faults(obj, settled.faults)], warnings)
    stored = settled.obj
    if version != info.storage_version:
        settled = settle(info, info.storage_version, conversion.to_storage(stored))
        if settled.obj is None:
            return Decoded(None, settled.faults, warnings)
        stored = settled.obj
    stored = _placed(info, stored, namespace, warnings)
    warnings += _queue_warnings(info, stored)
    return Decoded(defaults.with_defaults(stored), [], warnings)


def _kind_of(obj: Any) -> tuple[ServedKind, str] | list[FieldError]:
    """The kind and version of an object, or why they are not known."""
    if not isinstance(obj, Mapping):
        return [FieldError("", f"{shown(obj)} is no object", "write fields: apiVersion, kind, metadata, spec")]
    api_version, kind = obj.get("apiVersion"), obj.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str) or not api_version or not kind:
        return _kind_faults(api_version, kind)
    info = find_kind(api_version, kind)
    return (info, api_version.rpartition("/")[2]) if info else [_unknown_kind(api_version, kind)]


def _kind_faults(api_version: object, kind: object) -> list[FieldError]:
    """What is wrong where apiVersion and kind do not both hold a text."""
    wanted = {
        "apiVersion": (api_version, _api_version_remedy(kind)),
        "kind": (kind, "set it to the kind of the object, such as Job"),
    }
    faults = []
    for field, (value, remedy) in wanted.items():
        if value is None or value == "":
            faults.append(FieldError(field, "Required value", remedy))
        elif not isinstance(value, str):
            faults.append(FieldError(field, f"Invalid value: {shown(value)}: must be a string", remedy))
    return faults


def _api_version_remedy(kind: object) -> str:
    """The apiVersion of a kind of that name, or an example."""
    info = _kinds_by_name().get(str(kind))
    return f"set it to {info.api_version}" if info else "set it to group/version, such as batch/v1"


def _unknown_kind(api_version: str, kind: str) -> FieldError:
    """The fault of a kind that is not known, or not in that version, with the nearest that is."""
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
    """The object in a namespace if its kind has namespaces, else in none, as the API server places it."""
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
    """The warning of a job whose queue is an annotation: Kueue reads the label alone."""
    queue = annotation(obj, well_known.QUEUE_NAME) if info.constant in {JOB, JOB_SET} else None
    if queue and not label(obj, well_known.QUEUE_NAME):
        yield (
            f"metadata.annotations[{well_known.QUEUE_NAME}]: the annotation is ignored, so the {info.kind} has no "
            f"queue; set the label {well_known.QUEUE_NAME}: {queue}"
        )


def _metadata_faults(obj: Obj, faults: list[FieldError]) -> list[FieldError]:
    """The faults of sound metadata on an object whose structure is not, so that all are told at once."""
    if any(fault.path.startswith("metadata") for fault in faults):
        return []
    return list(metadata_faults(obj))
