"""The API server: from a request to a response or a watch, independent of sockets."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlencode

from batchyard.api import scheme
from batchyard.api.times import format_micro_time
from batchyard.apiserver.auth.authorization import attributes_of
from batchyard.apiserver.auth.security import HEALTH, AuthFilters
from batchyard.apiserver.discovery import AGGREGATED, Discovery
from batchyard.apiserver.handlers.read import ChangeFeed, ReadHandler
from batchyard.apiserver.handlers.write import (
    ATTEMPTS_MAX,
    SMALL_MAX,
    WriteExecutor,
    WriteHandler,
    encoded,
    prepared_write,
)
from batchyard.apiserver.openapi import OpenApi
from batchyard.apiserver.request import (
    NO_SUCH_PATH,
    TEXT,
    AnyResponse,
    ApiRequest,
    DeferredResponse,
    Response,
    StatusError,
    method_not_allowed,
)
from batchyard.apiserver.resources import ApiObjectStore, ResourcePath, Resources, conflict, resource_at
from batchyard.apiserver.serialization import ResponseForm, form_of, in_form
from batchyard.base.instant import Instant

# --- audit ---
#
# Audit events at the level Metadata, without bodies.
#
# Source: k8s.io/apiserver, pkg/apis/audit/v1, pkg/audit/request.go and pkg/endpoints/filters/audit.go.


class AuditedRequest(NamedTuple):
    """An answered request."""

    #: With the authenticated user.
    known: ApiRequest
    #: With the impersonated user, if any.
    acting: ApiRequest
    path: ResourcePath | None
    answer: AnyResponse
    #: Whether an unexpected exception ended the request.
    is_defect: bool = False


#: The audited response of an unexpected exception; the server log has the traceback.
DEFECT: Final = StatusError(500, "InternalError", "APIServer panic'd: see the server log")
Auditor: TypeAlias = Callable[[AuditedRequest], None]


def audit_event(audited: AuditedRequest, now: Instant, number: int) -> Mapping[str, Any]:
    """Return the audit event of a request; `number` counts the events since the start."""
    request, path, answer = audited.known, audited.path, audited.answer
    query = f"?{urlencode(request.query_items or request.query)}" if request.query else ""
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": f"{now:x}-{number}",
        "stage": _stage(audited),
        "requestURI": request.path + query,
        "verb": attributes_of(audited.acting, path).verb,
        "user": request.user.reported(),
        "sourceIPs": [request.source],
        "userAgent": request.headers.get("user-agent", ""),
        "responseStatus": _status(answer),
        "stageTimestamp": format_micro_time(now),
    }
    if audited.acting.user != request.user:
        event["impersonatedUser"] = audited.acting.user.reported()
    if path is not None:
        event["objectRef"] = _reference(path)
    if isinstance(answer, Response) and answer.annotations:
        event["annotations"] = dict(answer.annotations)
    return event


def no_audit(_audited: AuditedRequest) -> None:
    """Discard the event."""


def _stage(audited: AuditedRequest) -> str:
    if audited.is_defect:
        return "Panic"
    return "ResponseComplete" if isinstance(audited.answer, Response) else "ResponseStarted"


def _reference(path: ResourcePath) -> Mapping[str, str]:
    reference = {"resource": path.info.plural, "namespace": path.namespace, "name": path.name}
    reference |= {"apiGroup": path.info.group, "apiVersion": path.version, "subresource": path.subresource}
    return {field: value for field, value in reference.items() if value}


def _status(answer: AnyResponse) -> Mapping[str, Any]:
    """Return the response status: the code, and for errors the reason."""
    if not isinstance(answer, Response):
        return {"code": 200}
    body = answer.body if answer.code >= 400 and isinstance(answer.body, Mapping) else {}
    reported = {field: body[field] for field in ("status", "message", "reason") if field in body}
    return {**reported, "code": answer.code}


#: The OpenAPI v2 protobuf media types that client-go requests, and kubectl for kinds without patches such as List.
_OPENAPI_V2_ACCEPT: Final = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
_OPENAPI_V2_CONTENT_TYPE: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
DryRunForecast: TypeAlias = Callable[[ApiRequest, ResourcePath, Response], AnyResponse]
"""Returns the response to a successful dry run, with its predicted effects."""
#: The kinds whose dry runs report predicted effects.
_FORECAST_KINDS: Final = (
    *(scheme.CLUSTER_QUEUE, scheme.COHORT, scheme.RESOURCE_FLAVOR, scheme.LOCAL_QUEUE, scheme.WORKLOAD_PRIORITY_CLASS),
)


class ApiServer:
    """The API server: routes requests to handlers after authentication and authorization, and audits them."""

    def __init__(
        self,
        objects: ApiObjectStore,
        feed: ChangeFeed,
        now: Callable[[], Instant],
        resources: Resources,
        access: AuthFilters,
        audit: Auditor = no_audit,
    ) -> None:
        self._registry = WriteHandler(objects, now)
        self._reading = ReadHandler(objects, feed, now)
        self._resources = resources
        self._access = access
        self._audit = audit
        self._discovery = Discovery(resources)
        self._openapi = OpenApi(resources)
        self._documents: dict[str, Callable[[ApiRequest], AnyResponse]] = {}
        self._puts: dict[str, Callable[[ApiRequest], AnyResponse]] = {}
        self._foresee: DryRunForecast | None = None
        self._apart: WriteExecutor | None = None
        self._prefixes: dict[str, Callable[[ApiRequest], AnyResponse]] = {}

    def add_document(self, path: str, document: Callable[[], Any]) -> None:
        """Serve a JSON document at a path, to users who are authorized for it."""
        self._documents[path] = lambda _: Response(200, document())

    def add_handler(self, path: str, answer: Callable[[ApiRequest], AnyResponse]) -> None:
        """Serve a path with a handler, for users who are authorized for it."""
        self._documents[path] = answer

    def add_put_handler(self, path: str, answer: Callable[[ApiRequest], AnyResponse]) -> None:
        """Serve PUT requests at a path, for users with the verb `put` on it."""
        self._puts[path] = answer

    def set_dry_run_forecast(self, foresee: DryRunForecast) -> None:
        """Report predicted effects in responses to dry runs of queue objects."""
        self._foresee = foresee

    def set_write_executor(self, apart: WriteExecutor) -> None:
        """Prepare large writes outside this thread."""
        self._apart = apart

    def add_prefix(self, prefix: str, answer: Callable[[ApiRequest], AnyResponse]) -> None:
        """Serve GET requests below a prefix with a handler, for users who are authorized for the path."""
        self._prefixes[prefix] = answer

    def known(self, request: ApiRequest) -> ApiRequest:
        """Authenticate a request before its body is read. Raises Refused if authentication fails."""
        return self._access.authenticated(request)

    def begins_watch(self, request: ApiRequest) -> bool:
        """Report whether a request with `watch` is a watch; for named objects and writes it is not."""
        path = resource_at(self._resources, request.path)
        return request.method == "GET" and path is not None and not path.name

    def handle(self, request: ApiRequest) -> AnyResponse:
        """Answer a request. Unexpected exceptions are audited and propagate to the caller."""
        known = acting = request
        path, answer = None, None
        try:
            path = resource_at(self._resources, request.path)
            known = acting = self._access.authenticated(request)
            acting = self._access.acting(known)
            answer = _with_deprecation(self._answer(acting, path), path)
        except StatusError as refused:
            answer = refused.response()
        finally:
            noted = answer or DEFECT.response()
            self._audit(AuditedRequest(known, acting, path, noted, is_defect=answer is None))
        return (
            answer
            if not isinstance(answer, DeferredResponse)
            else self._audit_deferred(answer, AuditedRequest(known, acting, path, answer))
        )

    def _audit_deferred(self, later: DeferredResponse, audited: AuditedRequest) -> DeferredResponse:
        """Audit a response when it is available."""

        def noted(reported: Callable[[Response], None], response: Response) -> None:
            self._audit(audited._replace(answer=response))
            reported(response)

        return DeferredResponse(lambda reported: later.then(partial(noted, reported)))

    def _answer(self, request: ApiRequest, path: ResourcePath | None) -> AnyResponse:
        self._access.check(request, path)
        _check_small(request, path)
        self._reading.drop_expired()
        if path is None:
            return self._serve_document(request)
        if path.answer is not None:
            if request.method not in path.answer.methods:
                raise method_not_allowed()
            if path.answer.needs:
                self._access.check(request, path, path.answer.needs)
            return path.answer.methods[request.method](request, path.namespace, path.name)
        if path.subresource and path.subresource not in path.resource.subresources:
            return NO_SUCH_PATH
        if request.method != "GET":
            form = form_of(request)
            if self._registry.creates_by_apply(request, path):
                self._access.check(request, path, "create")
            if self._apart is not None and self._takes_long(request, path):
                return self._prepare_with_executor(request, path, form, self._apart)
            answer = _with_deprecation(self._registry.handle(request, path), path)
            if form is not ResponseForm.WHOLE:
                return in_form(answer, form) if isinstance(answer, Response) else answer
            if self._foresee is None or not _is_trial(request, path) or not isinstance(answer, Response):
                return answer
            return self._foresee(request, path, answer)
        if path.name:
            return self._reading.get(request, path)
        return self._reading.watch(request, path) if request.flag("watch") else self._reading.list(request, path)

    def _takes_long(self, request: ApiRequest, path: ResourcePath) -> bool:
        """Report whether a write is large or changes a large object; deletions never count."""
        if len(request.body) > SMALL_MAX:
            return True
        return request.method in {"PUT", "PATCH"} and self._registry.targets_large_object(path)

    def _prepare_with_executor(
        self, request: ApiRequest, path: ResourcePath, form: ResponseForm, apart: WriteExecutor
    ) -> DeferredResponse:
        """Prepare a large write asynchronously, and again if its object has changed meanwhile."""
        user, work = request.user, partial(encoded, partial(self._registry.prepare, request, path))

        def finish(reported: Callable[[Response], None], attempt: int, sent: bytes | StatusError) -> None:
            try:
                answer = self._stored(sent, path, is_last=attempt == ATTEMPTS_MAX)
                if answer is None:
                    apart.ask(user, work, partial(finish, reported, attempt + 1))
                else:
                    reported(answer if form is ResponseForm.WHOLE else in_form(answer, form))
            except StatusError as refused:
                reported(refused.response())
            except Exception:
                reported(DEFECT.response())
                raise

        waiting: list[Callable[[Response], None]] = []
        apart.ask(user, work, lambda sent: finish(waiting[0], 1, sent))
        return DeferredResponse(waiting.append)

    def _stored(self, sent: bytes | StatusError, path: ResourcePath, *, is_last: bool) -> Response | None:
        """Store a prepared write; None if its object has changed meanwhile and attempts remain."""
        prepared = prepared_write(sent)
        if self._registry.is_current(prepared, path):
            answer = _with_deprecation(self._registry.do(prepared, path), path)
            assert isinstance(answer, Response), "a write is answered at once"
            return answer
        if is_last:
            raise conflict(path, path.name)
        return None

    def _serve_document(self, request: ApiRequest) -> AnyResponse:
        """Serve paths that name no resource: documents, health, OpenAPI and discovery."""
        if request.method == "PUT" and request.path in self._puts:
            return self._puts[request.path](request)
        if request.method not in {"GET", "HEAD"}:
            return NO_SUCH_PATH
        first, _, rest = request.path.strip("/").partition("/")
        if first in HEALTH:
            return Response(200, _health(first) if "verbose" in request.query else "ok", content_type=TEXT)
        if request.path in self._documents:
            return self._documents[request.path](request)
        for prefix, answer in self._prefixes.items():
            if request.path.startswith(prefix):
                return answer(request)
        is_aggregated = not rest and AGGREGATED in request.headers.get("accept", "") and first in {"api", "apis"}
        if first == "openapi":
            if rest == "v2" and _OPENAPI_V2_ACCEPT in request.headers.get("accept", ""):
                return Response(200, self._openapi.message(), content_type=_OPENAPI_V2_CONTENT_TYPE)
            found = self._openapi.document(rest)
        else:
            found = self._discovery.document(request.path, is_aggregated=is_aggregated)
        if found is None:
            return NO_SUCH_PATH
        return Response(200, found, content_type=AGGREGATED) if is_aggregated else Response(200, found)


def _check_small(request: ApiRequest, path: ResourcePath | None) -> None:
    """Raise Refused for a large body on a path that does not store an object."""
    is_object = path is not None and path.answer is None and request.method != "DELETE"
    if len(request.body) > SMALL_MAX and not is_object:
        raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {SMALL_MAX}")


def _is_trial(request: ApiRequest, path: ResourcePath) -> bool:
    """Report whether a request is a dry run with predicted effects."""
    is_tried = bool(request.query.get("dryRun")) and request.method in {"POST", "PUT", "PATCH"}
    return is_tried and not path.subresource and path.info.constant in _FORECAST_KINDS


def _with_deprecation(answer: AnyResponse, path: ResourcePath | None) -> AnyResponse:
    """Add the deprecation warning of the version to a response."""
    if path is None or path.version not in path.info.deprecated_versions or not isinstance(answer, Response):
        return answer
    reported = path.info.deprecation
    return answer if reported in answer.warnings else answer._replace(warnings=(*answer.warnings, reported))


def _health(check: str) -> str:
    """Return the verbose text of a health check, which always passes."""
    return f"[+]ping ok\n{check} check passed\n"
