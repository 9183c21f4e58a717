"""HTTP requests and responses of the API client: paths, encoding of writes, API errors, rate limit and backoff."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote

import msgspec

from batchyard.api import conversion, errors, scheme
from batchyard.api.conversion import cut_times_to_seconds, time_locations
from batchyard.api.defaults import jobset_defaults, with_default_spec
from batchyard.api.meta import Key, Obj, group_kind
from batchyard.api.scheme import ServedKind
from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant, exponential_backoff
from batchyard.base.primitives import draw_integer
from batchyard.interfaces.client import Create, Delete, Propagation, Update, UpdateStatus, Write

LinesHandler: TypeAlias = Callable[[Sequence[bytes]], None]


class HttpRequest(NamedTuple):
    """A request to an API server; its path includes the query."""

    method: str
    path: str
    body: bytes = b""
    #: The time limit for the response.
    timeout: Duration = 30 * SECOND
    #: The Accept header.
    accept: str = "application/json"
    #: The Content-Type header.
    content_type: str = "application/json"


class HttpResponse(NamedTuple):
    """A response of an API server. The code is 0 if no response was received."""

    code: int
    body: bytes = b""
    #: The Retry-After header.
    retry_after: Duration | None = None
    #: The error if no response was received or a watch broke off; else ''.
    trouble: str = ""
    #: Whether the server may have received the request.
    was_sent: bool = True
    #: The server's Date header, in whole seconds; 0 if absent.
    server_time: Instant = 0


class Transport(Protocol):
    """Sends requests to one API server as one user. Callbacks run later, on the event loop."""

    def send(self, request: HttpRequest, on_response: Callable[[HttpResponse], None]) -> None:
        """Send a request, and call `on_response` once with its response."""

    def watch(self, request: HttpRequest, on_lines: LinesHandler, on_end: Callable[[HttpResponse], None]) -> None:
        """Send a watch request, and call `on_end` once at the end of the watch.

        `on_lines` is called with () when the server has accepted the watch, and then with received lines.
        """


# A transport that rejects all writes, so that its user cannot change anything.


_READ_METHOD: Final = "GET"


class WriteRefusedError(Exception):
    """A write was sent over a read-only transport: a defect in the calling code."""


class ReadOnlyTransport:
    """A transport that passes GET requests without a body on to another transport and rejects all others."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def send(self, request: HttpRequest, on_response: Callable[[HttpResponse], None]) -> None:
        """Send a GET request without a body. Raises WriteRefusedError for any other request."""
        if request.method != _READ_METHOD or request.body:
            raise WriteRefusedError(f"{request.method} {request.path}")
        self._transport.send(request, on_response)

    def watch(self, request: HttpRequest, on_lines: LinesHandler, on_end: Callable[[HttpResponse], None]) -> None:
        """Send a watch request. Raises WriteRefusedError if it is not a GET request without a body."""
        if request.method != _READ_METHOD or request.body:
            raise WriteRefusedError(f"{request.method} {request.path}")
        self._transport.watch(request, on_lines, on_end)


# Client-side rate limit. Source: golang.org/x/time/rate, as client-go uses it.


class RateLimit:
    """A token bucket for requests: holds up to `burst_size` tokens, and gains `qps` tokens a second."""

    def __init__(self, qps: float, burst_size: int) -> None:
        self._qps = qps
        self._burst = float(burst_size)
        self._tokens = float(burst_size)
        self._refilled_at: Instant | None = None

    def take_token(self, now: Instant) -> Duration:
        """Take one token for a request; return how long the request must wait for the token (0 if it was available)."""
        elapsed_time = 0 if self._refilled_at is None else now - self._refilled_at
        self._refilled_at = now
        self._tokens = min(self._burst, self._tokens + elapsed_time / SECOND * self._qps) - 1
        return 0 if self._tokens >= 0 else int(-self._tokens / self._qps * SECOND)


# Exponential backoff with jitter and an upper bound.


BACKOFF_FIRST: Final = 200 * MILLISECOND
BACKOFF_LONGEST: Final = 30 * SECOND


def jittered_backoff(failure_count: int, seed: int, *names: str) -> Duration:
    """Return the retry delay after this many consecutive failures: it doubles up to BACKOFF_LONGEST; 0 for 0 failures.

    A pseudo-random part, drawn from `seed` and `names`, shortens the delay by up to half.
    """
    if not failure_count:
        return 0
    full_delay = exponential_backoff(BACKOFF_FIRST, BACKOFF_LONGEST, failure_count)
    return full_delay // 2 + draw_integer(seed, *names, str(failure_count)) % (full_delay // 2 + 1)


# URL paths of kinds and objects on an API server, and decoding of received objects.


_KINDS_WITH_DEFAULT_SPEC: Final = frozenset(
    {
        *(scheme.TOPOLOGY, scheme.ADMISSION_CHECK, scheme.PROVISIONING_REQUEST_CONFIG),
        *(scheme.COHORT, scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.WORKLOAD, scheme.PREEMPTION_CONFIG),
    }
)


def kind_path(served_kind: ServedKind, version: str) -> str:
    """Return the URL path of all objects of a kind, in one API version."""
    return f"{api_version_path(served_kind.group, version)}/{served_kind.plural}"


def api_version_path(group: str, version: str) -> str:
    """Return the URL path of an API group's version, such as /apis/batch/v1."""
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


def object_path(served_kind: ServedKind, version: str, namespace: str, name: str = "", subresource: str = "") -> str:
    """Return the URL path of an object or its subresource; without a name, of all objects in the namespace."""
    namespace_path = f"/namespaces/{quote(namespace)}" if served_kind.namespaced else ""
    path = f"{api_version_path(served_kind.group, version)}{namespace_path}/{served_kind.plural}"
    return "/".join([path, *[quote(segment) for segment in (name, subresource) if segment]])


def to_storage_version(served_kind: ServedKind, version: str, received_object: Mapping[str, Any]) -> Obj:
    """Convert an object received in this API version to the version in which batchyard stores its kind.

    Items of lists may lack apiVersion and kind. A JobSet gets its defaults, and Kueue's kinds get a `spec`: another
    server may not have set the defaults, and Kueue allows writers to omit the spec.
    """
    obj: Obj = received_object
    if "kind" not in received_object or "apiVersion" not in received_object:
        obj = {"apiVersion": served_kind.api_version_for(version), "kind": served_kind.kind, **received_object}
    storage_object = conversion.to_storage(obj)
    if served_kind.constant == scheme.JOB_SET:
        return jobset_defaults(storage_object)
    return with_default_spec(storage_object) if served_kind.constant in _KINDS_WITH_DEFAULT_SPEC else storage_object


def received_key(served_kind: ServedKind, obj: Obj) -> Key:
    """Return the key (kind, namespace, name) of an object of this kind that a server has sent."""
    metadata = obj["metadata"]
    return Key(served_kind.constant, metadata.get("namespace") or "", metadata["name"])


def revision_of(obj: Mapping[str, Any]) -> int:
    """Return the resourceVersion of an object or a list as a number; 0 if it is not a number."""
    resource_version = str((obj.get("metadata") or {}).get("resourceVersion") or "")
    return int(resource_version) if resource_version.isdecimal() else 0


# Writes as requests to an API server, and errors from its responses.
#
# Sources: the API's conventions; client-go, rest/request.go and rest/with_retry.go, for the responses that allow a
# retry.


_encode: Final = msgspec.json.Encoder().encode
#: The server is overloaded or unavailable; it has not processed the request.
_OVERLOADED_STATUS_CODES: Final = frozenset({429, 503})
#: The connection failed, or a proxy timed out.
_LOST_RESPONSE_CODES: Final = frozenset({0, 502, 504})
_UNAUTHORIZED: Final = 401
_TIMEOUT: Final = 504
_REVISION_TOO_LARGE: Final = "Too large resource version"
_BODY_EXCERPT_MAX: Final = 200
_SERVER_OWNED_FIELDS: Final = frozenset({"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"})


def kind_of(write: Write) -> str:
    """Return the kind of the object that a write concerns."""
    return write.key.kind if isinstance(write, Delete) else group_kind(write.obj)


def namespace_of(write: Write) -> str:
    """Return the namespace of the object that a write concerns."""
    if isinstance(write, Delete):
        return write.key.namespace
    namespace: str = write.obj["metadata"].get("namespace") or ""
    return namespace


def name_of(write: Write) -> str:
    """Return the name of the object that a write concerns; '' if the server generates the name."""
    if isinstance(write, Delete):
        return write.key.name
    name: str = write.obj["metadata"].get("name") or ""
    return name


def to_wire_format(obj: Obj, served_kind: ServedKind) -> dict[str, Any]:
    """Return an object as it is sent to the server: with metav1.Time fields in whole seconds."""
    return cut_times_to_seconds(dict(obj), time_locations(served_kind, served_kind.storage_version))


def request_of(write: Write, served_kind: ServedKind, version: str) -> HttpRequest:
    """Return the HTTP request of a write: POST, PUT or DELETE."""
    namespace, name = namespace_of(write), name_of(write)
    if isinstance(write, Delete):
        return HttpRequest(
            "DELETE", object_path(served_kind, version, namespace, name), _encode(_delete_options(write))
        )
    encoded_body = _encode(
        conversion.from_storage(to_wire_format(write.obj, served_kind), served_kind.api_version_for(version))
    )
    match write:
        case Create():
            return HttpRequest("POST", object_path(served_kind, version, namespace), encoded_body)
        case UpdateStatus():
            return HttpRequest("PUT", object_path(served_kind, version, namespace, name, "status"), encoded_body)
        case Update():
            return HttpRequest("PUT", object_path(served_kind, version, namespace, name), encoded_body)


def list_one_request(write: Write, served_kind: ServedKind, version: str) -> HttpRequest:
    """Return a request that lists only the written object: unlike a GET, this needs only the `list` permission."""
    field_selector_query = f"fieldSelector=metadata.name={quote(name_of(write))}"
    return HttpRequest("GET", f"{object_path(served_kind, version, namespace_of(write))}?{field_selector_query}")


def object_in_list(response: HttpResponse) -> Mapping[str, Any]:
    """Return the object in the response to a `list_one_request`; {} if it does not exist or the request failed."""
    listed_items = decode_object(response.body).get("items") or () if response.code == 200 else ()
    return listed_items[0] if listed_items else {}


def is_retriable(write: Write, response: HttpResponse) -> bool:
    """Return whether a write may be sent again after this response: a repetition may succeed, and cannot do harm.

    A second Create is rejected, unless the server generates the name. An Update names the revision that it is based on.
    """
    if response.code in _OVERLOADED_STATUS_CODES:
        return True
    if response.code not in _LOST_RESPONSE_CODES:
        return response.code >= 500 and response.retry_after is not None
    return not response.was_sent or not isinstance(write, Create) or bool(name_of(write))


def may_have_succeeded(response: HttpResponse) -> bool:
    """Return whether the server may have processed a request although its response was lost."""
    return response.code in _LOST_RESPONSE_CODES and response.was_sent


def error_of(
    response: HttpResponse, write: Write, response_body: Mapping[str, Any], *, may_be_status: bool
) -> errors.ApiError | None:
    """Return the API error of a response to a write; None if the write succeeded.

    `response_body` is the decoded body. The code 200 alone is no success, because a proxy may have sent it: the body
    must be an API object or, with `may_be_status` (a Delete, or the binding of a pod), a Status.
    """
    if 200 <= response.code < 300 and (is_object(response_body) or (may_be_status and "kind" in response_body)):
        return None
    message = str(response_body.get("message") or response.trouble or failure_reason(response))
    if response.code == 404:
        return errors.NotFound(message)
    if response.code == 409:
        return errors.Conflict(message)
    if response.code == 403:  # rights change, and no watch reports it
        return (
            errors.NamespaceTerminating(message)
            if _has_cause(response_body, "NamespaceTerminating")
            else errors.TemporarilyForbidden(message)
        )
    if response.code == 422:
        return errors.InvalidObject(
            [
                errors.FieldError(cause.get("field", ""), cause.get("message", ""))
                for cause in _status_causes(response_body)
            ]
            or [errors.FieldError("", message)]
        )
    return errors.NoValidResponse(f"{type(write).__name__} of {namespace_of(write)}/{name_of(write)}: {message}")


def failure_reason(response: HttpResponse) -> str:
    """Return why a request failed, as text."""
    body = response.body
    if response.code == 200:
        return f"the response is not from the Kubernetes API: {_body_excerpt(body) or 'empty body'}"
    reason = decode_object(body).get("message") or response.trouble or _body_excerpt(body) or "unknown reason"
    if not response.code:
        return f"no response: {reason}"
    if response.code == _UNAUTHORIZED:
        return f"{response.code}: {reason}: the server rejects the credentials of the kubeconfig"
    return f"{response.code}: {reason}"


def failure_advice(response: HttpResponse) -> str:
    """Return why a command's request failed and, for some causes, what the user can do."""
    reason = failure_reason(response)
    if not response.code:
        return f"{reason}; check that the server runs and that the kubeconfig has its address"
    if response.code == _UNAUTHORIZED:
        return f"{reason}; log in again, or select other credentials with --kubeconfig or --context"
    return reason


def is_revision_too_new(response: HttpResponse) -> bool:
    """Return whether the server rejected a resourceVersion as newer than its own revision.

    The cause is a server that was restored from a backup.

    Sources: k8s.io/apimachinery, pkg/api/errors (IsTooLargeResourceVersion); client-go, tools/cache/reflector.go.
    """
    return response.code == _TIMEOUT and _REVISION_TOO_LARGE in failure_reason(response)


def decode_object(body: bytes) -> Mapping[str, Any]:
    """Decode a response body as a JSON object; return an empty mapping if the body is not one."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def list_in_response(response: HttpResponse) -> Mapping[str, Any] | None:
    """Return the decoded list object (such as a PodList) in a response; None if the response is an error or not a list.

    A proxy may answer 200 too, for example with a login page. That must not look like the deletion of all objects.
    """
    page = decode_object(response.body)
    is_list = response.code == 200 and "items" in page and isinstance(page.get("metadata"), dict)
    listed_items = page.get("items") or ()
    return page if is_list and isinstance(listed_items, list | tuple) and all(map(is_object, listed_items)) else None


def is_object(value: Any) -> bool:
    """Return whether a decoded JSON value is an API object: a mapping with `metadata.name`."""
    return isinstance(value, dict) and isinstance(metadata := value.get("metadata"), dict) and "name" in metadata


def contains_fields(stored_value: Any, sent_value: Any) -> bool:
    """Return whether a stored value contains all fields of a sent value; ignore fields that the server sets."""
    if isinstance(sent_value, Mapping):
        return isinstance(stored_value, Mapping) and all(
            contains_fields(stored_value.get(field), value)
            for field, value in sent_value.items()
            if field not in _SERVER_OWNED_FIELDS
        )
    if isinstance(sent_value, list | tuple):
        has_same_length = isinstance(stored_value, list) and len(stored_value) == len(sent_value)
        return has_same_length and all(map(contains_fields, stored_value, sent_value))
    return bool(stored_value == sent_value)


def _body_excerpt(body: bytes) -> str:
    return " ".join(body[:_BODY_EXCERPT_MAX].decode("utf-8", "replace").split())


def _delete_options(write: Delete) -> Obj:
    propagation = write.propagation or Propagation.BACKGROUND
    fields: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation.value}
    if write.grace_period_seconds is not None:
        fields["gracePeriodSeconds"] = write.grace_period_seconds
    if write.uid is not None:
        fields["preconditions"] = {"uid": write.uid}
    return fields


def _status_causes(status: Mapping[str, Any]) -> list[Mapping[str, str]]:
    return (status.get("details") or {}).get("causes") or []


def _has_cause(status: Mapping[str, Any], reason: str) -> bool:
    return any(cause.get("reason") == reason for cause in _status_causes(status))
