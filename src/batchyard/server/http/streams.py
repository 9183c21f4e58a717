"""Streaming responses: parts are written as they arise, until the client disconnects or the timeout expires."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from batchyard.apiserver.options import timeout_of
from batchyard.apiserver.request import ApiRequest
from batchyard.apiserver.responses import StreamingResponse
from batchyard.server.http.encoding import PIECE, shared

BOOKMARKS_EVERY: Final = 60.0  # seconds
#: How many seconds before the end of a watch its client gets a bookmark. Source: k8s.io/apiserver,
#: pkg/storage/cacher/cache_watcher.go.
BOOKMARK_BEFORE_END: Final = 2.0  # seconds
_LASTS: Final = 1800.0  # seconds, the default timeout
#: The number of fields of a watch event: its type and its object, in this order.
_EVENT_SIZE: Final = 2
_encode = msgspec.json.Encoder().encode
TakeTurn: TypeAlias = Callable[[Callable[[], None]], None]
"""Calls a function later, after other responses had their turn."""


class StreamSink(Protocol):
    """The connection that a stream writes to."""

    @property
    def takes(self) -> bool:
        """Whether more can be written now. When that becomes true, the stream is notified."""

    def write_part(self, part: bytes) -> None:
        """Write a part of the response."""

    def end_parts(self) -> None:
        """End the response."""

    def abort(self) -> None:
        """Close the connection, because a part could not be produced."""


class ResponseStream:
    """A streaming response on a connection, with its timers and the parts that are not written yet."""

    def __init__(
        self,
        ongoing: StreamingResponse,
        request: ApiRequest,
        sink: StreamSink,
        loop: asyncio.AbstractEventLoop,
        take_turn: TakeTurn,
    ) -> None:
        self.ongoing = ongoing
        self._sink = sink
        self._loop = loop
        self._take_turn = take_turn
        self._timed = [loop.call_later(after, then) for after, then in _timed(ongoing, request)]
        self._mark = loop.call_later(BOOKMARKS_EVERY, self._bookmark)
        #: The parts that are taken but not written yet; None if there are none.
        self._waiting: Iterator[Any] | None = None
        self._has_turn = False
        self._is_stopped = False
        ongoing.on_news = self.write_next

    def write_next(self) -> None:
        """Write the next part, if the connection accepts it."""
        if not self._sink.takes or self._has_turn or self._is_stopped:
            return
        if self._waiting is None and (taken := self.ongoing.take()):
            self._waiting = iter(taken)
        if self._waiting is not None:
            with ExitStack() as defect:
                defect.callback(self._sink.abort)
                part = self._next_part(self._waiting)
                defect.pop_all()
            if part:
                self._sink.write_part(part)
        if self._waiting is not None:
            self._has_turn = True
            self._take_turn(self._take_next_turn)
        elif self.ongoing.is_over:
            self.stop()
            self._sink.end_parts()

    def _take_next_turn(self) -> None:
        self._has_turn = False
        self.write_next()

    def _next_part(self, waiting: Iterator[Any]) -> bytes:
        """Encode up to PIECE bytes of the waiting parts, so that other responses get a turn in between."""
        lines: list[bytes] = []
        length = 0
        for each in waiting:
            lines.append(_line(each))
            length += len(lines[-1])
            if length >= PIECE:
                break
        else:
            self._waiting = None
        return b"".join(lines)

    def stop(self) -> None:
        """Stop writing, and cancel the timers."""
        self._is_stopped = True
        self.ongoing.on_news = _ignore_news
        for call in (*self._timed, self._mark):
            call.cancel()

    def _bookmark(self) -> None:
        self._mark = self._loop.call_later(BOOKMARKS_EVERY, self._bookmark)
        self.ongoing.mark()


class ResponsePieces:
    """A long response in pieces, as a stream."""

    times_out: Final = False

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.content_type = ""  # unused: the head is already written
        self.is_over = False
        self.on_news: Callable[[], None] = _ignore_news
        self._pieces = pieces

    def take(self) -> Iterator[bytes]:
        """Return all pieces, each encoded when it is read. Called once."""
        self.is_over = True
        return self._pieces

    def mark(self) -> None:
        """Do nothing: a response has no bookmarks."""

    def end(self) -> None:
        """Do nothing: it ends with its last piece."""


def _line(part: Any) -> bytes:
    if isinstance(part, bytes):
        return part
    if type(part) is dict and len(part) == _EVENT_SIZE and "type" in part and "object" in part:
        return b'{"type":"%b","object":%b}\n' % (part["type"].encode(), shared(part["object"]))
    return _encode(part) + b"\n"


def _timed(ongoing: StreamingResponse, request: ApiRequest) -> Iterator[tuple[float, Callable[[], None]]]:
    """Yield the actions of a stream, with their delays in seconds: the last bookmark, and the end."""
    if not ongoing.times_out:
        return
    lasts = float(timeout_of(request)) or _LASTS
    yield max(0.0, lasts), ongoing.end
    if lasts > BOOKMARK_BEFORE_END:
        yield lasts - BOOKMARK_BEFORE_END, ongoing.mark


def _ignore_news() -> None:
    pass
