"""The one place that asks the machine what time it is."""

import time

from batchyard.base.instant import Instant


def wall_clock() -> Instant:
    """The present instant, as the machine has it."""
    return time.time_ns() // 1000


def ticks() -> float:
    """Seconds since whenever: for how long something took."""
    return time.perf_counter()


def own_cpu() -> float:
    """CPU seconds that the thread which asks has had, since whenever."""
    return time.thread_time()
