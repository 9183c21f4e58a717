"""Request dispatcher: executes queued requests with fair queueing, and responds once their changes are durable."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from batchyard.apiserver import request as api_request
from batchyard.apiserver.auth.security import unauthorized_error
from batchyard.apiserver.serialization import ConvertedItems
from batchyard.apiserver.server import ApiServer
from batchyard.metrics.controllers import RequestMetrics
from batchyard.metrics.registry import Labels
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.server.http.flow_control import (
    ConcurrencyLimiter,
    FairQueue,
    PriorityAndFairness,
    RequestFlow,
    too_many_requests,
)
from batchyard.server.platform.data_dir import REPLICATION_PATH, STANDBY_USER
from batchyard.server.platform.group_commit import GroupCommit
from batchyard.server.streaming.http_exchange import forward_request
from batchyard.store.journal_file import JournalError

# JSON encoding of objects, cached: the response to a write and all watches share one encoding.
#
# Objects are immutable, and an object that is sent twice is the same Python object. The cache is therefore keyed by
# identity. Long lists are encoded in pieces.


#: Maximum cached encodings: the response and the watches usually send an object within one journal transaction.
_SHARED_ENCODINGS_MAX: Final = 512
#: Maximum length of a cached encoding in bytes.
_SHARED_LENGTH_MAX: Final = 64 * 1024
#: The approximate limits of a piece of a long response: its size in bytes, and its number of list items.
PIECE_SIZE: Final = 256 * 1024
_PIECE_ITEMS_MAX: Final = 1_000
_encode: Final = msgspec.json.Encoder().encode
_shared_encodings: Final[dict[int, tuple[Any, bytes]]] = {}


def encode_with_cache(value: Any) -> bytes:
    """Return the JSON encoding of an immutable object, from a cache that responses and watches share.

    Encodings above 64 KiB are not cached.
    """
    cached_encoding = _shared_encodings.get(id(value))
    if cached_encoding is not None and cached_encoding[0] is value:
        return cached_encoding[1]
    text = _encode(value)
    if len(text) <= _SHARED_LENGTH_MAX:
        if len(_shared_encodings) >= _SHARED_ENCODINGS_MAX:
            _shared_encodings.clear()
        _shared_encodings[id(value)] = value, text  # keeps the value alive, so that its id is not reused
    return text


def encode_in_pieces(body: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the JSON encoding of a response body, with a final newline, in one or several pieces.

    Only a list of ConvertedItems is split: into pieces of about PIECE_SIZE bytes or _PIECE_ITEMS_MAX items, which are
    encoded lazily.
    """
    name, items = next(((name, value) for name, value in body.items() if isinstance(value, ConvertedItems)), ("", ()))
    encoded_head = _encode({field: value for field, value in body.items() if field != name})
    if not name:
        yield encoded_head + b"\n"
        return
    separator = b"" if encoded_head == b"{}" else b","
    prefix, piece_texts = encoded_head[:-1] + separator + b'"%b":[' % name.encode(), list[bytes]()
    piece_length = len(prefix)
    for item in items:
        piece_texts.append(_encode(item))
        piece_length += len(piece_texts[-1])
        if piece_length >= PIECE_SIZE or len(piece_texts) >= _PIECE_ITEMS_MAX:
            yield prefix + b",".join(piece_texts)
            prefix, piece_texts, piece_length = b",", [], 0
    yield (prefix if piece_texts else prefix.removesuffix(b",")) + b",".join(piece_texts) + b"]}\n"


ResponseReceiver: TypeAlias = Callable[[api_request.StartedResponse], None]
"""Called with a response. Its body is bytes, or an iterator of bytes for a long response."""
_RequestMeasurement: TypeAlias = tuple[Labels, float]
_ResponseFinisher: TypeAlias = Callable[[api_request.StartedResponse, _RequestMeasurement, JournalError | None], None]

_NOT_STORED: Final = api_request.StatusError(
    500, "InternalError", "Internal error occurred: the change was not stored, because the journal cannot be written"
)
_NOT_SERVING: Final = api_request.StatusError(
    503, "ServiceUnavailable", "the platform has no contact with its standby, which may have taken over; try again"
)
_encoder: Final = msgspec.json.Encoder()
#: Path prefixes of health checks, which are urgent requests.
_HEALTH_PATHS: Final = ("/healthz", "/livez", "/readyz")
#: The expected duration of a request in seconds, and the assumed seconds for reading one byte of its body.
_EXPECTED_REQUEST_SECONDS: Final = 0.0005
_SECONDS_PER_BYTE: Final = 1e-8
_LOG: Final = logging.getLogger("batchyard")


class _QueuedRequest(NamedTuple):
    request: api_request.ApiRequest
    work: Callable[[], None]
    respond: ResponseReceiver
    flow: RequestFlow | None = None


class RequestWatchdog(Protocol):
    """A watchdog that is notified when the execution of a request begins and ends."""

    def begin(self, request: api_request.ApiRequest) -> None:
        """Record that this request is being executed."""

    def end(self) -> None:
        """Record that no request is being executed."""


class _NoWatchdog:
    def begin(self, request: api_request.ApiRequest) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class RequestDispatcher:
    """Queues requests, executes them with fair queueing by user, and responds once their changes are durable."""

    def __init__(
        self,
        server: ApiServer,
        kernel: LiveKernel,
        group_commit: GroupCommit,
        revision: Callable[[], int],
        metrics: RequestMetrics,
        watchdog: RequestWatchdog | None = None,
    ) -> None:
        self._server = server
        self._kernel = kernel
        self._commit = group_commit
        self._revision = revision
        self._metrics = metrics
        self._watchdog = watchdog or _NoWatchdog()
        self._limiter = ConcurrencyLimiter()
        self._queue: FairQueue[_QueuedRequest] = FairQueue(_EXPECTED_REQUEST_SECONDS)
        #: The priority levels; None if requests have none.
        self._flows: PriorityAndFairness | None = None
        self._is_ending = False
        #: The headers of watches that have a flow, until their responses begin.
        self._headers_by_stream: dict[
            api_request.StreamingResponse | api_request.UpgradeResponse, tuple[tuple[str, str], ...]
        ] = {}
        #: The user of each watch and upgraded connection.
        self._users_by_stream: dict[
            api_request.StreamingResponse | api_request.UpgradeResponse, api_request.UserInfo
        ] = {}
        self._exceptions = 0

    def set_flows(self, flows: PriorityAndFairness) -> None:
        """Set the priority levels of requests."""
        self._flows = flows

    def authenticate(self, request: api_request.ApiRequest) -> api_request.ApiRequest:
        """Authenticate a request, without its body, and return it with its user. Raises StatusError if that fails."""
        return self._server.authenticate(request)

    def submit(self, request: api_request.ApiRequest, on_response: ResponseReceiver) -> None:
        """Queue a request; `on_response` gets its response later.

        If a limit of requests or watches is reached, or the server shuts down, `on_response` gets a 429 at once.
        """
        user = request.user
        if self._commit.replication is not None and self._answer_at_once(request, on_response):
            return
        if user is api_request.PENDING_USER:
            self._authenticate_later(request, on_response)
            return
        try:
            if self._is_ending:
                raise too_many_requests()
            self._limiter.enter(user, is_watch=request.has_flag("watch") and self._server.begins_watch(request))
        except api_request.StatusError as rejection:
            on_response(encode_body(rejection.response()))
        else:
            self._admit(request, on_response)

    def _admit(self, request: api_request.ApiRequest, on_response: ResponseReceiver) -> None:
        """Queue a request for execution when its priority level has a seat for it, or reject it."""
        flow = None if self._flows is None else self._flows.assign(request)
        finish = partial(self._finish_request, request.user, flow, on_response)
        work = partial(self._execute_request, request, self._metrics.begin(), finish)
        queued_request = _QueuedRequest(request, work, on_response, flow)
        if flow is None:
            self._enqueue(queued_request)
        else:
            flow.level.admit(flow, partial(self._enqueue, queued_request), partial(self._reject, queued_request))

    def _enqueue(self, queued_request: _QueuedRequest) -> None:
        request, user = queued_request.request, queued_request.request.user
        is_urgent = api_request.is_exempt_from_limits(user) or request.path.startswith(_HEALTH_PATHS)
        self._queue.put(api_request.flow_of(user), queued_request, is_urgent=is_urgent)
        self._kernel.post(self._execute_next_request)

    def _reject(self, queued_request: _QueuedRequest) -> None:
        self._limiter.leave(queued_request.request.user)
        rejection = too_many_requests().response()
        if queued_request.flow is not None:
            rejection = rejection._replace(headers=queued_request.flow.headers)
        queued_request.respond(encode_body(rejection))

    def _authenticate_later(self, request: api_request.ApiRequest, on_response: ResponseReceiver) -> None:
        def submit(authenticated_request: api_request.ApiRequest | None) -> None:
            if authenticated_request is None:
                on_response(encode_body(unauthorized_error().response()))
            else:
                self.submit(authenticated_request, on_response)

        try:
            self._server.finish_authentication(request, submit)
        except api_request.StatusError as rejection:
            on_response(encode_body(rejection.response()))

    def _answer_at_once(self, request: api_request.ApiRequest, on_response: ResponseReceiver) -> bool:
        """Answer a request of the standby, and reject requests while the standby may serve. Return whether it is done.

        The standby's request waits for no journal and no controller, because the platform cannot serve without it. The
        requests of other users, which authorization denies, count against their limits.
        """
        gate = self._commit.replication
        is_refused = gate is not None and gate.refusal() is not None
        is_health_check = is_refused and request.path.startswith(_HEALTH_PATHS[:2])
        is_of_standby = request.path == REPLICATION_PATH and request.user.name == STANDBY_USER
        if is_health_check or (is_of_standby and not self._is_ending):
            response = self._handle_request(request)
            assert not isinstance(response, api_request.DeferredResponse | api_request.ProxyResponse), "only for kinds"
            on_response(response)
            return True
        if is_refused:
            on_response(encode_body(_NOT_SERVING.response()))
        return is_refused

    def end(self) -> None:
        """Reject queued requests that are not urgent, and all later ones, with 429, because the server shuts down."""
        self._is_ending = True
        for queued in self._queue.clear():
            self._reject(queued)
        if self._flows is not None:
            self._flows.reject_waiting()

    def _execute_next_request(self) -> None:
        if not len(self._queue):
            return  # the request was rejected at shutdown
        flow_name, queued_request = self._queue.take_next_item()
        began_at = monotonic_seconds()
        self._watchdog.begin(queued_request.request)
        try:
            queued_request.work()
        finally:
            self._watchdog.end()
            if flow_name:
                self._queue.charge(
                    flow_name, monotonic_seconds() - began_at + len(queued_request.request.body) * _SECONDS_PER_BYTE
                )

    @property
    def watch_count(self) -> int:
        """The number of watches and upgraded connections in progress."""
        return len(self._users_by_stream)

    def headers_of(
        self, stream: api_request.StreamingResponse | api_request.UpgradeResponse
    ) -> tuple[tuple[str, str], ...]:
        """Return the headers of a stream that identify its flow."""
        return self._headers_by_stream.get(stream, ())

    def end_stream(self, stream: api_request.StreamingResponse | api_request.UpgradeResponse) -> None:
        """Stop counting a stream as a watch of its user. A streaming response is also ended."""
        if not isinstance(stream, api_request.UpgradeResponse):
            self._commit.unsubscribe(stream)
            stream.end()
        self._headers_by_stream.pop(stream, None)
        user = self._users_by_stream.pop(stream, None)
        if user is not None:
            self._limiter.end_watch(user)

    def _execute_request(self, request: api_request.ApiRequest, began_at: float, finish: _ResponseFinisher) -> None:
        result, measurement = self._handle_request(request), (self._metrics.latest_labels, began_at)
        if isinstance(
            result, api_request.DeferredResponse
        ):  # registered now: the response may come before the journal is written
            result.then(lambda response: self._send_deferred(finish, response, measurement))
        elif isinstance(result, api_request.ProxyResponse):
            self._send_deferred(finish, result, measurement)
        else:
            self._commit.when_durable(self._revision(), partial(finish, result, measurement))

    def _finish_request(
        self,
        user: api_request.UserInfo,
        flow: RequestFlow | None,
        on_response: ResponseReceiver,
        started_response: api_request.StartedResponse,
        measurement: _RequestMeasurement,
        journal_error: JournalError | None,
    ) -> None:
        self._limiter.leave(user)
        self._metrics.record_duration(*measurement)
        if flow is not None:
            flow.level.release()
            if isinstance(started_response, api_request.Response):
                started_response = started_response._replace(headers=(*started_response.headers, *flow.headers))
            else:
                self._headers_by_stream[started_response] = flow.headers
        if not isinstance(started_response, api_request.Response):
            self._users_by_stream[started_response] = user
            self._limiter.begin_watch(user)
        if journal_error is None:
            on_response(started_response)
        else:
            if not isinstance(started_response, api_request.Response):
                self.end_stream(started_response)
            is_refused = self._commit.replication is not None and self._commit.replication.refusal() is not None
            on_response(encode_body((_NOT_SERVING if is_refused else _NOT_STORED).response()))

    def _send_deferred(
        self, finish: _ResponseFinisher, response: api_request.FinalResponse, measurement: _RequestMeasurement
    ) -> None:
        """Send a deferred response once the current store revision is durable: the response may contain its changes.

        If another server gives the response, send the request to it, and then its response.
        """
        if isinstance(response, api_request.ProxyResponse):
            forward_request(response, lambda result: self._send_deferred(finish, result, measurement))
            return
        if isinstance(response, api_request.Response):
            response = encode_body(response)
        self._commit.when_durable(self._revision(), partial(finish, response, measurement))

    def _handle_request(self, request: api_request.ApiRequest) -> api_request.AnyResponse:
        try:
            result = self._server.handle(request)
            return _encode_response(result, request) if isinstance(result, api_request.Response) else result
        except Exception:  # noqa: BLE001 - becomes a 500 response
            self._exceptions += 1
            exception_id = f"{self._kernel.clock():x}-{self._exceptions}"
            _LOG.exception("unexpected exception %s while answering %s %r", exception_id, request.method, request.path)
            error_message = f"Internal error occurred: unexpected exception {exception_id}; see the server log"
            return encode_body(api_request.StatusError(500, "InternalError", error_message).response())


def _encode_response(response: api_request.Response, request: api_request.ApiRequest) -> api_request.Response:
    if request.method == "GET" or not isinstance(response.body, dict) or "items" in response.body:
        return encode_body(response)
    return response._replace(body=encode_with_cache(response.body) + b"\n")


def encode_body(response: api_request.Response) -> api_request.Response:
    """Return a response with its body as bytes, or as an iterator of pieces if it is long. JSON ends with a newline."""
    body = response.body
    if isinstance(body, bytes | Iterator):
        return response
    if isinstance(body, str):
        return response._replace(body=body.encode())
    if not isinstance(body, Mapping):
        return response._replace(body=_encoder.encode_lines([body]))
    chunks = encode_in_pieces(body)
    first_chunk, second_chunk = next(chunks), next(chunks, None)
    return response._replace(body=first_chunk if second_chunk is None else chain((first_chunk, second_chunk), chunks))
