"""An answer that goes on, on a connection: it is written as it comes, until its client goes or its time is over."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from batchyard.apiserver.options import timeout_of
from batchyard.apiserver.request import Request
from batchyard.apiserver.responses import Ongoing
from batchyard.server.http.encoding import PIECE, shared

BOOKMARKS_EVERY: Final = 60.0  # seconds
#: How long before a watch ends its client is told how far it has come. Source: k8s.io/apiserver,
#: pkg/storage/cacher/cache_watcher.go.
BOOKMARK_BEFORE_END: Final = 2.0  # seconds
_LASTS: Final = 1800.0  # seconds, where a request says nothing
#: An event of a watch tells its type and its object, in this order.
_EVENT_SIZE: Final = 2
_encode = msgspec.json.Encoder().encode
TakeTurn: TypeAlias = Callable[[Callable[[], None]], None]
"""Calls a function soon, once others had their turn."""


class Sink(Protocol):
    """Where a stream goes."""

    @property
    def takes(self) -> bool:
        """Whether it takes more now; `tell` is called when it does again."""

    def write_part(self, part: bytes) -> None:
        """Take a part of the answer."""

    def end_parts(self) -> None:
        """That was the last one."""

    def abort(self) -> None:
        """There is a part that cannot be had."""


class Stream:
    """See the module."""

    def __init__(
        self, ongoing: Ongoing, request: Request, sink: Sink, loop: asyncio.AbstractEventLoop, take_turn: TakeTurn
    ) -> None:
        self.ongoing = ongoing
        self._sink = sink
        self._loop = loop
        self._take_turn = take_turn
        self._timed = [loop.call_later(after, then) for after, then in _timed(ongoing, request)]
        self._mark = loop.call_later(BOOKMARKS_EVERY, self._bookmark)
        #: What was taken and is not written yet; None where nothing is.
        self._waiting: Iterator[Any] | None = None
        self._has_turn = False
        self._is_stopped = False
        ongoing.on_news = self.tell

    def tell(self) -> None:
        """Write what waits, if it is taken."""
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
            self._take_turn(self._go_on)
        elif self.ongoing.is_over:
            self.stop()
            self._sink.end_parts()

    def _go_on(self) -> None:
        self._has_turn = False
        self.tell()

    def _next_part(self, waiting: Iterator[Any]) -> bytes:
        """Some of what waits, so that others have their turn while the rest does."""
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
        """Write nothing any more."""
        self._is_stopped = True
        self.ongoing.on_news = _nobody
        for call in (*self._timed, self._mark):
            call.cancel()

    def _bookmark(self) -> None:
        self._mark = self._loop.call_later(BOOKMARKS_EVERY, self._bookmark)
        self.ongoing.mark()


class Pieces:
    """A response in pieces, as a stream."""

    times_out: Final = False

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.content_type = ""  # its head is written before
        self.is_over = False
        self.on_news: Callable[[], None] = _nobody
        self._pieces = pieces

    def take(self) -> Iterator[bytes]:
        """All pieces, each encoded when it is read; asked for once."""
        self.is_over = True
        return self._pieces

    def mark(self) -> None:
        """Nothing is to be told."""

    def end(self) -> None:
        """It ends with its last piece."""


def _line(part: Any) -> bytes:
    if isinstance(part, bytes):
        return part
    if type(part) is dict and len(part) == _EVENT_SIZE and "type" in part and "object" in part:
        return b'{"type":"%b","object":%b}\n' % (part["type"].encode(), shared(part["object"]))
    return _encode(part) + b"\n"


def _timed(ongoing: Ongoing, request: Request) -> Iterator[tuple[float, Callable[[], None]]]:
    """What is done with it, and after how many seconds; a time that is over already is over now."""
    if not ongoing.times_out:
        return
    lasts = float(timeout_of(request)) or _LASTS
    yield max(0.0, lasts), ongoing.end
    if lasts > BOOKMARK_BEFORE_END:
        yield lasts - BOOKMARK_BEFORE_END, ongoing.mark


def _nobody() -> None:
    pass
