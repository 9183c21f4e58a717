"""Streaming responses, as they are written."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from batchyard.apiserver.request import ANONYMOUS, ApiRequest, UserInfo
from batchyard.server.http.flow_control import ResponseTurns
from batchyard.server.http.protocol import ResponsePieces, ResponseStream


class LargeResponse:
    """A response with many parts at once."""

    content_type = "text/plain"
    times_out = False

    def __init__(self, parts: Sequence[Any]) -> None:
        self.is_over = False
        self.on_new_data: Callable[[], None] = lambda: None
        self._parts = parts

    def take_buffered_data(self) -> Sequence[Any]:
        self.is_over = True
        return self._parts

    def send_keep_alive(self) -> None:
        pass

    def end(self) -> None:
        pass


class SlowClient:
    """A client that reads one part at a time."""

    def __init__(self) -> None:
        self.accepts_data = True
        self.parts: list[bytes] = []
        self.is_ended = False
        self.is_aborted = False

    def write_response_part(self, body_part: bytes) -> None:
        self.parts.append(body_part)

    def end_streaming_response(self) -> None:
        self.is_ended = True

    def abort(self) -> None:
        self.is_aborted = True


def test_large_response_is_written_in_parts_between_loop_turns() -> None:
    loop, turns = asyncio.new_event_loop(), list[int]()
    sink, texts = SlowClient(), [b"%d" % (number % 10) * 100_000 for number in range(50)]
    take_turn = ResponseTurns(loop).scheduler_for(ANONYMOUS)
    stream = ResponseStream(LargeResponse(texts), ApiRequest("GET", "/"), sink, loop, take_turn)

    def look() -> None:
        turns.append(len(sink.parts))
        sink.accepts_data = len(turns) != 3
        if len(turns) == 5:
            sink.accepts_data = True
            stream.write_next()
        if sink.is_ended:
            loop.stop()
        else:
            loop.call_soon(look)

    stream.write_next()
    assert (len(sink.parts), sink.is_ended) == (1, False)
    loop.call_soon(look)
    loop.run_forever()
    loop.close()
    assert b"".join(sink.parts) == b"".join(texts)
    assert max(map(len, sink.parts)) <= 400_000
    assert len(turns) >= len(sink.parts) - 1


class GrowingResponse(LargeResponse):
    """A response whose client waits for more data after each part."""

    def take_buffered_data(self) -> Sequence[Any]:
        parts, self._parts = self._parts, []
        return parts

    def add(self, part: bytes) -> None:
        self._parts = [*self._parts, part]
        self.on_new_data()


def test_data_that_arrives_between_the_parts_of_a_response_is_written_after_them() -> None:
    loop, sink, turns = asyncio.new_event_loop(), SlowClient(), list[Callable[[], None]]()
    response = GrowingResponse([b"x" * 300_000, b"last"])
    stream = ResponseStream(response, ApiRequest("GET", "/"), sink, loop, turns.append)
    stream.write_next()
    response.add(b"new")
    while turns:
        turns.pop()()
    stream.stop()
    loop.close()
    assert [part[:4] for part in sink.parts] == [b"xxxx", b"last", b"new"]


def defective_pieces(encoded: list[int]) -> Iterator[bytes]:
    for number in range(10):
        encoded.append(number)
        if number == 5:
            raise ZeroDivisionError
        yield b"x" * 300_000


def test_list_is_encoded_on_demand_and_aborted_on_exception() -> None:
    loop, encoded = asyncio.new_event_loop(), list[int]()
    sink = SlowClient()
    sink.accepts_data = False
    take_turn = ResponseTurns(loop).scheduler_for(ANONYMOUS)
    stream = ResponseStream(ResponsePieces(defective_pieces(encoded)), ApiRequest("GET", "/"), sink, loop, take_turn)
    stream.write_next()
    assert encoded == []
    sink.accepts_data = True
    loop.set_exception_handler(lambda *_: loop.stop())
    stream.write_next()
    assert (encoded, sink.is_aborted) == ([0], False)
    loop.run_forever()
    loop.close()
    stream.stop()
    assert (encoded, len(sink.parts), sink.is_aborted, sink.is_ended) == ([0, 1, 2, 3, 4, 5], 5, True, False)


def test_user_with_many_long_responses_gets_same_share_of_turns() -> None:
    loop = asyncio.new_event_loop()
    turns, order = ResponseTurns(loop), list[str]()

    def work(name: str, left: int) -> None:
        order.append(name)
        for _ in range(20_000):  # some time, so that it counts
            pass
        if left:
            turns.scheduler_for(UserInfo(name, ()))(lambda: work(name, left - 1))

    for _ in range(8):
        turns.scheduler_for(UserInfo("many", ()))(lambda: work("many", 100))
    turns.scheduler_for(UserInfo("one", ()))(lambda: work("one", 20))
    while "one" not in order or order.count("one") < 21:
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
    assert order.count("many") < 80
