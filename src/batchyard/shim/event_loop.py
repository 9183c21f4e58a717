"""Event loop of a shim process (descriptors, signals, timers), and functions that run a task in a forked child."""

import heapq
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from batchyard.shim import linux, state_dir
from batchyard.shim.run import ShimRun

_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
_WRITABLE = select.POLLOUT | select.POLLERR


class ShimEventLoop:
    """The event loop of one process, with callbacks for descriptors, signals and timers."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._callbacks_by_fd: dict[int, Callable[[], None]] = {}
        self._signal_callbacks: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_count = 0
        self._is_stopped = False
        self._wakeup_reader, self._wakeup_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)
        self.when_readable(self._wakeup_reader, self._dispatch_signals)

    def when_readable(self, fd: int, callback: Callable[[], None]) -> None:
        """Set the callback of a descriptor, called whenever it has data to read or was closed by its writer."""
        self._callbacks_by_fd[fd] = callback
        self._poll.register(fd, _READABLE)

    def when_writable(self, fd: int, callback: Callable[[], None]) -> None:
        """Set the callback of a descriptor, called whenever it accepts data or was closed by its reader."""
        self._callbacks_by_fd[fd] = callback
        self._poll.register(fd, _WRITABLE)

    def unregister(self, fd: int) -> None:
        """Remove the callback of a descriptor, if it has one."""
        if self._callbacks_by_fd.pop(fd, None):
            self._poll.unregister(fd)

    def when_signalled(self, signal_number: int, callback: Callable[[], None]) -> None:
        """Set the callback for a signal; several signals of the same number may cause a single call."""
        self._signal_callbacks[signal_number] = callback
        signal.signal(signal_number, lambda *_: None)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Schedule a single call of `callback` after a number of seconds."""
        self._timer_count += 1
        heapq.heappush(self._timers, (linux.monotonic() + seconds, self._timer_count, callback))

    def stop(self) -> None:
        """Make the current call of `run` return after the callbacks that are due."""
        self._is_stopped = True

    def run(self) -> None:
        """Wait for events and call their callbacks until `stop` is called."""
        self._is_stopped = False
        while not self._is_stopped:
            for fd, _ in self._poll.poll(self._poll_timeout()):
                if fd in self._callbacks_by_fd:
                    self._callbacks_by_fd[fd]()
            while self._timers and self._timers[0][0] <= linux.monotonic():
                heapq.heappop(self._timers)[2]()

    def _poll_timeout(self) -> float | None:
        """Return the milliseconds until the next timer expires; None without timers."""
        return max(0.0, (self._timers[0][0] - linux.monotonic()) * 1000 + 1) if self._timers else None

    def _dispatch_signals(self) -> None:
        for signal_number in sorted(set(os.read(self._wakeup_reader, 4096))):
            if signal_number in self._signal_callbacks:
                self._signal_callbacks[signal_number]()


# Forked child processes release the parent's resources first, and log their failures.


def run_shim(node_fd: int, path: str, supervise: Callable[[ShimRun], None]) -> NoReturn:
    """In a forked child: claim the run (container, sandbox or image pull) at `path`, supervise it, and exit.

    If the run cannot be claimed, exit at once. `path` is relative to the directory whose descriptor is `node_fd`: the
    node directory.
    """

    def supervise_claimed_run() -> None:
        # SIGTERM may arrive before the shim has its event loop; the shim checks for a stop request itself when it is
        # ready.
        signal.signal(signal.SIGTERM, lambda *_: None)
        linux.adopt_orphans()
        run = ShimRun(node_fd, path)
        if run.claim():
            supervise(run)

    run_child(node_fd, path, supervise_claimed_run)


def run_child(node_fd: int, name: str, task: Callable[[], None]) -> NoReturn:
    """Run `task` in this forked process, in a new session; then exit with status 0, or 1 if the task failed.

    A failure is logged as a line that starts with `name` in `node.log` of the node's directory, whose open descriptor
    is `node_fd`.
    """
    exit_code = 1
    try:
        _release_inherited_resources()
        task()
        exit_code = 0
    finally:
        failure = sys.exc_info()[1]
        if failure is not None:
            state_dir.log_error(node_fd, f"{name}: {_format_failure(failure)}")
        os._exit(exit_code)


def _release_inherited_resources() -> None:
    os.setsid()
    dev_null_fd = os.open("/dev/null", os.O_RDWR)
    for fd in range(3):
        os.dup2(dev_null_fd, fd)
    os.close(dev_null_fd)
    signal.set_wakeup_fd(-1)
    for signal_number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(signal_number, signal.SIG_IGN)
    for signal_number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(signal_number, signal.SIG_DFL)


def _format_failure(failure: BaseException) -> str:
    traceback_locations, traceback = [], failure.__traceback__
    while traceback is not None:
        traceback_locations.append(f"{os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    return f"{failure!r} at {' '.join(traceback_locations)}"
