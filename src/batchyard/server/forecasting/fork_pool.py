"""Questions that take seconds, answered by forks of this process.

A child (`children.py`) computes one answer, as JSON. One works at a time; others wait in a line that has an end. A
child that takes too long is killed. An answer holds as long as nothing has changed.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from batchyard.apiserver.request import Refused, Response
from batchyard.apiserver.responses import Later
from batchyard.metrics.forks import ANSWERED, FAILED, REFUSED, ForkFigures
from batchyard.server.clocks.wall import ticks
from batchyard.server.http.flow_control import too_many
from batchyard.server.http.forked_writes import Child, ChildResult

#: Work of a child, in seconds; and how many may wait for it.
WITHIN: Final = 30.0
WAITING_MAX: Final = 16
#: Digits that an answer begins with.
_CODE: Final = 3
_NO_ANSWER: Final = Refused(
    503, "ServiceUnavailable", f"no answer was found within {WITHIN:.0f} seconds", {"retryAfterSeconds": 10}
)
Told: TypeAlias = Callable[[Response], None]
Work: TypeAlias = Callable[[], Any]
"""Answers a question, in a child; Refused where there is no answer."""


@dataclass(slots=True, eq=False)
class _Asked:
    """A question with all who wait for its answer."""

    question: Hashable
    work: Work
    revision: int
    told: list[Told] = field(default_factory=list)


class Forks:
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop, revision: Callable[[], int]) -> None:
        self._loop = loop
        self._revision = revision
        self._waiting: deque[_Asked] = deque()
        self._child: Child | None = None
        #: The last answers, and at which revision they were given.
        self._known: dict[Hashable, Response] = {}
        self._known_at = -1
        self.figures = ForkFigures(ticks, lambda: len(self._waiting))

    def ask(self, question: Hashable, work: Work) -> Later:
        """The answer to a question, by that work; Refused where too many wait."""
        known = self._known.get(question) if self._known_at == self._revision() else None
        if known is not None:
            response = known
            return Later(lambda told: _soon(self._loop, told, response))
        asked = self._same(question)
        if asked is None:
            if len(self._waiting) >= WAITING_MAX:
                self.figures.turn_away()
                raise too_many()
            asked = _Asked(question, work, self._revision())
            self._waiting.append(asked)
            self._loop.call_soon(self._next)
        return Later(asked.told.append)

    def close(self) -> None:
        """Let a child that works be ended."""
        self._waiting.clear()
        if self._child is not None:
            self._child.kill()

    def _same(self, question: Hashable) -> _Asked | None:
        """The same question, if it waits already."""
        return next((asked for asked in self._waiting if asked.question == question), None)

    def _next(self) -> None:
        if self._child is not None or not self._waiting:
            return
        asked = self._waiting.popleft()
        asked.revision = self._revision()
        self.figures.begin()
        self._child = Child(self._loop, partial(_worked_out, asked.work), WITHIN, partial(self._answered, asked))

    def _answered(self, asked: _Asked, found: ChildResult) -> None:
        """Pass on an answer."""
        self._child = None
        response = _response(found.sent)
        result = ANSWERED if response.code == 200 else REFUSED if len(found.sent) >= _CODE else FAILED
        self.figures.end(result, found.cpu_seconds, found.memory)
        self._keep(asked, response)
        for told in asked.told:
            told(response)
        self._loop.call_soon(self._next)

    def _keep(self, asked: _Asked, response: Response) -> None:
        if response.code != 200:
            return
        if asked.revision != self._known_at:
            self._known.clear()
            self._known_at = asked.revision
        self._known[asked.question] = response


def _response(answer: bytes) -> Response:
    """What a child wrote: a code of three digits, and the body; nothing where it was killed, or had a defect."""
    if len(answer) < _CODE:
        return _NO_ANSWER.response()
    return Response(int(answer[:_CODE]), answer[_CODE:])


def _worked_out(work: Work) -> bytes:
    try:
        return b"200" + msgspec.json.encode(work())
    except Refused as refused:
        response = refused.response()
        return b"%d" % response.code + msgspec.json.encode(response.body)


def _soon(loop: asyncio.AbstractEventLoop, told: Told, response: Response) -> None:
    loop.call_soon(told, response)
