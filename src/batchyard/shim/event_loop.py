"""What a keeper waits for: files to read, signals, and times; one after the other, in one thread."""

import heapq
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from batchyard.shim import clock, linux, state_dir
from batchyard.shim.run import Run

_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
_WRITABLE = select.POLLOUT | select.POLLERR


class Loop:
    """Calls back what waits for a file, a signal or a time, until it is told to stop."""

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
        """Call whenever there is something to read, or nothing will be any more."""
        self._readers[file] = callback
        self._poll.register(file, _READABLE)

    def when_writable(self, file: int, callback: Callable[[], None]) -> None:
        """Call whenever something can be written, or nobody will read it any more."""
        self._readers[file] = callback
        self._poll.register(file, _WRITABLE)

    def forget(self, file: int) -> None:
        """Wait for that file no longer."""
        if self._readers.pop(file, None):
            self._poll.unregister(file)

    def when_signalled(self, number: int, callback: Callable[[], None]) -> None:
        """Call after a signal; several of one kind may be one call."""
        self._signals[number] = callback
        signal.signal(number, lambda *_: None)

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call once, so many seconds from now."""
        self._timed += 1
        heapq.heappush(self._timers, (clock.monotonic() + seconds, self._timed, callback))

    def stop(self) -> None:
        """Let `run` return after what is being done now."""
        self._stopped = True

    def run(self) -> None:
        """Wait and call, until stopped."""
        self._stopped = False
        while not self._stopped:
            for file, _ in self._poll.poll(self._patience()):
                if file in self._readers:
                    self._readers[file]()
            while self._timers and self._timers[0][0] <= clock.monotonic():
                heapq.heappop(self._timers)[2]()

    def _patience(self) -> float | None:
        """Milliseconds until the next time, None for ever."""
        return max(0.0, (self._timers[0][0] - clock.monotonic()) * 1000 + 1) if self._timers else None

    def _signalled(self) -> None:
        for number in sorted(set(os.read(self._wakes, 4096))):
            if number in self._signals:
                self._signals[number]()


# --- forks ---
#
# What forks of the node's programs do first and last: let go of their parent's things, and write down what failed.


def keep(node: int, path: str, keeper: Callable[[Run], None]) -> NoReturn:
    """In a child: be the keeper of a run, until it has ended."""

    def act() -> None:
        # Whoever knows of the keeper may wake it, and it may not be listening yet: it looks for itself when it is.
        signal.signal(signal.SIGTERM, lambda *_: None)
        linux.adopt_orphans()
        run = Run(node, path)
        if run.claim():
            keeper(run)

    be(node, path, act)


def be(node: int, name: str, act: Callable[[], None]) -> NoReturn:
    """Do in a child what it is for, in a session of its own, and end; what fails is written down."""
    code = 1
    try:
        _begin()
        act()
        code = 0
    finally:
        failure = sys.exc_info()[1]
        if failure is not None:
            state_dir.complain(node, f"{name}: {_told(failure)}")
        os._exit(code)


def _begin() -> None:
    """Let go of what was the spawner's: its terminal and files, its signals."""
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


def _told(failure: BaseException) -> str:
    """What went wrong, and where."""
    places, frame = [], failure.__traceback__
    while frame is not None:
        places.append(f"{os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}")
        frame = frame.tb_next
    return f"{failure!r} at {' '.join(places)}"
