"""The time of the machine that a platform runs on, which it goes by unless its own time runs faster.

A platform counts its time by a clock that nobody sets, and that stands still while the machine sleeps. After a sleep,
or once the machine's clock was set ahead, it takes the time from there. Time that controllers have seen does not come
back: where the machine's clock was set back, the platform's goes on ahead of it.
"""

import logging
from collections.abc import Callable
from typing import Final

from batchyard.base.instant import SECOND, Instant, format_age
from batchyard.interfaces.controller import Kernel
from batchyard.server.clocks.kernel import LiveKernel

#: How often it is looked at, and what clocks may differ by.
_EVERY: Final = 5 * SECOND
_DIFFERS: Final = 2 * SECOND
_LOG: Final = logging.getLogger("batchyard")


class MachineClock:
    """Keeps the clock of a kernel by the machine's; see the module."""

    def __init__(self, kernel: LiveKernel, timers: Kernel, clock: Callable[[], Instant]) -> None:
        self._kernel = kernel
        self._timers = timers
        self._clock = clock

    def follow(self) -> None:
        """Look at it now and every few seconds, until the kernel is stopped."""
        if self._kernel.is_stopped:
            return
        time = self._clock()
        ahead = time - self._kernel.clock()
        if ahead > _DIFFERS:
            _LOG.warning("the clock of this machine is %s ahead, which slept or was set: it counts", format_age(ahead))
            self._kernel.set_clock(time, 1.0)
        self._timers.call_at(self._timers.now() + _EVERY, self.follow)
