"""Requests that change a stored object: a merge patch of the changed fields, or a server-side apply.

A patch names the revision that it is based on, so a concurrent change of another client is a conflict. The status of a
Workload is applied with the field managers that Kueue uses. So Kueue can take over from this client, and this client
from Kueue: the next applier may remove what the last one set. Sources: pkg/workload/patching and pkg/util/client of
Kueue.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api import conversion, scheme
from batchyard.api.meta import Obj
from batchyard.api.scheme import ServedKind
from batchyard.client.resource_paths import path_of
from batchyard.client.transport import HttpRequest
from batchyard.client.writes import as_sent, kind_of, name_of, namespace_of, request_of
from batchyard.interfaces.client import Create, Delete, Update, UpdateStatus, Write

#: Yields the requests of one write in order, and takes the object that the server returned for each.
Requests: TypeAlias = Generator[HttpRequest, Mapping[str, Any], None]

MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
ADMISSION: Final = "kueue-admission"
RECLAIMABLE: Final = "kueue-reclaimable-pods"
PODS_READY: Final = "kueue-job-controller-PodsReady"
#: The field managers above, which both Kueue and this client use.
SHARED_MANAGERS: Final = frozenset({ADMISSION, RECLAIMABLE, PODS_READY})
_RECLAIMABLE_FIELD: Final = "reclaimablePods"
#: The conditions that Kueue applies as `kueue-admission`.
_CONDITIONS: Final = frozenset(
    {
        *("QuotaReserved", "BlockedOnPreemptionGates", "Evicted", "Admitted", "Preempted", "Requeued"),
        *("DeactivationTarget", "Finished", "PodsReady"),
    }
)
#: Lists that server-side apply merges by a key, with that key.
_KEYS: Final = {"conditions": "type", "admissionChecks": "name"}
_ABSENT: Final = object()
#: Metadata fields that the server sets: a patch must not contain them, except the two preconditions.
_SERVERS_OWN: Final = frozenset(
    {"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "deletionTimestamp"}
)
_encode: Final = msgspec.json.Encoder().encode


class _Applied(NamedTuple):
    """A part of a status, and the field manager that applies it."""

    manager: str
    status: Mapping[str, Any]


def requests_of(write: Write, base: Obj | None, info: ServedKind, version: str) -> Requests:
    """Yield the requests of a write; `base` is the object that the write was made from, if known."""
    if isinstance(write, Create | Delete) or (base is None and not write.obj["metadata"].get("resourceVersion")):
        yield request_of(write, info, version)
    elif isinstance(write, UpdateStatus) and kind_of(write) == scheme.WORKLOAD:
        yield from _apply_status(write, base, info, version)
    else:
        yield _merge_request(write, base, info, version)


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) from one document to another; empty if they are equal."""
    patch: dict[str, Any] = dict.fromkeys(field for field in before if field not in after)
    for field, value in after.items():
        old = before.get(field, _ABSENT)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := merge_patch(old, value):
                patch[field] = inner
        elif old is _ABSENT or old != value:
            patch[field] = value
    return patch


def _merge_request(write: Update | UpdateStatus, base: Obj | None, info: ServedKind, version: str) -> HttpRequest:
    """Return a patch of the fields that a write changes, at the revision that it is based on.

    Without the base, all fields are sent, and the server compares the revision.
    """
    of_status = isinstance(write, UpdateStatus)
    after = _served(write.obj, info, version)
    before = _served(base, info, version) if base is not None else {}
    patch = merge_patch(before, after)
    if of_status:
        patch = {"status": patch["status"]} if "status" in patch else {}
    elif not (isinstance(write, Update) and write.is_whole):
        patch.pop("status", None)
    metadata = {name: value for name, value in (patch.pop("metadata", None) or {}).items() if name not in _SERVERS_OWN}
    if "resourceVersion" in after["metadata"]:
        metadata["resourceVersion"] = after["metadata"]["resourceVersion"]
    if write.managed_fields is not None:
        metadata["managedFields"] = write.managed_fields
    if metadata:
        patch["metadata"] = metadata
    return _patch_request(write, info, version, patch, "status" if of_status else "")


def _apply_status(write: UpdateStatus, base: Obj | None, info: ServedKind, version: str) -> Requests:
    """Apply a Workload's status with the managers of its parts; then remove values that another manager keeps."""
    wanted = _served(write.obj, info, version)
    before = (_served(base, info, version) if base is not None else {}).get("status") or {}
    metadata, status = wanted["metadata"], wanted.get("status") or {}
    revision = metadata.get("resourceVersion")
    for applied in _parts(before, status):
        identity = {field: metadata[field] for field in ("name", "namespace", "uid") if field in metadata}
        if revision:
            identity["resourceVersion"] = revision
        document = {"apiVersion": wanted["apiVersion"], "kind": wanted["kind"], "metadata": identity}
        request = _patch_request(write, info, version, {**document, "status": applied.status}, "status", APPLY_PATCH)
        stored = yield request._replace(path=f"{request.path}?fieldManager={applied.manager}&force=true")
        revision = _revision_in(stored)
    if left := _left_over(before, status, stored.get("status") or {}):
        patch = {"metadata": {"resourceVersion": revision}, "status": left}
        yield _patch_request(write, info, version, patch, "status")


def _parts(before: Mapping[str, Any], status: Mapping[str, Any]) -> Sequence[_Applied]:
    """Return the changed parts of a status."""
    changed = [field for field in {**before, **status} if before.get(field) != status.get(field)]
    parts: list[_Applied] = []
    if changed == ["conditions"] and _changed_conditions(before, status) == ["PodsReady"]:
        ready = [each for each in status["conditions"] if each["type"] == "PodsReady"]
        return [_Applied(PODS_READY, {"conditions": ready})] if ready else [_admission_part(status)]
    if changed != [_RECLAIMABLE_FIELD]:
        parts.append(_admission_part(status))
    if _RECLAIMABLE_FIELD in changed:
        pods = status.get(_RECLAIMABLE_FIELD)
        parts.append(_Applied(RECLAIMABLE, {_RECLAIMABLE_FIELD: pods} if pods else {}))
    return parts


def _admission_part(status: Mapping[str, Any]) -> _Applied:
    """Return all of a status except reclaimablePods and conditions that Kueue does not apply as `kueue-admission`."""
    part = {field: value for field, value in status.items() if field != _RECLAIMABLE_FIELD}
    if "conditions" in part:
        part["conditions"] = [each for each in part["conditions"] if each["type"] in _CONDITIONS]
    return _Applied(ADMISSION, part)


def _changed_conditions(before: Mapping[str, Any], status: Mapping[str, Any]) -> list[str]:
    old, new = ({each["type"]: each for each in status.get("conditions") or ()} for status in (before, status))
    return [kind for kind in {**old, **new} if old.get(kind) != new.get(kind)]


def _left_over(before: Mapping[str, Any], status: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that removes values still stored because another manager set them too."""
    left: dict[str, Any] = {field: None for field in before if field not in status and field in stored}
    for field, key in _KEYS.items():
        kept = [item[key] for item in status.get(field) or ()]
        gone = {item[key] for item in before.get(field) or () if item[key] not in kept}
        items = stored.get(field) or ()
        if field not in left and any(item[key] in gone for item in items):
            left[field] = [item for item in items if item[key] not in gone]
    return left


def _served(obj: Obj, info: ServedKind, version: str) -> Mapping[str, Any]:
    """Return an object in the version that the server accepts."""
    return conversion.from_storage(as_sent(obj, info), info.api_version_for(version))


def _patch_request(
    write: Write, info: ServedKind, version: str, patch: Mapping[str, Any], part: str, content_type: str = MERGE_PATCH
) -> HttpRequest:
    path = path_of(info, version, namespace_of(write), name_of(write), part)
    return HttpRequest("PATCH", path, _encode(patch), content_type=content_type)


def _revision_in(stored: Mapping[str, Any]) -> str:
    revision: str = (stored.get("metadata") or {}).get("resourceVersion") or ""
    return revision
