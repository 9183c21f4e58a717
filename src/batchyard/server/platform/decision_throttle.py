"""How much of real time decisions take: after each as long a rest as it took, and more, in which others are served.

A decision about many costs less than many decisions. So while the thread has nothing to wait for the rests are much
longer, and what comes meanwhile is decided together; they end early once it has.
"""

import os
from collections.abc import Callable, Iterator
from typing import Final

from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant
from batchyard.interfaces.controller import Work
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import text_of
from batchyard.server.clocks.wall import own_cpu, wall_clock

# --- own cpu ---
#
# How busy a thread is: how long it ran, or would have if others had not had its CPU.


#: Nanoseconds of a thread on a CPU, and waiting for one; then how often. Source: Linux's scheduler/sched-stats.rst.
_STATISTICS: Final = "/proc/thread-self/schedstat"
_LENGTH_MAX: Final = 128


def wanted_cpu() -> float:
    """Seconds in which the thread that asks wanted a CPU so far; where the kernel tells of none, those it had."""
    try:
        file = os.open(_STATISTICS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return own_cpu()
    try:
        ran, waited, *_ = os.read(file, _LENGTH_MAX).split()
    finally:
        os.close(file)
    return (int(ran) + int(waited)) / 1e9


#: So many times as long as a decision is the rest after it; never longer than so long, by the clock.
_FACTOR: Final = 1
REST_MAX: Final = 200 * MILLISECOND
#: The same while the thread is busy for more than this share of such a time.
_BUSY: Final = 0.5
_LOOKED_AT: Final = 20 * MILLISECOND
_BUSY_FACTOR: Final = 40
BUSY_REST_MAX: Final = 1 * SECOND


class Pace:
    """See the module. `clock` is the platform's, which may run faster; while it `waits` for others there is no rest."""

    def __init__(self, clock: Callable[[], Instant], speed: float, waits: Callable[[], bool] = lambda: False) -> None:
        self._clock = clock
        self._speed = speed
        self._waits = waits
        #: When the last ended, and how long it took; how many there were, how long they took and how long the rests
        #: after them, by the machine's clock.
        self._ended: Instant = 0
        self._took: Duration = 0
        self._turns = 0
        self._worked: Duration = 0
        self._rested: Duration = 0
        #: Since when it is looked at how busy the thread is, and how much it had wanted until then.
        self._since: Instant = wall_clock()
        self._wanted = wanted_cpu()
        self._is_busy = False

    def next_turn(self) -> Instant:
        """When the next may begin, or is to be asked for again."""
        now = wall_clock()
        self._look(now)
        rested, rest = now - self._ended, self._rest()
        if rested >= rest or rested < 0 or self._waits():
            return 0
        left = min(rest - rested, _LOOKED_AT) if self._is_busy else rest - rested
        return self._clock() + max(1, int(left * self._speed))

    def take(self, turn: Work) -> None:
        """Do what one decision is."""
        began = wall_clock()
        self._rested += max(0, min(began - self._ended, self._rest()))
        turn()
        self._ended = wall_clock()
        self._took = max(0, self._ended - began)
        self._turns += 1
        self._worked += self._took

    def _rest(self) -> Duration:
        """How long the rest after the last is, as busy as the thread is now."""
        factor, most = (_BUSY_FACTOR, BUSY_REST_MAX) if self._is_busy else (_FACTOR, REST_MAX)
        return min(factor * self._took, most)

    def _look(self, now: Instant) -> None:
        """See how busy the thread was, once enough time has passed to tell."""
        past = now - self._since
        if 0 <= past < _LOOKED_AT:
            return
        wanted = wanted_cpu()
        self._is_busy = (wanted - self._wanted) * SECOND > _BUSY * past
        self._since, self._wanted = now, wanted

    def texts(self) -> Iterator[str]:
        """Figures of it."""
        yield text_of(metric("batchyard_turns_total"), [((), self._turns)])
        rows = [(("work",), self._worked / SECOND), (("rest",), self._rested / SECOND)]
        yield text_of(metric("batchyard_turn_seconds_total"), rows)
