"""Admission of the writes of this process's controllers, which pass the same webhooks as requests of other clients.

A write that no webhook matches is executed at once. Other writes are executed after the responses of the webhooks, in
their order. Leases of nodes and leaders are not admitted, so that a failed webhook does not make nodes unready.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

from batchyard.api import scheme
from batchyard.api.conversion import restore_stored_times
from batchyard.api.errors import ApiError, InvalidObject, NotFound, TemporarilyForbidden
from batchyard.api.meta import Key, Obj, group_kind, key_of
from batchyard.apiserver.admission.attributes import CREATE, DELETE, UPDATE, AdmissionAttributes
from batchyard.apiserver.admission.gate import CONTROLLER_USER, AdmissionGate, CallRun
from batchyard.apiserver.admission.pipeline import AdmissionNotes, WebhookCalls
from batchyard.apiserver.request import StatusError
from batchyard.apiserver.resources import Resource, ResourcePath, Resources
from batchyard.interfaces.client import Create, Delete, Update, UpdateStatus, Write, WriteResult

#: The kinds whose writes by controllers are not admitted.
_EXEMPT_KINDS: Final = (scheme.LEASE,)
_OPTIONS_VERSION: Final = "meta.k8s.io/v1"
ObjectWrite: TypeAlias = Create | Update | UpdateStatus


class InterceptedClient(Protocol):
    """The client whose submitted writes are admitted."""

    def get(self, key: Key) -> Obj | None:
        """Return the object with a key; None if it does not exist."""

    def attempt(self, write: Write, *, dry_run: bool = False) -> WriteResult:
        """Apply one write now and return its result."""

    def attempt_submitted(self, write: Write) -> WriteResult:
        """Apply one submitted write now, with the field manager recorded, and return its result."""

    def submit_directly(self, writes: Iterable[Write], on_result: Callable[[WriteResult], None]) -> None:
        """Submit writes that no webhook matches."""

    def queue_result(self, on_result: Callable[[WriteResult], None], result: WriteResult) -> None:
        """Queue the result of a write; the next delivery calls `on_result` with it."""


class ControllerWrites:
    """Admits the writes that controllers submit to a client."""

    def __init__(self, gate: AdmissionGate, client: InterceptedClient, resources: Resources) -> None:
        self._gate = gate
        self._client = client
        self._resources = resources
        self._edition = -1
        self._resource_by_kind: Mapping[str, Resource] = {}

    def submit(self, writes: Iterable[Write], on_result: Callable[[WriteResult], None]) -> None:
        """Admit and apply writes in order until one is rejected; `on_result` later gets the result of the last one."""
        submitted_writes = list(writes)
        if not any(self._matches(write) for write in submitted_writes):
            self._client.submit_directly(submitted_writes, on_result)
            return
        calls = self._apply_in_order(submitted_writes)

        def finish(result: WriteResult | StatusError) -> None:
            if isinstance(result, StatusError):
                result = WriteResult(None, _api_error(result), submitted_writes[0])
            self._client.queue_result(on_result, result)

        CallRun(calls, self._gate.caller, finish).start()

    def _matches(self, write: Write) -> bool:
        path = self._path_of(write)
        return path is not None and self._gate.registry.may_match(_operation_of(write), path)

    def _path_of(self, write: Write) -> ResourcePath | None:
        """Return the path of a written object; None if webhooks do not admit its kind."""
        kind = write.key.kind if isinstance(write, Delete) else group_kind(write.obj)
        if self._edition != self._resources.edition:
            self._edition = self._resources.edition
            self._resource_by_kind = {each.served_kind.constant: each for each in self._resources.all()}
        resource = self._resource_by_kind.get(kind)
        if resource is None or kind in _EXEMPT_KINDS:
            return None
        if isinstance(write, Delete):
            namespace, name = write.key.namespace, write.key.name
        else:
            metadata = write.obj["metadata"]
            namespace, name = metadata.get("namespace") or "", metadata.get("name") or ""
        served_kind, subresource = resource.served_kind, "status" if isinstance(write, UpdateStatus) else ""
        return ResourcePath(
            resource, served_kind.storage_version, namespace, name, subresource, served_kind.api_version
        )

    def _apply_in_order(self, writes: Sequence[Write]) -> WebhookCalls:
        result = WriteResult(None)
        for write in writes:
            try:
                admitted_write = yield from self._admit(write)
            except StatusError as error:
                return WriteResult(None, _api_error(error), write)
            except ApiError as error:
                return WriteResult(None, error.with_traceback(None), write)
            result = self._client.attempt_submitted(admitted_write)
            if result.error is not None:
                break
        return result

    def _admit(self, write: Write) -> WebhookCalls:
        path = self._path_of(write)
        if path is None or not self._gate.registry.may_match(_operation_of(write), path):
            return write
        notes = AdmissionNotes([], {})
        stored_object = None if isinstance(write, Create) else self._client.get(_key_of(write))
        if not isinstance(write, Create) and stored_object is None:
            raise NotFound(f'{_key_of(write).kind} "{_key_of(write)}" not found')
        if isinstance(write, Delete):
            attributes = _attributes(path, write, None, stored_object)
            yield from self._gate.admit(attributes, notes)
            return write
        return (yield from self._admit_object(write, stored_object, path, notes))

    def _admit_object(
        self, write: ObjectWrite, stored_object: Obj | None, path: ResourcePath, notes: AdmissionNotes
    ) -> WebhookCalls:
        registry, admission = self._gate.registry, self._gate.admission(notes)
        sent_object = write.obj
        if isinstance(write, UpdateStatus) and stored_object is not None:
            sent_object = {**stored_object, "status": write.obj.get("status")}
        attributes = _attributes(path, write, sent_object, stored_object)
        mutated = yield from admission.mutate(registry.mutating, attributes, lambda obj: obj)
        if mutated.obj != attributes.obj:
            write = _with_object(write, _decode_mutated(mutated.obj, sent_object, stored_object, path))
        if registry.validating:
            result = self._client.attempt(write, dry_run=True)
            if result.obj is None:
                raise result.error or ApiError("the write was rejected")
            if isinstance(write, Create):
                write = Create(result.obj)
                path = path._replace(name=result.obj["metadata"]["name"])
            yield from admission.validate(registry.validating, _attributes(path, write, result.obj, stored_object))
        return write


def _operation_of(write: Write) -> str:
    return CREATE if isinstance(write, Create) else DELETE if isinstance(write, Delete) else UPDATE


def _key_of(write: Write) -> Key:
    return write.key if isinstance(write, Delete) else key_of(write.obj)


def _attributes(path: ResourcePath, write: Write, obj: Obj | None, stored_object: Obj | None) -> AdmissionAttributes:
    operation, render = _operation_of(write), path.resource.strategy.render
    kind = {CREATE: "CreateOptions", UPDATE: "UpdateOptions", DELETE: "DeleteOptions"}[operation]
    return AdmissionAttributes(
        operation,
        path,
        None if obj is None else render(obj, path.api_version),
        None if stored_object is None else render(stored_object, path.api_version),
        {"kind": kind, "apiVersion": _OPTIONS_VERSION},
        CONTROLLER_USER,
        dry_run=False,
    )


def _decode_mutated(obj: Any, sent_object: Obj, stored_object: Obj | None, path: ResourcePath) -> Obj:
    """Return a mutated object in the storage version. Raises InvalidObject if the webhooks made it invalid."""
    strategy = path.resource.strategy
    decoded_object = strategy.decode(obj, path.namespace)
    if decoded_object.obj is None:
        raise InvalidObject(decoded_object.faults)
    new: Obj = restore_stored_times(decoded_object.obj, strategy.render(sent_object, path.api_version), sent_object)
    if stored_object is None:
        errors = strategy.check_create(new)
    elif path.subresource:
        errors = strategy.check_status(new, stored_object)
    else:
        errors = strategy.check_update(new, stored_object)
    if errors:
        raise InvalidObject(errors)
    return new


def _with_object(write: ObjectWrite, obj: Obj) -> ObjectWrite:
    if isinstance(write, Create):
        return Create(obj)
    if isinstance(write, UpdateStatus):
        return UpdateStatus(obj, write.managed_fields)
    return Update(obj, write.managed_fields, is_whole=write.is_whole)


def _api_error(error: StatusError) -> ApiError:
    """Return the error of a rejected write as controllers receive it; they retry later."""
    return ApiError(str(error)) if error.code >= 500 else TemporarilyForbidden(str(error))
