"""Write requests that webhooks must admit: each is prepared, sent to the webhooks, and stored after their responses.

While webhooks are called, the server answers other requests. If the object changes meanwhile, the request is prepared
and admitted again. Sources: k8s.io/apiserver, pkg/endpoints/handlers/{create,update,patch,delete}.go.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

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
)
from batchyard.apiserver.admission.pipeline import (
    AdmissionNotes,
    AdmissionObserver,
    AdmissionPolicies,
    TimedReply,
    WebhookAdmission,
    WebhookCalls,
    WebhookPorts,
)
from batchyard.apiserver.admission.registrations import WebhookMatcher, WebhookRegistry, operation_of
from batchyard.apiserver.admission.reviews import WebhookRequest, internal_error
from batchyard.apiserver.handlers.prepared_writes import PREPARE_ATTEMPTS_MAX, PreparedWrite
from batchyard.apiserver.handlers.write import WriteDraft, WriteHandler
from batchyard.apiserver.patch import UNSTRUCTURED, apply_patch
from batchyard.apiserver.request import (
    APPLY_PATCH,
    JSON,
    AnyResponse,
    ApiRequest,
    DeferredResponse,
    FinalResponse,
    Response,
    StatusError,
    UserInfo,
    parse_delete_options,
)
from batchyard.apiserver.resources import ApiObjectStore, ResourcePath, conflict_error, execute_write
from batchyard.apiserver.serialization import RequestBody, content_type_of, read_body, read_json, read_yaml, with_kind
from batchyard.base.primitives import uid_for
from batchyard.interfaces.client import Create, Update, UpdateStatus

#: The maximum duration of the webhook calls of one request, in seconds. Source: k8s.io/apiserver,
#: pkg/endpoints/handlers/rest.go (requestTimeoutUpperBound).
REQUEST_SECONDS_MAX: Final = 34.0
_OPTION_KINDS: Final = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}
_META_VERSION: Final = "meta.k8s.io/v1"
#: Metadata that the server sets after mutation.
_SET_AFTER_MUTATION: Final = ("uid", "creationTimestamp", "generation")
_TIMEOUT_ERROR: Final = StatusError(504, "Timeout", "Timeout: request did not complete within requested timeout")


class WebhookCaller(Protocol):
    """Calls webhooks over the network."""

    def seconds(self) -> float:
        """Return the seconds of a monotonic clock."""

    def call(self, request: WebhookRequest, timeout_seconds: float, on_reply: Callable[[TimedReply], None]) -> None:
        """Call a webhook; the API server's thread later calls `on_reply` with the reply."""


class CallRun:
    """Runs a stage of webhook calls to its end; `on_end` gets its result, or the StatusError that it raised."""

    def __init__(self, calls: WebhookCalls, caller: WebhookCaller, on_end: Callable[[Any], None]) -> None:
        self._calls = calls
        self._caller = caller
        self._on_end = on_end
        self._ends_at = caller.seconds() + REQUEST_SECONDS_MAX
        self._replies: list[TimedReply | None] = []

    def start(self) -> None:
        """Start the first calls. An unexpected exception is raised, after `on_end` got an internal error."""
        self._advance(None)

    def _advance(self, replies: Sequence[TimedReply] | None) -> None:
        is_defect = True
        try:
            requests = next(self._calls) if replies is None else self._calls.send(replies)
            is_defect = False
        except StopIteration as end:
            is_defect = False
            self._on_end(end.value)
            return
        except StatusError as error:
            is_defect = False
            self._on_end(error)
            return
        finally:
            if is_defect:
                self._on_end(internal_error("an unexpected exception ended the admission; see the server log"))
        remaining_seconds = self._ends_at - self._caller.seconds()
        if remaining_seconds <= 0:
            self._calls.close()
            self._on_end(_TIMEOUT_ERROR)
            return
        self._replies = [None] * len(requests)
        for index, request in enumerate(requests):
            timeout = min(request.timeout_seconds, remaining_seconds)
            self._caller.call(request, timeout, self._reply_receiver(index))

    def _reply_receiver(self, index: int) -> Callable[[TimedReply], None]:
        replies = self._replies

        def receive(reply: TimedReply) -> None:
            replies[index] = reply
            if all(each is not None for each in replies):
                self._advance([each for each in replies if each is not None])

        return receive


class GateParts(NamedTuple):
    """The parts of the API server that the admission of requests uses."""

    objects: ApiObjectStore
    write_handler: WriteHandler
    registry: WebhookRegistry
    observer: AdmissionObserver
    caller: WebhookCaller
    #: Makes ids unique across restarts of the server.
    seed: int
    policies: AdmissionPolicies | None = None


class AdmissionGate:
    """Admits write requests by webhooks, and answers them."""

    def __init__(self, parts: GateParts) -> None:
        self._objects, self._write_handler, self.registry = parts.objects, parts.write_handler, parts.registry
        self.caller, self._policies = parts.caller, parts.policies
        self._seed = parts.seed
        self._uid_count = 0
        matcher = WebhookMatcher(parts.objects, parts.observer.count_condition)
        self._ports = WebhookPorts(matcher, parts.observer, self._new_uid, convert_for_webhook)

    def _new_uid(self) -> str:
        self._uid_count += 1
        return uid_for(self._seed, "AdmissionReview", str(self._uid_count))

    def matches(self, request: ApiRequest, path: ResourcePath) -> bool:
        """Return whether webhooks may match a request for stored objects, a subresource or a connection."""
        operation = operation_of(request.method, path)
        if operation is None:
            return False
        operations = (CREATE, UPDATE) if request.method == "PATCH" else (operation,)
        return any(self.registry.may_match(each, path) for each in operations)

    def answer_write(self, request: ApiRequest, path: ResourcePath) -> AnyResponse:
        """Answer a write of stored objects after its admission. Raises StatusError on failure."""
        notes = AdmissionNotes([], {})
        if request.method != "DELETE":
            return self._run(self._write(request, path, notes), notes)
        delete = self._delete if path.name else self._delete_all
        return self._run(delete(request, path, notes), notes)

    def answer_endpoint(
        self, request: ApiRequest, path: ResourcePath, handler: Callable[[ApiRequest, str, str], AnyResponse]
    ) -> AnyResponse:
        """Answer a request that a handler function serves, after its admission. Raises StatusError on failure."""
        notes = AdmissionNotes([], {})
        return self._run(self._call_endpoint(request, path, handler, notes), notes)

    def admission(self, notes: AdmissionNotes) -> WebhookAdmission:
        """Return the stages of one request."""
        return WebhookAdmission(self._ports, notes)

    def _run(self, calls: WebhookCalls, notes: AdmissionNotes) -> AnyResponse:
        receivers: list[Callable[[FinalResponse], None]] = []
        results: list[AnyResponse] = []

        def finish(result: AnyResponse | StatusError) -> None:
            response = _with_notes(result.response() if isinstance(result, StatusError) else result, notes)
            if not receivers:
                results.append(response)
            elif isinstance(response, DeferredResponse):
                response.then(receivers[0])
            else:
                receivers[0](response)

        CallRun(calls, self.caller, finish).start()
        return results[0] if results else DeferredResponse(receivers.append)

    # --- create, update and patch ---

    def _write(self, request: ApiRequest, path: ResourcePath, notes: AdmissionNotes) -> WebhookCalls:
        for _ in range(PREPARE_ATTEMPTS_MAX):
            draft = self._write_handler.read_draft(request, path)
            options = write_options_object(request)
            prepared_write = yield from self._admit_draft(draft, options, notes)
            if self._is_current(prepared_write, draft):
                return self._write_handler.store_prepared(prepared_write, draft.path)
        raise conflict_error(path.served_kind, path.name)

    def _is_current(self, prepared_write: PreparedWrite, draft: WriteDraft) -> bool:
        if isinstance(prepared_write.write, Create) and draft.managed_fields is not None:
            path = draft.path  # an applied object that another client created meanwhile
            if self._objects.get(Key(path.served_kind.constant, path.namespace, path.name)) is not None:
                return False
        return self._write_handler.is_current(prepared_write, draft.path)

    def _admit_draft(self, draft: WriteDraft, options: Mapping[str, Any], notes: AdmissionNotes) -> WebhookCalls:
        registry, policies, path = self.registry, self._policies, draft.path
        is_creation = draft.stored_object is None or draft.is_created
        stored_object = None if is_creation else draft.stored_object
        attributes = AdmissionAttributes(
            CREATE if is_creation else UPDATE,
            path,
            None,
            None if stored_object is None else path.resource.strategy.render(stored_object, path.api_version),
            options,
            draft.options.user,
            draft.options.dry_run,
        )
        prepared_write = self._complete_or_none(draft)
        if registry.mutating or (policies is not None and policies.mutates):
            prepared_write = yield from self._mutate_draft(draft, prepared_write, attributes, notes)
        if prepared_write is None:
            prepared_write = self._write_handler.complete_draft(draft)  # raises the validation errors
        validating_policies = policies if policies is not None and policies.validates else None
        if not registry.validating and validating_policies is None:
            return prepared_write
        final_object = self._dry_run(prepared_write, path)
        if isinstance(prepared_write.write, Create):
            prepared_write = prepared_write._replace(write=Create(final_object))
        final_attributes = attributes._replace(
            path=path._replace(name=path.name or final_object["metadata"]["name"]),
            obj=path.resource.strategy.render(final_object, path.api_version),
        )
        if validating_policies is not None:
            remarks = validating_policies.validate(final_attributes)
            notes.warnings.extend(remarks.warnings)
            notes.annotations.update(remarks.annotations)
        yield from self.admission(notes).validate(registry.validating, final_attributes)
        return prepared_write

    def _mutate_draft(
        self,
        draft: WriteDraft,
        prepared_write: PreparedWrite | None,
        attributes: AdmissionAttributes,
        notes: AdmissionNotes,
    ) -> WebhookCalls:
        """Return the write after its mutation; None if its object is invalid and was not mutated."""
        path, obj = draft.path, self._mutation_input(draft, prepared_write)
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        attributes = attributes._replace(path=path._replace(name=path.name or str(name or "")), obj=obj)
        if self._policies is not None and self._policies.mutates:
            attributes = attributes._replace(obj=self._policies.mutate(attributes))
        repeat = self._built_in_repetition(draft)
        mutated_attributes = yield from self.admission(notes).mutate(self.registry.mutating, attributes, repeat)
        if mutated_attributes.obj == obj:
            return prepared_write
        return self._complete_mutated(draft, prepared_write, mutated_attributes.obj)

    def _complete_or_none(self, draft: WriteDraft) -> PreparedWrite | None:
        """Return the completed draft; None if its object is invalid, which a mutating webhook may correct."""
        try:
            return self._write_handler.complete_draft(draft)
        except StatusError as error:
            if error.reason != "Invalid":
                raise
            return None

    def _complete_mutated(
        self, draft: WriteDraft, unmutated_write: PreparedWrite | None, obj: Mapping[str, Any] | None
    ) -> PreparedWrite:
        mutated_draft = draft._replace(body=RequestBody(obj, draft.body.faults), unpatched_object=None)
        mutated_write = self._write_handler.complete_draft(mutated_draft)
        if unmutated_write is None:
            return mutated_write
        # The webhooks own no fields: the ownership is that of the request.
        return mutated_write._replace(write=_with_fields_of(mutated_write.write, unmutated_write.write))

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
        return self._write_handler.handle(request, path)

    def _delete_all(self, request: ApiRequest, path: ResourcePath, notes: AdmissionNotes) -> WebhookCalls:
        options, selected_objects = self._write_handler.select_for_deletion(request, path)
        for obj in selected_objects:
            yield from self._admit_deletion(request, path, obj, notes)
            if self._objects.get(key_of(obj)) is not None:
                self._write_handler.delete_selected(obj, options, request, path)
        return self._write_handler.deletion_response(selected_objects, path)

    def _admit_deletion(
        self, request: ApiRequest, path: ResourcePath, stored_object: Obj, notes: AdmissionNotes
    ) -> WebhookCalls:
        body = read_body(request).value
        options = parse_delete_options(request, body)
        option_fields = {**_query_options(request, "DeleteOptions"), **(body if isinstance(body, Mapping) else {})}
        old_object = path.resource.strategy.render(stored_object, path.api_version)
        target = path._replace(namespace=stored_object["metadata"].get("namespace") or "")
        attributes = AdmissionAttributes(DELETE, target, None, old_object, option_fields, request.user, options.dry_run)
        yield from self.admit(attributes, notes)

    def admit(self, attributes: AdmissionAttributes, notes: AdmissionNotes) -> WebhookCalls:
        """Call the mutating, then the validating webhooks; return the mutated object.

        Raises StatusError if the request is rejected.
        """
        admission = self.admission(notes)
        mutated = yield from admission.mutate(self.registry.mutating, attributes, lambda obj: obj)
        yield from admission.validate(self.registry.validating, mutated)
        return mutated.obj

    # --- subresources and connections ---

    def _call_endpoint(
        self,
        request: ApiRequest,
        path: ResourcePath,
        handler: Callable[[ApiRequest, str, str], AnyResponse],
        notes: AdmissionNotes,
    ) -> WebhookCalls:
        operation = operation_of(request.method, path) or CONNECT
        obj, old_object, options = None, None, _query_options(request, _OPTION_KINDS.get(request.method, ""))
        if operation == CONNECT:
            obj, options = _connection_options(request, path), {}
        elif operation == UPDATE:
            old_object = _current_object(request, path)
            obj = _updated_object(request, old_object)
        elif operation == CREATE:
            obj = read_body(request).value
        if obj is not None and not isinstance(obj, Mapping):
            return handler(request, path.namespace, path.name)  # rejects the body
        if operation not in (CONNECT, DELETE):
            obj = _with_endpoint_kind(obj or {}, path)
        is_dry_run = "dryRun" in request.query
        attributes = AdmissionAttributes(operation, path, obj, old_object, options, request.user, is_dry_run)
        admitted_object = yield from self.admit(attributes, notes)
        if operation in (CONNECT, DELETE) or admitted_object == obj:
            return handler(request, path.namespace, path.name)
        assert path.handlers is not None, "only paths with handlers get here"
        method = "PUT" if request.method == "PATCH" else request.method
        mutated_request = request.with_body(msgspec.json.encode(admitted_object))
        mutated_request = mutated_request._replace(method=method, headers={**request.headers, "content-type": JSON})
        return path.handlers.by_method[method](mutated_request, path.namespace, path.name)


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
        return UpdateStatus(write.obj, unmutated_write.managed_fields)
    assert isinstance(unmutated_write, Update), "a mutation keeps the type of the write"
    return Update(write.obj, unmutated_write.managed_fields, is_whole=write.is_whole)


def write_options_object(request: ApiRequest) -> dict[str, Any]:
    """Return the options of a create, update or patch request as an object of `meta.k8s.io/v1`."""
    return _query_options(request, _OPTION_KINDS[request.method])


def _query_options(request: ApiRequest, kind: str) -> dict[str, Any]:
    query = request.query
    options: dict[str, Any] = {"kind": kind, "apiVersion": _META_VERSION}
    options |= {"dryRun": [query["dryRun"]]} if "dryRun" in query else {}
    options |= {name: query[name] for name in ("fieldManager", "fieldValidation", "propagationPolicy") if name in query}
    return options | ({"force": request.has_flag("force")} if "force" in query else {})


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
    "system:serviceaccount:kube-system:batchyard",
    ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"),
)
