"""How much of real time decisions take: after each as long a rest as it took, and more, in which others are served."""

from collections.abc import Callable
from typing import Final

from batchyard.base.instant import MILLISECOND, Duration, Instant
from batchyard.live.clock import wall_clock
from batchyard.ports.kernel import Work

#: How much longer than a decision the rest after it is; never longer than so long, by the clock.
_FACTOR: Final = 2
REST_MAX: Final = 200 * MILLISECOND


class Pace:
    """See the module. `clock` is the platform's, which may run faster."""

    def __init__(self, clock: Callable[[], Instant], speed: float) -> None:
        self._clock = clock
        self._speed = speed
        self._next: Instant = 0

    def next_turn(self) -> Instant:
        """When the next may begin."""
        return self._next

    def take(self, turn: Work) -> None:
        """Do what one decision is."""
        began = wall_clock()
        turn()
        took: Duration = wall_clock() - began
        self._next = self._clock() + int(min(_FACTOR * took, REST_MAX) * self._speed)
