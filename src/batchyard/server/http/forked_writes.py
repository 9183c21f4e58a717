"""Large requests, computed in forks of this process: a few at a time, in fair order by the users' CPU time."""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, NoReturn, TypeAlias

from batchyard.apiserver.request import StatusError, UserInfo, flow_of, is_exempt
from batchyard.interfaces.controller import Work
from batchyard.server.http.flow_control import FairQueue, too_many

# --- children ---
#
# A fork of this process has all objects without copying them, and sends its result over a pipe.
#
# A child closes all files except its pipe, and uses no threads, sockets or the journal. It disables the garbage
# collector, which would copy all pages. It ends by _exit, without the cleanup of a process.


#: The nice value of a child.
_NICE: Final = 10
_READ: Final = 1 << 16
#: The unit of ru_maxrss in bytes.
_MAXRSS: Final = 1024
ChildWork: TypeAlias = Callable[[], bytes]
"""Computes the result of a child."""


class ChildResult(NamedTuple):
    """The result of a child (empty if it was killed or failed), and its resource usage."""

    sent: bytes
    cpu_seconds: float
    memory: int


class Child:
    """A fork of this process that computes one result."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: ChildWork, within: float, done: Callable[[ChildResult], None]
    ) -> None:
        """Fork. `done` is called with the result. After `within` seconds the child is killed."""
        self._loop = loop
        self._done = done
        self._sent = bytearray()
        self._reading, writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _run(work, writing)
        os.close(writing)
        self._killing = loop.call_later(within, self.kill)
        loop.add_reader(self._reading, self._read)

    def kill(self) -> None:
        """Kill the child. Its result is empty."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _read(self) -> None:
        """Read a part of the result, or its end."""
        part = os.read(self._reading, _READ)
        if part:
            self._sent += part
            return
        self._loop.remove_reader(self._reading)
        os.close(self._reading)
        self._killing.cancel()
        used = os.wait4(self._pid, 0)[2]
        self._done(ChildResult(bytes(self._sent), used.ru_utime + used.ru_stime, used.ru_maxrss * _MAXRSS))


def _run(work: ChildWork, writing: int) -> NoReturn:
    """Run a child."""
    code = 1
    try:
        gc.disable()
        os.nice(_NICE)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        _close_all_but(writing)
        sent = memoryview(work())
        while sent:
            sent = sent[os.write(writing, sent) :]
        code = 0
    finally:
        os._exit(code)


def _close_all_but(kept: int) -> None:
    """Close all other files, so that a peer does not wait for this process to close them."""
    os.closerange(0, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


#: Maximum concurrent children of users, and additional ones of the owner.
SEATS: Final = 2
SEATS_OF_OWNER: Final = 1
#: Maximum queued requests of one user, and in total.
WAITING_OF_ONE_MAX: Final = 16
WAITING_MAX: Final = 128
#: The time limit of a child in seconds.
WITHIN: Final = 20.0
#: The expected CPU seconds of a child, and the CPU seconds that a fork costs this process.
_EXPECTED: Final = 0.1
_FORK: Final = 0.01
Done: TypeAlias = Callable[[bytes | StatusError], None]


class _QueuedWork(NamedTuple):
    """A queued request."""

    work: Callable[[], bytes]
    done: Done


class ForkedWork:
    """The running children and the queued requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop, post: Callable[[Work], None]) -> None:
        """`post` runs work in the platform's thread, in its order."""
        self._loop = loop
        self._post = post
        self._waiting: FairQueue[_QueuedWork] = FairQueue(_EXPECTED)
        self._children: dict[Child, bool] = {}
        self._is_due = False
        self._is_ending = False

    def ask(self, user: UserInfo, work: Callable[[], bytes], done: Done) -> None:
        """Queue work of a user for a fork. Raises Refused if too much is queued."""
        flow, is_urgent = flow_of(user), is_exempt(user)
        is_full = len(self._waiting) >= WAITING_MAX or self._waiting.waiting(flow) >= WAITING_OF_ONE_MAX
        if self._is_ending or (is_full and not is_urgent):
            raise too_many()
        self._waiting.put(flow, _QueuedWork(work, done), is_urgent=is_urgent)
        self._come_soon()

    def close(self) -> None:
        """Kill the children, and reject the queued requests."""
        self._is_ending = True
        for child in self._children:
            child.kill()
        for asked in self._waiting.clear():
            self._post(partial(asked.done, too_many()))

    def _come_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Fork for the next request, if a slot is free; one per loop iteration, so that other work runs in between."""
        self._is_due = False
        of_owner = sum(self._children.values())
        if self._waiting.has_urgent:
            is_free = of_owner < SEATS + SEATS_OF_OWNER
        else:
            is_free = self._waiting.has_others and len(self._children) - of_owner < SEATS
        if self._is_ending or not is_free:
            return
        flow, asked = self._waiting.take()
        holder: list[Child] = []
        child = Child(self._loop, asked.work, WITHIN, lambda found: self._ended(holder[0], flow, asked.done, found))
        holder.append(child)
        self._children[child] = not flow
        self._come_soon()

    def _ended(self, child: Child, flow: str, done: Done, found: ChildResult) -> None:
        """Charge the CPU time of a child, and pass on its result."""
        del self._children[child]
        self._waiting.charge(flow, found.cpu_seconds + _FORK)
        self._post(partial(done, found.sent))
        self._come_soon()
