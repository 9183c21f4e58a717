"""The machine's clocks; the only module that reads them."""

import time

from batchyard.base.instant import Instant


def wall_clock() -> Instant:
    """Return the current instant of the machine's clock."""
    return time.time_ns() // 1000


def ticks() -> float:
    """Return seconds since an arbitrary point, to measure durations."""
    return time.perf_counter()


def own_cpu() -> float:
    """Return the CPU seconds of the calling thread since an arbitrary point."""
    return time.thread_time()
