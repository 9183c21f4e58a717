"""Execution of large requests in forked child processes: a few at a time, with fair queueing by the users' CPU time."""

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, NoReturn, TypeAlias

from batchyard.apiserver.request import StatusError, UserInfo, flow_of, is_exempt_from_limits
from batchyard.interfaces.controller import Work
from batchyard.server.http.flow_control import FairQueue, too_many_requests

# A fork of this process shares all objects without copying them, and sends its result over a pipe.
#
# A child closes all file descriptors except its pipe, and does not use threads, sockets or the journal. It disables the
# garbage collector, which would copy all memory pages. It ends by _exit, without cleanup.


#: The nice value of a child.
_CHILD_NICENESS: Final = 10
_READ_SIZE: Final = 1 << 16
#: The unit of ru_maxrss in bytes.
_MAXRSS_UNIT: Final = 1024
ChildWork: TypeAlias = Callable[[], bytes]
"""Computes the result in a child process."""


class ChildResult(NamedTuple):
    """The output of a child process (incomplete if it failed), its CPU time, and its peak memory in bytes."""

    output: bytes
    cpu_seconds: float
    peak_memory: int


class ChildProcess:
    """A child process, forked from this one, that computes one result."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: ChildWork,
        timeout_seconds: float,
        on_result: Callable[[ChildResult], None],
    ) -> None:
        """Fork a child that runs `work`; `on_result` gets its result. The child is killed after `timeout_seconds`."""
        self._loop = loop
        self._on_result = on_result
        self._output = bytearray()
        self._read_fd, write_fd = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            _run_in_child(work, write_fd)
        os.close(write_fd)
        self._kill_timer = loop.call_later(timeout_seconds, self.kill)
        loop.add_reader(self._read_fd, self._read_output)

    def kill(self) -> None:
        """Kill the child process; its result is then reported with the output so far."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _read_output(self) -> None:
        chunk = os.read(self._read_fd, _READ_SIZE)
        if chunk:
            self._output += chunk
            return
        self._loop.remove_reader(self._read_fd)
        os.close(self._read_fd)
        self._kill_timer.cancel()
        child_usage = os.wait4(self._pid, 0)[2]
        self._on_result(
            ChildResult(
                bytes(self._output), child_usage.ru_utime + child_usage.ru_stime, child_usage.ru_maxrss * _MAXRSS_UNIT
            )
        )


def _run_in_child(work: ChildWork, write_fd: int) -> NoReturn:
    exit_code = 1
    try:
        gc.disable()
        os.nice(_CHILD_NICENESS)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signal_number, signal.SIG_DFL)
        _close_other_fds(write_fd)
        remaining_data = memoryview(work())
        while remaining_data:
            remaining_data = remaining_data[os.write(write_fd, remaining_data) :]
        exit_code = 0
    finally:
        os._exit(exit_code)


def _close_other_fds(kept_fd: int) -> None:
    """Close all file descriptors but one in the child, so that it keeps no inherited connections of its parent open."""
    os.closerange(0, kept_fd)
    os.closerange(kept_fd + 1, os.sysconf("SC_OPEN_MAX"))


#: Maximum concurrent child processes for all users, and additional ones for the platform's owner.
CHILDREN_MAX: Final = 2
OWNER_CHILDREN_MAX: Final = 1
#: Maximum queued requests of one user, and of all users.
USER_QUEUED_WORK_MAX: Final = 16
QUEUED_WORK_MAX: Final = 128
#: The time limit of a child process in seconds.
CHILD_SECONDS_MAX: Final = 20.0
#: The expected CPU seconds of a child process, and the CPU seconds that a fork costs this process.
_EXPECTED_WORK_SECONDS: Final = 0.1
_FORK_SECONDS: Final = 0.01
ForkedWorkCallback: TypeAlias = Callable[[bytes | StatusError], None]


class _QueuedWork(NamedTuple):
    work: Callable[[], bytes]
    on_end: ForkedWorkCallback


class ForkedWork:
    """Runs queued functions for users in forked child processes, a few at a time, with fair queueing by user."""

    def __init__(self, loop: asyncio.AbstractEventLoop, post: Callable[[Work], None]) -> None:
        """Create the executor. `post` schedules a callback on the event loop of the controllers."""
        self._loop = loop
        self._post = post
        self._queue: FairQueue[_QueuedWork] = FairQueue(_EXPECTED_WORK_SECONDS)
        #: The running child processes, and whether each one runs a function of `system:masters`.
        self._children: dict[ChildProcess, bool] = {}
        self._is_scheduled = False
        self._is_ending = False

    def submit(self, user: UserInfo, work: Callable[[], bytes], on_end: ForkedWorkCallback) -> None:
        """Queue a function for a child process; `on_end` gets its output, or a StatusError at shutdown.

        If the child process fails or is killed, the output is incomplete.
        Raises StatusError (429) if the server shuts down, or if the queue is full and the user is not in
        `system:masters`.
        """
        flow_name, is_urgent = flow_of(user), is_exempt_from_limits(user)
        is_full = len(self._queue) >= QUEUED_WORK_MAX or self._queue.waiting_count(flow_name) >= USER_QUEUED_WORK_MAX
        if self._is_ending or (is_full and not is_urgent):
            raise too_many_requests()
        self._queue.put(flow_name, _QueuedWork(work, on_end), is_urgent=is_urgent)
        self._schedule_fork()

    def close(self) -> None:
        """Kill the child processes, and start no more. Queued functions are rejected with 429."""
        self._is_ending = True
        for child in self._children:
            child.kill()
        while len(self._queue):
            _, queued_work = self._queue.take_next_item()
            self._post(partial(queued_work.on_end, too_many_requests()))

    def _schedule_fork(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._fork_next)

    def _fork_next(self) -> None:
        """Fork a child for the next queued function if a slot is free; at most one fork in each loop iteration."""
        self._is_scheduled = False
        owner_child_count = sum(self._children.values())
        if self._queue.has_urgent:
            has_free_slot = owner_child_count < CHILDREN_MAX + OWNER_CHILDREN_MAX
        else:
            has_free_slot = self._queue.has_non_urgent and len(self._children) - owner_child_count < CHILDREN_MAX
        if self._is_ending or not has_free_slot:
            return
        flow_name, queued_work = self._queue.take_next_item()
        forked_children: list[ChildProcess] = []
        child = ChildProcess(
            self._loop,
            queued_work.work,
            CHILD_SECONDS_MAX,
            lambda child_result: self._process_result(forked_children[0], flow_name, queued_work.on_end, child_result),
        )
        forked_children.append(child)
        self._children[child] = not flow_name
        self._schedule_fork()

    def _process_result(self, child: ChildProcess, flow: str, on_end: ForkedWorkCallback, result: ChildResult) -> None:
        del self._children[child]
        self._queue.charge(flow, result.cpu_seconds + _FORK_SECONDS)
        self._post(partial(on_end, result.output))
        self._schedule_fork()
