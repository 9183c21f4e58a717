"""The write pipeline for all kinds: decode, default, validate, store, respond.

Objects are stored in the storage version and returned in the requested version. Authorization happens earlier. Logic of
one kind lives in its schema, defaults, validation rules and preparations. Source of the order of the steps:
k8s.io/apiserver, pkg/registry/rest/{create,update}.go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.admission_plugins.built_in import PodSecurityReview, review_security
from batchyard.api import scheme, well_known
from batchyard.api.conversion import restore_stored_times
from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.meta import Key, Obj, annotation, finalizers_of, key_of, with_metadata
from batchyard.api.times import format_time, parse_time
from batchyard.apiserver import apply, resources, serialization
from batchyard.apiserver.conversions import convert_all
from batchyard.apiserver.handlers.prepared_writes import INLINE_BODY_MAX, PreparedWrite
from batchyard.apiserver.handlers.read import sort_by_etcd_key
from batchyard.apiserver.handlers.stored_metadata import (
    applied_status_metadata,
    is_changed_by_status_write,
    metadata_after_status_write,
    with_last_applied,
)
from batchyard.apiserver.json_patch import json_patch_strict_errors
from batchyard.apiserver.patch import apply_patch, check_patch_media_type
from batchyard.apiserver.request import (
    APPLY_PATCH,
    JSON_PATCH,
    ApiRequest,
    DeleteOptions,
    Response,
    StatusError,
    WriteOptions,
    bad_request,
    limit_of,
    method_not_allowed_error,
    parse_delete_options,
    parse_write_options,
)
from batchyard.apiserver.selection import parse_selection
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import Create, Delete, Update, UpdateStatus, Write


class WriteDraft(NamedTuple):
    """The object of a create, update or patch request before its validation, and the stored object that it replaces."""

    body: serialization.RequestBody
    path: resources.ResourcePath
    options: WriteOptions
    #: None for a new object.
    stored_object: Obj | None
    #: The served object before a patch; None without a patch.
    unpatched_object: Obj | None = None
    #: The `managedFields` after an apply; None for other requests.
    managed_fields: Sequence[apply.ManagedFieldsJson] | None = None
    #: Whether the request takes over a provided object, and is answered as a creation.
    is_created: bool = False


#: Maximum bytes of a stored object, as in etcd.
OBJECT_SIZE_MAX: Final = 1536 * 1024
_STATUS: Final = "status"
#: The finalizers of a foreground deletion and of one that orphans.
_PROPAGATION_FINALIZERS: Final = frozenset({well_known.FOREGROUND_FINALIZER, well_known.ORPHAN_FINALIZER})
#: Metadata of a new object that only the server sets.
_SERVER_SET_METADATA: Final = ("uid", "creationTimestamp", "generation", "selfLink")
_encode_json: Final = msgspec.json.Encoder().encode


class WriteHandler:
    """The handler of write requests for all kinds."""

    def __init__(
        self,
        objects: resources.ApiObjectStore,
        now: Callable[[], Instant],
        authorize: resources.RequestAuthorizer = resources.authorize_any,
    ) -> None:
        """Create the handler. `authorize` is called before an apply creates an object."""
        #: The stored objects.
        self.objects = objects
        self._now, self._authorize = now, authorize

    def handle(self, request: ApiRequest, path: resources.ResourcePath) -> Response:
        """Answer a write request for a resource. Raises StatusError on failure."""
        self.check_target(request, path)
        if request.method == "DELETE":
            return self._delete(request, path) if path.name else self._delete_all(request, path)
        return self.store_prepared(self.prepare(request, path), path)

    def check_target(self, request: ApiRequest, path: resources.ResourcePath) -> None:
        """Raise StatusError if the path does not allow writes with the method of the request."""
        if path.served_kind.namespaced and not path.namespace:
            raise method_not_allowed_error()  # a namespaced write needs a namespace
        if path.subresource and request.method == "DELETE":
            raise method_not_allowed_error()  # subresources cannot be deleted

    def targets_large_object(self, path: resources.ResourcePath) -> bool:
        """Return whether a path names an object of more than INLINE_BODY_MAX bytes, whose changes are expensive."""
        stored_object = self.objects.get(_key(path)) if path.name else None
        return stored_object is not None and len(_encode_json(stored_object)) > INLINE_BODY_MAX

    def prepare(self, request: ApiRequest, path: resources.ResourcePath) -> PreparedWrite:
        """Decode, default and validate a create, update or patch without storing it. Raises StatusError on failure."""
        return self.complete_draft(self.read_draft(request, path))

    def read_draft(self, request: ApiRequest, path: resources.ResourcePath) -> WriteDraft:
        """Read the object of a create, update or patch request, before its validation. Raises StatusError on failure.

        The object of a patch or apply is the result of the patch.
        """
        match request.method, bool(path.name):
            case ["POST", False]:
                return self._read_creation(request, path)
            case ["PUT", True]:
                options, body = parse_write_options(request), serialization.read_body(request)
                return WriteDraft(body, path, options, self.get_stored(path))
            case ["PATCH", True]:
                return self._read_patch(request, path)
        raise method_not_allowed_error()

    def complete_draft(self, draft: WriteDraft) -> PreparedWrite:
        """Decode, default and validate the object of a draft. Raises StatusError on failure."""
        body, path, options, stored_object, unpatched_object, managed_fields, is_created = draft
        if stored_object is None or is_created:
            body = _without_server_fields(body, path)
        sent_object = serialization.decode_body_object(body, path, options, unpatched_object=unpatched_object)
        if stored_object is None or is_created:
            _check_creation(draft, sent_object.obj["metadata"])
        if stored_object is None:
            prepared_write = self.prepare_creation(sent_object, path, options, managed_fields)
        else:
            prepared_write = self.prepare_replacement(sent_object, stored_object, path, options, managed_fields)
        if len(_encode_json(prepared_write.write.obj)) > OBJECT_SIZE_MAX:
            raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {OBJECT_SIZE_MAX}")
        return prepared_write._replace(code=201) if is_created else prepared_write

    def is_current(self, prepared_write: PreparedWrite, path: resources.ResourcePath) -> bool:
        """Return whether the object of a prepared write is unchanged. Raises StatusError if it no longer exists.

        For a create, return True, or raise StatusError if the Namespace does not exist.
        """
        if isinstance(prepared_write.write, Create):
            _check_namespace(self.objects, path)
            return True
        return bool(self.get_stored(path)["metadata"]["resourceVersion"] == prepared_write.base_version)

    def store_prepared(self, prepared_write: PreparedWrite, path: resources.ResourcePath) -> Response:
        """Execute a prepared write and return the response. Raises StatusError if the store rejects the write."""
        with _annotate_rejection(prepared_write.annotations):
            stored_object = self._execute_write(
                prepared_write.write, path, prepared_write.name, dry_run=prepared_write.dry_run
            )
        return resources.resumable(lambda: _stored_response(prepared_write, stored_object, path))

    # --- preparation by verb ---

    def _read_creation(self, request: ApiRequest, path: resources.ResourcePath) -> WriteDraft:
        options, body = parse_write_options(request), serialization.read_body(request)
        draft = WriteDraft(body, path, options, None)
        if path.resource.is_adoptable and isinstance(body.value, Mapping):
            target = path._replace(name=serialization.name_of(body.value))
            if (stored := self.objects.get(_key(target))) and _is_provided(stored, target):
                return draft._replace(path=target, stored_object=stored, is_created=True)
        return draft

    def _read_patch(self, request: ApiRequest, path: resources.ResourcePath) -> WriteDraft:
        content_type = serialization.content_type_of(request)
        check_patch_media_type(content_type, allows_strategic=path.resource.is_native)
        options = parse_write_options(request, content_type)
        if content_type == APPLY_PATCH:
            return self._read_apply(request, path, options)
        body, stored_object = serialization.read_json(request.body), self.get_stored(path)
        served_object = _render(stored_object, path)
        patched_value = apply_patch(served_object, content_type, body.value, path.resource.merge_schema(path.version))
        errors = json_patch_strict_errors(body.value, body.faults) if content_type == JSON_PATCH else body.faults
        patched_body = serialization.RequestBody(patched_value, errors)
        return WriteDraft(patched_body, path, options, stored_object, served_object)

    def _read_apply(self, request: ApiRequest, path: resources.ResourcePath, options: WriteOptions) -> WriteDraft:
        body = serialization.read_yaml(request.body)
        config = serialization.with_kind(body.value, path)
        apply.check_applied_config(config, path.resource.merge_schema(path.version))
        stored_object = self.objects.get(_key(path))
        if stored_object is None and path.subresource:
            raise resources.not_found_error(path.served_kind, path.name)
        if stored_object is None:
            self._authorize(request, path, "create")
        live_object = None if stored_object is None else _render(stored_object, path)
        author = self._field_manager(path, options)
        accessors = apply.version_accessors_of(path.resource, path.namespace)
        force = options.force or (stored_object is not None and _is_provided(stored_object, path))
        result = apply.apply_configuration(live_object, _writable_fields(config, path), author, accessors, force=force)
        obj = result.obj if live_object is None else with_last_applied(result.obj, config, options.manager)
        applied_body = serialization.RequestBody(obj, body.faults)
        return WriteDraft(applied_body, path, options, stored_object, None, result.managed_fields)

    def _delete(self, request: ApiRequest, path: resources.ResourcePath) -> Response:
        options = parse_delete_options(request, serialization.read_body(request).value)
        stored_object = self.get_stored(path)
        _check_preconditions(options, stored_object, path, path.name)
        if path.resource.converter is not None:
            path.resource.strategy.in_version(stored_object, path.api_version)  # before the deletion, as in Kubernetes
        write = _delete_write(stored_object, options, path)
        result = self._execute_write(write, path, path.name, dry_run=options.dry_run)
        warnings = _propagation_warnings(options, path)
        if "deletionTimestamp" in result["metadata"] and (options.dry_run or self.objects.get(_key(path)) is not None):
            return resources.resumable(lambda: Response(200, _render(result, path), warnings))
        revision = None if options.dry_run else str(self.objects.revision)
        finish = partial(_deletion_result, stored_object, result, path, revision)
        return resources.resumable(lambda: Response(200, finish(), warnings))

    def _delete_all(self, request: ApiRequest, path: resources.ResourcePath) -> Response:
        options, selected_objects = self.select_for_deletion(request, path)
        if path.resource.converter is not None:
            convert_all(path.resource.strategy.in_version, selected_objects, path.api_version)
        for obj in selected_objects:
            self.delete_selected(obj, options, path)
        return self.deletion_response(selected_objects, path)

    def select_for_deletion(
        self, request: ApiRequest, path: resources.ResourcePath
    ) -> tuple[DeleteOptions, Sequence[Obj]]:
        """Return the options and the selected objects of a deletecollection request. Raises StatusError on failure."""
        if not path.resource.supports_deletecollection:
            raise method_not_allowed_error()
        options = parse_delete_options(request, serialization.read_body(request).value)
        selection = parse_selection(request, path.served_kind)
        objs = self.objects.list(path.served_kind.constant, path.namespace or None)
        selected_objects = [obj for obj in sort_by_etcd_key(objs) if selection.accepts(obj)]
        return options, selected_objects[: limit_of(request) or None]

    def delete_selected(self, obj: Obj, options: DeleteOptions, path: resources.ResourcePath) -> None:
        """Delete one object of a deletecollection request. Raises StatusError on failure."""
        key = key_of(obj)
        _check_preconditions(options, obj, path, key.name)
        self._execute_write(_delete_write(obj, options, path), path, key.name, dry_run=options.dry_run)

    def deletion_response(self, deleted_objects: Sequence[Obj], path: resources.ResourcePath) -> Response:
        """Return the response to a deletecollection request."""
        if path.resource.converter is not None:
            deleted_objects = convert_all(path.resource.strategy.in_version, deleted_objects, path.api_version)
        return Response(200, serialization.full_object_list(deleted_objects, path, {}))

    # --- steps of a write ---

    def prepare_creation(
        self,
        sent_object: serialization.SentObject,
        path: resources.ResourcePath,
        options: WriteOptions,
        managed_fields: Sequence[apply.ManagedFieldsJson] | None = None,
    ) -> PreparedWrite:
        """Complete and validate a new object. Raises StatusError if it is invalid."""
        _check_namespace(self.objects, path)
        if managed_fields is None:
            new = path.resource.strategy.in_version(sent_object.obj, path.api_version)
            new = _fields_of_author(new, path)
            schema = path.resource.merge_schema(path.version)
            managed_fields = apply.managed_fields_after_create(new, self._field_manager(path, options), schema)
        _check_write_guard(sent_object.obj, None, path, options)
        complete_new = path.resource.complete_new
        obj = sent_object.obj if complete_new is None else complete_new(sent_object.obj, options.user)
        obj = with_metadata(obj, managedFields=managed_fields or None)
        _check_valid(path.resource.strategy.check_create(obj), path, obj["metadata"].get("name", ""))
        pod_review = review_security(path.served_kind.constant, obj, None, self.objects)
        warnings, name = (*sent_object.warnings, *pod_review.warnings), obj["metadata"].get("name", "")
        return PreparedWrite(Create(obj), name, options.dry_run, 201, warnings, "", pod_review.annotations)

    def prepare_replacement(
        self,
        sent_object: serialization.SentObject,
        stored_object: Obj,
        path: resources.ResourcePath,
        options: WriteOptions,
        managed_fields: Sequence[apply.ManagedFieldsJson] | None = None,
    ) -> PreparedWrite:
        """Complete and validate a changed object. Raises StatusError if it is invalid."""
        strategy, has_status = path.resource.strategy, _STATUS in path.resource.subresources
        storage_version = path.served_kind.api_version
        is_old_version = path.resource.converter is not None and stored_object["apiVersion"] != storage_version
        if is_old_version:
            stored_object = strategy.in_version(stored_object, storage_version)
        obj = restore_stored_times(sent_object.obj, strategy.render(stored_object, storage_version), stored_object)
        obj = _without_provided_annotation(obj) if _is_provided(stored_object, path) and not path.subresource else obj
        sent_object = serialization.SentObject(strategy.prepare_update(obj, stored_object), sent_object.warnings)
        _check_server_metadata(sent_object.obj, stored_object, path)
        if path.subresource == _STATUS:
            new = _with_sent_status(sent_object.obj, stored_object, path)
            errors = strategy.check_status(new, stored_object)
            stored_entries = stored_object["metadata"].get("managedFields") or []
        else:
            new = {**sent_object.obj, "status": stored_object.get("status")} if has_status else sent_object.obj
            errors = strategy.check_update(
                {**new, "status": new.get("status") or {}} if has_status else new, stored_object
            )
            stored_entries = _managed_fields_before(sent_object.obj, stored_object)
        _check_valid(errors, path, path.name)
        if path.subresource != _STATUS:
            _check_write_guard(sent_object.obj, stored_object, path, options)
        new = {field: value for field, value in new.items() if value is not None}
        if managed_fields is None:
            accessors, author = (
                apply.version_accessors_of(path.resource, path.namespace),
                self._field_manager(path, options),
            )
            old_and_new = (
                strategy.in_version(stored_object, path.api_version),
                strategy.in_version(new, path.api_version),
            )
            managed_fields = apply.managed_fields_after_update(*old_and_new, stored_entries, author, accessors)
        is_status = path.subresource == _STATUS
        write: Update | UpdateStatus = (
            _status_write(sent_object.obj, new, stored_object, managed_fields)
            if is_status
            else Update(sent_object.obj, managed_fields, is_whole=not has_status)
        )
        if is_old_version:  # its spec and status are stored in the storage version together
            write = Update(new, managed_fields, is_whole=True)
        pod_review = (
            PodSecurityReview()
            if is_status
            else review_security(path.served_kind.constant, new, stored_object, self.objects)
        )
        warnings, base_version = (
            (*sent_object.warnings, *pod_review.warnings),
            stored_object["metadata"]["resourceVersion"],
        )
        return PreparedWrite(write, path.name, options.dry_run, 200, warnings, base_version, pod_review.annotations)

    def _execute_write(self, write: Write, path: resources.ResourcePath, name: str, *, dry_run: bool) -> Obj:
        return resources.execute_write(self.objects, write, path.served_kind, name, dry_run=dry_run)

    def get_stored(self, path: resources.ResourcePath) -> Obj:
        """Return the object at a path. Raises StatusError if it does not exist."""
        stored_object = self.objects.get(_key(path))
        if stored_object is None:
            raise resources.not_found_error(path.served_kind, path.name)
        return stored_object

    def _field_manager(self, path: resources.ResourcePath, options: WriteOptions) -> apply.FieldManager:
        write_time = format_time(self._now() // SECOND * SECOND)
        return apply.FieldManager(options.manager, path.api_version, path.subresource, write_time)


def _stored_response(write: PreparedWrite, stored_object: Obj, path: resources.ResourcePath) -> Response:
    return Response(write.code, _render(stored_object, path), write.warnings, annotations=write.annotations)


def _check_namespace(objects: resources.ApiObjectStore, path: resources.ResourcePath) -> None:
    if path.namespace and objects.get(Key(scheme.NAMESPACE, "", path.namespace)) is None:
        raise resources.not_found_error(scheme.kind_info(scheme.NAMESPACE), path.namespace)


@contextmanager
def _annotate_rejection(annotations: Mapping[str, str]) -> Iterator[None]:
    try:
        yield
    except StatusError as error:
        error.annotations = annotations
        raise


def _check_write_guard(obj: Obj, old: Obj | None, path: resources.ResourcePath, options: WriteOptions) -> None:
    if path.resource.guard is not None:
        path.resource.guard(options.user, obj, old)


def _check_creation(draft: WriteDraft, metadata: Mapping[str, Any]) -> None:
    if draft.managed_fields is None:
        if metadata.get("resourceVersion") and not draft.options.dry_run:
            raise bad_request("resourceVersion should not be set on objects to be created")
    elif uid := draft.body.value["metadata"].get("uid"):
        message = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        raise resources.conflict_error(draft.path.served_kind, draft.path.name, message)


def _key(path: resources.ResourcePath) -> Key:
    return Key(path.served_kind.constant, path.namespace, path.name)


def _check_valid(errors: Sequence[FieldError], path: resources.ResourcePath, name: str) -> None:
    if errors:
        raise resources.invalid_object_error(InvalidObject(errors), path.served_kind, name)


def _render(obj: Obj, path: resources.ResourcePath) -> dict[str, Any]:
    return path.resource.strategy.render(obj, path.api_version)


def _without_server_fields(body: serialization.RequestBody, path: resources.ResourcePath) -> serialization.RequestBody:
    if not isinstance(body.value, Mapping):
        return body
    obj = dict(body.value)
    if _STATUS in path.resource.subresources and not path.resource.keeps_sent_status:
        obj.pop("status", None)
    if isinstance(metadata := obj.get("metadata"), Mapping):
        obj["metadata"] = {name: value for name, value in metadata.items() if name not in _SERVER_SET_METADATA}
    return serialization.RequestBody(obj, body.faults)


def _writable_fields(config: Mapping[str, Any], path: resources.ResourcePath) -> dict[str, Any]:
    if path.subresource == _STATUS:
        fields = {name: value for name, value in config.items() if name in ("apiVersion", "kind", "status")}
        return {**fields, "metadata": applied_status_metadata(path.resource, config.get("metadata") or {})}
    has_status = _STATUS in path.resource.subresources
    return {name: value for name, value in config.items() if name != "status" or not has_status}


def _fields_of_author(new: dict[str, Any], path: resources.ResourcePath) -> dict[str, Any]:
    """Return a new object without a status, which the server sets, and without an empty spec of a native kind."""
    if _STATUS in path.resource.subresources:
        new = {field: value for field, value in new.items() if field != _STATUS}
    if path.resource.is_native and new.get("spec") == {}:
        new = {field: value for field, value in new.items() if field != "spec"}
    return new


def _with_sent_status(sent_object: Obj, stored_object: Obj, path: resources.ResourcePath) -> dict[str, Any]:
    metadata = metadata_after_status_write(path.resource, sent_object["metadata"], stored_object)
    return {**stored_object, "metadata": metadata, "status": sent_object.get("status")}


def _status_write(
    sent_object: Obj, new: Obj, stored_object: Obj, managed_fields: Sequence[apply.ManagedFieldsJson]
) -> UpdateStatus:
    if new["metadata"] is stored_object["metadata"]:
        return UpdateStatus(sent_object, managed_fields)
    preconditions = {field: sent_object["metadata"].get(field) for field in ("uid", "resourceVersion")}
    return UpdateStatus(with_metadata(new, **preconditions), managed_fields, with_metadata=True)


def _is_provided(stored_object: Obj, path: resources.ResourcePath) -> bool:
    """Return whether the platform created the object by itself and no client has taken it over."""
    return path.resource.is_adoptable and annotation(stored_object, well_known.PROVIDED) is not None


def _without_provided_annotation(obj: Obj) -> dict[str, Any]:
    annotations = dict(obj["metadata"].get("annotations") or {})
    annotations.pop(well_known.PROVIDED, None)
    return with_metadata(obj, annotations=annotations or None)


def _managed_fields_before(sent_object: Obj, stored_object: Obj) -> Sequence[apply.ManagedFieldsJson]:
    """Return the sent `managedFields` if set, else the stored ones; [] if the client resets them with [] or [{}]."""
    sent_entries = sent_object["metadata"].get("managedFields")
    if sent_entries is not None and (not sent_entries or sent_entries == [{}]):
        return []
    entries: Sequence[apply.ManagedFieldsJson] = sent_entries or stored_object["metadata"].get("managedFields") or []
    return entries


def _check_server_metadata(sent_object: Obj, stored_object: Obj, path: resources.ResourcePath) -> None:
    new, old = sent_object["metadata"], stored_object["metadata"]
    if new.get("uid", old["uid"]) != old["uid"]:
        message = f"Precondition failed: UID in precondition: {new['uid']}, UID in object meta: {old['uid']}"
        raise resources.conflict_error(path.served_kind, path.name, message)
    # Checked before validation: a client with a stale object gets the conflict, not errors about immutable fields.
    if (new.get("resourceVersion") or old["resourceVersion"]) != old["resourceVersion"]:
        raise resources.conflict_error(path.served_kind, path.name)
    errors = []
    if not new.get("resourceVersion") and not path.resource.is_native:
        errors.append(FieldError("metadata.resourceVersion", "Invalid value: 0x0: must be specified for an update"))
    creation_time = old["creationTimestamp"]
    if _whole_seconds_of(new.get("creationTimestamp") or creation_time) != _whole_seconds_of(creation_time):
        problem = f'Invalid value: "{new["creationTimestamp"]}": field is immutable'
        errors.append(FieldError("metadata.creationTimestamp", problem))
    stores_finalizers = path.subresource != _STATUS or is_changed_by_status_write(path.resource, "finalizers")
    if old.get("deletionTimestamp") and stores_finalizers:
        errors += _added_finalizer_errors(new.get("finalizers") or (), old.get("finalizers") or ())
    if errors:
        raise resources.invalid_object_error(InvalidObject(errors), path.served_kind, path.name)


def _added_finalizer_errors(new: Sequence[str], old: Sequence[str]) -> Iterator[FieldError]:
    added_names = sorted({*new} - {*old})
    if added_names:
        quoted_names = ", ".join(f'"{name}"' for name in added_names)
        problem = "no new finalizers can be added if the object is being deleted, found new finalizers"
        yield FieldError("metadata.finalizers", f"Forbidden: {problem} []string{{{quoted_names}}}")


def _whole_seconds_of(timestamp: str) -> int:
    return parse_time(timestamp) // SECOND


def _check_preconditions(options: DeleteOptions, stored_object: Obj, path: resources.ResourcePath, name: str) -> None:
    if unmet_precondition := options.unmet_precondition(stored_object):
        message = f'Operation cannot be fulfilled on {path.served_kind.group_kind} "{name}": {unmet_precondition}'
        raise StatusError(409, "Conflict", message, resources.object_details(path.served_kind, name))


def _delete_write(stored_object: Obj, options: DeleteOptions, path: resources.ResourcePath) -> Delete:
    propagation = options.propagation
    if propagation is None and not {*finalizers_of(stored_object)} & _PROPAGATION_FINALIZERS:
        propagation = path.resource.propagation
    return Delete(key_of(stored_object), options.grace_seconds, propagation, options.uid)


def _deletion_result(
    stored_object: Obj, last_object: Obj, path: resources.ResourcePath, revision: str | None
) -> Mapping[str, Any]:
    """Return the body of the response to the removal of an object: its last state, or a Status."""
    if path.resource.returns_deleted_object:
        return _render(with_metadata(last_object, resourceVersion=revision) if revision else last_object, path)
    uid = stored_object["metadata"]["uid"]
    details = {**resources.object_details(path.served_kind, path.name), "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _propagation_warnings(options: DeleteOptions, path: resources.ResourcePath) -> tuple[str, ...]:
    warning = path.resource.propagation_warning
    return (warning,) if warning and options.propagation is None else ()
