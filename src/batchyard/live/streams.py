"""A watch on a connection: its events are written as they become known, until its client goes or its time is over."""

import asyncio
from typing import Final, Protocol

import msgspec

from batchyard.apiserver.request import Request
from batchyard.apiserver.watching import WatchStream

BOOKMARKS_EVERY: Final = 60.0  # seconds
_LASTS: Final = 1800.0  # seconds, where a request says nothing
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

    def __init__(self, watch: WatchStream, request: Request, sink: Sink, loop: asyncio.AbstractEventLoop) -> None:
        self.watch = watch
        self._sink = sink
        self._loop = loop
        self._end = loop.call_later(_timeout(request), watch.end)
        self._mark = loop.call_later(BOOKMARKS_EVERY, self._bookmark)
        watch.on_news = self.tell

    def tell(self) -> None:
        """Write what waits, if it is taken."""
        if not self._sink.takes:
            return
        waiting = self.watch.take()
        if waiting:
            self._sink.write_part(b"".join([_encode(event) + b"\n" for event in waiting]))
        if self.watch.is_over:
            self.stop()
            self._sink.end_parts()

    def stop(self) -> None:
        """Write nothing any more."""
        self.watch.on_news = _nobody
        self._end.cancel()
        self._mark.cancel()

    def _bookmark(self) -> None:
        self._mark = self._loop.call_later(BOOKMARKS_EVERY, self._bookmark)
        self.watch.mark()


def _timeout(request: Request) -> float:
    text = request.query.get("timeoutSeconds", "")
    return float(text) if text.isdecimal() and int(text) else _LASTS


def _nobody() -> None:
    pass
