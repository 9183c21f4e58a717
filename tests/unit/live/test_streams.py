"""Answers that go on, as they are written."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from batchyard.apiserver.request import Request
from batchyard.live.streams import Stream


class Much:
    """An answer that has much to tell at once."""

    content_type = "text/plain"
    times_out = False

    def __init__(self, parts: Sequence[Any]) -> None:
        self.is_over = False
        self.on_news: Callable[[], None] = lambda: None
        self._parts = parts

    def take(self) -> Sequence[Any]:
        self.is_over = True
        return self._parts

    def mark(self) -> None:
        pass

    def end(self) -> None:
        pass


class Slow:
    """A client that takes one part at a time."""

    def __init__(self) -> None:
        self.takes = True
        self.parts: list[bytes] = []
        self.is_ended = False

    def write_part(self, part: bytes) -> None:
        self.parts.append(part)

    def end_parts(self) -> None:
        self.is_ended = True


def test_much_is_written_part_by_part_while_others_have_their_turn() -> None:
    loop = asyncio.new_event_loop()
    sink, texts = Slow(), [b"%d" % (number % 10) * 100_000 for number in range(50)]
    stream = Stream(Much(texts), Request("GET", "/"), sink, loop)
    turns: list[int] = []

    def look() -> None:
        turns.append(len(sink.parts))
        sink.takes = len(turns) != 3
        if len(turns) == 5:
            sink.takes = True
            stream.tell()
        if sink.is_ended:
            loop.stop()
        else:
            loop.call_soon(look)

    stream.tell()
    assert (len(sink.parts), sink.is_ended) == (1, False)
    loop.call_soon(look)
    loop.run_forever()
    loop.close()
    assert b"".join(sink.parts) == b"".join(texts)
    assert max(map(len, sink.parts)) <= 400_000
    assert len(turns) >= len(sink.parts) - 1
