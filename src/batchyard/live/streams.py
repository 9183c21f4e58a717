"""An answer that goes on, on a connection: it is written as it comes, until its client goes or its time is over."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import msgspec

from batchyard.apiserver.list_options import timeout_of
from batchyard.apiserver.request import Request
from batchyard.apiserver.streams import Ongoing
from batchyard.live.encoding import shared

BOOKMARKS_EVERY: Final = 60.0  # seconds
#: How long before a watch ends its client is told how far it has come. Source: k8s.io/apiserver,
#: pkg/storage/cacher/cache_watcher.go.
BOOKMARK_BEFORE_END: Final = 2.0  # seconds
_LASTS: Final = 1800.0  # seconds, where a request says nothing
#: An event of a watch tells its type and its object, in this order.
_EVENT_SIZE: Final = 2
#: Bytes that are written at once.
_PART: Final = 256 * 1024
_encode = msgspec.json.Encoder().encode


class Sink(Protocol):
    """Where a stream goes."""

    @property
    def takes(self) -> bool:
        """Whether it takes more now; `tell` is called when it does again."""

    def write_part(self, part: bytes) -> None:
        """Take a part of the answer."""

    def end_parts(self) -> None:
        """That was the last one."""


class Stream:
    """See the module."""

    def __init__(self, ongoing: Ongoing, request: Request, sink: Sink, loop: asyncio.AbstractEventLoop) -> None:
        self.ongoing = ongoing
        self._sink = sink
        self._loop = loop
        self._timed = [loop.call_later(after, then) for after, then in _timed(ongoing, request)]
        self._mark = loop.call_later(BOOKMARKS_EVERY, self._bookmark)
        #: What was taken, and is not written yet.
        self._waiting: deque[Any] = deque()
        self._again: asyncio.Handle | None = None
        ongoing.on_news = self.tell

    def tell(self) -> None:
        """Write what waits, if it is taken."""
        if not self._sink.takes:
            return
        if not self._waiting:
            self._waiting.extend(self.ongoing.take())
        if self._waiting:
            self._sink.write_part(self._next_part())
        if self._waiting:
            self._go_on()
        elif self.ongoing.is_over:
            self.stop()
            self._sink.end_parts()

    def _go_on(self) -> None:
        """Write more once others had their turn, and the sink takes it."""
        if self._again is not None:
            self._again.cancel()
        self._again = self._loop.call_soon(self.tell)

    def _next_part(self) -> bytes:
        """Some of what waits, so that others have their turn while the rest does."""
        lines: list[bytes] = []
        length = 0
        while self._waiting and length < _PART:
            lines.append(_line(self._waiting.popleft()))
            length += len(lines[-1])
        return b"".join(lines)

    def stop(self) -> None:
        """Write nothing any more."""
        self.ongoing.on_news = _nobody
        for call in (*self._timed, self._mark, *([] if self._again is None else [self._again])):
            call.cancel()

    def _bookmark(self) -> None:
        self._mark = self._loop.call_later(BOOKMARKS_EVERY, self._bookmark)
        self.ongoing.mark()


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
