"""Machine clock: keeps a platform's clock at the wall clock, unless its time is accelerated.

A platform counts time by a monotonic clock, which stops while the machine sleeps. After a sleep, or after the wall
clock was set forward, the platform's clock jumps to it. Time that controllers have seen does not go back. If the wall
clock was set back, the platform's clock stays ahead of it.
"""

import logging
from collections.abc import Callable
from typing import Final

from batchyard.base.instant import SECOND, Instant, format_age
from batchyard.interfaces.controller import Kernel
from batchyard.server.clocks.kernel import LiveKernel

#: How often the wall clock is checked, and the tolerated difference.
_EVERY: Final = 5 * SECOND
_DIFFERS: Final = 2 * SECOND
_LOG: Final = logging.getLogger("batchyard")


class MachineClock:
    """A kernel whose clock follows the wall clock."""

    def __init__(self, kernel: LiveKernel, timers: Kernel, clock: Callable[[], Instant]) -> None:
        self._kernel = kernel
        self._timers = timers
        self._clock = clock

    def follow(self) -> None:
        """Adjust the kernel's clock now and periodically, until the kernel is stopped."""
        if self._kernel.is_stopped:
            return
        time = self._clock()
        ahead = time - self._kernel.clock()
        if ahead > _DIFFERS:
            _LOG.warning(
                "the machine's clock jumped ahead by %s (sleep or clock change); following it", format_age(ahead)
            )
            self._kernel.set_clock(time, 1.0)
        self._timers.call_at(self._timers.now() + _EVERY, self.follow)
