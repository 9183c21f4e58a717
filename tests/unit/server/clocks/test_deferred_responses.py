"""Deferred responses are sent once, after their journal commit."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from batchyard.apiserver.request import ApiRequest, DeferredResponse, Response, StartedResponse
from batchyard.apiserver.server import ApiServer
from batchyard.metrics.controllers import RequestMetrics
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.server.http.dispatcher import RequestDispatcher
from batchyard.server.platform.group_commit import GroupCommit
from batchyard.store.journal_file import JournalError
from unit.apiserver.api import OWNER, Api


class SlowCommit:
    """A journal whose commit the test controls."""

    replication = None

    def __init__(self) -> None:
        self.waiting: list[Callable[[JournalError | None], None]] = []

    def when_durable(self, revision: int, done: Callable[[JournalError | None], None]) -> None:
        self.waiting.append(done)


class LateServer(ApiServer):
    """A server with deferred responses; `listeners` are the callbacks that wait for them."""

    listeners: list[Callable[[Response], None]]

    def handle(self, request: ApiRequest) -> DeferredResponse:
        return DeferredResponse(self.listeners.append)


def test_deferred_response_before_journal_commit_is_sent_after_commit() -> None:
    answered: list[StartedResponse] = []
    commit, server = SlowCommit(), Api().server
    server.__class__ = LateServer
    late = cast("LateServer", server)
    late.listeners = []

    async def talk() -> None:
        kernel = LiveKernel(asyncio.get_running_loop(), 0)
        metrics = RequestMetrics(monotonic_seconds)
        answers = RequestDispatcher(late, kernel, cast("GroupCommit", commit), lambda: 7, metrics)
        answers.submit(ApiRequest("GET", "/version", {}, {}, b"", OWNER), answered.append)
        while not late.listeners:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        late.listeners[0](Response(200, {"a": 1}))
        kernel.stop()

    asyncio.run(asyncio.wait_for(talk(), 5))
    assert not answered
    for done in commit.waiting:
        done(None)
    (answer,) = answered
    assert isinstance(answer, Response)
    assert answer.body == b'{"a":1}\n'
