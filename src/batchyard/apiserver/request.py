"""API requests, their options, responses and errors as values, independent of the transport."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.validation.rules import format_json
from batchyard.interfaces.client import Propagation
from batchyard.interfaces.containers import ByteStream, ProcessSession, SessionClient, SessionEnd, Streams

# Users and groups. Sources: k8s.io/apiserver, pkg/authentication (user, x509, serviceaccount).


MASTERS_GROUP: Final = "system:masters"
#: The group that may read metrics and health.
MONITORING_GROUP: Final = "system:monitoring"
AUTHENTICATED_GROUP: Final = "system:authenticated"
UNAUTHENTICATED_GROUP: Final = "system:unauthenticated"
_SERVICE_ACCOUNT_PREFIX: Final = "system:serviceaccount:"
_SERVICE_ACCOUNTS_GROUP: Final = "system:serviceaccounts"


class UserInfo(NamedTuple):
    """A user: name and groups, and uid and extra attributes if known."""

    name: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def to_json(self) -> Mapping[str, Any]:
        """Return the user in the JSON form of the API's `UserInfo`, without empty fields."""
        fields = {"username": self.name, "uid": self.uid, "groups": list(self.groups)}
        extra = {key: list(values) for key, values in self.extra}
        return {name: value for name, value in {**fields, "extra": extra}.items() if value}


#: The extra attribute of users with a dashboard token, and its values.
PAGE_TOKEN_EXTRA: Final = "batchyard.dev/page-token"  # noqa: S105 - an attribute's name
READ_ONLY_TOKEN, ACTIONS_TOKEN = "read-only", "actions"


def has_read_only_token(user: UserInfo) -> bool:
    """Return whether a user was authenticated with a dashboard token that permits no actions."""
    return (PAGE_TOKEN_EXTRA, (READ_ONLY_TOKEN,)) in user.extra


ANONYMOUS: Final = UserInfo("system:anonymous", (UNAUTHENTICATED_GROUP,))


#: The user of a request whose token is not authenticated yet. It has no rights and is in no group.
PENDING_USER: Final = UserInfo("system:pending", ())


def certificate_user(name: str, groups: tuple[str, ...]) -> UserInfo:
    """Return the user that a verified client certificate names, with `system:authenticated` as a further group."""
    return UserInfo(name, (*groups, AUTHENTICATED_GROUP))


def service_account_username(namespace: str, name: str) -> str:
    """Return the user name of a ServiceAccount."""
    return f"{_SERVICE_ACCOUNT_PREFIX}{namespace}:{name}"


#: The name of the user of writes by the controllers of this process.
CONTROLLER_USERNAME: Final = service_account_username("kube-system", "batchyard")


def service_account_of(user: str) -> tuple[str, str] | None:
    """Return (namespace, name) of the ServiceAccount with this user name; None if the user is not a ServiceAccount."""
    namespace, separator, name = user.removeprefix(_SERVICE_ACCOUNT_PREFIX).partition(":")
    is_account = user.startswith(_SERVICE_ACCOUNT_PREFIX) and separator and namespace and name and ":" not in name
    return (namespace, name) if is_account else None


def account_groups(namespace: str) -> tuple[str, ...]:
    """Return the groups of the ServiceAccounts in a namespace."""
    return (_SERVICE_ACCOUNTS_GROUP, f"{_SERVICE_ACCOUNTS_GROUP}:{namespace}")


# A flow is a set of requests that share one limit. Each user has a flow, and each namespace one for all its
# ServiceAccounts.
#
# A user who creates many ServiceAccounts in a namespace therefore gains only one further flow. Requests of
# `system:masters` are exempt from limits, as in API Priority and Fairness.
# Source: k8s.io/apiserver, pkg/apis/flowcontrol/bootstrap/default.go.


def flow_of(user: UserInfo) -> str:
    """Return the name of a user's flow, whose requests share limits.

    It is the user name, or for a ServiceAccount the group of all ServiceAccounts in its namespace.
    """
    service_account = service_account_of(user.name)
    return user.name if service_account is None else f"system:serviceaccounts:{service_account[0]}"


def is_exempt_from_limits(user: UserInfo) -> bool:
    """Return whether a user's requests are exempt from request limits: whether the user is in `system:masters`."""
    return MASTERS_GROUP in user.groups


JSON: Final = "application/json"
PLAIN_TEXT: Final = "text/plain; charset=utf-8"
#: Joins the values of a repeated header; header values cannot contain it.
HEADER_SEPARATOR: Final = "\n"
#: The headers that apply to one connection, and so are not passed on. Sources: RFC 9110, section 7.6.1; Go's
#: net/http/httputil, reverseproxy.go.
HOP_BY_HOP_HEADERS: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade"),
    }
)
_FALSE_VALUES: Final = frozenset({"false", "0"})


class ApiRequest(NamedTuple):
    """An API request. Header names are in lowercase; if a parameter is repeated, `query` has its first value."""

    method: str
    path: str
    query: Mapping[str, str] = MappingProxyType({})
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""
    user: UserInfo = ANONYMOUS
    #: The client address.
    client_address: str = ""
    #: All query parameters in order, including repeated ones.
    query_items: tuple[tuple[str, str], ...] = ()

    def with_user(self, user: UserInfo) -> "ApiRequest":
        """Return the request with another user."""
        return ApiRequest(
            self.method, self.path, self.query, self.headers, self.body, user, self.client_address, self.query_items
        )

    def with_body(self, body: bytes) -> "ApiRequest":
        """Return the request with another body."""
        return ApiRequest(
            self.method, self.path, self.query, self.headers, body, self.user, self.client_address, self.query_items
        )

    def query_values(self, name: str) -> list[str]:
        """Return all values of a repeatable query parameter."""
        return [value for key, value in self.query_items if key == name]

    def has_flag(self, name: str) -> bool:
        """Return whether a query parameter is present and not false, as in Kubernetes' runtime/conversion.go."""
        value = self.query.get(name)
        return value is not None and value.lower() not in _FALSE_VALUES


class Response(NamedTuple):
    """An API response: status code, and an object, text or bytes as body."""

    code: int
    body: Any
    warnings: tuple[str, ...] = ()
    content_type: str = JSON
    #: The value of the Retry-After header in seconds.
    retry_after: int | None = None
    #: Further headers: names in lower case, and values.
    headers: tuple[tuple[str, str], ...] = ()
    #: The annotations of the audit event.
    annotations: Mapping[str, str] = MappingProxyType({})


#: As in Kubernetes; clients convert it to a Status that names the requested object.
NO_SUCH_PATH_RESPONSE: Final = Response(404, "404 page not found\n", content_type=PLAIN_TEXT)


class StatusError(Exception):
    """An API error: the request is rejected with a Status of this code and reason, and its `details`."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or {}
        #: The annotations of the audit event.
        self.annotations: Mapping[str, str] = {}

    def response(self) -> Response:
        """Return the Status as a response."""
        status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        status |= {"message": str(self), "reason": self.reason} if self.reason else {"message": str(self)}
        if self.details:
            status["details"] = self.details
        retry_after = self.details.get("retryAfterSeconds")
        body = {**status, "code": self.code}
        return Response(self.code, body, retry_after=retry_after, annotations=self.annotations)


def bad_request(message: str) -> StatusError:
    """Return a 400 error for a malformed request."""
    return StatusError(400, "BadRequest", message)


def method_not_allowed_error() -> StatusError:
    """Return a 405 error for a method that the resource does not support."""
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def causes_of(errors: tuple[FieldError, ...]) -> list[dict[str, str]]:
    """Convert field errors to the causes of a Status; the start of each error's text determines the cause's reason."""
    return [{"reason": _reason_of(f.problem), "message": f.problem, "field": f.path or "<nil>"} for f in errors]


_REASONS: Final = {
    "Required value": "FieldValueRequired",
    "Invalid value": "FieldValueInvalid",
    "Unsupported value": "FieldValueNotSupported",
    "Duplicate value": "FieldValueDuplicate",
    "Forbidden": "FieldValueForbidden",
    "Not found": "FieldValueNotFound",
    "Too long": "FieldValueTooLong",
    "Too many": "FieldValueTooMany",
}


def _reason_of(problem: str) -> str:
    return next((reason for start, reason in _REASONS.items() if problem.startswith(start)), "FieldValueInvalid")


# Streaming and asynchronous responses, as the transport handles them.


class StreamingResponse(Protocol):
    """A streamed response, which ends by itself, after `end()`, or when its client disconnects."""

    is_over: bool
    on_new_data: Callable[[], None]
    """Called when data is available."""

    @property
    def content_type(self) -> str:
        """The media type of the streamed data."""

    @property
    def times_out(self) -> bool:
        """Whether the server ends the response after the timeout of the request; clients then reconnect."""

    def take_buffered_data(self) -> Iterable[Any]:
        """Remove and return the buffered data; bytes are sent unchanged, other values as lines of JSON."""

    def send_keep_alive(self) -> None:
        """Send a keep-alive, such as a bookmark, if this kind of response has one; called periodically."""

    def end(self) -> None:
        """End the response after the buffered data."""


@dataclass(frozen=True, eq=False, slots=True)
class ProtocolUpgrade:
    """The protocol to which a connection is upgraded."""

    #: `websocket` or `SPDY/3.1`.
    transport: str
    #: The negotiated protocol of the streams; '' if the client requested none.
    subprotocol: str


@dataclass(frozen=True, eq=False, slots=True)
class ExecResponse:
    """A response to exec or attach: the connection becomes a session with a process."""

    upgrade: ProtocolUpgrade
    streams: Streams
    open_session: Callable[[SessionClient], ProcessSession]
    #: Returns the Status for the end of the session.
    status: Callable[[SessionEnd], Mapping[str, Any]]


@dataclass(frozen=True, eq=False, slots=True)
class PortForwardResponse:
    """A response to port-forward: the connection carries data to and from ports of a pod."""

    upgrade: ProtocolUpgrade
    #: The ports in the request, if its protocol requires them.
    ports: Sequence[int]
    connect: Callable[[int, SessionClient], ByteStream]
    #: Returns the error message for a port that cannot be reached.
    failure_message: Callable[[int, SessionEnd], str]


@dataclass(frozen=True, eq=False, slots=True)
class ReplicationResponse:
    """A response to a standby: the connection carries the changes of the journal."""

    upgrade: ProtocolUpgrade
    #: Returns the handler of the upgraded connection.
    create_handler: Callable[[Any], Any]


UpgradeResponse: TypeAlias = ExecResponse | PortForwardResponse | ReplicationResponse
StartedResponse: TypeAlias = Response | StreamingResponse | UpgradeResponse
"""A response that can be sent immediately."""


@dataclass(frozen=True, eq=False, slots=True)
class ProxyResponse:
    """A response that another server gives: a request to send to it, and how to connect to it."""

    method: str
    #: The encoded head and body of the request.
    request: bytes
    connect: Callable[[SessionClient], ByteStream]
    #: Returns the response for a failure to connect or a malformed response.
    failure: Callable[[str], Response]
    #: The seconds within which the response must begin; 0 for the default.
    timeout: float = 0.0
    #: Headers that are added to the response of the other server.
    added_headers: tuple[tuple[str, str], ...] = ()


FinalResponse: TypeAlias = StartedResponse | ProxyResponse
"""A response that does not wait for other work of the API server."""


@dataclass(frozen=True, eq=False, slots=True)
class DeferredResponse:
    """A response that is not computed yet; a callback receives it later."""

    #: Registers a callback, which is called once with the response, after the registration has returned.
    then: Callable[[Callable[[FinalResponse], None]], None]


AnyResponse: TypeAlias = FinalResponse | DeferredResponse


#: The media types of patches.
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"


# Request options: dry run, field validation, field manager, deletion and list options.
#
# Source: k8s.io/apimachinery, pkg/apis/meta/v1/{types.go,validation/validation.go}.


STRICT: Final = "Strict"
WARN: Final = "Warn"
IGNORE: Final = "Ignore"
_MANAGER_LENGTH_MAX: Final = 128
_PROPAGATION_POLICIES: Final = ("Foreground", "Background", "Orphan")
_OPTION_KINDS: Final = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}


class WriteOptions(NamedTuple):
    """The options of a create, update or patch request."""

    dry_run: bool
    #: The handling of unknown and duplicate fields: Strict, Warn or Ignore.
    field_validation: str
    #: The field manager.
    manager: str
    #: Whether an apply overrides conflicts.
    force: bool
    #: The requesting user.
    user: UserInfo


class DeleteOptions(NamedTuple):
    """The options of a delete request."""

    dry_run: bool
    #: None: the default of the object.
    grace_seconds: int | None
    #: None: the default of the kind.
    propagation: Propagation | None
    #: Preconditions: the UID and resourceVersion that the object must have; None if unset.
    uid: str | None
    resource_version: str | None

    def unmet_precondition(self, stored_object: Obj) -> str:
        """Describe the first precondition of the delete that an object does not meet; '' if it meets all."""
        metadata = stored_object["metadata"]
        preconditions = (
            ("UID", self.uid, metadata["uid"], "deleted and then recreated"),
            ("ResourceVersion", self.resource_version, metadata["resourceVersion"], "modified"),
        )
        for label, required, actual, likely_cause in preconditions:
            if required and required != actual:
                text = f"the {label} in the precondition ({required}) does not match the {label} in record ({actual})"
                return f"{text}. The object might have been {likely_cause}"
        return ""


def parse_write_options(request: ApiRequest, content_type: str = "") -> WriteOptions:
    """Parse the options of a write request. Raises StatusError if they are invalid."""
    query = request.query
    errors = [*_write_option_errors(request, content_type)] if query or content_type == APPLY_PATCH else []
    if errors:
        raise _invalid_options_error(_OPTION_KINDS[request.method], errors)
    user_agent = request.headers.get("user-agent", "").partition("/")[0]
    manager = query.get("fieldManager") or "".join(filter(str.isprintable, user_agent))[:_MANAGER_LENGTH_MAX]
    field_validation = query.get("fieldValidation") or WARN
    return WriteOptions(
        "dryRun" in query, field_validation, manager or "unknown", request.has_flag("force"), request.user
    )


def _write_option_errors(request: ApiRequest, content_type: str) -> Iterator[FieldError]:
    query = request.query
    manager = query.get("fieldManager", "")
    if content_type == APPLY_PATCH and not manager:
        yield FieldError("fieldManager", "Required value: is required for apply patch")
    if content_type != APPLY_PATCH and "force" in query:
        yield FieldError("force", "Forbidden: may not be specified for non-apply patch")
    if len(manager.encode()) > _MANAGER_LENGTH_MAX:
        yield FieldError("fieldManager", f"Too long: may not be more than {_MANAGER_LENGTH_MAX} bytes")
    # At most as many characters as a valid field manager has bytes: a request line may hold thousands.
    for index, char in enumerate(manager[:_MANAGER_LENGTH_MAX]):
        if not char.isprintable():
            problem = f"invalid character U+{ord(char):04X} (at position {len(manager[:index].encode())})"
            yield FieldError("fieldManager", f"Invalid value: {format_json(manager)}: {problem}")
    yield from _dry_run_errors([query["dryRun"]] if "dryRun" in query else [])
    if query.get("fieldValidation", "") not in ("", IGNORE, STRICT, WARN):
        supported_text = f'supported values: "", "{IGNORE}", "{STRICT}", "{WARN}"'
        yield FieldError("fieldValidation", f'Unsupported value: "{query["fieldValidation"]}": {supported_text}')


def _dry_run_errors(dry_run_values: list[Any]) -> Iterator[FieldError]:
    if any(value != "All" for value in dry_run_values):
        yield FieldError("dryRun", f'Unsupported value: "{dry_run_values[0]}": supported values: "All"')


def parse_delete_options(request: ApiRequest, body: Any) -> DeleteOptions:
    """Parse the options of a delete request; its body overrides its query. Raises StatusError if they are invalid."""
    if not isinstance(body, Mapping):
        raise bad_request("the request body must be an object of kind DeleteOptions")
    options: dict[str, Any] = {
        name: request.query[name] for name in ("gracePeriodSeconds", "propagationPolicy") if name in request.query
    }
    options |= {"orphanDependents": request.has_flag("orphanDependents")} if "orphanDependents" in request.query else {}
    options |= {"dryRun": [request.query["dryRun"]]} if "dryRun" in request.query else {}
    fields = {name: value for name, value in {**options, **body}.items() if value is not None}
    dry_run, preconditions = fields.get("dryRun", []), fields.get("preconditions", {})
    if not isinstance(dry_run, list):
        raise bad_request('dryRun of the DeleteOptions must be a list, such as ["All"]')
    if not isinstance(preconditions, Mapping):
        raise bad_request("preconditions of the DeleteOptions must be an object")
    uid, resource_version = preconditions.get("uid"), preconditions.get("resourceVersion")
    if not isinstance(uid, str | None) or not isinstance(resource_version, str | None):
        raise bad_request("uid and resourceVersion in preconditions of the DeleteOptions must be strings")
    if errors := [*_dry_run_errors(dry_run), *_propagation_errors(fields)]:
        raise _invalid_options_error("DeleteOptions", errors)
    grace_period = _parse_grace_period(fields.get("gracePeriodSeconds"))
    return DeleteOptions(bool(dry_run), grace_period, _propagation_policy(fields), uid, resource_version)


def _propagation_errors(fields: Mapping[str, Any]) -> Iterator[FieldError]:
    policy = fields.get("propagationPolicy")
    if policy is not None and "orphanDependents" in fields:
        problem = f'Invalid value: "{policy}": orphanDependents and deletionPropagation cannot be both set'
        yield FieldError("propagationPolicy", problem)
    elif policy is not None and policy not in _PROPAGATION_POLICIES:
        supported_text = ", ".join(f'"{name}"' for name in (*_PROPAGATION_POLICIES, "nil"))
        yield FieldError("propagationPolicy", f'Unsupported value: "{policy}": supported values: {supported_text}')


def _propagation_policy(fields: Mapping[str, Any]) -> Propagation | None:
    if "orphanDependents" in fields:
        return Propagation.ORPHAN if fields["orphanDependents"] is True else Propagation.BACKGROUND
    return Propagation(fields["propagationPolicy"]) if "propagationPolicy" in fields else None


def _parse_grace_period(value: Any) -> int | None:
    """Return the grace period in seconds, None if unset; as in Kubernetes, a negative value counts as one second."""
    if value is None:
        return None
    if isinstance(value, bool) or not str(value).removeprefix("-").isdecimal() or len(str(value)) > 10:
        raise bad_request(f"gracePeriodSeconds is {format_json(value)}: write a whole number of seconds, such as 30")
    return 1 if int(value) < 0 else int(value)


def _invalid_options_error(kind: str, errors: list[FieldError]) -> StatusError:
    message = str(errors[0]) if len(errors) == 1 else f"[{', '.join(map(str, errors))}]"
    details = {"group": "meta.k8s.io", "kind": kind, "causes": causes_of(tuple(errors))}
    return StatusError(422, "Invalid", f'{kind}.meta.k8s.io "" is invalid: {message}', details)


# Validation of list and watch options.
#
# Sources: k8s.io/apimachinery, pkg/apis/meta/internalversion/validation; k8s.io/apiserver, pkg/storage/interfaces.go.


_VERSION_MATCH: Final = "resourceVersionMatch"
_SEND_INITIAL_EVENTS: Final = "sendInitialEvents"
_EXACT_MATCH: Final = "Exact"
_NOT_OLDER: Final = "NotOlderThan"
_INTEGER_PATTERN: Final = re.compile(r"[+-]?[0-9]{1,18}")


def check_list_options(request: ApiRequest) -> None:
    """Raise StatusError if the options of a list request are invalid."""
    query = request.query
    timeout_seconds(request)
    _raise_list_option_errors(_list_option_errors(query))
    if query.get("continue") and query.get("resourceVersion", "0") not in ("", "0"):
        raise bad_request("specifying resource version is not allowed when using continue")


def check_watch_options(request: ApiRequest) -> None:
    """Raise StatusError if the options of a watch request are invalid."""
    timeout_seconds(request)
    _raise_list_option_errors(_watch_option_errors(request.query))


def timeout_seconds(request: ApiRequest) -> int:
    """Return the timeout of a request in seconds; 0 if unset. Raises StatusError if it is not an integer."""
    text = request.query.get("timeoutSeconds", "0")
    if not _INTEGER_PATTERN.fullmatch(text):
        raise bad_request(f'timeoutSeconds: "{text}" is not a number')
    return int(text)


def limit_of(request: ApiRequest) -> int:
    """Return the maximum number of objects to list; 0 for all. Raises StatusError if `limit` is not an integer."""
    text = request.query.get("limit", "")
    if not text:
        return 0
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 18:
        raise bad_request(f'limit: "{text}" is not a number')
    return max(0, int(text))


def _list_option_errors(query: Mapping[str, str]) -> Iterator[FieldError]:
    if match := query.get(_VERSION_MATCH, ""):
        resource_version = query.get("resourceVersion", "")
        if not resource_version:
            yield _forbidden_option_error(
                _VERSION_MATCH, f"{_VERSION_MATCH} is forbidden unless resourceVersion is provided"
            )
        if query.get("continue"):
            yield _forbidden_option_error(_VERSION_MATCH, f"{_VERSION_MATCH} is forbidden when continue is provided")
        if match not in (_EXACT_MATCH, _NOT_OLDER):
            yield _unsupported_match_error(match, f'"{_EXACT_MATCH}", "{_NOT_OLDER}"')
        if match == _EXACT_MATCH and resource_version == "0":
            yield _forbidden_option_error(
                _VERSION_MATCH, f'{_VERSION_MATCH} "{_EXACT_MATCH}" is forbidden for resourceVersion "0"'
            )
    if _SEND_INITIAL_EVENTS in query:
        yield _forbidden_option_error(_SEND_INITIAL_EVENTS, f"{_SEND_INITIAL_EVENTS} is forbidden for list")


def _watch_option_errors(query: Mapping[str, str]) -> Iterator[FieldError]:
    version_match, requests_initial_events = query.get(_VERSION_MATCH, ""), _SEND_INITIAL_EVENTS in query
    if requests_initial_events and version_match != _NOT_OLDER:
        yield _forbidden_option_error(
            _VERSION_MATCH, f"{_SEND_INITIAL_EVENTS} requires setting {_VERSION_MATCH} to {_NOT_OLDER}"
        )
    if version_match:
        if not requests_initial_events:
            yield _forbidden_option_error(
                _VERSION_MATCH, f"{_VERSION_MATCH} is forbidden for watch unless {_SEND_INITIAL_EVENTS} is provided"
            )
        if version_match != _NOT_OLDER:
            yield _unsupported_match_error(version_match, f'"{_NOT_OLDER}"')
        if query.get("continue"):
            yield _forbidden_option_error(_VERSION_MATCH, f"{_VERSION_MATCH} is forbidden when continue is provided")


def _forbidden_option_error(field: str, problem: str) -> FieldError:
    return FieldError(field, f"Forbidden: {problem}")


def _unsupported_match_error(version_match: str, supported_text: str) -> FieldError:
    return FieldError(_VERSION_MATCH, f'Unsupported value: "{version_match}": supported values: {supported_text}')


def _raise_list_option_errors(errors: Iterator[FieldError]) -> None:
    if faults := tuple(errors):
        faults_text = ", ".join(map(str, faults))
        message = f"ListOptions.meta.k8s.io is invalid: {faults_text if len(faults) == 1 else f'[{faults_text}]'}"
        details = {"group": "meta.k8s.io", "kind": "ListOptions", "causes": causes_of(faults)}
        raise StatusError(422, "Invalid", message, details)
