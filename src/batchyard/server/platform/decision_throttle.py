"""Throttle of the scheduler and other controllers: a pause after each reconcile, so that the thread serves requests.

All controllers above the lowest rank are throttled together. A scheduling cycle for many Workloads costs less than many
cycles. While the thread is busy, the pauses are longer than otherwise, and the next reconcile includes all changes made
meanwhile. A pause ends early once the thread is not busy.
"""

import os
from collections.abc import Callable, Iterator
from typing import Final

from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant
from batchyard.interfaces.controller import Work
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import gauge_text
from batchyard.server.clocks.wall import thread_cpu_seconds, wall_clock

# The CPU demand of a thread: the time it ran plus the time it waited for a CPU.


#: Nanoseconds on a CPU, nanoseconds waiting for one, and a count. Source: Linux's scheduler/sched-stats.rst.
_SCHEDSTAT_PATH: Final = "/proc/thread-self/schedstat"
_SCHEDSTAT_READ_SIZE: Final = 128


def thread_cpu_demand_seconds() -> float:
    """Return how long the calling thread has run or waited for a CPU, in seconds; without schedstat, its CPU time."""
    try:
        schedstat_fd = os.open(_SCHEDSTAT_PATH, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return thread_cpu_seconds()
    try:
        run_time, wait_time, *_ = os.read(schedstat_fd, _SCHEDSTAT_READ_SIZE).split()
    finally:
        os.close(schedstat_fd)
    return (int(run_time) + int(wait_time)) / 1e9


#: A pause is this many times as long as the reconcile before it, up to `PAUSE_MAX` of real time.
_PAUSE_FACTOR: Final = 1
PAUSE_MAX: Final = 200 * MILLISECOND
#: The thread is busy if its CPU demand exceeds this fraction of a measurement interval. Then the pauses are longer.
_BUSY_FRACTION: Final = 0.5
_MEASUREMENT_INTERVAL: Final = 20 * MILLISECOND
_BUSY_PAUSE_FACTOR: Final = 40
BUSY_PAUSE_MAX: Final = 1 * SECOND


class DecisionThrottle:
    """Delays reconciles (mainly scheduling cycles) by pauses.

    A pause depends on the duration of the last reconcile and on the thread's load. `clock` returns the platform's time,
    which runs `speed` times as fast as real time. There are no pauses while `is_disabled` returns True.
    """

    def __init__(
        self, clock: Callable[[], Instant], speed: float, is_disabled: Callable[[], bool] = lambda: False
    ) -> None:
        self._clock = clock
        self._speed = speed
        self._is_disabled = is_disabled
        #: In real time: the end and the duration of the last reconcile, the number of reconciles, the total duration of
        #: the reconciles, and the total duration of the pauses.
        self._last_ended_at: Instant = 0
        self._last_duration: Duration = 0
        self._reconcile_count = 0
        self._reconcile_time: Duration = 0
        self._pause_time: Duration = 0
        #: The start of the current measurement, and the CPU demand of the thread until then.
        self._measured_at: Instant = wall_clock()
        self._measured_cpu = thread_cpu_demand_seconds()
        self._is_busy = False

    def next_turn(self) -> Instant:
        """Return 0 if the next reconcile may start now, else the instant at which to call this method again."""
        now = wall_clock()
        self._measure_load(now)
        pause, min_pause = now - self._last_ended_at, self._pause_after_last()
        if pause >= min_pause or pause < 0 or self._is_disabled():
            return 0
        remaining_pause = min(min_pause - pause, _MEASUREMENT_INTERVAL) if self._is_busy else min_pause - pause
        return self._clock() + max(1, int(remaining_pause * self._speed))

    def run_reconcile(self, reconcile: Work) -> None:
        """Run a reconcile, and measure its duration and the pause before it."""
        began_at = wall_clock()
        self._pause_time += max(0, min(began_at - self._last_ended_at, self._pause_after_last()))
        reconcile()
        self._last_ended_at = wall_clock()
        self._last_duration = max(0, self._last_ended_at - began_at)
        self._reconcile_count += 1
        self._reconcile_time += self._last_duration

    def _pause_after_last(self) -> Duration:
        pause_factor, pause_max = (_BUSY_PAUSE_FACTOR, BUSY_PAUSE_MAX) if self._is_busy else (_PAUSE_FACTOR, PAUSE_MAX)
        return min(pause_factor * self._last_duration, pause_max)

    def _measure_load(self, now: Instant) -> None:
        elapsed_time = now - self._measured_at
        if 0 <= elapsed_time < _MEASUREMENT_INTERVAL:
            return
        total_cpu_demand = thread_cpu_demand_seconds()
        self._is_busy = (total_cpu_demand - self._measured_cpu) * SECOND > _BUSY_FRACTION * elapsed_time
        self._measured_at, self._measured_cpu = now, total_cpu_demand

    def texts(self) -> Iterator[str]:
        """Yield the metrics of reconciles and pauses, as Prometheus text."""
        yield gauge_text(metric("batchyard_turns_total"), [((), self._reconcile_count)])
        time_rows = [(("work",), self._reconcile_time / SECOND), (("rest",), self._pause_time / SECOND)]
        yield gauge_text(metric("batchyard_turn_seconds_total"), time_rows)
