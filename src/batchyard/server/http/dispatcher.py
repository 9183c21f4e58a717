"""Request dispatcher: runs requests in the platform's thread, and responds once their revision is durable."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from batchyard.apiserver.request import (
    AnyResponse,
    ApiRequest,
    DeferredResponse,
    Response,
    StartedResponse,
    StatusError,
    StreamingResponse,
    UpgradeResponse,
    UserInfo,
    flow_of,
    is_exempt,
)
from batchyard.apiserver.serialization import ShownItems
from batchyard.apiserver.server import ApiServer
from batchyard.metrics.controllers import RequestMetrics
from batchyard.metrics.registry import Labels
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import ticks
from batchyard.server.http.flow_control import ConcurrencyLimiter, FairQueue, too_many
from batchyard.server.platform.group_commit import GroupCommit
from batchyard.store.journal_file import JournalError

# --- encoding ---
#
# JSON encoding of objects, cached: the response to a write and all watches share one encoding.
#
# Objects are immutable, and an object that is shown twice is the same value. The cache is therefore keyed by identity.
# Long lists are encoded in pieces.


#: Maximum cached objects: the response and the watches of an object are rarely further apart than one transaction.
_REMEMBERED_MAX: Final = 512
#: Maximum length of a cached text.
_LENGTH_MAX: Final = 64 * 1024
#: The size in bytes of a piece of a long response, and the maximum number of list items in a piece.
PIECE: Final = 256 * 1024
_ITEMS_MAX: Final = 1_000
_encode: Final = msgspec.json.Encoder().encode
_known: Final[dict[int, tuple[Any, bytes]]] = {}


def shared(shown: Any) -> bytes:
    """Encode a value that is never changed again, and cache the result."""
    known = _known.get(id(shown))
    if known is not None and known[0] is shown:
        return known[1]
    text = _encode(shown)
    if len(text) <= _LENGTH_MAX:
        if len(_known) >= _REMEMBERED_MAX:
            _known.clear()
        _known[id(shown)] = shown, text  # keeps the value alive, so that its id is not reused
    return text


def pieces(body: Mapping[str, Any]) -> Iterator[bytes]:
    """Encode a value as JSON with a final newline, in pieces. List items are converted and encoded lazily.

    A piece has about PIECE bytes, or more if a single item is larger.
    """
    name, items = next(((name, value) for name, value in body.items() if isinstance(value, ShownItems)), ("", ()))
    about = _encode({field: value for field, value in body.items() if field != name})
    if not name:
        yield about + b"\n"
        return
    begun = b"" if about == b"{}" else b","
    parts = [about[:-1] + begun + b'"%b":[' % name.encode()]
    length, is_first = len(parts[0]), True
    for item in items:
        text = _encode(item)
        parts.append(text if is_first else b"," + text)
        is_first, length = False, length + len(text)
        if length >= PIECE or len(parts) > _ITEMS_MAX:
            yield b"".join(parts)
            parts, length = [], 0
    yield b"".join([*parts, b"]}\n"])


Answered: TypeAlias = Callable[[StartedResponse], None]
"""Receives a response. Its body is bytes, or an iterator of bytes for a long response."""
_Measured: TypeAlias = tuple[Labels, float]
_Settle: TypeAlias = Callable[[StartedResponse, _Measured, JournalError | None], None]

_UNKEPT: Final = StatusError(
    500, "InternalError", "Internal error occurred: the journal cannot be written, nothing is kept"
)
_encoder: Final = msgspec.json.Encoder()
#: Paths of health checks, which have priority over all other requests.
_HEALTH: Final = ("/healthz", "/livez", "/readyz")
#: The expected seconds for a request, and the assumed seconds for reading a byte of its body.
_EXPECTED: Final = 0.0005
_SECONDS_PER_BYTE: Final = 1e-8
_LOG: Final = logging.getLogger("batchyard")


class _Work(NamedTuple):
    """A queued request."""

    request: ApiRequest
    work: Callable[[], None]
    answered: Answered


class RequestWatchdog(Protocol):
    """A watchdog over the request in progress."""

    def begin(self, request: ApiRequest) -> None:
        """Record that a request is in progress."""

    def end(self) -> None:
        """Record that the request is answered."""


class _NoGuard:
    """A watchdog that does nothing."""

    def begin(self, request: ApiRequest) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


class RequestDispatcher:
    """The queued requests, and the watches and upgraded connections in progress."""

    def __init__(
        self,
        server: ApiServer,
        kernel: LiveKernel,
        commit: GroupCommit,
        revision: Callable[[], int],
        figures: RequestMetrics,
        guard: RequestWatchdog | None = None,
    ) -> None:
        self._server = server
        self._kernel = kernel
        self._commit = commit
        self._revision = revision
        self._figures = figures
        self._guard = guard or _NoGuard()
        self._load = ConcurrencyLimiter()
        self._queue: FairQueue[_Work] = FairQueue(_EXPECTED)
        self._is_ending = False
        #: The user of each watch and upgraded connection.
        self._watching: dict[StreamingResponse | UpgradeResponse, UserInfo] = {}
        self._defects = 0

    def known(self, request: ApiRequest) -> ApiRequest:
        """Return the request, whose body is not read yet, with its authenticated user. Raises Refused."""
        return self._server.known(request)

    def ask(self, request: ApiRequest, answered: Answered) -> None:
        """Queue a request; `answered` gets the response. If too many are in progress, it gets a 429 at once."""
        user = request.user
        try:
            if self._is_ending:
                raise too_many()
            self._load.enter(user, is_watch=request.flag("watch") and self._server.begins_watch(request))
        except StatusError as refused:
            answered(encoded(refused.response()))
        else:
            began = self._figures.begin()
            work = _Work(request, partial(self._work, request, began, partial(self._settle, user, answered)), answered)
            is_urgent = is_exempt(user) or request.path.startswith(_HEALTH)
            self._queue.put(flow_of(user), work, is_urgent=is_urgent)
            self._kernel.post(self._next)

    def end(self) -> None:
        """Reject new and queued requests, so that their clients retry later."""
        self._is_ending = True
        for work in self._queue.clear():
            self._load.leave(work.request.user)
            work.answered(encoded(too_many().response()))

    def _next(self) -> None:
        """Answer the next request in fair order."""
        if not len(self._queue):
            return  # it was rejected at shutdown
        flow, work = self._queue.take()
        began = ticks()
        self._guard.begin(work.request)
        try:
            work.work()
        finally:
            self._guard.end()
            if flow:
                self._queue.charge(flow, ticks() - began + len(work.request.body) * _SECONDS_PER_BYTE)

    @property
    def watches(self) -> int:
        """The number of watches and upgraded connections in progress."""
        return len(self._watching)

    def leave(self, ongoing: StreamingResponse | UpgradeResponse) -> None:
        """End a streaming response whose client is gone."""
        if not isinstance(ongoing, UpgradeResponse):
            self._commit.leave(ongoing)
            ongoing.end()
        user = self._watching.pop(ongoing, None)
        if user is not None:
            self._load.end_watch(user)

    def _work(self, request: ApiRequest, began: float, settle: _Settle) -> None:
        answer, measured = self._answer(request), (self._figures.latest, began)
        if isinstance(answer, DeferredResponse):  # registered now: the response may come before the journal is written
            answer.then(lambda response: self._come(settle, response, measured))
        else:
            self._commit.when_durable(self._revision(), partial(settle, answer, measured))

    def _settle(
        self,
        user: UserInfo,
        answered: Answered,
        answer: StartedResponse,
        measured: _Measured,
        failure: JournalError | None,
    ) -> None:
        self._load.leave(user)
        self._figures.settle(*measured)
        if not isinstance(answer, Response):
            self._watching[answer] = user
            self._load.begin_watch(user)
        answered(answer if failure is None else encoded(_UNKEPT.response()))

    def _come(self, settle: _Settle, response: Response, measured: _Measured) -> None:
        """Send a deferred response, once the revision that it is based on is durable."""
        self._commit.when_durable(self._revision(), partial(settle, encoded(response), measured))

    def _answer(self, request: ApiRequest) -> AnyResponse:
        """Answer a request. An exception becomes a 500 response; its traceback is only logged."""
        try:
            answer = self._server.handle(request)
            return _sent(answer, request) if isinstance(answer, Response) else answer
        except Exception:  # noqa: BLE001 - becomes a 500 response
            self._defects += 1
            name = f"{self._kernel.clock():x}-{self._defects}"
            _LOG.exception("defect %s in the answer to %s %r", name, request.method, request.path)
            message = f"Internal error occurred: defect {name}; see the server log"
            return encoded(StatusError(500, "InternalError", message).response())


def _sent(response: Response, request: ApiRequest) -> Response:
    """Encode a response. The encoding of a written object is shared with the watches that send it."""
    if request.method == "GET" or not isinstance(response.body, dict) or "items" in response.body:
        return encoded(response)
    return response._replace(body=shared(response.body) + b"\n")


def encoded(response: Response) -> Response:
    """Encode the body of a response as bytes, or as an iterator of pieces. Objects end with a newline, as in Go."""
    body = response.body
    if isinstance(body, bytes | Iterator):
        return response
    if isinstance(body, str):
        return response._replace(body=body.encode())
    if not isinstance(body, Mapping):
        return response._replace(body=_encoder.encode_lines([body]))
    found = pieces(body)
    first, second = next(found), next(found, None)
    return response._replace(body=first if second is None else chain((first, second), found))
