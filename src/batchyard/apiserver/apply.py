"""Field ownership (`managedFields`) and server-side apply."""

import marshal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api.meta import Key, Obj, group_kind, key_of
from batchyard.api.times import format_time
from batchyard.apiserver import field_sets
from batchyard.apiserver.conversions import convert as convert_by_webhook
from batchyard.apiserver.patch import UNSTRUCTURED, MergeSchema
from batchyard.apiserver.request import StatusError, bad_request
from batchyard.apiserver.resources import Resource
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import memoized_if_short
from batchyard.interfaces.client import Update, Write


class FieldDifferences(NamedTuple):
    """The fields in which a new object differs from the old one."""

    removed_fields: field_sets.FieldSet = field_sets.EMPTY
    modified_fields: field_sets.FieldSet = field_sets.EMPTY
    added_fields: field_sets.FieldSet = field_sets.EMPTY


_NO_DIFFERENCES: Final = FieldDifferences()
_ABSENT_VALUE: Final = object()


def fields_of(value: Any, schema: MergeSchema) -> field_sets.FieldSet:
    """Return the field set of an applied value: leaves, nulls, empty objects, keyed list items and map entries.

    Declared fields that contain other fields are not in the set themselves, only the fields in them.
    """
    if isinstance(value, dict) and not schema.is_atomic:
        field_set = {}
        for name, child in value.items():
            fields = fields_of(child, schema.field_schema(name))
            is_struct_field = name in schema.members.fields
            if child is None or child == {} or not is_struct_field:
                fields = {field_sets.SELF_MARK: {}, **fields}
            if fields:
                field_set[f"f:{name}"] = fields
        return field_set
    if isinstance(value, list) and schema.keys is not None:
        return {
            step: {field_sets.SELF_MARK: {}, **fields_of(item, schema.item_schema)}
            for step, item in field_sets.items_of(value, schema).items()
        }
    return field_sets.LEAF


def all_fields_of(value: Any, schema: MergeSchema) -> field_sets.FieldSet:
    """Return the field set of a value in a created or updated object, including the maps and lists above each leaf."""
    if isinstance(value, dict) and value and not schema.is_atomic:
        fields: dict[str, Any] = {field_sets.SELF_MARK: {}}
        members = schema.members
        find_schema, default_schema = members.fields.get, members.undeclared_schema or UNSTRUCTURED
        for name, child in value.items():
            # Most fields are scalars; the inline case avoids one call for each.
            is_scalar = not isinstance(child, dict | list)
            fields[f"f:{name}"] = (
                field_sets.LEAF if is_scalar else all_fields_of(child, find_schema(name) or default_schema)
            )
        return fields
    if isinstance(value, list) and schema.keys is not None:
        item_fields = {
            step: all_fields_of(item, schema.item_schema) for step, item in field_sets.items_of(value, schema).items()
        }
        return {field_sets.SELF_MARK: {}, **item_fields}
    return field_sets.LEAF


def diff_values(old: Any, new: Any, schema: MergeSchema) -> FieldDifferences:
    """Return the fields in which a new value differs from an old one."""
    if old is new or old == new:
        return _NO_DIFFERENCES
    if isinstance(old, dict) and isinstance(new, dict) and not schema.is_atomic:
        return _diff_members(old, new, schema, "f:")
    if isinstance(old, list) and isinstance(new, list) and schema.keys is not None:
        return _diff_members(field_sets.items_of(old, schema), field_sets.items_of(new, schema), schema, "")
    return FieldDifferences(modified_fields=field_sets.LEAF)


def _diff_members(old: Mapping[str, Any], new: Mapping[str, Any], schema: MergeSchema, prefix: str) -> FieldDifferences:
    removed_fields: dict[str, Any] = {}
    modified_fields: dict[str, Any] = {}
    new_fields: dict[str, Any] = {}
    for name, child in new.items():
        old_child = old.get(name, _ABSENT_VALUE)
        if old_child is child:  # identical for most fields
            continue
        step, child_schema = prefix + name, schema.field_schema(name) if prefix else schema.item_schema
        if old_child is _ABSENT_VALUE:
            new_fields[step] = all_fields_of(child, child_schema)
            continue
        child_differences = diff_values(old_child, child, child_schema)
        for target, nested_fields in zip((removed_fields, modified_fields, new_fields), child_differences, strict=True):
            if nested_fields:
                target[step] = nested_fields
    for name, child in old.items():
        if name not in new:
            removed_fields[prefix + name] = all_fields_of(
                child, schema.field_schema(name) if prefix else schema.item_schema
            )
    return FieldDifferences(removed_fields, modified_fields, new_fields)


# Field ownership (`metadata.managedFields`), updated by every write through the API.
#
# An update takes ownership of the fields that it changes. An apply that changes a field of another manager is a
# conflict, unless it is forced. A field that the new applied configuration omits loses this owner, and is removed if
# it has no other. Sources: sigs.k8s.io/structured-merge-diff, merge/update.go; k8s.io/apimachinery,
# pkg/util/managedfields/internal.


APPLY: Final = "Apply"
UPDATE: Final = "Update"
#: The maximum number of separate Update entries; the oldest beyond it are merged into one.
UPDATE_ENTRIES_MAX: Final = 10
_CACHED_FIELD_SETS_MAX: Final = 512
#: The maximum size of a cached part in bytes, which bounds each cache to 16 MiB.
_CACHED_VALUE_BYTES_MAX: Final = 32 * 1024
_MARSHAL_VERSION_WITHOUT_REFERENCES: Final = 2
_MERGED_ENTRY_MANAGER: Final = "ancient-changes"
#: The manager of all fields that existed before the first apply, if the object has no managedFields.
_BEFORE_FIRST_APPLY: Final = "before-first-apply"
#: Fields without an owner: those that the server sets and those that identify the object.
_UNOWNED_FIELDS: Final = field_sets.from_fields_v1(
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
    fields: field_sets.FieldSet
    #: The fields as encoded in `fieldsV1`, if already known.
    fields_v1: Mapping[str, Any] | None = None

    def with_fields(self, fields: field_sets.FieldSet) -> "FieldManagerEntry":
        """Return a copy of the entry with `fields` as its field set; the entry itself if it already has this object."""
        if fields is self.fields:
            return self
        return FieldManagerEntry(self.name, self.operation, self.api_version, self.subresource, self.time, fields)

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """The identity: (operation, manager, API version, subresource); the API version is '' for applies."""
        version = "" if self.operation == APPLY else self.api_version
        return self.operation, self.name, version, self.subresource

    @property
    def title(self) -> str:
        """The field manager as named in conflict messages: its name, subresource, and for updates the API version."""
        subresource_text = f' with subresource "{self.subresource}"' if self.subresource else ""
        version_text = f" using {self.api_version}" if self.operation == UPDATE else ""
        return f'"{self.name}"{subresource_text}{version_text}'

    def to_json(self) -> dict[str, Any]:
        """Return the entry in the JSON form of `managedFields`."""
        entry: dict[str, Any] = {"manager": self.name, "operation": self.operation, "apiVersion": self.api_version}
        fields_v1 = _encode_field_set(self.fields) if self.fields_v1 is None else self.fields_v1
        entry |= {"time": self.time, "fieldsType": "FieldsV1", "fieldsV1": fields_v1}
        return entry | ({"subresource": self.subresource} if self.subresource else {})


class ApplyResult(NamedTuple):
    """The result of an apply: the object in the applied version, and its `managedFields`."""

    obj: dict[str, Any]
    managed_fields: list[dict[str, Any]]


class VersionAccessors(NamedTuple):
    """Functions for one kind: the merge schema of a version, conversion to a version, whether a version is served."""

    merge_schema: Callable[[str], MergeSchema]
    #: Converts an object to another version.
    convert: Callable[[Obj, str], Obj]
    is_served: Callable[[str], bool]


def managed_fields_after_create(new: Obj, author: FieldManager, schema: MergeSchema) -> list[dict[str, Any]]:
    """Return the `managedFields` of a new object: one Update entry of its author, or none without fields to own."""
    metadata = all_fields_of(_drop_managed_fields(new)["metadata"], schema.field_schema("metadata"))
    fields = {**_metadata_to_fields_v1(marshal.dumps({**metadata}, _MARSHAL_VERSION_WITHOUT_REFERENCES))}
    for name, value in new.items():
        if name not in ("apiVersion", "kind", "metadata"):
            has_self_mark = name not in ("spec", "status")
            fields[f"f:{name}"] = _top_level_to_fields_v1(value, schema.field_schema(name), has_self_mark=has_self_mark)
    if not fields:
        return []
    entry = FieldManagerEntry(
        author.manager, UPDATE, author.api_version, author.subresource, author.time, field_sets.EMPTY
    )
    return [{**entry.to_json(), "fieldsV1": dict(sorted(fields.items()))}]


@memoized_if_short(_CACHED_FIELD_SETS_MAX, _CACHED_VALUE_BYTES_MAX)
def _metadata_to_fields_v1(encoded_value: bytes) -> dict[str, Any]:
    """Return the `fieldsV1` of metadata; `encoded_value` is its marshalled field set, not its marshalled value."""
    owned_fields = field_sets.difference({"f:metadata": marshal.loads(encoded_value)}, _UNOWNED_FIELDS)  # noqa: S302 - encoded by this module
    return field_sets.to_fields_v1(owned_fields)


def _top_level_to_fields_v1(value: Any, schema: MergeSchema, *, has_self_mark: bool) -> dict[str, Any]:
    if not isinstance(value, dict) or not value or schema.is_atomic:
        return _value_to_fields_v1(marshal.dumps(value, _MARSHAL_VERSION_WITHOUT_REFERENCES), schema)
    fields: dict[str, Any] = {field_sets.SELF_MARK: {}} if has_self_mark else {}
    for name in sorted(value):
        child = value[name]
        is_scalar = not isinstance(child, dict | list)
        encoded_child = b"" if is_scalar else marshal.dumps(child, _MARSHAL_VERSION_WITHOUT_REFERENCES)
        fields[f"f:{name}"] = {} if is_scalar else _nested_to_fields_v1(encoded_child, schema.field_schema(name))
    return fields


@memoized_if_short(_CACHED_FIELD_SETS_MAX, _CACHED_VALUE_BYTES_MAX)
def _value_to_fields_v1(encoded_value: bytes, schema: MergeSchema) -> dict[str, Any]:
    return field_sets.to_fields_v1(all_fields_of(marshal.loads(encoded_value), schema))  # noqa: S302 - encoded by this module


@memoized_if_short(_CACHED_FIELD_SETS_MAX, _CACHED_VALUE_BYTES_MAX)
def _nested_to_fields_v1(encoded_value: bytes, schema: MergeSchema) -> dict[str, Any]:
    fields = all_fields_of(marshal.loads(encoded_value), schema)  # noqa: S302 - encoded by this module
    return {} if fields == field_sets.LEAF else field_sets.to_fields_v1(fields)


def _encode_field_set(fields: field_sets.FieldSet) -> dict[str, Any]:
    """Encode a field set as `fieldsV1`; callers must not modify the result, which equal small sets share."""
    return _marshalled_to_fields_v1(marshal.dumps({**fields}, _MARSHAL_VERSION_WITHOUT_REFERENCES))


@memoized_if_short(_CACHED_FIELD_SETS_MAX, _CACHED_VALUE_BYTES_MAX)
def _marshalled_to_fields_v1(encoded_value: bytes) -> dict[str, Any]:
    return field_sets.to_fields_v1(marshal.loads(encoded_value))  # noqa: S302 - encoded by this module


def managed_fields_after_update(
    old: Obj, new: Obj, entries: Sequence[ManagedFieldsJson], author: FieldManager, accessors: VersionAccessors
) -> list[dict[str, Any]]:
    """Return the `managedFields` after an update from `old` to `new`, both in the version of the author's request."""
    return _encode_entries(
        _entries_after_update(old, new, _parse_served_entries(entries, accessors), author, accessors)
    )


def apply_configuration(
    live_object: Obj | None, config: Obj, author: FieldManager, accessors: VersionAccessors, *, force: bool
) -> ApplyResult:
    """Merge an applied configuration into the live object.

    Raises StatusError on a conflict without `force`, or if list items have invalid keys. If `live_object` is None, the
    configuration becomes a new object.
    """
    schema = accessors.merge_schema(author.api_version)
    old: Obj = (
        {"apiVersion": config["apiVersion"], "kind": config["kind"]}
        if live_object is None
        else _drop_managed_fields(live_object)
    )
    manager_entries = _parse_served_entries(
        (live_object or {}).get("metadata", {}).get("managedFields") or (), accessors
    )
    if live_object is not None and not manager_entries:
        pre_apply_manager = author._replace(manager=_BEFORE_FIRST_APPLY, subresource="")
        manager_entries = _entries_after_update(_empty_object_of_same_kind(old), old, [], pre_apply_manager, accessors)
    own_entry = FieldManagerEntry(
        author.manager, APPLY, author.api_version, author.subresource, author.time, _applied_fields(config, schema)
    )
    last_entry = next((entry for entry in manager_entries if entry.identity == own_entry.identity), None)
    other_entries = [entry for entry in manager_entries if entry is not last_entry]
    new = _remove_abandoned_fields(
        field_sets.merge_applied(old, config, schema), last_entry, [own_entry, *other_entries], schema
    )
    changes = _VersionedDifferences(old, new, author.api_version, accessors)
    conflicts = [(other, conflicting) for other in other_entries if (conflicting := changes.conflicting_fields(other))]
    if conflicts and not force:
        own_fields = _unchanged_kubectl_fields(old, schema) if author.manager == "kubectl" else field_sets.EMPTY
        conflicts = [
            (other, remaining)
            for other, fields in conflicts
            if (remaining := field_sets.difference(fields, own_fields))
        ]
        if conflicts:
            raise _conflict_error(conflicts)
    if last_entry is not None and old == new and last_entry.fields == own_entry.fields:
        own_entry = own_entry._replace(time=last_entry.time)
    return ApplyResult(new, _encode_entries([*map(changes.without_lost_fields, other_entries), own_entry]))


def _entries_after_update(
    old: Obj, new: Obj, entries: Sequence[FieldManagerEntry], author: FieldManager, accessors: VersionAccessors
) -> list[FieldManagerEntry]:
    if old["metadata"] is not new["metadata"]:
        old, new = _drop_managed_fields(old), _drop_managed_fields(new)
    version_differences = _VersionedDifferences(old, new, author.api_version, accessors)
    remaining_entries = [entry for entry in map(version_differences.without_lost_fields, entries) if entry.fields]
    fields = version_differences.fields_owned_by_author()
    if not fields:
        return _merge_oldest_updates(remaining_entries)
    own_entry = FieldManagerEntry(author.manager, UPDATE, author.api_version, author.subresource, author.time, fields)
    own_fields = next(
        (entry.fields for entry in remaining_entries if entry.identity == own_entry.identity), field_sets.EMPTY
    )
    other_entries = [entry for entry in remaining_entries if entry.identity != own_entry.identity]
    return _merge_oldest_updates([*other_entries, own_entry.with_fields(field_sets.union(own_fields, fields))])


class _VersionedDifferences:
    def __init__(self, old: Obj, new: Obj, api_version: str, accessors: VersionAccessors) -> None:
        self._old = old
        self._new = new
        self._accessors = accessors
        self._author_differences = diff_values(old, new, accessors.merge_schema(api_version))
        self._differences = {api_version: self._author_differences}
        #: By version: the changed and removed fields, which their previous owners lose.
        self._lost_fields: dict[str, field_sets.FieldSet] = {}

    def fields_owned_by_author(self) -> field_sets.FieldSet:
        return field_sets.difference(
            field_sets.union(self._author_differences.modified_fields, self._author_differences.added_fields),
            _UNOWNED_FIELDS,
        )

    def conflicting_fields(self, entry: FieldManagerEntry) -> field_sets.FieldSet:
        differences_of_version = self._differences_in(entry.api_version)
        return field_sets.intersection(
            entry.fields, field_sets.union(differences_of_version.modified_fields, differences_of_version.added_fields)
        )

    def without_lost_fields(self, entry: FieldManagerEntry) -> FieldManagerEntry:
        lost_fields = self._lost_fields.get(entry.api_version)
        if lost_fields is None:
            differences_of_version = self._differences_in(entry.api_version)
            lost_fields = self._lost_fields[entry.api_version] = field_sets.union(
                field_sets.union(differences_of_version.modified_fields, differences_of_version.added_fields),
                differences_of_version.removed_fields,
            )
        return entry.with_fields(field_sets.difference(entry.fields, lost_fields))

    def _differences_in(self, api_version: str) -> FieldDifferences:
        if api_version not in self._differences:
            convert = self._accessors.convert
            schema = self._accessors.merge_schema(api_version)
            version_differences = diff_values(convert(self._old, api_version), convert(self._new, api_version), schema)
            self._differences[api_version] = version_differences
        return self._differences[api_version]


def _remove_abandoned_fields(
    obj: dict[str, Any],
    last_entry: FieldManagerEntry | None,
    manager_entries: Sequence[FieldManagerEntry],
    schema: MergeSchema,
) -> dict[str, Any]:
    if last_entry is None or last_entry.api_version != manager_entries[0].api_version:
        return obj
    last_fields = field_sets.with_named_fields(last_entry.fields, schema)
    # An applied configuration has the metadata that identifies the object, which no manager owns.
    owned_fields = field_sets.union_of(
        [_UNOWNED_FIELDS, *(field_sets.with_named_fields(entry.fields, schema) for entry in manager_entries)]
    )
    present_fields = field_sets.with_named_fields(fields_of(obj, schema), schema)
    without_last_fields = field_sets.without_fields(obj, last_fields, schema) or {}
    removable_fields = field_sets.difference(
        present_fields,
        field_sets.union(field_sets.with_named_fields(fields_of(without_last_fields, schema), schema), owned_fields),
    )
    remaining_object = field_sets.without_fields(obj, removable_fields, schema) or {}
    removed_fields = field_sets.difference(
        present_fields, field_sets.with_named_fields(fields_of(remaining_object, schema), schema)
    )
    kept_object: dict[str, Any] = (
        field_sets.without_fields(obj, field_sets.intersection(removed_fields, last_fields), schema) or {}
    )
    return kept_object


def _applied_fields(config: Obj, schema: MergeSchema) -> field_sets.FieldSet:
    return field_sets.difference(fields_of(config, schema), _UNOWNED_FIELDS)


def _unchanged_kubectl_fields(live_object: Obj, schema: MergeSchema) -> field_sets.FieldSet:
    """Return the fields of the last client-side `kubectl apply` that still have the applied values.

    Such fields do not conflict when kubectl migrates to server-side apply.
    """
    text = (live_object["metadata"].get("annotations") or {}).get("kubectl.kubernetes.io/last-applied-configuration")
    try:
        last_applied_config = msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return field_sets.EMPTY
    if not isinstance(last_applied_config, dict) or last_applied_config.get("apiVersion") != live_object["apiVersion"]:
        return field_sets.EMPTY
    changes = diff_values(last_applied_config, live_object, schema)
    kept_fields = field_sets.difference(fields_of(last_applied_config, schema), changes.modified_fields)
    return field_sets.difference(field_sets.difference(kept_fields, changes.added_fields), changes.removed_fields)


def _conflict_error(conflicts: Sequence[tuple[FieldManagerEntry, field_sets.FieldSet]]) -> StatusError:
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {entry.title}", "field": path}
        for entry, fields in conflicts
        for path in field_sets.paths(fields)
    ]
    if len(causes) == 1:
        message = f"Apply failed with 1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        lines: list[str] = []
        for entry, fields in conflicts:
            lines += [f"conflicts with {entry.title}:", *(f"- {path}" for path in field_sets.paths(fields))]
        message = f"Apply failed with {len(causes)} conflicts: " + "\n".join(lines)
    return StatusError(409, "Conflict", message, {"causes": causes})


def _parse_served_entries(entries: Sequence[ManagedFieldsJson], accessors: VersionAccessors) -> list[FieldManagerEntry]:
    return [entry for entry in _parse_entries(entries) if accessors.is_served(entry.api_version)]


def _parse_entries(entries: Sequence[ManagedFieldsJson]) -> Iterator[FieldManagerEntry]:
    for entry in entries:
        fields = entry.get("fieldsV1")
        if isinstance(fields, dict):
            yield FieldManagerEntry(
                str(entry.get("manager", "")),
                str(entry.get("operation", "")),
                str(entry.get("apiVersion", "")),
                str(entry.get("subresource", "")),
                str(entry.get("time", "")),
                *_decode_fields_v1(marshal.dumps(fields, _MARSHAL_VERSION_WITHOUT_REFERENCES)),
            )


@memoized_if_short(_CACHED_FIELD_SETS_MAX, _CACHED_VALUE_BYTES_MAX)
def _decode_fields_v1(encoded_fields: bytes) -> tuple[field_sets.FieldSet, dict[str, Any]]:
    fields = field_sets.from_fields_v1(marshal.loads(encoded_fields))  # noqa: S302 - encoded by this module
    return fields, field_sets.to_fields_v1(fields)


def _encode_entries(manager_entries: Sequence[FieldManagerEntry]) -> list[dict[str, Any]]:
    sorted_entries = sorted(manager_entries, key=lambda entry: (entry.operation, entry.time, *entry.identity))
    return [entry.to_json() for entry in sorted_entries if entry.fields]


def _merge_oldest_updates(entries: list[FieldManagerEntry]) -> list[FieldManagerEntry]:
    """If there are more than `UPDATE_ENTRIES_MAX` Update entries, merge the oldest into one for each API version."""
    update_entries = [entry for entry in entries if entry.operation == UPDATE]
    update_entries.sort(key=lambda entry: (entry.time, entry.name))
    merged_entries: dict[str, FieldManagerEntry] = {}
    while len(merged_entries) + len(update_entries) > UPDATE_ENTRIES_MAX:
        entry = update_entries.pop(0)
        if older_entry := merged_entries.get(entry.api_version):
            entry = entry.with_fields(field_sets.union(older_entry.fields, entry.fields))
            entry = entry._replace(name=_MERGED_ENTRY_MANAGER, subresource="")
        merged_entries[entry.api_version] = entry
    return [*(entry for entry in entries if entry.operation != UPDATE), *merged_entries.values(), *update_entries]


def _drop_managed_fields(obj: Obj) -> dict[str, Any]:
    metadata = {name: value for name, value in (obj.get("metadata") or {}).items() if name != "managedFields"}
    return {**obj, "metadata": metadata}


def _empty_object_of_same_kind(obj: Obj) -> dict[str, Any]:
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": {}, "spec": {}, "status": {}}


def check_applied_config(config: Mapping[str, Any], schema: MergeSchema) -> None:
    """Raise StatusError (400) if an applied configuration has undeclared fields or invalid list keys.

    It must not set `managedFields`, and its metadata must be an object.
    """
    metadata = config.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        raise bad_request("metadata must be an object")
    if metadata.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    problems = [f"{path}: field not declared in schema" for path in undeclared_paths(config, schema, "")]
    if problems:
        group, _, version = str(config.get("apiVersion")).rpartition("/")
        kind = f"{group}/{version}, Kind={config.get('kind')}"
        object_name = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {kind}"
        message = problems[0] if len(problems) == 1 else "errors:\n" + "\n".join(f"  {line}" for line in problems)
        raise bad_request(f"failed to create typed patch object ({object_name}): {message}")


def undeclared_paths(value: Any, schema: MergeSchema, path: str) -> Iterator[str]:
    """Yield the paths of a value that its schema does not declare. Raises StatusError for invalid list keys."""
    if isinstance(value, Mapping):
        for name, child in value.items():
            if not schema.allows_field(name):
                yield f"{path}.{name}"
            else:
                yield from undeclared_paths(child, schema.field_schema(name), f"{path}.{name}")
    elif isinstance(value, list):
        if schema.keys is not None:
            field_sets.items_of(value, schema, rejects_duplicates=True)
        for item in value:
            yield from undeclared_paths(item, schema.item_schema, path)


# Conversion of a resource's objects to each of its API versions, in which `managedFields` entries are compared.


def version_accessors_of(resource: Resource, namespace: str) -> VersionAccessors:
    """Return the functions that convert and merge a kind's versions; `namespace` is that of the object to convert."""
    served_kind, strategy = resource.served_kind, resource.strategy

    def merge_schema(api_version: str) -> MergeSchema:
        return resource.merge_schema(served_kind.version_of(api_version) or served_kind.storage_version)

    def convert(obj: Obj, api_version: str) -> Obj:
        if resource.converter is not None:
            is_known = served_kind.version_of(api_version) is not None
            return convert_by_webhook(resource.converter, obj, api_version) if is_known else obj
        decoded_object = strategy.decode(obj, namespace).obj if served_kind.version_of(api_version) else None
        return obj if decoded_object is None else strategy.render(decoded_object, api_version)

    return VersionAccessors(merge_schema, convert, lambda api_version: bool(served_kind.version_of(api_version)))


# Field ownership for the writes of controllers in this process, with one field manager for all of them.
# Ownership is tracked only for objects that already have `managedFields`, and only outside the status. Controllers own
# the status and write it too often.


_MANAGER_NAME: Final = "batchyard"


class InProcessFieldManager:
    """Records in `managedFields` which fields the controllers of this process own."""

    def __init__(self, resources: Iterable[Resource], now: Callable[[], Instant]) -> None:
        self._resources = {resource.served_kind.constant: resource for resource in resources}
        self._now = now

    def claim_fields(self, write: Write, get: Callable[[Key], Obj | None]) -> Write:
        """Return a controller's update with `managed_fields` in which the controllers own the fields that it changes.

        Changes of a stored status are not recorded. Other writes are returned unchanged, and so are updates of objects
        that are not stored, not served or without `managedFields`.
        """
        if not isinstance(write, Update):
            return write
        stored_object = get(key_of(write.obj))
        entries = None if stored_object is None else stored_object["metadata"].get("managedFields")
        resource = self._resources.get(group_kind(write.obj))
        if stored_object is None or not entries or resource is None:
            return write
        new = {**write.obj, "status": stored_object["status"]} if "status" in stored_object else write.obj
        author = FieldManager(
            _MANAGER_NAME, resource.served_kind.api_version, "", format_time(self._now() // SECOND * SECOND)
        )
        accessors = version_accessors_of(resource, stored_object["metadata"].get("namespace", ""))
        return replace(
            write, managed_fields=managed_fields_after_update(stored_object, new, entries, author, accessors)
        )
