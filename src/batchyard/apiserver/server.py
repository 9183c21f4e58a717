"""The API server: routes a request to its response, stream or watch, independent of sockets."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import urlencode

from batchyard.api import scheme
from batchyard.api.times import format_micro_time
from batchyard.apiserver.admission.attributes import POLICY_KINDS, WEBHOOK_KINDS
from batchyard.apiserver.aggregation.aggregated_apis import AggregatedApis, aggregated_attributes
from batchyard.apiserver.auth.authorization import attributes_of
from batchyard.apiserver.auth.security import HEALTH_ENDPOINTS, AuthFilters
from batchyard.apiserver.auth.tokens import ExternalTokens
from batchyard.apiserver.conversions import ConversionNeeded
from batchyard.apiserver.discovery import AGGREGATED, Discovery
from batchyard.apiserver.handlers import prepared_writes, write
from batchyard.apiserver.handlers.read import ChangeFeed, ReadHandler, WatchStream
from batchyard.apiserver.openapi import OpenApi
from batchyard.apiserver.policies.loading import PolicyLoader
from batchyard.apiserver.request import (
    NO_SUCH_PATH_RESPONSE,
    PLAIN_TEXT,
    AnyResponse,
    ApiRequest,
    DeferredResponse,
    FinalResponse,
    Response,
    StatusError,
    method_not_allowed_error,
)
from batchyard.apiserver.resources import ApiObjectStore, ResourcePath, Resources, conflict_error, parse_resource_path
from batchyard.apiserver.serialization import ResponseForm, accepted_form, convert_to_form
from batchyard.base.instant import Instant
from batchyard.client.local import LocalClient, WriteInterceptor
from batchyard.interfaces.client import WatchEvent

# Audit events at the level Metadata, without bodies.
#
# Source: k8s.io/apiserver, pkg/apis/audit/v1, pkg/audit/request.go and pkg/endpoints/filters/audit.go.


class AuditedRequest(NamedTuple):
    """An answered request, as the audit log records it."""

    #: The request with the authenticated user.
    authenticated_request: ApiRequest
    #: The request with the impersonated user, if any.
    effective_request: ApiRequest
    path: ResourcePath | None
    response: AnyResponse
    #: Whether an unexpected exception ended the request.
    is_defect: bool = False


#: The audited response of an unexpected exception; the server log has the traceback.
DEFECT_ERROR: Final = StatusError(500, "InternalError", "APIServer panic'd: see the server log")
Auditor: TypeAlias = Callable[[AuditedRequest], None]


def audit_event(audited_request: AuditedRequest, now: Instant, sequence_number: int) -> Mapping[str, Any]:
    """Return the audit event of a request; `sequence_number` counts the requests since the server started."""
    request, path, response = audited_request.authenticated_request, audited_request.path, audited_request.response
    query = f"?{urlencode(request.query_items or request.query)}" if request.query else ""
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": f"{now:x}-{sequence_number}",
        "stage": _audit_stage(audited_request),
        "requestURI": request.path + query,
        "verb": attributes_of(audited_request.effective_request, path).verb,
        "user": request.user.to_json(),
        "sourceIPs": [request.client_address],
        "userAgent": request.headers.get("user-agent", ""),
        "responseStatus": _response_status(response),
        "stageTimestamp": format_micro_time(now),
    }
    if audited_request.effective_request.user != request.user:
        event["impersonatedUser"] = audited_request.effective_request.user.to_json()
    if path is not None:
        event["objectRef"] = _object_reference(path)
    if isinstance(response, Response) and response.annotations:
        event["annotations"] = dict(response.annotations)
    return event


def discard_audit(_audited_request: AuditedRequest) -> None:
    """Record nothing about an answered request: the auditor of a server without an audit log."""


def _audit_stage(audited_request: AuditedRequest) -> str:
    if audited_request.is_defect:
        return "Panic"
    return "ResponseComplete" if isinstance(audited_request.response, Response) else "ResponseStarted"


def _object_reference(path: ResourcePath) -> Mapping[str, str]:
    reference = {"resource": path.served_kind.plural, "namespace": path.namespace, "name": path.name}
    reference |= {"apiGroup": path.served_kind.group, "apiVersion": path.version, "subresource": path.subresource}
    return {field: value for field, value in reference.items() if value}


def _response_status(response: AnyResponse) -> Mapping[str, Any]:
    if not isinstance(response, Response):
        return {"code": 200}
    body = response.body if response.code >= 400 and isinstance(response.body, Mapping) else {}
    error_fields = {field: body[field] for field in ("status", "message", "reason") if field in body}
    return {**error_fields, "code": response.code}


#: The OpenAPI v2 protobuf media types that client-go requests, and kubectl for kinds without patches such as List.
_OPENAPI_V2_ACCEPT: Final = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
_OPENAPI_V2_CONTENT_TYPE: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
DryRunForecaster: TypeAlias = Callable[[ApiRequest, ResourcePath, Response], AnyResponse]
"""Returns the response to a successful dry run, with its predicted effects."""
#: The kinds whose dry runs report predicted effects.
_FORECAST_KINDS: Final = (
    *(scheme.CLUSTER_QUEUE, scheme.COHORT, scheme.RESOURCE_FLAVOR, scheme.LOCAL_QUEUE, scheme.WORKLOAD_PRIORITY_CLASS),
)


class WebhookGate(Protocol):
    """Admits requests by policies and webhooks, and answers them, possibly later."""

    def matches(self, request: ApiRequest, path: ResourcePath) -> bool:
        """Return whether policies or webhooks may match a request."""

    def answer_write(self, request: ApiRequest, path: ResourcePath, *, is_large: bool = False) -> AnyResponse:
        """Admit and answer a write of stored objects. Raises StatusError on failure."""

    def answer_endpoint(
        self, request: ApiRequest, path: ResourcePath, handler: Callable[[ApiRequest, str, str], AnyResponse]
    ) -> AnyResponse:
        """Admit a request, and answer it with a handler function. Raises StatusError on failure."""


class RequestConversions(Protocol):
    """Answers requests that need objects converted by webhooks."""

    def answer(self, step: Callable[[], AnyResponse], need: ConversionNeeded, *, is_list: bool) -> AnyResponse:
        """Answer a request by a step that was interrupted, after the conversion that it needs."""

    def answer_large_write(self, request: ApiRequest, path: ResourcePath, handler: write.WriteHandler) -> AnyResponse:
        """Answer a large write, which is prepared outside the server's thread."""

    def create_watch(self, *arguments: Any, with_bookmarks: bool = False) -> WatchStream:
        """Create a watch that receives converted objects, with the arguments of WatchStream."""


def _no_conversions() -> RequestConversions:
    raise StatusError(503, "ServiceUnavailable", "this server calls no conversion webhooks")


class ApiServer:
    """The API server: routes requests to handlers after authentication and authorization, and audits them."""

    def __init__(
        self,
        objects: ApiObjectStore,
        feed: ChangeFeed,
        now: Callable[[], Instant],
        resources: Resources,
        auth_filters: AuthFilters,
        audit: Auditor = discard_audit,
    ) -> None:
        self.policy_loader = PolicyLoader(objects, resources, auth_filters.authorizer)
        self._write_handler = write.WriteHandler(objects, now, auth_filters.authorize)
        self._read_handler = ReadHandler(objects, feed, now)
        self._resources = resources
        self._auth_filters = auth_filters
        self._audit = audit
        self._discovery = Discovery(resources)
        self._openapi = OpenApi(resources)
        self._aggregated_apis: AggregatedApis | None = None
        self._get_handlers: dict[str, Callable[[ApiRequest], AnyResponse]] = {}
        self._put_handlers: dict[str, Callable[[ApiRequest], AnyResponse]] = {}
        self._post_handlers: dict[str, Callable[[ApiRequest], AnyResponse]] = {}
        self._forecast_dry_run: DryRunForecaster | None = None
        self._write_executor: prepared_writes.WriteExecutor | None = None
        self._prefix_handlers: dict[str, Callable[[ApiRequest], AnyResponse]] = {}
        self._admission_gate: WebhookGate | None = None
        self._load_conversions: Callable[[], RequestConversions] = _no_conversions

    def add_document(self, path: str, compute_document: Callable[[], Any]) -> None:
        """Serve the JSON document that a function returns at a path, to users who are authorized for the path."""
        self._get_handlers[path] = lambda _: Response(200, compute_document())

    def add_get_handler(self, path: str, handler: Callable[[ApiRequest], AnyResponse]) -> None:
        """Answer GET requests at a path with a handler, for users who are authorized for the path."""
        self._get_handlers[path] = handler

    def add_put_handler(self, path: str, handler: Callable[[ApiRequest], AnyResponse]) -> None:
        """Answer PUT requests at a path with a handler, for users with the verb `put` on the path."""
        self._put_handlers[path] = handler

    def add_post_handler(self, path: str, handler: Callable[[ApiRequest], AnyResponse]) -> None:
        """Answer POST requests at a path with a handler, for all authenticated users: the handler authorizes them."""
        self._post_handlers[path] = handler

    def set_dry_run_forecast(self, forecast_dry_run: DryRunForecaster) -> None:
        """Set the function that adds predicted effects to the responses to dry-run writes of `_FORECAST_KINDS`."""
        self._forecast_dry_run = forecast_dry_run

    def set_write_executor(self, executor: prepared_writes.WriteExecutor) -> None:
        """Set the executor that prepares large writes outside the server's thread."""
        self._write_executor = executor

    def set_conversions(self, load: Callable[[], RequestConversions]) -> None:
        """Set the function that returns what answers requests with conversions by webhooks; called when needed."""
        self._load_conversions = load
        self._read_handler.create_converted_watch = lambda *arguments, **options: load().create_watch(
            *arguments, **options
        )

    @property
    def write_handler(self) -> write.WriteHandler:
        """The handler of writes of stored objects."""
        return self._write_handler

    def set_admission_gate(self, gate: WebhookGate | None) -> None:
        """Set what admits the writes that policies or webhooks match; None if neither is configured."""
        self._admission_gate = gate

    def add_prefix_handler(self, prefix: str, handler: Callable[[ApiRequest], AnyResponse]) -> None:
        """Answer GET requests below a path prefix with a handler, for users who are authorized for the path."""
        self._prefix_handlers[prefix] = handler

    def observe(self, event: WatchEvent) -> None:
        """Note a change of an admission policy; must receive all object changes."""
        if event.key.kind in POLICY_KINDS:
            self.policy_loader.observe(event)

    def authenticate(self, request: ApiRequest) -> ApiRequest:
        """Authenticate a request before its body is read. Raises StatusError if authentication fails."""
        return self._auth_filters.authenticate(request)

    def finish_authentication(self, request: ApiRequest, on_done: Callable[[ApiRequest | None], None]) -> None:
        """Authenticate a request of PENDING_USER. `on_done` later gets it with its user, or None if that fails.

        Raises StatusError if too many requests wait.
        """
        self._auth_filters.finish_authentication(request, on_done)

    def set_external_tokens(self, external_tokens: ExternalTokens) -> None:
        """Set the authenticator of tokens of other issuers."""
        self._auth_filters.external_tokens = external_tokens

    def begins_watch(self, request: ApiRequest) -> bool:
        """Return whether a request with `watch` starts a watch: whether it is a GET of a resource without a name."""
        path = parse_resource_path(self._resources, request.path)
        return request.method == "GET" and path is not None and not path.name

    def impersonate(self, request: ApiRequest) -> ApiRequest:
        """Return the request with the impersonated user, if any. Raises StatusError if this is not allowed."""
        return self._auth_filters.impersonate(request)

    def handle(self, request: ApiRequest) -> AnyResponse:
        """Answer a request; a StatusError becomes a response. Other exceptions are audited and raised to the caller."""
        sender_request = effective_request = request
        path, response = None, None
        try:
            path = parse_resource_path(self._resources, request.path)
            sender_request = effective_request = self._auth_filters.authenticate(request)
            effective_request = self._auth_filters.impersonate(sender_request)
            response = _with_deprecation_warning(self._route(effective_request, path), path)
        except StatusError as error:
            response = error.response()
        finally:
            audited_response = response or DEFECT_ERROR.response()
            self._audit(
                AuditedRequest(sender_request, effective_request, path, audited_response, is_defect=response is None)
            )
        if not isinstance(response, DeferredResponse):
            return response
        return self._audit_deferred_response(
            response, AuditedRequest(sender_request, effective_request, path, response)
        )

    def _audit_deferred_response(
        self, deferred_response: DeferredResponse, audited_request: AuditedRequest
    ) -> DeferredResponse:
        def audit_and_respond(respond: Callable[[FinalResponse], None], response: FinalResponse) -> None:
            self._audit(audited_request._replace(response=response))
            respond(response)

        return DeferredResponse(lambda respond: deferred_response.then(partial(audit_and_respond, respond)))

    def set_aggregation(self, apis: AggregatedApis) -> None:
        """Set the APIs of other servers, to which requests are passed on."""
        self._aggregated_apis = self._discovery.aggregated_apis = apis

    def _handle_request(self, request: ApiRequest, path: ResourcePath | None) -> AnyResponse:
        self._authorize(request, path)
        _check_body_size(request, path)
        self._read_handler.drop_expired()
        if path is None:
            return self._serve_document(request)
        if path.handlers is not None:
            if request.method not in path.handlers.by_method:
                raise method_not_allowed_error()
            if path.handlers.required_verb:
                self._auth_filters.authorize(request, path, path.handlers.required_verb)
            respond = path.handlers.by_method[request.method]
            if self._admission_gate is not None and self._admission_gate.matches(request, path):
                return self._admission_gate.answer_endpoint(request, path, respond)
            return respond(request, path.namespace, path.name)
        if path.subresource and path.subresource not in path.resource.subresources:
            return NO_SUCH_PATH_RESPONSE
        if request.method != "GET":
            form = accepted_form(request)
            finish = partial(self._finish_write, request, path, form)
            if self._admission_gate is not None and self._admission_gate.matches(request, path):
                self._write_handler.check_target(request, path)
                is_large = self._write_executor is not None and self._is_large_write(request, path)
                return _map_response(self._admission_gate.answer_write(request, path, is_large=is_large), finish)
            if self._write_executor is not None and self._is_large_write(request, path):
                if path.resource.converter is not None:
                    self._write_handler.check_target(request, path)
                    conversions = self._load_conversions()
                    return _map_response(conversions.answer_large_write(request, path, self._write_handler), finish)
                return self._prepare_with_executor(request, path, form, self._write_executor)
            return _finish_after(partial(self._write_handler.handle, request, path), finish)
        handler = self._read_handler
        if path.name:
            return handler.get(request, path)
        return handler.watch(request, path) if request.has_flag("watch") else handler.list(request, path)

    def _route(self, request: ApiRequest, path: ResourcePath | None) -> AnyResponse:
        """Answer a request, or pass it on to the server of an aggregated API."""
        apis = self._aggregated_apis
        api_service = apis.find(request.path) if path is None and apis is not None else None
        if apis is None or api_service is None:
            try:
                return self._handle_request(request, path)
            except ConversionNeeded as need:
                step, is_list = partial(self._handle_request, request, path), path is not None and not path.name
                is_list = is_list and request.method == "GET"
                return self._load_conversions().answer(step, need, is_list=is_list)
        self._auth_filters.authorize_attributes(aggregated_attributes(request))
        return apis.forward(request, api_service)

    def _finish_write(
        self, request: ApiRequest, path: ResourcePath, form: ResponseForm, response: Response
    ) -> AnyResponse:
        response = _with_warning(response, path)
        if form is not ResponseForm.WHOLE:
            return convert_to_form(response, form)
        forecaster = self._forecast_dry_run
        if forecaster is None or not _is_forecast_dry_run(request, path):
            return response
        return forecaster(request, path, response)

    def _authorize(self, request: ApiRequest, path: ResourcePath | None) -> None:
        """Raise StatusError if the user may not perform a request; POST handlers check their requests themselves."""
        if path is not None or request.method != "POST" or request.path not in self._post_handlers:
            self._auth_filters.authorize(request, path)

    def _is_large_write(self, request: ApiRequest, path: ResourcePath) -> bool:
        if len(request.body) > prepared_writes.INLINE_BODY_MAX:
            return True
        return request.method in {"PUT", "PATCH"} and self._write_handler.targets_large_object(path)

    def _prepare_with_executor(
        self, request: ApiRequest, path: ResourcePath, form: ResponseForm, executor: prepared_writes.WriteExecutor
    ) -> DeferredResponse:
        user = request.user
        prepare_and_encode = partial(
            prepared_writes.encode_prepared_write, partial(self._write_handler.prepare, request, path)
        )

        def finish(respond: Callable[[Response], None], attempt: int, encoded_write: bytes | StatusError) -> None:
            try:
                response = self._store_prepared_write(
                    encoded_write, path, is_last_try=attempt == prepared_writes.PREPARE_ATTEMPTS_MAX
                )
                if response is None:
                    executor.submit(user, prepare_and_encode, partial(finish, respond, attempt + 1))
                else:
                    respond(response if form is ResponseForm.WHOLE else convert_to_form(response, form))
            except StatusError as error:
                respond(error.response())
            except Exception:
                respond(DEFECT_ERROR.response())
                raise

        response_callbacks: list[Callable[[Response], None]] = []
        executor.submit(user, prepare_and_encode, lambda encoded_write: finish(response_callbacks[0], 1, encoded_write))
        return DeferredResponse(response_callbacks.append)

    def _store_prepared_write(
        self, encoded_write: bytes | StatusError, path: ResourcePath, *, is_last_try: bool
    ) -> Response | None:
        """Store a prepared write and return the response; None, without storing, if the object has changed since.

        Raises StatusError (409) on the last try if the object has changed, and a StatusError in `encoded_write`.
        """
        prepared_write = prepared_writes.decode_prepared_write(encoded_write)
        if self._write_handler.is_current(prepared_write, path):
            return _with_warning(self._write_handler.store_prepared(prepared_write, path), path)
        if is_last_try:
            raise conflict_error(path.served_kind, path.name)
        return None

    def _serve_document(self, request: ApiRequest) -> AnyResponse:
        handlers = {"PUT": self._put_handlers, "POST": self._post_handlers}.get(request.method, {})
        if request.path in handlers:
            return handlers[request.path](request)
        if request.method not in {"GET", "HEAD"}:
            return NO_SUCH_PATH_RESPONSE
        root, _, subpath = request.path.strip("/").partition("/")
        if root in HEALTH_ENDPOINTS:
            return Response(200, _health_text(root) if "verbose" in request.query else "ok", content_type=PLAIN_TEXT)
        if request.path in self._get_handlers:
            return self._get_handlers[request.path](request)
        for prefix, handler in self._prefix_handlers.items():
            if request.path.startswith(prefix):
                return handler(request)
        is_aggregated = not subpath and AGGREGATED in request.headers.get("accept", "") and root in {"api", "apis"}
        if root == "openapi":
            if subpath == "v2" and _OPENAPI_V2_ACCEPT in request.headers.get("accept", ""):
                return Response(200, self._openapi.encode_v2_document(), content_type=_OPENAPI_V2_CONTENT_TYPE)
            document = self._openapi.document(subpath)
        else:
            document = self._discovery.document(request.path, is_aggregated=is_aggregated)
        if document is None:
            return NO_SUCH_PATH_RESPONSE
        return Response(200, document, content_type=AGGREGATED) if is_aggregated else Response(200, document)


#: The kinds that configure admission.
_ADMISSION_KINDS: Final = frozenset({*WEBHOOK_KINDS, *POLICY_KINDS})


class LoadedGate(Protocol):
    """The admission by policies and webhooks, as the switch connects it."""

    @property
    def gate(self) -> WebhookGate:
        """Admits requests."""

    @property
    def intercept(self) -> WriteInterceptor:
        """Admits the writes of the controllers."""

    def refresh(self) -> bool:
        """Read the configurations again; return whether a policy or a webhook is configured."""


class AdmissionSwitch:
    """Connects the admission while a policy or a webhook is configured, so that other servers do not load it."""

    def __init__(self, server: ApiServer, client: LocalClient, load: Callable[[], LoadedGate]) -> None:
        self._server = server
        self._client = client
        self._load = load
        self._loaded: LoadedGate | None = None
        if any(client.list(kind) for kind in _ADMISSION_KINDS):
            self._refresh()

    def observe(self, event: WatchEvent) -> None:
        """Follow the change of a policy or a webhook configuration."""
        if event.key.kind in _ADMISSION_KINDS:
            self._refresh()

    def _refresh(self) -> None:
        if self._loaded is None:
            self._loaded = self._load()
        is_configured = self._loaded.refresh()
        self._server.set_admission_gate(self._loaded.gate if is_configured else None)
        self._client.set_write_interceptor(self._loaded.intercept if is_configured else None)


def _map_response(response: AnyResponse, finish: Callable[[Response], AnyResponse]) -> AnyResponse:
    """Apply a function to a response, or to a deferred response when it is computed; streams stay unchanged."""
    if isinstance(response, Response):
        return finish(response)
    if not isinstance(response, DeferredResponse):
        return response

    def finish_later(respond: Callable[[FinalResponse], None], started_response: FinalResponse) -> None:
        final_response = finish(started_response) if isinstance(started_response, Response) else started_response
        if isinstance(final_response, DeferredResponse):
            final_response.then(respond)
        else:
            respond(final_response)

    return DeferredResponse(lambda respond: response.then(partial(finish_later, respond)))


def _finish_after(step: Callable[[], Response], finish: Callable[[Response], AnyResponse]) -> AnyResponse:
    """Return `finish(step())`. If a conversion interrupts the step after a change, the rest of it is finished too."""
    try:
        response = step()
    except ConversionNeeded as need:
        resume = need.resume
        if resume is not None:
            need.resume = lambda: finish(resume())
        raise
    return finish(response)


def _check_body_size(request: ApiRequest, path: ResourcePath | None) -> None:
    is_object_write = path is not None and path.handlers is None and request.method != "DELETE"
    if len(request.body) > prepared_writes.INLINE_BODY_MAX and not is_object_write:
        raise StatusError(
            413, "RequestEntityTooLarge", f"Request entity too large: limit is {prepared_writes.INLINE_BODY_MAX}"
        )


def _is_forecast_dry_run(request: ApiRequest, path: ResourcePath) -> bool:
    is_dry_run = bool(request.query.get("dryRun")) and request.method in {"POST", "PUT", "PATCH"}
    return is_dry_run and not path.subresource and path.served_kind.constant in _FORECAST_KINDS


def _with_deprecation_warning(response: AnyResponse, path: ResourcePath | None) -> AnyResponse:
    return _with_warning(response, path) if path is not None and isinstance(response, Response) else response


def _with_warning(response: Response, path: ResourcePath) -> Response:
    if path.version not in path.served_kind.deprecated_versions:
        return response
    warning = path.served_kind.deprecation
    return response if warning in response.warnings else response._replace(warnings=(*response.warnings, warning))


def _health_text(check_name: str) -> str:
    return f"[+]ping ok\n{check_name} check passed\n"
