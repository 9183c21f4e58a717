"""Event loop of the shims for descriptors, signals and timers, and functions that run a task in a forked child."""

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


class Loop:
    """An event loop of one process, with callbacks for descriptors, signals and timers."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._signals: dict[int, Callable[[], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timed = 0
        self._stopped = False
        self._wakes, self._woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        self.when_readable(self._wakes, self._signalled)

    def when_readable(self, file: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a descriptor is readable or at its end."""
        self._readers[file] = callback
        self._poll.register(file, _READABLE)

    def when_writable(self, file: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a descriptor is writable or its reader has closed it."""
        self._readers[file] = callback
        self._poll.register(file, _WRITABLE)

    def forget(self, file: int) -> None:
        """Remove the callback of a descriptor."""
        if self._readers.pop(file, None):
            self._poll.unregister(file)

    def when_signalled(self, number: int, callback: Callable[[], None]) -> None:
        """Call `callback` after a signal; several signals of the same number may cause a single call."""
        self._signals[number] = callback
        signal.signal(number, lambda *_: None)

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback` once after a number of seconds."""
        self._timed += 1
        heapq.heappush(self._timers, (linux.monotonic() + seconds, self._timed, callback))

    def stop(self) -> None:
        """Make `run` return after the current callbacks."""
        self._stopped = True

    def run(self) -> None:
        """Run the event loop until `stop` is called."""
        self._stopped = False
        while not self._stopped:
            for file, _ in self._poll.poll(self._patience()):
                if file in self._readers:
                    self._readers[file]()
            while self._timers and self._timers[0][0] <= linux.monotonic():
                heapq.heappop(self._timers)[2]()

    def _patience(self) -> float | None:
        """Return the poll timeout: the milliseconds until the next timer; None without timers."""
        return max(0.0, (self._timers[0][0] - linux.monotonic()) * 1000 + 1) if self._timers else None

    def _signalled(self) -> None:
        for number in sorted(set(os.read(self._wakes, 4096))):
            if number in self._signals:
                self._signals[number]()


# --- forks ---
# Forked child processes release the parent's resources first, and log their failures.


def run_shim(node: int, path: str, keeper: Callable[[ShimRun], None]) -> NoReturn:
    """In a child process: claim a run and supervise it with the function `supervise` until it has ended."""

    def act() -> None:
        # SIGTERM may arrive before the shim has its event loop; the shim checks for a stop request itself when it is
        # ready.
        signal.signal(signal.SIGTERM, lambda *_: None)
        linux.adopt_orphans()
        run = ShimRun(node, path)
        if run.claim():
            keeper(run)

    run_child(node, path, act)


def run_child(node: int, name: str, act: Callable[[], None]) -> NoReturn:
    """In a child process: run `act` in its own session and exit; failures are logged in `node.log`."""
    code = 1
    try:
        _begin()
        act()
        code = 0
    finally:
        failure = sys.exc_info()[1]
        if failure is not None:
            state_dir.complain(node, f"{name}: {_format_failure(failure)}")
        os._exit(code)


def _begin() -> None:
    """Release the spawner's terminal, standard streams and signal handlers."""
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDWR)
    for file in range(3):
        os.dup2(nothing, file)
    os.close(nothing)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _format_failure(failure: BaseException) -> str:
    """Format an exception with the file names and line numbers of its traceback, on one line."""
    places, frame = [], failure.__traceback__
    while frame is not None:
        places.append(f"{os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}")
        frame = frame.tb_next
    return f"{failure!r} at {' '.join(places)}"
