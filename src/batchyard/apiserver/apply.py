"""Field ownership (`managedFields`) and server-side apply."""

import marshal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api.meta import Key, Obj, group_kind, key_of
from batchyard.api.times import format_time
from batchyard.apiserver.field_sets import (
    EMPTY,
    LEAF,
    MARK,
    FieldSet,
    difference,
    intersection,
    items_of,
    less,
    merged,
    of_fields_v1,
    paths,
    to_fields_v1,
    union,
    union_of,
    with_named,
)
from batchyard.apiserver.patch import FREE, MergeSchema
from batchyard.apiserver.request import StatusError, bad_request
from batchyard.apiserver.resources import Resource
from batchyard.base.instant import SECOND, Instant
from batchyard.base.memory import memoized_if_short
from batchyard.interfaces.client import Update, Write


class Differences(NamedTuple):
    """The fields in which a new object differs from the old one."""

    removed: FieldSet = EMPTY
    modified: FieldSet = EMPTY
    added: FieldSet = EMPTY


_NONE: Final = Differences()
_ABSENT: Final = object()


def fields_of(value: Any, shape: MergeSchema) -> FieldSet:
    """Return the fields of an applied value: all leaves, list items, and empty values."""
    if isinstance(value, dict) and not shape.is_atomic:
        result = {}
        for name, child in value.items():
            fields = fields_of(child, shape.below(name))
            is_named = name in shape.inside.fields
            if child is None or child == {} or not is_named:
                fields = {MARK: {}, **fields}
            if fields:
                result[f"f:{name}"] = fields
        return result
    if isinstance(value, list) and shape.keys is not None:
        return {step: {MARK: {}, **fields_of(item, shape.item)} for step, item in items_of(value, shape).items()}
    return LEAF


def all_fields_of(value: Any, shape: MergeSchema) -> FieldSet:
    """Return the fields of a new value, including the maps and lists on the path to each leaf."""
    if isinstance(value, dict) and value and not shape.is_atomic:
        fields: dict[str, Any] = {MARK: {}}
        inside = shape.inside
        known, rest = inside.fields.get, inside.rest or FREE
        for name, child in value.items():
            # Most fields are scalars; the inline case avoids one call for each.
            is_plain = not isinstance(child, dict | list)
            fields[f"f:{name}"] = LEAF if is_plain else all_fields_of(child, known(name) or rest)
        return fields
    if isinstance(value, list) and shape.keys is not None:
        within = {step: all_fields_of(item, shape.item) for step, item in items_of(value, shape).items()}
        return {MARK: {}, **within}
    return LEAF


def differences(old: Any, new: Any, shape: MergeSchema) -> Differences:
    """Return the fields in which a new value differs from an old one."""
    if old is new or old == new:
        return _NONE
    if isinstance(old, dict) and isinstance(new, dict) and not shape.is_atomic:
        return _gathered(old, new, shape, "f:")
    if isinstance(old, list) and isinstance(new, list) and shape.keys is not None:
        return _gathered(items_of(old, shape), items_of(new, shape), shape, "")
    return Differences(modified=LEAF)


def _gathered(old: Mapping[str, Any], new: Mapping[str, Any], shape: MergeSchema, prefix: str) -> Differences:
    removed: dict[str, Any] = {}
    modified: dict[str, Any] = {}
    added: dict[str, Any] = {}
    for name, child in new.items():
        was = old.get(name, _ABSENT)
        if was is child:  # identical for most fields
            continue
        step, inner = prefix + name, shape.below(name) if prefix else shape.item
        if was is _ABSENT:
            added[step] = all_fields_of(child, inner)
            continue
        found = differences(was, child, inner)
        for gathered, part in zip((removed, modified, added), found, strict=True):
            if part:
                gathered[step] = part
    for name, child in old.items():
        if name not in new:
            removed[prefix + name] = all_fields_of(child, shape.below(name) if prefix else shape.item)
    return Differences(removed, modified, added)


# --- managed fields ---
#
# Field ownership (`metadata.managedFields`), updated by every write through the API.
#
# An update takes ownership of the fields that it changes. An apply that changes a field of another manager is a
# conflict, unless it is forced. A field that the new applied configuration omits loses this owner, and is removed if
# it has no other. Sources: sigs.k8s.io/structured-merge-diff, merge/update.go; k8s.io/apimachinery,
# pkg/util/managedfields/internal.


APPLY: Final = "Apply"
UPDATE: Final = "Update"
#: The maximum number of separate Update entries; the oldest beyond it are merged into one.
UPDATERS_MAX: Final = 10
_MANAGED_FIELDS_REMEMBERED_MAX: Final = 512
#: The maximum size of a cached part in bytes, which bounds each cache to 16 MiB.
_REMEMBERED_LENGTH_MAX: Final = 32 * 1024
_MARSHAL_WITHOUT_REFERENCES: Final = 2
_ANCIENT: Final = "ancient-changes"
#: The manager of all fields that existed before the first apply, if the object has no managedFields.
_BEFORE: Final = "before-first-apply"
#: Fields without an owner: those that the server sets and those that identify the object.
_UNOWNED_FIELDS: Final = of_fields_v1(
    {
        "f:apiVersion": {},
        "f:kind": {},
        "f:metadata": {
            ".": {},
            **{
                f"f:{name}": {}
                for name in (
                    *("name", "namespace", "creationTimestamp", "selfLink", "uid", "generation", "managedFields"),
                    *("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds"),
                )
            },
        },
    }
)

ManagedFieldsJson: TypeAlias = Mapping[str, Any]
"""An entry of `managedFields` in JSON form."""


class FieldManager(NamedTuple):
    """The writer of a request: field manager, API version, subresource, and time."""

    manager: str
    api_version: str
    subresource: str
    time: str


class FieldManagerEntry(NamedTuple):
    """An entry of `managedFields` with its fields decoded into a set."""

    name: str
    operation: str
    api_version: str
    subresource: str
    time: str
    fields: FieldSet
    #: The fields as encoded in `fieldsV1`, if already known.
    written: Mapping[str, Any] | None = None

    def with_fields(self, fields: FieldSet) -> "FieldManagerEntry":
        """Return the claim with other fields; itself if they are the same object."""
        if fields is self.fields:
            return self
        return FieldManagerEntry(self.name, self.operation, self.api_version, self.subresource, self.time, fields)

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """The key of an entry. The API version belongs to it for updates but not for applies."""
        version = "" if self.operation == APPLY else self.api_version
        return self.operation, self.name, version, self.subresource

    @property
    def title(self) -> str:
        """The manager as conflict messages name it."""
        part = f' with subresource "{self.subresource}"' if self.subresource else ""
        how = f" using {self.api_version}" if self.operation == UPDATE else ""
        return f'"{self.name}"{part}{how}'

    def entry(self) -> dict[str, Any]:
        """Return the claim as an entry of `managedFields`."""
        entry: dict[str, Any] = {"manager": self.name, "operation": self.operation, "apiVersion": self.api_version}
        written = _as_written(self.fields) if self.written is None else self.written
        entry |= {"time": self.time, "fieldsType": "FieldsV1", "fieldsV1": written}
        return entry | ({"subresource": self.subresource} if self.subresource else {})


class ApplyResult(NamedTuple):
    """The result of an apply: the object in the applied version, and its `managedFields`."""

    obj: dict[str, Any]
    entries: list[dict[str, Any]]


class Versions(NamedTuple):
    """Accessors for the forms of an object in each version of its kind."""

    shape: Callable[[str], MergeSchema]
    #: Converts an object to another version.
    convert: Callable[[Obj, str], Obj]
    is_served: Callable[[str], bool]


def created(new: Obj, author: FieldManager, shape: MergeSchema) -> list[dict[str, Any]]:
    """Return `managedFields` of a new object, in the author's version; empty if the object has no owned fields."""
    metadata = all_fields_of(_unmanaged(new)["metadata"], shape.below("metadata"))
    fields = {**_metadata_v1_of(marshal.dumps({**metadata}, _MARSHAL_WITHOUT_REFERENCES))}
    for name, value in new.items():
        if name not in ("apiVersion", "kind", "metadata"):
            fields[f"f:{name}"] = _part_v1(value, shape.below(name), is_marked=name not in ("spec", "status"))
    if not fields:
        return []
    claim = FieldManagerEntry(author.manager, UPDATE, author.api_version, author.subresource, author.time, EMPTY)
    return [{**claim.entry(), "fieldsV1": dict(sorted(fields.items()))}]


@memoized_if_short(_MANAGED_FIELDS_REMEMBERED_MAX, _REMEMBERED_LENGTH_MAX)
def _metadata_v1_of(encoded: bytes) -> dict[str, Any]:
    """Return the owned fields of new metadata."""
    about = difference({"f:metadata": marshal.loads(encoded)}, _UNOWNED_FIELDS)  # noqa: S302 - encoded by this module
    return to_fields_v1(about)


def _part_v1(value: Any, shape: MergeSchema, *, is_marked: bool) -> dict[str, Any]:
    """Return the fields of a top-level part of a new object, each field cached by itself."""
    if not isinstance(value, dict) or not value or shape.is_atomic:
        return _fields_v1_of(marshal.dumps(value, _MARSHAL_WITHOUT_REFERENCES), shape)
    fields: dict[str, Any] = {MARK: {}} if is_marked else {}
    for name in sorted(value):
        child = value[name]
        is_plain = not isinstance(child, dict | list)
        encoded = b"" if is_plain else marshal.dumps(child, _MARSHAL_WITHOUT_REFERENCES)
        fields[f"f:{name}"] = {} if is_plain else _within_v1_of(encoded, shape.below(name))
    return fields


@memoized_if_short(_MANAGED_FIELDS_REMEMBERED_MAX, _REMEMBERED_LENGTH_MAX)
def _fields_v1_of(encoded: bytes, shape: MergeSchema) -> dict[str, Any]:
    """Return the fields of a part that is encoded as a whole."""
    return to_fields_v1(all_fields_of(marshal.loads(encoded), shape))  # noqa: S302 - encoded by this module


@memoized_if_short(_MANAGED_FIELDS_REMEMBERED_MAX, _REMEMBERED_LENGTH_MAX)
def _within_v1_of(encoded: bytes, shape: MergeSchema) -> dict[str, Any]:
    """Return the fields below one field of a part."""
    fields = all_fields_of(marshal.loads(encoded), shape)  # noqa: S302 - encoded by this module
    return {} if fields == LEAF else to_fields_v1(fields)


def _as_written(fields: FieldSet) -> dict[str, Any]:
    """Encode a set as `fieldsV1`; equal sets share one cached encoding."""
    return _written_of(marshal.dumps({**fields}, _MARSHAL_WITHOUT_REFERENCES))


@memoized_if_short(_MANAGED_FIELDS_REMEMBERED_MAX, _REMEMBERED_LENGTH_MAX)
def _written_of(encoded: bytes) -> dict[str, Any]:
    return to_fields_v1(marshal.loads(encoded))  # noqa: S302 - encoded by this module


def updated(
    old: Obj, new: Obj, entries: Sequence[ManagedFieldsJson], author: FieldManager, versions: Versions
) -> list[dict[str, Any]]:
    """Return `managedFields` after an update; both objects are in the author's version."""
    return _entries(_claims_after_update(old, new, _claims(entries, versions), author, versions))


def applied(live: Obj | None, config: Obj, author: FieldManager, versions: Versions, *, force: bool) -> ApplyResult:
    """Merge an applied configuration into the live object, or into none. Raises Refused on a conflict."""
    shape = versions.shape(author.api_version)
    old: Obj = {"apiVersion": config["apiVersion"], "kind": config["kind"]} if live is None else _unmanaged(live)
    claims = _claims((live or {}).get("metadata", {}).get("managedFields") or (), versions)
    if live is not None and not claims:
        before = author._replace(manager=_BEFORE, subresource="")
        claims = _claims_after_update(_bare(old), old, [], before, versions)
    mine = FieldManagerEntry(
        author.manager, APPLY, author.api_version, author.subresource, author.time, _applied_fields(config, shape)
    )
    last = next((claim for claim in claims if claim.identity == mine.identity), None)
    others = [claim for claim in claims if claim is not last]
    new = _pruned(merged(old, config, shape), last, [mine, *others], shape)
    changes = _Changes(old, new, author.api_version, versions)
    conflicts = [(other, found) for other in others if (found := changes.conflict(other))]
    if conflicts and not force:
        allowed = _allowed(old, shape) if author.manager == "kubectl" else EMPTY
        conflicts = [(other, left) for other, found in conflicts if (left := difference(found, allowed))]
        if conflicts:
            raise _conflict(conflicts)
    if last is not None and old == new and last.fields == mine.fields:
        mine = mine._replace(time=last.time)
    return ApplyResult(new, _entries([*map(changes.left, others), mine]))


def _claims_after_update(
    old: Obj, new: Obj, claims: Sequence[FieldManagerEntry], author: FieldManager, versions: Versions
) -> list[FieldManagerEntry]:
    if old["metadata"] is not new["metadata"]:
        old, new = _unmanaged(old), _unmanaged(new)
    changes = _Changes(old, new, author.api_version, versions)
    kept = [left for left in map(changes.left, claims) if left.fields]
    taken = changes.taken()
    if not taken:
        return _capped(kept)
    mine = FieldManagerEntry(author.manager, UPDATE, author.api_version, author.subresource, author.time, taken)
    before = next((claim.fields for claim in kept if claim.identity == mine.identity), EMPTY)
    others = [claim for claim in kept if claim.identity != mine.identity]
    return _capped([*others, mine.with_fields(union(before, taken))])


class _Changes:
    """The differences between an old and a new object, in every version that a claim uses."""

    def __init__(self, old: Obj, new: Obj, api_version: str, versions: Versions) -> None:
        self._old = old
        self._new = new
        self._versions = versions
        self._of_author = differences(old, new, versions.shape(api_version))
        self._found = {api_version: self._of_author}
        #: By version: the changed and removed fields, which their previous owners lose.
        self._gone: dict[str, FieldSet] = {}

    def taken(self) -> FieldSet:
        """Return the changed and added fields, which the author now owns."""
        return difference(union(self._of_author.modified, self._of_author.added), _UNOWNED_FIELDS)

    def conflict(self, claim: FieldManagerEntry) -> FieldSet:
        """Return the claimed fields that changed."""
        found = self._in(claim.api_version)
        return intersection(claim.fields, union(found.modified, found.added))

    def left(self, claim: FieldManagerEntry) -> FieldManagerEntry:
        """Return the claim without the fields that changed or were removed."""
        gone = self._gone.get(claim.api_version)
        if gone is None:
            found = self._in(claim.api_version)
            gone = self._gone[claim.api_version] = union(union(found.modified, found.added), found.removed)
        return claim.with_fields(difference(claim.fields, gone))

    def _in(self, api_version: str) -> Differences:
        if api_version not in self._found:
            convert = self._versions.convert
            shape = self._versions.shape(api_version)
            found = differences(convert(self._old, api_version), convert(self._new, api_version), shape)
            self._found[api_version] = found
        return self._found[api_version]


def _pruned(
    obj: dict[str, Any], last: FieldManagerEntry | None, claims: Sequence[FieldManagerEntry], shape: MergeSchema
) -> dict[str, Any]:
    """Remove the fields that the author applied last but no longer does, unless another manager owns them."""
    if last is None or last.api_version != claims[0].api_version:
        return obj
    known = with_named(last.fields, shape)
    owned = union_of([with_named(claim.fields, shape) for claim in claims])
    there = with_named(fields_of(obj, shape), shape)
    bare = less(obj, known, shape) or {}
    gone = difference(there, union(with_named(fields_of(bare, shape), shape), owned))
    left = less(obj, gone, shape) or {}
    dangling = difference(there, with_named(fields_of(left, shape), shape))
    result: dict[str, Any] = less(obj, intersection(dangling, known), shape) or {}
    return result


def _applied_fields(config: Obj, shape: MergeSchema) -> FieldSet:
    return difference(fields_of(config, shape), _UNOWNED_FIELDS)


def _allowed(live: Obj, shape: MergeSchema) -> FieldSet:
    """Return the fields of the last client-side `kubectl apply` that still have the applied values.

    They do not conflict when kubectl migrates to server-side apply.
    """
    text = (live["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/last-applied-configuration")
    try:
        last = msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return EMPTY
    if not isinstance(last, dict) or last.get("apiVersion") != live["apiVersion"]:
        return EMPTY
    found = differences(last, live, shape)
    return difference(difference(difference(fields_of(last, shape), found.modified), found.added), found.removed)


def _conflict(conflicts: Sequence[tuple[FieldManagerEntry, FieldSet]]) -> StatusError:
    """Return the conflict error of an apply that changes fields of other managers."""
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {claim.title}", "field": path}
        for claim, fields in conflicts
        for path in paths(fields)
    ]
    if len(causes) == 1:
        message = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        lines: list[str] = []
        for claim, fields in conflicts:
            lines += [f"conflicts with {claim.title}:", *(f"- {path}" for path in paths(fields))]
        message = f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines)
    return StatusError(409, "Conflict", message, {"causes": causes})


# --- managedFields as they are written ---


def _claims(entries: Sequence[ManagedFieldsJson], versions: Versions) -> list[FieldManagerEntry]:
    """Return the claims, without those in versions that are no longer served."""
    return [claim for claim in _read(entries) if versions.is_served(claim.api_version)]


def _read(entries: Sequence[ManagedFieldsJson]) -> Iterator[FieldManagerEntry]:
    for entry in entries:
        fields = entry.get("fieldsV1")
        if isinstance(fields, dict):
            yield FieldManagerEntry(
                str(entry.get("manager", "")),
                str(entry.get("operation", "")),
                str(entry.get("apiVersion", "")),
                str(entry.get("subresource", "")),
                str(entry.get("time", "")),
                *_read_fields(marshal.dumps(fields, _MARSHAL_WITHOUT_REFERENCES)),
            )


@memoized_if_short(_MANAGED_FIELDS_REMEMBERED_MAX, _REMEMBERED_LENGTH_MAX)
def _read_fields(encoded: bytes) -> tuple[FieldSet, dict[str, Any]]:
    """Return the fields of an entry as a set and as `fieldsV1`; cached, since many objects have the same."""
    fields = of_fields_v1(marshal.loads(encoded))  # noqa: S302 - encoded by this module
    return fields, to_fields_v1(fields)


def _entries(claims: Sequence[FieldManagerEntry]) -> list[dict[str, Any]]:
    """Return the `managedFields` entries: applies first, then updates, each by time."""
    ordered = sorted(claims, key=lambda claim: (claim.operation, claim.time, *claim.identity))
    return [claim.entry() for claim in ordered if claim.fields]


def _capped(claims: list[FieldManagerEntry]) -> list[FieldManagerEntry]:
    """Merge the oldest updates into one claim if there are more than `UPDATERS_MAX`."""
    updaters = sorted(
        (claim for claim in claims if claim.operation == UPDATE), key=lambda claim: (claim.time, claim.name)
    )
    surplus = len(updaters) - UPDATERS_MAX
    if surplus <= 0:
        return claims
    oldest = updaters[: surplus + 1]
    bucket = oldest[-1]
    fields = union_of([claim.fields for claim in oldest if claim.api_version == bucket.api_version])
    appliers = [claim for claim in claims if claim.operation != UPDATE]
    return [*appliers, *updaters[surplus + 1 :], bucket.with_fields(fields)._replace(name=_ANCIENT, subresource="")]


def _unmanaged(obj: Obj) -> dict[str, Any]:
    """Return the object without `managedFields`."""
    metadata = {name: value for name, value in (obj.get("metadata") or {}).items() if name != "managedFields"}
    return {**obj, "metadata": metadata}


def _bare(obj: Obj) -> dict[str, Any]:
    """Return the object with empty metadata, spec and status."""
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": {}, "spec": {}, "status": {}}


def check_config(config: Mapping[str, Any], shape: MergeSchema) -> None:
    """Raise Refused if an applied configuration has undeclared fields or `managedFields`."""
    metadata = config.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise bad_request("metadata must be an object")
    if metadata.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    unknown = [f"{path}: field not declared in schema" for path in _undeclared(config, shape, "")]
    if unknown:
        group, _, version = str(config.get("apiVersion")).rpartition("/")
        kind = f"{group}/{version}, Kind={config.get('kind')}"
        named = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {kind}"
        message = unknown[0] if len(unknown) == 1 else "errors:\n" + "\n".join(f"  {line}" for line in unknown)
        raise bad_request(f"failed to create typed patch object ({named}): {message}")


def _undeclared(value: Any, shape: MergeSchema, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, child in value.items():
            if not shape.knows(name):
                yield f"{path}.{name}"
            else:
                yield from _undeclared(child, shape.below(name), f"{path}.{name}")
    elif isinstance(value, list):
        if shape.keys is not None:
            items_of(value, shape, unique=True)
        for item in value:
            yield from _undeclared(item, shape.item, path)


# --- versions ---
#
# The forms of a resource's objects in each of its versions, for comparison in that version.


def versions_of(resource: Resource, namespace: str) -> Versions:
    """Return the accessors for all versions of a resource."""
    info, strategy = resource.info, resource.strategy

    def shape(api_version: str) -> MergeSchema:
        return resource.shape(info.version_of(api_version) or info.storage_version)

    def convert(obj: Obj, api_version: str) -> Obj:
        found = strategy.decode(obj, namespace).obj if info.version_of(api_version) else None
        return obj if found is None else strategy.show(found, api_version)

    return Versions(shape, convert, lambda api_version: bool(info.version_of(api_version)))


# --- controller manager ---
#
# Field ownership for the writes of controllers in this process, with one field manager for all of them.
# Ownership is tracked only for objects that already have `managedFields`, and only outside the status. Controllers own
# the status and write it too often.


_NAME: Final = "batchyard"


class InProcessFieldManager:
    """Field ownership for writes by controllers of this process."""

    def __init__(self, resources: Iterable[Resource], now: Callable[[], Instant]) -> None:
        self._resources = {resource.info.constant: resource for resource in resources}
        self._now = now

    def claimed(self, write: Write, get: Callable[[Key], Obj | None]) -> Write:
        """Return the write; an update also takes ownership of the fields that it changes."""
        if not isinstance(write, Update):
            return write
        stored = get(key_of(write.obj))
        entries = None if stored is None else stored["metadata"].get("managedFields")
        resource = self._resources.get(group_kind(write.obj))
        if stored is None or not entries or resource is None:
            return write
        new = {**write.obj, "status": stored["status"]} if "status" in stored else write.obj
        author = FieldManager(_NAME, resource.info.api_version, "", format_time(self._now() // SECOND * SECOND))
        versions = versions_of(resource, stored["metadata"].get("namespace", ""))
        return replace(write, managed_fields=updated(stored, new, entries, author, versions))
