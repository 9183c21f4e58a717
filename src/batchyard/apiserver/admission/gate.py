"""Write requests that policies and webhooks must admit: each is prepared, admitted, and stored after the responses.

While webhooks are called, the server answers other requests. If the object changes meanwhile, the request is prepared
and admitted again. Sources: k8s.io/apiserver, pkg/endpoints/handlers/{create,update,patch,delete}.go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of, with_metadata
from batchyard.apiserver.admission.attributes import (
    CONNECT,
    CREATE,
    DELETE,
    UPDATE,
    AdmissionAttributes,
    convert_object,
    request_options,
)
from batchyard.apiserver.admission.calls import (
    CallPorts,
    OutsideWork,
    WebhookCaller,
    WebhookCalls,
    internal_error,
    prepare_outside,
    respond_later,
)
from batchyard.apiserver.admission.large_writes import LargeDraft, complete_or_none, decode_verdict, encode_verdict
from batchyard.apiserver.admission.pipeline import (
    AdmissionNotes,
    AdmissionObserver,
    AdmissionPolicies,
    WebhookAdmission,
    WebhookPorts,
)
from batchyard.apiserver.admission.registrations import WebhookMatcher, WebhookRegistry, is_exempt, operation_of
from batchyard.apiserver.conversions import convert_all, converting
from batchyard.apiserver.handlers.prepared_writes import (
    PREPARE_ATTEMPTS_MAX,
    PreparedWrite,
    WriteExecutor,
    decode_outcome,
    encode_outcome,
)
from batchyard.apiserver.handlers.write import WriteDraft, WriteHandler
from batchyard.apiserver.patch import UNSTRUCTURED, apply_patch
from batchyard.apiserver.request import (
    APPLY_PATCH,
    CONTROLLER_USERNAME,
    JSON,
    AnyResponse,
    ApiRequest,
    Response,
    UserInfo,
    parse_delete_options,
)
from batchyard.apiserver.resources import ApiObjectStore, ResourcePath, conflict_error, execute_write
from batchyard.apiserver.serialization import RequestBody, content_type_of, read_body, read_json, read_yaml, with_kind
from batchyard.base.primitives import uid_for
from batchyard.interfaces.client import Create, Update, UpdateStatus

#: The maximum number of times that a large draft is prepared, for changes of its object and for conversions.
_LARGE_ATTEMPTS_MAX: Final = 16
#: Metadata that the server sets after mutation.
_SET_AFTER_MUTATION: Final = ("uid", "creationTimestamp", "generation")


class GateParts(NamedTuple):
    """The parts of the API server that the admission of requests uses."""

    objects: ApiObjectStore
    write_handler: WriteHandler
    registry: WebhookRegistry
    observer: AdmissionObserver
    caller: WebhookCaller
    #: Makes ids unique across restarts of the server.
    seed: int
    policies: AdmissionPolicies
    #: Prepares large writes outside the API server's thread; None to prepare them in it.
    executor: WriteExecutor | None = None


class AdmissionStages:
    """The stages in which policies and webhooks admit a request: mutation, then validation."""

    def __init__(self, parts: GateParts) -> None:
        self.registry, self._policies = parts.registry, parts.policies
        self._seed = parts.seed
        self._uid_count = 0
        matcher = WebhookMatcher(parts.objects, parts.observer.count_condition)
        self._webhook_ports = WebhookPorts(matcher, parts.observer, self._new_uid, convert_for_webhook)

    def _new_uid(self) -> str:
        self._uid_count += 1
        return uid_for(self._seed, "AdmissionReview", str(self._uid_count))

    @property
    def is_configured(self) -> bool:
        """Whether a webhook, or a policy with a binding, is stored."""
        return not self.registry.is_empty or self._policies.mutates or self._policies.validates

    def may_match(self, operation: str, path: ResourcePath) -> bool:
        """Return whether the rules of a webhook or of a policy match an operation on a resource."""
        if is_exempt(path):
            return False
        return self._policies.may_match(operation, path) or self.registry.may_match(operation, path)

    def mutate(
        self,
        attributes: AdmissionAttributes,
        notes: AdmissionNotes,
        repeat_built_in: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda obj: obj,
    ) -> WebhookCalls:
        """Apply the mutating policies, then call the mutating webhooks; return the attributes with the mutated object.

        Raises StatusError if the request is rejected.
        """
        policies = self._policies
        if policies.mutates and attributes.obj is not None:
            work = partial(policies.mutate, attributes)
            if notes.is_large:
                outcome = yield OutsideWork(attributes.user, partial(encode_outcome, partial(notes.scope.run, work)))
                mutated_object = decode_outcome(outcome)
            else:
                mutated_object = yield from converting(work, notes.scope)
            attributes = attributes._replace(obj=mutated_object)
        return (
            yield from WebhookAdmission(self._webhook_ports, notes).mutate(
                self.registry.mutating, attributes, repeat_built_in
            )
        )

    @property
    def mutates(self) -> bool:
        """Whether a mutating policy or webhook is configured."""
        return bool(self.registry.mutating) or self._policies.mutates

    @property
    def validates(self) -> bool:
        """Whether a validating policy or webhook is configured."""
        return bool(self.registry.validating) or self._policies.validates

    def validate(self, attributes: AdmissionAttributes, notes: AdmissionNotes) -> WebhookCalls:
        """Evaluate the validating policies, then call the validating webhooks.

        Raises StatusError if the request is rejected.
        """
        policies = self._policies
        if policies.validates:
            work = partial(policies.validate, attributes)
            if notes.is_large:
                encode = partial(encode_verdict, partial(notes.scope.run, work))
                verdict = decode_verdict((yield OutsideWork(attributes.user, encode)))
            else:
                verdict = yield from converting(work, notes.scope)
            notes.warnings.extend(verdict.warnings)
            notes.annotations.update(verdict.annotations)
        yield from WebhookAdmission(self._webhook_ports, notes).validate(self.registry.validating, attributes)

    def admit(self, attributes: AdmissionAttributes, notes: AdmissionNotes) -> WebhookCalls:
        """Run the mutating, then the validating stage; return the mutated object.

        Raises StatusError if the request is rejected.
        """
        mutated = yield from self.mutate(attributes, notes)
        yield from self.validate(mutated, notes)
        return mutated.obj


class AdmissionGate:
    """Admits write requests by policies and webhooks, and answers them."""

    def __init__(self, parts: GateParts) -> None:
        self.stages = AdmissionStages(parts)
        self.ports = CallPorts(parts.caller, parts.executor)
        self._objects, self._write_handler = parts.objects, parts.write_handler

    def matches(self, request: ApiRequest, path: ResourcePath) -> bool:
        """Return whether policies or webhooks may match a request for objects, a subresource or a connection."""
        operation = operation_of(request.method, path)
        if operation is None:
            return False
        operations = (CREATE, UPDATE) if request.method == "PATCH" else (operation,)
        return any(self.stages.may_match(each, path) for each in operations)

    def answer_write(self, request: ApiRequest, path: ResourcePath, *, is_large: bool = False) -> AnyResponse:
        """Answer a write of stored objects after its admission. Raises StatusError on failure."""
        notes = AdmissionNotes(is_large=is_large and self.ports.executor is not None)
        if request.method != "DELETE":
            return self._run(self._write(request, path, notes), notes)
        delete = self._delete if path.name else self._delete_all
        return self._run(delete(request, path, notes), notes)

    def answer_endpoint(
        self, request: ApiRequest, path: ResourcePath, handler: Callable[[ApiRequest, str, str], AnyResponse]
    ) -> AnyResponse:
        """Answer a request that a handler function serves, after its admission. Raises StatusError on failure."""
        notes = AdmissionNotes()
        return self._run(self._call_endpoint(request, path, handler, notes), notes)

    def _run(self, calls: WebhookCalls, notes: AdmissionNotes) -> AnyResponse:
        return respond_later(calls, self.ports, lambda response: _with_notes(response, notes))

    # --- create, update and patch ---

    def _write(self, request: ApiRequest, path: ResourcePath, notes: AdmissionNotes) -> WebhookCalls:
        for _ in range(PREPARE_ATTEMPTS_MAX):
            draft, prepared_write = yield from self._read_draft(request, path, notes)
            prepared_write = yield from self._admit_draft(draft, prepared_write, request, notes)
            if self._is_current(prepared_write, draft):
                store = partial(self._write_handler.store_prepared, prepared_write, draft.path)
                return (yield from converting(store, notes.scope))
        raise conflict_error(path.served_kind, path.name)

    def _read_draft(self, request: ApiRequest, path: ResourcePath, notes: AdmissionNotes) -> WebhookCalls:
        """Return a draft and its write, which is None if the object is invalid."""
        handler = self._write_handler
        if not notes.is_large:
            draft = yield from converting(partial(handler.read_draft, request, path), notes.scope)
            return draft, (yield from converting(partial(complete_or_none, handler, draft), notes.scope))
        large_draft = LargeDraft(handler, request, path)
        for _ in range(_LARGE_ATTEMPTS_MAX):
            encode = partial(encode_outcome, partial(notes.scope.run, large_draft.prepare))
            outcome = yield OutsideWork(request.user, encode)
            result = yield from large_draft.read(outcome, notes.scope)
            if result is not None:
                return result
        raise conflict_error(path.served_kind, path.name)

    def _is_current(self, prepared_write: PreparedWrite, draft: WriteDraft) -> bool:
        if isinstance(prepared_write.write, Create) and draft.managed_fields is not None:
            path = draft.path  # an applied object that another client created meanwhile
            if self._objects.get(Key(path.served_kind.constant, path.namespace, path.name)) is not None:
                return False
        return self._write_handler.is_current(prepared_write, draft.path)

    def _admit_draft(
        self, draft: WriteDraft, prepared_write: PreparedWrite | None, request: ApiRequest, notes: AdmissionNotes
    ) -> WebhookCalls:
        path, is_creation = draft.path, draft.stored_object is None or draft.is_created
        operation, stored_object = (CREATE, None) if is_creation else (UPDATE, draft.stored_object)
        render, scope = path.resource.strategy.render, notes.scope
        old_object = None
        if stored_object is not None:
            old_object = yield from converting(partial(render, stored_object, path.api_version), scope)
        options = request_options(request, operation)
        user, is_dry_run = draft.options.user, draft.options.dry_run
        attributes = AdmissionAttributes(operation, path, None, old_object, options, user, is_dry_run)
        if self.stages.mutates:
            prepared_write = yield from self._mutate_draft(draft, prepared_write, attributes, notes)
        if prepared_write is None:
            prepared_write = yield from self._complete(draft, notes)  # raises the validation errors
        if not self.stages.validates:
            return prepared_write
        final_object = self._dry_run(prepared_write, path)
        if isinstance(prepared_write.write, Create):
            prepared_write = prepared_write._replace(write=Create(final_object))
        final_attributes = attributes._replace(
            path=path._replace(name=path.name or final_object["metadata"]["name"]),
            obj=(yield from converting(partial(render, final_object, path.api_version), scope)),
        )
        yield from self.stages.validate(final_attributes, notes)
        return prepared_write

    def _mutate_draft(
        self,
        draft: WriteDraft,
        prepared_write: PreparedWrite | None,
        attributes: AdmissionAttributes,
        notes: AdmissionNotes,
    ) -> WebhookCalls:
        """Return the write after its mutation; None if its object is invalid and was not mutated."""
        path = draft.path
        obj = yield from converting(partial(self._mutation_input, draft, prepared_write), notes.scope)
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        attributes = attributes._replace(path=path._replace(name=path.name or str(name or "")), obj=obj)
        mutated_attributes = yield from self.stages.mutate(attributes, notes, self._built_in_repetition(draft))
        if mutated_attributes.obj == obj:
            return prepared_write
        body = RequestBody(mutated_attributes.obj, draft.body.faults)
        mutated_write = yield from self._complete(draft._replace(body=body, unpatched_object=None), notes)
        if prepared_write is None:
            return mutated_write
        # The webhooks own no fields: the ownership is that of the request.
        return mutated_write._replace(write=_with_fields_of(mutated_write.write, prepared_write.write))

    def _complete(self, draft: WriteDraft, notes: AdmissionNotes) -> WebhookCalls:
        complete = partial(self._write_handler.complete_draft, draft)
        if notes.is_large:
            return (yield from prepare_outside(complete, draft.options.user, notes.scope))
        return (yield from converting(complete, notes.scope))

    def _mutation_input(self, draft: WriteDraft, prepared_write: PreparedWrite | None) -> Mapping[str, Any]:
        """Return the object for mutating webhooks, in the version of the request; as sent if it is invalid."""
        path = draft.path
        if prepared_write is None:
            sent_object = with_kind(draft.body.value, path)
            metadata = sent_object.get("metadata")
            if not path.namespace or not isinstance(metadata, Mapping):
                return sent_object
            return {**sent_object, "metadata": {**metadata, "namespace": metadata.get("namespace") or path.namespace}}
        write = prepared_write.write
        if draft.stored_object is not None and not draft.is_created:
            stored_metadata = draft.stored_object["metadata"]
            obj = self._dry_run(prepared_write, path)
            if "generation" in stored_metadata:
                obj = with_metadata(obj, generation=stored_metadata["generation"])
            return path.resource.strategy.render(obj, path.api_version)
        obj = self._with_built_in_mutation(write.obj, path)
        return path.resource.strategy.render(obj, path.api_version)

    def _with_built_in_mutation(self, obj: Obj, path: ResourcePath) -> Obj:
        """Return a new pod as the built-in plugins complete it; other objects and rejected pods unchanged."""
        if path.served_kind.constant != scheme.POD:
            return obj
        result = self._objects.attempt(Create(obj), dry_run=True)
        if result.obj is None:
            return obj
        metadata, sent_metadata = dict(result.obj["metadata"]), obj["metadata"]
        for name in (*_SET_AFTER_MUTATION, "name"):
            if name not in sent_metadata:
                metadata.pop(name, None)
        return {**result.obj, "metadata": metadata}

    def _built_in_repetition(self, draft: WriteDraft) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
        path = draft.path

        def repeat(obj: Mapping[str, Any]) -> Mapping[str, Any]:
            if draft.stored_object is not None or path.served_kind.constant != scheme.POD:
                return obj
            decoded_object = path.resource.strategy.decode(obj, path.namespace).obj
            if decoded_object is None:
                return obj
            return path.resource.strategy.render(self._with_built_in_mutation(decoded_object, path), path.api_version)

        return repeat

    def _dry_run(self, prepared_write: PreparedWrite, path: ResourcePath) -> Obj:
        return execute_write(self._objects, prepared_write.write, path.served_kind, prepared_write.name, dry_run=True)

    # --- delete ---

    def _delete(self, request: ApiRequest, path: ResourcePath, notes: AdmissionNotes) -> WebhookCalls:
        for _ in range(PREPARE_ATTEMPTS_MAX):
            key = Key(path.served_kind.constant, path.namespace, path.name)
            stored_object = self._objects.get(key)
            if stored_object is None:
                break
            yield from self._admit_deletion(request, path, stored_object, notes)
            current_object = self._objects.get(key)
            if current_object is None or current_object["metadata"]["uid"] == stored_object["metadata"]["uid"]:
                break
        return (yield from converting(partial(self._write_handler.handle, request, path), notes.scope))

    def _delete_all(self, request: ApiRequest, path: ResourcePath, notes: AdmissionNotes) -> WebhookCalls:
        handler, in_version = self._write_handler, path.resource.strategy.in_version
        options, selected_objects = handler.select_for_deletion(request, path)
        if path.resource.converter is not None:
            convert_selected = partial(convert_all, in_version, selected_objects, path.api_version)
            yield from converting(convert_selected, notes.scope)
        for obj in selected_objects:
            yield from self._admit_deletion(request, path, obj, notes)
            if self._objects.get(key_of(obj)) is not None:
                handler.delete_selected(obj, options, path)
        return (yield from converting(partial(handler.deletion_response, selected_objects, path), notes.scope))

    def _admit_deletion(
        self, request: ApiRequest, path: ResourcePath, stored_object: Obj, notes: AdmissionNotes
    ) -> WebhookCalls:
        options, render = parse_delete_options(request, read_body(request).value), path.resource.strategy.render
        old_object = yield from converting(partial(render, stored_object, path.api_version), notes.scope)
        metadata = stored_object["metadata"]
        target = path._replace(namespace=metadata.get("namespace") or "", name=metadata["name"])
        option_fields = request_options(request, DELETE)
        attributes = AdmissionAttributes(DELETE, target, None, old_object, option_fields, request.user, options.dry_run)
        yield from self.stages.admit(attributes, notes)

    # --- subresources and connections ---

    def _call_endpoint(
        self,
        request: ApiRequest,
        path: ResourcePath,
        handler: Callable[[ApiRequest, str, str], AnyResponse],
        notes: AdmissionNotes,
    ) -> WebhookCalls:
        operation = operation_of(request.method, path) or CONNECT
        handle = partial(handler, request, path.namespace, path.name)
        obj, old_object, options = None, None, {} if operation == CONNECT else request_options(request, operation)
        if operation == CONNECT:
            obj = _connection_options(request, path)
        elif operation == UPDATE:
            old_object = yield from converting(partial(_current_object, request, path), notes.scope)
            obj = _updated_object(request, old_object)
        elif operation == CREATE:
            obj = read_body(request).value
        if obj is not None and not isinstance(obj, Mapping):
            return (yield from converting(handle, notes.scope))  # rejects the body
        if operation not in (CONNECT, DELETE):
            obj = _with_endpoint_kind(obj or {}, path)
        is_dry_run = "dryRun" in request.query
        attributes = AdmissionAttributes(operation, path, obj, old_object, options, request.user, is_dry_run)
        admitted_object = yield from self.stages.admit(attributes, notes)
        if operation in (CONNECT, DELETE) or admitted_object == obj:
            return (yield from converting(handle, notes.scope))
        assert path.handlers is not None, "only paths with handlers get here"
        method = "PUT" if request.method == "PATCH" else request.method
        mutated_request = request.with_body(msgspec.json.encode(admitted_object))
        mutated_request = mutated_request._replace(method=method, headers={**request.headers, "content-type": JSON})
        handle = partial(path.handlers.by_method[method], mutated_request, path.namespace, path.name)
        return (yield from converting(handle, notes.scope))


def convert_for_webhook(
    attributes: AdmissionAttributes, obj: Mapping[str, Any], version: str, target_version: str
) -> Mapping[str, Any]:
    """Convert an object of a request to another version of its resource. Raises StatusError (500) if that fails."""
    path = attributes.path
    if path.handlers is not None:
        return obj
    api_version_for = path.served_kind.api_version_for
    converted_object = convert_object({**obj, "apiVersion": api_version_for(version)}, path, target_version)
    if converted_object.obj is None:
        faults = "; ".join(map(str, converted_object.faults))
        raise internal_error(f"unable to convert to {api_version_for(target_version)}: {faults}")
    return converted_object.obj


def _with_notes(response: AnyResponse, notes: AdmissionNotes) -> AnyResponse:
    if not isinstance(response, Response) or not (notes.warnings or notes.annotations):
        return response
    return response._replace(
        warnings=(*notes.warnings, *response.warnings), annotations={**response.annotations, **notes.annotations}
    )


def _with_fields_of(
    write: Create | Update | UpdateStatus, unmutated_write: Create | Update | UpdateStatus
) -> Create | Update | UpdateStatus:
    """Return a mutated write with the `managedFields` of the write before the mutation."""
    if isinstance(write, Create):
        managed_fields = unmutated_write.obj["metadata"].get("managedFields")
        return Create(with_metadata(write.obj, managedFields=managed_fields))
    if isinstance(write, UpdateStatus):
        assert isinstance(unmutated_write, UpdateStatus), "a mutation keeps the type of the write"
        return UpdateStatus(write.obj, unmutated_write.managed_fields, with_metadata=write.with_metadata)
    assert isinstance(unmutated_write, Update), "a mutation keeps the type of the write"
    return Update(write.obj, unmutated_write.managed_fields, is_whole=write.is_whole)


def _connection_options(request: ApiRequest, path: ResourcePath) -> dict[str, Any]:
    """Return the options of a connection, such as PodExecOptions, from the query of the request."""
    assert path.handlers is not None, "a connection has handlers"
    options: dict[str, Any] = {"kind": path.handlers.kind, "apiVersion": "v1"}
    options |= {name: True for name in ("stdin", "stdout", "stderr", "tty") if request.has_flag(name)}
    if "container" in request.query:
        options["container"] = request.query["container"]
    if command := request.query_values("command"):
        options["command"] = command
    if ports := list(_integers(request.query_values("ports"))):
        options["ports"] = ports
    return options


def _integers(texts: Sequence[str]) -> Iterator[int]:
    for text in ",".join(texts).split(","):
        if text.isdecimal() and text.isascii():
            yield int(text)


def _current_object(request: ApiRequest, path: ResourcePath) -> Mapping[str, Any] | None:
    """Return the current object of a subresource, such as a Scale; that of its resource if it cannot be read."""
    assert path.handlers is not None, "a subresource has handlers"
    read = path.handlers.by_method.get("GET")
    if read is None:
        return None
    response = read(request._replace(method="GET", body=b""), path.namespace, path.name)
    return response.body if isinstance(response, Response) and isinstance(response.body, Mapping) else None


def _updated_object(request: ApiRequest, old_object: Mapping[str, Any] | None) -> Any:
    if request.method == "PUT":
        return read_body(request).value
    content_type = content_type_of(request)
    if content_type == APPLY_PATCH:
        return apply_patch(
            old_object or {}, "application/merge-patch+json", read_yaml(request.body).value, UNSTRUCTURED
        )
    return apply_patch(old_object or {}, content_type, read_json(request.body).value, UNSTRUCTURED)


def _with_endpoint_kind(obj: Mapping[str, Any], path: ResourcePath) -> dict[str, Any]:
    assert path.handlers is not None, "a subresource has handlers"
    group, version = path.handlers.group, path.handlers.version
    return {"kind": path.handlers.kind, "apiVersion": f"{group}/{version}" if group else version, **obj}


#: The user of writes by the controllers of this process.
CONTROLLER_USER: Final = UserInfo(
    CONTROLLER_USERNAME, ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated")
)
