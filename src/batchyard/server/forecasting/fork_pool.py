"""Queue of questions that take seconds, answered one at a time in forks of this process.

A child (`http/forked_writes.py`) computes one answer as JSON, and is killed at its time limit. The queue is bounded.
Answers are cached until the next change of an object.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from batchyard.apiserver.request import Response, StatusError
from batchyard.apiserver.responses import DeferredResponse
from batchyard.metrics.forks import ANSWERED, FAILED, REFUSED, ForkMetrics
from batchyard.server.clocks.wall import ticks
from batchyard.server.http.flow_control import too_many
from batchyard.server.http.forked_writes import Child, ChildResult

#: The time limit of a child in seconds, and the maximum number of queued questions.
WITHIN: Final = 30.0
WAITING_MAX: Final = 16
#: The length of the status code at the beginning of a child's result.
_CODE: Final = 3
_NO_ANSWER: Final = StatusError(
    503, "ServiceUnavailable", f"no answer was found within {WITHIN:.0f} seconds", {"retryAfterSeconds": 10}
)
ResponseCallback: TypeAlias = Callable[[Response], None]
Work: TypeAlias = Callable[[], Any]
"""Computes an answer in a child. Raises Refused if it has none."""


@dataclass(slots=True, eq=False)
class _QueuedQuestion:
    """A queued question, and the callbacks that wait for its answer."""

    question: Hashable
    work: Work
    revision: int
    callback: list[ResponseCallback] = field(default_factory=list)


class ForkPool:
    """The queued questions, the running child, and the cached answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, revision: Callable[[], int]) -> None:
        self._loop = loop
        self._revision = revision
        self._waiting: deque[_QueuedQuestion] = deque()
        self._child: Child | None = None
        #: The cached answers, and their revision.
        self._known: dict[Hashable, Response] = {}
        self._known_at = -1
        self.figures = ForkMetrics(ticks, lambda: len(self._waiting))

    def ask(self, question: Hashable, work: Work) -> DeferredResponse:
        """Return the deferred answer to a question, computed by `work`. Raises Refused if the queue is full."""
        known = self._known.get(question) if self._known_at == self._revision() else None
        if known is not None:
            response = known
            return DeferredResponse(lambda callback: _soon(self._loop, callback, response))
        asked = self._same(question)
        if asked is None:
            if len(self._waiting) >= WAITING_MAX:
                self.figures.turn_away()
                raise too_many()
            asked = _QueuedQuestion(question, work, self._revision())
            self._waiting.append(asked)
            self._loop.call_soon(self._next)
        return DeferredResponse(asked.callback.append)

    def close(self) -> None:
        """Drop the queue, and kill the running child."""
        self._waiting.clear()
        if self._child is not None:
            self._child.kill()

    def _same(self, question: Hashable) -> _QueuedQuestion | None:
        """Return the queued entry of the same question, or None."""
        return next((asked for asked in self._waiting if asked.question == question), None)

    def _next(self) -> None:
        if self._child is not None or not self._waiting:
            return
        asked = self._waiting.popleft()
        asked.revision = self._revision()
        self.figures.begin()
        self._child = Child(self._loop, partial(_worked_out, asked.work), WITHIN, partial(self._answered, asked))

    def _answered(self, asked: _QueuedQuestion, found: ChildResult) -> None:
        """Pass on the result of a child, and cache it."""
        self._child = None
        response = _response(found.sent)
        result = ANSWERED if response.code == 200 else REFUSED if len(found.sent) >= _CODE else FAILED
        self.figures.end(result, found.cpu_seconds, found.memory)
        self._keep(asked, response)
        for callback in asked.callback:
            callback(response)
        self._loop.call_soon(self._next)

    def _keep(self, asked: _QueuedQuestion, response: Response) -> None:
        if response.code != 200:
            return
        if asked.revision != self._known_at:
            self._known.clear()
            self._known_at = asked.revision
        self._known[asked.question] = response


def _response(answer: bytes) -> Response:
    """Decode the result of a child: a three-digit status code and a body; empty if it was killed or failed."""
    if len(answer) < _CODE:
        return _NO_ANSWER.response()
    return Response(int(answer[:_CODE]), answer[_CODE:])


def _worked_out(work: Work) -> bytes:
    try:
        return b"200" + msgspec.json.encode(work())
    except StatusError as refused:
        response = refused.response()
        return b"%d" % response.code + msgspec.json.encode(response.body)


def _soon(loop: asyncio.AbstractEventLoop, callback: ResponseCallback, response: Response) -> None:
    loop.call_soon(callback, response)
