"""What a keeper waits for: files to read, signals, and times; one after the other, in one thread."""

import heapq
import os
import select
import signal
from collections.abc import Callable

from batchyard.node import clock

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
