"""Decoding of user-supplied objects into stored form, with all faults at once.

The steps, in order: look up the kind; validate the structure in the given version and fill in defaults; convert to the
storage version and fill in its defaults; apply the webhooks' defaults; validate rules between fields.
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
    for field, (value, remedy) in wanted.items():
        if value is None or value == "":
            faults.append(FieldError(field, "Required value", remedy))
        elif not isinstance(value, str):
            faults.append(FieldError(field, f"Invalid value: {shown(value)}: must be a string", remedy))
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
