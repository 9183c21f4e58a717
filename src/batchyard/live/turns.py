"""Parts of long answers take turns: one at a time, and between two the event loop looks at its sockets."""

import asyncio
from collections.abc import Callable
from typing import Final

from batchyard.apiserver.authentication import User
from batchyard.apiserver.flows import flow_of, is_exempt
from batchyard.live.clock import ticks
from batchyard.live.fairness import FairQueue
from batchyard.ports.kernel import Work

#: Seconds that a part is expected to take.
_EXPECTED: Final = 0.001


class Turns:
    """The parts that wait for their turn; users share the time by what their parts took before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: FairQueue[Work] = FairQueue(_EXPECTED)
        self._is_due = False

    def of(self, user: User) -> Callable[[Work], None]:
        """A function that puts parts of a user's answers in the queue."""
        flow, is_urgent = flow_of(user), is_exempt(user)

        def take_turn(work: Work) -> None:
            self._queue.put(flow, work, is_urgent=is_urgent)
            self._come_soon()

        return take_turn

    def _come_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_due = False
        flow, work = self._queue.take()
        if self._queue.has_urgent or self._queue.has_others:
            self._come_soon()
        began = ticks()
        try:
            work()
        finally:
            self._queue.charge(flow, ticks() - began)
