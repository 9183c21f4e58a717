"""Throttle of scheduling decisions: a pause follows each decision, so that the thread can serve other work.

One decision for many Workloads costs less than many decisions. While the thread is busy, the pauses are much longer,
and the next decision includes all changes that have arrived. A pause ends early once the thread is no longer busy.
"""

import os
from collections.abc import Callable, Iterator
from typing import Final

from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant
from batchyard.interfaces.controller import Work
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import text_of
from batchyard.server.clocks.wall import own_cpu, wall_clock

# --- CPU demand ---
#
# The CPU demand of a thread: the time it ran plus the time it waited for a CPU.


#: Nanoseconds on a CPU, nanoseconds waiting for one, and a count. Source: Linux's scheduler/sched-stats.rst.
_STATISTICS: Final = "/proc/thread-self/schedstat"
_LENGTH_MAX: Final = 128


def wanted_cpu() -> float:
    """Return the seconds that the calling thread ran or waited for a CPU; without schedstat, only its CPU time."""
    try:
        file = os.open(_STATISTICS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return own_cpu()
    try:
        ran, waited, *_ = os.read(file, _LENGTH_MAX).split()
    finally:
        os.close(file)
    return (int(ran) + int(waited)) / 1e9


#: A pause is this many times as long as the decision before it, up to `REST_MAX` of real time.
_FACTOR: Final = 1
REST_MAX: Final = 200 * MILLISECOND
#: The thread is busy if its CPU demand exceeds this fraction of a measurement interval. Then the pauses are longer.
_BUSY: Final = 0.5
_LOOKED_AT: Final = 20 * MILLISECOND
_BUSY_FACTOR: Final = 40
BUSY_REST_MAX: Final = 1 * SECOND


class DecisionThrottle:
    """Delays scheduling decisions by pauses, depending on their duration and on the load of the thread.

    `clock` returns the platform's time, which may run faster than real time. While `waits` returns True, there are no
    pauses.
    """

    def __init__(self, clock: Callable[[], Instant], speed: float, waits: Callable[[], bool] = lambda: False) -> None:
        self._clock = clock
        self._speed = speed
        self._waits = waits
        #: In real time: the end and the duration of the last decision, the number of decisions, the total duration of
        #: the decisions, and the total duration of the pauses.
        self._ended: Instant = 0
        self._took: Duration = 0
        self._turns = 0
        self._worked: Duration = 0
        self._rested: Duration = 0
        #: The start of the current measurement, and the CPU demand of the thread until then.
        self._since: Instant = wall_clock()
        self._wanted = wanted_cpu()
        self._is_busy = False

    def next_turn(self) -> Instant:
        """Return 0 if the next decision may start now, else the instant at which the caller must ask again."""
        now = wall_clock()
        self._look(now)
        rested, rest = now - self._ended, self._rest()
        if rested >= rest or rested < 0 or self._waits():
            return 0
        left = min(rest - rested, _LOOKED_AT) if self._is_busy else rest - rested
        return self._clock() + max(1, int(left * self._speed))

    def take(self, turn: Work) -> None:
        """Run a decision, and measure its duration."""
        began = wall_clock()
        self._rested += max(0, min(began - self._ended, self._rest()))
        turn()
        self._ended = wall_clock()
        self._took = max(0, self._ended - began)
        self._turns += 1
        self._worked += self._took

    def _rest(self) -> Duration:
        """Return the length of the pause after the last decision, given the current load of the thread."""
        factor, most = (_BUSY_FACTOR, BUSY_REST_MAX) if self._is_busy else (_FACTOR, REST_MAX)
        return min(factor * self._took, most)

    def _look(self, now: Instant) -> None:
        """Measure the CPU demand of the thread since the last measurement, if that was long enough ago."""
        past = now - self._since
        if 0 <= past < _LOOKED_AT:
            return
        wanted = wanted_cpu()
        self._is_busy = (wanted - self._wanted) * SECOND > _BUSY * past
        self._since, self._wanted = now, wanted

    def texts(self) -> Iterator[str]:
        """Yield the metrics of the throttle."""
        yield text_of(metric("batchyard_turns_total"), [((), self._turns)])
        rows = [(("work",), self._worked / SECOND), (("rest",), self._rested / SECOND)]
        yield text_of(metric("batchyard_turn_seconds_total"), rows)
