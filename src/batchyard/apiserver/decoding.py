"""Decoding of objects in requests: defaulted, in the storage version, checked against the path.

Source of the messages: k8s.io/apiserver, pkg/endpoints/handlers/{create,update,patch,rest}.go.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.decode import DecodedObject
from batchyard.api.errors import InvalidObject
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.yaml_documents import FAULTS_MAX
from batchyard.apiserver.bodies import Body
from batchyard.apiserver.merge_schema import MergeSchema
from batchyard.apiserver.options import IGNORE, STRICT, WriteOptions
from batchyard.apiserver.request import StatusError, bad_request
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.status_errors import invalid

# --- strict ---
#
# Unknown fields: pruned, and reported according to `fieldValidation`.
#
# Source: k8s.io/apiserver, pkg/endpoints/handlers/{create,update,patch,rest}.go.


class Pruned(NamedTuple):
    """A value without unknown fields, and the errors of strict decoding about them."""

    value: Any
    faults: Sequence[str]


def pruned(value: Any, shape: MergeSchema) -> Pruned:
    """Return a value without the fields that its shape lacks; the value itself if it has none."""
    faults: list[str] = []
    return Pruned(_pruned(value, shape, "", faults), faults)


def _pruned(value: Any, shape: MergeSchema, path: str, faults: list[str]) -> Any:
    if isinstance(value, Mapping):
        return _mapping_pruned(value, shape, path, faults)
    if not isinstance(value, list):
        return value
    items = [_pruned(item, shape.item, f"{path.removesuffix('.')}[{i}].", faults) for i, item in enumerate(value)]
    return value if all(new is old for new, old in zip(items, value, strict=True)) else items


def _mapping_pruned(value: Mapping[str, Any], shape: MergeSchema, path: str, faults: list[str]) -> Mapping[str, Any]:
    kept, is_same = {}, True
    for name, child in value.items():
        if not shape.knows(name):
            is_same = False
            if len(faults) < FAULTS_MAX:
                faults.append(f'unknown field "{path}{name}"')
            continue
        kept[name] = _pruned(child, shape.below(name), f"{path}{name}.", faults)
        is_same = is_same and kept[name] is child
    return value if is_same else kept


#: Metadata fields that are dropped if empty, as in Kubernetes.
_OMITTED_EMPTY: Final = ("annotations", "finalizers", "labels", "ownerReferences")


class Sent(NamedTuple):
    """A decoded object in the storage version, and the warnings for its sender."""

    obj: dict[str, Any]
    warnings: tuple[str, ...]


def decoded(body: Body, path: ResourcePath, options: WriteOptions, patched_from: Obj | None = None) -> Sent:
    """Decode the object of a body or of a patched object. Raises Refused if it does not fit the path."""
    sent, is_patched = with_kind(body.value, path), patched_from is not None
    # In another version, fields that conversion requires may be absent, so the whole object is checked again.
    is_as_stored = path.version == path.info.storage_version
    found, unknown = _decoded(sent, path, patched_from if is_as_stored else None)
    reported = None if found.obj is not None else path.resource.misfit(sent)
    if reported is not None:
        raise _unreadable(sent, reported, is_patched=is_patched)
    faults = [] if options.validation == IGNORE else [*body.faults, *unknown]
    if faults and options.validation == STRICT:
        raise _unreadable(sent, f"strict decoding error: {', '.join(faults)}", is_patched=is_patched)
    if found.obj is None:
        raise invalid(InvalidObject(found.faults), path, name_of(sent))
    _check_place(found.obj["metadata"], path)
    return Sent(_without_empty(found.obj), (*found.warnings, *faults))


def with_kind(sent: Any, path: ResourcePath) -> dict[str, Any]:
    """Return the object with kind and version of the path. Raises Refused if it has others."""
    if not isinstance(sent, Mapping):
        raise bad_request("the request body is not an object")
    kind, version = sent.get("kind") or path.info.kind, sent.get("apiVersion") or path.api_version
    if kind != path.info.kind:
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {path.info.kind}')
    if version != path.api_version:
        expected = f"the expected API version ({path.api_version})"
        raise bad_request(f"the API version in the data ({version}) does not match {expected}")
    return {**sent, "kind": kind, "apiVersion": version}


def name_of(sent: Mapping[str, Any]) -> str:
    """Return the name in an object that is not yet validated."""
    metadata = sent.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def _decoded(sent: Mapping[str, Any], path: ResourcePath, sound: Obj | None) -> tuple[DecodedObject, Sequence[str]]:
    """Decode an object without its unknown fields; return also the strict decoding errors about them."""
    resource, namespace = path.resource, path.namespace or "default"
    if resource.drops_unknown:
        known = pruned(sent, resource.shape(path.version))
        return resource.strategy.decode(known.value, namespace), known.faults
    found = resource.strategy.decode(sent, namespace, sound)
    if found.obj is not None or not any(fault.problem == "unknown field" for fault in found.faults):
        return found, ()
    known = pruned(sent, resource.shape(path.version))
    return resource.strategy.decode(known.value, namespace), known.faults


def _without_empty(obj: dict[str, Any]) -> dict[str, Any]:
    metadata = obj["metadata"]
    empty = [name for name in _OMITTED_EMPTY if name in metadata and not metadata[name]]
    return with_metadata(obj, **dict.fromkeys(empty)) if empty else obj


def _unreadable(sent: Mapping[str, Any], reported: str, *, is_patched: bool) -> StatusError:
    """Return the error for a value of a wrong type, or for a strict decoding error."""
    if not is_patched:
        kind, version = sent["kind"], sent["apiVersion"].rpartition("/")[2]
        return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {reported}')
    problem = f"Invalid value: {msgspec.json.encode(msgspec.json.encode(sent).decode()).decode()}: {reported}"
    causes = [{"reason": "FieldValueInvalid", "message": problem, "field": "patch"}]
    return StatusError(422, "Invalid", f' "" is invalid: patch: {problem}', {"causes": causes})


def _check_place(metadata: Mapping[str, Any], path: ResourcePath) -> None:
    if path.namespace and metadata.get("namespace") != path.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if path.name and metadata.get("name") != path.name:
        message = f"the name of the object ({metadata.get('name', '')}) does not match"
        raise bad_request(f"{message} the name on the URL ({path.name})")
