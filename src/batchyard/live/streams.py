"""An answer that goes on, on a connection: it is written as it comes, until its client goes or its time is over."""

import asyncio
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
        ongoing.on_news = self.tell

    def tell(self) -> None:
        """Write what waits, if it is taken."""
        if not self._sink.takes:
            return
        waiting = self.ongoing.take()
        if waiting:
            self._sink.write_part(b"".join(map(_line, waiting)))
        if self.ongoing.is_over:
            self.stop()
            self._sink.end_parts()

    def stop(self) -> None:
        """Write nothing any more."""
        self.ongoing.on_news = _nobody
        for call in (*self._timed, self._mark):
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
