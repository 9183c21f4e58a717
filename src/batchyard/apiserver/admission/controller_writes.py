"""Admission of the writes of this process's controllers, by the policies and webhooks that admit requests of clients.

A write that none of them matches is executed at once. Other writes are executed after the responses of the webhooks, in
their order. Leases of nodes and leaders are not admitted, so that a failed webhook does not make nodes unready.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from batchyard.api import scheme
from batchyard.api.conversion import restore_stored_times
from batchyard.api.errors import ApiError, InvalidObject, NotFound, TemporarilyForbidden
from batchyard.api.meta import Key, Obj, group_kind, key_of
from batchyard.apiserver.admission.attributes import CREATE, DELETE, UPDATE, AdmissionAttributes, options_object
from batchyard.apiserver.admission.calls import CallRun, WebhookCalls
from batchyard.apiserver.admission.gate import CONTROLLER_USER, AdmissionGate
from batchyard.apiserver.admission.pipeline import AdmissionNotes
from batchyard.apiserver.conversions import converting
from batchyard.apiserver.request import StatusError
from batchyard.apiserver.resources import Resource, ResourcePath, Resources
from batchyard.interfaces.client import Create, Delete, Propagation, Update, UpdateStatus, Write, WriteResult

#: The kinds whose writes by controllers are not admitted.
_EXEMPT_KINDS: Final = (scheme.LEASE,)
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
        """Submit writes that no policy and no webhook matches."""

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

        CallRun(calls, self._gate.ports, finish).start()

    def _matches(self, write: Write) -> bool:
        path = self._path_of(write)
        return path is not None and self._gate.stages.may_match(_operation_of(write), path)

    def _path_of(self, write: Write) -> ResourcePath | None:
        """Return the path of a written object; None if its kind is not admitted."""
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
        if path is None or not self._gate.stages.may_match(_operation_of(write), path):
            return write
        notes = AdmissionNotes()
        stored_object = None if isinstance(write, Create) else self._client.get(_key_of(write))
        if not isinstance(write, Create) and stored_object is None:
            raise NotFound(f'{_key_of(write).kind} "{_key_of(write)}" not found')
        if isinstance(write, Delete):
            attributes = _attributes(path, write, None, stored_object)
            yield from self._gate.stages.admit(attributes, notes)
            return write
        return (yield from self._admit_object(write, stored_object, path, notes))

    def _admit_object(
        self, write: ObjectWrite, stored_object: Obj | None, path: ResourcePath, notes: AdmissionNotes
    ) -> WebhookCalls:
        stages, scope = self._gate.stages, notes.scope
        sent_object = write.obj
        if isinstance(write, UpdateStatus) and stored_object is not None:
            sent_object = {**stored_object, "status": write.obj.get("status")}
        attributes = _attributes(path, write, sent_object, stored_object)
        mutated = yield from stages.mutate(attributes, notes)
        if mutated.obj != attributes.obj:
            decode = partial(_decode_mutated, mutated.obj, sent_object, stored_object, path)
            write = _with_object(write, (yield from converting(decode, scope)))
        if stages.validates:
            result = self._client.attempt(write, dry_run=True)
            if result.obj is None:
                raise result.error or ApiError("the write was rejected")
            if isinstance(write, Create):
                write = Create(result.obj)
                path = path._replace(name=result.obj["metadata"]["name"])
            yield from stages.validate(_attributes(path, write, result.obj, stored_object), notes)
        return write


def _operation_of(write: Write) -> str:
    return CREATE if isinstance(write, Create) else DELETE if isinstance(write, Delete) else UPDATE


def _key_of(write: Write) -> Key:
    return write.key if isinstance(write, Delete) else key_of(write.obj)


def _attributes(path: ResourcePath, write: Write, obj: Obj | None, stored_object: Obj | None) -> AdmissionAttributes:
    operation, render = _operation_of(write), path.resource.strategy.render
    return AdmissionAttributes(
        operation,
        path,
        None if obj is None else render(obj, path.api_version),
        None if stored_object is None else render(stored_object, path.api_version),
        options_object(operation, _delete_fields(write) if isinstance(write, Delete) else {}),
        CONTROLLER_USER,
        dry_run=False,
    )


def _delete_fields(write: Delete) -> Mapping[str, Any]:
    preconditions = {"uid": write.uid} if write.uid else None
    return {
        "gracePeriodSeconds": write.grace_period_seconds,
        "propagationPolicy": (write.propagation or Propagation.BACKGROUND).value,
        "preconditions": preconditions,
    }


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
        return UpdateStatus(obj, write.managed_fields, with_metadata=write.with_metadata)
    return Update(obj, write.managed_fields, is_whole=write.is_whole)


def _api_error(error: StatusError) -> ApiError:
    """Return the error of a rejected write as controllers receive it; they retry later."""
    return ApiError(str(error)) if error.code >= 500 else TemporarilyForbidden(str(error))
