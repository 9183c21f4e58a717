"""Requests of the operator's dashboard to the API server with the token of the page's user.

The API server therefore authorizes and audits them as requests of this user. The dashboard sends only the writes of its
actions (`apiserver/dashboard_actions.py`), reads of pod logs, and lists of the Events about one object. Of a browser's
request, only the token and the validated values below reach the API server.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn, TypeAlias
from urllib.parse import urlencode

import msgspec

from batchyard.api import scheme
from batchyard.apiserver.dashboard import (
    DASHBOARD_STREAMS_FOR_OWNER,
    DASHBOARD_STREAMS_MAX,
    DASHBOARD_STREAMS_PER_FLOW_MAX,
)
from batchyard.apiserver.request import ApiRequest, StatusError, UserInfo, bad_request, flow_of, is_exempt_from_limits
from batchyard.base.instant import HOUR, Instant
from batchyard.client.transport import HttpRequest, HttpResponse, decode_object, is_object, object_path
from batchyard.dashboard.models.workload import INVOLVED_OBJECTS_MAX
from batchyard.server.operator.aiohttp_transport import UserTransport
from batchyard.server.operator.token_review import ReviewCache, user_info

#: The maximum number of lines that a log can begin with, of bytes in a log, and the maximum duration of its stream.
LOG_LINES_MAX: Final = 5000
LOG_BYTES_MAX: Final = 64 * 1024 * 1024
LOG_DURATION_MAX: Final = HOUR
#: The maximum number of Events about one object that are read.
_EVENTS_READ_MAX: Final = 100
#: The maximum number of requests in flight except logs: for one flow, and in total.
REQUESTS_PER_FLOW_MAX: Final = 8
REQUESTS_MAX: Final = 40
_SELF_REVIEWS_PATH: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_SELF_REVIEW: Final = msgspec.json.encode({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
_LABEL: Final = "[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_LABEL_PATTERN: Final = re.compile(_LABEL)
_SUBDOMAIN_PATTERN: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_SUBDOMAIN_LENGTH_MAX: Final = 253
#: A path without escapes, without empty segments, and without the segments "." and "..".
_WRITE_PATH_PATTERN: Final = re.compile("(?:/[A-Za-z0-9][-.A-Za-z0-9]*)+")
_UID_PATTERN: Final = re.compile("[-0-9A-Za-z]{1,64}")
_LINE_COUNT_PATTERN: Final = re.compile("[0-9]{1,4}")
_LOG_PARAMETERS: Final = ("container", "follow", "tailLines")

# What a browser may request. Each function validates all values, and raises StatusError for any other value.


def log_request(namespace: str, pod: str, query: Sequence[tuple[str, str]]) -> HttpRequest:
    """Return the request for the log of a pod's container. Raises StatusError (400) for invalid names or parameters."""
    parameters = _single_parameters(query, _LOG_PARAMETERS)
    container, follow, tail_lines = (parameters.get(name) for name in _LOG_PARAMETERS)
    _check_name("namespace", namespace, _LABEL_PATTERN)
    _check_name("pod", pod, _SUBDOMAIN_PATTERN)
    if container is not None:
        _check_name("container", container, _LABEL_PATTERN)
    if follow not in {None, "true", "false"}:
        raise bad_request(f"follow: must be true or false, is {follow!r}")
    if tail_lines is None:
        parameters["tailLines"] = str(LOG_LINES_MAX)
    elif not _LINE_COUNT_PATTERN.fullmatch(tail_lines) or int(tail_lines) > LOG_LINES_MAX:
        raise bad_request(f"tailLines: must be a number up to {LOG_LINES_MAX}, is {tail_lines!r}")
    parameters["limitBytes"] = str(LOG_BYTES_MAX)
    pod_kind = scheme.kind_info(scheme.POD)
    path = object_path(pod_kind, pod_kind.storage_version, namespace, pod, "log")
    return HttpRequest("GET", f"{path}?{urlencode(parameters)}", timeout=LOG_DURATION_MAX, accept="*/*")


def event_requests(query: Sequence[tuple[str, str]]) -> Sequence[HttpRequest]:
    """Return a list request for the Events about each object of which the query has the uid.

    Raises StatusError (400) for invalid parameters.
    """
    uids = [value for name, value in query if name == "uid"]
    namespace = _single_parameters([item for item in query if item[0] != "uid"], ("namespace",)).get("namespace", "")
    _check_name("namespace", namespace, _LABEL_PATTERN)
    if not 1 <= len(uids) <= INVOLVED_OBJECTS_MAX:
        raise bad_request(f"uid: must be given 1 to {INVOLVED_OBJECTS_MAX} times, is given {len(uids)} times")
    for uid in uids:
        _check_name("uid", uid, _UID_PATTERN)
    event_kind = scheme.kind_info(scheme.EVENT)
    path = object_path(event_kind, event_kind.storage_version, namespace)
    selectors = [{"fieldSelector": f"involvedObject.uid={uid}", "limit": str(_EVENTS_READ_MAX)} for uid in uids]
    return [HttpRequest("GET", f"{path}?{urlencode(selector)}") for selector in selectors]


def write_request(write: ApiRequest) -> HttpRequest:
    """Return the request of an action's write, which the dashboard has planned.

    Raises StatusError (400) if a server could read the path as that of another object.
    """
    if not _WRITE_PATH_PATTERN.fullmatch(write.path):
        raise bad_request(f"the page cannot write to the path {write.path!r}: use kubectl")
    query = f"?{urlencode(write.query)}" if write.query else ""
    return HttpRequest(write.method, write.path + query, write.body, content_type=write.headers["content-type"])


def _single_parameters(query: Sequence[tuple[str, str]], known_names: Sequence[str]) -> dict[str, str]:
    parameters = dict(query)
    unknown_names = [name for name in parameters if name not in known_names]
    if unknown_names:
        raise bad_request(f"unknown parameter {unknown_names[0]!r}: use {', '.join(known_names)}")
    if len(parameters) != len(query):
        raise bad_request("each parameter may be given once")
    return parameters


def _check_name(field: str, value: str, pattern: re.Pattern[str]) -> None:
    if len(value) > _SUBDOMAIN_LENGTH_MAX or not pattern.fullmatch(value):
        raise bad_request(f"{field}: {value[:_SUBDOMAIN_LENGTH_MAX]!r} is no valid name")


# Sending the requests as the user.


Document: TypeAlias = Mapping[str, Any]


class UserRequests:
    """Sends requests with the tokens of dashboard users.

    If the API server, or a proxy before it, ignores tokens, it would execute requests with other rights than the
    user's. Therefore each token is first sent in a SelfSubjectReview, whose user must be the user of the token.
    """

    def __init__(self, transport: UserTransport, now: Callable[[], Instant]) -> None:
        self._transport = transport
        #: The tokens that the API server at a URL has authenticated as their user, by the digest of the token.
        self._now = now
        self._confirmed: ReviewCache[tuple[bytes, UserInfo, str], None] = ReviewCache(now)
        self._open_requests = _OpenRequests("requests are in flight", REQUESTS_PER_FLOW_MAX, REQUESTS_MAX, 0)
        self._open_logs = _OpenRequests(
            "logs are open", DASHBOARD_STREAMS_PER_FLOW_MAX, DASHBOARD_STREAMS_MAX, DASHBOARD_STREAMS_FOR_OWNER
        )

    async def send(self, token: str, user: UserInfo, request: HttpRequest) -> Document:
        """Send a request as the user of a token, and return the object in the successful response.

        Raises StatusError with the Status of the API server if it rejects the request, or if there is no response, or
        if too many requests are in flight.
        """
        with self._open_requests.opened_by(user):
            await self._check_identity(token, user)
            response = await self._transport.send_request(token, request)
            document = decode_object(response.body)
        is_answered = 200 <= response.code < 300 and "kind" in document
        return document if is_answered else _raise_error(response, document)

    async def stream_log(
        self, token: str, user: UserInfo, request: HttpRequest, deliver: Callable[[bytes], Awaitable[bool]]
    ) -> None:
        """Pass the parts of a log to `deliver`, as UserTransport.stream does.

        Raises StatusError as `send`, also if too many logs are open, or if the connection fails during the stream.
        """
        with self._open_logs.opened_by(user):
            await self._check_identity(token, user)
            response = await self._transport.stream(token, request, deliver)
        if response.code != 200:
            _raise_error(response, decode_object(response.body))

    async def _check_identity(self, token: str, user: UserInfo) -> None:
        """Raise StatusError unless the API server authenticates requests with this token as the user."""
        confirmation = hashlib.sha256(token.encode()).digest(), user, self._transport.url
        if self._confirmed.get(confirmation) is not None:
            return
        asked_at = self._now()
        response = await self._transport.send_request(token, HttpRequest("POST", _SELF_REVIEWS_PATH, _SELF_REVIEW))
        if response.code == 404:
            problem = "the API server has no SelfSubjectReview (authentication.k8s.io/v1, since Kubernetes 1.28)"
            raise StatusError(501, "NotImplemented", f"{problem}: use kubectl instead of the page")
        document = decode_object(response.body)
        if response.code not in (200, 201):
            _raise_error(response, document)
        executing_user = user_info((document.get("status") or {}).get("userInfo") or {})
        if _identity_of(executing_user) != _identity_of(user):
            other_name = executing_user.name
            if other_name == user.name:
                other_name += " with another uid, other groups or other extra attributes"
            problem = f"the API server executes requests with the token of {user.name} as {other_name}"
            remedy = "use kubectl, or an operator whose kubeconfig has the address of the API server itself"
            raise StatusError(403, "Forbidden", f"{problem}, so the page cannot send them: {remedy}")
        self._confirmed.put(confirmation, None, asked_at)


class _OpenRequests:
    """Limits the open requests of a sort: for one flow, and in total with a part reserved for `system:masters`."""

    def __init__(self, description: str, per_flow_max: int, total_max: int, reserved_for_owner: int) -> None:
        self._description = description
        self._per_flow_max = per_flow_max
        self._total_max = total_max
        self._reserved_for_owner = reserved_for_owner
        self._counts: Counter[str] = Counter()

    @contextmanager
    def opened_by(self, user: UserInfo) -> Iterator[None]:
        """Count a request of a user as open within the `with` block. Raises StatusError (429) if too many are open."""
        flow, open_count = flow_of(user), self._counts.total()
        is_owner = self._reserved_for_owner > 0 and is_exempt_from_limits(user)
        if not is_owner and self._counts[flow] >= self._per_flow_max:
            raise self._too_many_error(f"{self._counts[flow]} {self._description} for {flow}")
        if open_count >= self._total_max - (0 if is_owner else self._reserved_for_owner):
            raise self._too_many_error(f"{open_count} {self._description}")
        self._counts[flow] += 1
        try:
            yield
        finally:
            self._counts[flow] -= 1
            if not self._counts[flow]:
                del self._counts[flow]

    def _too_many_error(self, problem: str) -> StatusError:
        remedy = "close a page, or try again later"
        return StatusError(429, "TooManyRequests", f"{problem}; {remedy}", {"retryAfterSeconds": 1})


def listed_items(document: Document) -> Sequence[Document]:
    """Return the objects in the list that `send` returned; none if it is not a list."""
    items = document.get("items")
    return items if isinstance(items, list) and all(map(is_object, items)) else ()


def _identity_of(user: UserInfo) -> tuple[str, str, frozenset[str], Mapping[str, frozenset[str]]]:
    """Return all that authorization can depend on, without the order of groups and values."""
    return user.name, user.uid, frozenset(user.groups), {key: frozenset(values) for key, values in user.extra}


def _raise_error(response: HttpResponse, status: Document) -> NoReturn:
    """Raise StatusError with the decoded Status in a response, or with a message about a response without one."""
    if response.code < 400:
        problem = response.trouble or f"the response (code {response.code}) is not from the Kubernetes API"
        raise StatusError(
            502, "ServiceUnavailable", f"no answer of the API server: {problem}; reload the page, and try again"
        )
    if status.get("kind") != "Status":
        raise StatusError(response.code, "Unknown", f"the API server responded with {response.code} without a Status")
    details = status.get("details")
    raise StatusError(
        response.code,
        str(status.get("reason") or "Unknown"),
        str(status.get("message") or f"the API server responded with {response.code}"),
        details if isinstance(details, dict) else None,
    )
