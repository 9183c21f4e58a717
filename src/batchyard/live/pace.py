"""How much of real time decisions take: after each as long a rest as it took, and more, in which others are served.

While the thread has nothing to wait for, others wait for it: then the rests are longer, and what comes meanwhile is
decided together. A decision about many costs less than many decisions, and requests have most of the time.
"""

from collections.abc import Callable, Iterator
from typing import Final

from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant
from batchyard.live.clock import wall_clock
from batchyard.live.own_cpu import wanted_cpu
from batchyard.metrics.families import text_of
from batchyard.metrics.names import metric
from batchyard.ports.kernel import Work

#: How much longer than a decision the rest after it is; never longer than so long, by the clock.
_FACTOR: Final = 2
REST_MAX: Final = 200 * MILLISECOND
#: The same while the thread is busy for more than this share of such a time.
_BUSY: Final = 0.75
_LOOKED_AT: Final = 100 * MILLISECOND
_BUSY_FACTOR: Final = 6
BUSY_REST_MAX: Final = 400 * MILLISECOND


class Pace:
    """See the module. `clock` is the platform's, which may run faster."""

    def __init__(self, clock: Callable[[], Instant], speed: float) -> None:
        self._clock = clock
        self._speed = speed
        self._next: Instant = 0
        #: How many there were, how long they took and how long the rests after them, by the clock.
        self._turns = 0
        self._worked: Duration = 0
        self._rested: Duration = 0
        #: Since when it is looked at how busy the thread is, and how much it had wanted until then.
        self._since: Instant = wall_clock()
        self._wanted = wanted_cpu()
        self._is_busy = False

    def next_turn(self) -> Instant:
        """When the next may begin."""
        return self._next

    def take(self, turn: Work) -> None:
        """Do what one decision is."""
        began = wall_clock()
        self._look(began)
        turn()
        took: Duration = max(0, wall_clock() - began)
        rest = min(_BUSY_FACTOR * took, BUSY_REST_MAX) if self._is_busy else min(_FACTOR * took, REST_MAX)
        self._turns += 1
        self._worked += took
        self._rested += rest
        self._next = self._clock() + int(rest * self._speed)

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
